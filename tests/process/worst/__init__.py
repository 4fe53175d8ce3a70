"""The worst that each AMQP method and each HTTP endpoint may be sent, and what it costs others."""
