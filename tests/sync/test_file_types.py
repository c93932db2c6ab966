"""Each type in Parquet, JSON and CSV files is read as the same type by all Spark versions."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from loader.lake.source_schema import PROPERTY, SourceSchema
from tests.sync.project import Project

AT = dt.datetime(2024, 1, 2, 3, 4, 5, 123456)
SHOWN = "2024-01-02 03:04:05.123456"
Type = tuple[pa.Array, str, str]
"""A value in Parquet, the type that it is read as, and the text of the value in the raw table."""

PARQUET: dict[str, Type] = {
    "i8": (pa.array([-7], pa.int8()), "tinyint", "-7"),
    "u8": (pa.array([200], pa.uint8()), "smallint", "200"),
    "i16": (pa.array([-7], pa.int16()), "smallint", "-7"),
    "u16": (pa.array([65535], pa.uint16()), "int", "65535"),
    "i32": (pa.array([-7], pa.int32()), "int", "-7"),
    "u32": (pa.array([4294967295], pa.uint32()), "bigint", "4294967295"),
    "i64": (pa.array([-7], pa.int64()), "bigint", "-7"),
    "u64": (pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)", "18446744073709551615"),
    "f32": (pa.array([1.5], pa.float32()), "float", "1.5"),
    "f64": (pa.array([1.5], pa.float64()), "double", "1.5"),
    "n9": (pa.array([Decimal("1.50")], pa.decimal128(9, 2)), "decimal(9,2)", "1.50"),
    "flag": (pa.array([True]), "boolean", "true"),
    "t": (pa.array(["ab"]), "string", "ab"),
    "b": (pa.array([b"ABC"]), "binary", "ABC"),
    "b3": (pa.array([b"ABC"], pa.binary(3)), "binary", "ABC"),
    "day": (pa.array([AT.date()]), "date", "2024-01-02"),
    "wall": (pa.array([AT], pa.timestamp("us")), "timestamp_ntz", SHOWN),
    "milli": (
        pa.array([AT.replace(microsecond=5000)], pa.timestamp("ms")),
        "timestamp_ntz",
        "2024-01-02 03:04:05.005",
    ),
    "nano": (pa.array([AT], pa.timestamp("ns")), "timestamp_ntz", SHOWN),
    "instant": (pa.array([AT], pa.timestamp("us", "UTC")), "timestamp", SHOWN),
    "many": (pa.array([[1, None]], pa.list_(pa.int16())), "array<smallint>", "[1, null]"),
    "walls": (
        pa.array([[AT]], pa.list_(pa.timestamp("us"))),
        "array<timestamp_ntz>",
        f"[{SHOWN}]",
    ),
    "pairs": (
        pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int32())),
        "map<string,int>",
        "{a -> 1, b -> null}",
    ),
    "zero": (
        pa.array([[(-0.0, 1)]], pa.map_(pa.float64(), pa.int32())),
        "map<double,int>",
        "{-0.0 -> 1}",
    ),
    "deep": (
        pa.array([{"a": 1, "b": {"c": AT}}]),
        "struct<a:bigint,b:struct<c:timestamp_ntz>>",
        f"{{1, {{{SHOWN}}}}}",
    ),
    "code": (pa.array(["x"]).dictionary_encode(), "string", "x"),
}
JSON: dict[str, tuple[object, str, str | None]] = {
    "i": (7, "bigint", "7"),
    "big": (9007199254740993, "bigint", "9007199254740993"),
    "n": (1.5, "double", "1.5"),
    "e": (1e300, "double", "1.0E300"),
    "flag": (True, "boolean", "true"),
    "t": ("ab", "string", "ab"),
    "empty": ("", "string", ""),
    "none": (None, "string", None),
    "many": ([1, None], "array<bigint>", "[1, null]"),
    "mixed": ([1, "a"], "array<string>", "[1, a]"),
    "nobody": ([], "array<string>", "[]"),
    "deep": ({"a": {"b": [1.5]}}, "struct<a:struct<b:array<double>>>", "{{[1.5]}}"),
    "zoned": ("2024-01-02T03:04:05+02:00", "string", "2024-01-02T03:04:05+02:00"),
}
TEXTS: list[tuple[str, str, str | None]] = [
    ("tinyint", "7", "7"),
    ("int", "007", "7"),
    ("bigint", "9007199254740993", "9007199254740993"),
    ("decimal(9,2)", "1.500", "1.50"),
    ("double", "1e3", "1000.0"),
    ("double", "NaN", "NaN"),
    ("float", "1.1", "1.1"),
    ("boolean", "TRUE", "true"),
    ("date", "2024-1-2", "2024-01-02"),
    ("timestamp", "2024-01-02 03:04:05.123456", SHOWN),
    ("timestamp", "2024-01-02T03:04:05+02:00", "2024-01-02 01:04:05"),
    ("timestamp_ntz", "2024-01-02", "2024-01-02 00:00:00"),
    ("string", " b ", " b "),
    ("string", "", None),
]
"""Types that the spec declares, texts in a CSV file, and texts of the values in the raw table."""


def test_file_values_are_read_with_the_expected_types(project: Project) -> None:
    data = project.folder / "data"
    data.mkdir()
    values = {name: array for name, (array, *_) in PARQUET.items()}
    pq.write_table(pa.table({"id": [1], **values}), data / "parquet.parquet")
    row = {"id": 1, **{name: value for name, (value, *_) in JSON.items()}}
    (data / "json.json").write_text(json.dumps(row) + "\n")
    names = [f"v{i}" for i in range(len(TEXTS))]
    texts = [text for _, text, _ in TEXTS]
    (data / "csv.csv").write_text(f"id,{','.join(names)}\n1,{','.join(texts)}\n")
    (data / "plain.csv").write_text(f"id,{','.join(names)}\n1,{','.join(texts)}\n")
    declared = [f"{name} {kind}" for name, (kind, *_) in zip(names, TEXTS, strict=True)]
    options = {
        "parquet": {},
        "json": {"format": "json"},
        "csv": {"format": "csv", "column_types": f"id int, {', '.join(declared)}"},
        "plain": {"format": "csv"},
    }
    own = {"path": "data", "format": "parquet", "table_options": options}
    project.add("drop", "file", list(options), own)
    project.run()
    assert _read_types(project, "parquet", list(PARQUET)) == {n: t[1:] for n, t in PARQUET.items()}
    assert _read_types(project, "json", list(JSON)) == {n: t[1:] for n, t in JSON.items()}
    assert _read_types(project, "csv", names) == {
        name: (kind, shown) for name, (kind, _, shown) in zip(names, TEXTS, strict=True)
    }
    assert _read_types(project, "plain", names) == {
        name: ("string", text or None) for name, text in zip(names, texts, strict=True)
    }
    assert {one["status"] for one in project.run().events if one["event"] == "table"} == {
        "nothing new"
    }


def _read_types(
    project: Project, table: str, names: list[str]
) -> dict[str, tuple[str, str | None]]:
    """Returns each column's type and the text of its value in the raw table."""
    reported = dict(project.rows(f"show tblproperties raw.{table}"))[PROPERTY]
    read = SourceSchema.parse(reported, table).columns
    texts = [f"cast(`{name}` as string) as `{name}`" for name in names]
    [row] = project.lake().frame(table).selectExpr(*texts).collect()
    return {name: (read[name].dataType.simpleString(), row[name]) for name in names}


def test_declared_types_apply_to_their_columns_only(project: Project) -> None:
    """Other columns keep their types; in each format, a value that does not fit fails the table."""
    data = project.folder / "data"
    data.mkdir()
    rows: dict[str, dict[str, object]] = {
        "fits": {"id": 7, "price": 1.5, "code": "007", "flag": True, "list": [1, 2]},
        "rounds": {"id": 7, "price": 1.555, "code": "007", "flag": True, "list": [1, 2]},
        "odd": {"id": 7, "price": 1.5, "code": "x", "flag": True, "list": [1, 2]},
    }
    chosen = {"ID": "string", "price": "decimal(9, 2)", "code": "int", "list": "string"}
    options: dict[str, dict[str, object]] = {}
    for name, row in rows.items():
        pq.write_table(pa.table({k: [v] for k, v in row.items()}), data / f"{name}_parquet.parquet")
        (data / f"{name}_json.json").write_text(json.dumps(row) + "\n")
        flat = {k: v for k, v in row.items() if k != "list"}
        (data / f"{name}_csv.csv").write_text(
            f"{','.join(flat)}\n{','.join(map(str, flat.values()))}\n"
        )
        for form in ("parquet", "json", "csv"):
            types = {k: v for k, v in chosen.items() if form != "csv" or k != "list"}
            options[f"{name}_{form}"] = {"format": form, "column_types": types}
    for name in ("fits", "rounds"):
        options[f"{name}_ddl"] = {
            "format": "json",
            "column_types": "id string, price decimal(9, 2)",
            "path": f"{name}_json.json",
        }
    options["typo"] = {"path": "fits_csv.csv", "format": "csv", "column_types": {"prize": "int"}}
    own = {"path": "data", "format": "parquet", "table_options": options}
    project.add("drop", "file", list(options), own)
    errors = {error.split(",")[0].split(":")[0]: error for error in project.loader("run").errors}
    forms = ("parquet", "json", "csv")
    wrong = [*(f"{name}_{form}" for name in ("rounds", "odd") for form in forms), "rounds_ddl"]
    assert set(errors) == {f"table drop.{name}" for name in (*wrong, "typo")}
    for form in (*forms, "ddl"):
        expected = {"id": ("string", "7"), "price": ("decimal(9,2)", "1.50")}
        if form != "ddl":
            expected["code"] = ("int", "7")
            expected["flag"] = ("string", "True") if form == "csv" else ("boolean", "true")
        if form in ("parquet", "json"):
            # Spark 4 keeps the text of nested JSON; Spark 3.5 rewrites it without spaces.
            exact = form == "json" and not pyspark.__version__.startswith("3.")
            expected["list"] = ("string", "[1, 2]" if exact else "[1,2]")
        assert _read_types(project, f"fits_{form}", list(expected)) == expected, form
        error = errors[f"table drop.rounds_{form}"]
        assert "price has the value '1.555" in error
        assert "which decimal(9,2) cannot store exactly" in error
    for form in ("parquet", "json"):
        assert "code has the value 'x', which int cannot store" in errors[f"table drop.odd_{form}"]
    assert "Did you mean `price`?" in errors["table drop.typo"]
