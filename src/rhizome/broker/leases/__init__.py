"""Leases of work queues: messages set aside for one reader, read without being consumed.

lease.py     one lease, and how it is recorded
leases.py    all of this broker: taking, settling, giving back, expiry, restart
request.py   what a consumer with ``x-lease`` asks for
reader.py    such a consumer: carries out what it asks for, tells the outcome, reads
delivery.py  what it is sent
"""
