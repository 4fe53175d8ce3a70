"""One Spark cluster for all tests of this directory; what a test breaks is whole for the next."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from .kit import SparkCluster


@pytest.fixture(scope="package")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed: apt-get install openjdk-17-jre-headless")
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: SparkCluster) -> SparkCluster:
    whole_cluster.reset()
    return whole_cluster
