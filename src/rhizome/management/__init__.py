"""The HTTP API, the metrics and the console's logins of one broker.

`asgi_application` joins all endpoints and is the place to begin; `http_service` listens.
A request passes through http/ to a handler in rabbitmq_api/ or rhizome_api/. Handlers read the
broker core in its event loop, and change the cluster state with `state_proposals`.
May import broker, journal, amqp, security and console; never cluster or server. `cluster_view`
and `api_context` are the interfaces through which the server hands in what it has.
To add an endpoint, write its handler and put it into the ENDPOINTS of its module.
"""
