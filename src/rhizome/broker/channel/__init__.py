"""One AMQP channel: its methods, its consumers, its transaction and its unacked deliveries.

consume_methods.py and topology_methods.py carry out what clients ask for; publishes have a package
of their own. Methods that can't be answered yet wait in deferred_methods.py. Imports queue/,
publishing/, streams/ and metadata/. Begin with channel.py, which every delivery and settlement
goes through.
"""
