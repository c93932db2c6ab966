"""A reported error fails the streams that may lack records, and is shown without secrets."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loader.connectors.airbyte.messages import AirbyteMessages
from loader.connectors.subprocess.json_schema import build_columns
from loader.connectors.subprocess.message_reader import MessageReader
from loader.connectors.subprocess.program import Program
from loader.connectors.subprocess.record_spool import Limits, RecordSpool, SpooledBatch, Stream
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.errors import LoaderError, TableError
from loader.spec.redaction import Redactor
from tests.connectors.subprocess.program_reads import (
    KEY,
    SCHEMA,
    error_trace,
    log_line,
    opened,
    record_of,
    sends,
    state_of,
)

_QUOTA = "the quota is used up\nTraceback (most recent call last): …"
_XML = "Response cannot be parsed from XML: response.status_code=204, response.text='{}', exc=…"
_TOKEN = "tok_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghij"


@pytest.mark.parametrize(
    "said",
    [
        sends(log_line("ERROR", "x" * 420 + _TOKEN)),
        sends(log_line("WARN", "x" * 470 + _TOKEN)),
        sends(error_trace("x" * 970 + _TOKEN, stream_descriptor={"name": "items"})),
        sends(error_trace("x" * 970 + _TOKEN)),
        f"import sys; print('x' * 960, {_TOKEN!r}, file=sys.stderr); sys.exit(1)",
        f"import sys; print('x' * 65520, {_TOKEN!r}, file=sys.stderr); sys.exit(1)",
        f"""print('{{"type": "RECORD", "record": {{"stream": "items", "data": {{"key": "', end='')
print('x' * 20, {_TOKEN!r}, sep='')""",
        sends({"type": "RECORD", "record": {"stream": "x" * 60 + _TOKEN, "data": {}}}),
    ],
)
def test_a_secret_at_the_end_of_a_truncated_text_is_redacted(tmp_path: Path, said: str) -> None:
    redactor = Redactor()  # learns the secret just before text is shown, as for a connector
    warned: list[str] = []
    hide = partial(redactor.add, _TOKEN)
    delivery, following = opened(tmp_path, said, Limits(100), warned, before=hide)
    try:
        while not following().is_last:
            pass
    except LoaderError as error:
        warned.append(error.what)
    delivery.close()
    assert warned
    assert not re.search("tok|hij", "".join(warned))


def test_a_program_that_fails_after_all_streams_are_complete_is_reported(tmp_path: Path) -> None:
    warned: list[str] = []
    reported = {"stream_descriptor": {"name": "items"}, "status": "COMPLETE"}
    ended = {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": reported}}
    script = sends(record_of(1), state_of(1), ended, then="sys.exit(3)")
    delivery, following = opened(tmp_path, script, Limits(9), warned)
    assert following().is_last
    delivery.close()
    assert warned == ["all streams are complete, but the program failed (exit code 3)"]


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        ([], "bye"),
        ([log_line("FATAL", _QUOTA), log_line("CRITICAL", "that was it")], "the quota is used up"),
        ([log_line("FATAL", _QUOTA), error_trace("HTTP 429")], "HTTP 429"),
    ],
)
def test_the_reason_for_a_failure_is_read_from_the_log(
    tmp_path: Path, said: list[dict[str, Any]], reported: str
) -> None:
    """An error trace takes precedence over the log, and the log over the end of stderr."""
    script = sends(*said, then="print('bye', file=sys.stderr); sys.exit(1)")
    delivery, following = opened(tmp_path, script, Limits(9), [])
    with pytest.raises(TableError) as failed:
        following()
    assert failed.value.what == f"the program failed (exit code 1): {reported}"
    delivery.close()


def test_a_stream_that_was_started_and_not_completed_is_an_error(tmp_path: Path) -> None:
    """This applies if the connector reports that other streams are complete."""

    def status(name: str, what: str) -> dict[str, Any]:
        reported = {"stream_descriptor": {"name": name}, "status": what}
        return {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": reported}}

    def read(*messages: dict[str, Any]) -> SpooledBatch:
        streams: dict[Any, Stream] = {
            (None, name): Stream(
                name,
                RecordSpool(
                    tmp_path, number, RecordLayout(name, build_columns(SCHEMA, {}), (), None)
                ),
                False,
            )
            for number, name in enumerate(("items", "others"))
        }
        delivery = MessageReader(
            lambda hear: Program(
                [sys.executable, "-c", sends(*messages)], tmp_path, {}, 1 << 20, hear
            ),
            AirbyteMessages(lambda _: False, set(streams)),
            streams,
            "airbyte",
            0,
            30.0,
            lambda *_: None,
            "api",
            lambda: None,
        )
        try:
            return delivery.next_batch(KEY, lambda: None)
        finally:
            delivery.close()

    began, other = status("items", "STARTED"), status("others", "COMPLETE")
    with pytest.raises(TableError, match="did not complete the stream"):
        read(began, record_of(1), other)
    assert read(began, record_of(1)).counts.rows == 1  # it reports no completions
    assert read(record_of(1), other).counts.rows == 1
    assert read(began, record_of(1), status("items", "COMPLETE"), other).counts.rows == 1


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        (error_trace("page 2 is gone", stream_descriptor={"name": "items"}), True),
        (error_trace("page 2 is gone"), True),
        (error_trace("page 2 is gone", stream_descriptor={"name": "other"}), False),
        (log_line("error", "page 2 is gone"), True),
        (log_line("Warn", "Response cannot be parsed from XML: page 2 is gone"), True),
        (log_line("WARN", "Cannot decode/parse line b'page 2 is gone' as JSON, error: …"), True),
        (log_line("WARN", "Cannot decode/parse line b' \\r\\n' as JSON, error: …"), False),
        (log_line("WARN", _XML.format("")), False),
        (log_line("WARN", _XML.format("page 2 is gone")), True),
        (log_line("WARN", "page 2 is gone"), False),
    ],
)
def test_a_stream_is_not_complete_after_an_error(
    tmp_path: Path, message: dict[str, Any], lost: bool
) -> None:
    """This holds even if completion is reported later; errors of other streams do not count."""

    def status(what: str) -> dict[str, Any]:
        reported = {"stream_descriptor": {"name": "items"}, "status": what}
        return {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": reported}}

    said = [
        status("STARTED"),
        record_of(1),
        state_of(1),
        message,
        record_of(3),
        state_of(3),
        status("COMPLETE"),
    ]
    more = ((None, "other"),)
    delivery, following = opened(tmp_path, sends(*said), Limits(1), [], more=more)
    assert following().counts.rows == 1
    if lost:
        assert following().counts.rows == 0
        with pytest.raises(TableError, match="page 2 is gone"):
            following()
    else:
        assert following().counts.rows == 1
        assert following().is_last
    delivery.close()
