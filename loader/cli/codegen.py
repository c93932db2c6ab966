"""``loader codegen``: the dbt side of what the loader syncs."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loader.error_report import did_you_mean
from loader.errors import LoaderError, SpecError

if TYPE_CHECKING:
    from loader.cli.console import Output
    from loader.cli.settings import Settings
    from loader.codegen.files import File
    from loader.codegen.table import Table


@click.command(short_help="Writes dbt sources, tests and models.")
@click.option("-s", "--select", multiple=True, help="source.table or a wildcard; repeatable.")
@click.option(
    "--history",
    multiple=True,
    metavar="PATTERN",
    help="Also write a history model for these tables; repeatable. Later runs keep it.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to; default: the one with a `codegen.json`, else `strandline` in "
    "the models of the dbt project next to the spec.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, write nothing.")
@click.pass_obj
def codegen(
    settings: Settings,
    select: tuple[str, ...],
    history: tuple[str, ...],
    output: Path | None,
    dry_run: bool,
) -> None:
    """Writes dbt sources with tests, and a snapshot model for each table with a key.

    Later runs add what is new and update what nobody has edited: your edits stay.
    """
    from loader.cli.settings import open_pipeline_with_served
    from loader.codegen.dbt_project import DbtProject, read, write_all
    from loader.codegen.files import FILE, Manifest
    from loader.codegen.generate import MODELS, SOURCES, Folder, generate
    from loader.codegen.yaml_text import YamlText

    spec = settings.spec(needs_source=False)
    project = DbtProject.find(spec.folder, output)
    memory_file = project.output / FILE
    remembered = read(memory_file)
    memory = Manifest.from_json(remembered, str(memory_file))
    for name in (SOURCES, MODELS):  # reports broken files before Spark starts, which takes seconds
        YamlText(read(project.output / name) or "", str(project.output / name))
    with open_pipeline_with_served(settings, spec) as pipeline:
        from loader.codegen.table import NotSynced, describe_tables

        found = list(describe_tables(pipeline, select))
        sources = {source.name for source in pipeline.spec.sources}
        unread = pipeline.unreadable
    left_out = [one.name for one in found if isinstance(one, NotSynced)]
    tables = [one for one in found if not isinstance(one, LoaderError | NotSynced)]
    errors = [one for one in found if isinstance(one, LoaderError)]
    if left_out and not tables and not errors:
        raise SpecError(
            "no table has been synced yet",
            where="loader codegen",
            remedy="Run `loader run` first: models are built on what it loads",
        )
    if (
        not errors and not left_out
    ):  # otherwise a pattern may be meant for a table that could not be read
        _all_match(history, tables)
    folder = Folder(
        lambda name: read(project.output / name),
        lambda name: project.relative_path(project.output / name),
        project.elsewhere(),
        project.raw_schema,
    )
    complete = sources if not (select or errors or unread or left_out) else set()
    made = generate(tables, folder, memory, history, complete)
    texts = {
        project.output / file.name: file.text
        for file in made.files
        if file.text is not None and file.text != file.before
    }
    if made.memory != memory:
        texts[memory_file] = made.memory.to_json()
    if dry_run:
        _show_changes(settings.output, made.files, folder.shown)
    else:
        write_all(texts)
    rows = [(folder.shown(file.name), file.what) for file in made.files]
    if memory_file in texts:
        rows.append((folder.shown(FILE), "written" if remembered is None else "updated"))
    settings.output.table("file", ("file", "what"), rows)
    for about, note in made.notes:
        settings.output.warning(f"{about}: {note}", about=about)
    for name in left_out:
        settings.output.warning(
            f"{name}: left out, as it has not been synced yet: `loader run`, and codegen again",
            about=name,
        )
    for error in errors:
        settings.output.error(error)
    if dry_run:
        settings.output.say("Nothing was written: this was a dry run.")
    if errors:
        sys.exit(1)


def _all_match(history: Sequence[str], tables: Sequence[Table]) -> None:
    """Refuses a pattern that matches no table, as `--select` does."""
    from loader.codegen.generate import matches

    known = [table.selectable for table in tables]
    found = {pattern for table in tables for pattern in matches(table, history)}
    for pattern in history:
        if pattern not in found:
            raise SpecError(
                f"no selected table is called {pattern!r}",
                where="--history",
                remedy=f"{did_you_mean(pattern, known)} Choose from: "
                f"{', '.join(sorted(known)[:20])}".strip(),
            )


def _show_changes(output: Output, files: Sequence[File], shown: Callable[[str], str]) -> None:
    """Shows the files' changes as unified diffs."""
    for file in files:
        if file.text is None or file.text == file.before:
            continue
        before = [] if file.before is None else file.before.splitlines()
        name = shown(file.name)
        lines = difflib.unified_diff(before, file.text.splitlines(), name, name, lineterm="")
        if output.json:
            output.event("diff", "", file=name, diff="\n".join(lines))
        else:
            output.say("\n".join([*lines, ""]))
