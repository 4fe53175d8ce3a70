"""The simulator: a cluster in one process, on a virtual clock, network and disk, from one seed.

world has time, network, disks and hosts; brokers and apps are the programs on those hosts; events
is what the programs report; checkers say what must hold; faults say what goes wrong; scenarios
put these together. seed_run runs one seed, scenario_runner finds scenarios by name and runs
many seeds.

The same seed gives the same trace, byte for byte: nothing here reads the real clock, real chance
or the order of a set. Begin with seed_run, then scenarios/messages_scenario.
"""
