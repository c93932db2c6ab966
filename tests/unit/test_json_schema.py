"""The JSON Schema of loader.yml and the loader accept and refuse the same documents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from loader.cli import main
from loader.cli.setup import render_schema
from loader.errors import SpecError
from loader.sources.entry_points import GROUP, find_connector
from loader.spark import setup
from loader.spec import entry_points
from loader.spec.document import read_documents
from loader.spec.entry_points import list_plugins
from loader.spec.json_schema import describe_attributes
from loader.spec.spec import load_spec

ROOT = Path(__file__).resolve().parents[2]
SCHEMA: dict[str, Any] = json.loads(render_schema(pytest.fail))
VALIDATOR = Draft7Validator(SCHEMA)

MINIMAL: dict[str, dict[str, Any]] = {
    "jdbc": {"url": "jdbc:postgresql://localhost/shop"},
    "file": {"path": "files", "format": "csv"},
    "airbyte": {"command": "source-faker"},
    "singer": {"command": ["tap-github", "-v"]},
    "cloudquery": {"connection": "localhost:7777"},
}
STATE = {"connection_string": "state.db"}
LAKE = {"kind": "destination", "spec": {"name": "lake", "path": "spark"}}


def _source(path: str, /, **options: Any) -> dict[str, Any]:
    spec = {**deepcopy(MINIMAL[path]), **options}
    outer = {"name": "shop", "path": path, "tables": ["orders"], "destinations": ["lake"]}
    return {"kind": "source", "spec": {**outer, "spec": spec}}


def _table(path: str, /, **options: Any) -> dict[str, Any]:
    return _source(path, table_options={"orders": options})


def _outer(**keys: Any) -> dict[str, Any]:
    document = _source("jdbc")
    document["spec"] |= keys
    return document


def _state(path: str, **keys: Any) -> dict[str, Any]:
    return {"kind": "destination", "spec": {"name": "state", "path": path, **keys}}


def _refusal(folder: Path, document: Any) -> str | None:
    """Returns the loader's error for a document, or None."""
    path = folder / "loader.yml"
    needed = [] if document.get("spec", {}).get("name") == "lake" else [LAKE]
    documents = (document, *needed)
    # JSON is valid YAML, floats included.
    path.write_text("\n---\n".join(json.dumps(each) for each in documents), encoding="utf-8")
    try:
        spec = load_spec(path, {"N": "4", "MODE": "full_refresh"}, needs_source=False)
        for source in spec.sources:
            source.options(find_connector(source.path, "path").options_model)
    except SpecError as error:
        return str(error)
    return None


ACCEPTED: dict[str, Any] = {
    **{f"minimal {path}": _source(path) for path in MINIMAL},
    "a lake": LAKE,
    "a lake without options": {"kind": "destination", "spec": {**LAKE["spec"], "spec": None}},
    "state": _state("sqlite", spec=STATE),
    "a variable for a number": _outer(concurrency="${N}"),
    "a quoted number": _outer(concurrency="4"),
    "a variable for a choice": _table("jdbc", sync_mode="${MODE}"),
    "a default": _table("jdbc", num_partitions="${UNSET:-4}"),
    "a reference": _outer(backend_options={"connection": "@@plugins.lake.connection"}),
    "no backend": _outer(backend="none"),
    "no backend options": _outer(backend_options=None),
    "local state": _outer(backend="local", backend_spec={"path": "state"}),
    "a schema": _outer(schema="sales"),
    "one cursor": _table("jdbc", cursor_field="updated_at"),
    "several cursors": _table("jdbc", cursor_field=["updated_at", "xmin"], primary_key="id"),
    "a column that is a number": _table("jdbc", primary_key=[2024]),
    "a lookback": _table("jdbc", lookback="1h 30m"),
    "a lookback in steps": _table("jdbc", lookback=100),
    "no lookback": _table("jdbc", lookback=None),
    "an initial cursor": _table("jdbc", initial_cursor=42),
    "an interval of sweeps": _table("jdbc", sweep="10 minutes"),
    "sweeps": _table("jdbc", sweep="always"),
    "the default of sweeps": _table("jdbc", sweep=None),
    "cdc": _table("jdbc", sync_mode="cdc"),
    "types": _table("jdbc", column_types={"rate": "numeric(18, 2)", "n": "STRING"}),
    "ddl": _table("file", column_types="id bigint, note string"),
    "a boolean as text": _source("file", follow_links="yes"),
    "seconds": _source("singer", timeout=90, batch_time="2h"),
    "a password of digits": _source("jdbc", password=123),
    "properties of a driver": _source("jdbc", properties={"prepareThreshold": 0, "ssl": True}),
    "a single column": _table("airbyte", columns="secret_*"),
    "columns": _table("jdbc", columns=["id", "addr_*"]),
    "excluded columns": _table("file", columns={"exclude": "secret_*"}),
    "masks": _table("jdbc", mask={"email": "domain", "card": {"last": 4}, "note": None}),
    "rows": _table("jdbc", where="id > 3"),
    "a query": _table("jdbc", query="select 1 as id"),
    "reconcile": _table("jdbc", reconcile={"every": "1 day", "budget": "10 %"}),
    "anything in config": _source("airbyte", config={"start": 1, "deep": {"x": [None, True]}}),
    "no config": _source("airbyte", config=None),
}

REFUSED: dict[str, Any] = {
    "a kind": {"kind": "sources", "spec": {}},
    "no spec": {"kind": "source"},
    "a connector": {"kind": "source", "spec": {**_source("jdbc")["spec"], "path": "jdcb"}},
    "no url": {"kind": "source", "spec": {**_source("jdbc")["spec"], "spec": {}}},
    "no options": {
        "kind": "source",
        "spec": {k: v for k, v in _source("jdbc")["spec"].items() if k != "spec"},
    },
    "a store": _state("postgres", spec=STATE),
    "no connection string": _state("redis", spec={}),
    "state with a profile": _state("sqlite", spec={**STATE, "profile": "x"}),
    "a lake with a connection": {"kind": "destination", "spec": {**LAKE["spec"], "spec": STATE}},
    "a string of tables": _outer(tables="orders"),
    "no tables": _outer(tables=[]),
    "no concurrency": _outer(concurrency=0),
    "a word as a number": _outer(concurrency="four"),
    "a mode": _table("jdbc", sync_mode="incremetal"),
    "cdc of files": _table("file", sync_mode="cdc"),
    "a number as a mode": _table("jdbc", sync_mode=1),
    "a lookback": _table("jdbc", lookback="soon"),
    "a list of lookbacks": _table("jdbc", lookback=["1h"]),
    "a sweep": _table("jdbc", sweep="sometimes"),
    "a lock timeout": _source("jdbc", lock_timeout="long"),
    "ddl": _table("jdbc", column_types="id bigint"),
    "types in columns": _table("jdbc", columns={"id": "bigint"}),
    "a mask": _table("jdbc", mask={"email": "hsah"}),
    "no time to reconcile": _table("jdbc", reconcile={"budget": "5 %"}),
    "no options of a table": _source("jdbc", table_options={"orders": None}),
    "a number as a boolean": _source("file", follow_links="perhaps"),
    "an option of another connector": _source("file", url="jdbc:x"),
    "an option of another connector's table": _table("file", sweep="auto"),
    "seconds": _source("singer", timeout="a while"),
    "no seconds": _source("singer", timeout=0),
    "a write mode": {"kind": "destination", "spec": {**LAKE["spec"], "write_mode": "overwrite"}},
}


@pytest.mark.parametrize("document", ACCEPTED.values(), ids=ACCEPTED)
def test_both_accept(tmp_path: Path, document: Any) -> None:
    assert _refusal(tmp_path, document) is None
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED)
def test_both_refuse(tmp_path: Path, document: Any) -> None:
    assert _refusal(tmp_path, document) is not None
    assert not VALIDATOR.is_valid(document)


def _levels() -> dict[str, Callable[[str], Any]]:
    levels: dict[str, Callable[[str], Any]] = {
        "document": lambda key: {**_source("jdbc"), key: 1},
        "source": lambda key: _outer(**{key: 1}),
        "backend_options": lambda key: _outer(backend_options={key: 1}),
        "lake": lambda key: {"kind": "destination", "spec": {**LAKE["spec"], key: 1}},
        "lake options": lambda key: {
            "kind": "destination",
            "spec": {**LAKE["spec"], "spec": {key: 1}},
        },
        "state": lambda key: _state("sqlite", spec=STATE, **{key: 1}),
        "state options": lambda key: _state("sqlite", spec={**STATE, key: 1}),
    }
    for path in MINIMAL:
        levels[f"{path} options"] = lambda key, path=path: _source(path, **{key: 1})  # type: ignore[misc]
        levels[f"{path} table"] = lambda key, path=path: _table(path, **{key: 1})  # type: ignore[misc]
    return levels


@pytest.mark.parametrize("level", _levels())
@pytest.mark.parametrize("key", ["cursor_filed", "urls", "x"])
def test_both_refuse_an_unknown_key(tmp_path: Path, level: str, key: str) -> None:
    document = _levels()[level](key)
    assert "unknown key" in (_refusal(tmp_path, document) or "")
    assert not VALIDATOR.is_valid(document)


def _properties(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = SCHEMA["definitions"][name]["properties"]
    return properties


_SCALARS = st.one_of(
    st.none(),
    st.integers(-2, 3),
    st.sampled_from(["", "a", "4", "1h", "10 minutes", "true", "no", "include", "auto", "string"]),
    st.sampled_from(["${N}", "${UNSET:-1}", "full_refresh", "decimal(3, 1)", "UTC", "a, b"]),
    st.floats(0, 2),
)
_VALUES = st.one_of(
    _SCALARS,
    st.lists(_SCALARS, max_size=2),
    st.dictionaries(st.sampled_from(["a", "b"]), _SCALARS, max_size=2),
)


@given(data=st.data())
@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_schema_refuses_nothing_that_the_loader_accepts(
    tmp_path: Path, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(MINIMAL)))
    models = {
        model.__name__: model
        for model in (find_connector(path, "path").options_model,)
        for model in (model, model.model_fields["table_options"].annotation.__args__[1])
    }
    level, model = data.draw(st.sampled_from(sorted(models.items())))
    keys = st.sampled_from(sorted(field.alias or n for n, field in model.model_fields.items()))
    keys = keys.filter(lambda key: key != "table_options")
    options = data.draw(st.dictionaries(keys, _VALUES, max_size=2))
    for key, value in options.items():
        field = model.model_fields.get(key)  # pydantic takes 0 and 1.0 as booleans
        assume(not (field and field.annotation is bool and isinstance(value, int | float)))
    document = _table(path, **options) if "TableOptions" in level else _source(path, **options)
    if _refusal(tmp_path, document) is None:
        assert [error.message for error in VALIDATOR.iter_errors(document)] == []


@pytest.mark.parametrize("path", ["loader.yml", "loader/spark/templates/loader.yml"])
def test_the_specs_of_the_repository_are_valid(path: str) -> None:
    documents = read_documents((ROOT / path).read_text(encoding="utf-8"), path)
    assert len(documents) == 2
    for document in documents:
        assert [error.message for error in VALIDATOR.iter_errors(document.value)] == []


def test_the_specs_of_the_documentation_are_valid() -> None:
    checked = 0
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            if not re.search(r"^kind: (source|destination)", block, re.M) or re.search(
                "…|sync.yml", block
            ):
                continue
            for document in read_documents(block, page.name):
                errors = [error.message for error in VALIDATOR.iter_errors(document.value)]
                assert errors == [], (page.name, block)
                checked += 1
    assert checked > 5


def test_every_option_has_a_description() -> None:
    bare = [
        f"{name}.{key}"
        for name, definition in SCHEMA["definitions"].items()
        for key, part in definition.get("properties", {}).items()
        if not part.get("description")
    ]
    assert bare == []


def test_every_option_is_in_the_reference() -> None:
    pages = [ROOT / "docs" / "spec.md", ROOT / "docs" / "connectors.md"]
    pages += sorted((ROOT / "docs" / "connectors").glob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    absent = [
        f"{name}.{key}"
        for name, definition in SCHEMA["definitions"].items()
        for key in definition.get("properties", {})
        if not re.search(rf"[`.]{key}\b", text)
    ]
    assert absent == []


def test_descriptions_and_defaults_are_the_models() -> None:
    options = _properties("JdbcTableOptions")
    assert options["sync_mode"]["description"].startswith("`incremental` reads rows")
    assert "Can also be `cdc`" in options["sync_mode"]["description"]
    assert options["sync_mode"]["default"] == "incremental"
    [choices, variable] = options["sync_mode"]["anyOf"]
    assert choices["enum"] == ["incremental", "full_refresh", "cdc"]
    assert variable["type"] == "string"
    assert _properties("JdbcOptions")["lock_timeout"]["default"] == "30 seconds"
    assert ":func:" not in json.dumps(SCHEMA)
    assert set(describe_attributes(find_connector("jdbc", "path").options_model)) >= {"url", "slot"}


def test_the_schema_is_valid() -> None:
    Draft7Validator.check_schema(SCHEMA)


def test_each_document_of_a_new_project_refers_to_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The YAML language server reads the schema comment of each document separately."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["init"])
    assert done.exit_code == 0, done.output
    for document in (tmp_path / "loader.yml").read_text().split("---\n"):
        [path] = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", document, re.M)
        assert json.loads((tmp_path / path).read_text()) == SCHEMA
    assert (tmp_path / ".gitignore").read_text().splitlines().count(".strandline/") == 1

    (tmp_path / setup.SCHEMA).unlink()  # as in a clone
    monkeypatch.setattr(setup, "prepare", lambda *_: None)
    done = CliRunner().invoke(main, ["setup", "--no-archive"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / setup.SCHEMA).read_text()) == SCHEMA


def test_a_connector_that_cannot_be_imported_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_package:Source", GROUP)
    plugins = {**list_plugins(GROUP), "broken": broken}
    monkeypatch.setattr(
        entry_points, "list_plugins", lambda group: plugins if group == GROUP else {}
    )
    warnings: list[str] = []
    schema = json.loads(render_schema(warnings.append))
    [warning] = warnings
    assert "no_such_package" in warning
    document = _source("jdbc")
    document["spec"] |= {"path": "broken", "spec": {"any": "thing"}}
    assert Draft7Validator(schema).is_valid(document)
