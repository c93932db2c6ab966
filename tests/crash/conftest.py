"""Loader processes that a test may kill, on the suite's lake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.workers import Worker, Workers
from tests.sync.conftest import project as project


@pytest.fixture
def workers(worker_pool: Workers) -> Iterator[Workers]:
    """Loader processes that write to the suite's warehouse."""
    yield worker_pool
    worker_pool.give_back()


@pytest.fixture
def worker(workers: Workers) -> Worker:
    """One loader process."""
    return workers.take()
