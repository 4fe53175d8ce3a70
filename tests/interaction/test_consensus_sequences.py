"""Plays: what brokers say to each other, line by line, when something happens to them.

Times are milliseconds since the curtain rose; a message takes one, and so does a sync of a disk. A
change of behaviour shows as a change of a script: read it, and if the story is better, put it in.
"""

from __future__ import annotations

from rhizome.cluster.consensus import ConsensusSettings
from rhizome.cluster.consensus.consensus_messages import Append
from rhizome.cluster.link.broker_hello import WITNESS
from tests.interaction.consensus_stage import Stage

THREE = ("b1", "b2", "b3")
FOUR = ("b1", "b2", "b3", "b4")
FIVE = ("b1", "b2", "b3", "b4", "b5")


def at_work(primaries: tuple[str, ...], secondaries: tuple[str, ...] = ()) -> Stage:
    """A cluster that has been at work under b1 for a second; the play begins here."""
    stage = Stage(primaries, secondaries)
    stage.start(*primaries, *secondaries)
    stage.run_until(lambda: len(stage.holders()) == len(stage.actors))
    stage.run(1000)
    stage.curtain()
    assert stage.roots() == ["b1"]
    return stage


def reads(stage: Stage, script: str) -> None:
    lines = script.strip("\n").rstrip().split("\n")
    assert stage.play() == "\n".join(line.removeprefix(" " * 8) for line in lines)


def test_three_primaries_start() -> None:
    """Three empty stores with the same list: they found a cluster; the first by name is root."""
    stage = Stage(THREE)
    stage.start(*THREE)
    stage.run(100)
    reads(
        stage,
        """
            0  b1 starts
            0  b2 starts
            0  b2 -> b1  shall I stand? log 0/0
            0  b1 -> b2  shall I stand? log 0/0
            0  b3 starts
            0  b3 -> b1  shall I stand? log 0/0
            0  b1 -> b3  shall I stand? log 0/0
            0  b3 -> b2  shall I stand? log 0/0
            0  b2 -> b3  shall I stand? log 0/0
            1  b1 -> b2  no: I rank better
            1  b2 -> b1  yes
            1  b1 -> b3  no: I rank better
            1  b3 -> b1  yes
            1  b2 -> b3  no: I rank better
            1  b3 -> b2  yes
            3  b1 -> b2, b3  vote for me in term 1, log 0/0
            5  b2 -> b1  you have my vote in term 1
            5  b3 -> b1  you have my vote in term 1
            6  b1 is elected root of term 1
            7  b2 follows b1 in term 1
            7  b3 follows b1 in term 1
           11  b1 belongs to a cluster now
           11  b1 knows all that was committed: term 1 begins
           11  b1 may serve
           12  b2 belongs to a cluster now
           12  b3 belongs to a cluster now
           16  b1 grants b2 its first lease
           16  b1 grants b3 its first lease
           17  b2 may serve
           17  b3 may serve
        """,
    )


def test_the_root_dies() -> None:
    """The others keep to its lease until it is over, then elect the more senior of the two."""
    stage = at_work(THREE)
    stage.kill("b1")
    stage.run(3000)
    reads(
        stage,
        """
            0  b1 dies
          836  b2 has lost its root b1
          836  b2 -> b3  shall I stand? log 1/5
          836  b3 has lost its root b1
          836  b3 -> b2  shall I stand? log 1/5
          837  b3 -> b2  yes
          837  b2 -> b3  no: I rank better
          839  b2 -> b3  vote for me in term 2, log 1/5
          841  b3 -> b2  you have my vote in term 2
          842  b2 is elected root of term 2
          842  b2 counts the lease of b1-1 as over
          842  b2 may not serve
          843  b3 follows b2 in term 2
          847  b2 knows all that was committed: term 2 begins
          847  b2 may serve
          849  b2 grants b3 its first lease
        """,
    )


def test_the_old_root_returns() -> None:
    """It joins as what it is now: one of three, and the youngest."""
    stage = at_work(THREE)
    stage.kill("b1")
    stage.run(3000)
    stage.curtain()
    stage.start("b1")
    stage.run(1000)
    reads(
        stage,
        """
            0  b1 starts
            1  b1 follows b2 in term 2
           11  b2 grants b1 its first lease
           12  b1 may serve
        """,
    )
    view = [broker.registration.name for broker in stage.core("b1").registry.brokers]
    assert view == ["b2", "b3", "b1"]


def test_exactly_half_is_left_to_the_root() -> None:
    """The root with half of the primaries carries on; the other half can elect nobody."""
    stage = at_work(FOUR)
    stage.isolate("b1", "b2")
    stage.run(1000)
    index = stage.propose("b1", b"still at work")
    stage.run(2500)
    reads(
        stage,
        """
            0  b1 and b2 cut off
          836  b3 has lost its root b1
          836  b3 -> b4  shall I stand? log 1/6
          836  b4 has lost its root b1
          836  b4 -> b3  shall I stand? log 1/6
          837  b4 -> b3  yes
          837  b3 -> b4  no: I rank better
         1340  b3 may not serve
         1340  b4 may not serve
         1572  b1 counts the lease of b3-1 as over
         1572  b1 counts the lease of b4-1 as over
        """,
    )
    assert stage.core("b2").commit_index == index
    assert stage.holders() == ["b1", "b2"]


def test_a_root_in_the_minority_resigns() -> None:
    """Less than half are left to it. It is root no more before the others elect another."""
    stage = at_work(FOUR)
    stage.isolate("b1")
    stage.run(1000)
    reads(
        stage,
        """
            0  b1 cut off
          789  b1 resigns: too few primaries, or its own disk, answered within its lease
          789  b1 may not serve
          836  b2 has lost its root b1
          836  b2 -> b3, b4  shall I stand? log 1/6
          836  b3 has lost its root b1
          836  b3 -> b2, b4  shall I stand? log 1/6
          836  b4 has lost its root b1
          836  b4 -> b2, b3  shall I stand? log 1/6
          837  b3 -> b2  yes
          837  b4 -> b2  yes
          837  b2 -> b3  no: I rank better
          837  b4 -> b3  yes
          837  b2 -> b4  no: I rank better
          837  b3 -> b4  no: I rank better
          839  b2 -> b3, b4  vote for me in term 2, log 1/6
          841  b3 -> b2  you have my vote in term 2
          841  b4 -> b2  you have my vote in term 2
          842  b2 is elected root of term 2
          842  b2 counts the lease of b1-1 as over
          842  b2 may not serve
          843  b3 follows b2 in term 2
          843  b4 follows b2 in term 2
          847  b2 knows all that was committed: term 2 begins
          847  b2 may serve
          849  b2 grants b3 its first lease
          849  b2 grants b4 its first lease
        """,
    )


def test_two_brokers_and_a_dead_root() -> None:
    """A person must decide, or a witness make three."""
    stage = at_work(("b1", "b2"))
    stage.kill("b1")
    stage.run(10_000)
    reads(
        stage,
        """
            0  b1 dies
          839  b2 has lost its root b1
         1343  b2 may not serve
        """,
    )
    waits_for = stage.core("b2").status().waits_for
    assert waits_for == "links to more primaries: these are too few to elect a root"


def test_a_person_forces_a_root() -> None:
    """What is left of two brokers begins a new cluster, whose parent is the old one."""
    stage = at_work(("b1", "b2"))
    parent = stage.core("b2").cluster_uuid
    stage.kill("b1")
    stage.run(4000)
    stage.order("b2", lambda core, now: core.force_root(now))
    stage.run(100)
    stage.start("b1")
    stage.run(100)
    reads(
        stage,
        """
            0  b1 dies
          839  b2 has lost its root b1
         1343  b2 may not serve
         4000  b2 is elected root of term 2
         4000  b2 counts the lease of b1-1 as over
         4001  b2 belongs to a cluster now
         4001  b2 knows all that was committed: term 2 begins
         4001  b2 may serve
         4100  b1 starts
         4100  b1 refuses b2
         4100  b2 refuses b1
        """,
    )
    assert stage.core("b2").status().parent_uuid == parent
    assert stage.core("b1").cluster_uuid == parent


def test_two_brokers_with_a_witness() -> None:
    """The witness votes for b2, and is never preferred itself, whatever its name."""
    stage = Stage(("b1", "b2", "a-witness"))
    stage.actors["a-witness"].role = WITNESS
    stage.start("b1", "b2", "a-witness")
    stage.run_until(lambda: len(stage.holders()) == 3)
    stage.run(1000)
    stage.curtain()
    stage.kill("b1")
    stage.run(1000)
    reads(
        stage,
        """
            0  b1 dies
          836  b2 has lost its root b1
          836  b2 -> a-witness  shall I stand? log 1/5
          836  a-witness has lost its root b1
          836  a-witness -> b2  shall I stand? log 1/5
          837  a-witness -> b2  yes
          837  b2 -> a-witness  no: I rank better
          839  b2 -> a-witness  vote for me in term 2, log 1/5
          841  a-witness -> b2  you have my vote in term 2
          842  b2 is elected root of term 2
          842  b2 counts the lease of b1-1 as over
          842  b2 may not serve
          843  a-witness follows b2 in term 2
          847  b2 knows all that was committed: term 2 begins
          847  b2 may serve
          849  b2 grants a-witness its first lease
        """,
    )


def test_a_starting_broker_says_no() -> None:
    """The others wait for it, as long as their patience with starters lasts."""
    stage = Stage(THREE)
    stage.actors["b3"].starting = True
    stage.start(*THREE)
    stage.run(120)
    stage.order("b3", lambda core, now: core.started(now))
    stage.run(100)
    reads(
        stage,
        """
            0  b1 starts
            0  b2 starts
            0  b2 -> b1  shall I stand? log 0/0
            0  b1 -> b2  shall I stand? log 0/0
            0  b3 starts
            0  b1 -> b3  shall I stand? log 0/0
            0  b2 -> b3  shall I stand? log 0/0
            1  b1 -> b2  no: I rank better
            1  b2 -> b1  yes
            1  b3 -> b1, b2  no: starting
          120  b3 -> b1, b2  shall I stand? log 0/0
          121  b1 -> b3  no: I rank better
          121  b2 -> b3  no: I rank better
          201  b3 -> b1, b2  yes
          203  b1 -> b2, b3  vote for me in term 1, log 0/0
          205  b2 -> b1  you have my vote in term 1
          205  b3 -> b1  you have my vote in term 1
          206  b1 is elected root of term 1
          207  b2 follows b1 in term 1
          207  b3 follows b1 in term 1
          211  b1 belongs to a cluster now
          211  b1 knows all that was committed: term 1 begins
          211  b1 may serve
          212  b2 belongs to a cluster now
          212  b3 belongs to a cluster now
          216  b1 grants b2 its first lease
          216  b1 grants b3 its first lease
          217  b2 may serve
          217  b3 may serve
        """,
    )


def test_one_confused_broker() -> None:
    """b5 has an entry that nobody else got, and sees only b2. Its no counts for a while."""
    stage = at_work(FIVE)
    stage.cut("b3", "b5")
    stage.cut("b4", "b5")
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Append) and receiver != "b5"
    )
    stage.propose("b1", b"for b5 alone")
    stage.run(5)
    stage.kill("b1")
    stage.censor = lambda sender, receiver, message: False
    stage.run(2500)
    reads(
        stage,
        """
            0  the link between b3 and b5 is cut
            0  the link between b4 and b5 is cut
            5  b1 dies
          836  b2 has lost its root b1
          836  b2 -> b3, b4, b5  shall I stand? log 1/7
          836  b3 has lost its root b1
          836  b3 -> b2, b4  shall I stand? log 1/7
          836  b4 has lost its root b1
          836  b4 -> b2, b3  shall I stand? log 1/7
          837  b3 -> b2  yes
          837  b4 -> b2  yes
          837  b5 -> b2  no: the root lives
          837  b2 -> b3  no: I rank better
          837  b4 -> b3  yes
          837  b2 -> b4  no: I rank better
          837  b3 -> b4  no: I rank better
          947  b5 has lost its root b1
          947  b5 -> b2  shall I stand? log 1/8
          948  b2 -> b5  yes
         1037  b5 -> b2  no: the log is behind mine
         1236  b2 -> b3, b4, b5  shall I stand? log 1/7, impatient
         1237  b2 -> b3, b4, b5  vote for me in term 2, log 1/7
         1237  b2 -> b3, b4  no: the term is old
         1239  b3 -> b2  you have my vote in term 2
         1239  b4 -> b2  you have my vote in term 2
         1240  b2 is elected root of term 2
         1240  b2 counts the lease of b1-1 as over
         1240  b2 may not serve
         1240  b2 -> b5  no: the root lives
         1241  b3 follows b2 in term 2
         1241  b4 follows b2 in term 2
         1241  b5 follows b2 in term 2
         1245  b2 knows all that was committed: term 2 begins
         1245  b2 may serve
         1247  b2 grants b3 its first lease
         1247  b2 grants b4 its first lease
         1247  b2 grants b5 its first lease
        """,
    )
    assert stage.actors["b5"].state == []
    assert stage.core("b5").commit_index == stage.core("b2").commit_index


def test_the_disk_of_the_root_hangs() -> None:
    """It says so itself, as it must: nobody else can see it. The vote it casts meanwhile is sent
    when it is kept."""
    stage = at_work(THREE)
    stage.hang_disk("b1")
    stage.run(1500)
    stage.free_disk("b1")
    stage.run(500)
    reads(
        stage,
        """
            0  the disk of b1 hangs
          639  b1 resigns: too few primaries, or its own disk, answered within its lease
          639  b1 may not serve
          639  b1 -> b2, b3  I am root no more
          640  b2 has lost its root b1
          640  b2 -> b1, b3  shall I stand? log 1/5
          640  b3 has lost its root b1
          640  b3 -> b1, b2  shall I stand? log 1/5
          641  b1 -> b2  yes
          641  b3 -> b2  yes
          641  b1 -> b3  yes
          641  b2 -> b3  no: I rank better
          643  b2 -> b1, b3  vote for me in term 2, log 1/5
          645  b3 -> b2  you have my vote in term 2
          646  b2 is elected root of term 2
          646  b2 counts the lease of b1-1 as over
          646  b2 may not serve
          647  b1 follows b2 in term 2
          647  b3 follows b2 in term 2
          651  b2 knows all that was committed: term 2 begins
          651  b2 may serve
          653  b2 grants b3 its first lease
         1500  the disk of b1 works again
         1500  b1 -> b2  you have my vote in term 2
         1503  b2 grants b1 its first lease
         1504  b1 may serve
        """,
    )


def test_the_root_hands_over() -> None:
    """To b3, which has all of its log. The others give up its lease at its word."""
    stage = at_work(THREE)
    stage.order("b1", lambda core, now: core.transfer_root("b3", now))
    stage.run(300)
    reads(
        stage,
        """
            0  b1 resigns: handed over
            0  b1 may not serve
            0  b1 -> b3  the office is yours: stand now
            2  b3 -> b1, b2  vote for me in term 2, log 1/5
            4  b1 -> b3  you have my vote in term 2
            4  b2 -> b3  you have my vote in term 2
            5  b3 is elected root of term 2
            5  b3 counts the lease of b1-1 as over
            5  b3 may not serve
            6  b1 follows b3 in term 2
            6  b2 follows b3 in term 2
           10  b3 knows all that was committed: term 2 begins
           10  b3 may serve
           12  b3 grants b1 its first lease
           12  b3 grants b2 its first lease
           13  b1 may serve
        """,
    )


def test_a_secondary_joins_and_leaves() -> None:
    """It learns the state from the root, gets a lease, votes for nobody, and is retired when it
    goes."""
    stage = Stage(THREE, ("s1",))
    stage.start(*THREE)
    stage.run_until(lambda: len(stage.holders()) == 3)
    stage.run(1000)
    stage.curtain()
    stage.start("s1")
    stage.run(300)
    stage.order("s1", lambda core, now: core.leave(now))
    stage.run(10)
    stage.kill("s1")
    stage.run(200)
    reads(
        stage,
        """
            0  s1 starts
            1  s1 follows b1 in term 1
            4  s1 belongs to a cluster now
           11  b1 grants s1 its first lease
           12  s1 may serve
          300  s1 may not serve
          300  s1 -> b1  farewell
          301  b1 counts the lease of s1-1 as over
          310  s1 dies
        """,
    )
    view = [broker.registration.name for broker in stage.core("b1").registry.brokers]
    assert view == ["b1", "b2", "b3"]


def test_a_wiped_primary_is_admitted_again() -> None:
    """Another store under the name of b3: its old identity is removed first, then it is bound. It
    serves when the lease of the dead one is over."""
    stage = at_work(THREE)
    stage.kill("b3")
    stage.actors["b3"].wipe()
    stage.start("b3")
    stage.run(4000)
    reads(
        stage,
        """
            0  b3 dies
            0  b3 starts
            1  b3 follows b1 in term 1
            4  b3 belongs to a cluster now
         1572  b1 counts the lease of b3-1 as over
         1696  b1 grants b3 its first lease
         1697  b3 may serve
        """,
    )
    memberships = stage.core("b1").state.persistent.log.memberships
    identities = [membership.voters[2].uuid for _, membership in memberships[1:]]
    assert identities == ["b3-uuid-0", "", "b3-uuid-1"]


def test_the_last_man_stands() -> None:
    """b3 and b2 go one after the other, and come back. With `rest_ms` the electorate follows: two
    that die within that time would still be too many."""
    stage = Stage(THREE, (), ConsensusSettings(rest_ms=5000))
    stage.start(*THREE)
    stage.run_until(lambda: len(stage.holders()) == 3)
    stage.run(1000)
    stage.curtain()
    stage.kill("b3")
    stage.run(6000)
    stage.kill("b2")
    stage.run(6000)
    stage.start("b2")
    stage.run(1000)
    stage.start("b3")
    stage.run(1000)
    reads(
        stage,
        """
            0  b3 dies
         1572  b1 counts the lease of b3-1 as over
         5139  b1 lets b3 rest: 2 vote
         6000  b2 dies
         7572  b1 counts the lease of b2-1 as over
        11139  b1 lets b2 rest: 1 vote
        12000  b2 starts
        12001  b2 follows b1 in term 1
        12007  b1 grants b2 its first lease
        12008  b1 counts b2 again: 2 vote
        12008  b2 may serve
        13000  b3 starts
        13001  b3 follows b1 in term 1
        13007  b1 grants b3 its first lease
        13008  b1 counts b3 again: 3 vote
        13008  b3 may serve
        """,
    )
