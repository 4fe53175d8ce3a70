"""The resources that RabbitMQ doesn't have, one module each: /api/rhizome/... and /api/health/...

A module has its handlers and, at its end, ENDPOINTS. Begin with `groups`: it reads the cluster
through `cluster_view`, asks other brokers, and shows changes before it makes them.
`cluster_status_and_changes` also has the view of a cluster that a standalone broker gives of
itself.
"""
