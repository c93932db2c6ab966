"""Test suites for authors of plug-ins. They need pytest."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("loader.testing.state_backend")
