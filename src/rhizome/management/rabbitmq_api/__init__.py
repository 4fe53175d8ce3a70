"""The resources of RabbitMQ's management API, with RabbitMQ's paths and field names.

One module per resource: its handlers and, at the end, ENDPOINTS. Begin with `queues`.
`json_rows` makes the JSON objects of queues, exchanges, bindings, vhosts and users for them all.
May import management's other packages; `asgi_application` joins the ENDPOINTS.
"""
