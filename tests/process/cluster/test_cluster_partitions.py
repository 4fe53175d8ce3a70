"""A real cluster in network namespaces, cut apart: the minority is isolated and says so, the
majority goes on, and all of it heals by itself when the network does.

Four primaries and two secondaries; more than half elect, half is enough for a sitting root (R1).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from rhizome.client import connect
from rhizome.errors import PreconditionFailed
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import run
from tests.process.network_namespaces import Network, why_not

REFUSAL = why_not()

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL),
]

PRIMARIES = ["b1", "b2", "b3", "b4"]
SECONDARIES = ["s1", "s2"]
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    network = Network([*PRIMARIES, *SECONDARIES])
    try:
        network.build()
        yield network
    finally:
        network.tear_down()


@pytest.fixture(scope="module")
def started(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    directory = tmp_path_factory.mktemp("partitions")
    cluster = ClusterProcess(directory, len(PRIMARIES), len(SECONDARIES), make=network.broker)
    cluster.start()
    yield cluster
    network.heal()
    cluster.make_whole()
    assert cluster.stop() == [0] * 6, cluster.printed()


@pytest.fixture
def cluster(started: ClusterProcess, network: Network) -> ClusterProcess:
    network.heal()
    started.make_whole()
    return started


async def declare(cluster: ClusterProcess, at: str, queue: str, home: str) -> None:
    async with connect(cluster.brokers[at].url) as connection, connection.channel() as channel:
        await channel.declare_queue(queue, durable=True, arguments={"x-group": home})


def check_refused(cluster: ClusterProcess, at: str, queue: str) -> None:
    with pytest.raises(PreconditionFailed, match="isolated") as error:
        run(declare(cluster, at, queue, at))
    print(f"{at} refuses: {error.value}")


def check_whole_again(cluster: ClusterProcess, network: Network, queues: list[str]) -> None:
    """Heal; all brokers agree and know the queues, without anybody's help."""
    network.heal()
    begun = time.monotonic()
    cluster.wait_until_whole()
    print(f"whole {time.monotonic() - begun:.2f} s after the network")

    async def known(at: str) -> None:
        url = cluster.brokers[at].url
        async with connect(url) as connection, connection.channel(confirms=True) as channel:
            for queue in queues:
                await channel.declare_queue(queue, durable=True, passive=True)
                await channel.publish(b"through", routing_key=queue, mandatory=True)

    async def all_know() -> None:
        await asyncio.gather(*(known(at) for at in cluster.brokers))

    run(all_know())


def test_root_cut_off_alone_is_isolated_and_replaced(
    cluster: ClusterProcess, network: Network, unique: Unique
) -> None:
    root = cluster.wait_for_root()
    rest = [name for name in network.names if name != root]
    network.part([root], rest)
    new, seconds = cluster.wait_for_root_among(rest, root)
    print(f"\n{root} is cut off; {new} is root after {seconds:.2f} s")
    cluster.wait_for_status(root, "isolated")
    check_refused(cluster, root, unique("refused"))
    queue = unique("meanwhile")
    run(declare(cluster, rest[0], queue, new))
    check_whole_again(cluster, network, [queue])


def test_follower_cut_off_alone_is_isolated_and_disturbs_nobody(
    cluster: ClusterProcess, network: Network, unique: Unique
) -> None:
    root = cluster.wait_for_root()
    term = cluster.status(root)["cluster"]["term"]
    alone = next(name for name in PRIMARIES if name != root)
    rest = [name for name in network.names if name != alone]
    network.part([alone], rest)
    cluster.wait_for_status(alone, "isolated")
    check_refused(cluster, alone, unique("refused"))
    queue = unique("meanwhile")
    run(declare(cluster, rest[-1], queue, root))
    check_whole_again(cluster, network, [queue])
    after = cluster.status(root)["cluster"]
    assert (after["root"], after["term"]) == (root, term), "who returns deposes nobody (R5)"


def test_half_with_the_root_goes_on_and_the_other_half_is_isolated(
    cluster: ClusterProcess, network: Network, unique: Unique
) -> None:
    root = cluster.wait_for_root()
    second, *others = [name for name in PRIMARIES if name != root]
    here, there = [root, second, "s1"], [*others, "s2"]
    network.part(here, there)
    for name in there:
        cluster.wait_for_status(name, "isolated")
    check_refused(cluster, others[0], unique("refused"))
    assert cluster.wait_for_root_among(here, "")[0] == root
    queue = unique("meanwhile")
    run(declare(cluster, "s1", queue, second))
    check_whole_again(cluster, network, [queue])
    assert cluster.wait_for_root() == root


def test_halves_without_the_old_root_elect_nobody(
    cluster: ClusterProcess, network: Network, unique: Unique
) -> None:
    """The root is dead and two of three are needed by each side: nobody has more than half."""
    root = cluster.wait_for_root()
    first, second, third = [name for name in PRIMARIES if name != root]
    network.part([first, "s1"], [second, third, "s2"])
    cluster.brokers[root].kill()
    for name in (first, second, third):
        cluster.wait_for_status(name, "isolated")
    check_refused(cluster, second, unique("refused"))
    network.heal()
    new, seconds = cluster.wait_for_root_among([first, second, third], root)
    print(f"\nthree of four see each other again; {new} is root after {seconds:.2f} s")
    cluster.make_whole()


@pytest.mark.parametrize("deaf", [True, False], ids=["deaf", "mute"])
def test_root_that_is_deaf_or_mute_is_replaced(
    cluster: ClusterProcess, network: Network, unique: Unique, deaf: bool
) -> None:
    root = cluster.wait_for_root()
    rest = [name for name in network.names if name != root]
    if deaf:
        network.cut(rest, [root])
    else:
        network.cut([root], rest)
    new, seconds = cluster.wait_for_root_among(rest, root)
    print(f"\n{root} is {'deaf' if deaf else 'mute'}; {new} is root after {seconds:.2f} s")
    cluster.wait_for_status(root, "isolated")
    check_refused(cluster, root, unique("refused"))
    queue = unique("meanwhile")
    run(declare(cluster, rest[0], queue, new))
    check_whole_again(cluster, network, [queue])


def test_one_way_between_two_followers_costs_the_cluster_nothing(
    cluster: ClusterProcess, network: Network, unique: Unique
) -> None:
    root = cluster.wait_for_root()
    term = cluster.status(root)["cluster"]["term"]
    first, second, _ = [name for name in PRIMARIES if name != root]
    network.cut([first], [second])
    cluster.wait_until_apart(first, second)
    queue = unique("meanwhile")
    run(declare(cluster, first, queue, first))
    run(declare(cluster, second, unique("another"), second))
    check_whole_again(cluster, network, [queue])
    assert cluster.status(root)["cluster"]["term"] == term
