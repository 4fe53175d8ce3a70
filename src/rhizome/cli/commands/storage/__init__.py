"""Commands that read data directories on disk, mostly of brokers that don't run: journal inspect,
store best (which store has most after a total crash) and salvage.

They use rhizome.journal directly and take no locks. Begin with journal_command.py.
"""
