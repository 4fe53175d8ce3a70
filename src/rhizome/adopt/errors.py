"""What can go wrong with an adoption as a whole."""

from __future__ import annotations

from rhizome.errors import RhizomeError


class AdoptionError(RhizomeError):
    """The adoption can't be begun or continued like this; the text says what to do."""


class SiteUnavailable(AdoptionError):
    """One side doesn't answer; it may later."""
