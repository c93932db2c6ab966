"""The options of a source with `path: jdbc`, and a check of the SQL in them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from loader.duration import Lookback, seconds_of
from loader.names import is_wildcard
from loader.spec.options import (
    DURATION_SCHEMA,
    Duration,
    Name,
    ReconcileOptions,
    TableOptions,
)
from loader.spec.validation import OptionError

_NEEDS_TABLE = {
    "where": "which filters the rows of a table; add the condition to the query",
    "sync_mode": "which reads the log, and the log contains only changes to tables",
    "sweep": "which needs the transaction ids that only the rows of a table have",
}
"""The options that cannot be combined with a query, and the reasons."""

_QUOTED = r""""(?:[^"]|"")*"|`[^`]*`|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"""
_PLAIN_TEXT = r"'(?:[^']|'')*'"
_ESCAPED_TEXT = r"'(?:[^'\\]|\\.|'')*'"
_DOUBLE_QUOTED_TEXT = _ESCAPED_TEXT.replace("'", '"')
_REFUSED = {
    "--": "begins a comment",
    "/*": "begins a comment",
    "#": "begins a comment",
    ";": "ends the statement",
    "'": "begins a string that does not end",
    '"': "begins a quoted name that does not end",
    "`": "begins a quoted name that does not end",
    "?": "is a parameter for JDBC; write a function instead, such as jsonb_exists(column, key)",
}


def _format_property(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


Property = Annotated[
    str, BeforeValidator(_format_property, json_schema_input_type=str | int | bool)
]
"""The value of a driver property: a string, number or boolean (as in `prepareThreshold: 0`)."""


class JdbcTableOptions(TableOptions):
    """A table's options, in addition to those that all connectors have.

    Attributes:
        cursor_field: can also be `xmin` (PostgreSQL), the id of the transaction that wrote the row.
        sync_mode: can also be `cdc`, which reads changes from the database's log.
        num_partitions: the number of parallel connections; by default it depends on the number of
            rows.
        partition_column: the column whose ranges are read by parallel connections; by default the
            cursor.
        sweep: how often to search the whole table for late rows, by the transaction that wrote each
            row (PostgreSQL): `auto`, `always`, `never` or an interval such as `10 minutes`. None
            means `auto`.
        reconcile: how often runs compare all keys with the source; None means never.
        where: a condition in the database's SQL for the rows to load.
        query: a SELECT in the database's SQL whose result is loaded as this table.
    """

    sync_mode: Literal["incremental", "full_refresh", "cdc"] = "incremental"  # type: ignore[assignment]

    num_partitions: int | None = Field(default=None, ge=1)
    partition_column: str | None = None
    sweep: Annotated[
        str,
        BeforeValidator(lambda value: "auto" if value is None else value),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["auto", "always", "never", None]},
                    {"type": "string", **DURATION_SCHEMA},
                ]
            }
        ),
    ] = "auto"
    reconcile: ReconcileOptions | None = None
    where: Name | None = None
    query: Name | None = None

    @model_validator(mode="after")
    def _has_cursor_to_check(self) -> JdbcTableOptions:
        if self.reconcile is not None and self.sync_mode == "full_refresh":
            raise OptionError(
                "sync_mode: full_refresh reads all rows in each run, so there is nothing to "
                "reconcile",
                "Remove reconcile",
            )
        return self

    @field_validator("sweep")
    @classmethod
    def _is_interval(cls, text: str) -> str:
        if text in ("auto", "always", "never"):
            return text
        with suppress(ValueError):
            if seconds_of(text, "", "") > 0:
                return text
        raise OptionError(
            f"{text!r} is not a valid value for sweep",
            "Use auto, always, never, or an interval such as '10 minutes'",
        )


class JdbcOptions(BaseModel):
    """The inner `spec` of a source with `path: jdbc`.

    Attributes:
        url: the JDBC URL.
        user: the database user.
        password: the user's password.
        driver: the driver's class; required only if the URL does not determine it.
        properties: the driver properties.
        time_zone: the time zone of times that are stored without one; by default the database's. It
            is needed to detect rows that are dated in the future and, in MariaDB and MySQL, to
            limit the search for late rows.
        fetch_size: the number of rows per round trip; by default a few megabytes of rows.
        lock_timeout: the maximum time to wait for a table that another session locks (PostgreSQL,
            MariaDB, MySQL).
        slot: the name of the replication slot and publication for tables with `sync_mode: cdc`
            (PostgreSQL).
        batch_rows: the number of rows per commit in a first load with `sync_mode: cdc`. An
            interrupted load continues after the last commit.
        table_options: the options of tables, keyed by name or wildcard.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    driver: str | None = None
    properties: dict[str, Property] = Field(default_factory=dict, repr=False)
    time_zone: str | None = None
    fetch_size: int | None = Field(default=None, ge=1)
    lock_timeout: Duration = "30 seconds"
    slot: str | None = None
    batch_rows: int = Field(default=1_000_000, ge=1)
    table_options: dict[str, JdbcTableOptions] = Field(default_factory=dict)

    @field_validator("url")
    @classmethod
    def _is_jdbc(cls, url: str) -> str:
        if not url.lower().startswith("jdbc:"):
            raise OptionError(
                "this is not a JDBC url",
                'Begin it with "jdbc:", for example jdbc:postgresql://localhost:5432/shop',
            )
        if re.match("(?i)jdbc:postgresql://[^/?]*@", url):
            raise OptionError(
                "a JDBC url of PostgreSQL has no user or password before its host",
                "Remove them from the url, and set the options `user` and `password`",
            )
        return url

    @field_validator("slot")
    @classmethod
    def _is_slot(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch("[a-z0-9_]{1,63}", name):
            raise OptionError(
                f"{name!r} cannot be the name of a replication slot",
                "Use lower-case letters, digits and _, at most 63",
            )
        return name

    @field_validator("lock_timeout")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        try:
            seconds = Lookback.parse(text).seconds
        except ValueError:
            seconds = None
        if not seconds:
            raise OptionError(f"{text!r} is not a duration", "Use one such as '30 seconds'")
        return text

    @field_validator("table_options")
    @classmethod
    def _has_log(
        cls, tables: dict[str, JdbcTableOptions], info: ValidationInfo
    ) -> dict[str, JdbcTableOptions]:
        url = str(info.data.get("url", ""))
        cdc_tables = [name for name, options in tables.items() if options.sync_mode == "cdc"]
        if cdc_tables and url and not url.lower().startswith("jdbc:postgresql:"):
            raise OptionError(
                f"{cdc_tables[0]} has sync_mode: cdc, which reads only PostgreSQL logs",
                "Use incremental or full_refresh",
            )
        swept_tables = [name for name, options in tables.items() if options.sweep != "auto"]
        if swept_tables and url and not url.lower().startswith("jdbc:postgresql:"):
            raise OptionError(
                f"{swept_tables[0]} has the `sweep` option, which needs PostgreSQL's transaction "
                "ids",
                "Remove it; a lookback or `loader reconcile` finds late rows in this database",
            )
        for name in cdc_tables:
            if [column.lower() for column in tables[name].cursor_field or ()] == ["xmin"]:
                raise OptionError(
                    f"{name} has sync_mode: cdc, and the log does not contain its cursor, xmin",
                    "Remove cursor_field",
                )
            for option in ("initial_cursor", "lookback", "null_cursor", "sweep"):
                value = getattr(tables[name], option)
                if value not in (None, "include", "auto"):
                    raise OptionError(
                        f"{name} has sync_mode: cdc, which reads all rows, and {option}: {value}",
                        f"Remove {option}: it applies only to tables that are read by a cursor",
                    )
        return tables

    @field_validator("table_options")
    @classmethod
    def _selects_rows(
        cls, tables: dict[str, JdbcTableOptions], info: ValidationInfo
    ) -> dict[str, JdbcTableOptions]:
        url = str(info.data.get("url", ""))
        for name, options in tables.items():
            if options.where is not None:
                check_sql(options.where, f"{name}.where", url, "a condition")
            if options.query is None:
                continue
            check_sql(options.query, f"{name}.query", url, "a SELECT")
            if is_wildcard(name):
                raise OptionError(
                    f"{name} has a query, and is a wildcard",
                    "Write the query in the options of one table name, which the raw table gets",
                )
            for option, reason in _NEEDS_TABLE.items():
                value = getattr(options, option)
                if value not in (None, "auto", "incremental", "full_refresh"):
                    raise OptionError(
                        f"{name} has a query and {option}: {value}, {reason}", f"Remove {option}"
                    )
        return tables

    @field_validator("time_zone")
    @classmethod
    def _is_zone(cls, name: str | None) -> str | None:
        try:
            return name if name is None else ZoneInfo(name).key
        except (ZoneInfoNotFoundError, ValueError):
            raise OptionError(
                f"there is no time zone {name!r}", "Use a name such as Europe/Berlin or UTC"
            ) from None


def check_sql(text: str, option: str, url: str, kind: str) -> None:
    """Checks that SQL from the spec can be put into parentheses within a statement.

    The database checks everything else.

    Args:
        url: the database's JDBC URL, which determines how strings are quoted.
        kind: the kind of SQL that the option requires, for the remedy.

    Raises:
        OptionError: if the SQL is empty, if it contains a comment, a semicolon or an unbalanced
            parenthesis, or if it ends within quotes.
    """
    is_mysql = url.lower().startswith(("jdbc:mariadb:", "jdbc:mysql:"))
    texts = (
        f"{_ESCAPED_TEXT}|{_DOUBLE_QUOTED_TEXT}"
        if is_mysql
        else rf"\b[eE]{_ESCAPED_TEXT}|{_PLAIN_TEXT}"
    )
    token = re.compile(rf"{texts}|{_QUOTED}|--|/\*|[#;?()'\"`]", re.DOTALL)
    remedy = f"Write {kind} as one line or block of SQL, without comments or semicolons"
    if not text.strip():
        raise OptionError(f"{option} is empty", f"Write {kind}, or remove it")
    depth = 0
    for match in token.finditer(text):
        found = match[0]
        depth += {"(": 1, ")": -1}.get(found, 0)
        reason = _REFUSED.get(found, "")
        if found == "#" and not is_mysql:
            reason = ""  # a PostgreSQL operator
        if depth < 0:
            reason = "has no opening parenthesis"
        if reason:
            raise OptionError(
                f"{option}: {found} at character {match.start() + 1} {reason}", remedy
            )
    if depth:
        raise OptionError(f"{option}: a parenthesis is not closed", remedy)
