"""Settings: the names that a broker goes by."""

from __future__ import annotations

from typing import final


@final
class Settings:
    """What the broker says about itself."""

    name: str
    version: str
    cluster_name: str

    def __init__(self, name: str, version: str, cluster_name: str) -> None:
        self.name = name
        self.version = version
        self.cluster_name = cluster_name
