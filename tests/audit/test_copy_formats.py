"""Guards that the audit understands the formats and metadata columns of other tools' copies."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from loader.audit.presets import PRESETS
from loader.cli import main
from tests.audit.conftest import COLUMNS, Row, Shop
from tests.services import Database
from tests.services.server import PASSWORD, USER

LOADED = dt.datetime(2025, 6, 1)


def _stamps(tool: str, batch: int, deleted: bool = False) -> Row:
    """Returns the columns that a tool adds, with the values of one of its batches."""
    time = LOADED + dt.timedelta(hours=batch)
    return {
        "airbyte": {
            "_airbyte_raw_id": f"raw-{batch}",
            "_airbyte_extracted_at": time,
            "_ab_cdc_deleted_at": time.isoformat() if deleted else None,
        },
        "debezium": {"__op": "d" if deleted else "u", "__source_ts_ms": batch},
        "dlt": {"_dlt_load_id": f"{time.timestamp():.5f}", "_dlt_id": f"{batch}"},
        "fivetran": {"_fivetran_synced": time, "_fivetran_deleted": deleted},
        "meltano": {
            "_sdc_extracted_at": time,
            "_sdc_deleted_at": time.isoformat() if deleted else None,
        },
        "olake": {"_olake_id": "x", "_op_type": "d" if deleted else "u", "_olake_timestamp": time},
        "sling": {"_sling_loaded_at": time, "_sling_deleted_at": time if deleted else None},
        "cloudquery": {"_cq_id": f"{batch}", "_cq_sync_time": time},
        "strandline": {
            "_cq_generation": 1,
            "_cq_batch": batch,
            "_cq_seq": 0,
            "_cq_deleted": deleted,
        },
    }[tool]


ADDED = {
    "airbyte": "_airbyte_raw_id string, _airbyte_extracted_at timestamp, _ab_cdc_deleted_at string",
    "debezium": "__op string, __source_ts_ms bigint",
    "dlt": "_dlt_load_id string, _dlt_id string",
    "fivetran": "_fivetran_synced timestamp, _fivetran_deleted boolean",
    "meltano": "_sdc_extracted_at timestamp, _sdc_deleted_at string",
    "olake": "_olake_id string, _op_type string, _olake_timestamp timestamp",
    "sling": "_sling_loaded_at timestamp, _sling_deleted_at timestamp",
    "cloudquery": "_cq_id string, _cq_sync_time timestamp",
    "strandline": "_cq_generation bigint, _cq_batch bigint, _cq_seq bigint, _cq_deleted boolean",
}


def test_each_preset_has_a_case() -> None:
    assert set(ADDED) == set(PRESETS)


@pytest.mark.parametrize("tool", sorted(PRESETS))
def test_versions_of_each_tool_are_reduced_to_the_newest(shop: Shop, tool: str) -> None:
    rows = shop.rows()
    first = [{**row, "note": "older"} for row in rows[:20]]
    copied = [{**row, **_stamps(tool, 1)} for row in first]
    copied += [{**row, **_stamps(tool, 2)} for row in rows]
    if PRESETS[tool].deleted:
        gone = {**rows[0], "id": 5000}
        copied += [{**gone, **_stamps(tool, 2)}, {**gone, **_stamps(tool, 3, deleted=True)}]
        # The source still has this row, so the delete is wrong.
        copied.append({**rows[7], **_stamps(tool, 3, deleted=True)})
    copied.reverse()
    found = shop.audit(shop.write(copied, ADDED[tool]), "--versions", "--grace", "0")
    lost = 1 if PRESETS[tool].deleted else 0
    assert (found["loaded_by"], found["lost"], found["stale"]) == (tool, lost, 0)
    assert (found["extra"], found["doubled"], found["not_compared"]) == (0, 0, {})


def test_old_versions_of_history_tables_are_left_out(shop: Shop) -> None:
    rows = shop.rows()
    ended = [{**row, "note": "older", "_dlt_valid_to": LOADED, "_dlt_id": "a"} for row in rows[:5]]
    copied = ended + [{**row, "_dlt_valid_to": None, "_dlt_id": "b"} for row in rows]
    added = "_dlt_valid_to timestamp, _dlt_id string"
    assert shop.audit(shop.write(copied, added))["equal"]
    flagged = [{**row, "_fivetran_active": False, "_fivetran_id": "a"} for row in rows[:5]]
    flagged += [{**row, "_fivetran_active": True, "_fivetran_id": "b"} for row in rows]
    added = "_fivetran_active boolean, _fivetran_id string"
    assert shop.audit(shop.write(flagged, added, name="history"))["equal"]


def test_columns_with_other_types_and_names_are_compared(shop: Shop) -> None:
    shop.database.execute(
        'create table "Lines" ("LineID" int primary key, "unitPrice" numeric(8, 3), day date, '
        "flag boolean, at timestamp, code text, body jsonb)",
        """insert into "Lines" select i, i / 7.0, date '2025-01-01' + i, i % 2 = 0,
        timestamp '2025-01-01 00:00:00.123456' + i * interval '1 minute', '00' || i, '{}'
        from generate_series(1, 50) i""",
    )
    values = shop.database.query('select * from "Lines" order by 1')
    rows = [
        (str(i), float(p), day.isoformat(), int(flag), at.isoformat(), code)
        for i, p, day, flag, at, code, _ in values
    ]
    schema = "line_id string, unit_price double, day string, flag int, at string, code string"
    path = str(shop.folder / "lines")
    shop.spark.createDataFrame(rows, schema).write.parquet(path)
    found = shop.audit(path, table="Lines")
    assert found["equal"]
    assert found["not_compared"] == {"body": "the copy lacks it"}


def test_a_raw_table_of_airbyte_is_read_from_its_json(shop: Shop) -> None:
    rows = shop.rows()
    copied = [
        {
            "_airbyte_raw_id": str(row["id"]),
            "_airbyte_extracted_at": LOADED,
            "_airbyte_data": json.dumps(
                {
                    **row,
                    "note": "old" if row["id"] == 8 else row["note"],
                    "amount": float(row["amount"]),
                    "updated_at": row["updated_at"].isoformat(),
                }
            ),
        }
        for row in rows
        if row["id"] != 9
    ]
    columns = "_airbyte_raw_id string, _airbyte_extracted_at timestamp, _airbyte_data string"
    found = shop.audit(shop.write(copied, columns=columns), "--versions")
    assert (found["loaded_by"], found["lost"], found["stale"]) == ("airbyte", 1, 1)
    assert (found["extra"], found["doubled"], found["columns"]) == (0, 0, {"note": 1})


def test_a_value_that_does_not_fit_the_type_of_the_source_is_stale(shop: Shop) -> None:
    rows = [
        {**row, "amount": "n/a" if row["id"] == 3 else str(row["amount"])} for row in shop.rows()
    ]
    columns = COLUMNS.replace("decimal(10, 2)", "string")
    found = shop.audit(shop.write(rows, columns=columns), "--grace", "0")
    assert (found["stale"], found["columns"]) == (1, {"amount": 1})
    shop.database.execute("update orders set amount = null where id = 3")
    found = shop.audit(str(shop.folder / "copy"), "--grace", "0")
    assert found["stale"] == 1, "null and n/a are different"


def test_a_value_that_is_more_precise_than_the_type_of_the_source_is_stale(shop: Shop) -> None:
    shop.database.execute(
        "create table prices (id int primary key, price numeric(10, 2), day date, paid boolean, "
        "pieces int)",
        "insert into prices select i, 12.34, '2025-01-01', true, 7 from generate_series(1, 6) i",
    )
    midnight = dt.datetime(2025, 1, 1, tzinfo=dt.timezone.utc)
    rows: list[Row] = [
        {"id": i, "price": 12.34, "day": midnight, "paid": 1, "pieces": 7.0} for i in range(1, 7)
    ]
    rows[1]["price"] = 12.3449
    rows[2]["day"] = midnight.replace(hour=5)
    rows[3]["paid"] = 2
    rows[4]["pieces"] = 7.5
    columns = "id int, price double, day timestamp, paid int, pieces double"
    found = shop.audit(shop.write(rows, columns=columns), "--grace", "0", table="prices")
    assert (found["stale"], found["lag"]) == (4, 0)
    assert found["columns"] == {"day": 1, "paid": 1, "pieces": 1, "price": 1}


def test_a_column_that_differs_everywhere_counts_as_rewritten(shop: Shop) -> None:
    """It counts as rewritten, and does not hide lost rows and differences in other columns."""
    rows = [{**row, "note": f"{row['note']} "} for row in shop.rows() if row["id"] != 5]
    rows[100]["amount"] = Decimal("0.50")
    copy = shop.write(rows)
    found = shop.audit(copy, "--grace", "0")
    assert (found["lost"], found["stale"], found["lag"]) == (1, 1, 0)
    assert (found["columns"], found["rewritten"]) == ({"amount": 1}, {"note": 999})
    assert len(found["days"]) == 2
    arguments = ["audit", shop.url, "orders", copy, "--pause", "0", "--grace", "0"]
    result = CliRunner().invoke(main, arguments)
    assert "To exclude the column, add --ignore note." in result.output
    assert f"{copy} differs from orders: 1 row lost, 1 stale." in result.output
    assert shop.audit(copy, "--grace", "0", "--ignore", "note")["rewritten"] == {}


def test_json_and_times_of_day_are_compared_by_value(shop: Shop) -> None:
    shop.database.execute(
        "create table plans (id int primary key, body jsonb, draft json, begins time, ends timetz, "
        "tags text[], ratio float8)",
        """insert into plans select i, '{"a": [1, 2.50], "ä": null}', '{ "z":1, "b":"\\u00e9" }',
        '08:30', '17:00:00.250+01', '{a}', 0.5 from generate_series(1, 30) i""",
        "update plans set body = null, draft = '[]', begins = '08:30:00.5' where id > 12",
    )
    # Each format is in less than nine tenths of the rows, so no column counts as rewritten.
    forms = [
        (i, '{"a":[1,2.50],"ä":null}', '{"z": 1, "b": "é"}', "08:30:00", "17:00:00.25+01:00")
        if i <= 12
        else (i, None, " []", "08:30:00.500", "17:00:00.250000+01")
        for i in range(1, 31)
    ]
    columns = "id int, body string, draft string, begins string, ends string"
    path = str(shop.folder / "plans")
    shop.spark.createDataFrame(forms, columns).write.parquet(path)
    found = shop.audit(path, table="plans")
    assert found["equal"], found
    assert (found["lag"], found["rewritten"]) == (0, {})
    shop.database.execute(
        """update plans set body = '{"a": [1, 2.51], "ä": null}' where id = 3""",
        "update plans set begins = '08:31', ends = '17:00:00.250+02' where id = 4",
        "update plans set draft = '{}' where id = 20",
    )
    found = shop.audit(path, "--grace", "0", table="plans")
    assert (found["stale"], found["lag"], found["rewritten"]) == (3, 0, {})
    assert found["columns"] == {"begins": 1, "body": 1, "draft": 1, "ends": 1}


def test_columns_that_are_not_compared_have_the_names_of_their_types(shop: Shop) -> None:
    shop.database.execute(
        "create table plans (id int primary key, tags text[], ratio float8, codes varchar(3)[])",
        "insert into plans values (1, '{a}', 0.5, '{b}')",
    )
    columns = "id int, tags array<string>, ratio double, codes array<string>"
    copy = shop.write([{"id": 1, "tags": ["a"], "ratio": 0.5, "codes": ["b"]}], columns=columns)
    found = shop.audit(copy, table="plans")
    assert found["equal"]
    names = ["tags (text[])", "ratio (double precision)", "codes (character varying[])"]
    assert list(found["not_compared"]) == names


def test_columns_that_later_files_add_are_compared(shop: Shop) -> None:
    rows = shop.rows()
    shop.write(rows[:500], columns="id bigint, amount decimal(10, 2), updated_at timestamp")
    copy = shop.write(rows[500:])
    found = shop.audit(copy, "--grace", "0")
    assert (found["stale"], found["columns"]) == (500, {"note": 500, "paid": 500})


def test_a_table_of_a_catalog_is_read(shop: Shop, warehouse: Any) -> None:
    shop.spark.sql("create namespace if not exists audited")
    path = shop.write(shop.rows()[:-1])
    shop.spark.read.parquet(path).writeTo("audited.orders").using("iceberg").createOrReplace()
    options = ("--profiles-dir", "profiles", "--grace", "0")
    assert shop.audit("audited.orders", *options)["lag"] == 1
    folder = str(warehouse / "audited" / "orders")
    assert shop.audit(folder, "--grace", "0")["lag"] == 1, "a folder of Iceberg"


def test_a_copy_in_another_database_is_read(shop: Shop, mariadb_database: Database) -> None:
    mariadb_database.execute(
        "create table orders (id bigint primary key, note text, amount decimal(10, 2), "
        "paid tinyint(1), updated_at datetime(6), _fivetran_synced datetime)"
    )
    values = ", ".join(
        f"({r['id']}, '{r['note']}', {r['amount']}, {r['paid']}, "
        f"'{r['updated_at'].astimezone(dt.timezone.utc):%Y-%m-%d %H:%M:%S.%f}', '2025-06-01')"
        for r in shop.rows()
        if r["id"] != 77
    )
    mariadb_database.execute(f"insert into orders values {values}")
    port = mariadb_database.server.port
    url = f"mariadb://{USER}:{PASSWORD}@127.0.0.1:{port}/{mariadb_database.name}"
    found = shop.audit("orders", "--copy-url", url)
    assert (found["lost"], found["stale"], found["loaded_by"]) == (1, 0, "fivetran")


def test_a_table_without_a_key_is_compared_by_the_key_that_is_given(shop: Shop) -> None:
    shop.database.execute("create table events as select id, note, updated_at from orders")
    rows = [row for row in shop.rows() if row["id"] != 4]
    path = shop.write(rows, columns="id bigint, note string, updated_at timestamp")
    found = shop.audit(path, "--key", "id", table="events")
    assert (found["lost"], found["stale"]) == (1, 0)


def test_a_column_of_an_incomparable_type_is_named(shop: Shop) -> None:
    rows = [{**row, "note": {"a": 1}} for row in shop.rows()]
    columns = COLUMNS.replace("note string", "note map<string,int>")
    shop.database.execute("alter table orders alter note type bytea using note::bytea")
    found = shop.audit(shop.write(rows, columns=columns))
    assert found["equal"]
    assert list(found["not_compared"]) == ["note"]


def test_another_kind_of_database_is_read_by_its_driver(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    manager: Any = spark._jvm.java.sql.DriverManager  # type: ignore[union-attr]
    url = f"jdbc:derby:{tmp_path / 'derby'}"
    connection = manager.getConnection(f"{url};create=true")
    statement = connection.createStatement()
    statement.execute("create table items (id int primary key, note varchar(20))")
    statement.execute("insert into items values (1, 'a'), (2, 'b'), (3, 'c')")
    shop.url = url
    copy = shop.write(
        [{"ID": 1, "NOTE": "a"}, {"ID": 2, "NOTE": "x"}], columns="ID int, NOTE string"
    )
    found = shop.audit(copy, table="items")
    connection.close()
    assert (found["lost"], found["stale"], found["rows_source"]) == (1, 1, 3)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("orders", "no/such/folder"), 2, "it does not exist"),
        (("ordres", "COPY"), 2, "Did you mean `orders`?"),
        (("orders", "COPY", "--key", "ids"), 2, "has no column 'ids'. Did you mean `id`?"),
        (("orders", "COPY", "--cursor", "paid"), 2, "no chronological order"),
        (("orders", "COPY", "--deleted", "gone"), 2, "--deleted: "),
        (("orders", "COPY", "--newest-by", "id"), 2, "--newest-by is for --versions"),
        (("orders", "COPY", "--sample", "0%"), 2, "is not a share"),
        (("orders", "COPY", "--key", "id", "--ignore", "id"), 2, "it is ignored"),
        (("orders", "COPY", "--ignore", "nothing"), 2, "has no column 'nothing'"),
        (("orders", "raw.nothing", "--profiles-dir", "profiles"), 2, "it cannot be read"),
        (("orders", "COPY", "--report", "no/page.html"), 2, "no/page.html: it cannot be written"),
        (("orders", "orders"), 2, "`loader audit --copy-url` reads a table of a database"),
    ],
)
def test_a_mistake_is_one_clear_error(
    shop: Shop, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    copy = shop.write(shop.rows()[:5])
    given = [copy if argument == "COPY" else argument for argument in arguments]
    result = CliRunner().invoke(main, ["audit", shop.url, *given, "--pause", "0"])
    assert result.exit_code == code, result.output
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    assert PASSWORD not in result.output


def test_files_that_are_no_table_are_one_clear_error(shop: Shop) -> None:
    empty = shop.folder / "empty"
    empty.mkdir()
    result = CliRunner().invoke(main, ["audit", shop.url, "orders", str(empty), "--pause", "0"])
    assert result.exit_code == 2
    assert "it has no Parquet files, and neither _delta_log (Delta) nor metadata" in result.stderr
    shop.write(shop.rows()[:5])
    texts = [{**row, "amount": str(row["amount"])} for row in shop.rows()[5:9]]
    mixed = shop.write(texts, columns=COLUMNS.replace("decimal(10, 2)", "string"))
    result = CliRunner().invoke(main, ["audit", shop.url, "orders", mixed, "--pause", "0"])
    assert result.exit_code == 2
    assert "different types for amount (decimal(10,2), string)" in result.stderr.replace(
        "amount (string, decimal(10,2))", "amount (decimal(10,2), string)"
    )
    assert "Write all files with one type" in result.stderr


def test_a_copy_without_a_profile_is_explained(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    result = CliRunner().invoke(main, ["audit", shop.url, "orders", "orders"])
    assert result.exit_code == 2
    assert "Or write COPY as a path with a slash, or add --copy-url" in result.stderr


def test_a_failed_audit_has_another_exit_code_than_a_difference(shop: Shop) -> None:
    copy = shop.write(shop.rows()[:5])
    url = shop.url.replace(PASSWORD, "wrong")
    result = CliRunner().invoke(main, ["audit", url, "orders", copy, "--pause", "0"])
    assert result.exit_code == 2
    assert "password" in result.stderr
    assert "Traceback" not in result.stderr
    for file in Path(copy).glob("*.parquet"):
        content = bytearray(file.read_bytes())
        content[4:60] = bytes(56)  # the header of the first page
        file.write_bytes(content)
    result = CliRunner().invoke(main, ["audit", shop.url, "orders", copy, "--pause", "0"])
    assert result.exit_code == 2
    assert f"error: audit of {copy}: " in result.stderr


def test_the_result_is_printed_if_the_report_cannot_be_written(shop: Shop) -> None:
    copy = shop.write(shop.rows()[:5])
    page = str(shop.folder / ("long" * 100))
    options = ("--pause", "0", "--report", page)
    result = CliRunner().invoke(main, ["audit", shop.url, "orders", copy, *options])
    assert result.exit_code == 2
    assert "it is 995 rows behind." in result.stdout
    assert f"{page}: it cannot be written: File name too long" in result.stderr


def test_a_sample_compares_a_share_of_the_keys(shop: Shop, spark: SparkSession) -> None:
    found = shop.audit(shop.write(shop.rows()), "--sample", "25%")
    assert found["share"] == 0.25
    assert 150 < found["rows_source"] == found["rows_copy"] < 350
