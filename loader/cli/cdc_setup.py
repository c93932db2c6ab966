"""`loader setup cdc`: checks for Debezium, and prints the SQL that each source's database needs."""

from __future__ import annotations

from collections.abc import Callable

from loader.cli.settings import Settings
from loader.errors import SpecError, TableError

NAME = "cdc"
"""What `loader setup` calls it, beside the names of drivers."""


def prepare_log(settings: Settings, report: Callable[[str], None]) -> None:
    """Reports whether Debezium is installed, and each source's SQL for an administrator.

    Connects to nothing: `loader check` reports a database's unmet requirements.

    Raises:
        SpecError: if Debezium is not installed, or the spec is wrong.
    """
    from loader.sources.jdbc.interface import load_capture
    from loader.sources.jdbc.options import JdbcOptions

    try:
        load_capture("jdbc:postgresql:", "loader setup").check_installed("loader setup")
    except TableError as lack:
        raise SpecError(lack.what, where=lack.where, remedy=lack.remedy) from lack
    report("Debezium: installed")
    if not settings.config.exists():
        return
    for source in settings.spec().sources:
        if source.path != "jdbc":
            continue
        options = source.options(JdbcOptions)
        tables = [name for name, own in options.table_options.items() if own.sync_mode == "cdc"]
        if not tables:
            continue
        report(f"source {source.name}: what its database needs; `loader check` says what it lacks")
        capture = load_capture(options.url, source.where)
        for statement in capture.list_setup_sql(source.name, options, tables):
            report(f"    {statement}")
