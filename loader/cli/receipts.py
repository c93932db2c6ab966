"""``loader receipts``: verifies and exports the signed receipts of batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loader.cli.settings import Settings, open_pipeline_with_pushed_tables
from loader.errors import LoaderError, SpecError, TableError
from loader.lake.receipt import (
    Finding,
    Receipt,
    explain_invalid_signature,
    parse_receipt,
    verify_chain,
)
from loader.spark.named_steps import step
from loader.spec.signing_keys import PUBLISH, compute_key_id, parse_public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from loader.lake.lake import Lake

SUFFIX = ".intoto.jsonl"
"""The suffix of exported files, by in-toto's convention."""
_REMEDY = (
    "Compare the table with its source, and its receipts with an exported copy; docs/receipts.md "
    "lists possible causes"
)


@click.group(short_help="Verifies or exports the receipts of batches.")
def receipts() -> None:
    """Verifies and exports receipts: signed statements of what each batch contains."""


@receipts.command(short_help="Verifies receipts and the rows of their batches.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--key",
    "key_files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a trusted public key; repeatable.",
)
@click.option("--data", is_flag=True, help="With FILES: also read the lake.")
@click.pass_obj
def verify(
    settings: Settings, files: tuple[Path, ...], key_files: tuple[Path, ...], data: bool
) -> None:
    """Verifies the receipts' signatures and chains, and compares the lake's rows with the receipts.

    With FILES (exported files, or folders of them), only the files are read: neither Spark nor the
    lake is needed. Exits with 1 if there is a problem.
    """
    keys = dict(map(_read_public_key, key_files))
    by_table: dict[str, list[Receipt]] = {}
    findings: list[Finding] = []
    # Several exports may contain the same receipt.
    for receipt in {receipt.envelope: receipt for receipt in _read_files(files)}.values():
        by_table.setdefault(receipt.table, []).append(receipt)
    checked: set[str] = set()
    if data or not files:
        findings += _check_lakes(settings, by_table, keys, checked)
        for table in sorted(set(by_table) - checked):
            findings.append(Finding(table, None, "no lake of the spec contains this raw table"))
    for chain in by_table.values():
        findings += verify_chain(chain, keys)
    _report(settings, by_table, findings, checked)
    if any(finding.is_problem for finding in findings):
        sys.exit(LoaderError.exit_code)


@receipts.command(short_help="Writes receipts to files.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.pass_obj
def export(settings: Settings, folder: Path) -> None:
    """Writes the receipts of each raw table to a file in FOLDER, one receipt per line.

    Existing files are only appended to. A file is not changed if receipts in it are missing from
    the lake or differ there.
    """
    from loader.maintenance.receipt_check import read_receipts

    rows = []
    is_failed = False
    folder.mkdir(parents=True, exist_ok=True)
    for lake in _open_lakes(settings):
        stored = read_receipts(lake).receipts
        exported = {path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}")}
        known = {table for table in exported if table.startswith(f"{lake.schema}.")}
        for table in sorted({*stored, *known}):
            path = folder / f"{table}{SUFFIX}"
            lines = [f"{receipt.envelope}\n" for receipt in stored.get(table, ())]
            existing = path.read_text("utf-8", "replace").splitlines(True) if path.exists() else []
            if lines[: len(existing)] != existing:
                error = TableError(
                    f"receipts in {path} are missing from the lake or differ from it",
                    where=f"table {table}",
                    remedy=f"Keep the file, and run `loader receipts verify --data {path}`",
                )
                settings.output.error(error)
                is_failed = True
                continue
            if len(lines) > len(existing):
                temporary = path.with_name(f".{path.name}.tmp")
                temporary.write_text("".join(lines), "utf-8")
                os.replace(temporary, path)
            rows.append((table, len(lines), len(lines) - len(existing), str(path)))
    settings.output.table("exported", ("table", "receipts", "added", "file"), rows)
    if is_failed:
        sys.exit(LoaderError.exit_code)


def _read_public_key(path: Path) -> tuple[str, Ed25519PublicKey]:
    try:
        key = parse_public_key(path.read_bytes())
        return compute_key_id(key), key
    except ImportError:
        what = "receipts need the package cryptography"
        remedy = "pip install 'strandline[receipts]'"
    except ValueError as error:
        what, remedy = str(error), f"`{PUBLISH}` writes the public key"
    except OSError as error:
        what, remedy = f"it cannot be read: {error.strerror}", "Specify a readable file"
    raise SpecError(what, where=f"--key {path}", remedy=remedy)


def _read_files(paths: Sequence[Path]) -> Iterator[Receipt]:
    """Yields the receipts in exported files. Refuses lines that are not receipts."""
    for path in paths:
        files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise SpecError(
                f"it has no file *{SUFFIX}",
                where=str(path),
                remedy="Specify a folder that `loader receipts export` wrote",
            )
        for file in files:
            try:
                lines = file.read_text("utf-8").splitlines()
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or "it is not text"
                raise SpecError(
                    f"it cannot be read: {why}", where=str(file), remedy="Specify an exported file"
                ) from None
            for number, line in enumerate(lines, 1):
                try:
                    yield parse_receipt(line)
                except ValueError as error:
                    raise TableError(
                        str(error), where=f"{file}, line {number}", remedy=_REMEDY
                    ) from None


def _open_lakes(settings: Settings) -> Iterator[Lake]:
    """Yields each lake of the spec, while Spark is running."""
    with open_pipeline_with_pushed_tables(settings) as pipeline:
        lakes = [pipeline.open_stores(source).lake for source, _ in pipeline.sources]
        yield from {lake.schema: lake for lake in lakes}.values()


def _check_lakes(
    settings: Settings,
    by_table: dict[str, list[Receipt]],
    keys: Mapping[str, Ed25519PublicKey],
    checked: set[str],
) -> Iterator[Finding]:
    """Yields the findings of all lakes.

    Args:
        by_table: the receipts from files, to which the lakes' receipts are added.
        checked: a set to which the tables whose rows were compared are added.
    """
    from loader.maintenance.receipt_check import check_rows, read_receipts

    for lake in _open_lakes(settings):
        stored = read_receipts(lake)
        yield from stored.findings
        prefix = f"{lake.schema}."
        for table, recorded in stored.receipts.items():
            chain = by_table.setdefault(table, [])
            known = {receipt.envelope for receipt in chain}
            chain += [receipt for receipt in recorded if receipt.envelope not in known]
        for table, chain in by_table.items():
            if table.startswith(prefix) and chain:
                checked.add(table)
                trusted = [each for each in chain if not explain_invalid_signature(each, keys)]
                untrusted = {each.batch for each in chain} - {each.batch for each in trusted}
                name, snapshot = table.removeprefix(prefix), stored.snapshots.get(table)
                with step(f"{table}: comparing rows with receipts"):
                    yield from check_rows(lake, name, trusted, untrusted, snapshot)
        for table in stored.snapshots:
            if not by_table.get(table):
                text = "it has no receipts, so its rows were not verified"
                yield Finding(table, None, text, is_problem=False)


def _report(
    settings: Settings,
    by_table: Mapping[str, Sequence[Receipt]],
    findings: Sequence[Finding],
    checked: Collection[str],
) -> None:
    """Prints a row for each table, and all problems and notes."""
    if not any(by_table.values()) and not any(finding.is_problem for finding in findings):
        raise SpecError(
            "there are no receipts",
            where="loader receipts verify",
            remedy="Set `receipt_signing_key` in the destination; the next batch gets a receipt",
        )
    rows = []
    for table, chain in sorted(by_table.items()):
        batches = [receipt.batch for receipt in chain]
        problems = sum(each.is_problem for each in findings if each.table == table)
        verified = "receipts and rows" if table in checked else "receipts"
        rows.append((table, len(chain), min(batches), max(batches), verified, problems))
    columns = ("table", "receipts", "first_batch", "last_batch", "verified", "problems")
    settings.output.table("receipts", columns, rows)
    for finding in findings:
        if finding.is_problem:
            error = TableError(finding.text, where=finding.where, remedy=_REMEDY)
            settings.output.error(error)
        else:
            text = f"{finding.where}: {finding.text}"
            settings.output.warning(text, table=finding.table, batch=finding.batch)
