"""``loader codegen``: writes dbt sources, tests and models for the synced tables."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loader.cli.console import Output
from loader.cli.options import select_option
from loader.cli.settings import Settings, open_pipeline_with_pushed_tables
from loader.errors import LoaderError, SpecError, did_you_mean

if TYPE_CHECKING:
    from loader.codegen.files import File
    from loader.codegen.table import Table


@click.command(short_help="Writes dbt sources, tests and models.")
@select_option
@click.option(
    "--history",
    multiple=True,
    metavar="PATTERN",
    help="Also write a history model for these tables; repeatable. Later runs keep the model.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to; default: the folder with `codegen.json`, otherwise `strandline` "
    "in the models of the dbt project next to the spec.",
)
@click.option("--dry-run", is_flag=True, help="Show the changes, write nothing.")
@click.pass_obj
def codegen(
    settings: Settings,
    select: tuple[str, ...],
    history: tuple[str, ...],
    output: Path | None,
    dry_run: bool,
) -> None:
    """Writes dbt sources and, for each table with a key, a model of its newest rows, with tests.

    Later runs add new tables and columns and update unedited entries. Your edits are preserved.
    """
    from loader.codegen.dbt_project import DbtProject, read, write_all
    from loader.codegen.files import FILE, Manifest
    from loader.codegen.generate import MODELS, SOURCES, Folder, generate
    from loader.codegen.yaml_text import YamlText

    spec = settings.spec(needs_source=False)
    project = DbtProject.find(spec.folder, output)
    manifest_file = project.output / FILE
    manifest_text = read(manifest_file)
    manifest = Manifest.from_json(manifest_text, str(manifest_file))
    for name in (SOURCES, MODELS):  # reports invalid files before Spark starts
        YamlText(read(project.output / name) or "", str(project.output / name))
    with open_pipeline_with_pushed_tables(settings, spec) as pipeline:
        from loader.codegen.table import NotSynced, describe_tables

        results = list(describe_tables(pipeline, select))
        sources = {source.name for source in pipeline.spec.sources}
        unread = pipeline.unreadable
    not_synced = [result.name for result in results if isinstance(result, NotSynced)]
    tables = [r for r in results if not isinstance(r, LoaderError | NotSynced)]
    errors = [result for result in results if isinstance(result, LoaderError)]
    if not_synced and not tables and not errors:
        raise SpecError(
            "no table has been synced yet",
            where="loader codegen",
            remedy="Run `loader run` first: models read the tables that it loads",
        )
    if not errors and not not_synced:  # a pattern may match a table that could not be read
        _require_matches(history, tables)
    folder = Folder(
        lambda name: read(project.output / name),
        lambda name: project.relative_path(project.output / name),
        project.elsewhere(),
        project.raw_schema,
    )
    complete = sources if not (select or errors or unread or not_synced) else set()
    generated = generate(tables, folder, manifest, history, complete)
    texts = {
        project.output / file.name: file.text
        for file in generated.files
        if file.text is not None and file.text != file.before
    }
    if generated.manifest != manifest:
        texts[manifest_file] = generated.manifest.to_json()
    if dry_run:
        _print_diffs(settings.output, generated.files, folder.relative_path)
    else:
        write_all(texts)
    rows = [(folder.relative_path(file.name), file.status) for file in generated.files]
    if manifest_file in texts:
        status = "written" if manifest_text is None else "updated"
        rows.append((folder.relative_path(FILE), status))
    settings.output.table("file", ("file", "what"), rows)
    for about, note in generated.notes:
        settings.output.warning(f"{about}: {note}", about=about)
    for name in not_synced:
        settings.output.warning(
            f"{name}: skipped, because it has not been synced yet: run `loader run`, then codegen",
            about=name,
        )
    for error in errors:
        settings.output.error(error)
    if dry_run:
        settings.output.say("Nothing was written: this was a dry run.")
    if errors:
        sys.exit(1)


def _require_matches(history: Sequence[str], tables: Sequence[Table]) -> None:
    """Refuses a pattern that matches no table, as `--select` does."""
    from loader.codegen.generate import match_patterns

    known = [table.selectable for table in tables]
    matched = {pattern for table in tables for pattern in match_patterns(table, history)}
    for pattern in history:
        if pattern not in matched:
            raise SpecError(
                f"no selected table matches {pattern!r}",
                where="--history",
                remedy=f"{did_you_mean(pattern, known)} Choose from: "
                f"{', '.join(sorted(known)[:20])}".strip(),
            )


def _print_diffs(
    output: Output, files: Sequence[File], relative_path: Callable[[str], str]
) -> None:
    for file in files:
        if file.text is None or file.text == file.before:
            continue
        before = [] if file.before is None else file.before.splitlines()
        name = relative_path(file.name)
        lines = difflib.unified_diff(before, file.text.splitlines(), name, name, lineterm="")
        if output.json:
            output.event("diff", "", file=name, diff="\n".join(lines))
        else:
            output.say("\n".join([*lines, ""]))
