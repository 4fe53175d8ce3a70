"""The configuration: its keys, how it is read, checked, written and read again.

`broker_config` is the place to begin: load_config joins file, environment and command line. Keys
are declared in `config_sections` and `cluster_section` with the fields of `config_fields`; `units`
reads sizes, times and addresses. `consensus_and_home_settings` makes the settings of the cluster
cores, `config_text` the commented file and the reference page; `config_reload` is for SIGHUP. To
add a key, add its field and run tools/generate_config_docs.py.
"""
