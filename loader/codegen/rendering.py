"""Renders sources, models and tests as data for YAML files, and models also as SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.codegen.table import Column, Table, is_plain
from loader.errors import TableError

LATEST = "latest"
HISTORY = "history"
_NOT_AS_IT_IS = re.compile(r"\{(?:[{%#]|(?=\r|\n\Z))|\r|\n\Z")
_HISTORY_COLUMNS = (
    Column("valid_from", "timestamp", "Start of the version's validity."),
    Column("valid_to", "timestamp", "End of the version's validity; null if it is still valid."),
    Column(
        "is_current", "boolean", "Whether this is the newest version, and the row is not deleted."
    ),
)


@dataclass(frozen=True)
class NamedTable:
    """A table, and its names in dbt.

    Attributes:
        dbt_name: the name of the source table, as in `source('shop', 'orders')`.
        stem: the name of its models, without `_latest` or `_history`.
    """

    table: Table
    dbt_name: str
    stem: str

    def model(self, kind: str) -> str:
        return f"{self.stem}_{kind}"


def sources(schemas: Mapping[str, str], tables: Sequence[NamedTable]) -> dict[str, Any]:
    """Returns the data for sources.yml.

    Args:
        schemas: maps each source to the value of `schema` in the YAML file.
    """
    listed = {name: [one for one in tables if one.table.source == name] for name in schemas}
    return {
        "sources": [
            {
                "name": name,
                "description": f"Rows that `loader run` appended from the source {name}.",
                "schema": schemas[name],
                "config": {
                    "loaded_at_field": "_cq_sync_time",
                    "freshness": {"warn_after": {"count": 1, "period": "day"}},
                },
                "tables": [_source_table(one) for one in of_source],
            }
            for name, of_source in listed.items()
            if of_source
        ]
    }


def models(latest: Iterable[NamedTable], history: Iterable[NamedTable]) -> dict[str, Any]:
    newest = list(latest)
    entries = [*map(_latest, newest), *(_history(one, one not in newest) for one in history)]
    return {"models": sorted(entries, key=lambda entry: str(entry["name"]))}


def sql(one: NamedTable, kind: str) -> str:
    table = one.table
    config: dict[str, Any] = {"materialized": f"deduped_{kind}", "unique_key": list(table.key)}
    settings: dict[str, Any] = {}
    about = "The newest version of each row" if kind == LATEST else "Every version of each row"
    if table.cursor is not None:
        settings["cursor_field"] = table.cursor.name
    if not table.incremental:
        settings["delete_stale"] = True
    if settings:
        config["meta"] = {"strandline": settings}
    lines = [f"        {name}={_jinja_value(value)}" for name, value in config.items()]
    source = f"source({_jinja_value(table.source)}, {_jinja_value(one.dbt_name)})"
    arguments = ",\n".join(lines)
    return (
        f"{{#- {about} of {_jinja_comment(table.full_name)}. -#}}\n"
        f"{{{{\n    config(\n{arguments}\n    )\n}}}}\n\n"
        f"select *\nfrom {{{{ {source} }}}}\n"
    )


def _source_table(one: NamedTable) -> dict[str, Any]:
    table = one.table
    if "`" in table.name:
        raise TableError(
            f"the raw table is called {table.name!r}, and dbt does not escape backticks in a name",
            where=f"table {table.full_name}",
            remedy="Load it with this version of the loader, which replaces backticks in names",
        )
    entry: dict[str, Any] = {"name": one.dbt_name}
    if one.dbt_name != table.name:
        entry["identifier"] = as_text(table.name)
    if not is_plain(table.name):
        entry["quoting"] = {"identifier": True}
    about = (
        _sentence(table.description)
        or f"Every version of each row of {table.name} that was delivered."
    )
    keyless = "" if table.key else " It has no primary key, so it has no latest table."
    entry["description"] = as_text(about + keyless)
    # Written even if it is empty, because the tests of ledger and state check only tables that have
    # this entry.
    settings: dict[str, Any] = {}
    if table.key:
        settings["unique_key"] = [as_text(name) for name in table.key]
    if table.cursor is not None:
        settings["cursor_field"] = as_text(table.cursor.name)
    if not table.state_in_lake:
        settings["state_in_lake"] = False
    entry["config"] = {"meta": {"strandline": settings}}
    entry["columns"] = [
        {
            "name": as_text(column.name),
            "data_type": as_text(column.type),
            **({"description": as_text(column.description)} if column.description else {}),
            **({"config": {"meta": {"strandline": {"mask": column.mask}}}} if column.mask else {}),
        }
        for column in table.columns
    ]
    return entry


def _latest(one: NamedTable) -> dict[str, Any]:
    table = one.table
    about = f"The newest version of each row of {table.full_name}, by {', '.join(table.key)}."
    if not table.incremental:
        about += " Rows that the newest complete full refresh did not contain are omitted."
    return _model(one, LATEST, about, _latest_tests(table))


def _latest_tests(table: Table) -> list[str]:
    by_cursor = table.incremental and table.cursor is not None
    return ["strandline.matches_raw", *(["strandline.no_cursor_ties"] if by_cursor else [])]


def _history(one: NamedTable, alone: bool) -> dict[str, Any]:
    table = one.table
    about = (
        f"Every version of each row of {table.full_name}, by {', '.join(table.key)}, with its "
        "period of validity."
    )
    # Ties are a property of the raw table, so only one of the table's models tests for them.
    tests = _latest_tests(table) if alone else ["strandline.matches_raw"]
    return _model(one, HISTORY, about, tests, _HISTORY_COLUMNS)


def _model(
    one: NamedTable, kind: str, about: str, tests: list[str], own: Sequence[Column] = ()
) -> dict[str, Any]:
    described = _sentence(one.table.description)
    entry: dict[str, Any] = {
        "name": one.model(kind),
        "description": as_text(f"{described} {about}".strip()),
        "data_tests": tests,
    }
    columns = [
        {"name": as_text(column.name), "description": as_text(column.description)}
        for column in (*one.table.columns, *own)
        if column.description and not column.name.startswith("_cq_")
    ]
    if columns:
        entry["columns"] = columns
    return entry


def as_text(text: str) -> str:
    """Escapes text from a source for YAML that dbt renders.

    Otherwise, Jinja would interpret braces, remove a trailing line break, and replace carriage
    returns.
    """
    return _NOT_AS_IT_IS.sub(lambda found: "{{ " + _quote(found[0]) + " }}", text)


def _sentence(comment: str) -> str:
    """Converts a comment in a database to one line that ends with punctuation."""
    text = " ".join(comment.split())
    return text if not text or text[-1] in ".!?…:;" else f"{text}."


def _jinja_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_jinja_value, value))}]"
    if isinstance(value, dict):
        entries = (f"{_quote(name)}: {_jinja_value(each)}" for name, each in value.items())
        return f"{{{', '.join(entries)}}}"
    literal = _quote(str(value))
    # dbt parses a plain literal without Jinja, so it would not resolve escapes. Jinja evaluates a
    # concatenation.
    return f"{literal} ~ ''" if "\\" in literal else literal


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "'"


def _jinja_comment(text: str) -> str:
    return " ".join(text.replace("#}", "# }").split())
