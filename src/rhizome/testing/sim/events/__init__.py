"""What programs report to the checkers, as named tuples, one class for each kind of event.

broker_events come from brokers and from the run, application_events, stream_events and
queue_lease_events from applications. The name of a class and its fields are a line of the trace.

It imports nothing else of the simulator. Begin with broker_events.
"""
