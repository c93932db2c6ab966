"""A project whose cursors are not kept beside its tables."""

from tests.sync.conftest import project as project
