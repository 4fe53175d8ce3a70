"""`rhizome up`: a whole cluster on this machine, in one command."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rhizome.cli.errors import UsageError
from rhizome.cli.output.printer import say
from rhizome.printable_text import escaped

if TYPE_CHECKING:
    from rhizome.cli.local_cluster.directory_layout import Layout
    from rhizome.cli.local_cluster.root_agreement import Root

app = typer.Typer()

DATA_DEFAULT: Final = Path("data/cluster")


@app.command()
def up(
    brokers: Annotated[
        int | None, typer.Option("--brokers", help="Primaries: b1, b2, ...", show_default="3")
    ] = None,
    secondaries: Annotated[
        int | None,
        typer.Option("--secondaries", help="Secondaries: s1, s2, ...", show_default="0"),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port", help="AMQP port of b1; the others follow.", show_default="5672"
        ),
    ] = None,
    http_base_port: Annotated[
        int | None,
        typer.Option(
            "--http-base-port", help="HTTP port of b1; the others follow.", show_default="15672"
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Directory of the cluster.")
    ] = DATA_DEFAULT,
    restart: Annotated[
        str, typer.Option("--restart", metavar="NAME", help="Start a broker again, as said above.")
    ] = "",
) -> None:
    """Run a cluster on this machine: several brokers, each a process, until Ctrl-C.

    The last line that is printed for the start begins with `ready`: a root is elected and all
    brokers are linked. A directory that holds a cluster starts it again as it was.

    A broker that ends stays down, so that you can see what becomes of the others. With --restart
    it is started again in the cluster that runs in --data; this returns when it is ready.

    DIR/NAME/pid and DIR/NAME/log are the process id and the log of each broker.
    """
    from rhizome.cli.local_cluster.local_cluster import ask_running

    directory = data.resolve()
    asked = {
        "brokers": brokers,
        "secondaries": secondaries,
        "base_port": base_port,
        "http_base_port": http_base_port,
    }
    if not restart:
        _run(directory, asked)
    elif any(value is not None for value in asked.values()):
        raise UsageError(
            "--restart takes --data and nothing else; the cluster has its shape already"
        )
    else:
        say(ask_running(directory, {"restart": restart}))


def _run(directory: Path, asked: dict[str, int | None]) -> None:
    from rhizome.cli.coroutine_runner import run
    from rhizome.cli.local_cluster.directory_layout import Layout, choose_shape
    from rhizome.cli.local_cluster.local_cluster import LocalCluster, lock_directory

    layout = Layout(directory, choose_shape(directory, asked))
    lock = lock_directory(directory)
    screen = Screen()
    screen.begin(layout)

    async def whole_life() -> None:
        await LocalCluster(layout, screen.say).run(screen.ready)

    try:
        run(whole_life())
    finally:
        lock.release()
    screen.say("all brokers have stopped")


class Screen:
    """Prints for the user. A closed output is no reason to stop."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._layout: Layout | None = None
        self._is_gone = False

    def say(self, line: str) -> None:
        if self._is_gone:
            return
        try:
            # Not hidden: the password that every new broker has is in what is to be copied.
            print(escaped(line), flush=True)  # noqa: T201
        except OSError:
            self._is_gone = True

    def begin(self, layout: Layout) -> None:
        self._layout = layout
        self.say(f"a cluster in {layout.directory}:")
        for place in layout.places.values():
            self.say(f"    {place.name:<4} {place.role:<9}  {place.amqp}  {place.http}")

    def ready(self, root: Root) -> None:
        assert self._layout is not None, "begin comes first"
        for line in hints(self._layout, root):
            self.say(line)
        seconds = time.monotonic() - self._started
        count = len(self._layout.places)
        whole = "1 broker" if count == 1 else f"{count} brokers, all linked"
        self.say(f"ready: {whole}, root is {root.name} (term {root.term}), after {seconds:.1f} s")


def hints(layout: Layout, root: Root) -> list[str]:
    """How to connect, and what to try."""
    first = next(iter(layout.places.values()))
    addresses = ",".join(f"127.0.0.1:{place.port}" for place in layout.places.values())
    victim = layout.places[root.name]
    http = ",".join(f"127.0.0.1:{place.http_port}" for place in layout.places.values())
    uri = f"amqp://guest:guest@{addresses}/"
    lines = [
        ("connect to any of them", f"{first.amqp.replace('://', '://guest:guest@')}/"),
        ("commands find all by", f"export RHIZOME_HTTP={http} RHIZOME_URI={uri}"),
        ("see how they are", "rhizome status"),
        ("or in a browser", f"{first.http}/"),
    ]
    if len(layout.places) > 1:
        again = f"rhizome up --data {quote(str(layout.directory))} --restart {victim.name}"
        lines += [
            ("kill the root", f"kill -9 $(cat {quote(str(victim.pid_file))})"),
            ("start it again", again),
        ]
    lines.append(
        ("archive, report, audit", "rhizome pipeline --help   (in the sources: make pipeline)")
    )
    lines.append(("stop everything", "Ctrl-C"))
    return ["", *(f"{what:<24} {how}" for what, how in lines), ""]
