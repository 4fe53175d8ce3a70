"""The HTTP API and the metrics. Reads the broker through its statistics, changes it through its port."""
