"""Sends OpenLineage events, which show the source table from which each raw table was loaded.

The OpenLineage client's environment variables, such as ``OPENLINEAGE_URL``, configure it. Tables
have the names of OpenLineage's convention, https://openlineage.io/docs/spec/naming, so that other
programs use the same names.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    dataset_version_dataset,
    error_message_run,
    execution_parameters_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    symlinks_dataset,
)
from openlineage.client.generated.base import DatasetFacet, OutputDatasetFacet, RunFacet
from openlineage.client.uuid import generate_new_uuid

from loader import __version__
from loader.lake.commits import newest_commit, origins, sharers
from loader.lake.lake import Lake
from loader.lake.ledger import FAILED, RECOVERED, SYNCED, SyncRecord
from loader.lake.source_schema import read_source_schema
from loader.spec.plugins import SourceSpec
from loader.state import TableState
from loader.sync.pipeline import Pipeline
from loader.sync.runner import Outcome

PRODUCER = f"https://pypi.org/project/strandline/{__version__}"

_PARAMETERS = ("batch", "generation", "mode", "cursor_field", "cursor_low", "cursor_high")
_Fields = column_lineage_dataset.Fields
# The scheme of a namespace, and the default port if a JDBC URL has none.
_DATABASES = {
    "postgresql": ("postgres", 5432),
    "mysql": ("mysql", 3306),
    "mariadb": ("mysql", 3306),
    "sqlserver": ("mssql", 1433),
    "oracle": ("oracle", 1521),
}
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
_OBJECT_STORES = {"s3a": "s3", "s3n": "s3", "s3": "s3", "gs": "gs"}
_HOST = r"(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d+))?"
_URLS = (
    # If there are several hosts, the first one names the server.
    re.compile(
        rf"(?P<kind>postgresql|mysql|mariadb)://(?:[^@/]*@)?{_HOST}(?:,[\w.:,-]+)?/(?P<database>[\w$-]*)(?:$|[?;])"
    ),
    re.compile(
        rf"(?P<kind>sqlserver)://{_HOST}(?:;.*?;?\s*database(?:Name)?\s*=\s*(?P<database>[\w$-]+)|)"
        r"(?:$|;)",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?P<kind>oracle):thin:(?:[^@]*@)(?://)?{_HOST}[/:](?P<database>[\w$.-]+)(?:$|[?:])"
    ),
)


class OpenLineage:
    """Builds OpenLineage events, and sends them with one client for this process."""

    def __init__(self, namespace: str = "strandline") -> None:
        self._client = OpenLineageClient()
        self._namespace = namespace

    def build_events(
        self, pipeline: Pipeline, outcomes: Iterable[Outcome]
    ) -> tuple[list[RunEvent], list[str]]:
        """Returns two events, start and end, for each table that was loaded or failed.

        Also returns the tables that have no events because their raw tables cannot be read.
        """
        events: list[RunEvent] = []
        unknown: list[str] = []
        for outcome in outcomes:
            record = outcome.record
            if record is not None and record.status in (SYNCED, RECOVERED, FAILED):
                try:
                    spec = pipeline.spec.source(outcome.source or record.source_name)
                    events += self._describe_sync(pipeline, spec, outcome.table, record)
                except Exception:
                    unknown.append(outcome.table)
        return events, unknown

    def send(self, events: Iterable[RunEvent]) -> None:
        """Sends events. Raises an exception if an event cannot be sent."""
        for event in events:
            self._client.emit(event)

    def _describe_sync(
        self, pipeline: Pipeline, source: SourceSpec, name: str, record: SyncRecord
    ) -> Iterator[RunEvent]:
        lake = pipeline.open_stores(source).lake
        facets: dict[str, RunFacet] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version=pipeline.spark.version, name="spark", openlineageAdapterVersion=__version__
            ),
            "executionParameters": execution_parameters_run.ExecutionParametersRunFacet(
                parameters=[
                    execution_parameters_run.ExecutionParameter(key=key, value=str(value))
                    for key in _PARAMETERS
                    if (value := getattr(record, key)) is not None
                ]
            ),
        }
        if record.error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=record.error, programmingLanguage="Python"
            )
        run = Run(runId=str(generate_new_uuid(record.started_at)), facets=facets)
        job_type = job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration="STRANDLINE", jobType="SYNC"
        )
        job = Job(self._namespace, name, facets={"jobType": job_type})
        inputs, outputs = _describe_datasets(pipeline, source, lake, record)
        end = RunState.FAIL if record.status == FAILED else RunState.COMPLETE
        times = {RunState.START: record.started_at, end: record.finished_at}
        for state, time in times.items():
            at = (time or dt.datetime.now(dt.timezone.utc)).astimezone(dt.timezone.utc)
            yield RunEvent(
                eventTime=at.isoformat(),
                producer=PRODUCER,
                run=run,
                job=job,
                eventType=state,
                inputs=inputs,
                outputs=outputs,
            )


def _describe_datasets(
    pipeline: Pipeline, source: SourceSpec, lake: Lake, record: SyncRecord
) -> tuple[list[InputDataset], list[OutputDataset]]:
    table = record.table_name
    if not lake.exists(table):
        return [_describe_input(pipeline, source, table, {})], []
    handle = lake.handle(table)
    origin = origins(handle).get(source.name, table)
    is_shared = bool(sharers(handle))
    stored = read_source_schema(
        lake.properties(table), source.name if is_shared else "", f"table {table}"
    )
    columns = (
        {field.name: field.dataType.simpleString() for field in stored.schema.fields}
        if (stored is not None)
        else {}
    )
    schema = schema_dataset.SchemaDatasetFacet(
        fields=[
            schema_dataset.SchemaDatasetFacetFields(name=name, type=kind)
            for name, kind in columns.items()
        ]
    )
    read = _describe_input(pipeline, source, origin, {"schema": schema})
    written = name_location(str(handle.location()))
    facets: dict[str, DatasetFacet] = {
        "schema": schema,
        "symlinks": symlinks_dataset.SymlinksDatasetFacet(
            identifiers=[
                symlinks_dataset.Identifier(_name_catalog(lake), f"{lake.schema}.{table}", "TABLE")
            ]
        ),
        "columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet(
            fields=_describe_columns(read, columns, _read_masks(lake, source, table, is_shared))
        ),
    }
    statistics: dict[str, OutputDatasetFacet] = {}
    if record.snapshot_id is not None:
        version = str(record.snapshot_id)
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(version)
        statistics["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=record.rows_appended
            )
        )
    output = OutputDataset(written.namespace, written.name, statistics, facets=facets)
    return [read], [output]


def _describe_input(
    pipeline: Pipeline, source: SourceSpec, table: str, facets: dict[str, DatasetFacet]
) -> InputDataset:
    name = name_source_table(source, table, pipeline.spec.folder)
    return InputDataset(name.namespace, name.name, facets=facets)


def _describe_columns(
    read: InputDataset, columns: Iterable[str], masks: Mapping[str, str]
) -> dict[str, _Fields]:
    return {
        name: _Fields(
            inputFields=[
                column_lineage_dataset.InputField(
                    read.namespace,
                    read.name,
                    name,
                    [
                        column_lineage_dataset.Transformation(
                            type="DIRECT",
                            subtype="TRANSFORMATION" if name.lower() in masks else "IDENTITY",
                            description=masks.get(name.lower(), ""),
                            masking=name.lower() in masks,
                        )
                    ],
                )
            ]
        )
        for name in columns
    }


def _read_masks(lake: Lake, source: SourceSpec, table: str, is_shared: bool) -> dict[str, str]:
    """Returns the masks of the newest batch, keyed by column name in lower case."""
    commit = newest_commit(lake, table, (source.name,) if is_shared else ())
    if commit.state is None:
        return {}
    masks = TableState.from_json(commit.state, table).masks or {}
    return {name: mask for name, mask in masks.get("columns", {}).items() if mask != "none"}


def _name_catalog(lake: Lake) -> str:
    """Returns the namespace for the catalog's tables: the catalog's URI or warehouse."""
    setting = f"spark.sql.catalog.{lake.catalog}"
    uri = lake.spark.conf.get(f"{setting}.uri", None)
    warehouse = lake.spark.conf.get(f"{setting}.warehouse", None)
    named: DatasetName = name_location(str(uri or warehouse or lake.catalog).removeprefix("jdbc:"))
    return named.namespace if uri else f"{named.namespace}:{named.name}"


@dataclass(frozen=True)
class DatasetName:
    """The name of a dataset. The namespace identifies a server, and the name a table on it."""

    namespace: str
    name: str


def name_location(location: str) -> DatasetName:
    """Derives a dataset name for the table in a folder from the folder's URL or path.

    Example:
        >>> name_location("s3a://lake/warehouse/raw/orders")
        DatasetName(namespace='s3://lake', name='warehouse/raw/orders')
    """
    parts = urlsplit(location)
    path = parts.path.rstrip("/") or "/"
    server = parts.netloc.rpartition("@")[2]
    if parts.scheme in _CONTAINERS:
        server = parts.netloc  # container@account
    if parts.scheme in ("", "file"):
        return DatasetName("file", path)
    if parts.scheme in _OBJECT_STORES:
        return DatasetName(f"{_OBJECT_STORES[parts.scheme]}://{server}", path.lstrip("/"))
    return DatasetName(f"{parts.scheme}://{server}", path)


def name_source_table(source: SourceSpec, table: str, folder: Path) -> DatasetName:
    """Names a source table. The name contains no user or password.

    Args:
        table: the table's unambiguous name in the source, with its schema if it has one.
        folder: the spec's folder. Relative paths are resolved against it.
    """
    options = source.spec
    url = str(options.get("url", ""))
    if source.path == "jdbc" and url.startswith("jdbc:"):
        return _name_database_table(url.removeprefix("jdbc:"), table, source.name)
    if source.path == "file":
        own = options.get("table_options", {}).get(table, {})
        path = f"{options.get('path', '.')}/{_find_path(own, table)}"
        is_local = not urlsplit(path).scheme
        return name_location(str((folder / path).resolve()) if is_local else path)
    return DatasetName(f"{source.path}://{source.name}", table)


def _find_path(options: Any, table: str) -> str:
    return str(options.get("path", table)) if isinstance(options, Mapping) else table


def _name_database_table(url: str, table: str, source: str) -> DatasetName:
    """Names a table from the part of a JDBC URL after ``jdbc:``.

    If the URL's format is unknown, uses the source's name, because any part of the URL might
    contain a password.
    """
    found = next(filter(None, (pattern.match(url) for pattern in _URLS)), None)
    if found is None:
        return DatasetName(f"jdbc://{source}", table)
    scheme, default_port = _DATABASES[found["kind"]]
    database = found["database"] or ""
    namespace = f"{scheme}://{found['host']}:{found['port'] or default_port}"
    if "." not in table:
        schemas = {"postgres": "public", "mssql": "dbo", "mysql": database}
        table = f"{schemas[scheme]}.{table}" if schemas.get(scheme) else table
    has_database = database and scheme != "mysql"  # in MySQL, schemas are databases
    return DatasetName(namespace, f"{database}.{table}" if has_database else table)
