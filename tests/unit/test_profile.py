"""Profiles are found, chosen and rendered as dbt does; invalid ones are refused with a remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dbt.config.renderer import ProfileRenderer
from dbt_common.context import set_invocation_context
from hypothesis import assume, given
from hypothesis import strategies as st

from loader.errors import SpecError
from loader.spark.profile import (
    Profile,
    Renderer,
    find_misspelt_variables,
    load_profile,
    refuse_moved_project,
)
from loader.spec.redaction import Redactor

PROFILES = """
config: {send_anonymous_usage_stats: false}
strandline:
  target: "{{ env_var('WHICH', 'embedded') }}"
  outputs:
    embedded:
      type: spark
      method: session
      host: localhost
      schema: analytics
      threads: 2
      server_side_parameters:
        spark.master: "local[*]"
        spark.ui.enabled: false
        spark.x.on: "{{ 'True' | as_bool }}"
        spark.sql.shuffle.partitions: 4
        spark.y: "{{ env_var('Y', '7') | as_number }}"
        spark.sql.catalog.lake.type: hadoop
        spark.sql.catalog.lake.warehouse: "{{ env_var('STRANDLINE_WAREHOUSE', './warehouse') }}"
    cluster:
      type: spark
      method: session
      host: localhost
      schema: "{{ env_var('A_SCHEMA') }}"
      server_side_parameters:
        spark.master: "{{ env_var('A_MASTER') }}"
    thrift: {type: spark, method: thrift, host: h, schema: x}
    pg: {type: postgres, schema: x}
    bare: {type: spark, method: session}
    broken:
      type: spark
      method: session
      schema: x
      server_side_parameters: {a: "{{ 1 +", b: null, c: {d: 1}}
other:
  outputs: {default: {type: spark, method: session, schema: 5}}
"""
ENV = {"HOME": "/nonexistent"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/profiles.yml").write_text(PROFILES)
    return tmp_path


def load(folder: Path, target: str | None = None, **env: str) -> Profile:
    return load_profile("strandline", target, folder, env={**ENV, **env})


def refused(folder: Path, target: str | None = None, name: str = "strandline", **env: str) -> str:
    with pytest.raises(SpecError) as raised:
        load_profile(name, target, folder, env={**ENV, **env})
    assert raised.value.remedy or "problems:" in raised.value.what
    return str(raised.value)


def test_a_target_is_rendered_and_stringified(folder: Path) -> None:
    profile = load(folder)
    assert profile == Profile(
        name="strandline",
        target="embedded",
        schema="analytics",
        conf={
            "spark.master": "local[*]",
            "spark.ui.enabled": "false",
            "spark.x.on": "true",
            "spark.sql.shuffle.partitions": "4",
            "spark.y": "7",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": f"{folder}/warehouse",
        },
        path=folder / "profiles/profiles.yml",
    )


def test_a_setting_whose_variable_is_not_set_is_left_out(folder: Path) -> None:
    """Otherwise Spark would parse the empty text as a number, an address or a host."""
    text = PROFILES.replace("spark.y: \"{{ env_var('Y', '7') | as_number }}\"", 'spark.y: ""')
    (folder / "profiles/profiles.yml").write_text(text)
    assert "spark.y" not in load(folder).conf
    assert load(folder).conf["spark.x.on"] == "true"


def test_an_empty_master_is_refused(folder: Path) -> None:
    """Otherwise Spark would run on this machine instead of the cluster."""
    message = refused(folder, "cluster", A_SCHEMA="s", A_MASTER="")
    assert "the setting `spark.master` is empty. Set it, or the variable that it reads" in message


def test_precedence_of_the_target(folder: Path) -> None:
    others = {"A_SCHEMA": "s", "A_MASTER": "spark://m"}
    assert load(folder).target == "embedded"
    assert load(folder, WHICH="cluster", **others).target == "cluster"
    assert load(folder, WHICH="nope", DBT_TARGET="cluster", **others).target == "cluster"
    assert load(folder, "embedded", DBT_TARGET="cluster").target == "embedded"
    assert load(folder, DBT_TARGET="").target == "embedded"
    assert load_profile("other", None, folder, env=ENV).schema == "5"


def test_only_the_chosen_target_needs_its_variables(folder: Path) -> None:
    assert load(folder).schema == "analytics"
    message = refused(folder, "cluster")
    assert "target cluster, schema: the environment variable A_SCHEMA is not set. Set it" in message
    assert "server_side_parameters" in message
    assert "A_MASTER is not set" in message


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            "embeded",
            "no target 'embeded'. Did you mean `embedded`? Existing names: embedded, cluster",
        ),
        (
            "thrift",
            "`method` is 'thrift'. Use a target with `type: spark` and `method: session`",
        ),
        ("pg", "`type` is 'postgres'. Use a target"),
        ("bare", "`schema` is missing"),
        ("broken", "server_side_parameters.a: cannot be rendered: "),
    ],
)
def test_a_target_that_cannot_be_used(folder: Path, target: str, says: str) -> None:
    assert says in refused(folder, target)


def test_settings_without_a_single_value(folder: Path) -> None:
    text = PROFILES.replace('a: "{{ 1 +", ', "")
    (folder / "profiles/profiles.yml").write_text(text)
    message = refused(folder, "broken")
    assert "the setting `b` does not have a single value" in message
    assert "the setting `c` does not have a single value" in message


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "strandlin",
            "no profile 'strandlin'. Did you mean `strandline`? Existing names: strandline, other",
        ),
        ("config", "there is no target 'default'. Existing names: none"),
    ],
)
def test_a_missing_profile(folder: Path, name: str, says: str) -> None:
    assert says in refused(folder, name=name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "contains no profiles. Delete it, and run `loader init`"),
        ("a: {{ b }}", "profiles.yml:1:"),
        ("a: b: c", "profiles.yml:1:5: not valid YAML"),
        ("a: &a [*a]", "profiles.yml:1:4: not valid YAML: an alias refers to a value"),
        (
            "a: &a [x]\n"
            + "\n".join(
                f"{n}: &n{n} [{', '.join([f'*n{n - 1}'] * 9)}]" for n in range(1, 40)
            ).replace("*n0", "*a"),
            "its aliases expand to",
        ),
        ("- a", "contains no profiles"),
        ("strandline: 5", "there is no profile 'strandline'"),
        ("strandline: {outputs: 5}", "there is no target 'default'"),
        ("strandline: {outputs: {default: 5}}", "there is no target 'default'"),
        (
            "strandline: {target: \"{{ var('t') }}\"}",
            "the variable t has no value. Give it a default",
        ),
        ("strandline: {target: '{{ nope }}'}", "'nope' is not defined in profiles"),
    ],
)
def test_an_invalid_file_of_profiles(folder: Path, text: str, says: str) -> None:
    (folder / "profiles/profiles.yml").write_text(text)
    assert says in refused(folder)


def test_secret_settings_are_detected(folder: Path) -> None:
    """A setting that only names a variable is not one, but the variable's value is masked, too."""
    conf = {
        "spark.sql.catalog.lake.credential": "written-down",
        "spark.sql.catalog.lake.token": "env:TOKEN_",
        "spark.hadoop.fs.s3a.secret.key": "${env.S3_KEY}",
        "spark.hadoop.fs.s3a.access.key": "{{ env_var('DBT_ENV_SECRET_ACCESS') }}",
        "spark.x": "prefix-{{ env_var('DBT_ENV_SECRET_ANY') }}",
        "spark.sql.catalog.lake.uri": "jdbc:postgresql://h/c?user=u&password=in-the-url",
        "spark.ssl.keyPassword": "",
        "spark.master": "local[1]",
    }
    target = {"type": "spark", "method": "session", "schema": "x", "server_side_parameters": conf}
    profiles = {"strandline": {"target": "t", "outputs": {"t": target}}}
    (folder / "profiles/profiles.yml").write_text(yaml.safe_dump(profiles))
    env = {
        "TOKEN_": "the-token",
        "S3_KEY": "the-s3-key",
        "DBT_ENV_SECRET_ACCESS": "the-access-key",
        "DBT_ENV_SECRET_ANY": "any-secret",
    }
    redactor = Redactor()
    profile = load_profile("strandline", None, folder, env={**ENV, **env}, redactor=redactor)
    assert profile.secrets == {
        "spark.sql.catalog.lake.credential",
        "spark.hadoop.fs.s3a.access.key",
        "spark.x",
        "spark.sql.catalog.lake.uri",
    }
    for value in (*env.values(), "written-down", "in-the-url"):
        assert value not in redactor.redact(f"it is {value}, is it not")


def test_the_search_order_for_profiles(tmp_path: Path) -> None:
    home, project, given_dir, env_dir = (tmp_path / n for n in ("home", "project", "g", "e"))
    env = {"HOME": str(home)}
    project.mkdir()
    with pytest.raises(
        SpecError, match=r"no profiles\.yml in .*project, .*project/profiles, .*dbt"
    ):
        load_profile("strandline", None, project, env=env)
    # dbt also prefers the project's file to the one in ~/.dbt
    places = [home / ".dbt", project / "profiles", project, env_dir, given_dir]
    for place in places:
        place.mkdir(exist_ok=True, parents=True)
        (place / "profiles.yml").write_text(PROFILES)
        if place == env_dir:
            env["DBT_PROFILES_DIR"] = str(env_dir)
        wanted = "../g" if place == given_dir else None
        found = load_profile("strandline", None, project, wanted, env=env)
        assert found.path.resolve() == place / "profiles.yml"


@pytest.mark.parametrize("chosen", ["profiles_dir", "DBT_PROFILES_DIR"])
def test_a_configured_folder_must_contain_profiles(folder: Path, chosen: str) -> None:
    env = {**ENV, **({chosen: str(folder / "nope")} if chosen.isupper() else {})}
    wanted = "nope" if chosen == "profiles_dir" else None
    with pytest.raises(SpecError, match=f"there is no profiles.yml in {folder}/nope"):
        load_profile("strandline", None, folder, wanted, env=env)


@pytest.mark.parametrize(
    ("warehouse", "kind", "wanted"),
    [
        ("./warehouse", "hadoop", "{folder}/warehouse"),
        ("warehouse", "hadoop", "{folder}/warehouse"),
        ("../w/./x", "hadoop", "{parent}/w/x"),
        ("file:warehouse", "hadoop", "file:{folder}/warehouse"),
        ("file:///data/w", "hadoop", "file:///data/w"),
        ("file:/data/w", "hadoop", "file:/data/w"),
        ("/data/w", "hadoop", "/data/w"),
        ("s3a://bucket/w", "hadoop", "s3a://bucket/w"),
        ("hdfs://n:8020/w", "hadoop", "hdfs://n:8020/w"),
        ("prod", "rest", "prod"),
        ("123456789012", "glue", "123456789012"),
        ("./w", "jdbc", "{folder}/w"),
    ],
)
def test_local_warehouses_are_relative_to_the_spec(
    folder: Path, warehouse: str, kind: str, wanted: str
) -> None:
    text = PROFILES.replace("type: hadoop", f"type: {kind}")
    (folder / "profiles/profiles.yml").write_text(text)
    conf = load(folder, STRANDLINE_WAREHOUSE=warehouse).conf
    wanted = wanted.format(folder=folder, parent=folder.parent)
    assert conf["spark.sql.catalog.lake.warehouse"] == wanted


def test_secrets_in_a_profile_are_masked_in_logs(folder: Path) -> None:
    text = PROFILES.replace(
        "spark.ui.enabled: false",
        "spark.hadoop.fs.s3a.secret.key: plainsecret\n"
        "        spark.hadoop.k: \"{{ env_var('DBT_ENV_SECRET_K') }}\"",
    )
    (folder / "profiles/profiles.yml").write_text(text)
    redactor = Redactor()
    env = {**ENV, "DBT_ENV_SECRET_K": "envsecret"}
    profile = load_profile("strandline", None, folder, env=env, redactor=redactor)
    assert profile.conf["spark.hadoop.k"] == "envsecret"
    assert redactor.redact("plainsecret envsecret") == "*** ***"
    assert "plainsecret" not in repr(profile)
    assert "envsecret" not in repr(profile)


def test_dbt_is_not_imported() -> None:
    code = "import sys, loader.spark.profile, loader.spec.spec; print('dbt' in sys.modules)"
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert ran.stdout.strip() == "False"


# Comparison with dbt's own renderer


def dbt_renders(value: Any, env: dict[str, str]) -> Any:
    set_invocation_context(env)
    return ProfileRenderer({}).render_value(value)


TEMPLATES = [
    "plain",
    "",
    "7",
    "true",
    "{{ 7 }}",
    "{{ '7' }}",
    "{{ '7' | as_number }}",
    "{{ '1.5' | as_number }}",
    "{{ 'True' | as_bool }}",
    "{{ 'true' | as_bool }}",
    "{{ 'x' | as_native }}",
    "{{ '[1, 2]' | as_native }}",
    "{{ '[1, 2]' }}",
    "{{ '7' | as_text }}",
    "{{ 7 | as_text }}",
    "a{{ 7 }}b",
    "{{ 7 }}{{ 8 }}",
    "{{ env_var('A') }}",
    "{{ env_var('A') | as_number }}",
    "{{ env_var('N', 3) }}",
    "{{ env_var('N', '3') }}",
    "{{ env_var('N', '') }}",
    "{{ env_var('A') ~ env_var('B') }}",
    "{{ var('x', 5) }}",
    "{{ var('x', none) }}",
    "{{ env_var('B') | as_native }}",
    "{{ [1, 2] | is_list }}",
    "{% if env_var('A') == '12' %}yes{% else %}no{% endif %}",
    "{% set x = 5 %}{{ x }}",
    "{{ env_var('DBT_ENV_SECRET_X') }}",
    "p-{{ env_var('DBT_ENV_SECRET_X') }}-q",
    "{{ env_var('DBT_ENV_SECRET_N') | as_native }}",
    "{{ env_var('QUOTED') }}",
    "{{ env_var('JINJA') }}",
    "{{ env_var('QUOTED') | as_native }}",
    "{{ none }}",
    "{{ undefined_name | default('d') }}",
    "{{ {'a': 1} }}",
    "{{ 'a' 'b' }}",
    "{# c #}x",
    "{{ env_var('A') | int + 1 }}",
    "{{ 1.0 }}",
    "{{ True }}",
    " {{ 7 }}",
    "{{ 7 }}\n",
    "a\n",
]
RENDER_ENV = {
    "A": "12",
    "B": "x y",
    "DBT_ENV_SECRET_N": "7",
    "DBT_ENV_SECRET_X": "s{{ 1 }}",
    "QUOTED": "'q'",
    "JINJA": "{{ 1 }}",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_renders_as_in_dbt(template: str) -> None:
    try:
        wanted = dbt_renders(template, RENDER_ENV)
    except Exception:
        with pytest.raises(SpecError):
            Renderer(RENDER_ENV).render(template, "profiles.yml")
        return
    rendered = Renderer(RENDER_ENV).render(template, "profiles.yml")
    assert rendered == wanted
    assert isinstance(wanted, type(rendered))  # dbt may return a subclass of str


@pytest.mark.parametrize(
    "template",
    [
        "{{ env_var('NOPE') }}",
        "{{ var('nope') }}",
        "{{ 'x' | as_number }}",
        "{{ 'x' | as_bool }}",
        "{{ 1 +",
        "{% if %}",
        "{{ nope() }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_what_dbt_refuses_is_refused(template: str) -> None:
    with pytest.raises(SpecError) as raised:
        Renderer(RENDER_ENV).render(template, "profiles.yml")
    assert raised.value.remedy


@pytest.mark.parametrize("kind", ["as_number", "as_bool"])
def test_a_value_of_the_wrong_kind_is_not_shown(kind: str) -> None:
    with pytest.raises(SpecError, match="the value is not") as raised:
        Renderer({"PW": "hunter22"}).render(f"{{{{ env_var('PW') | {kind} }}}}", "profiles.yml")
    assert "hunter22" not in str(raised.value)


@given(
    st.text(st.characters(exclude_characters="{}%#")),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_values_of_variables_render_as_in_dbt(text: str, value: str) -> None:
    assume("DBT_ENV_SECRET" not in text + value)  # dbt itself marks secrets with it
    env = {"V": value}
    for template in (
        text,
        "{{ env_var('V') }}",
        f"{text}{{{{ env_var('V') }}}}",
        "{{ env_var('V') | as_native }}",
    ):
        assert Renderer(env).render(template, "x") == dbt_renders(template, env)


def test_a_moved_project_creates_no_warehouse_at_its_old_path(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for place, refused in ((old / "warehouse", True), (new / "warehouse", False)):
        new.mkdir(exist_ok=True)
        conf = {"spark.sql.catalog.lake.warehouse": str(place)}
        profile = Profile("p", "t", "s", conf, new / "profiles.yml")
        if not refused:
            refuse_moved_project(profile, new)
            continue
        with pytest.raises(SpecError, match=r"there is no folder .*old") as error:
            refuse_moved_project(profile, new)
        assert "create a link at the old path" in error.value.remedy
        refuse_moved_project(profile, tmp_path)  # a profile outside the project


def test_misspelt_variables_are_found(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.yml"
    profiles.write_text("x: \"{{ env_var('STRANDLINE_S3_PATH_STYLE', '') }}\"\n")
    profile = Profile("strandline", "cluster", "analytics", {}, profiles)
    wrong = {"STRANDLINE_S3_PATH_STILE": "true", "STRANDLINE_CACHE": "/tmp", "PATH": "/bin"}
    assert find_misspelt_variables(profile, "", wrong) == {
        "STRANDLINE_S3_PATH_STILE": "STRANDLINE_S3_PATH_STYLE"
    }
    assert not find_misspelt_variables(profile, "${STRANDLINE_S3_PATH_STILE}", wrong)
    assert not find_misspelt_variables(profile, "", {**wrong, "STRANDLINE_S3_PATH_STYLE": "true"})
