"""The messages of a Singer tap.

A state covers all records before it, of all streams.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from loader.errors import TableError
from loader.sources.programs.digits import decode, encode
from loader.sources.programs.malformed import flatten, is_broken, is_misnamed
from loader.sources.programs.message_reader import Delivery
from loader.spec.redaction import excerpt


class SingerDialect:
    """Understands a tap's messages while it reads.

    Args:
        keys: by stream, the primary key that the run's plan has.
        aliases: the streams of the catalog, by what the messages may call them.
    """

    def __init__(
        self,
        keys: Mapping[Hashable, tuple[str, ...]],
        aliases: Mapping[str, str],
    ) -> None:
        self._aliases = aliases
        self._keys = keys

    def hear(self, line: bytes, delivery: Delivery) -> None:
        deep = False
        try:
            try:
                message = decode(line.decode())
            except RecursionError:
                deep, message = True, decode(flatten(line).decode())
        except (ValueError, RecursionError):
            if is_broken(line):
                raise _broken(line, delivery.source) from None
            message = None
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "RECORD":
            self._record(message, line, delivery, deep)
        elif deep and kind != "STATE":
            raise _broken(line, delivery.source)
        elif kind == "STATE":
            if "value" not in message:
                raise _broken(line, delivery.source)
            try:
                text = None if deep else encode(message["value"])
            except RecursionError:
                text = None
            if text is None:
                delivery.refuse_deep_state(None)
            else:
                delivery.state("STATE", None, text)
        elif kind == "SCHEMA":
            self._schema(message, delivery)
        elif kind == "BATCH":
            raise TableError(
                "the tap sends its records in files (BATCH messages), which are not supported",
                where=f"source {delivery.source}",
                remedy="Remove `batch_config` from the tap's configuration",
            )
        elif is_misnamed(message, line):
            raise _broken(line, delivery.source)
        elif kind is None and line.strip():
            delivery.words.say("INFO", line.decode("utf-8", "replace").strip())

    def _record(
        self, message: Mapping[str, Any], line: bytes, delivery: Delivery, deep: bool
    ) -> None:
        name, record = message.get("stream"), message.get("record")
        if not isinstance(name, str) or not isinstance(record, dict):
            raise _broken(line, delivery.source)
        key = self._aliases.get(name)
        if key is None:
            raise TableError(
                f"the tap sent a record of {excerpt(name, 80)!r}, and its catalog has no such "
                "stream, or several: its state would cover a record that no table gets",
                where=f"source {delivery.source}",
                remedy="Add the stream to the tap's catalog (`catalog` names a file), or leave it "
                "out in the tap's configuration",
            )
        if deep:
            delivery.refuse_depth(key)
        else:
            delivery.record(key, record)

    def _schema(self, message: Mapping[str, Any], delivery: Delivery) -> None:
        """A schema only confirms the catalog's: fields that are new are kept in `_rest`."""
        name, keys = message.get("stream"), message.get("key_properties") or []
        planned = self._keys.get(self._aliases.get(name) if isinstance(name, str) else None)
        if planned is not None and keys and set(keys) != set(planned):
            delivery.words.warn_once(
                f"its records have the key {', '.join(keys)}, and its catalog said "
                f"{', '.join(planned) or 'nothing'}: set table_options.{name}.primary_key"
            )


def _broken(line: bytes, source: str) -> TableError:
    begins = excerpt(line.decode("utf-8", "replace"), 120)
    return TableError(
        f"the program sent a message that cannot be read: {begins!r}",
        where=f"source {source}",
        remedy="What its states cover is appended; run again. If it stays, report it to the "
        "tap's authors",
    )
