"""The cluster core, sans-IO: everything that makes several brokers one.

Begin with node.py, which composes the rest and implements the broker's port. group_roles.py says
what this broker is to each group: home (home/), standby (replication/), or neither; to its own
applications it is always an edge (edge/). At the root, takeover/ decides who becomes home.
consensus/ elects the root and keeps the log that state/ applies; link/ carries the frames of
protocol/; peer_frame_dispatch.py has what this broker shares with one other. Nothing here reads a
clock, a socket or a source of chance: times come in as now_ms (monotonic), bytes through receive,
chance as an object. The same inputs give the same bytes, so a whole cluster runs in a simulator
from one seed. Parts know the node by node_port.py or a protocol of their own, and another broker by
linked_peer.py. May import broker, journal and amqp.
"""
