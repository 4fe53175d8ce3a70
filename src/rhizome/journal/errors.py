"""The errors of a store.

RhizomeError
  JournalError
    CorruptRecord       the bytes at a position are not the record that was written there
    CorruptStore        recovery found corruption that isn't a torn tail, and refuses
    ForeignStore        the directory holds a store of another cluster, kind or newer version
    StoreInUse          another process holds the store's lock
    JournalFailed       the disk refused a sync: nothing after it can be called durable
"""

from rhizome.errors import RhizomeError


class JournalError(RhizomeError):
    """Base of the faults of a store."""


class CorruptRecord(JournalError):
    """The bytes at a position are not the record that was written there."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"{reason} at offset {offset}")
        self.reason = reason
        self.offset = offset


class CorruptStore(JournalError):
    """Recovery found corruption that no crash explains; `corruptions` lists it."""

    def __init__(self, text: str, corruptions: list[object]) -> None:
        super().__init__(text)
        self.corruptions = corruptions


class ForeignStore(JournalError):
    """The directory belongs to another cluster or to a newer version of this program."""


class StoreInUse(JournalError):
    """Another process has the store open."""


class JournalFailed(JournalError):
    """A sync failed. What was written since the last good one may be lost even if a retry
    succeeds.
    """
