"""``loader setup`` and ``loader schema``: prepare Spark and Java, and editors of loader.yml."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loader.cli.console import OUT
from loader.cli.settings import Settings
from loader.errors import SpecError, TableError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from loader.sources.interface import Source
    from loader.state import StateBackend

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


@click.command(short_help="Prints a JSON Schema of loader.yml for editors.")
@click.pass_obj
def schema(settings: Settings) -> None:
    """Prints a JSON Schema of loader.yml with the options of all installed connectors."""
    text = render_schema(settings.output.warning)
    settings.output.streams.write(OUT, lambda: print(text, end=""))


def render_schema(warn: Callable[[str], None]) -> str:
    """Returns the JSON Schema of a spec's documents.

    Args:
        warn: called with the error if a plug-in cannot be imported. The schema then accepts any
            options for this plug-in.
    """
    from loader.sources.entry_points import GROUP
    from loader.sources.interface import Source
    from loader.spec.entry_points import list_plugins, load_plugin
    from loader.spec.json_schema import build_schema
    from loader.spec.plugins import STATE_PATHS, StateStoreOptions, state_backends
    from loader.state import StateBackend

    def list_models(
        entries: Mapping[str, EntryPoint], base: type[Source] | type[StateBackend]
    ) -> dict[str, type[BaseModel] | None]:
        models: dict[str, type[BaseModel] | None] = {}
        for name, entry in entries.items():
            try:
                models[name] = load_plugin(entry, base, f"path: {name}").options_model
            except SpecError as error:
                warn(str(error))
                models[name] = None
        return models

    backends = {name: entry for name, entry in state_backends().items() if name not in STATE_PATHS}
    stores = dict.fromkeys(STATE_PATHS, StateStoreOptions) | list_models(backends, StateBackend)
    built = build_schema(list_models(list_plugins(GROUP), Source), stores)
    return json.dumps(built, indent=1, ensure_ascii=False) + "\n"
