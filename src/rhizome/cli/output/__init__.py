"""What commands print. Every command prints through printer.py, which escapes what could move a
terminal's cursor and hides passwords.

cluster_tables.py shows brokers and groups; top_screen.py makes one frame of `rhizome top`.
Imports rhizome.printable_text and no broker code.
"""
