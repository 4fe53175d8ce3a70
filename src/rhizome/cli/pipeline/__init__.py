"""`rhizome pipeline`: jobs on Spark (archive, traffic, audit, replay and others), and the service
that runs flows for ever (run, check, status).

pipeline_command.py has the jobs, pipeline_service_commands.py the service, spark_options.py the
options that all share. Imports rhizome.spark late, since Spark is an optional extra.
"""
