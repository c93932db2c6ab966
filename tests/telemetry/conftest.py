"""A project for the tests of metrics, traces, lineage and webhooks."""

import pytest

from tests.services import Database
from tests.sync.conftest import project as project
from tests.sync.project import Project


@pytest.fixture
def shop(project: Project, postgres_database: Database) -> Project:
    """A project with a table of two rows."""
    postgres_database.execute(
        "create table orders (id int primary key, version bigint)",
        "insert into orders values (1, 5), (2, 6)",
    )
    project.jdbc(
        postgres_database, ["orders"], table_options={"orders": {"cursor_field": "version"}}
    )
    return project
