"""loader.yml: what is accepted, and errors that name the document, the key and the remedy."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loader.duration import Lookback
from loader.errors import SpecError
from loader.spec.options import TableOptions
from loader.spec.plugins import LakeOptions, StateStoreOptions
from loader.spec.redaction import redact_foreign
from loader.spec.spec import Spec, load_spec

LAKE = """
---
kind: destination
spec:
  name: lake
  path: spark
"""
SHOP = """
kind: source
spec:
  name: shop
  path: jdbc
  tables: [orders]
  destinations: [lake]
"""


class Options(BaseModel):
    """The options of a third-party connector."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    user: str | None = None
    password: str | None = None
    port: int = 0
    kind: int | bool | None = None
    table_options: dict[str, TableOptions] = Field(default_factory=dict)


def load(folder: Path, text: str, **env: str) -> Spec:
    path = folder / "loader.yml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return load_spec(path, env)


def refused(folder: Path, text: str, **env: str) -> str:
    with pytest.raises(SpecError) as raised:
        load(folder, text, **env)
    assert raised.value.exit_code == 2
    return str(raised.value).replace(f"{folder}/", "")


def test_a_complete_example(tmp_path: Path) -> None:
    spec = load(
        tmp_path,
        """
        kind: source
        spec:
          name: shop
          path: jdbc                          # ${NOT_EXPANDED}
          version: 1.0
          registry: cloudquery
          tables: ["orders", "customers"]
          skip_tables: []
          destinations: [lake]
          backend_options:
            table_name: _cq_state
            connection: "@@plugins.lake.connection"
          spec:
            url: "jdbc:postgresql://localhost/shop"
            user: "${PGUSER}"
            password: "${PGPASSWORD}"
            table_options:
              orders:
                sync_mode: incremental
                cursor_field: updated_at
                primary_key: [order_id]
                initial_cursor: 2025-01-01
                lookback: 10 minutes
                null_cursor: include
                redelivered_rows: drop
        ---
        kind: destination
        spec:
          name: lake
          path: spark
          write_mode: append
          spec:
            profile: strandline
            target: embedded
            schema: raw
        """,
        PGUSER="postgres",
        PGPASSWORD='p#w: "x"',
    )
    shop, lake = spec.source("shop"), spec.destination("lake")
    assert spec.folder == tmp_path
    assert shop.tables == ("orders", "customers")
    assert (shop.state_destination, shop.backend_options.table_name) == ("lake", "_cq_state")
    assert lake.connection == shop.backend_options.connection == "strandline://lake"
    assert lake.spec == LakeOptions(profile="strandline", target="embedded", schema="raw")
    options = shop.options(Options)
    assert options.password == 'p#w: "x"'
    assert options.table_options["orders"] == TableOptions(
        cursor_field="updated_at",
        primary_key=("order_id",),
        initial_cursor="2025-01-01",
        lookback=Lookback(600, None, "10 minutes"),
    )


def test_defaults(tmp_path: Path) -> None:
    spec = load(tmp_path, SHOP + LAKE)
    shop = spec.source("shop")
    assert (shop.state_destination, shop.state_table, shop.local_state) == (
        "lake",
        "_cq_state",
        None,
    )
    assert (shop.concurrency, shop.spec, shop.skip_tables) == (None, {}, ())
    lake = spec.destination("lake")
    assert lake.lake == LakeOptions(profile="strandline", target=None, schema="raw")
    assert lake.write_mode == "append"


def test_a_loaded_spec_is_immutable(tmp_path: Path) -> None:
    spec = load(tmp_path, SHOP + LAKE)
    for model in (spec, spec.sources[0], spec.destinations[0], TableOptions()):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(model, next(iter(type(model).model_fields)), "x")


@pytest.mark.parametrize("path", ["sqlite", "postgresql", "redis"])
def test_state_in_another_store(tmp_path: Path, path: str) -> None:
    store = LAKE.replace("lake", "store").replace("spark", path)
    text = SHOP + '  backend_options: {connection: "@@plugins.store.connection"}' + LAKE + store
    spec = load(tmp_path, text + "  spec: {connection_string: 'x://u:hunter22@h'}")
    assert spec.source("shop").state_destination == "store"
    assert spec.destination("store").spec == StateStoreOptions(connection_string="x://u:hunter22@h")
    assert "hunter22" not in repr(spec)


def test_the_older_local_backend(tmp_path: Path) -> None:
    local = SHOP + "  backend: local\n"
    assert load(tmp_path, local + LAKE).source("shop").local_state == ".cq/state"
    spec = load(tmp_path, local + "  backend_spec: {path: here}" + LAKE)
    assert spec.source("shop").local_state == "here"
    assert load(tmp_path, SHOP + "  backend: none" + LAKE).source("shop").local_state is None
    both = local + "  backend_options: {table_name: x}" + LAKE
    assert "both set the store of cursors. Keep one" in refused(tmp_path, both)
    orphan = SHOP + "  backend_spec: {path: x}" + LAKE
    assert "Add `backend: local`" in refused(tmp_path, orphan)


def test_a_source_and_a_destination_may_share_a_name(tmp_path: Path) -> None:
    text = (SHOP + '  backend_options: {connection: "@@plugins.shop.connection"}' + LAKE).replace(
        "lake", "shop"
    )
    assert load(tmp_path, text).source("shop").state_destination == "shop"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "tables:",
            "tabels:",
            [
                "document 1 (source shop), spec.tabels: unknown key. Did you mean `tables`?",
            ],
        ),
        (
            "tables: [orders]",
            "tables: []",
            ["spec.tables: must not be empty. List at least one value"],
        ),
        (
            "tables: [orders]",
            "tables: orders",
            ["spec.tables: must be a list, not 'orders'. Write [\"orders\"]"],
        ),
        ("tables: [orders]", "tables: [orders, orders]", ["'orders' appears twice here"]),
        ("tables: [orders]", "tables: [a, '']", ["spec.tables[1]: must not be empty"]),
        ("tables: [orders]", "tables: [a, [b]]", ["spec.tables[1]: must be a string"]),
        (
            "destinations: [lake]",
            "x: 1",
            [
                "spec.destinations: this key is missing",
                "spec.x: unknown key. Valid keys: name, version",
            ],
        ),
        ("destinations: [lake]", "destinations: []", ["spec.destinations: must not be empty"]),
        (
            "destinations: [lake]",
            "destinations: [lake, archive]",
            [
                "spec.destinations: a source loads into one destination, but this source has 2. "
                "Keep one of them"
            ],
        ),
        (
            "destinations: [lake]",
            "destinations: [lak]",
            ["spec.destinations[0]: there is no destination 'lak'. Did you mean `lake`?"],
        ),
        (
            "name: shop",
            "name: my.shop",
            ["(source my.shop), spec.name: 'my.shop' is not a valid name. Use letters"],
        ),
        ("name: shop", "name: ''", ["spec.name: "]),
        ("name: shop", "nam: shop", ["document 1, spec.nam: unknown key. Did you mean `name`?"]),
        (
            "path: jdbc",
            "concurrency: 0",
            [
                "spec.path: this key is missing",
                "spec.concurrency: should be greater than or equal to 1, not 0",
            ],
        ),
        (
            "path: jdbc",
            "path: jdbc\n  concurrency: two",
            ["spec.concurrency: must be a whole number", "'two'. Use a whole number"],
        ),
        (
            "path: jdbc",
            "path: jdbc\n  backend: lokal",
            ["spec.backend: must be 'local', not 'lokal'. Did you mean `local`?"],
        ),
        (
            "path: jdbc",
            "path: jdbc\n  backend_options: {table: x}",
            ["spec.backend_options.table: unknown key. Did you mean `table_name`?"],
        ),
        (
            "path: jdbc",
            "path: jdbc\n  backend_options: {table_name: _CQ_locks}",
            ["spec.backend_options.table_name: '_CQ_locks' is reserved for the loader's other"],
        ),
        (
            "path: jdbc",
            "path: jdbc\n  backend_options: {connection: 'localhost:7777'}",
            ["not the connection of a destination", "@@plugins.<name"],
        ),
        (
            "kind: source",
            "kind: sauce",
            ["document 1 (sauce shop), kind: unknown kind 'sauce'. Did you mean `source`?"],
        ),
        (
            "kind: source",
            "kind: transformer",
            ["unknown kind 'transformer'. Use `source` or `destination`"],
        ),
        ("kind: source", "", ["document 1, kind: this key is missing. Add `kind: source`"]),
        (
            "kind: source",
            "kind: source\nspecs: {}",
            ["document 1 (source shop), specs: unknown key. Did you mean `spec`?"],
        ),
        ("path: jdbc", "path: '${NOPE}'", ["spec.path: the environment variable NOPE is not set"]),
        ("name: lake", "name: lak", ["there is no destination 'lake'. Did you mean `lak`?"]),
        (
            "path: spark",
            "path: cloudquery/postgresql",
            ["must be 'spark', 'sqlite', 'postgresql' or 'redis', not 'cloudquery/postgresql'"],
        ),
        (
            "path: spark",
            "pat: spark",
            ["document 2 (destination lake), spec.pat: unknown key. Did you mean `path`?"],
        ),
        (
            "path: spark",
            "path: sqlite",
            ["document 2 (destination lake), spec.spec: this key is missing"],
        ),
        (
            "path: spark",
            "path: sqlite\n  spec: {connection_string: x}",
            ["spec.destinations[0]: lake (sqlite) can store only state, not tables. Use a "],
        ),
        (
            "path: spark",
            "path: spark\n  spec: {shema: x}",
            ["document 2 (destination lake), spec.spec.shema: unknown key. Did you mean `schema`?"],
        ),
        (
            "path: spark",
            "path: spark\n  spec: {schema_: x}",
            ["spec.spec.schema_: unknown key. Did you mean `schema`?"],
        ),
        (
            "path: spark",
            "path: spark\n  write_mode: overwrite",
            [
                "spec.write_mode: 'overwrite' is not possible: rows are only appended to raw",
                "materialized: deduped_latest`",
            ],
        ),
        (
            "path: spark",
            "path: spark\n  write_mode: overwrite-delete-stale",
            ["`materialized: deduped_latest` and `meta: {strandline: {delete_stale: true}}`"],
        ),
        (
            "path: spark",
            "path: spark\n  write_mode: apend",
            ["must be 'append', not 'apend'. Did you mean `append`?"],
        ),
    ],
)
def test_errors_name_document_key_and_remedy(
    tmp_path: Path, old: str, new: str, says: list[str]
) -> None:
    text = SHOP + LAKE
    assert old in text
    message = refused(tmp_path, text.replace(old, new, 1))
    for part in says:
        assert part in message


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    text = SHOP.replace("tables", "tabels") + LAKE.replace("spark", "sparc")
    message = refused(tmp_path, text)
    assert message.startswith(
        "loader.yml: 2 problems:\n- loader.yml, document 1 (source shop), spec."
    )
    assert message.count("\n- ") == 2
    missing = refused(tmp_path, SHOP.replace("jdbc", "${A_}").replace("orders", "'${B_}'") + LAKE)
    assert "A_ is not set" in missing
    assert "B_ is not set" in missing


def test_the_same_name_twice(tmp_path: Path) -> None:
    message = refused(tmp_path, SHOP + "---" + SHOP + LAKE)
    assert (
        message
        == "loader.yml, document 2 (source shop), spec.name: the name 'shop' is already used by "
        "document 1 (source shop). Rename one of them"
    )
    assert "'lake' is already used by document 2" in refused(tmp_path, SHOP + LAKE + LAKE)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "loader.yml: the spec is empty. Delete it, and run `loader init`"),
        ("# nothing\n---\n", "the spec is empty"),
        ("just text", "document 1: a document must have the keys `kind` and `spec`"),
        ("[1, 2]", "document 1: a document must have the keys"),
        ("kind: source", "document 1, spec: this key is missing. Add `spec:`"),
        ("kind: source\nspec: x", "document 1, spec: must be a mapping"),
        ("kind: [a]\nspec: {name: x}", "unknown kind ['a']"),
        ("a: b: c", "loader.yml:1:5: not valid YAML: mapping values are not allowed"),
        (LAKE, "loader.yml: there is no source. Add a document with `kind: source`"),
    ],
)
def test_a_file_that_is_not_a_spec(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(tmp_path, text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no such spec file\. Run `loader init`"):
        load_spec(tmp_path / "nope.yml", {})
    with pytest.raises(SpecError, match=r"a folder, not a spec file. Pass the file.*loader\.yml"):
        load_spec(tmp_path, {})
    (tmp_path / "loader.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        load_spec(tmp_path / "loader.yml", {})


def test_relative_paths_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/loader.yml").write_text(SHOP.replace("jdbc", "${file:kind}") + LAKE)
    (tmp_path / "conf/kind").write_text("jdbc\n")
    monkeypatch.chdir(tmp_path)
    spec = load_spec(Path("conf/loader.yml"), {})
    assert spec.folder == tmp_path / "conf"
    assert spec.source("shop").path == "jdbc"


def test_unknown_sources_and_destinations(tmp_path: Path) -> None:
    spec = load(tmp_path, SHOP + LAKE)
    with pytest.raises(SpecError, match=r"no source 'shp'\. Did you mean `shop`"):
        spec.source("shp")
    with pytest.raises(SpecError, match=r"no destination 'x'\. Existing names: lake"):
        spec.destination("x")


def test_the_process_environment_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_TEST_CONNECTOR", "file")
    (tmp_path / "l.yml").write_text(SHOP.replace("jdbc", "${STRANDLINE_TEST_CONNECTOR}") + LAKE)
    assert load_spec(tmp_path / "l.yml").source("shop").path == "file"


# Secrets


def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("file-secret\n")
    text = SHOP + (
        "  spec:\n"
        "    url: 'jdbc:postgresql://bob:url-secret@h/x?password=query-secret'\n"
        "    user: '${PGUSER}'\n"
        "    password: '${PGPASSWORD}'\n"
        "    token: literal-secret\n"
        "    properties: {ssl: {passphrase: 01234567}}\n"
        "    other: '${file:token}'\n"
    )
    spec = load(tmp_path, text + LAKE, PGUSER="postgres", PGPASSWORD="it's\\secret")
    source = spec.source("shop")
    for shown in (repr(spec), str(spec), repr(source), str(source), f"{source}", repr([source])):
        for secret in ("-secret", "\\\\secret", "01234567"):
            assert secret not in shown
        assert "jdbc:postgresql://" in shown
    assert source.spec["password"] == "it's\\secret"
    assert source.spec["properties"] == {"ssl": {"passphrase": "01234567"}}
    log = "login url-secret query-secret literal-secret it%27s%5Csecret file-secret 01234567"
    assert spec.redactor.redact(log) == "login *** *** *** *** *** ***"
    assert "'user': 'postgres'" in shown


def test_names_stay_readable_even_if_the_password_is_the_same(tmp_path: Path) -> None:
    text = SHOP + "  spec: {url: 'jdbc:x://h/${DB}', user: '${USER_}', password: '${PW}'}\n"
    spec = load(tmp_path, text + LAKE, DB="shop", USER_="keeper", PW="hunter22")
    assert spec.redactor.redact("shop.orders by keeper") == "shop.orders by keeper"
    spec = load(tmp_path, text + LAKE, DB="d1", USER_="keeper7", PW="keeper7")
    assert spec.redactor.redact('alter role "keeper7"') == 'alter role "keeper7"'
    assert redact_foreign("the password is keeper7") == "the password is ***"
    assert spec.redactor.redact("password=keeper7") == "password=***"


def test_truth_values_under_secret_keys_are_not_masked_everywhere(tmp_path: Path) -> None:
    spec = load(tmp_path, SHOP + "  spec: {use_token: true, token: null}" + LAKE)
    assert spec.redactor.redact("it is true or null") == "it is true or null"


def test_a_name_may_hold_variables(tmp_path: Path) -> None:
    text = SHOP + '  backend_options: {connection: "@@plugins.lake.connection"}'
    spec = load(tmp_path, text + LAKE.replace("name: lake", "name: ${LAKE}"), LAKE="lake")
    assert spec.source("shop").state_destination == "lake"


@pytest.mark.parametrize("name", ["1.5", "a b", "a/b", "ä"])
def test_a_name_has_no_dots_or_spaces(tmp_path: Path, name: str) -> None:
    message = refused(tmp_path, SHOP.replace("name: shop", f"name: {name}") + LAKE)
    assert "is not a valid name" in message


def test_only_the_first_of_many_errors_are_shown(tmp_path: Path) -> None:
    (tmp_path / "loader.yml").write_text("---\na: 1\n" * 300)
    with pytest.raises(SpecError) as raised:
        load_spec(tmp_path / "loader.yml")
    text = str(raised.value)
    assert "900 problems, the first 50 of them:" in text
    assert text.count("\n- ") == 50


def test_aliases_that_nest_too_deeply_are_refused(tmp_path: Path) -> None:
    levels = "\n".join(f"  b{n}: &b{n} {'[' * 90}*b{n - 1}{']' * 90}" for n in range(1, 40))
    (tmp_path / "loader.yml").write_text(f"kind: source\nspec:\n  b0: &b0 x\n{levels}\n")
    with pytest.raises(SpecError, match="nested too deeply to be read"):
        load_spec(tmp_path / "loader.yml")


@pytest.mark.parametrize("password", ["loader", "setup", "postgres", "shop", "id", "Tr0ub4dor&3"])
def test_the_readmes_role_leaves_every_remedy_readable(tmp_path: Path, password: str) -> None:
    text = SHOP + (
        "  spec:\n"
        "    url: 'jdbc:postgresql://${PGHOST}:${PGPORT}/${PGDATABASE}'\n"
        "    user: '${PGUSER}'\n"
        "    password: '${PGPASSWORD}'\n"
    )
    env = {"PGHOST": "127.0.0.1", "PGPORT": "5432", "PGDATABASE": "shop", "PGUSER": "loader"}
    spec = load(tmp_path, text + LAKE, **env, PGPASSWORD=password)
    for message in (
        "Run `loader setup`",
        "loader.yml, document 1 (source shop)",
        'alter role "loader" replication',
        "jdbc:postgresql://127.0.0.1:5432/shop cannot be reached",
        "Set the variable PGUSER, and the table's id",
    ):
        assert spec.redactor.redact(message) == message
    assert spec.redactor.redact(f"password={password}") == "password=***"
    if len(password) > 2:
        assert redact_foreign(f"it says {password}") == "it says ***"
