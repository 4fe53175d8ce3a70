"""Unmodified AMQP clients against a running broker."""
