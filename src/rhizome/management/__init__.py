"""The HTTP API and the metrics.

Reads the broker in the thread of its event loop, and changes the cluster state through the port.
To add an endpoint, write its handler and put it into the ENDPOINTS of its module; `application`
joins them all.
"""
