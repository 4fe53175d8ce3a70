"""The cluster state of one broker: vhosts, exchanges, queues, bindings, users, policies, limits.

A deterministic state machine: a command goes in, an outcome comes out, and brokers that apply
the same commands in the same order hold equal states. A snapshot is a list of commands. Imports
routing/, auth_interface.py, amqp and regex; it knows no messages, channels or connections.

Begin with metadata_commands.py, then metadata_state.py. The x-arguments of queues, exchanges and
consumers are in declare_and_consume_arguments.py.
"""
