"""Messages that a queue gives up: their x-death headers, and how they get where the queue sends
them.

Queues of the same group get a dead letter at once. For queues of other groups it goes through
the group outbox, which survives a takeover and forwards delayed messages as well. Imports
publishing/, queue/ and group_log/. Begin with dead_letter_routing.py.
"""
