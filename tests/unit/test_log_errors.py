"""Loud: errors of the log that have a remedy of their own."""

from __future__ import annotations

import pytest

from loader.cdc.wal_reader import is_older_than_publication
from loader.errors import TableError
from loader.spark.error_translation import DatabaseError


@pytest.mark.parametrize(
    ("error", "older"),
    [
        (DatabaseError('ERROR: publication "strandline_shop" does not exist'), True),
        (
            TableError(
                'Debezium cannot read the log: ERROR: publication "strandline_shop" does not exist '
                'Where: slot "strandline_shop", output plugin "pgoutput", in the change callback'
            ),
            True,
        ),
        (TableError('ERROR: replication slot "strandline_shop" does not exist'), False),
        (DatabaseError('ERROR: relation "publication" does not exist'), False),
    ],
)
def test_a_slot_that_is_older_than_its_publication(error: TableError, older: bool) -> None:
    assert is_older_than_publication(error) is older
