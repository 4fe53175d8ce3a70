"""The command `rhizome`. main.py maps each command to its module, loaded when it is asked for.

commands/       one module per command, by what the command is about
http_api/       the HTTP client that most commands use: addresses, logins, errors in words
output/         everything that is printed: tables, JSON, the screen of `rhizome top`
local_cluster/  `rhizome up`;  bench/: `rhizome bench`;  pipeline/: `rhizome pipeline` (Spark)

May import every package but rhizome.testing, except for `sim`; imports that take time are late.
Begin with main.py, then any module of commands/resources/.
"""
