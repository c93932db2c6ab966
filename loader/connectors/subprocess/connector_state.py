"""Stores the states of a program in the checkpoints of its tables.

The states are stored unchanged, or encrypted if the source has a `mask_key`: a state may contain
values from masked columns, such as the key or the cursor of the last record, and the loader stores
states in its state table and in the commits of raw tables.

A state that covers one stream is stored with the stream's table. A state that covers all streams is
stored with each table whose records it covers. Tables are committed separately, so they may store
different states. The next run passes the oldest of these states to the program, so that no table
misses records. The program then sends some records again, which the loader recognises by their
keys.

If a run starts from an older state than a table has stored, the run's new states may cover fewer
records than the stored state. The new states are then stored only after the run has succeeded.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import zlib
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from loader.connectors.subprocess.json_values import decode
from loader.errors import StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_UNCOMPRESSED_LENGTH = (
    4096  # in characters; longer states are compressed, because each commit contains the state
)


@dataclass(frozen=True)
class ConnectorState:
    """A state that a program sent.

    Attributes:
        protocol: `airbyte`, `singer` or `cloudquery`.
        kind: the type of the state in the protocol, such as `GLOBAL`.
        shared: whether the state covers all streams.
        number: increases with every state of a source. Not even a full refresh resets it.
    """

    protocol: str
    kind: str
    shared: bool
    number: int
    text: str

    @property
    def value(self) -> Any:
        return decode(self.text)

    def to_mark(
        self, previous: Mapping[str, Any] | None = None, cipher: StateCipher | None = None
    ) -> Mapping[str, Any]:
        """Returns the state as the checkpoint of a table.

        Args:
            previous: the previous checkpoint. Returned unchanged if it contains the same state, so
                that no new version is stored.
            cipher: encrypts the state; None if the source has no `mask_key`.
        """
        mark: dict[str, Any] = {
            "protocol": self.protocol,
            "kind": self.kind,
            "shared": self.shared,
            "number": self.number,
        }
        if cipher is not None:
            mark["encrypted"] = self.text
        elif len(self.text) <= _MAX_UNCOMPRESSED_LENGTH:
            mark["state"] = self.text
        else:
            mark["packed"] = base64.b64encode(zlib.compress(self.text.encode(), 6)).decode()
        if previous is not None and _decrypt(previous, cipher) == {**mark, "number": 0}:
            return previous
        return mark if cipher is None else {**mark, "encrypted": cipher.encrypt(self.text)}

    @classmethod
    def from_mark(
        cls,
        mark: Mapping[str, Any] | None,
        protocol: str,
        where: str,
        cipher: StateCipher | None = None,
    ) -> ConnectorState | None:
        """Returns the state in a table's checkpoint, or None if there is no checkpoint.

        Args:
            cipher: decrypts the state; None if the source has no `mask_key`.

        Raises:
            StateError: if the checkpoint is damaged, was stored for another protocol, or cannot be
                decrypted.
        """
        if mark is None:
            return None
        try:
            if mark["protocol"] != protocol:
                raise ValueError(f"the state belongs to path: {mark['protocol']}")
            text = mark.get("state")
            if "encrypted" in mark:
                if cipher is None:
                    raise ValueError("it is encrypted, but the source has no mask_key")
                text = cipher.decrypt(mark["encrypted"])
            elif text is None:
                text = zlib.decompress(base64.b64decode(mark["packed"])).decode()
            json.loads(text)
            return cls(protocol, mark["kind"], bool(mark["shared"]), int(mark["number"]), text)
        except (KeyError, ValueError, TypeError, RecursionError, zlib.error) as problem:
            raise StateError(
                f"the connector's stored state cannot be read: {problem}",
                where=where,
                remedy="Reload all records: `loader run --full-refresh`",
            ) from None


def _decrypt(mark: Mapping[str, Any], cipher: StateCipher | None) -> Mapping[str, Any]:
    """Returns a checkpoint in a comparable form: decrypted, and with number 0."""
    plain = {**mark, "number": 0}
    if cipher is not None and "encrypted" in mark:
        with suppress(ValueError, zlib.error):
            plain["encrypted"] = cipher.decrypt(mark["encrypted"])
    return plain


def find_oldest_shared(states: Sequence[ConnectorState]) -> ConnectorState | None:
    """Returns the oldest state that covers all streams, or None if there is none."""
    shared = [state for state in states if state.shared]
    return min(shared, key=lambda state: state.number, default=None)


def find_streams_behind(
    states: Mapping[Hashable, ConnectorState | None], shared: ConnectorState
) -> set[Hashable]:
    """Returns the streams whose tables lack records that a shared state covers.

    Such a table has no state, or only an older state for its own stream.
    """
    return {
        key
        for key, state in states.items()
        if state is None or (not state.shared and state.number < shared.number)
    }


def can_repeat_records(
    state: ConnectorState | None, states: Sequence[ConnectorState | None]
) -> bool:
    """Returns whether a table may receive records again. True if another table's state is older.

    Args:
        state: the table's state; None if the table starts over.
        states: the states of the run's tables; None for a table that starts over.
    """
    if state is None:
        return False
    shared = find_oldest_shared([each for each in states if each is not None])
    return shared is not None and state.number > shared.number and state.text != shared.text


def can_store_early(
    states: Sequence[ConnectorState | None], others: Sequence[ConnectorState]
) -> bool:
    """Returns whether states that cover all streams may be stored before the program has succeeded.

    This is safe only if all tables start from the same state. Otherwise, a new state may have a
    higher number than a stored state but cover fewer records. :func:`find_oldest_shared` would then
    choose the stored state, although it covers records that a table lacks.

    Args:
        others: the states of the source's other tables.
    """
    if any(state.shared for state in others):
        return False
    shared = [state for state in states if state is not None and state.shared]
    newest = max(shared, key=lambda state: state.number, default=None)
    return newest is None or all(m is not None and m.text == newest.text for m in states)


_ENCRYPT, _DECRYPT = 1, 2


class StateCipher:
    """Encrypts and decrypts strings with AES-GCM, in Spark's JVM.

    Args:
        mask_key: the source's `mask_key`, from which the cipher's key is derived.
    """

    def __init__(self, spark: SparkSession, mask_key: bytes) -> None:
        self._jvm: Any = spark._jvm
        self._key = hmac.digest(mask_key, b"strandline connector state", "sha256")

    def encrypt(self, text: str) -> str:
        """Encrypts a string to base64. Each call returns a different result."""
        nonce = os.urandom(12)
        data = nonce + self._run(_ENCRYPT, nonce, zlib.compress(text.encode(), 6))
        return base64.b64encode(data).decode()

    def decrypt(self, encrypted: str) -> str:
        """Decrypts a string.

        Raises:
            ValueError: if the string is damaged, or was encrypted with another key.
        """
        data = base64.b64decode(encrypted)
        nonce, data = data[:12], data[12:]
        try:
            content = self._run(_DECRYPT, nonce, data)
        except Py4JJavaError:
            raise ValueError("it was encrypted with another mask_key, or is damaged") from None
        return zlib.decompress(content).decode()

    def _run(self, mode: int, nonce: bytes, data: bytes) -> bytes:
        crypto = self._jvm.javax.crypto
        cipher = crypto.Cipher.getInstance("AES/GCM/NoPadding")
        parameters = crypto.spec.GCMParameterSpec(128, nonce)
        cipher.init(mode, crypto.spec.SecretKeySpec(self._key, "AES"), parameters)
        return bytes(cipher.doFinal(data))
