"""Fixtures for tests of `sync_mode: cdc`."""

from __future__ import annotations

import pytest

from loader.cdc.debezium.launcher import is_installed
from tests.sync.conftest import project as project


@pytest.fixture(autouse=True, scope="session")
def debezium() -> None:
    """Fails with installation instructions if Debezium is not installed."""
    if not is_installed():
        pytest.fail(
            "Debezium is not installed: pip install -r tests/cdc/debezium.txt, as `make test` does",
            pytrace=False,
        )
