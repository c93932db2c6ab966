"""Ed25519 keys, as `openssl genpkey -algorithm ed25519` writes them, and chains of receipts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from loader.cli import main
from loader.lake.receipt import Receipt, sign_receipt
from tests.sync.project import Ran


@dataclass(frozen=True)
class Key:
    """A key pair, whose public key is in a file."""

    private: Ed25519PrivateKey
    public: Path

    @property
    def pem(self) -> str:
        """The private key in PEM format."""
        return self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()


def create_key(folder: Path, name: str = "receipts") -> Key:
    """Creates a key pair."""
    private = Ed25519PrivateKey.generate()
    public = folder / f"{name}.pub"
    public.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return Key(private, public)


def sign(
    batch: int, previous: Receipt | None, key: Key, follows: int | None = None, **more: Any
) -> Receipt:
    """Signs a receipt for a batch that has no rows in a lake."""
    digest = hashlib.sha256(str(batch).encode()).hexdigest()
    predicate = {
        "source": "shop",
        "columns": [],
        "committed": {"rows": batch},
        "follows_batch": batch - 1 if follows is None else follows,
        "previous": previous and {"batch": previous.batch, "sha256": previous.sha256},
        **more,
    }
    return sign_receipt("raw.orders", batch, digest, predicate, key.private)


def sign_chain(key: Key, count: int) -> list[Receipt]:
    """Signs a chain of receipts."""
    chain: list[Receipt] = []
    for batch in range(1, count + 1):
        chain.append(sign(batch, chain[-1] if chain else None, key))
    return chain


def write(path: Path, chain: list[Receipt]) -> Path:
    """Writes receipts as `loader receipts export` does."""
    path.write_text("".join(f"{receipt.envelope}\n" for receipt in chain))
    return path


def verify(path: Path, *keys: Key) -> Ran:
    """Runs `loader receipts verify` for files only."""
    options = [option for key in keys for option in ("--key", str(key.public))]
    arguments = ["--log-format", "json", "receipts", "verify", str(path), *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in result.output.splitlines() if line.startswith("{")]
    return Ran(result.exit_code, [json.loads(line) for line in lines], result.output)
