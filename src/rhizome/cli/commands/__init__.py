"""The commands of `rhizome`: NAME_command.py is `rhizome NAME`, with a Typer app named `app`.

Here are those that need no running cluster: serve, config, context, sim. The others are in
cluster/ (see and change a cluster), resources/ (queues, users, policies and the like),
messages/ (publish, consume, browse, bridge) and storage/ (data directories on disk).
Commands that need several modules have packages of their own beside this one: bench, pipeline
and local_cluster (`up`). A new command is added to COMMANDS in rhizome.cli.main.
"""
