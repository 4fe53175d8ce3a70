"""Simulated applications: AMQP clients on hosts of their own that publish, consume and reconnect.

app_program is their base. Each other module is one kind of application; embedded_app runs inside
its broker. app_topology has the queues, exchanges and streams that they use.

They report everything that they do and hear as events. It imports world, events and checkers.
Begin with app_program, then publishers.
"""
