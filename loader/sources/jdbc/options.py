"""The options of a source document with `path: jdbc`."""

from __future__ import annotations

import re
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from loader.duration import Lookback
from loader.spec.options import TableOptions
from loader.spec.validation import OptionError


class JdbcTableOptions(TableOptions):
    """A table's options, beyond the common ones.

    Attributes:
        cursor_field: also `xmin` (PostgreSQL): the transaction that wrote the row.
        sync_mode: also `cdc`: read the changes in the database's log.
        num_partitions: how many connections read it at once; chosen by its size if absent.
        partition_column: the column whose ranges it is read by, instead of the cursor.
    """

    sync_mode: Literal["incremental", "full_refresh", "cdc"] = "incremental"  # type: ignore[assignment]

    num_partitions: int | None = Field(default=None, ge=1)
    partition_column: str | None = None


class JdbcOptions(BaseModel):
    """The inner `spec` of a source with `path: jdbc`.

    Attributes:
        url: the JDBC URL.
        user, password: the account.
        driver: the driver's class, if the URL does not imply it.
        properties: properties of the driver.
        time_zone: the zone of columns without a time zone; the database's own by default. It
            decides whether a row is dated in the future, and on MariaDB and MySQL it is one of two
            bounds for late rows.
        fetch_size: rows per round trip; None for as many as fit into a few megabytes.
        lock_timeout: how long to wait for a table that another session locks (PostgreSQL, MariaDB,
            MySQL).
        slot: the name of the replication slot and of the publication, for tables with
            `sync_mode: cdc` (PostgreSQL).
        batch_rows: after how many rows a first load by the log is committed, and can go on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    driver: str | None = None
    properties: dict[str, str] = Field(default_factory=dict, repr=False)
    time_zone: str | None = None
    fetch_size: int | None = Field(default=None, ge=1)
    lock_timeout: str = "30 seconds"
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
                "Name them as `user` and `password` beside it: jdbc:postgresql://localhost/shop",
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
        follows = [name for name, options in tables.items() if options.sync_mode == "cdc"]
        if follows and url and not url.lower().startswith("jdbc:postgresql:"):
            raise OptionError(
                f"{follows[0]} has sync_mode: cdc, which reads the log of PostgreSQL only",
                "Use incremental or full_refresh",
            )
        for name in follows:
            if [one.lower() for one in tables[name].cursor_field or ()] == ["xmin"]:
                raise OptionError(
                    f"{name} has sync_mode: cdc, and the log does not have its cursor_field, xmin",
                    "Remove cursor_field",
                )
            for option in ("initial_cursor", "lookback", "null_cursor"):
                given = getattr(tables[name], option)
                if given not in (None, "include"):
                    raise OptionError(
                        f"{name} has sync_mode: cdc, which reads all rows, and {option}: {given}",
                        f"Remove {option}: it is for tables that are read by a cursor",
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
