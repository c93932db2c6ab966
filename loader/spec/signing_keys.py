"""Parses the Ed25519 keys that sign and verify receipts.

The `cryptography` package is optional, so it is imported only if a key is used.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

CREATE = "openssl genpkey -algorithm ed25519 -out receipts.pem"
"""The command that creates a private key."""
PUBLISH = "openssl pkey -in receipts.pem -pubout -out receipts.pub"
"""The command that writes the public key that belongs to a private key."""


def parse_private_key(pem: str) -> Ed25519PrivateKey:
    """Parses an unencrypted private key in PEM format.

    Raises:
        ValueError: if the text is not a key of this kind. The message does not contain the text.
        ImportError: if the `cryptography` package is not installed.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except Exception:  # its messages may contain parts of the key
        raise ValueError("it is not an unencrypted private key in PEM format") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("it is a private key, but not an Ed25519 key")
    return key


def parse_public_key(pem: bytes) -> Ed25519PublicKey:
    """Parses a public key in PEM format.

    Raises:
        ValueError: if the bytes are not a public Ed25519 key in PEM format.
        ImportError: if the `cryptography` package is not installed.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if b"PRIVATE KEY" in pem:
        raise ValueError("it is a private key, which must stay with the loader")
    try:
        key = serialization.load_pem_public_key(pem)
    except Exception:
        raise ValueError("it is not a public key in PEM format") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("it is a public key, but not an Ed25519 key")
    return key


def compute_key_id(key: Ed25519PublicKey) -> str:
    """Returns the id of a key: the SHA-256 of its DER format, as `openssl` prints it."""
    from cryptography.hazmat.primitives import serialization

    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()
