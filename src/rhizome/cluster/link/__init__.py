"""Links: the one connection between two brokers (R13), sans-IO.

link.py is one end of a link, link_manager.py all links of a broker, frame_codec.py how frames are
written and read. dial_handshake.py is the dialling side, accept_handshake.py the accepting one;
cluster_key_proof.py proves the cluster key, mac_records.py authenticates what follows;
peer_checks.py says who may link with whom, peers.py whom to dial and when. broker_hello.py is what
a broker says about itself. May import broker.
"""
