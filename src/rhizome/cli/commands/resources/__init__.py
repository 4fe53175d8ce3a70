"""Commands for what is declared in a cluster: queue, stream, exchange, tap, connection, user,
vhost, policy, parameter and definitions.

All of them use the HTTP API, mostly RabbitMQ's paths. vhost_command.py is a short one to begin
with; http_api/command_decorator.py gives it its options --http, --user, --password and --json.
"""
