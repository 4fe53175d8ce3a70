"""From the bytes of a publish to the queues that take the message, and back to its confirm.

publish_path.py is hot: it finds the route, makes the message and enqueues it. remote_targets.py
says what other brokers get of it. publisher_confirms.py decides when it is confirmed, and
reliability_levels.py how safe it is by then; forward_port.py, publish_route.py and publication.py
are values that these share. Imports queue/, routing/ and dead_letters/. Begin
with publish_path.py.
"""
