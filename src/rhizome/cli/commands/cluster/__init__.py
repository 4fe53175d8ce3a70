"""Commands that show a cluster and change it: status, top, doctor, broker, cluster, group, tx.

They ask a broker's HTTP API (rhizome.cli.http_api). Changes are previewed, confirmed and then
made exactly as they were previewed (http_api/change_confirmation.py). doctor_checks.py has all
checks of `rhizome doctor`, without input or output. Begin with cluster_command.py.
"""
