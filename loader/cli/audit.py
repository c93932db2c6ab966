"""``loader audit``: compares a table with a copy that another tool has loaded."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loader.cli.console import Output, escape_invisible
from loader.cli.database_url import DatabaseUrl
from loader.cli.options import buckets_option, copy_options, read_duration
from loader.cli.report import check_writable, replace_page
from loader.cli.settings import Settings, open_pipeline
from loader.errors import SpecError
from loader.package import package_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loader.audit.auditor import Effort
    from loader.audit.copied_table import CopyOptions
    from loader.audit.findings import Audit
    from loader.sources.interface import Source
    from loader.spec.plugins import SourceSpec
    from loader.spec.spec import Spec

_BUCKETS = 256
_MAX_DAYS = 14


def _read_share(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Converts a percentage to a share (a click callback)."""
    try:
        share = float(value.strip().removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"{value!r} is not a share: write it as 5%")
    return share


def _read_pause(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Converts a duration, which may be 0 (a click callback)."""
    if value.strip() in ("0", "0s"):
        return 0.0
    return read_duration(ctx, param, value) or 0.0


@click.command(short_help="Compares a table with a copy that another tool loads.")
@click.argument("url", metavar="SOURCE_URL")
@click.argument("table", metavar="SOURCE_TABLE")
@click.argument("copy", metavar="COPY")
@click.option(
    "--copy-url", metavar="URL", help="COPY is a table of this database, not a table of Spark."
)
@copy_options
@click.option(
    "--key",
    multiple=True,
    metavar="COLUMN",
    help="A column of the key; repeatable. Default: the primary key.",
)
@click.option(
    "--cursor",
    metavar="COLUMN",
    help="The column that dates rows. Default: a column named like updated_at.",
)
@click.option(
    "--ignore", multiple=True, metavar="COLUMN", help="Do not compare this column; repeatable."
)
@click.option(
    "--sample",
    "share",
    default="100%",
    show_default=True,
    metavar="PERCENT",
    callback=_read_share,
    help="Compare a random share of the keys.",
)
@buckets_option(_BUCKETS, "Divide the keys into N buckets to compare.")
@click.option(
    "--pause",
    default="30s",
    show_default=True,
    metavar="TIME",
    callback=_read_pause,
    help="The time between the two looks.",
)
@click.option(
    "--grace",
    default="1h",
    show_default=True,
    metavar="TIME",
    callback=_read_pause,
    help="Differences in rows that are at most this much older than COPY's newest row count as "
    "lag.",
)
@click.option(
    "--max-lag",
    default="1d",
    show_default=True,
    metavar="TIME",
    callback=_read_pause,
    help="Exit with 1 if COPY lacks a row that is newer than its newest row, but older than this.",
)
@click.option(
    "--examples",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="How many keys to show for each kind of difference.",
)
@click.option(
    "--report",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the result as an HTML page.",
)
@click.option("--profile", help="The dbt profile with the Spark that reads COPY.")
@click.option("--target", help="The target of the profile.")
@click.option("--profiles-dir", help="The folder of profiles.yml.")
@click.pass_obj
def audit(
    settings: Settings,
    /,
    url: str,
    table: str,
    copy: str,
    copy_url: str | None,
    tool: str | None,
    versions: bool,
    newest_by: tuple[str, ...],
    deleted: str | None,
    key: tuple[str, ...],
    cursor: str | None,
    ignore: tuple[str, ...],
    page: Path | None,
    profile: str | None,
    target: str | None,
    profiles_dir: str | None,
    **effort: Any,
) -> None:
    """Finds rows of SOURCE_TABLE that are missing, stale, doubled or not deleted in COPY.

    COPY is a table in one of Spark's catalogs, a path with a slash (Parquet, Delta or Iceberg) or,
    with --copy-url, a table in another database. Any tool may have loaded it. The command writes
    nothing to the source or the copy, and needs no loader.yml. Exits with 1 if rows differ,
    and with 2 if they could not be compared. Passwords are read from PGPASSWORD and MYSQL_PWD.

    \b
    loader audit postgresql://me@db/shop orders lake.shop.orders
    loader audit postgresql://me@db/shop orders s3://lake/shop/orders --loaded-by dlt --versions
    loader audit mysql://me@db/shop orders orders --copy-url postgresql://me@dwh/raw
    """
    from loader.audit.auditor import Effort
    from loader.audit.copied_table import CopyOptions

    if newest_by and not versions:
        raise click.UsageError("--newest-by is for --versions: a copy with old versions of rows.")
    needs_profile = copy_url is None and "/" not in copy
    spec = _build_spec(
        {"SOURCE_URL": url} | ({"--copy-url": copy_url} if copy_url is not None else {}),
        _find_lake(profile, target, profiles_dir, needs_profile),
    )
    settings.output.redact = spec.redactor.redact
    options = CopyOptions(tool or "", versions, newest_by, deleted)
    request = _Request(table, copy, options, key, cursor, ignore, Effort(**effort))
    try:
        if page is not None:
            check_writable(page)
        with open_pipeline(settings, spec) as pipeline:
            result = _run(settings.output, spec, pipeline.spark, request)
        show_audit(settings.output, result)
        if page is not None:
            write_page(settings.output, result, page)
    except SpecError as error:
        if needs_profile and "profiles.yml" in error.what:
            error.remedy += ". Or write COPY as a path with a slash, or add --copy-url"
        raise
    except Exception as error:
        from loader.spark.error_translation import translate_error

        failure = translate_error(error, f"audit of {copy}")
        failure.exit_code = SpecError.exit_code  # 1 means that the tables were compared, and differ
        raise failure from error.__cause__ if failure is error else error
    sys.exit(0 if result.is_equal else 1)


@dataclass(frozen=True)
class _Request:
    table: str
    copy: str
    copy_options: CopyOptions
    key: tuple[str, ...]
    cursor: str | None
    ignore: tuple[str, ...]
    effort: Effort


def _find_lake(
    profile: str | None, target: str | None, profiles_dir: str | None, needs_profile: bool
) -> dict[str, str]:
    """Returns the options of the lake, which determine the Spark session that reads COPY.

    To read files or another database, the package's own profile is enough, so it is the default.
    """
    if not needs_profile and profile is None and profiles_dir is None:
        return {"profiles_dir": str(package_folder() / "profiles"), "target": target or "embedded"}
    options = {"profile": profile, "target": target, "profiles_dir": profiles_dir}
    return {name: value for name, value in options.items() if value is not None}


def _build_spec(databases: dict[str, str], lake: dict[str, str]) -> Spec:
    """Returns a spec with a source for each database.

    Args:
        databases: the URL of each database, keyed by the name of its option or argument.
    """
    from loader.spec.spec import build_spec

    documents: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    for option, text in databases.items():
        name, values = "database", {"url": text}
        if not DatabaseUrl.is_other(text):
            found = DatabaseUrl.parse(text, os.environ, where=option)
            name = found.source_name
            values = {"url": found.jdbc, "user": found.user, "password": found.password}
        name = f"{name}_copy" if documents else name
        prefix = f"url_{len(documents)}"
        env |= {f"{prefix}_{key}": value for key, value in values.items()}
        inner = {key: f"${{{prefix}_{key}}}" for key, value in values.items() if value}
        source = {"name": name, "path": "jdbc", "tables": ["*"], "destinations": ["lake"]}
        documents.append({"kind": "source", "spec": {**source, "spec": inner}})
    destination = {"name": "lake", "path": "spark", "write_mode": "append", "spec": lake}
    documents.append({"kind": "destination", "spec": destination})
    return build_spec(documents, env=env)


def _run(output: Output, spec: Spec, spark: SparkSession, request: _Request) -> Audit:
    from loader.audit.auditor import Auditor
    from loader.audit.copied_table import find_spark_table, open_copy
    from loader.audit.source_table import (
        choose_cursor,
        choose_key,
        find_column,
        find_table,
        open_database_copy,
        select_columns,
    )

    with ExitStack() as opened:

        def open_source(
            number: int, table: str = "", options: dict[str, object] | None = None
        ) -> Source:
            document = spec.sources[number]
            source = _open_source(spec, document, spark, {table: options} if options else {})
            opened.enter_context(source.reuse_connections(keep=4))
            return source

        source = open_source(0)
        ref = find_table(source, request.table, "SOURCE_TABLE")
        described = source.describe(ref)
        ignored = [find_column(described, name, "--ignore") for name in request.ignore]
        if len(spec.sources) > 1:
            database = open_source(1)
            copied = database.describe(find_table(database, request.copy, "COPY"))
            open_rows = open_database_copy(spark, database, copied)
        else:
            open_rows = find_spark_table(spark, request.copy)
        copy = open_copy(request.copy, open_rows, described.schema, request.copy_options, ignored)
        key = choose_key(described, copy, request.key)
        cursor = choose_cursor(described, copy, request.cursor)
        selected, table = select_columns(
            lambda options: open_source(0, ref.name, options), ref, [*copy.columns], key
        )
        is_unique = set(described.primary_key) <= set(key) and bool(described.primary_key)
        auditor = Auditor(
            spark,
            selected,
            table,
            key,
            is_unique,
            cursor,
            copy,
            request.effort,
            lambda step: output.event("progress", f"{step} …", step=step),
        )
        return auditor.run()


def _open_source(
    spec: Spec,
    document: SourceSpec,
    spark: SparkSession,
    table_options: dict[str, dict[str, object]],
) -> Source:
    from loader.sources.entry_points import find_connector

    connector = find_connector(document.path, document.where)
    inner = {**document.spec, "table_options": table_options}
    options = document.model_copy(update={"spec": inner}).options(connector.options_model)
    source = connector(document.name, options, spark, spec.folder)
    source.hide = spec.redactor.add
    return source


def show_audit(output: Output, result: Audit) -> None:
    """Prints the result, either as one JSON line or as tables and a sentence."""
    from loader.audit.findings import KINDS, LAG

    if output.json:
        output.event("audit", "", **result.to_json())
        return
    columns = ("source", "copy", "loaded_by", "rows_source", "rows_copy", *KINDS, LAG)
    counts = (result.counts.get(kind, 0) for kind in KINDS)
    row = (result.source, result.copy, result.tool or "unknown", result.rows_source)
    output.table("audit", columns, [(*row, result.rows_copy, *counts, result.lag)])
    if result.days:
        output.say("")
        days = result.group_days(_MAX_DAYS)
        rows = [(day, *(counts[kind] for kind in KINDS)) for day, counts in days]
        output.table("day", ("day", *KINDS), rows)
    if result.columns:
        output.say("")
        output.table("column", ("column", "stale_rows"), result.columns)
    if result.examples:
        output.say("")
        examples = [(e.kind, e.key, e.at, ", ".join(e.columns)) for e in result.examples]
        output.table("example", ("difference", "key", "cursor", "columns"), examples)
    output.say("")
    for name, reason in result.not_compared.items():
        output.warning(f"column {name} was not compared: {reason}")
    for note in result.notes:
        output.say(note)
    output.say(result.sentence)


def write_page(output: Output, result: Audit, path: Path) -> None:
    """Writes the result as an HTML page."""
    from loader.audit.page import render_page

    def clean(text: str) -> str:
        return escape_invisible(output.redact(text))

    replace_page(path, render_page(result, clean))
