"""Queue keys: keyed queues, which give the messages of a key in order to one consumer at a time.

The key of a message is found in it (message_key.py). Whose turn it is, and who holds which key, is
in keyed_dispatch.py; the messages themselves stay in the queue's lane (queue/priority_lane.py).
Imports queue/ and channel/. Begin with keyed_dispatch.py.
"""
