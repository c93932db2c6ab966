"""One read of a program, without Spark: what is handed out, and when the program has to wait."""

from __future__ import annotations

import errno
import json
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loader.errors import LoaderError, TableError
from loader.sources.airbyte.messages import AirbyteDialect
from loader.sources.airbyte.renewed import Renewed
from loader.sources.programs import delivery as reading
from loader.sources.programs import process
from loader.sources.programs.answer import answered
from loader.sources.programs.columns import columns
from loader.sources.programs.delivery import Delivery
from loader.sources.programs.layout import Layout
from loader.sources.programs.process import Process
from loader.sources.programs.spool import Limits, Piece, Spool
from loader.sources.programs.stream import Stream
from loader.sources.singer.messages import SingerDialect
from loader.spec.redaction import Redactor

KEY = (None, "items")
SCHEMA = {"properties": {"id": {"type": "integer"}, "text": {"type": "string"}}}


def _record(number: int) -> dict[str, Any]:
    data = {"id": number, "text": "x" * 100}
    return {"type": "RECORD", "record": {"stream": "items", "data": data, "emitted_at": 1}}


def _state(number: int) -> dict[str, Any]:
    stream = {"stream_descriptor": {"name": "items"}, "stream_state": {"n": number}}
    return {"type": "STATE", "state": {"type": "STREAM", "stream": stream}}


def _opened(
    folder: Path,
    script: str,
    limits: Limits | None,
    warned: list[str],
    key: tuple[str | None, str] = KEY,
    more: tuple[tuple[str | None, str], ...] = (),
    silence: float = 30.0,
    renew: Callable[[Any], bool] = lambda _: False,
    before: Callable[[], None] = lambda: None,
) -> tuple[Delivery, Callable[[], Piece]]:
    """Starts a read of a Python program.

    Args:
        key: the stream that is read.
        more: other streams of the catalog.
        before: called before the program's own words are shown.
    """
    layout = Layout("api.items", columns(SCHEMA, {}), ("id",), ())
    stream = Stream("api.items", Spool(folder, 0, layout, "id", limits), limits is not None)

    def start(hear: Callable[[str], None]) -> Process:
        return Process([sys.executable, "-c", script], folder, {}, 1 << 20, hear)

    found = Delivery(
        start,
        AirbyteDialect(renew, {key, *more}),
        {key: stream},
        "airbyte",
        0,
        silence,
        lambda _table, text: warned.append(text),
        "api",
        before,
    )
    return found, lambda: found.next(key, lambda: None)


def _sends(*messages: dict[str, Any], then: str = "") -> str:
    lines = "\n".join(map(json.dumps, messages))
    return f"import sys, time\nprint({lines!r}, flush=True)\n{then}"


def test_pieces_end_at_states(tmp_path: Path) -> None:
    messages = []
    for number in range(1, 11):
        messages.append(_record(number))
        if number % 2 == 0:
            messages.append(_state(number))
    delivery, following = _opened(tmp_path, _sends(*messages), Limits(3), [])
    pieces = [following(), following(), following()]
    assert [(p.counts.rows, p.counts.low, p.counts.high, p.last) for p in pieces] == [
        (4, 1, 4, False),
        (4, 5, 8, False),
        (2, 9, 10, True),
    ]
    assert [p.memory and p.memory.value["stream_state"] for p in pieces] == [
        {"n": 4},
        {"n": 8},
        {"n": 10},
    ]
    lines = [json.loads(line) for p in pieces if p.path for line in p.path.open()]
    assert [line["c0"] for line in lines] == [*range(1, 11)]
    delivery.close()


_QUOTA = "the quota is used up\nTraceback (most recent call last): …"
_XML = "Response cannot be parsed from XML: response.status_code=204, response.text='{}', exc=…"
_TOKEN = "tok_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghij"


def _log(level: str, text: str) -> dict[str, Any]:
    return {"type": "LOG", "log": {"level": level, "message": text}}


def _error(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "TRACE", "trace": {"type": "ERROR", "error": {"message": text, **more}}}


@pytest.mark.parametrize(
    "said",
    [
        _sends(_log("ERROR", "x" * 420 + _TOKEN)),
        _sends(_log("WARN", "x" * 470 + _TOKEN)),
        _sends(_error("x" * 970 + _TOKEN, stream_descriptor={"name": "items"})),
        _sends(_error("x" * 970 + _TOKEN)),
        f"import sys; print('x' * 960, {_TOKEN!r}, file=sys.stderr); sys.exit(1)",
        f"import sys; print('x' * 65520, {_TOKEN!r}, file=sys.stderr); sys.exit(1)",
        f"""print('{{"type": "RECORD", "record": {{"stream": "items", "data": {{"key": "', end='')
print('x' * 20, {_TOKEN!r}, sep='')""",
        _sends({"type": "RECORD", "record": {"stream": "x" * 60 + _TOKEN, "data": {}}}),
    ],
)
def test_a_secret_across_the_end_of_what_is_shown(tmp_path: Path, said: str) -> None:
    redactor = Redactor()  # knows it only when words are about to be shown, as of a connector
    warned: list[str] = []
    hide = partial(redactor.add, _TOKEN)
    delivery, following = _opened(tmp_path, said, Limits(100), warned, before=hide)
    try:
        while not following().last:
            pass
    except LoaderError as error:
        warned.append(error.what)
    delivery.close()
    assert warned
    assert not re.search("tok|hij", "".join(warned))


@pytest.mark.parametrize("then", ["sys.exit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_records_that_no_state_covers_are_dropped(tmp_path: Path, then: str) -> None:
    messages = [_record(1), _record(2), _state(2), _record(3)]
    delivery, following = _opened(tmp_path, _sends(*messages, then=then), Limits(100), [])
    piece = following()
    assert (piece.counts.rows, piece.last) == (2, False)
    assert piece.path is not None
    assert len(piece.path.read_text().splitlines()) == 2
    with pytest.raises(TableError, match="the program failed"):
        following()
    delivery.close()
    # one that is read whole has nothing to show for itself
    delivery, following = _opened(tmp_path, _sends(*messages, then=then), None, [])
    with pytest.raises(TableError, match="the program failed"):
        following()
    delivery.close()
    assert list(tmp_path.iterdir()) == []


def test_a_program_waits_until_its_records_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_AHEAD", 5_000)
    script = (
        "import json\n"
        f"record, state = {_record(0)!r}, {_state(0)!r}\n"
        "for n in range(2000):\n"
        "    record['record']['data']['id'] = n\n"
        "    print(json.dumps(record))\n"
        "    print(json.dumps(state))\n"
        f"open({str(tmp_path / 'done')!r}, 'w').close()\n"
    )
    delivery, following = _opened(tmp_path, script, Limits(10), [])
    first = following()
    assert not (tmp_path / "done").exists()
    assert delivery._waiting < 10_000
    rows, last = first.counts.rows, first.last
    while not last:
        piece = following()
        rows, last = rows + piece.counts.rows, piece.last
    assert rows == 2000
    delivery.close()


def test_a_run_that_is_stopped_does_not_wait(tmp_path: Path) -> None:
    delivery, _ = _opened(tmp_path, _sends(then="time.sleep(60)"), Limits(10), [])

    def stopped() -> None:
        raise TableError("the run was interrupted")

    with pytest.raises(LoaderError, match="interrupted"):
        delivery.next(KEY, stopped)
    delivery.close()


def test_what_a_program_leaves_behind_does_not_keep_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be what sends the records, so the read has not ended well."""
    monkeypatch.setattr(process, "LINGER", 0.3)
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, file=sys.stderr)"
    told = {"stream_descriptor": {"name": "items"}, "status": "COMPLETE"}
    ended = {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": told}}
    began = time.monotonic()
    script = _sends(_record(1), _state(1), _record(2), then=leaves)
    delivery, following = _opened(tmp_path, script, Limits(9), [])
    assert following().counts.rows == 1
    with pytest.raises(TableError, match="keeps its output open"):
        following()
    delivery.close()
    # all that was asked for is there: nobody waits for it
    script = _sends(_record(1), _state(1), ended, then=leaves)
    delivery, following = _opened(tmp_path, script, Limits(9), [])
    assert following().last
    delivery.close()
    assert not delivery._reader.is_alive()

    def start(hear: Callable[[str], None]) -> Process:
        script = _sends({"answer": 1}, then=leaves)
        return Process([sys.executable, "-c", script], tmp_path, {}, 1 << 20, hear)

    assert len(list(answered(start, lambda line: line, (), 60.0, "api"))) == 1
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("then", ["", "time.sleep(60)"])
def test_a_process_with_a_session_of_its_own_does_not_keep_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """It cannot be ended with the program, and holds the output open."""
    monkeypatch.setattr(process, "LINGER", 0.3)
    leaves = (
        "import subprocess; "
        "subprocess.Popen(['sleep', '40'], start_new_session=True); "
        "print('{\"type\": \"RECORD\", ', end='', flush=True); "
    )
    began = time.monotonic()
    script = _sends(_record(1), _state(1), _record(2), then=leaves + then)
    delivery, following = _opened(tmp_path, script, Limits(9), [], silence=2.0)
    assert following().counts.rows == 1
    told = "said nothing for 2 seconds" if then else "keeps its output open"
    with pytest.raises(TableError, match=told):
        following()
    delivery.close()
    assert not delivery._reader.is_alive()
    assert time.monotonic() - began < 20


def test_a_state_that_counts_more_records_than_came_is_not_taken(tmp_path: Path) -> None:
    state = _state(3)
    state["state"]["sourceStats"] = {"recordCount": 3.0}
    script = _sends(_record(1), _state(1), _record(2), _record(3), state, _record(4), _state(4))
    delivery, following = _opened(tmp_path, script, Limits(9), [])
    piece = following()
    assert (piece.counts.rows, piece.last) == (1, False)
    assert piece.memory is not None
    assert piece.memory.value["stream_state"] == {"n": 1}
    with pytest.raises(TableError, match="it sent 3 records, and 2 came"):
        following()
    delivery.close()


def test_a_program_that_fails_after_all_is_sent_is_told_of(tmp_path: Path) -> None:
    warned: list[str] = []
    told = {"stream_descriptor": {"name": "items"}, "status": "COMPLETE"}
    ended = {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": told}}
    script = _sends(_record(1), _state(1), ended, then="sys.exit(3)")
    delivery, following = _opened(tmp_path, script, Limits(9), warned)
    assert following().last
    delivery.close()
    assert warned == ["all its streams are complete, but the program failed (exit code 3)"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([], "bye"),
        ([_log("FATAL", _QUOTA), _log("CRITICAL", "that was it")], "the quota is used up"),
        ([_log("FATAL", _QUOTA), _error("HTTP 429")], "HTTP 429"),
    ],
)
def test_why_a_program_ended_is_in_its_log(
    tmp_path: Path, said: list[dict[str, Any]], told: str
) -> None:
    """Its own error trace says it better, and what is last on standard error less well."""
    script = _sends(*said, then="print('bye', file=sys.stderr); sys.exit(1)")
    delivery, following = _opened(tmp_path, script, Limits(9), [])
    with pytest.raises(TableError) as failed:
        following()
    assert failed.value.what == f"the program failed (exit code 1): {told}"
    delivery.close()


def test_a_stream_that_began_and_never_ended_is_not_whole(tmp_path: Path) -> None:
    """Where the connector says of others that they have ended."""

    def status(name: str, what: str) -> dict[str, Any]:
        told = {"stream_descriptor": {"name": name}, "status": what}
        return {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": told}}

    def read(*messages: dict[str, Any]) -> Piece:
        streams: dict[Any, Stream] = {
            (None, name): Stream(
                name, Spool(tmp_path, number, Layout(name, columns(SCHEMA, {}), (), ())), False
            )
            for number, name in enumerate(("items", "others"))
        }
        delivery = Delivery(
            lambda hear: Process(
                [sys.executable, "-c", _sends(*messages)], tmp_path, {}, 1 << 20, hear
            ),
            AirbyteDialect(lambda _: False, set(streams)),
            streams,
            "airbyte",
            0,
            30.0,
            lambda *_: None,
            "api",
            lambda: None,
        )
        try:
            return delivery.next(KEY, lambda: None)
        finally:
            delivery.close()

    began, other = status("items", "STARTED"), status("others", "COMPLETE")
    with pytest.raises(TableError, match="did not complete the stream"):
        read(began, _record(1), other)
    assert read(began, _record(1)).counts.rows == 1  # it never says so
    assert read(_record(1), other).counts.rows == 1
    assert read(began, _record(1), status("items", "COMPLETE"), other).counts.rows == 1


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        (_error("page 2 is gone", stream_descriptor={"name": "items"}), True),
        (_error("page 2 is gone"), True),
        (_error("page 2 is gone", stream_descriptor={"name": "other"}), False),
        (_log("error", "page 2 is gone"), True),
        (_log("Warn", "Response cannot be parsed from XML: page 2 is gone"), True),
        (_log("WARN", "Cannot decode/parse line b'page 2 is gone' as JSON, error: …"), True),
        (_log("WARN", "Cannot decode/parse line b' \\r\\n' as JSON, error: …"), False),
        (_log("WARN", _XML.format("")), False),
        (_log("WARN", _XML.format("page 2 is gone")), True),
        (_log("WARN", "page 2 is gone"), False),
    ],
)
def test_a_stream_is_not_complete_after_an_error(
    tmp_path: Path, message: dict[str, Any], lost: bool
) -> None:
    """Whatever the connector says afterwards; one about another stream is none of its business."""

    def status(what: str) -> dict[str, Any]:
        told = {"stream_descriptor": {"name": "items"}, "status": what}
        return {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": told}}

    said = [
        status("STARTED"),
        _record(1),
        _state(1),
        message,
        _record(3),
        _state(3),
        status("COMPLETE"),
    ]
    more = ((None, "other"),)
    delivery, following = _opened(tmp_path, _sends(*said), Limits(1), [], more=more)
    assert following().counts.rows == 1
    if lost:
        assert following().counts.rows == 0
        with pytest.raises(TableError, match="page 2 is gone"):
            following()
    else:
        assert following().counts.rows == 1
        assert following().last
    delivery.close()


def test_messages_of_an_odd_shape_do_not_end_the_read(tmp_path: Path) -> None:
    """Those that are no records or states."""
    counted = _state(1)
    counted["state"]["sourceStats"] = {"recordCount": "9"}
    odd: list[dict[str, Any]] = [
        {"type": "LOG", "log": "text"},
        {"type": "CONTROL", "control": {"connectorConfig": "x"}},
        {"type": "CONTROL", "control": 5},
        {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": "x"}},
        {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": {}}},
    ]
    warned: list[str] = []
    delivery, following = _opened(
        tmp_path,
        _sends(*odd, _record(1), counted),
        Limits(9),
        warned,
        renew=Renewed(None, {}, warned.append).keep,
    )
    piece = following()
    assert (piece.counts.rows, piece.last) == (1, True)
    delivery.close()
    assert warned == []


@pytest.mark.parametrize(
    ("number", "told"), [(errno.EMFILE, "ulimit -n"), (errno.ENOSPC, "Free disk space")]
)
def test_records_that_cannot_be_kept_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    def add(*_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(Spool, "add", add)
    delivery, following = _opened(tmp_path, _sends(_record(1)), Limits(9), [])
    with pytest.raises(TableError, match="cannot be kept") as error:
        following()
    assert told in error.value.remedy
    delivery.close()


def test_deletions_are_kept_with_the_state_that_covers_them(tmp_path: Path) -> None:
    def delete(**values: Any) -> dict[str, Any]:
        return {"type": "DELETE", "delete": {"stream": "items", "where": [values]}}

    messages = [_record(1), delete(id=1), _record(2), _state(2), _record(3), delete(text="late")]
    script = _sends(*messages, then="sys.exit(1)")
    delivery, following = _opened(tmp_path, script, Limits(100), [])
    piece = following()
    assert (piece.counts.rows, piece.counts.deletions, piece.by) == (2, 1, (("id",),))
    assert piece.path is not None
    assert piece.deleted is not None
    # what comes after a deletion says so
    after = [json.loads(line).get("d") for line in piece.path.read_text().splitlines()]
    assert after == [None, 1]
    assert json.loads(piece.deleted.read_text()) == {"d": 1, "r": '["id"]', "c0": 1}
    with pytest.raises(LoaderError):
        following()
    delivery.close()

    for wrong, told in (({"colour": 1}, "no such column"), ({"id": "x"}, "cannot hold that")):
        delivery, following = _opened(tmp_path, _sends(delete(**wrong)), Limits(100), [])
        with pytest.raises(TableError, match=told):
            following()
        delivery.close()


def test_a_record_without_its_namespace_is_not_lost(tmp_path: Path) -> None:
    """The next state covers it; and the loader's own warnings are not crowded out by others."""
    log = [{"type": "LOG", "log": {"level": "WARN", "message": f"w{n}"}} for n in range(30)]
    foreign = _record(9)
    foreign["record"]["stream"] = "others"
    own, eu, us = (("public", "items"), ("eu", "items"), ("us", "items"))
    others = ((None, "others"),)
    warned: list[str] = []
    script = _sends(*log, _record(1), foreign, _state(1), _record(2), _state(2))
    delivery, following = _opened(tmp_path, script, Limits(9), warned, own, others)
    piece = following()
    assert (piece.counts.rows, piece.last) == (2, True)
    assert piece.memory is not None
    assert piece.memory.value["stream_state"] == {"n": 2}
    assert len(warned) == 21
    assert "records of others, which was not asked for, are ignored" in warned
    delivery.close()

    # a stream that was not asked for may have that name, too
    delivery, following = _opened(tmp_path, script, Limits(9), [], eu, (us, *others))
    assert following().counts.rows == 2
    delivery.close()
    foreign["record"] |= {"namespace": "us", "stream": "items"}
    delivery, following = _opened(tmp_path, _sends(foreign, _state(1)), Limits(9), [], eu, (us,))
    assert following().counts.rows == 0
    delivery.close()
    for namespace, name in (("asia", "items"), (None, "renamed")):
        foreign["record"] |= {"namespace": namespace, "stream": name}
        script = _sends(_record(1), _state(1), foreign, _state(2))
        delivery, following = _opened(tmp_path, script, Limits(9), [], eu, (us,))
        assert following().counts.rows == 1
        with pytest.raises(TableError, match="its catalog has no such stream, or several"):
            following()
        delivery.close()


def test_a_table_that_is_read_whole_and_fails_beside_a_shared_state_is_told_of(
    tmp_path: Path,
) -> None:
    """Its records may belong to another stream's, whose state goes on."""
    records = [{"type": "RECORD", "stream": name, "record": {"id": 1}} for name in ("a", "b")]
    warned: list[str] = []
    delivery = _tap(tmp_path, _sends(*records, {"type": "STATE", "value": {}}), warned)
    assert delivery.next("a", lambda: None).last
    assert delivery.next("b", lambda: None).last
    delivery.abandon("a")
    assert warned == []
    delivery.abandon("b")
    assert "the other tables' state goes on without it" in warned[0]
    delivery.close()


def test_records_of_a_tap_find_their_stream(tmp_path: Path) -> None:
    """By any name of it; one that the catalog does not have would be lost with the next state."""

    def record(name: str, number: int) -> dict[str, Any]:
        return {"type": "RECORD", "stream": name, "record": {"id": number}}

    state = {"type": "STATE", "value": {}}
    warned: list[str] = []
    sent = [record("a", 1), record("public-a", 2), record("c", 9), state]
    delivery = _tap(tmp_path, _sends(*sent, record("new", 3), state), warned)
    piece = delivery.next("a", lambda: None)
    assert (piece.counts.rows, piece.last) == (2, False)
    with pytest.raises(TableError, match="a record of 'new', and its catalog has no such stream"):
        delivery.next("a", lambda: None)
    delivery.close()
    assert warned == ["records of c, which was not asked for, are ignored"]


def _tap(folder: Path, script: str, warned: list[str]) -> Delivery:
    """Starts a tap with the streams `a`, from a state, and `b`, whole."""
    streams = {}
    for number, name in enumerate("ab"):
        layout = Layout(f"tap.{name}", columns(SCHEMA, {}), ("id",), ())
        limits = None if number else Limits(100)
        streams[name] = Stream(
            f"tap.{name}", Spool(folder, number, layout, "id", limits), not number
        )
    return Delivery(
        lambda hear: Process([sys.executable, "-c", script], folder, {}, 1 << 20, hear),
        SingerDialect({}, {"a": "a", "b": "b", "public-a": "a", "c": "c"}),
        dict(streams),
        "singer",
        0,
        30.0,
        lambda _table, text: warned.append(text),
        "tap",
        lambda: None,
    )
