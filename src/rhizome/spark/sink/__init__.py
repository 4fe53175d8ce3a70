"""The sink of the format `rhizome`: rows become messages, each of them once.

message_sink has the writers that Spark calls; publish_frames makes frames of a batch of rows;
confirmed_publisher sends them until the broker has confirmed them.

It imports columns, shipment and the modules of rhizome.spark itself. Begin with message_sink.
"""
