"""Projects whose tables follow the log of a PostgreSQL database."""

from tests.sync.conftest import project as project
