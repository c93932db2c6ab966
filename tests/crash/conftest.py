"""Processes that may be killed, over the suite's own lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.workers import Worker, Workers
from tests.sync.conftest import project as project


@pytest.fixture(scope="package")
def workers(warehouse: Path) -> Iterator[Workers]:
    """Loader processes that write the suite's warehouse."""
    pool = Workers()
    yield pool
    pool.close()


@pytest.fixture
def worker(workers: Workers) -> Worker:
    """A warm loader process."""
    return workers.take()
