"""The AMQP 0-9-1 codec, sans-IO: bytes in, frames and methods out, and back again.

Nothing here knows a socket, a clock or a queue. tools/generate_amqp.py writes methods.py and
spec.py; nothing is numbered by hand twice. Imports errors only. Begin with frames.py, then
field_table.py (field tables) and properties.py (content headers).
"""
