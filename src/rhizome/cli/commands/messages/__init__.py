"""Commands that handle messages: publish and consume (over AMQP, with rhizome.client), browse (over
the HTTP API) and bridge, which moves messages between clusters with rhizome.bridge.

Begin with publish_command.py.
"""
