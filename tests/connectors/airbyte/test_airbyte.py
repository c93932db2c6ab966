"""The `airbyte` connector appends each record once, and resumes from the connector's state."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from loader.connectors.subprocess.program import KIND
from loader.spark.temporary_files import name_prefix
from tests.connectors.program import CONNECTOR, ITEM, Program, at, items


def test_records_are_appended_once_and_the_state_is_passed_back(program: Program) -> None:
    program.stream("items", items(1, 2, 3, 4, 5))
    program.stream("notes", [{"text": "a"}, {"text": "a"}], {"text": {"type": "string"}}, (), None)
    program.stream("empty")
    program.configure()
    first = program.run()
    assert first.table("api.items")["appended"] == 5
    assert first.table("api.items")["cursor"] == "2025-01-01 00:00:05"
    assert first.table("api.notes")["appended"] == 2
    assert first.table("api.empty")["status"] == "nothing new"
    [asked] = program.calls()
    assert asked["state"] is None
    modes = {s["stream"]["name"]: s["sync_mode"] for s in asked["catalog"]["streams"]}
    assert modes == {"items": "incremental", "notes": "full_refresh", "empty": "incremental"}

    # the record at the cursor is sent again, because the cursor is inclusive; a stream without
    # states is sent whole
    again = program.run()
    assert {again.table(f"api.{n}")["status"] for n in program.rows} == {"nothing new"}
    assert again.table("api.items")["redelivered"] == 1
    assert again.table("api.notes")["redelivered"] == 2
    states = {
        part["stream"]["stream_descriptor"]["name"]: part["stream"]["stream_state"]
        for part in program.calls()[-1]["state"]
    }
    assert states == {"items": {"cursor": at(5)}, "empty": {"cursor": ""}}

    # an update, a new row, one that shares the highest time; and one in the stream that was empty
    program.rows["items"] += [
        {"id": 2, "name": "two", "updated_at": at(6)},
        *items(7),
        {"id": 8, "name": "tie", "updated_at": at(5)},
    ]
    program.stream("empty", items(1))
    program.rows["notes"].append({"text": "a"})
    program.run()
    assert program.raw("items", "id, name")[5:] == [(8, "tie", 2), (2, "two", 2), (7, "item 7", 2)]
    assert program.raw("empty") == [(1, 1)]
    assert program.raw("notes", "text")[2:] == [("a", 2)]

    # all records are sent again: none is appended
    program.project.loader("state", "reset", "api.items")
    resent = program.run().table("api.items")
    assert (resent["appended"], resent["redelivered"]) == (0, 8)
    assert program.calls()[-1]["state"][0]["stream"]["stream_descriptor"] == {"name": "empty"}


def test_a_long_read_is_committed_batch_by_batch(program: Program) -> None:
    program.stream("items", items(*range(1, 11)))
    program.stream("whole", items(1, 2, 3, 4), cursor=None)
    program.configure(config={"every": 2}, batch_rows=4)
    ran = program.run().table("api.items")
    assert (ran["appended"], ran["batch"]) == (10, 3)
    assert program.raw("items") == [(n, (n - 1) // 4 + 1) for n in range(1, 11)]
    assert program.raw("whole") == [(n, 1) for n in range(1, 5)]
    ledger = program.project.rows(
        "select batch, rows_appended, cursor_high from raw._cq_syncs "
        "where table_name = 'items' order by batch"
    )
    assert ledger == [
        (1, 4, "2025-01-01 00:00:04"),
        (2, 4, "2025-01-01 00:00:08"),
        (3, 2, "2025-01-01 00:00:10"),
    ]
    again = program.run().table("api.items")
    assert (again["status"], again["redelivered"]) == ("nothing new", 1)

    # a full refresh is one batch in a new generation; the next sync resumes from its last state
    program.project.run("--full-refresh", "--select", "api.items")
    assert program.calls()[-1]["state"] is None
    assert program.project.rows(
        "select _cq_generation, count(*) from raw.items where _cq_batch = 4 group by 1"
    ) == [(2, 10)]
    assert program.run().table("api.items")["redelivered"] == 1


def test_records_that_a_state_covers_are_kept_if_the_connector_fails(program: Program) -> None:
    program.stream("items", items(*range(1, 8)))
    program.stream("later", items(1, 2))
    error = {"message": "the API is away", "internal_message": "HTTP 503"}
    failing = [
        {"say": {"type": "TRACE", "trace": {"type": "ERROR", "emitted_at": 1.5, "error": error}}},
        {"exit": 1},
    ]
    program.configure(config={"acts": {"items.5": failing}})
    ran = program.project.loader("run")
    assert ran.code == 1
    assert "the program failed (exit code 1): the API is away (HTTP 503)" in ran.errors[0]
    assert program.raw("items") == [(1, 1), (2, 1), (3, 1)]
    failed = program.project.rows("select table_name, status from raw._cq_syncs order by 1, 2")
    assert failed == [("items", "failed"), ("items", "synced"), ("later", "failed")]

    # the next run resumes from that state
    program.configure()
    assert program.run().table("api.items")["appended"] == 4
    assert program.calls()[-1]["state"][0]["stream"]["stream_state"] == {"cursor": at(3)}
    assert program.raw("items")[3:] == [(4, 2), (5, 2), (6, 2), (7, 2)]
    assert program.raw("later") == [(1, 1), (2, 1)]


def test_every_type_and_what_has_none(program: Program) -> None:
    properties = {
        **ITEM,
        "whole": {"type": ["null", "integer"]},
        "large": {"type": "integer", "airbyte_type": "big_integer"},
        "part": {"type": "number"},
        "price": {"type": "number"},
        "flag": {"type": "boolean"},
        "day": {"type": "string", "format": "date"},
        "local": {
            "type": "string",
            "format": "date-time",
            "airbyte_type": "timestamp_without_timezone",
        },
        "nested": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "either": {"type": ["string", "integer"]},
        "odd name.x": {"type": "string"},
        "left_out": {"type": "string"},
    }
    whole = {
        "id": 1,
        "name": "naïve 🌊 \u2028 line",
        "updated_at": "2012-04-10T00:14:07.596313",
        "whole": 2**63 - 1,
        "large": 10**37 + 1,
        "part": 0.1,
        "price": 19.99,
        "flag": True,
        "day": "2024-02-29",
        "local": "2024-02-29 23:59:59.1234567",
        "nested": {"b": None, "a": [1, {"c": 1.5}]},
        "either": 5,
        "odd name.x": "dots",
        "left_out": "secret",
    }
    unfit = {
        "id": "2",
        "updated_at": at(1) + "[Europe]",
        "whole": 2**63,
        "part": "much",
        "flag": "yes",
        "day": "2024-02-30",
        "new field": {"x": [1]},
        "Name": "another case",
        "left_out": "secret",
    }
    program.stream("items", [whole, unfit], properties)
    for excluded in ("id", "*d"):  # the key
        program.configure(table_options={"items": {"columns": {"exclude": [excluded]}}})
        refused = program.project.loader("run")
        assert refused.code == 1
        assert "'id' cannot be excluded" in refused.errors[0]
    options = {"column_types": {"price": "decimal(10, 2)"}, "columns": {"exclude": ["left_*"]}}
    program.configure(table_options={"items": options})
    ran = program.run()
    columns = "id, name, whole, cast(large as string), part, cast(price as string), flag"
    more = "cast(day as string), cast(local as string), nested, either, `odd name.x`, _rest"
    assert program.raw("items", f"{columns}, cast(updated_at as string), {more}") == [
        (
            1,
            whole["name"],
            2**63 - 1,
            "10000000000000000000000000000000000001",
            0.1,
            "19.99",
            True,
            "2012-04-10 00:14:07.596313",
            "2024-02-29",
            "2024-02-29 23:59:59.123456",
            '{"a":[1,{"c":1.5}],"b":null}',
            "5",
            "dots",
            None,
            1,
        ),
        (
            2,
            *[None] * 12,
            '{"Name":"another case","day":"2024-02-30","flag":"yes","new field":{"x":[1]},'
            f'"part":"much","updated_at":"{at(1)}[Europe]","whole":9223372036854775808}}',
            1,
        ),
    ]
    warning = "1 values of whole do not match its type: stored in the column _rest"
    assert warning in str(ran.warnings)
    # a key that does not fit its type is refused, and the error names it
    program.rows["items"].append({"id": "x", "updated_at": at(9)})
    program.write()
    ran = program.project.loader("run")
    assert "a record's id is 'x', which its type, bigint, cannot store exactly" in ran.errors[0]


def test_a_failing_connector_is_one_clear_error_and_loses_nothing(program: Program) -> None:
    """Each stream is read alone, by a connector that fails after its fourth record."""
    bad: dict[str, tuple[list[dict[str, object]], str]] = {
        "killed": ([{"signal": "SIGKILL"}], "the program failed (it was killed by signal 9)"),
        "hung": ([{"sleep": 60}], "the program has sent nothing for 2 seconds, and was stopped"),
        "giant": ([{"giant": 3_000_000}], "a message of more than 1,000,000 bytes"),
        "endless": ([{"giant": 900_000}] * 3 + [{"exit": 7}], "(exit code 7)"),
        "broken": (
            [{"raw": '{"type": "RECORD", "record": {"stream": "broken", "da'}],
            "a message that cannot be read",
        ),
        "shapeless": (
            [{"say": {"type": "RECORD", "record": [1]}}],
            "a message that cannot be read",
        ),
        "stderr": (
            [{"stderr": "Traceback: password=hunter22 was wrong"}, {"exit": 2}],
            "(exit code 2): Traceback: password=*** was wrong",
        ),
        "incomplete": (
            [
                {
                    "say": {
                        "type": "TRACE",
                        "trace": {
                            "type": "STREAM_STATUS",
                            "stream_status": {
                                "stream_descriptor": {"name": "incomplete"},
                                "status": "INCOMPLETE",
                            },
                        },
                    }
                },
                {"exit": 0},
            ],
            "did not complete the stream",
        ),
    }
    for name, (steps, output_text) in bad.items():
        program.stream(name, items(1, 2, 3, 4, 5))
        config = {"acts": {f"{name}.4": steps}}
        program.configure(name, config=config, timeout="2s", message_limit=1_000_000)
        ran = program.project.loader("run")
        assert ran.code == 1, name
        assert output_text in ran.errors[0], (name, ran.errors)
        assert "hunter22" not in ran.text
        assert program.raw(name) == [(1, 1), (2, 1), (3, 1)], name
        program.configure(name)
        program.run()
        assert [row[0] for row in program.raw(name)] == [1, 2, 3, 4, 5], name
        assert program.run().table(f"api.{name}")["status"] == "nothing new", name


def test_messages_that_are_not_requested_records_are_ignored(program: Program) -> None:
    """Log lines, broken lines, records of other streams, unknown messages and estimates."""
    program.stream("items", items(1, 2, 3))
    program.stream("other", items(1))
    program.stream("items2", items(1, 2), namespace="eu")
    noise: list[dict[str, object]] = [
        {"raw": "INFO starting {not json"},
        {"raw": ""},
        {"raw": "[1, 2]"},
        {"raw": "\x1b[31mred\x1b[0m \x00 \udcff".encode("utf-8", "replace").decode()},
        {"say": {"type": "LOG", "log": {"level": "INFO", "message": "quiet"}}},
        {"say": {"type": "LOG", "log": {"level": "WARN", "message": "token=abc123def is old"}}},
        {"say": {"type": "RECORD", "record": {"stream": "other", "data": {"id": 9}}}},
        {"say": {"type": "NEW_KIND", "whatever": {}}},
        renewal("never kept"),
        {
            "say": {
                "type": "TRACE",
                "trace": {"type": "ESTIMATE", "estimate": {"name": "items", "row_estimate": 3}},
            }
        },
    ]
    program.configure("items", "eu.items2", config={"acts": {"items.2": noise}})
    ran = program.run()
    assert program.raw("items") == [(1, 1), (2, 1), (3, 1)]
    assert program.raw("eu_items2") == [(1, 1), (2, 1)]
    said = " ".join(ran.warnings)
    assert "the connector warns: token=*** is old" in said
    assert "records of other, which this run did not request, are ignored" in said
    assert "a file in which the loader stores them" in said
    assert "quiet" not in said
    assert program.run().table("api.eu_items2")["status"] == "nothing new"


def test_a_logged_error_fails_the_stream(program: Program) -> None:
    """`airbyte-cdk` logs an error for a page that it cannot read, and treats it as the last."""
    text = "Failed to parse it\nTraceback (most recent call last):\n  File x"
    error = {"say": {"type": "LOG", "log": {"level": "ERROR", "message": text}}}
    for name in ("before", "items", "later"):
        program.stream(name, items(1, 2, 3, 4, 5))
    program.stream("whole", items(1, 2, 3), cursor=None)
    acts = {"items.4": [error], "whole.2": [error]}
    program.configure(config={"acts": acts})
    ran = program.project.loader("run")
    assert ran.code == 1
    went_on = "the connector reported an error and continued: Failed to parse it. The records"
    assert {error.partition(": ")[0] for error in ran.errors} == {
        "table api.items",
        "table api.whole",
    }
    assert all(went_on in error for error in ran.errors)
    assert "Traceback" not in ran.text
    five = [(number, 1) for number in (1, 2, 3, 4, 5)]
    assert program.raw("before") == program.raw("later") == five
    assert program.raw("items") == five[:3]
    program.configure(config={"acts": acts}, logged_errors="warn")
    warned = program.run()
    assert any("the connector reports an error: Failed to parse it" in w for w in warned.warnings)
    assert [row[0] for row in program.raw("items")] == [1, 2, 3, 4, 5]


def renewal(token: str) -> dict[str, Any]:
    """Returns the step with which a connector refreshes its token."""
    control = {"type": "CONNECTOR_CONFIG", "connectorConfig": {"config": {"token": token}}}
    return {"say": {"type": "CONTROL", "control": control}}


def test_a_renewed_token_is_used_at_the_next_run(program: Program) -> None:
    kept = program.project.folder / "kept" / "api.json"
    program.stream("items", items(1, 2))

    def run(given: str, *steps: dict[str, Any]) -> tuple[str, str]:
        config = {"token": given, "acts": {"read": steps}} if steps else {"token": given}
        program.configure("items", config=config, renewed_config="kept/api.json")
        ran = program.run()
        return program.calls()[-1]["token"], ran.text

    used, _ = run("first secret")
    assert used == "first secret"
    assert not kept.exists()
    warning = {"say": {"type": "LOG", "log": {"level": "WARN", "message": "now second secret"}}}
    note = {"say": {"type": "LOG", "log": {"level": "INFO", "message": "quietly second secret"}}}
    acts = [renewal("second secret"), warning, note, {"raw": "a line"}]
    used, text = run("first secret", *acts)
    assert "now ***" in text
    assert kept.stat().st_mode & 0o777 == 0o600
    used, _ = run("first secret", *acts)
    assert used == "second secret"
    assert "quietly" not in text
    shown = program.project.loader("run", options=("--debug",)).text
    assert "api: quietly ***" in shown
    assert "api: a line" in shown
    assert "second secret" not in shown
    # a changed `config` replaces the refreshed token
    used, _ = run("third secret", *acts)
    assert used == "third secret"
    kept.write_text("{}")
    program.configure("items", config={"token": "x"}, renewed_config="kept/api.json")
    ran = program.project.loader("run")
    assert ran.code == 1
    assert "the refreshed configuration cannot be read" in ran.errors[0]


def test_a_state_of_all_streams_waits_for_the_slowest_table(program: Program) -> None:
    for form in ("GLOBAL", "LEGACY"):
        names = [f"{form.lower()}_{n}" for n in "abc"]
        for name in names:
            program.stream(name, items(1, 2, 3))
        config = {"state": form}
        program.configure(*names[:2], config=config)
        program.run()
        # the first table fails: its record has no usable key; the second is synced
        program.rows[names[0]] += [{"id": "x", "updated_at": at(4)}]
        program.rows[names[1]] += items(4)
        program.write()
        ran = program.project.loader("run")
        assert ran.table(f"api.{names[1]}")["appended"] == 1
        assert "cannot store exactly" in ran.errors[0]
        # The connector gets the older state and sends the second table's records again, which are
        # not appended; a new table starts without a state.
        program.rows[names[0]] = items(1, 2, 3, 5)
        program.configure(*names, config=config)
        ran = program.run()
        assert ran.table(f"api.{names[0]}")["appended"] == 1
        assert ran.table(f"api.{names[1]}")["status"] == "nothing new"
        assert ran.table(f"api.{names[1]}")["redelivered"] == 2
        assert ran.table(f"api.{names[2]}")["appended"] == 3
        [given] = [program.calls()[-1]["state"]]
        if form == "GLOBAL":
            parts = given[0]["global"]
            states = {
                s["stream_descriptor"]["name"]: s["stream_state"] for s in parts["stream_states"]
            }
            assert parts["shared_state"] == {"lsn": 7}
        else:
            states = given
        assert states == {name: {"cursor": at(3)} for name in names[:2]}, form
        program.run()
        given = program.calls()[-1]["state"]
        assert json.dumps(given).count('"cursor"') == 3
        assert at(5) in json.dumps(given)


def test_a_connector_sees_its_own_environment_only(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "of another source")
    monkeypatch.setenv("API_TOKEN", "t0ps3cret")
    program.stream("items", items(1))
    program.configure(
        config={"token": "${API_TOKEN}", "acts": {"check": [{"stderr": "t0ps3cret"}]}},
        environment={"MODE": "test"},
    )
    ran = program.project.loader("run", "--dry-run", options=("--debug",))
    assert (ran.code, program.calls("read")) == (0, [])
    assert len(program.calls("check")) == 1
    program.run()
    seen = program.calls()[0]["environment"]
    assert seen["MODE"] == "test"
    assert not {"PGPASSWORD", "API_TOKEN", "SPARK_SUBMIT_OPTS"} & set(seen)
    # a secret that only the connector's specification declares
    bad: list[dict[str, object]] = [{"stderr": "rejected: Zq81-literal"}, {"exit": 1}]
    for verb in ("items.0", "discover"):
        program.configure(config={"auth": {"pat": "Zq81-literal"}, "acts": {verb: bad}})
        ran = program.project.loader("run")
        assert "rejected: ***" in ran.errors[0], ran.errors
        assert "Zq81" not in ran.text
    left = list(Path(tempfile.gettempdir()).glob(f"{name_prefix(KIND)}{os.getpid()}-*"))
    assert left == []


def test_other_commands_with_a_connector(program: Program) -> None:
    program.stream("items", items(1, 2))
    program.stream("notes", [{"text": "a"}], {"text": {"type": "string"}}, (), None)
    program.configure()
    found = {e["table"]: e for e in program.project.loader("discover").events}
    assert found["items"]["primary_key"] == ["id"]
    checked = {e["table"]: e for e in program.project.loader("check").events if "table" in e}
    assert checked["api.items"]["cursor"] == "updated_at (timestamptz)"
    assert "no primary key" in checked["api.notes"]["notes"]
    program.run()
    for command in (("run", "--from", "2025-01-01", "--select", "api.items"), ("reconcile",)):
        ran = program.project.loader(*command)
        assert ran.code == 1
        assert "cannot be queried" in " ".join(ran.errors), (command, ran.text)
    assert len(program.calls()) == 1
    ran = program.project.loader("state", "set", "api.items", "2025-01-01")
    assert "resumes from its connector's state" in ran.errors[0]
    # options that only the connector could apply
    program.configure(table_options={"items": {"lookback": "1 day"}})
    ran = program.project.loader("check")
    assert "the connector decides which records it sends" in " ".join(ran.errors)
    # mistakes in the spec, and connectors that fail to start
    for own, output_text in {
        (): "no connector is set",
        (("command", "x"), ("image", "y")): "`command` and `image` are both set",
        (("command", "no-such-program --x"),): "the program no-such-program cannot be started",
        (("command", "cat"),): "exit code 1",
        (("manifest", "none.yaml"),): "none.yaml",
    }.items():
        program.project.add("api", "airbyte", ["*"], dict(own))
        ran = program.project.loader("check")
        assert output_text in " ".join(ran.errors), (own, ran.text)
        assert "defect" not in ran.text


def test_a_container_image(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments for docker; a stand-in on the PATH maps the folder and runs the connector."""
    folder = program.project.folder / "bin"
    folder.mkdir()
    docker = folder / "docker"
    docker.write_text(
        f"""#!{sys.executable}
import json, os, subprocess, sys
words = sys.argv[1:]
with open({str(folder / "asked")!r}, "a") as asked:
    asked.write(json.dumps(words) + "\\n")
outside, inside, mode = words[words.index("--volume") + 1].split(":")
verb = [w for w in words if w in ("check", "discover", "read")][-1]
rest = [w.replace(inside, outside) for w in words[words.index(verb):]]
os.execv({sys.executable!r}, [{sys.executable!r}, {CONNECTOR!r}, *rest])
"""
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2-of-another-source")
    program.stream("items", items(1, 2))
    program.configure()
    source = program.project.sources[0]["spec"]
    del source["command"]
    source.update(
        image="airbyte/source-api:1.0", docker_options=["--network", "host"], environment={"A": "1"}
    )
    program.project.write()
    assert program.run().table("api.items")["appended"] == 2
    words = json.loads((folder / "asked").read_text().splitlines()[-1])
    assert words[:4] == ["run", "--rm", "--init", "--name"]
    image = words.index("airbyte/source-api:1.0")
    assert words[image + 1 :] == [
        "read",
        *("--config", "/strandline/config.json"),
        *("--catalog", "/strandline/catalog.json"),
    ]
    assert words[words.index("--env") + 1] == "A"
    assert words[words.index("--network") + 1] == "host"
    assert words[words.index("--volume") + 1].endswith(":/strandline:ro")
    own = {*words[words.index("--name") + 2 : image]} - {"--env", "A", "--network", "host"}
    assert len(own - {"--volume", words[words.index("--volume") + 1]}) == 0  # no other options
    seen = program.calls()[-1]["environment"]  # docker's own, as there is no container
    assert (seen["A"], "SHOP_PASSWORD" in seen) == ("1", False)
