"""The lone broker, sans-IO: exchanges, queues, sessions, transactions, policies.

It knows nothing of clusters beyond port.py, the interface that it owns. Time comes in as now_ms.
"""
