"""A standing service of flows: `rhizome pipeline run FILE.toml`.

flow_file reads the file; flow_query runs one flow as a streaming query; flow_supervisor restarts
flows and has batches that they cannot take set aside (set_aside_batches); flow_status,
status_endpoint and status_report say how the flows are. pipeline_service puts these together.

It imports source, lakehouse and jobs.job_progress. Begin with pipeline_service.
"""
