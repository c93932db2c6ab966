"""Reads the verdicts that builds stored in the properties of latest tables and histories.

If dbt runs on another machine, its `run_results.json` is missing or old on this machine, but the
tables contain the verdicts of the last build (`macros/materializations/_checks.sql`). The verdicts
of `cq_sync_log` and `cq_state_current` are not read, because only dbt knows whether they are valid.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from loader.errors import LoaderError
from loader.lake.folder_tables import list_properties
from loader.property_codec import decode_property
from loader.report.proofs import DbtResults, Proof
from loader.rows.version_order import quote_name
from loader.sync.table_comparisons import FolderComparisons, LakeComparisons

if TYPE_CHECKING:
    from loader.lake.lake import Lake
    from loader.sync.status_readers import StatusReaders

_WATERMARK = "strandline.watermark"


def read_stored_proofs(readers: Sequence[StatusReaders], results: DbtResults | None) -> list[Proof]:
    """Returns the proofs that the last build of each table stored.

    Ignores tables that are not built from a raw table in one of the readers' schemas, because such
    tables belong to other projects. Reading with Spark needs a statement for each table in the
    catalog, so it is done only if there are no dbt results on this machine.

    Raises:
        LoaderError: if a table's verdicts cannot be read.
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
