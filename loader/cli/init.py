"""``loader init``: writes a starter project; ``--from URL`` adds all tables in a database."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from loader.cli.database_url import DatabaseUrl
from loader.cli.settings import Settings, open_pipeline
from loader.cli.setup import render_schema
from loader.errors import SpecError
from loader.names import is_wildcard
from loader.package import package_folder, page
from loader.spec.redaction import excerpt

if TYPE_CHECKING:
    from loader.sources.interface import Source, SourceTable

SCHEMA_COMMENT = "# yaml-language-server: $schema=.strandline/loader.schema.json"
_UNQUOTED = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


@click.command(short_help="Writes a starter project.")
@click.option(
    "--from",
    "url",
    metavar="URL",
    help="Read a database's schema, and write a spec for all its tables: "
    "postgresql://user@host/shop, mysql://…, mariadb://… or jdbc:…. PGHOST, PGUSER and so on "
    "supply missing parts.",
)
@click.option(
    "--target",
    type=click.Choice(["embedded", "cluster"]),
    default="embedded",
    show_default=True,
    help="The profile's default target: Spark in this process, or a Spark cluster.",
)
@click.pass_obj
def init(settings: Settings, url: str | None, target: str) -> None:
    """Writes a starter project: loader.yml, profiles, and a dbt project that uses the package."""
    from loader.spark import setup

    if url is None:
        schema = render_schema(settings.output.warning)
        setup.create(Path.cwd(), settings.output.say, schema=schema, target=target)
        return
    init_from_database(settings, url, target)


def init_from_database(settings: Settings, text: str, target: str = "embedded") -> None:
    """Reads a database's schema, and writes a project whose spec lists its tables.

    If the database cannot be read, nothing is written.
    """
    from loader.spark import setup

    url, say = DatabaseUrl.parse(text, os.environ), settings.output.say
    setup.refuse_existing_spec(Path.cwd())
    is_new_password = os.environ.get(url.variable) != url.password
    if url.password:
        os.environ[url.variable] = url.password  # the spec reads the variable
    with TemporaryDirectory(prefix="strandline-init-") as folder:
        spec = Path(folder) / "loader.yml"
        profiles_dir = (
            f"    profiles_dir: {json.dumps(str(package_folder() / 'profiles'))}\n"
            "    target: embedded\n"  # only reads the schema, which needs no cluster
        )
        spec.write_text(render_spec(url) + profiles_dir, encoding="utf-8")
        with open_pipeline(replace(settings, config=spec)) as pipeline:
            [(_, source)] = pipeline.sources
            with pipeline.reuse_connections(keep=4):
                tables, options = describe_tables(source)
    if not options:
        raise SpecError(
            "the account may not read any table",
            where="--from",
            remedy="Grant the account usage on the schema and select on its tables",
        )
    schema = render_schema(settings.output.warning)
    setup.create(Path.cwd(), say, render_spec(url, tables, options), schema, target)
    count = "1 table" if len(options) == 1 else f"{len(options)} tables, each"
    say(f"loader.yml lists {count} with its cursor and a comment that explains the choice.")
    if is_new_password and url.password:
        say(f"The password was not written: loader.yml reads it from the variable {url.variable}.")
    steps = "loader check, loader run, loader codegen, dbt build"
    if target == setup.CLUSTER:
        steps = f"the variables of the cluster ({page('cluster', 'Settings')}), {steps}"
    say(f"Next: {steps}")


def render_spec(url: DatabaseUrl, tables: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """Returns a spec as YAML.

    Args:
        tables: the lines of the `tables` list; empty means all tables.
        options: the lines of `table_options`.
    """
    listed = ["  tables:", *(f"    {line}" for line in tables)] if tables else ['  tables: ["*"]']
    password = f'    password: "${{{url.variable}}}"'
    lines = [
        SCHEMA_COMMENT,
        "# Written by `loader init --from`. Check it with `loader check`. Rows that are deleted in",
        "# the source stay in the lake until `loader reconcile --repair` marks them as deleted, or",
        "# the runs do so: set `reconcile: {every: 1 day}` in table_options.",
        "",
        "kind: source",
        "spec:",
        f"  name: {url.source_name}",
        "  path: jdbc",
        *listed,
        "  destinations: [lake]",
        "  spec:",
        f"    url: {_text(url.jdbc)}",
        *([f"    user: {_text(url.user)}"] if url.user else []),
        password if url.password else f"    # {password.strip()}",
        *(["    table_options:", *(f"      {line}" for line in options)] if options else []),
        "---",
        SCHEMA_COMMENT,
        "kind: destination",
        "spec:",
        "  name: lake",
        "  path: spark",
        "  write_mode: append",
        "  spec:",
        "    profile: strandline # in profiles.yml: the loader and dbt share one Spark session",
        "    schema: raw",
    ]
    return "\n".join(lines) + "\n"


def describe_tables(source: Source) -> tuple[list[str], list[str]]:
    """Returns the lines of a spec's `tables` and `table_options`, with comments on the choices."""
    from contextlib import nullcontext

    from loader.sync.table_selection import describe_tables

    tables, options = [], []
    refs = source.tables()
    stored = [ref for ref in refs if ref.kind == "table"]
    for ref, described in zip(
        stored, describe_tables(source, stored, None, lambda _: nullcontext()), strict=True
    ):
        if not _can_be_written(ref.name):
            tables.append(f"# {ref.name!a}: create a view with a simpler name, and load that")
        elif isinstance(described, Exception):
            why = getattr(described, "what", "") or type(described).__name__
            tables.append(f"# - {_text(ref.name)} # {_comment(why)}")
        else:
            tables.append(f"- {_text(ref.name)}")
            cursor, why = _choose_cursor(source, described)
            primary_key = described.primary_key
            key = f"key: {', '.join(primary_key)}" if primary_key else "no primary key"
            options.append(f"{_text(ref.name)}: {{{cursor}}} # {_comment(f'{why}; {key}')}")
    views = [ref.name for ref in refs if ref.kind != "table"]
    if views:
        shown = ", ".join(views[:20]) + (", …" if len(views) > 20 else "")
        tables.append(f"# views, for which you must choose a cursor and a key: {_comment(shown)}")
    return tables, options


def _choose_cursor(source: Source, table: SourceTable) -> tuple[str, str]:
    from loader.rows.cursor import CursorType
    from loader.sources.candidates import UPDATE_COLUMN, suggest_cursors

    names = suggest_cursors(table)
    times = [n for n in names if (t := CursorType.of(table.schema[n].dataType)) and t.is_time]
    updated = [name for name in times if UPDATE_COLUMN.search(name) and _can_be_written(name)]
    others = f"; columns with dates and times: {', '.join(times[:3])}" if times else ""
    if updated:
        index = "" if updated[0] in table.indexed else ", without an index"
        return f"cursor_field: {_text(updated[0])}", f"its name suggests an update time{index}"
    if source.any_cursor and table.ref.native.stored:
        return f"cursor_field: {source.any_cursor}", f"no column with an update time{others}"
    return "sync_mode: full_refresh", f"no column with an update time{others}"


def _can_be_written(name: str) -> bool:
    """Returns whether a name is printable, and has no variable, reference or wildcard to expand."""
    return name.isprintable() and "$" not in name and "@@" not in name and not is_wildcard(name)


def _text(text: str) -> str:
    return (
        text
        if _UNQUOTED.fullmatch(text) and text.lower() not in _YAML_WORDS
        else json.dumps(text, ensure_ascii=False)
    )


_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def _comment(text: str) -> str:
    return excerpt("".join(c if c.isprintable() else "?" for c in text), 300)
