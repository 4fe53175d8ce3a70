"""One AMQP channel: its methods, its consumers, its transaction and its unacked deliveries.

method_dispatch.py says which function carries out a method: consume_methods.py and
topology_methods.py have most; publishes have a package of their own. Methods that can't be answered
yet wait in deferred_methods.py. channel.py and consumer.py know none of these, only queue/ and
broker_context.py. Begin with channel.py, which every delivery and settlement goes through.
"""
