"""Links: the one connection between two brokers (R13), sans-IO.

    frames.py    how frames of the private class are written and read
    link.py      Link: one end of a link, from the first byte to the last
    opening.py   the dialling side's handshake
    proof.py     the mechanism RHIZOME-CLUSTER: both ends prove that they know the cluster key
    mac.py       records with MACs, in which frames go where nothing else protects them
    accepting.py the accepting side: an authenticator for the broker's connections
    checks.py    who may link with whom
    peers.py     whom to dial, and when
    links.py     Links: all links of a broker
    adopter.py   what its driver does with a connection that turns out to be a link
    statistics.py what people are told of a link

The duties of whoever drives them (the server, the simulator), in order:

1. set ``links.now_ms`` before anything else in a wake-up, and call ``links.tick`` at least at
   ``links.next_deadline_ms``;
2. dial what ``links.wants_dial`` answers: connect to ``link.address``, keep what is needed to write
   to it in ``link.port`` and whether it has a loopback address in ``link.guard.is_local``, then
   call ``link.connected``, or ``link.lost`` if that fails;
3. feed ``link.receive`` with bytes as they come, in order, cut anyhow; call ``link.lost`` once when
   the connection is gone, ``link.set_writable`` when the write buffer passes its marks;
4. at the end of the wake-up, for each link of ``links.take_touched``: while ``link.writable``,
   write what ``link.next_output`` answers, until that is empty; call ``link.flushed``; if
   ``link.stage`` is ``CLOSED``, close the connection once everything is written;
5. implement ``Adopter``: a connection that was accepted turns out to be a link, and its transport
   is driven as in 3 and 4 from then on.
"""
