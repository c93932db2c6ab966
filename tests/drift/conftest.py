"""A project for each test."""

from __future__ import annotations

from tests.sync.conftest import project as project
