"""`loader setup cdc`: is Debezium there, and what must be done in each source's database."""

from __future__ import annotations

from collections.abc import Callable

from loader.cli.settings import Settings
from loader.errors import SpecError

NAME = "cdc"
"""What `loader setup` calls it, beside the names of drivers."""


def prepare_log(settings: Settings, report: Callable[[str], None]) -> None:
    """Reports whether Debezium is installed, and each source's SQL for an administrator.

    Connects to nothing: `loader check` reports a database's unmet requirements.

    Raises:
        SpecError: if Debezium is not installed, or the spec is wrong.
    """
    from loader.sources.debezium.engine import is_installed, missing

    if not is_installed():
        lack = missing("loader setup")
        raise SpecError("Debezium's engine is not installed", where=lack.where, remedy=lack.remedy)
    report("Debezium: installed")
    if not settings.config.exists():
        return
    from loader.sources.jdbc.cdc.requirements import setup_sql
    from loader.sources.jdbc.cdc.slot import slot_name
    from loader.sources.jdbc.options import JdbcOptions

    for source in settings.spec().sources:
        if source.path != "jdbc":
            continue
        options = source.options(JdbcOptions)
        tables = [t for t, told in options.table_options.items() if told.sync_mode == "cdc"]
        if not tables:
            continue
        name = slot_name(source.name, options.slot)
        report(f"source {source.name}: what its database needs; `loader check` says what it lacks")
        for statement in setup_sql(name, options.user or "<role>", tables):
            report(f"    {statement}")
