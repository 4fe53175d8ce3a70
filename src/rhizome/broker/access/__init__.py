"""Who a client is, what it may do, and how much of everything it may use.

The interfaces of authentication and permissions (rhizome.security implements them), the tokens
that applications present, what ends when a user's rights do, and limits per broker, vhost and
user. Imports connection/ and metadata/. Begin with auth_interface.py: it lists which permission
each AMQP method needs.
"""
