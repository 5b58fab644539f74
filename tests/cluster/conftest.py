"""One cluster for all tests of this folder, whole and idle before each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.orders import Orders, open_orders
from tests.cluster.standalone import Cluster


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def cluster(standalone: Cluster) -> Cluster:
    standalone.restore()
    return standalone


@pytest.fixture
def orders(cluster: Cluster, tmp_path: Path) -> Iterator[Orders]:
    with open_orders(cluster, tmp_path) as shop:
        yield shop
