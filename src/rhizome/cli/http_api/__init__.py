"""How commands ask a cluster: a small blocking client of the HTTP API of any of its brokers.

api_client.py sends requests and turns errors into one line for people; api_addresses.py reads
--http; command_decorator.py gives a command the options that all have; change_confirmation.py
previews a change, asks, and makes it. Imports the standard library and the top of rhizome.cli.
Begin with api_client.py.
"""
