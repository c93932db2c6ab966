"""Fixtures for the tests of receipts."""

from __future__ import annotations

from tests.crash.conftest import workers as workers
from tests.sync.conftest import project as project
