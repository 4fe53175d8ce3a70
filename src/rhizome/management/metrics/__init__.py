"""Metrics of a broker: rates, history, the process, and Prometheus's text format.

`message_rates` samples the counters of queues and connections; begin there. `queue_history` keeps
the last minutes for charts, `slow_turns` the times at which the event loop was held, and
`process_stats` is what the operating system says. `prometheus_metrics` and `per_queue_metrics`
make the text of /metrics and /metrics/per-object; the names there are stable.
"""
