"""Encrypts connectors' states, because a state may contain values from masked columns.

For example, a state may contain the key or the cursor of the last record. The loader stores states
in its state table and in the commits of raw tables.
"""

from __future__ import annotations

import base64
import hmac
import os
import zlib
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
