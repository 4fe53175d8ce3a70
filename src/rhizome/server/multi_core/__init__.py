"""Several brokers on one machine behind the same ports: `rhizome serve --cores N`.

`core_supervisor` is the parent process that starts, restarts and stops one broker per core; begin
there. `core_configs` makes the configuration of each of them from the one that was given.
"""
