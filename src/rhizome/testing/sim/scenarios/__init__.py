"""Scenarios: which programs run on which hosts, which faults strike and which checkers watch.

There is a module for each scenario of `rhizome sim`. stream_workload and queue_lease_workload add
applications and checkers of streams and of queue leases to a scenario.

Scenarios import everything else of the simulator, and only scenario_runner loads them, by name.
Begin with messages_scenario.
"""
