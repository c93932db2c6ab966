"""``loader init``: a starter project; with ``--from URL``, with a spec for all tables there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import click

from loader.errors import SpecError
from loader.names import is_wildcard
from loader.spec.redaction import excerpt, is_secret_key

if TYPE_CHECKING:
    from loader.cli.settings import Settings
    from loader.sources.interface import Source, SourceTable

_FORMS = "postgresql://user@host:5432/shop, mysql://… or mariadb://…"
_KINDS = {"postgresql": "PG", "postgres": "PG", "mysql": "MYSQL", "mariadb": "MYSQL"}
_PASSWORDS = {"PG": "PGPASSWORD", "MYSQL": "MYSQL_PWD"}
# The host, perhaps with a port, and the database: what is written must hold no credentials.
_PLACE = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?", re.ASCII)
_DATABASE = re.compile(r"/[\w.$ -]*")
# A column that applications or triggers set whenever they change a row, by its name.
_CHANGED = re.compile(r"updat|modif|chang|mtime|(^|_)rowversion$", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


@click.command(short_help="Writes a starter project.")
@click.option(
    "--from",
    "url",
    metavar="URL",
    help="Look at a database, and write a spec for all its tables: postgresql://user@host/shop, "
    "mysql://…, mariadb://… or jdbc:…. PGHOST, PGUSER and so on fill in what is missing.",
)
@click.pass_obj
def init(settings: Settings, url: str | None) -> None:
    """Writes a starter project: loader.yml, profiles, a dbt project wired to the package."""
    from loader.spark import setup

    if url is None:
        setup.create(Path.cwd(), settings.output.say)
        return
    init_from_database(settings, url)


@dataclass(frozen=True)
class DatabaseUrl:
    """The location of a database, as in a spec.

    Attributes:
        jdbc: its JDBC URL, without credentials.
        user: the account; empty if nothing names one.
        password: as it was given; it is never written.
        variable: the environment variable that the spec takes the password from.

    Example:
        >>> DatabaseUrl.parse("postgresql://ann:pw@db/shop", {}).jdbc
        'jdbc:postgresql://db/shop'
    """

    jdbc: str
    user: str
    password: str
    variable: str

    @classmethod
    def parse(cls, url: str, env: Mapping[str, str]) -> DatabaseUrl:
        """Parses a URL of PostgreSQL, MariaDB or MySQL, with or without `jdbc:` before it.

        Args:
            env: for PostgreSQL, its variables (PGHOST, PGUSER …) complete the URL.

        Raises:
            SpecError: if it is none, or has credentials in other places than a user and a password
                have. It never shows the URL.
        """
        wrong = SpecError(
            "this is no URL of a database that the loader can look at",
            where="--from",
            remedy=f"Write it as {_FORMS}, characters such as / @ # in a password as %2F %40 %23. "
            "For other databases, `loader init` writes a sample to edit",
        )
        try:
            parts = urlsplit(re.sub("^jdbc:", "", url, flags=re.IGNORECASE))
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise wrong from None
        kind = _KINDS.get(parts.scheme.lower())
        if kind is None:
            raise wrong
        given = env if kind == "PG" else {}
        account, _, host = parts.netloc.rpartition("@")
        name, _, secret = account.partition(":")
        credentials = {key.lower(): options.pop(key) for key in list(options) if _is_account(key)}
        user = unquote(name) or credentials.get("user") or given.get("PGUSER", "")
        password = unquote(secret) or credentials.get("password") or env.get(_PASSWORDS[kind], "")
        if not host:
            host = given.get("PGHOST", "localhost")
            host += f":{given['PGPORT']}" if "PGPORT" in given else ""
        path = parts.path if len(parts.path) > 1 else f"/{given.get('PGDATABASE', user)}"
        safe = _PLACE.fullmatch(host) and _DATABASE.fullmatch(path) and not parts.fragment
        if not safe or "$" in user or any(is_secret_key(key) for key in options):
            raise wrong
        query = f"?{urlencode(options)}" if options else ""
        scheme = "postgresql" if kind == "PG" else parts.scheme.lower()
        return cls(f"jdbc:{scheme}://{host}{path}{query}", user, password, _PASSWORDS[kind])

    @property
    def source_name(self) -> str:
        """A name for the source: the database's, as far as a name may have its characters."""
        name = re.split(r"[?;]", self.jdbc)[0].rstrip("/").rpartition("/")[2]
        return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "database"


def _is_account(key: str) -> bool:
    return key.lower() in ("user", "password")


def init_from_database(settings: Settings, text: str) -> None:
    """Looks at a database, and writes a project whose spec has its tables.

    If the database cannot be read, nothing is written.

    Raises:
        SpecError: if the URL is none, or there is a spec already.
        TableError: if the database cannot be read.
    """
    from loader.cli.settings import open_pipeline
    from loader.package import package_folder
    from loader.spark import setup

    url, say = DatabaseUrl.parse(text, os.environ), settings.output.say
    setup.refuse_existing_spec(Path.cwd())
    given = os.environ.get(url.variable) != url.password
    if url.password:
        os.environ[url.variable] = url.password  # the spec names the variable
    with TemporaryDirectory(prefix="strandline-init-") as folder:
        spec = Path(folder) / "loader.yml"
        own = f"    profiles_dir: {json.dumps(str(package_folder() / 'profiles'))}\n"
        spec.write_text(render_spec(url) + own, encoding="utf-8")
        with open_pipeline(replace(settings, config=spec)) as pipeline:
            [(_, source)] = pipeline.sources
            with pipeline.reuse_connections(keep=4):
                tables, options = describe_tables(source)
    if not options:
        raise SpecError(
            "its account may read no table",
            where="--from",
            remedy="Grant it usage on the schema and select on its tables",
        )
    setup.create(Path.cwd(), say, render_spec(url, tables, options))
    count = "1 table" if len(options) == 1 else f"{len(options)} tables, each"
    say(f"loader.yml has {count} with its cursor and the reason for it.")
    if given and url.password:
        say(f"No password was written: loader.yml takes it from the variable {url.variable}.")
    say("Next: loader check, loader run, loader codegen, dbt build")


def render_spec(url: DatabaseUrl, tables: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """Returns the text of a spec.

    Args:
        tables: lines of the list of tables; empty is all.
        options: lines of `table_options`.
    """
    listed = ["  tables:", *(f"    {line}" for line in tables)] if tables else ['  tables: ["*"]']
    password = f'    password: "${{{url.variable}}}"'
    lines = [
        "# Written by `loader init --from`. Check it with `loader check`. Rows that the source",
        "# deletes stay in the lake until `loader reconcile --repair` compares the two.",
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
        "kind: destination",
        "spec:",
        "  name: lake",
        "  path: spark",
        "  write_mode: append",
        "  spec:",
        "    profile: strandline # in profiles.yml: the loader and dbt share one Spark",
        "    schema: raw",
    ]
    return "\n".join(lines) + "\n"


def describe_tables(source: Source) -> tuple[list[str], list[str]]:
    """Returns the lines of a spec's `tables` and `table_options`, with a reason for each choice."""
    from contextlib import nullcontext

    from loader.sync.table_selection import describe_tables

    tables, options = [], []
    refs = source.tables()
    stored = [ref for ref in refs if ref.kind == "table"]
    for ref, found in zip(
        stored, describe_tables(source, stored, None, lambda _: nullcontext()), strict=True
    ):
        if not _can_be_written(ref.name):
            tables.append(f"# {ref.name!a}: read it through a view with a plainer name")
        elif isinstance(found, Exception):
            why = getattr(found, "what", "") or type(found).__name__
            tables.append(f"# - {_text(ref.name)} # {_comment(why)}")
        else:
            tables.append(f"- {_text(ref.name)}")
            chosen, why = _choose_cursor(source, found)
            key = f"key: {', '.join(found.primary_key)}" if found.primary_key else "no primary key"
            options.append(f"{_text(ref.name)}: {{{chosen}}} # {_comment(f'{why}; {key}')}")
    views = [ref.name for ref in refs if ref.kind != "table"]
    if views:
        shown = ", ".join(views[:20]) + (", …" if len(views) > 20 else "")
        tables.append(f"# views, which need a cursor and a key of yours: {_comment(shown)}")
    return tables, options


def _choose_cursor(source: Source, table: SourceTable) -> tuple[str, str]:
    """Returns a table's options, and why."""
    from loader.rows.cursor import CursorType
    from loader.sources.candidates import suggest_cursors

    found = suggest_cursors(table)
    times = [n for n in found if (t := CursorType.of(table.schema[n].dataType)) and t.is_time]
    named = [name for name in times if _CHANGED.search(name) and _can_be_written(name)]
    others = f"; dates and times seen: {', '.join(times[:3])}" if times else ""
    if named:
        index = "" if named[0] in table.indexed else ", without an index"
        return f"cursor_field: {_text(named[0])}", f"named like a time of update{index}"
    if source.any_cursor and table.ref.native.stored:
        return f"cursor_field: {source.any_cursor}", f"no time of update found{others}"
    return "sync_mode: full_refresh", f"no time of update found{others}"


def _can_be_written(name: str) -> bool:
    """Whether a spec takes a name for itself: no variable, no reference, no wildcard."""
    return name.isprintable() and "$" not in name and "@@" not in name and not is_wildcard(name)


def _text(text: str) -> str:
    return (
        text
        if _PLAIN.fullmatch(text) and text.lower() not in _YAML
        else json.dumps(text, ensure_ascii=False)
    )


_YAML = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def _comment(text: str) -> str:
    return excerpt("".join(c if c.isprintable() else "?" for c in text), 300)
