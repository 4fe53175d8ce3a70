"""Plain Python for third-party packages that are compiled, on executors that don't have them.

Each module has as much of the real package as the shipped modules use, and behaves alike. The
finder in zip_root_package loads them under the names of the real ones; so they import nothing of
ours.
"""
