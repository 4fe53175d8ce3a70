"""Where the files of a table are: a local or shared directory, or an object store.

Three libraries reach the same place: pyarrow in tasks, deltalake and pyiceberg on the driver. Each
calls the same settings by other names; here they have one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs

OPTION_PREFIX: Final = "storage."
# Hadoop's name of a scheme, and Arrow's.
_SCHEMES: Final = {"s3a": "s3"}


@dataclass(frozen=True)
class Storage:
    """How to log in to S3 or what speaks its protocol. What is empty comes from the environment, as
    it does for other stores: AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, the machine's role.
    """

    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    endpoint: str = ""

    def delta_options(self) -> dict[str, str]:
        """As deltalake calls them."""
        found = {f"aws_{name}": value for name, value in vars(self).items() if value}
        if self.endpoint.startswith("http://"):
            found["aws_allow_http"] = "true"
        return found

    def iceberg_properties(self) -> dict[str, str]:
        """As pyiceberg calls them."""
        return {
            f"s3.{name.replace('_', '-')}": value for name, value in vars(self).items() if value
        }

    def filesystem(self, location: str) -> tuple[Any, str]:
        """Arrow's file system for a location, and the location's path in it."""
        if not is_remote(location):
            return fs.LocalFileSystem(), location
        scheme, _, path = location.partition("://")
        if scheme not in ("s3", "s3a") or not any(vars(self).values()):
            found, path = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{path}")
            return found, str(path)
        return fs.S3FileSystem(**self._s3_arguments()), path

    def _s3_arguments(self) -> dict[str, str]:
        found = {
            "access_key": self.access_key_id,
            "secret_key": self.secret_access_key,
            "session_token": self.session_token,
            "region": self.region,
        }
        if self.endpoint:
            scheme, _, host = self.endpoint.rpartition("://")
            found |= {"endpoint_override": host, "scheme": scheme or "https"}
        return {name: value for name, value in found.items() if value}


def is_remote(location: str) -> bool:
    return "://" in location


def normal_location(path: str) -> str:
    """The location that a user means: an absolute path, or a URI of an object store.

    `file:///a` and `/a` are the same table and must look the same in its metadata.
    """
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    return path.rstrip("/") if is_remote(path) else str(Path(path).absolute())


def exists(storage: Storage, location: str, name: str) -> bool:
    """Whether there is a file or directory of this name at a location."""
    filesystem, root = storage.filesystem(location)
    return bool(filesystem.get_file_info(f"{root}/{name}").type != fs.FileType.NotFound)
