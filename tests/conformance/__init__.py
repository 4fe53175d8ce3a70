"""What AMQP 0-9-1 in RabbitMQ's dialect means on the wire, frame by frame."""
