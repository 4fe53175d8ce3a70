"""The simulated world: virtual time, a network, and a disk and a clock for each host.

event_scheduler orders events in virtual time and keeps the trace. sim_network behaves as TCP
does, sim_disk loses what was not synced, sim_host starts, kills and pauses the program of a host.
sim_journal_store and sim_cluster_store are a broker's stores on a simulated disk.

It imports nothing else of the simulator. Begin with event_scheduler.
"""
