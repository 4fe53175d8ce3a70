"""The asyncio shell: configuration, listeners, connections, the sync thread, and their composition.

It moves bytes and ticks between the operating system and the sans-IO cores, and decides nothing.
"""
