"""Test suites that plugin authors import and run; they need pytest, the loader does not."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("loader.testing.state_backend")
