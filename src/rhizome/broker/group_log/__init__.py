"""The log in which the broker records its decisions about the messages of a group.

The interface is GroupLog in log_port.py. Here are also its implementation on the journal, for
groups without standbys; the records that a home doesn't know to be committed yet; and records that
are kept whole or not at all. Imports the journal, turn.py and message.py. Begin with
local_group_log.py.
"""
