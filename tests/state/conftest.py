"""A project for the tests of state stores."""

from tests.sync.conftest import project as project
