"""`loader serve` waits for a table that another run, such as `loader compact`, has locked."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from loader.connectors.cloudquery.ingest import CloudQueryIngest
from loader.lake.locks import Lease, create_lease
from loader.spec.spec import load_spec
from loader.sync import ingest
from loader.sync.ingest import Ingest
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome
from tests.connectors.cloudquery.test_ingest import ORDERS, Bridge
from tests.sync.project import Project


class Held:
    """A lock on a table that is held until the loader warns that it waits.

    Attributes:
        heard: the warnings that the loader waits.
        said: its other warnings.
        stops: a run to stop at that moment, instead of unlocking the table.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._lease.acquire()
        self.heard: list[str] = []
        self.said: list[str] = []
        self.stops: Watch | None = None

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        """Ignores a phase."""

    def warn(self, table: str, text: str) -> None:
        """Unlocks the table, or stops the run."""
        if "another run has locked it" not in text:
            self.said.append(text)
            return
        self.heard.append(f"{table}: {text}")
        if self.stops is None:
            self._lease.release()
        else:
            self.stops.stopped.set()

    def release(self) -> None:
        """Unlocks the table."""
        self._lease.release()


def session(folder: Path, number: int, *streams: str, source: str = "shop") -> dict[str, Any]:
    """Returns a session of a sync that has written a row to tables without a key."""
    place = folder / f"sync{number}"
    place.mkdir()
    catalog = [{**ORDERS, "name": name, "source_defined_primary_key": []} for name in streams]
    (place / "catalog.json").write_text(json.dumps({"streams": catalog}))
    reported = [{"stream": name, "data": {"id": number}} for name in streams]
    lines = [json.dumps({"type": "RECORD", "record": record}) + "\n" for record in reported]
    (place / "messages.jsonl").write_text("".join(lines))
    return {"session": number, "folder": str(place), "stale": [], "source": source, "rows": True}


def test_a_key_that_cannot_be_recorded_does_not_fail_the_sync(project: Project) -> None:
    """The rows are published, and a retry would append rows of tables without a key again."""
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    compaction = create_lease(project.lake(), "orders", "orders", "compaction")
    heard: list[str] = []

    class Listener:
        def report_phase(self, *_: Any) -> None:
            pass

        def warn(self, table: str, text: str) -> None:
            heard.append(f"{table}: {text}")

    def ended(_: Outcome) -> None:
        compaction.acquire()

    bridge: Any = Bridge(session(project.folder, 1, "orders"))
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(Listener()), ended)).run()
    assert bridge.errors == [None]
    assert project.rows("select id from raw.orders") == [(1,)]
    [warning] = [text for text in heard if "not recorded" in text]
    assert warning.startswith("shop.orders: its key was not recorded")
    assert "another run holds this table" in warning
    [error] = project.loader("state", "list").errors
    assert "no program has pushed a table yet" in error
    compaction.release()

    bridge = Bridge(session(project.folder, 2, "orders"))
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None)).run()
    [state] = [e for e in project.loader("state", "list").events if e["event"] == "state"]
    assert state["table"] == "shop.orders"


def test_a_sync_waits_for_a_table_that_another_run_holds(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the sync failed, its retry would append the rows of the other tables twice."""
    monkeypatch.setattr(ingest, "PAUSE", (0.05, 0.1))
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    project.lake().prepare()
    names = ("orders", "lines[1]", "lines1")

    def ran(number: int, *, stops: bool = False) -> tuple[list[str | None], Held, list[Outcome]]:
        held = Held(create_lease(project.lake(), "lines[1]", "lines", f"other{number}"))
        watch = Watch(held)
        held.stops = watch if stops else None
        bridge: Any = Bridge(session(project.folder, number, *names))
        outcomes: list[Outcome] = []
        try:
            CloudQueryIngest(
                bridge, Ingest(spec, project.spark, "lake", watch, outcomes.append)
            ).run()
        finally:
            held.release()
        return bridge.errors, held, outcomes

    errors, held, outcomes = ran(1)
    assert errors == [None]
    [warning] = held.heard
    assert warning.startswith("shop.lines[1]: another run has locked it: the sync waits")
    assert [text for text in held.said if "did not request" in text] == []
    assert sorted(outcome.table for outcome in outcomes) == sorted(f"shop.{n}" for n in names)
    for name in names:
        assert project.rows(f"select id from raw.`{name}`") == [(1,)]

    # the wait ends if the loader is stopped, or if it takes too long
    before = time.monotonic()
    [error], _, outcomes = ran(2, stops=True)
    assert error is not None
    assert "another run holds this table" in error
    assert time.monotonic() - before < ingest.PATIENCE / 2
    assert project.rows("select count(*) from raw.orders") == [(2,)]
    monkeypatch.setattr(ingest, "PATIENCE", -1.0)
    [error], held, _ = ran(3)
    assert error is not None
    assert "another run holds this table" in error
    assert held.heard == []


def test_a_sync_that_was_aborted_before_its_turn_is_an_error(project: Project) -> None:
    """While another sync was appended, its client disconnected, and the bridge removed its rows."""
    project.write()
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    gone, next_one = session(project.folder, 1, "orders"), session(project.folder, 2, "orders")
    (Path(gone["folder"]) / "messages.jsonl").unlink()
    heard = Held(create_lease(project.lake(), "other", "other", "other"))
    outcomes: list[Outcome] = []
    bridge: Any = Bridge(gone, next_one)
    CloudQueryIngest(
        bridge, Ingest(spec, project.spark, "lake", Watch(heard), outcomes.append)
    ).run()
    heard.release()
    [error, none] = bridge.errors
    assert error is not None
    assert error.startswith("a sync was aborted before its rows could be appended")
    assert none is None
    assert [text for text in heard.said if "before its rows could be appended" in text] != []
    assert [(outcome.table, outcome.error) for outcome in outcomes] == [("shop.orders", None)]
    assert project.rows("select id from raw.orders") == [(2,)]
