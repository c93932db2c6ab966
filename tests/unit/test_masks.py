"""Masks in the spec: their values, their precedence, and a key that is never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql import types as t

from loader.connectors.subprocess.json_schema import build_columns
from loader.connectors.subprocess.record_masks import RecordMasks
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.errors import SpecError, TableError
from loader.sources.interface import SourceTable, TableRef
from loader.sources.masked_source import find_masks
from loader.spec.options import TableOptions, options_for
from loader.spec.spec import Spec, load_spec
from loader.state import TableState

SPEC = """\
kind: source
spec:
  name: shop
  path: jdbc
  tables: [a]
  destinations: [lake]
  {}
  spec: {{url: "jdbc:derby:x"}}
---
kind: destination
spec: {{name: lake, path: spark}}
"""


def _load(tmp_path: Path, line: str, **env: str) -> Spec:
    file = tmp_path / "loader.yml"
    file.write_text(SPEC.format(line))
    return load_spec(file, env)


def test_spellings_of_masks() -> None:
    given = {"a": "hash", "b": None, "c": "null", "d": {"last": 4}, "e": "last: 12", "f": " year "}
    assert TableOptions(mask=given).mask == {
        "a": "hash",
        "b": "null",
        "c": "null",
        "d": "last: 4",
        "e": "last: 12",
        "f": "year",
    }


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("hsah", "'hsah' is not a mask"),
        ("", "'' is not a mask"),
        (4, "4 is not a mask"),
        (True, "True is not a mask"),
        ("last", "'last' is not a mask"),
        ("last: 0", "'last: 0' is not a mask"),
        ({"last": 0}, "`last` needs the number of characters"),
        ({"last": "x"}, "`last` needs the number of characters"),
        ({"first": 4}, "this is not a mask"),
        (["hash"], "this is not a mask"),
    ],
)
def test_an_invalid_mask_is_refused(mask: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TableOptions(mask={"a": mask})


def test_masks_of_several_entries_are_combined() -> None:
    """A later entry with other columns must not remove a mask."""
    options = {
        "*": TableOptions(mask={"email": "hash", "phone": "redact"}),
        "c*": TableOptions(mask={"phone": "null"}),
        "customers": TableOptions(mask={"card": {"last": 4}}),
    }
    assert options_for(options, "customers", TableOptions()).mask == {
        "email": "hash",
        "phone": "null",
        "card": "last: 4",
    }
    assert options_for(options, "orders", TableOptions()).mask == options["*"].mask


def test_a_name_overrides_wildcards() -> None:
    fields = [t.StructField(name, t.StringType()) for name in ("Email", "email_2", "phone*", "id")]
    table = SourceTable(TableRef("a"), t.StructType(fields))
    masks = {"EMAIL": "hash", "*": "redact", "e*": "domain", "phone*": "null"}
    assert find_masks(table, masks, "here") == {
        "Email": "hash",
        "email_2": "domain",
        "phone*": "null",
        "id": "redact",
    }
    assert find_masks(table, {"x*": "hash"}, "here") == {}
    with pytest.raises(TableError, match="no column 'emial' to mask"):
        find_masks(table, {"emial": "hash"}, "here")


def test_the_key_is_long_and_never_shown(tmp_path: Path) -> None:
    key = "0123456789abcdef"
    spec = _load(tmp_path, 'mask_key: "${MASK}"', MASK=key)
    assert spec.sources[0].mask_key is not None
    assert spec.sources[0].mask_key.get_secret_value() == key
    assert key not in repr(spec) + str(spec.sources[0])
    assert spec.redactor.redact(f"a {key} b") == "a *** b"
    (tmp_path / "key").write_text(f"{key}\n")
    assert spec.same_as(_load(tmp_path, 'mask_key: "${file:key}"'))
    assert not spec.same_as(_load(tmp_path, 'mask_key: "${MASK}"', MASK=key[::-1]))
    for line, message in (
        ('mask_key: "${MASK}"', "fewer than 16 bytes"),
        ("mask_key: ''", "fewer than 16 bytes"),
        ("mask_key: [short-secret]", "must be a string"),
        ("maks_key: short-secret", "unknown key"),
    ):
        with pytest.raises(SpecError) as found:
            _load(tmp_path, line, MASK="short-secret")
        shown = f"{found.value} {found.value.remedy}"
        assert message in shown
        assert "short-secret" not in shown


def test_a_state_with_masks_is_read_back_unchanged() -> None:
    state = TableState(3, masks={"columns": {"email": "hash"}, "key": "ab"})
    assert TableState.from_json(state.to_json(), "a.b") == state
    assert TableState.from_json('{"batch": 1}', "a.b").masks is None
    for masks in ('"x"', '{"columns": []}'):
        with pytest.raises(Exception, match="its entry 'masks' has the wrong type"):
            TableState.from_json(f'{{"batch": 1, "masks": {masks}}}', "a.b")


def test_values_that_no_column_can_store_are_hidden() -> None:
    """A connector's records keep such values in `_rest`, and errors quote them."""
    columns = build_columns(
        {"properties": {"id": {"type": "integer"}, "born": {"type": "string", "format": "date"}}},
        {},
    )
    schema = t.StructType().add("id", "string").add("born", "integer")
    masks = {"id": "hash", "born": "year"}
    fields = {**masks, "phone*": "last: 4", "fax*": "null"}
    layout = RecordLayout(
        "api.people", columns, ("id",), None, RecordMasks(schema, masks, fields, b"key")
    )
    record = {"born": "planted", "Phone_1": "planted", "fax_1": "planted", "note": "open"}
    assert layout.encode_record(record)[1] == {"r": '{"Phone_1":"***","born":"***","note":"open"}'}
    with pytest.raises(TableError) as caught:
        layout.encode_record({"id": "planted"})
    assert "a record's id is '***'" in str(caught.value)
    assert "planted" not in str(caught.value)
