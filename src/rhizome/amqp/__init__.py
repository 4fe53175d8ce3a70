"""The AMQP 0-9-1 codec, sans-IO: bytes in, frames and methods out, and back again.

Nothing here knows a socket, a clock or a queue. The tables of methods are generated from the
specification by a script in tools/; nothing is numbered by hand twice.
"""
