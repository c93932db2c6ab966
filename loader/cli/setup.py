"""``loader setup``: prepares Spark, Java and JDBC drivers; with ``cdc``, log-based capture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from loader.cli.settings import Settings
from loader.errors import SpecError, TableError

CDC = "cdc"
"""The argument of `loader setup` that prepares log-based capture. Other arguments are drivers."""


@click.command(short_help="Prepares Spark, Java and JDBC drivers.")
@click.argument("drivers", nargs=-1)
@click.option(
    "--archive/--no-archive",
    default=None,
    help="Wait for the class archive (200 MB), which halves Spark's start-up time, or record none. "
    "By default it is recorded in the background.",
)
@click.pass_obj
def setup(settings: Settings, drivers: tuple[str, ...], archive: bool | None) -> None:
    """Prepares Spark: downloads Iceberg and JDBC DRIVERS, and shows which Java is used.

    DRIVERS are postgresql, mariadb, mysql, sqlite, derby (which comes with Spark), aws (S3FileIO
    and Glue), or paths to jars. If DRIVERS includes `cdc`, the command prints the SQL to run on a
    database before its log can be read.
    """
    from loader.cli.schema import render_schema
    from loader.spark.setup import prepare, uses_link, write_schema

    def report(line: str) -> None:
        settings.output.say(line)
        settings.output.event("setup", "", text=line)

    prepare([name for name in drivers if name != CDC], Path.cwd(), report)
    if uses_link(Path.cwd()):
        report(write_schema(Path.cwd(), render_schema(settings.output.warning)))
    if CDC in drivers:
        prepare_log(settings, report)
    if archive is not False:
        from loader.spark.class_archive import prepare_archive
        from loader.spark.java import choose_java
        from loader.spark.spark_version import find_spark

        home = find_spark()
        prepare_archive(home, choose_java(home.line), bool(archive), report)


def prepare_log(settings: Settings, report: Callable[[str], None]) -> None:
    """Checks that Debezium is installed, and reports the SQL that administrators must run.

    Does not connect to the databases; `loader check` reports their unmet requirements. Raises a
    SpecError if Debezium is not installed, or the spec is invalid.
    """
    from loader.sources.jdbc.interface import load_capture
    from loader.sources.jdbc.options import JdbcOptions

    try:
        load_capture("jdbc:postgresql:", "loader setup").check_installed("loader setup")
    except TableError as error:
        raise SpecError(error.what, where=error.where, remedy=error.remedy) from error
    report("Debezium: installed")
    if not settings.config.exists():
        return
    for source in settings.spec().sources:
        if source.path != "jdbc":
            continue
        options = source.options(JdbcOptions)
        tables = [name for name, table in options.table_options.items() if table.sync_mode == "cdc"]
        if not tables:
            continue
        report(
            f"source {source.name}: SQL for its database; `loader check` reports what is missing"
        )
        capture = load_capture(options.url, source.where)
        for statement in capture.list_setup_sql(source.name, options, tables):
            report(f"    {statement}")
