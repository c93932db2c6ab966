"""Each mistake found before Spark starts is reported as one clear error, with exit code 2."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loader.cli import main
from loader.errors import SpecError
from loader.spark import session, setup
from loader.spark.profile import Profile

ROOT = Path(__file__).resolve().parents[2]
SPEC = f"""
kind: source
spec:
  name: shop
  path: jdbc
  tables: [orders]
  destinations: [lake]
  spec:
    url: "jdbc:postgresql://localhost/shop"
    user: tide
    password: "${{SHOP_PASSWORD}}"
    table_options:
      orders: {{cursor_field: updated_at}}
---
kind: destination
spec:
  name: lake
  path: spark
  spec: {{profile: strandline, target: embedded, profiles_dir: {ROOT / "profiles"}}}
"""
SECRET = "ebb-and-flow"


def _loader(
    folder: Path, spec: str | None, *arguments: str, password: str | None = SECRET
) -> Result:
    if spec is not None:
        (folder / "loader.yml").write_text(spec)
    config = str(folder / "loader.yml")
    env = {"SHOP_PASSWORD": password}
    return CliRunner().invoke(main, ["-c", config, *(arguments or ("run",))], env=env)


def _one_error(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert SECRET not in result.output
    assert "Traceback" not in result.output
    [line] = result.output.strip().splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("wrong", "right", "reported"),
    [
        ("tables:", "tabels:", "spec.tabels: unknown key. Did you mean `tables`?"),
        (
            "cursor_field",
            "cursor_feld",
            "table_options.orders.cursor_feld: unknown key. Did you mean `cursor_field`?",
        ),
        ("profile: strandline", "profile: strand", "there is no profile 'strand'. Did you mean"),
        ("target: embedded", "target: embeded", "there is no target 'embeded'. Did you mean"),
        ("path: jdbc", "path: jbdc", "there is no connector 'jbdc'. Did you mean 'jdbc'?"),
        ("jdbc:postgresql:", "postgresql:", "spec.spec.url: this is not a JDBC url. Begin it with"),
        (
            "postgresql://",
            "postgresql://me:pw@",
            "spec.spec.url: a JDBC url of PostgreSQL has no user",
        ),
        ("updated_at}", "updated_at, lookback: soon}", "orders.lookback: "),
        ("user: tide", "time_zone: Atlantis", "time_zone: there is no time zone 'Atlantis'. Use"),
        ("[lake]", "[pond]", "there is no destination 'pond'. Existing names: lake"),
        ("kind: source", "kind source", "not valid YAML"),
        (
            "    table_options:\n      orders",
            "  table_options:\n    orders",
            "inner `spec`, which has",
        ),
        (
            "user: tide",
            "cursor_field: id",
            "Move it to a table: `table_options: {<table>: {cursor_fi",
        ),
        ("---\n", "", "`kind` appears twice here. Begin each document with a line `---`"),
        ("  name: shop", "   name: shop", "Start all keys of one level in the same column"),
        ("path: jdbc", "path: postgresql", "Write `path: jdbc`, which reads all databases"),
    ],
)
def test_a_mistake_in_the_spec(tmp_path: Path, wrong: str, right: str, reported: str) -> None:
    assert SPEC.count(wrong) == 1
    error = _one_error(_loader(tmp_path, SPEC.replace(wrong, right)))
    assert error.startswith((str(tmp_path), str(ROOT)))  # the file
    assert reported in error
    assert error.rstrip("?").split(". ")[-1]  # the remedy


def test_a_missing_variable(tmp_path: Path) -> None:
    error = _one_error(_loader(tmp_path, SPEC, password=None))
    assert "spec.spec.password: the environment variable SHOP_PASSWORD is not set. Set it" in error


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (None, "there is no such spec file. Run `loader init`"),
        ("", "the spec is empty. Delete it, and run `loader init`"),
        ("just a text", "a document must have the keys `kind` and `spec`"),
        ("kind: source\n spec: {a: b\n- x", "not valid YAML"),
    ],
)
def test_a_missing_or_invalid_spec(tmp_path: Path, text: str | None, reported: str) -> None:
    assert reported in _one_error(_loader(tmp_path, text))


def test_a_mistyped_command_or_option(tmp_path: Path) -> None:
    typo = _loader(tmp_path, SPEC, "rn")
    assert (typo.exit_code, "No such command 'rn'. Did you mean 'run'?" in typo.output) == (2, True)
    nested = _loader(tmp_path, SPEC, "state", "shwo", "shop.orders")
    assert "Did you mean 'show'?" in nested.output
    table = _loader(tmp_path, SPEC, "run", "shop.orders")
    assert "unexpected argument 'shop.orders'. To select tables, use --select" in table.output
    option = _loader(tmp_path, SPEC, "run", "--selec", "x")
    assert (option.exit_code, "--select" in option.output) == (2, True)


@pytest.mark.parametrize("group", [(), ("state",)])
def test_help_shortens_no_description(group: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*group, "--help"]).output
    commands = shown.partition("Commands:\n")[2].splitlines()
    assert commands
    assert all(line.endswith(".") and not line.endswith("...") for line in commands), shown


def test_a_daemon_accepts_no_key_change(tmp_path: Path) -> None:
    """Otherwise it would also accept later key changes, which nobody has reviewed."""
    result = _loader(tmp_path, None, "run", "--every", "30s", "--accept-key-change")
    assert result.exit_code == 2
    assert "run once without --every" in " ".join(result.output.split())


def test_an_error_as_a_json_line(tmp_path: Path) -> None:
    result = _loader(tmp_path, "", "--log-format", "json", "run")
    line = json.loads(result.output)
    assert result.exit_code == 2
    assert (line["event"], line["what"]) == ("error", "the spec is empty")
    assert line["remedy"] == "Delete it, and run `loader init` to write a starter project"


def test_quiet_hides_no_error(tmp_path: Path) -> None:
    assert "the spec is empty" in _loader(tmp_path, "", "--quiet", "run").output


def test_a_stack_trace_only_with_debug_and_without_secrets(tmp_path: Path) -> None:
    spec = SPEC.replace("path: jdbc", "path: jbdc").replace("user: tide", f'user: "{SECRET}"')
    result = _loader(tmp_path, spec, "--debug", "run")
    assert "Traceback" in result.output
    assert SECRET not in result.output


@pytest.mark.parametrize(
    ("given", "meant"), [("--destinaton", "--destination"), ("--adress=x:1", "--address")]
)
def test_serve_ignores_a_plugins_options_and_refuses_typos(
    tmp_path: Path, given: str, meant: str
) -> None:
    """With `registry: local`, CloudQuery passes its own options to every plug-in."""
    reported = _one_error(_loader(tmp_path, None, "serve", "--no-sentry", "--log-level", "info"))
    assert "there is no such spec file" in reported
    refused = _loader(tmp_path, None, "serve", "--no-sentry", given, "lake2")
    assert refused.exit_code == 2
    assert f"{given.partition('=')[0]}'. Did you mean '{meant}'?" in refused.output


@pytest.mark.parametrize("given", [("run", "--quiet"), ("state", "list", "-c")])
def test_a_global_option_after_the_command_says_where_to_put_it(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    refused = _loader(tmp_path, None, *given)
    assert refused.exit_code == 2
    reported = f"Put it before the command: `loader {given[-1]} … {given[0]}`"
    assert reported in refused.output


def test_tables_are_selected_by_one_option(tmp_path: Path) -> None:
    for command in ("run", "check", "reconcile"):
        refused = _loader(tmp_path, None, command, "--tables", "orders")
        assert refused.exit_code == 2
        assert "No such option '--tables'. To select tables, use --select." in refused.output


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("state", "list"),
        ("state", "show", "orders"),
        ("state", "reset", "shop.orders"),
        ("state", "rebuild"),
    ],
)
def test_a_lake_in_a_remote_catalog_is_read_by_a_local_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Cluster executors take a minute to start, and these commands read only a few rows."""
    masters: list[str] = []

    def begin(profile: Profile) -> None:
        masters.append(profile.conf["spark.master"])
        raise SpecError("that is enough", where="here")

    monkeypatch.setattr(session, "begin", begin)
    monkeypatch.setattr(setup, "provide_jars", lambda *_: None)
    monkeypatch.setenv("STRANDLINE_SPARK_MASTER", "spark://cluster:7077")
    monkeypatch.setenv("STRANDLINE_WAREHOUSE", "s3://bucket/lake")
    result = _loader(tmp_path, SPEC.replace("target: embedded", "target: cluster"), *command)
    assert "that is enough" in result.output
    assert masters == ["local[1]"]


def _plug_in(folder: Path, name: str, code: str) -> None:
    """Installs a package that provides a command into a folder."""
    (folder / f"{name}_plugin.py").write_text(code)
    described = folder / f"{name}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    entry = f"[strandline.commands]\n{name} = {name}_plugin:command\n"
    (described / "entry_points.txt").write_text(entry)


def test_a_package_adds_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    greet = "@click.command(short_help='Greets.')\ndef command():\n    click.echo('hello')\n"
    _plug_in(tmp_path, "greet", f"import click\n\n{greet}")
    assert _loader(tmp_path, None, "greet").output == "hello\n"
    assert re.search(r"greet +Greets\.", _loader(tmp_path, None, "--help").output)
    assert "Did you mean 'greet'?" in _loader(tmp_path, None, "gret").output


def test_a_command_that_cannot_be_imported_affects_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    _plug_in(tmp_path, "broken", "import nowhere_to_be_found\n")
    for given in (("broken",), ("broken", "--fast", "orders"), ("broken", "--help")):
        reported = _one_error(_loader(tmp_path, None, *given))
        assert "cannot be imported from broken_plugin:command: ModuleNotFoundError" in reported
        assert reported.endswith("Reinstall or uninstall broken")
    help_ = _loader(tmp_path, None, "--help")
    assert help_.exit_code == 0
    assert re.search(r"broken +Cannot be imported\.", help_.output)
    assert "serve" in help_.output
    assert "the spec is empty" in _loader(tmp_path, "", "run").output


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("number", "command = 42\n", "TypeError: it is not a click command"),
        ("leaky", "raise ValueError('postgresql://u:s3cret@db')\n", "postgresql://***@db"),
    ],
)
def test_an_invalid_command_breaks_no_help_and_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, why: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    _plug_in(tmp_path, name, code)
    reported = _one_error(_loader(tmp_path, None, name))
    assert f"cannot be imported from {name}_plugin:command: " in reported
    assert why in reported
    assert "s3cret" not in reported
    assert _loader(tmp_path, None, "--help").exit_code == 0
