"""Test suites for plug-in authors. They require pytest."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("loader.testing.state_backend")
