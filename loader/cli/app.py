"""The command group, and the global options that precede a command."""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click

from loader import __version__
from loader.cli.adopt import adopt
from loader.cli.audit import audit
from loader.cli.check import check, discover
from loader.cli.codegen import codegen
from loader.cli.compact import compact
from loader.cli.console import ConnectorLogHandler, Output, discard
from loader.cli.init import init
from loader.cli.preview import preview
from loader.cli.receipts import receipts
from loader.cli.reconcile import reconcile
from loader.cli.report import report
from loader.cli.run import run
from loader.cli.settings import Settings
from loader.cli.setup import schema, setup
from loader.cli.signals import unwind_on_signal
from loader.cli.state import state
from loader.cli.status import status
from loader.errors import LoaderError, SpecError
from loader.spec.entry_points import list_plugins, name_package
from loader.spec.redaction import redact_foreign

GROUP = "strandline.commands"
"""The entry-point group of plug-ins' click commands. A command is imported on first use."""


class _Commands(click.Group):
    """A group that suggests similar command names and prints errors without stack traces."""

    _signals: Sequence[int] = ()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_list_plugged()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        entry = _list_plugged().get(cmd_name)
        return None if entry is None else _load_command(entry)

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
            with unwind_on_signal() as self._signals:
                return super().main(*args, **extra)
        except OSError as error:  # raised, for example, while click prints `--help`
            discard(sys.stdout)
            message = f"error: standard output: it cannot be written to: {error.strerror}"
            click.echo(message, err=True)
            sys.exit(LoaderError.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = self._invoke_command(ctx)
        except (SystemExit, click.exceptions.Exit) as ended:
            if not (ended.code if isinstance(ended, SystemExit) else ended.exit_code):
                _exit_if_output_lost(ctx)
            raise
        _exit_if_output_lost(ctx)
        return result

    def _invoke_command(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            global_options = {name for option in self.params for name in option.opts}
            if ctx.parent is None and error.option_name in global_options:
                name, command = error.option_name, ctx.invoked_subcommand
                message = f"{error.message} Put it before the command: `loader {name} … {command}`."
                raise click.UsageError(message, error.ctx) from None
            command_options = error.ctx.command.params if error.ctx is not None else []
            can_select = any("--select" in option.opts for option in command_options)
            if can_select and error.option_name in ("--table", "--tables"):
                message = f"{error.message} To select tables, use --select."
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
            readable = _to_loader_error(error)
            settings.output.error(readable)
            ctx.exit(readable.exit_code)


def _list_plugged() -> dict[str, EntryPoint]:
    """Returns the plug-ins' commands. Raises ClickException if two commands have the same name."""
    try:
        return list_plugins(GROUP)
    except SpecError as error:
        raise click.ClickException(str(error)) from None


def _load_command(entry: EntryPoint) -> click.Command:
    """Imports a plug-in's command. If this fails, returns a command that reports the error."""
    try:
        command: click.Command = entry.load()
        if not isinstance(command, click.Command):
            raise TypeError("it is not a click command")
    except Exception as error:
        why = redact_foreign(f"{type(error).__name__}: {error}")

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
                remedy=f"Reinstall or uninstall {name_package(entry)}",
            )

        return refuse
    return command


def _exit_if_output_lost(ctx: click.Context) -> None:
    settings: Settings | None = ctx.obj
    if ctx.parent is None and settings is not None and settings.output.streams.code:
        error = settings.output.streams.error
        if error is not None:
            settings.output.error(error)
        ctx.exit(settings.output.streams.code)


def _to_loader_error(error: Exception) -> LoaderError:
    if isinstance(error, LoaderError):
        return error
    from loader.spark.error_translation import translate_error

    translated = translate_error(error, "")
    translated.__cause__ = error
    return translated


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
    help="Readable text, or one JSON object per line.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show errors only.")
@click.option(
    "--debug", is_flag=True, help="Show stack traces, Spark's log and the connectors' logs."
)
@click.pass_context
def main(ctx: click.Context, config: Path, form: str, quiet: bool, debug: bool) -> None:
    """Appends changes from databases and files to a lakehouse; stores a cursor for each table."""
    if not debug and not logging.root.handlers:
        # Without a handler, Python prints the stack traces that Py4J logs for broken connections.
        logging.root.addHandler(logging.NullHandler())
    output = Output(form, quiet, debug=debug)
    ctx.obj = Settings(config, output)
    ctx.with_resource(output.slow_steps.watch())
    if debug:
        ctx.with_resource(ConnectorLogHandler(output).attached())


for command in (
    run,
    check,
    status,
    discover,
    init,
    setup,
    codegen,
    reconcile,
    compact,
    state,
    receipts,
    schema,
    preview,
    report,
    audit,
    adopt,
):
    main.add_command(command)
