"""Text for error messages: RabbitMQ's names of resources, and values as Erlang prints them."""

from rhizome.amqp.field_table import Timestamp, type_name


def queue_resource(vhost: str, name: str) -> str:
    """Return how error texts speak of a queue."""
    return f"queue '{name}' in vhost '{vhost}'"


def exchange_resource(vhost: str, name: str) -> str:
    """Return how error texts speak of an exchange."""
    return f"exchange '{name}' in vhost '{vhost}'"


def erlang_string(text: str) -> str:
    """Return a string as Erlang prints a list of characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def erlang_term(value: object) -> str:
    """Return a field value as Erlang prints it."""
    if isinstance(value, str):
        return f"<<{erlang_string(value)}>>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        entries = [
            f"{{{erlang_term(key)},{type_name(item)},{erlang_term(item)}}}"
            for key, item in value.items()
        ]
        return f"[{','.join(entries)}]"
    if isinstance(value, list):
        return f"[{','.join([f'{{{type_name(item)},{erlang_term(item)}}}' for item in value])}]"
    if value is None:
        return "undefined"
    if isinstance(value, Timestamp):
        return str(value.seconds)
    if isinstance(value, bytes):
        return f"<<{','.join([str(octet) for octet in value])}>>"
    return str(value)
