"""The process of Spark's JVM, started as PySpark starts it, but without waiting for it.

PySpark's `launch_gateway` starts `spark-submit`, waits until the JVM has written down where it
listens, and connects. Here these are two steps, so that Python can import what it needs meanwhile.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from loader.runtime import sparkhome

_WRITTEN = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_NUMBERS = struct.Struct(">ii")  # the port, and how many bytes of the secret follow
_SECONDS = 1.0
"""So long Java's last words may take, once it has ended."""
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


class Gateway:
    """A JVM that is starting; it ends when this process does, as its standard input ends then.

    Args:
        arguments: those of `spark-submit`.
        folder: a folder of this user, into which the JVM writes its port and its secret.

    Raises:
        OSError: if `spark-submit` cannot be started.
        SpecError: if there is no Spark.
    """

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        home = sparkhome.find()
        self._written = folder / "gateway"
        # Without SPARK_HOME the script starts a Python to look for it.
        own = {"SPARK_HOME": str(home), _WRITTEN: str(self._written)}
        self.process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), *arguments],
            stdin=subprocess.PIPE,
            # Not ours, which whoever waits for the end of our output would then wait for: Java
            # takes half a second longer than Python to end.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own},
            # Ctrl-C is the loader's to handle: what runs in Java is stopped in order.
            start_new_session=True,
        )
        self._printed = threading.Thread(target=self._pass_on, name="java-output", daemon=True)
        self._printed.start()

    def connected(self) -> Any:
        """Waits until the JVM listens; returns PySpark's gateway to it.

        Raises:
            RuntimeError: if Java does not start.
        """
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway

        while self.process.poll() is None and not self._written.exists():
            time.sleep(0.01)
        if not self._written.exists():
            self._printed.join(_SECONDS)
            raise PySparkRuntimeError(error_class="JAVA_GATEWAY_EXITED", message_parameters={})
        written = self._written.read_bytes()
        port, length = _NUMBERS.unpack_from(written)
        secret = written[_NUMBERS.size :][:length].decode()
        os.environ |= {_PORT: str(port), _SECRET: secret}
        try:
            gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ[_PORT], os.environ[_SECRET]
        gateway.proc = self.process
        return gateway

    def _pass_on(self) -> None:
        """Writes what Java prints to our standard error, if there is one."""
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        with suppress(OSError):
            while said := os.read(output, 1 << 16):
                # As bytes, because at Python's end its own streams may already be closed.
                with suppress(OSError):
                    while said and sys.__stderr__ is not None:
                        said = said[os.write(2, said) :]

    def end(self) -> None:
        """Ends a JVM that nobody needs."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        with suppress(ProcessLookupError):
            # With what the script has started, which would complain that its settings are gone.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
