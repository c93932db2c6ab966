"""A connector in another package is found by its entry point, like the example in the docs."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from loader.sources import interface
from tests.sync.project import Project

AROUND = """
import datetime as dt
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from loader.rows.cursor import CursorType
from loader.sources.interface import *
from loader.spec.options import Name, Strict, TableOptions

SCHEMA = t.StructType().add("currency", "string").add("rate", "double").add("day", "date")


def fetch(url, since):
    rows = json.loads(Path(url).read_text())
    rows = [{**row, "day": dt.date.fromisoformat(row["day"])} for row in rows]
    return [row for row in rows if since is None or row["day"].isoformat() >= since]
"""


def test_a_copy_of_the_example_is_a_connector(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interface.__doc__ is not None
    example = interface.__doc__.partition("::\n")[2].partition("\nAll other methods")[0]
    (tmp_path / "copied_rates.py").write_text(AROUND + textwrap.dedent(example))
    described = tmp_path / "rates-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: rates\nVersion: 1.0\n")
    entry = "[strandline.sources]\nrates = copied_rates:ExchangeRates\n"
    (described / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(tmp_path))

    data = tmp_path / "rates.json"
    project.add("ecb", "rates", ["rates"], {"url": str(data)})
    usd = {"currency": "USD", "rate": 1.1, "day": "2025-01-01"}
    data.write_text(json.dumps([usd]))
    assert [e["appended"] for e in project.run().events if e["event"] == "table"] == [1]
    data.write_text(json.dumps([usd, {"currency": "CHF", "rate": 0.9, "day": "2025-01-02"}]))
    assert [e["appended"] for e in project.run().events if e["event"] == "table"] == [1]
    assert project.state("ecb.rates")["cursor"] == "2025-01-02"
    rows = project.rows("select currency, rate from raw.rates order by currency")
    assert rows == [("CHF", 0.9), ("USD", 1.1)]

    options = {"rates": {"mask": {"currency": "redact"}}}
    project.add("ecb", "rates", ["rates"], {"url": str(data), "table_options": options})
    [error] = project.loader("run").errors
    assert "this connector cannot mask columns" in error
