"""Sessions: connections that fail over. An application's work goes on at another broker.

session.py reconnects; session_channel.py opens channels again, resends unconfirmed publishes and
resumes consumers; failover_addresses.py and balancing_policies.py choose the next broker;
topology_recovery.py declares again what is gone; held_deliveries.py presents unacked messages.
producer.py, queue.py and queue_browser.py are what applications use. Begin with session.py.
"""
