"""The broker core: what one broker does with bytes and time, without sockets, files or clocks.

A message passes connection/, channel/, publishing/, routing/ and queue/; dead_letters/, streams/,
queue_keys/ and queue_leases/ are what it may meet there. group_log/ records what becomes of it,
metadata/ is what was declared (queues, users, policies), access/ who may do what.

home_change_effects.py has what a cluster does to queues and consumers when a home comes or goes.
Imports journal, amqp, regex and errors, and knows a cluster only through cluster_port.py.
message.py and turn.py know nothing above them, queues no channel, channels only broker_context.py.
Begin with broker.py and turn.py: all work is done in turns, one for each wake-up of the event loop.
"""
