"""Chains of receipts in files are verified without Spark, and every change is detected."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loader.lake.receipt import Receipt, encode_for_signature, parse_receipt
from tests.receipts import keys

COUNT = 1_000


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> keys.Key:
    return keys.create_key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def signed(key: keys.Key) -> list[Receipt]:
    return keys.sign_chain(key, COUNT)


@pytest.fixture
def chain(signed: list[Receipt]) -> list[Receipt]:
    return list(signed)


def _problems(tmp_path: Path, chain: list[Receipt], *trusted: keys.Key) -> list[str]:
    """Returns the problems of a chain as `where: what`; there must be some."""
    ran = keys.verify(keys.write(tmp_path / "raw.orders.intoto.jsonl", chain), *trusted)
    assert ran.code == 1, ran.text
    return [f"{e['where']}: {e['what']}" for e in ran.events if e["event"] == "error"]


def test_a_thousand_receipts_are_verified(
    tmp_path: Path, key: keys.Key, chain: list[Receipt]
) -> None:
    keys.write(tmp_path / "raw.orders.intoto.jsonl", chain)
    ran = keys.verify(tmp_path, key)
    assert ran.code == 0, ran.text
    [row] = ran.events
    assert (row["receipts"], row["first_batch"], row["last_batch"]) == (COUNT, 1, COUNT)
    assert (row["verified"], row["problems"]) == ("receipts", 0)


def test_verification_of_files_imports_no_spark(
    tmp_path: Path, key: keys.Key, chain: list[Receipt]
) -> None:
    path = keys.write(tmp_path / "receipts", chain[:3])
    code = (
        "import sys\n"
        "sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from loader.cli import main\n"
        f"main(['receipts', 'verify', {str(path)!r}, '--key', {str(key.public)!r}])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert "raw.orders" in ran.stdout


def test_a_rewritten_receipt(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    envelope = json.loads(chain[499].envelope)
    payload = base64.b64decode(envelope["payload"]).replace(b'"rows": 500', b'"rows": 501')
    envelope["payload"] = base64.b64encode(payload).decode()
    chain[499] = parse_receipt(json.dumps(envelope))
    assert _problems(tmp_path, chain, key) == [
        "table raw.orders, batch 500: its receipt was changed: the signature does not match",
        "table raw.orders, batch 500: its receipt was replaced: batch 501 refers to another one",
    ]


def test_a_receipt_signed_with_another_key(
    tmp_path: Path, key: keys.Key, chain: list[Receipt]
) -> None:
    other = keys.create_key(tmp_path, "other")
    chain[499] = keys.sign(500, chain[498], other)
    [problem] = _problems(tmp_path, chain, key)
    assert problem.startswith(
        "table raw.orders, batch 500: its receipt was signed with a key that is not trusted"
    )
    # its content is the same, so it is valid for a user who trusts both keys
    path = keys.write(tmp_path / "raw.orders.intoto.jsonl", chain)
    assert keys.verify(path, key, other).code == 0


def test_a_forged_key_id(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    other = keys.create_key(tmp_path, "other")
    forged = json.loads(keys.sign(500, chain[498], other).envelope)
    forged["signatures"][0]["keyid"] = json.loads(chain[0].envelope)["signatures"][0]["keyid"]
    chain[499] = parse_receipt(json.dumps(forged))
    assert _problems(tmp_path, chain, key) == [
        "table raw.orders, batch 500: its receipt was changed: the signature does not match"
    ]


def test_a_missing_receipt(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    del chain[499]
    assert _problems(tmp_path, chain, key) == [
        "table raw.orders, batch 500: its receipt is missing: batch 501 refers to it"
    ]


def test_missing_first_receipts(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    assert _problems(tmp_path, chain[300:], key) == [
        "table raw.orders, batch 300: its receipt is missing: batch 301 refers to it"
    ]


def test_two_swapped_receipts(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    chain[499], chain[500] = chain[500], chain[499]
    assert _problems(tmp_path, chain, key) == [
        "table raw.orders, batch 500: its receipt is stored after that of batch 501"
    ]


def test_swapped_contents(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    """The payloads are swapped, the signatures are not."""
    first, second = (json.loads(chain[place].envelope) for place in (499, 500))
    first["payload"], second["payload"] = second["payload"], first["payload"]
    chain[499:501] = [parse_receipt(json.dumps(each)) for each in (first, second)]
    changed = "its receipt was changed: the signature does not match"
    problems = _problems(tmp_path, chain, key)
    assert {f"table raw.orders, batch {n}: {changed}" for n in (500, 501)} < {*problems}


def test_a_second_receipt_of_a_batch(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    chain.insert(500, keys.sign(500, chain[498], key, note="another"))
    assert _problems(tmp_path, chain, key) == [
        "table raw.orders, batch 500: it has two different receipts"
    ]


def test_two_receipts_with_the_same_predecessor(
    tmp_path: Path, key: keys.Key, chain: list[Receipt]
) -> None:
    chain[500] = keys.sign(501, chain[498], key)
    problems = _problems(tmp_path, chain, key)
    assert (
        "table raw.orders, batch 501: its receipt and that of batch 500 are in conflict: both "
        "follow batch 499"
    ) in problems


def test_a_chain_that_begins_again(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    chain[500:] = [keys.sign(501, None, key)]
    assert _problems(tmp_path, chain, key) == [
        "table raw.orders, batch 501: its receipt names no previous receipt, but batch 1 has one"
    ]


def test_gaps_are_warnings_not_errors(tmp_path: Path, key: keys.Key) -> None:
    """Receipts start with batch 4, are off for batches 5 and 6, and 8 to 9 are rolled back."""
    fourth = keys.sign(4, None, key)
    seventh = keys.sign(7, fourth, key)
    eighth = keys.sign(8, seventh, key)
    ninth = keys.sign(9, eighth, key)
    tenth = keys.sign(10, ninth, key, follows=7)
    chain = [fourth, seventh, eighth, ninth, tenth]
    ran = keys.verify(keys.write(tmp_path / "receipts", chain), key)
    assert ran.code == 0, ran.text
    assert ran.warnings == [
        "table raw.orders, batch 4: batches 1 to 3 were published without receipts",
        "table raw.orders, batch 7: batches 5 to 6 were published without receipts",
        "table raw.orders, batch 10: batches 8 to 9 were not in the raw table when this batch was "
        "published: it had been dropped or rolled back",
    ]


def test_a_new_key(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    rotated = keys.create_key(tmp_path, "rotated")
    del chain[500:]
    for batch in range(501, 504):
        chain.append(keys.sign(batch, chain[-1], rotated))
    path = keys.write(tmp_path / "receipts", chain)
    assert keys.verify(path, key, rotated).code == 0
    assert len(keys.verify(path, key).errors) == 3
    assert len(keys.verify(path, rotated).errors) == 500


def test_a_line_that_is_not_a_receipt(tmp_path: Path, key: keys.Key, chain: list[Receipt]) -> None:
    envelope = json.loads(chain[1].envelope)
    payload = base64.b64decode(envelope["payload"]).replace(b'"rows": 2', b'"rows": Infinity')
    envelope["payload"] = base64.b64encode(payload).decode()
    for line in (chain[1].envelope[:-40], json.dumps(envelope), "[" * 100_000):
        path = keys.write(tmp_path / "receipts", [chain[0], replace(chain[1], envelope=line)])
        ran = keys.verify(path, key)
        assert ran.code == 1
        assert ran.errors[0].startswith(f"{path}, line 2: it is not a receipt of this loader")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no key", "it is not a public key in PEM format"),
        (b"", "it is not a public key in PEM format"),
        (None, "it is a private key, which must stay with the loader"),
    ],
)
def test_a_wrong_public_key(
    tmp_path: Path, key: keys.Key, chain: list[Receipt], content: bytes | None, problem: str
) -> None:
    path = tmp_path / "wrong.pub"
    path.write_bytes(key.pem.encode() if content is None else content)
    ran = keys.verify(keys.write(tmp_path / "receipts", chain[:1]), replace(key, public=path))
    assert ran.code == 2
    [error] = ran.errors
    assert error.startswith(f"--key {path}: {problem}. ")


def test_a_file_without_receipts(tmp_path: Path, key: keys.Key) -> None:
    ran = keys.verify(keys.write(tmp_path / "receipts", []), key)
    assert (ran.code, len(ran.errors)) == (2, 1)
    assert "there are no receipts" in ran.text


def test_the_encoding_that_is_signed() -> None:
    """The example of the DSSE specification (protocol.md)."""
    encoded = encode_for_signature(b"hello world", "http://example.com/HelloWorld")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
