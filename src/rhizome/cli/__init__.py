"""The command `rhizome`, one module per family of commands."""
