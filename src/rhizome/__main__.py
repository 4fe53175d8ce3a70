"""`python -m rhizome` is the command `rhizome`."""

from rhizome.cli.main import main

if __name__ == "__main__":
    main()
