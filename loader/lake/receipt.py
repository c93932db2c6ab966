"""Signs receipts of batches, parses them, and verifies their chain.

A receipt is an in-toto Statement (https://in-toto.io/Statement/v1) in a DSSE envelope
(https://github.com/secure-systems-lab/dsse), signed with Ed25519. Its subject is one batch of a raw
table with the digest of the batch's rows (:mod:`loader.lake.rows_digest`). It contains the SHA-256
of the previous receipt of the same table, so receipts form a chain.

The commit that publishes a batch also stores its receipt, in a property of the raw table. The
ledger and exported files are copies.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://pypi.org/project/strandline/receipt/v1"
DIGEST = "rowsSha256"
"""The name of the digest algorithm that :mod:`loader.lake.rows_digest` describes."""
_PROPERTY = "strandline.receipt."


@dataclass(frozen=True)
class Receipt:
    """A parsed receipt, whose signature has not been verified yet.

    Attributes:
        envelope: the DSSE envelope as one line of JSON.
        payload: the signed bytes.
        predicate: the content of the statement.
        table: the raw table as ``schema.table``.
        rows_sha256: the digest of the batch's rows.
    """

    envelope: str
    payload: bytes
    predicate: Mapping[str, Any]
    table: str
    batch: int
    rows_sha256: str

    @property
    def sha256(self) -> str:
        """The hash by which the next receipt refers to this one."""
        return hashlib.sha256(self.payload).hexdigest()

    @property
    def previous(self) -> tuple[int, str] | None:
        """The batch and the hash of the previous receipt; None for the first receipt."""
        previous = self.predicate["previous"]
        return None if previous is None else (int(previous["batch"]), str(previous["sha256"]))

    @property
    def source(self) -> str:
        """The source of the batch."""
        return str(self.predicate["source"])

    @property
    def follows_batch(self) -> int:
        """The source's newest batch in the raw table before this batch."""
        return int(self.predicate["follows_batch"])

    @property
    def rows(self) -> int:
        """The number of rows in the batch."""
        return int(self.predicate["committed"]["rows"])


@dataclass(frozen=True)
class Finding:
    """A result of verification.

    Attributes:
        table: the raw table as ``schema.table``.
        batch: None if the finding is about several batches.
        text: the problem or the note, as one sentence without a full stop.
        is_problem: whether the table cannot be trusted. Other findings limit what is proved.
    """

    table: str
    batch: int | None
    text: str
    is_problem: bool = True

    @property
    def where(self) -> str:
        """The table and the batch."""
        return f"table {self.table}" + (f", batch {self.batch}" if self.batch is not None else "")


def sign_receipt(
    table: str, batch: int, rows_sha256: str, predicate: Mapping[str, Any], key: Ed25519PrivateKey
) -> Receipt:
    """Returns a signed receipt.

    Args:
        table: the raw table as ``schema.table``.
    """
    from loader.spec.signing_keys import compute_key_id

    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f"{table}/{batch}", "digest": {DIGEST: rows_sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": dict(predicate),
    }
    payload = json.dumps(statement, ensure_ascii=False, sort_keys=True, default=str).encode()
    signature = key.sign(encode_for_signature(payload))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {
                "keyid": compute_key_id(key.public_key()),
                "sig": base64.b64encode(signature).decode(),
            }
        ],
    }
    return parse_receipt(json.dumps(envelope, sort_keys=True))


def encode_for_signature(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Returns the bytes that a DSSE signature covers (its pre-authentication encoding)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def parse_receipt(envelope: str) -> Receipt:
    """Parses a DSSE envelope.

    Raises:
        ValueError: if it is not a receipt that the loader wrote.
    """
    try:
        payload = base64.b64decode(json.loads(envelope)["payload"], validate=True)
        statement = json.loads(payload)
        [subject] = statement["subject"]
        table, _, batch = subject["name"].rpartition("/")
        if statement["predicateType"] != PREDICATE_TYPE or not isinstance(table, str):
            raise ValueError("it has another type")
        receipt = Receipt(
            envelope, payload, statement["predicate"], table, int(batch), subject["digest"][DIGEST]
        )
        _ = receipt.previous, receipt.source, receipt.follows_batch, receipt.rows
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ValueError("it is not a receipt of this loader") from None
    return receipt


def explain_invalid_signature(receipt: Receipt, keys: Mapping[str, Ed25519PublicKey]) -> str | None:
    """Returns what is wrong with a receipt's signature; None if a trusted key made it.

    Args:
        keys: the trusted keys, keyed by their ids.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        envelope = json.loads(receipt.envelope)
        [signature] = envelope["signatures"]
        key_id, signed = str(signature["keyid"]), base64.b64decode(signature["sig"])
        kind = str(envelope["payloadType"])
    except (ValueError, KeyError, TypeError):
        return "its receipt has no signature"
    if key_id not in keys:
        return f"its receipt was signed with a key that is not trusted (key id {key_id[:16]}…)"
    try:
        keys[key_id].verify(signed, encode_for_signature(receipt.payload, kind))
    except InvalidSignature:
        return "its receipt was changed: the signature does not match"
    return None


def verify_chain(
    receipts: Sequence[Receipt], keys: Mapping[str, Ed25519PublicKey]
) -> Iterator[Finding]:
    """Yields the problems of one raw table's receipts, and the gaps that the receipts record.

    Args:
        receipts: the receipts in the order in which they were stored.
        keys: the trusted keys, keyed by their ids.
    """
    by_batch: dict[int, Receipt] = {}
    followers: dict[int, int] = {}
    first_of: dict[str, int] = {}
    highest = 0
    for receipt in receipts:
        table, batch = receipt.table, receipt.batch
        problem = explain_invalid_signature(receipt, keys)
        if problem is not None:
            yield Finding(table, batch, problem)
        if batch in by_batch:
            yield Finding(table, batch, "it has two different receipts")
            continue
        if batch < highest:
            yield Finding(table, batch, f"its receipt is stored after that of batch {highest}")
        highest = max(highest, batch)
        by_batch[batch] = receipt
    for batch, receipt in sorted(by_batch.items()):
        table, previous = receipt.table, receipt.previous
        if previous is None:
            first = first_of.setdefault(receipt.source, batch)
            if first != batch:
                text = f"its receipt names no previous receipt, but batch {first} has one"
                yield Finding(table, batch, text)
            yield from _find_gap(receipt, 0)
            continue
        before, sha256 = previous
        if before not in by_batch:
            yield Finding(table, before, f"its receipt is missing: batch {batch} refers to it")
        elif by_batch[before].sha256 != sha256:
            text = f"its receipt was replaced: batch {batch} refers to another one"
            yield Finding(table, before, text)
        if before in followers or before >= batch:
            text = f"its receipt and that of batch {followers.get(before, before)} are in conflict"
            yield Finding(table, batch, f"{text}: both follow batch {before}")
        followers[before] = batch
        yield from _find_gap(receipt, before)


def _find_gap(receipt: Receipt, before: int) -> Iterator[Finding]:
    """Yields a note if batches before a receipt have no receipt, or were removed by a rollback."""
    follows = receipt.follows_batch
    if follows > before:
        text = f"batches {before + 1} to {follows} were published without receipts"
        yield Finding(receipt.table, receipt.batch, text, is_problem=False)
    if follows < before:
        text = (
            f"batches {follows + 1} to {before} were not in the raw table when this batch was "
            "published: it had been dropped or rolled back"
        )
        yield Finding(receipt.table, receipt.batch, text, is_problem=False)


def property_of(source: str) -> str:
    """Returns the name of the property with the newest receipt of a source's batches."""
    return _PROPERTY + source.encode().hex()


def read_newest_receipts(properties: Mapping[str, str]) -> list[Receipt]:
    """Returns each source's newest receipt from a raw table's properties, oldest first.

    Raises:
        ValueError: if a property was changed so that it no longer contains a receipt.
    """
    texts = [properties[name] for name in properties if name.startswith(_PROPERTY)]
    return sorted(map(parse_receipt, texts), key=lambda receipt: receipt.batch)


def find_receipt(properties: Mapping[str, str], batch: int) -> str | None:
    """Returns a batch's receipt from a raw table's properties; None if they do not contain it."""
    for name, text in properties.items():
        with suppress(ValueError):
            if name.startswith(_PROPERTY) and parse_receipt(text).batch == batch:
                return text
    return None
