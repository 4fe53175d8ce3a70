"""`python -m rhizome` is the command `rhizome`."""

import os


def main() -> None:
    """Entry point of the command. Ctrl-C is taken care of before the imports, which take time."""
    try:
        from rhizome.cli import interrupts

        interrupts.install()
    except KeyboardInterrupt:
        os._exit(130)
    from rhizome.cli.main import app

    try:
        app(prog_name="rhizome")
    finally:
        interrupts.install()  # an event loop that heeded signals itself has put Python's back


if __name__ == "__main__":
    main()
