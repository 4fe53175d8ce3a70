"""The simulator: a cluster in one process, on a virtual clock, network and disk, from one seed.

    world.py         virtual time, the order of events, chance, the trace
    network.py       hosts, connections between them, partitions, delays
    disk.py          a disk per host that loses what was not synced
    files.py         the journal's files and store on that disk
    process.py       a program on a host: start, kill, power cut, pause, a clock that drifts
    faults.py        what goes wrong and when, drawn from the seed
    observations.py  what programs tell the checkers
    checkers.py      what must always hold, told the moment it does not
    run.py           one seed of a scenario: which programs run, which checkers watch, how long
    scenarios.py     the scenarios by name, many seeds of one

The same seed gives the same trace, byte for byte, in any process: nothing here looks at the real
clock, at real chance or at the order of a set.
"""
