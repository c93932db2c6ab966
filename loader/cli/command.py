"""The command line: each command is a thin layer over the module that does the work."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click

from loader import __version__
from loader.cli.codegen import codegen
from loader.cli.compact import compact
from loader.cli.output import Output, Overheard
from loader.cli.reconcile import reconcile
from loader.cli.run import read_duration, run
from loader.cli.settings import Settings, open_pipeline, read_progress
from loader.cli.state import state
from loader.cli.stopping import unwinding
from loader.cli.streams import discard
from loader.errors import LoaderError, SpecError
from loader.package import page

GROUP = "strandline.commands"
"""The entry points of commands that plug-ins add: click commands, imported once they are used."""


class _Commands(click.Group):
    """A group that suggests "did you mean" and shows our errors without a stack trace."""

    _signals: Sequence[int] = ()

    def list_commands(self, ctx: click.Context) -> list[str]:
        plugged = {entry.name for entry in entry_points(group=GROUP)}
        return sorted({*super().list_commands(ctx), *plugged})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for entry in entry_points(group=GROUP):
            if entry.name == cmd_name:
                return _load_command(entry)
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            if near:
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None
            raise

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            with unwinding() as self._signals:
                return super().main(*args, **extra)
        except OSError as error:  # of `--help` and the like: commands write by their Output
            discard(sys.stdout)
            click.echo(f"error: standard output: it cannot be written: {error.strerror}", err=True)
            sys.exit(LoaderError.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = self._invoke_command(ctx)
        except (SystemExit, click.exceptions.Exit) as ended:
            if not (ended.code if isinstance(ended, SystemExit) else ended.exit_code):
                _end_with_lost_output(ctx)
            raise
        _end_with_lost_output(ctx)
        return result

    def _invoke_command(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            own = {name for option in self.params for name in option.opts}
            if ctx.parent is None and error.option_name in own:
                name, command = error.option_name, ctx.invoked_subcommand
                message = (
                    f"{error.message} It stands before the command: `loader {name} … {command}`."
                )
                raise click.UsageError(message, error.ctx) from None
            raise
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if ctx.parent is not None:
                raise
            if self._signals:
                raise KeyboardInterrupt from None
            settings: Settings | None = ctx.obj
            if settings is None:
                raise
            found = _readable(error)
            settings.output.error(found)
            ctx.exit(found.exit_code)


def _load_command(entry: EntryPoint) -> click.Command:
    """Imports a plug-in's command; one that cannot be imported fails only if it is called."""
    try:
        found: click.Command = entry.load()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"

        @click.command(
            entry.name,
            context_settings={"ignore_unknown_options": True, "help_option_names": []},
            short_help="Cannot be imported.",
        )
        @click.argument("_", nargs=-1)
        def refuse(**_: object) -> None:
            raise SpecError(
                f"the command {entry.name} cannot be imported from {entry.value}: {why}",
                where=f"loader {entry.name}",
                remedy=f"Install {_package(entry)} again, or remove it",
            )

        return refuse
    return found


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "its package"


def _end_with_lost_output(ctx: click.Context) -> None:
    """Ends a command that did its work, but could not write what it found."""
    settings: Settings | None = ctx.obj
    if ctx.parent is None and settings is not None and settings.output.streams.code:
        error = settings.output.streams.error
        if error is not None:
            settings.output.error(error)
        ctx.exit(settings.output.streams.code)


def _readable(error: Exception) -> LoaderError:
    """Returns the error as people should read it; its cause is kept for `--debug`."""
    if isinstance(error, LoaderError):
        return error
    from loader.spark.error_translation import clear

    found = clear(error, "")
    found.__cause__ = error
    return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="loader")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    default="loader.yml",
    show_default=True,
    help="The spec file.",
)
@click.option(
    "--log-format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Text for people, or one JSON object per line.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show errors only.")
@click.option(
    "--debug", is_flag=True, help="Show stack traces, Spark's own log, and what connectors say."
)
@click.pass_context
def main(ctx: click.Context, config: Path, form: str, quiet: bool, debug: bool) -> None:
    """Appends changes from databases and files to a lakehouse, and remembers how far it got."""
    if not debug and not logging.root.handlers:
        # Py4J reports a broken connection to the root logger, with a stack trace.
        logging.root.addHandler(logging.NullHandler())
    output = Output(form, quiet, debug=debug)
    ctx.obj = Settings(config, form, quiet, debug, output)
    ctx.with_resource(output.slow_steps.watch())
    if debug:
        ctx.with_resource(Overheard(output).listening())


@main.command(short_help="Writes a starter project.")
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
    from loader.cli.database_spec import init_from_database

    init_from_database(settings, url)


@main.command(short_help="Prepares Spark, Java and JDBC drivers.")
@click.argument("drivers", nargs=-1)
@click.option(
    "--archive/--no-archive",
    default=None,
    help="Wait for the class archive (200 MB), which halves Spark's start, or record none. By "
    "default it is recorded in the background.",
)
@click.pass_obj
def setup(settings: Settings, drivers: tuple[str, ...], archive: bool | None) -> None:
    """Prepares Spark: fetches Iceberg and JDBC DRIVERS, and shows which Java is used.

    DRIVERS are postgresql, mariadb, mysql, sqlite, derby (which comes with Spark), aws (S3FileIO
    and Glue), or paths of jars. `cdc` among them shows what databases need before their logs can
    be read.
    """
    from loader.cli.cdc_setup import NAME, prepare_log
    from loader.spark.setup import prepare

    def report(line: str) -> None:
        settings.output.say(line)
        settings.output.event("setup", "", text=line)

    prepare([name for name in drivers if name != NAME], Path.cwd(), report)
    if NAME in drivers:
        prepare_log(settings, report)
    if archive is not False:
        from loader.spark.class_archive import prepare_archive
        from loader.spark.java import choose_java
        from loader.spark.spark_version import find_spark

        home = find_spark()
        prepare_archive(home, choose_java(home.line), bool(archive), report)


@main.command(short_help="Checks spec, connections and cursors.")
@click.option("-s", "--select", multiple=True, help="source.table or a wildcard; repeatable.")
@click.pass_obj
def check(settings: Settings, select: tuple[str, ...]) -> None:
    """Checks the spec, the lake, the connections and the cursors, and says how to fix them."""
    from loader.sync.check import check_destinations, check_tables

    with open_pipeline(settings) as pipeline:
        reported: set[str] = set()
        rows = []
        for problem in check_destinations(pipeline):
            settings.output.error(problem)
            reported.add(str(problem))
        for part in pipeline.plan_tables(select):
            for found in (*part.problems, *check_tables(pipeline, part)):
                if isinstance(found, LoaderError):
                    if str(found) not in reported:  # tables may share an error
                        settings.output.error(found)
                    reported.add(str(found))
                    continue
                plan, notes = found
                cursor = f"{plan.cursor.name} ({plan.cursor.type.value})" if plan.cursor else ""
                rows.append((plan.name, plan.mode, cursor, plan.key, "; ".join(notes)))
        for key in sorted(settings.profile.secrets if settings.profile else ()):
            settings.output.warning(
                f"{key}: the profile holds a secret, which dbt without the loader's plugin puts on "
                f"Java's command line. Name a variable instead: {page('security', 'Secrets')}"
            )
        settings.output.table("check", ("table", "mode", "cursor", "primary_key", "notes"), rows)
        if reported:
            sys.exit(1)
        settings.output.say("All tables can be synced.")


@main.command(short_help="Lists tables, keys and possible cursors.")
@click.argument("sources", nargs=-1)
@click.option("--columns", is_flag=True, help="List columns and their types instead.")
@click.pass_obj
def discover(settings: Settings, sources: tuple[str, ...], columns: bool) -> None:
    """Lists the tables, keys and cursor candidates of SOURCES (default: all)."""
    from loader.sync.check import discover_tables

    spec = settings.spec()
    for name in sources:
        spec.source(name)
    with open_pipeline(settings, spec) as pipeline:
        with pipeline.reuse_connections():
            found, errors, denials = discover_tables(pipeline, sources)
        for error in errors:
            settings.output.error(error)
        for denial in denials:
            settings.output.warning(str(denial))
        head = ("source", "table", "kind", "primary_key", "cursor_candidates")
        if columns:
            listed = [
                (source, t.ref.name, c.name, c.dataType.simpleString(), c.name in t.primary_key)
                for source, t, _ in found
                for c in t.schema.fields
            ]
            settings.output.table("column", ("source", "table", "column", "type", "key"), listed)
        else:
            settings.output.table(
                "table", head, [(s, t.ref.name, t.ref.kind, t.primary_key, c) for s, t, c in found]
            )
        if errors:
            sys.exit(1)


@main.command(short_help="Shows cursors, ages and last errors.")
@click.option("--fail-if-failing", is_flag=True, help="Exit with 1 if a last attempt failed.")
@click.option(
    "--fail-if-stale",
    metavar="AGE",
    callback=read_duration,
    help="Exit with 1 if a table's last success is longer ago: '30 min', '2h'.",
)
@click.pass_obj
def status(settings: Settings, fail_if_failing: bool, fail_if_stale: float | None) -> None:
    """Shows each table's cursor, last batch, rows appended so far, age and last error."""
    from loader.cli import report

    rows = read_progress(settings, report.list_last_attempts)
    wrong = report.status(settings.output, rows, fail_if_failing, fail_if_stale)
    sys.exit(1 if wrong else 0)


for command in (run, codegen, state, compact, reconcile):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name=os.path.basename(sys.argv[0]))
