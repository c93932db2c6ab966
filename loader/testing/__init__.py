"""Test suites for authors of plug-ins; they need pytest, which the loader does not."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("loader.testing.state_backend")
