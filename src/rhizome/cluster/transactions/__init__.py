"""Transactions whose queues are at home on other brokers, in one group or in several (two phases).

transaction_coordinator.py is the edge's side: it splits a commit into a part per group
(transaction_part.py) and prepares and decides. prepared_transactions.py is the home's side: what
is prepared or decided, kept in an internal queue of the group. transaction_transport.py carries
both and the frames of transactions in doubt; transaction_status.py shows them to people. May
import protocol, home, edge and broker. Begin with transaction_coordinator.py.
"""
