"""`rhizome up`: a whole cluster of broker processes on this machine.

up_command.py is the command; local_cluster.py starts, watches and stops the brokers in order;
directory_layout.py names the files and ports; broker_processes.py runs one process;
root_agreement.py tells when all brokers see the same root. Begin with local_cluster.py.
"""
