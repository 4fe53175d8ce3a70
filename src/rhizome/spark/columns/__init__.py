"""Bytes of many messages as Arrow columns, with no Python object per row.

vectorized_bytes reads a stretch of bytes at many offsets at once (numpy, Arrow). content_decoder
reads properties and bodies of messages with it, header_columns their header tables.

It imports nothing else of rhizome.spark. Begin with vectorized_bytes.
"""
