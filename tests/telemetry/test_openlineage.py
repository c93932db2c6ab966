"""OpenLineage events of real runs are valid, and name datasets as other tools do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from loader.cli.telemetry.openlineage import DatasetName, name_location, name_source_table
from loader.spec.plugins import SourceSpec
from tests.services import Database
from tests.sync.project import Project
from tests.telemetry.receiver import Receiver, receive

SPEC = Path(__file__).parent / "openlineage_spec"


def _read_schemas() -> list[Any]:
    return [json.loads(file.read_text()) for file in sorted(SPEC.glob("*.json"))]


def validate(event: Any) -> None:
    """Validates an event, and each of its facets with the schema that the facet names."""
    schemas = {schema["$id"]: schema for schema in _read_schemas()}
    registry: Registry[Any] = Registry().with_resources(
        [(uri, Resource.from_contents(schema)) for uri, schema in schemas.items()]
    )
    [core] = [uri for uri in schemas if uri.endswith("/OpenLineage.json")]
    Draft202012Validator(schemas[core], registry=registry).validate(event)
    holders = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    for holder in holders:
        facets = {**holder.get("facets", {}), **holder.get("outputFacets", {})}
        for facet in facets.values():
            name = facet["_schemaURL"].rpartition("/")[2]
            [uri] = [uri for uri in schemas if uri.endswith(f"/{name}.json")]
            schema = {"$ref": f"{uri}#/$defs/{name}"}
            Draft202012Validator(schema, registry=registry).validate(facet)


def _read_events(receiver: Receiver) -> list[Any]:
    return [json.loads(body) for body in receiver.bodies]


@pytest.fixture(autouse=True)
def _one_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop-pipeline")


def test_the_events_of_a_load_and_a_failure(
    shop: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_database.execute("alter table orders add column email text default 'a@b.c'")
    shop.sources[0]["spec"]["table_options"]["orders"]["mask"] = {"email": "redact"}
    shop.write()
    with receive() as receiver:
        monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
        shop.run()
        start, complete = _read_events(receiver)
        shop.run()
        assert len(receiver.bodies) == 2  # nothing new
        postgres_database.execute("alter table orders drop column version")
        shop.loader("run")
        failed = _read_events(receiver)[-1]
    for event in (start, complete, failed):
        validate(event)
    assert [start["eventType"], complete["eventType"], failed["eventType"]] == [
        "START",
        "COMPLETE",
        "FAIL",
    ]
    assert start["run"]["runId"] == complete["run"]["runId"] != failed["run"]["runId"]
    assert (complete["job"]["namespace"], complete["job"]["name"]) == (
        "shop-pipeline",
        "shop.orders",
    )
    [read], [written] = complete["inputs"], complete["outputs"]
    server = f"postgres://127.0.0.1:{postgres_database.server.port}"
    assert (read["namespace"], read["name"]) == (
        server,
        f"{postgres_database.name}.public.orders",
    )
    assert written["namespace"] == "file"
    assert written["name"].endswith(f"/{shop.schema}/orders")
    [snapshot] = shop.rows("select snapshot_id from raw.orders.snapshots where operation='append'")
    assert written["facets"]["version"]["datasetVersion"] == str(snapshot[0])
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 2
    columns = written["facets"]["columnLineage"]["fields"]
    assert columns.keys() == {"id", "version", "email"}
    masking = {
        name: field["inputFields"][0]["transformations"][0]["masking"]
        for name, field in columns.items()
    }
    assert masking == {"id": False, "version": False, "email": True}
    parameters = complete["run"]["facets"]["executionParameters"]["parameters"]
    assert {each["key"]: each["value"] for each in parameters}["cursor_high"] == "6"
    assert "version" in failed["run"]["facets"]["errorMessage"]["message"]
    assert failed["outputs"][0]["name"] == written["name"]


def test_an_endpoint_that_does_not_answer_is_a_warning(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    ran = shop.run()
    assert any("OpenLineage: the report was not sent" in text for text in ran.warnings)


def test_an_invalid_event_is_found() -> None:
    with pytest.raises(Exception, match="required"):
        validate({"run": {}, "job": {}, "inputs": [], "outputs": []})


@pytest.mark.parametrize(
    ("url", "table", "namespace", "name"),
    [
        (
            "jdbc:postgresql://db/shop?user=me&password=hunter2",
            "orders",
            "postgres://db:5432",
            "shop.public.orders",
        ),
        ("jdbc:postgresql://a:1,b:2/shop", "crm.orders", "postgres://a:1", "shop.crm.orders"),
        ("jdbc:mariadb://me:hunter2@db/shop", "orders", "mysql://db:3306", "shop.orders"),
        ("jdbc:mysql://db:3307/shop", "crm.orders", "mysql://db:3307", "crm.orders"),
        (
            "jdbc:sqlserver://db;databaseName=shop;password=hunter2",
            "orders",
            "mssql://db:1433",
            "shop.dbo.orders",
        ),
        (
            "jdbc:oracle:thin:me/hunter2@//db:1521/XE",
            "ERP.ORDERS",
            "oracle://db:1521",
            "XE.ERP.ORDERS",
        ),
        ("jdbc:oracle:thin:@db:1522:SID", "ERP.O", "oracle://db:1522", "SID.ERP.O"),
        ("jdbc:postgresql://[::1]:5433/shop", "o", "postgres://[::1]:5433", "shop.public.o"),
        ("jdbc:sqlserver://db:1", "dbo.orders", "mssql://db:1", "dbo.orders"),
        # Other forms of URLs may contain passwords anywhere.
        ("jdbc:derby:memory:shop", "APP.ORDERS", "jdbc://s", "APP.ORDERS"),
        ("jdbc:db2://h/db:password=hunter2;", "t", "jdbc://s", "t"),
        ("jdbc:oracle:oci:scott/hunter2@h", "t", "jdbc://s", "t"),
        ("jdbc:teradata://h/DATABASE=d,PASSWORD=hunter2", "t", "jdbc://s", "t"),
        ("jdbc:mysql://address=(host=h)(password=hunter2)/db", "t", "jdbc://s", "t"),
        ("jdbc:oracle:thin:@(DESCRIPTION=(WALLET_PASSWORD=hunter2))", "t", "jdbc://s", "t"),
    ],
)
def test_names_of_database_tables(url: str, table: str, namespace: str, name: str) -> None:
    source = SourceSpec.model_validate(
        {"name": "s", "path": "jdbc", "tables": ["*"], "destinations": ["d"], "spec": {"url": url}}
    )
    named = name_source_table(source, table, Path("/project"))
    assert named == DatasetName(namespace, name)
    assert "hunter2" not in str(named)


def test_names_of_other_tables() -> None:
    options = {"path": "data", "table_options": {"notes": {"path": "notes/*.csv"}}}
    files = SourceSpec.model_validate(
        {"name": "s", "path": "file", "tables": ["*"], "destinations": ["d"], "spec": options}
    )
    assert name_source_table(files, "notes", Path("/project")) == DatasetName(
        "file", "/project/data/notes/*.csv"
    )
    api = files.model_copy(update={"path": "airbyte", "name": "github"})
    assert name_source_table(api, "issues", Path("/")) == DatasetName("airbyte://github", "issues")
    assert name_location("s3a://me:hunter2@lake/w/raw/") == DatasetName("s3://lake", "w/raw")
    assert name_location("abfss://c@account.dfs.core.windows.net/w").namespace == (
        "abfss://c@account.dfs.core.windows.net"
    )
    assert name_location("hdfs://nn:8020/w/raw") == DatasetName("hdfs://nn:8020", "/w/raw")
