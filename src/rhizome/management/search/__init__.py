"""Search: conditions on messages, and the search of a queue by one.

Imports broker, amqp and management's own modules. Begin with `condition_parser.py`, which has the
language, then `queue_search.py`, which goes through a queue a little at a time.
"""
