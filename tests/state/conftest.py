"""A project whose cursors live elsewhere than its tables."""

from tests.sync.conftest import project as project
