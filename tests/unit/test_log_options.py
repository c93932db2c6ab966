"""`sync_mode: cdc`: invalid options are refused, valid ones determine Debezium's settings."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from loader.cdc.slot import choose_slot_name
from loader.cdc.wal_reader import build_debezium_settings, is_older_than_publication
from loader.errors import SpecError, TableError
from loader.sources.file.options import FileOptions
from loader.sources.jdbc.options import JdbcOptions
from loader.spark.error_translation import DatabaseError
from loader.spec.redaction import Redactor
from loader.spec.validation import validate_options

POSTGRES = "jdbc:postgresql://db.local:5433/shop%20one?sslmode=require&currentSchema=a&password=p"


@pytest.mark.parametrize(
    ("model", "value", "says"),
    [
        (
            JdbcOptions,
            {"url": "jdbc:mariadb://h/shop", "table_options": {"orders": {"sync_mode": "cdc"}}},
            "orders has sync_mode: cdc, which reads only PostgreSQL logs",
        ),
        (
            FileOptions,
            {"path": "x", "format": "csv", "table_options": {"o": {"sync_mode": "cdc"}}},
            "must be 'incremental' or 'full_refresh', not 'cdc'",
        ),
        *(
            (
                JdbcOptions,
                {"url": POSTGRES, "table_options": {"orders": {"sync_mode": "cdc", **option}}},
                f"which reads all rows, and {next(iter(option))}: ",
            )
            for option in (
                {"initial_cursor": "2025-01-01"},
                {"lookback": "1 day"},
                {"lookback": 5},
                {"null_cursor": "fail"},
                {"null_cursor": "exclude"},
                {"sweep": "never"},
            )
        ),
        *(
            (
                JdbcOptions,
                {"url": POSTGRES, "table_options": {"orders": {"sweep": interval}}},
                f"{str(interval)!r} is not a valid value for sweep. Use auto, always, never, or",
            )
            for interval in ("sometimes", 10, "0 seconds", "10 minuts", "")
        ),
        (
            JdbcOptions,
            {"url": "jdbc:mariadb://x/y", "table_options": {"*": {"sweep": "1 hour"}}},
            "* has the `sweep` option, which needs PostgreSQL's transaction ids",
        ),
        (
            JdbcOptions,
            {
                "url": POSTGRES,
                "table_options": {"orders": {"sync_mode": "cdc", "cursor_field": "xmin"}},
            },
            "orders has sync_mode: cdc, and the log does not contain its cursor, xmin",
        ),
        (JdbcOptions, {"url": POSTGRES, "slot": "My-Slot"}, "cannot be the name of a replication"),
    ],
)
def test_invalid_options_are_refused(
    model: type[BaseModel], value: dict[str, Any], says: str
) -> None:
    with pytest.raises(SpecError) as refused:
        validate_options(model, value, "loader.yml", Redactor())
    assert says in str(refused.value)


def test_null_undoes_a_wildcards_sweep() -> None:
    value = {"url": POSTGRES, "table_options": {"*": {"sweep": "never"}, "t": {"sweep": None}}}
    options = validate_options(JdbcOptions, value, "loader.yml", Redactor())
    assert options.table_options["t"].sweep == "auto"


def test_slot_names_are_valid_in_postgresql() -> None:
    assert choose_slot_name("shop") == "strandline_shop"
    assert choose_slot_name("Shop-EU.1") == "strandline_shop_eu_1"
    assert len(choose_slot_name("x" * 100)) == 63
    assert choose_slot_name("shop", "own") == "own"


def test_debezium_uses_the_connection_settings_of_the_source() -> None:
    options = JdbcOptions(url=POSTGRES, user="u", properties={"tcpKeepAlive": "true"})
    found = build_debezium_settings(
        options, "slot", ["public.a.b", "x.y+z"], "missing", "source shop"
    )
    assert (found["database.hostname"], found["database.port"]) == ("db.local", "5433")
    assert (found["database.dbname"], found["database.user"]) == ("shop one", "u")
    assert found["database.password"] == "p"
    assert found["database.sslmode"] == "require"
    assert found["driver.currentSchema"] == "a"
    assert found["driver.tcpKeepAlive"] == "true"
    assert found["table.include.list"] == r"public\.a\.b,x\.y\+z"
    assert found["lsn.flush.mode"] == "manual"  # only the loader advances the slot


@pytest.mark.parametrize("url", ["jdbc:postgresql:shop", "jdbc:postgresql://a,b/shop"])
def test_a_url_without_one_host_is_refused(url: str) -> None:
    with pytest.raises(Exception, match="a url with one host and a database"):
        build_debezium_settings(JdbcOptions(url=url), "slot", [], "missing", "source shop")


def test_debezium_sets_the_formats_of_values() -> None:
    options = JdbcOptions(url=POSTGRES, properties={"options": "-c work_mem=8MB"})
    found = build_debezium_settings(options, "slot", [], "missing", "source shop")["driver.options"]
    assert found.startswith("-c work_mem=8MB -c bytea_output=hex ")


@pytest.mark.parametrize("name", ["a+b", "50%25", "why%3F"])
def test_a_database_that_debezium_cannot_connect_to_is_refused(name: str) -> None:
    with pytest.raises(Exception, match=r"whose name has \+, % or \?"):
        build_debezium_settings(
            JdbcOptions(url=f"jdbc:postgresql://h/{name}"), "slot", [], "missing", "shop"
        )


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
