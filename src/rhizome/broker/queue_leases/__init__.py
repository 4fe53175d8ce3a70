"""Queue leases: messages of a queue set aside under a name, read by position without being
consumed.

A consumer with the argument x-lease asks for one (lease_request.py); its LeaseReader carries
that out and delivers (lease_reader.py, lease_delivery.py). Leases are recorded, and outlive
restarts and takeovers. They have nothing to do with the leases that a root gives to brokers.
Imports queue/, channel/ and streams/. Begin with lease.py, then active_leases.py.
"""
