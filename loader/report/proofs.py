"""Reads which proofs hold, and which fail.

dbt writes the results of the last command to `run_results.json` in its target folder. They lack the
keys of failing rows, so the SQL of each failing test is run again.

If dbt runs on another machine, its `run_results.json` is missing or old on this machine, but the
properties of latest tables and histories contain the verdicts of the last build
(`macros/materializations/_checks.sql`). The verdicts of `cq_sync_log` and `cq_state_current` are
not read, because only dbt knows whether they are valid.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.errors import LoaderError, SpecError
from loader.lake.folder_tables import list_properties
from loader.property_codec import decode_property
from loader.rows.version_order import quote_name
from loader.spec.redaction import excerpt, redact_foreign
from loader.sync.table_comparisons import FolderComparisons, LakeComparisons

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loader.lake.lake import Lake
    from loader.sync.status_readers import StatusReaders

MOST_KEYS = 20
"""The maximum number of failing rows that the report shows for each proof."""

_WATERMARK = "strandline.watermark"
_LONGEST_VALUE = 120
_FAILED = ("fail", "error", "runtime error")
_FACTS = {
    *("problem", "batch", "table_name", "source_name", "unique_field", "n_records"),
    *("duplicate_kind", "previous_batch", "rows_of_key"),
}
"""The columns of failing rows, besides the key, that contain no values from the source."""


@dataclass(frozen=True)
class FailingRows:
    """Rows for which a proof fails.

    Attributes:
        columns: the key columns, and columns that describe the problem.
        has_more: whether there are more rows.
        note: a sentence that explains why rows are not shown, or "".
    """

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    has_more: bool = False
    note: str = ""


@dataclass(frozen=True)
class Proof:
    """The result of a dbt test, or of a model that was not built.

    Attributes:
        status: dbt's status, such as `pass`, `warn`, `fail`, `error` or `skipped`.
        sql: the compiled SQL; None if dbt compiled none.
        key: the key of the tested table; empty if unknown.
        shows_all: whether all columns of failing rows can be shown; true if they contain no values
            from the source.
        stored_on: the day of the build that stored this result in the table's properties; "" for
            dbt's own results.
    """

    id: str
    name: str
    subject: str
    status: str
    is_test: bool = True
    failures: int | None = None
    message: str = ""
    seconds: float = 0.0
    sql: str | None = None
    key: Sequence[str] = ()
    shows_all: bool = False
    rows: FailingRows = field(default_factory=FailingRows)
    stored_on: str = ""

    @property
    def has_failed(self) -> bool:
        """Returns whether the proof failed or could not run."""
        return self.status in _FAILED

    @property
    def has_warned(self) -> bool:
        """Returns whether the proof found failing rows, but only warns."""
        return self.status == "warn"


@dataclass(frozen=True)
class DbtResults:
    """The results of the last dbt command.

    Attributes:
        command: the command, such as `build`; empty if all proofs were stored in tables.
        at: the end of the command, or the end of the last build's day, in ISO 8601.
        proofs: the tests, and the models that were not built.
        node_seconds: the time of each model and test in seconds, keyed by name.
    """

    command: str
    at: str
    proofs: Sequence[Proof]
    node_seconds: Mapping[str, float]


def read_results(target: Path) -> DbtResults | None:
    """Reads the results in dbt's target folder. Returns None if there are none."""
    results = _read_json(target / "run_results.json")
    if results is None:
        return None
    nodes = (_read_json(target / "manifest.json") or {}).get("nodes", {})
    proofs, seconds = [], {}
    try:
        for result in results["results"]:
            proof = _read_proof(result, nodes)
            seconds[f"{proof.name} on {proof.subject}" if proof.is_test else proof.name] = (
                proof.seconds
            )
            if proof.is_test or proof.has_failed or proof.status == "skipped":
                proofs.append(proof)
        metadata, arguments = results["metadata"], results.get("args") or {}
        at = str(metadata["generated_at"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable(target / "run_results.json", f"{type(error).__name__}: {error}") from None
    return DbtResults(str(arguments.get("which") or ""), at, proofs, seconds)


def read_failing_rows(spark: SparkSession, proofs: Iterable[Proof]) -> list[Proof]:
    """Returns all proofs. Reruns the SQL of those that fail or warn, to add failing rows."""
    from loader.spark.session import restore_settings

    with restore_settings(spark):
        spark.conf.set("spark.sql.ansi.enabled", "false")  # as in dbt's session
        return [_add_rows(proof, spark) for proof in proofs]


def find_unexplained(results: DbtResults | None) -> list[Proof]:
    """Returns the proofs whose failing rows can be read by running the SQL again."""
    proofs = results.proofs if results is not None else ()
    return [each for each in proofs if _can_be_read(each)]


def choose_columns(proof: Proof, columns: Sequence[str]) -> list[str]:
    """Returns the columns of failing rows that identify a row or describe its problem.

    Other columns are not shown, because they may contain any values from the source.
    """
    if proof.shows_all:
        return list(columns)
    key = {name.lower() for name in proof.key}
    chosen = [name for name in columns if name.lower() in key]
    return chosen + [
        name
        for name in columns
        if name not in chosen and (name.lower() in _FACTS or name.lower().startswith("_cq_"))
    ]


def _can_be_read(proof: Proof) -> bool:
    return proof.is_test and proof.status in ("fail", "warn") and bool(proof.sql)


def _add_rows(proof: Proof, spark: SparkSession) -> Proof:
    if not _can_be_read(proof):
        return proof
    try:
        # dbt runs the same SQL as a subquery.
        frame = spark.sql(f"select * from (\n{proof.sql}\n) as failures limit {MOST_KEYS + 1}")
        columns = choose_columns(proof, frame.columns)
        found = frame.collect()
    except Exception as error:  # the SQL is the user's, and may fail in any way
        text = excerpt(redact_foreign(str(error)).splitlines()[0], 300)
        return replace(proof, rows=FailingRows(note=f"The rows could not be read: {text}"))
    if not found:
        note = "The test no longer finds these rows. The next `dbt build` checks it again."
        return replace(proof, rows=FailingRows(note=note))
    if not columns:
        note = "The key is unknown, so no rows are shown: `dbt test --store-failures` stores them."
        return replace(proof, rows=FailingRows(note=note))
    places = [frame.columns.index(name) for name in columns]
    rows = [[_format_value(row[place]) for place in places] for row in found[:MOST_KEYS]]
    return replace(proof, rows=FailingRows(columns, rows, len(found) > MOST_KEYS))


def _format_value(value: Any) -> str:
    return "NULL" if value is None else excerpt(redact_foreign(str(value)), _LONGEST_VALUE)


def _read_proof(result: Mapping[str, Any], nodes: Mapping[str, Any]) -> Proof:
    unique_id = str(result["unique_id"])
    node = nodes.get(unique_id) or {}
    kind = unique_id.partition(".")[0]
    test = node.get("test_metadata") or {}
    arguments = test.get("kwargs") or {}
    attached = node.get("attached_node") or ""
    subject = nodes.get(attached) or {}
    config = subject.get("config") or {}
    key = arguments.get("unique_key") or config.get("unique_key")
    on = ((node.get("depends_on") or {}).get("nodes") or [""])[0]
    return Proof(
        unique_id,
        str(test.get("name") or node.get("name") or ".".join(unique_id.split(".")[2:3])),
        str(subject.get("name") or (attached or on).rpartition(".")[2]),
        str(result["status"]),
        kind in ("test", "unit_test"),
        result.get("failures"),
        excerpt(redact_foreign(str(result.get("message") or "")), 500),
        float(result.get("execution_time") or 0),
        result.get("compiled_code"),
        [key] if isinstance(key, str) else list(key or ()),
        # The package's models contain only rows from the ledger.
        attached.startswith("model.strandline."),
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from None
    if not isinstance(found, dict):
        raise _unreadable(path, "it is not a JSON object")
    return found


def _unreadable(path: Path, why: str) -> SpecError:
    return SpecError(
        f"dbt's results cannot be read: {why}",
        where=str(path),
        remedy="Run `dbt build` again, or set the folder with --target-path",
    )


def read_stored_proofs(readers: Sequence[StatusReaders], results: DbtResults | None) -> list[Proof]:
    """Returns the proofs that the last build of each table stored.

    Ignores tables that are not built from a raw table in one of the readers' schemas, because such
    tables belong to other projects. Reading with Spark needs a statement for each table in the
    catalog, so it is done only if there are no dbt results on this machine.
    """
    catalogs: dict[object, Iterable[tuple[str, Mapping[str, str]]]] = {}
    for each in readers:
        comparisons = each.comparisons
        if isinstance(comparisons, FolderComparisons):
            warehouse = comparisons.tables.warehouse
            catalogs.setdefault(warehouse, list_properties(warehouse))
        elif isinstance(comparisons, LakeComparisons) and results is None:
            catalogs.setdefault(comparisons.lake.catalog, _list_by_spark(comparisons.lake))
    schemas = {each.schema.lower() for each in readers}
    return [
        proof
        for tables in catalogs.values()
        for name, properties in tables
        for proof in parse_verdicts(name, properties, schemas)
    ]


def parse_verdicts(
    table: str, properties: Mapping[str, str], schemas: Collection[str]
) -> list[Proof]:
    """Returns the proofs in a table's properties. Returns [] if dbt did not build the table.

    Args:
        table: the table as `schema.table`.
        schemas: the schemas of the raw tables, in lower case.
    """
    if _WATERMARK not in properties:
        return []
    day = properties.get("strandline.day", "")
    try:
        proved, failed = (
            json.loads(decode_property(properties.get(f"strandline.{name}", "{}")))
            for name in ("proved", "failed_turns")
        )
        return [
            Proof(
                f"{table}.{check}",
                check.rpartition(".")[0],
                table,
                "fail" if failed.get(check) else "pass",
                message=_describe(day, batches, bool(failed.get(check))),
                stored_on=day,
            )
            for check, batches in proved.items()
            if any(raw.lower().split(".")[-2] in schemas for raw in batches)
        ]
    except (ValueError, AttributeError, IndexError) as error:
        raise LoaderError(
            f"its stored verdicts cannot be read: {error}",
            where=f"table {table}",
            remedy="Rebuild it: run `dbt build --full-refresh --select` with its model",
        ) from None


def add_stored_proofs(results: DbtResults | None, stored: Sequence[Proof]) -> DbtResults | None:
    """Replaces proofs in dbt's results with stored proofs from later days."""
    if results is None:
        newest = max((proof.stored_on for proof in stored), default="")
        return DbtResults("", f"{newest}T23:59:59Z", stored, {}) if newest else None
    later = [proof for proof in stored if proof.stored_on > results.at[:10]]
    names = [_find_model(proof) for proof in later]
    # If a model is built into several schemas, several tables have this name.
    later = [proof for proof, name in zip(later, names, strict=True) if names.count(name) == 1]
    replaced = {_find_model(proof) for proof in later}
    kept = [proof for proof in results.proofs if (proof.name, proof.subject) not in replaced]
    return replace(results, proofs=[*kept, *later])


def _describe(day: str, batches: Mapping[str, int], has_failed: bool) -> str:
    checked = " and ".join(f"batch {batch} of {raw}" for raw, batch in batches.items())
    if has_failed:
        return f"The build of {day}, up to {checked}, found failing keys: `dbt test` shows them"
    return f"up to {checked}, on {day}"


def _find_model(proof: Proof) -> tuple[str, str]:
    return proof.name, proof.subject.rpartition(".")[2]


def _list_by_spark(lake: Lake) -> Iterator[tuple[str, Mapping[str, str]]]:
    spark, catalog = lake.spark, quote_name(lake.catalog)
    for namespace in spark.sql(f"show namespaces in {catalog}").collect():
        for row in spark.sql(f"show tables in {catalog}.{namespace[0]}").collect():
            name = f"{catalog}.{row['namespace']}.{quote_name(row['tableName'])}"
            listed = spark.sql(f"show tblproperties {name}").collect()
            yield (
                f"{row['namespace']}.{row['tableName']}",
                {each["key"]: each["value"] for each in listed},
            )
