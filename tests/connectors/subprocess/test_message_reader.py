"""A read of a program's messages never returns a state before the records that it covers."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loader.connectors.airbyte.config import ConfigUpdates
from loader.connectors.subprocess import message_reader as reading
from loader.connectors.subprocess import supervisor
from loader.connectors.subprocess.program import Program, read_answer
from loader.connectors.subprocess.record_spool import Limits, RecordSpool
from loader.errors import LoaderError, TableError
from tests.connectors.subprocess.program_reads import (
    KEY,
    opened,
    record_of,
    sends,
    state_of,
)


def test_batches_end_at_states(tmp_path: Path) -> None:
    messages = []
    for number in range(1, 11):
        messages.append(record_of(number))
        if number % 2 == 0:
            messages.append(state_of(number))
    delivery, following = opened(tmp_path, sends(*messages), Limits(3), [])
    pieces = [following(), following(), following()]
    assert [(p.counts.rows, p.counts.low, p.counts.high, p.is_last) for p in pieces] == [
        (4, (1, 1), (4, 4), False),
        (4, (5, 5), (8, 8), False),
        (2, (9, 9), (10, 10), True),
    ]
    assert [p.state and p.state.value["stream_state"] for p in pieces] == [
        {"n": 4},
        {"n": 8},
        {"n": 10},
    ]
    lines = [json.loads(line) for p in pieces if p.path for line in p.path.open()]
    assert [line["c0"] for line in lines] == [*range(1, 11)]
    delivery.close()


@pytest.mark.parametrize("then", ["sys.exit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_records_that_no_state_covers_are_dropped(tmp_path: Path, then: str) -> None:
    messages = [record_of(1), record_of(2), state_of(2), record_of(3)]
    delivery, following = opened(tmp_path, sends(*messages, then=then), Limits(100), [])
    piece = following()
    assert (piece.counts.rows, piece.is_last) == (2, False)
    assert piece.path is not None
    assert len(piece.path.read_text().splitlines()) == 2
    with pytest.raises(TableError, match="the program failed"):
        following()
    delivery.close()
    # a stream that is read whole returns nothing
    delivery, following = opened(tmp_path, sends(*messages, then=then), None, [])
    with pytest.raises(TableError, match="the program failed"):
        following()
    delivery.close()
    assert list(tmp_path.iterdir()) == []


def test_a_program_waits_until_its_records_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MAX_WAITING_BYTES", 5_000)
    script = (
        "import json\n"
        f"record, state = {record_of(0)!r}, {state_of(0)!r}\n"
        "for n in range(2000):\n"
        "    record['record']['data']['id'] = n\n"
        "    print(json.dumps(record))\n"
        "    print(json.dumps(state))\n"
        f"open({str(tmp_path / 'done')!r}, 'w').close()\n"
    )
    delivery, following = opened(tmp_path, script, Limits(10), [])
    first = following()
    assert not (tmp_path / "done").exists()
    assert delivery._waiting_bytes < 10_000
    rows, last = first.counts.rows, first.is_last
    while not last:
        piece = following()
        rows, last = rows + piece.counts.rows, piece.is_last
    assert rows == 2000
    delivery.close()


def test_a_run_that_is_stopped_does_not_wait(tmp_path: Path) -> None:
    delivery, _ = opened(tmp_path, sends(then="time.sleep(60)"), Limits(10), [])

    def stopped() -> None:
        raise TableError("the run was interrupted")

    with pytest.raises(LoaderError, match="interrupted"):
        delivery.next_batch(KEY, stopped)
    delivery.close()


def test_a_background_process_does_not_block_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process may be the one that sends the records, so the read fails."""
    monkeypatch.setattr(supervisor, "LINGER", 0.3)
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, file=sys.stderr)"
    reported = {"stream_descriptor": {"name": "items"}, "status": "COMPLETE"}
    ended = {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": reported}}
    began = time.monotonic()
    script = sends(record_of(1), state_of(1), record_of(2), then=leaves)
    delivery, following = opened(tmp_path, script, Limits(9), [])
    assert following().counts.rows == 1
    with pytest.raises(TableError, match="keeps its output open"):
        following()
    delivery.close()
    # all requested streams are complete: the read does not wait for it
    script = sends(record_of(1), state_of(1), ended, then=leaves)
    delivery, following = opened(tmp_path, script, Limits(9), [])
    assert following().is_last
    delivery.close()
    assert not delivery._thread.is_alive()

    def start(hear: Callable[[str], None]) -> Program:
        script = sends({"answer": 1}, then=leaves)
        return Program([sys.executable, "-c", script], tmp_path, {}, 1 << 20, hear)

    assert len(list(read_answer(start, lambda line: line, (), 60.0, "api"))) == 1
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("then", ["", "time.sleep(60)"])
def test_a_process_with_a_session_of_its_own_does_not_block_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """It cannot be killed together with the program, and keeps the output open."""
    monkeypatch.setattr(supervisor, "LINGER", 0.3)
    leaves = (
        "import subprocess; "
        "subprocess.Popen(['sleep', '40'], start_new_session=True); "
        "print('{\"type\": \"RECORD\", ', end='', flush=True); "
    )
    began = time.monotonic()
    script = sends(record_of(1), state_of(1), record_of(2), then=leaves + then)
    delivery, following = opened(tmp_path, script, Limits(9), [], silence=2.0)
    assert following().counts.rows == 1
    reported = "sent nothing for 2 seconds" if then else "keeps its output open"
    with pytest.raises(TableError, match=reported):
        following()
    delivery.close()
    assert not delivery._thread.is_alive()
    assert time.monotonic() - began < 20


def test_a_state_that_counts_more_records_than_arrived_is_refused(tmp_path: Path) -> None:
    state = state_of(3)
    state["state"]["sourceStats"] = {"recordCount": 3.0}
    script = sends(
        record_of(1), state_of(1), record_of(2), record_of(3), state, record_of(4), state_of(4)
    )
    delivery, following = opened(tmp_path, script, Limits(9), [])
    piece = following()
    assert (piece.counts.rows, piece.is_last) == (1, False)
    assert piece.state is not None
    assert piece.state.value["stream_state"] == {"n": 1}
    with pytest.raises(TableError, match="the program sent 3 records, but only 2 arrived"):
        following()
    delivery.close()


def test_malformed_messages_do_not_end_the_read(tmp_path: Path) -> None:
    """This applies to messages other than records and states."""
    counted = state_of(1)
    counted["state"]["sourceStats"] = {"recordCount": "9"}
    odd: list[dict[str, Any]] = [
        {"type": "LOG", "log": "text"},
        {"type": "CONTROL", "control": {"connectorConfig": "x"}},
        {"type": "CONTROL", "control": 5},
        {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": "x"}},
        {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": {}}},
    ]
    warned: list[str] = []
    delivery, following = opened(
        tmp_path,
        sends(*odd, record_of(1), counted),
        Limits(9),
        warned,
        renew=ConfigUpdates(None, {}, lambda _: None).store_update,
    )
    piece = following()
    assert (piece.counts.rows, piece.is_last) == (1, True)
    delivery.close()
    assert warned == []


@pytest.mark.parametrize(
    ("number", "reported"), [(errno.EMFILE, "ulimit -n"), (errno.ENOSPC, "Free disk space")]
)
def test_an_error_of_the_spool_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reported: str
) -> None:
    def add(*_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(RecordSpool, "add", add)
    delivery, following = opened(tmp_path, sends(record_of(1)), Limits(9), [])
    with pytest.raises(TableError, match="cannot be written to the spool") as error:
        following()
    assert reported in error.value.remedy
    delivery.close()


def test_deletions_are_kept_with_the_state_that_covers_them(tmp_path: Path) -> None:
    def delete(**values: Any) -> dict[str, Any]:
        return {"type": "DELETE", "delete": {"stream": "items", "where": [values]}}

    messages = [
        record_of(1),
        delete(id=1),
        record_of(2),
        state_of(2),
        record_of(3),
        delete(text="late"),
    ]
    script = sends(*messages, then="sys.exit(1)")
    delivery, following = opened(tmp_path, script, Limits(100), [])
    piece = following()
    assert (piece.counts.rows, piece.counts.deletions, piece.deletion_columns) == (2, 1, (("id",),))
    assert piece.path is not None
    assert piece.deletions_path is not None
    # records after a deletion are marked
    after = [json.loads(line).get("d") for line in piece.path.read_text().splitlines()]
    assert after == [None, 1]
    assert json.loads(piece.deletions_path.read_text()) == {"d": 1, "r": '["id"]', "c0": 1}
    with pytest.raises(LoaderError):
        following()
    delivery.close()

    for wrong, reported in (
        ({"colour": 1}, "no such column"),
        ({"id": "x"}, "cannot store this value"),
    ):
        delivery, following = opened(tmp_path, sends(delete(**wrong)), Limits(100), [])
        with pytest.raises(TableError, match=reported):
            following()
        delivery.close()


def test_a_record_without_its_namespace_is_not_lost(tmp_path: Path) -> None:
    """The next state covers it. The loader's own warnings are shown despite many others."""
    log = [{"type": "LOG", "log": {"level": "WARN", "message": f"w{n}"}} for n in range(30)]
    foreign = record_of(9)
    foreign["record"]["stream"] = "others"
    own, eu, us = (("public", "items"), ("eu", "items"), ("us", "items"))
    others = ((None, "others"),)
    warned: list[str] = []
    script = sends(*log, record_of(1), foreign, state_of(1), record_of(2), state_of(2))
    delivery, following = opened(tmp_path, script, Limits(9), warned, own, others)
    piece = following()
    assert (piece.counts.rows, piece.is_last) == (2, True)
    assert piece.state is not None
    assert piece.state.value["stream_state"] == {"n": 2}
    assert len(warned) == 21
    assert "records of others, which this run did not request, are ignored" in warned
    delivery.close()

    # a stream that was not requested may have the same name
    delivery, following = opened(tmp_path, script, Limits(9), [], eu, (us, *others))
    assert following().counts.rows == 2
    delivery.close()
    foreign["record"] |= {"namespace": "us", "stream": "items"}
    delivery, following = opened(tmp_path, sends(foreign, state_of(1)), Limits(9), [], eu, (us,))
    assert following().counts.rows == 0
    delivery.close()
    for namespace, name in (("asia", "items"), (None, "renamed")):
        foreign["record"] |= {"namespace": namespace, "stream": name}
        script = sends(record_of(1), state_of(1), foreign, state_of(2))
        delivery, following = opened(tmp_path, script, Limits(9), [], eu, (us,))
        assert following().counts.rows == 1
        with pytest.raises(TableError, match="matches no stream or several streams"):
            following()
        delivery.close()
