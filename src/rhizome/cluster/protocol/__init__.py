"""The protocol between brokers: one catalogue of frames, their payloads, and who handles them.

    catalogue.py            every frame: number, name, from, to, when, payload, handler
    frame_dispatch.py       the table of handlers by number, from which a link's reader dispatches
    edge_home_codec.py      payloads between edges and homes that are written and read by offset
    replication_codec.py    payloads between homes and standbys
    copy_progress_codec.py  payloads with which a root asks how far copies are
    call_table_codec.py     operations that an edge asks of a home, and their errors
    attach_rule_switches.py rules of attaching that tests can switch off

A subsystem registers a handler for each of its frames in a ``FrameTable``. A number is defined in
the catalogue and nowhere else. ``docs/internals/protocol.md`` is generated from the catalogue.
Begin with ``catalogue.py``. Of the cluster, modules here import only links, values and each other.
"""
