"""StreamArguments: the names of the arguments with which consumers read a stream."""

from __future__ import annotations

from typing import Final

NAME_ARGUMENT: Final = "x-stream-consumer-name"
OFFSET_ARGUMENT: Final = "x-stream-offset"
READER_ARGUMENT: Final = "x-stream-reader"
READER_NEXT_ARGUMENT: Final = "x-stream-reader-next"
READER_KEEP_ARGUMENT: Final = "x-stream-reader-keep"
FILTER_ARGUMENT: Final = "x-stream-filter"
UNFILTERED_ARGUMENT: Final = "x-stream-match-unfiltered"
