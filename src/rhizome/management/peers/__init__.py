"""How the HTTP API of one broker asks those of the others.

`peer_requests` has the request, the response and the interface to the other brokers, which the
server implements over its links (rhizome.server.clustered_broker.peer_rpc). Begin there.
`cluster_wide_queries` asks all brokers and joins their rows, or forwards a request to the home of
a queue; `peer_request_handler` runs what another broker asks through this broker's own API.
"""
