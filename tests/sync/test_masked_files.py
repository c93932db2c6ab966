"""Masked values and the key are in no file that the loader or Spark writes, and in no process list.

The loader runs in its own process, with Spark's event log, all messages, and folders of its own.
"""

from __future__ import annotations

import gzip
import hmac
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.services import Database
from tests.sync.test_process_list import ProcessList

ROOT = Path(__file__).resolve().parents[2]
KEY = "planted-key-of-thirty-two-bytes!"
INNER = bytes(byte ^ 0x36 for byte in KEY.encode().ljust(64, b"\0"))
PLANTED = ("Plantedname", "planted.local", "plantedphone", "1987-06-05", "PLANTEDIBAN", "plantedid")
"""Personal data in each row, in a column for each mask. The last one is the key's."""
SECRETS = tuple(
    form
    for secret in (KEY.encode(), INNER)
    for form in (secret, secret.hex().encode(), secret.hex().upper().encode())
)
MASKS = {
    "name": "redact",
    "email": "domain",
    "phone": "hash",
    "born": "year",
    "iban": {"last": 2},
    "id": "hash",
    "note": None,
}


def _read(path: Path) -> bytes:
    """Returns the content of a file, decompressed."""
    try:
        data = path.read_bytes()
    except OSError:  # deleted while all files are listed
        return b""
    if path.suffix == ".parquet":
        return str(pq.read_table(path).to_pylist()).encode() + data
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".avro":
        return data + b"".join(_list_avro_blocks(data))
    return data


def _list_avro_blocks(data: bytes) -> Iterator[bytes]:
    """Yields the decompressed blocks of an Avro file, which its last 16 bytes separate."""
    for block in data.split(data[-16:])[1:-1]:
        start = 0
        for _ in range(2):  # the numbers of rows and bytes
            while block[start] & 0x80:
                start += 1
            start += 1
        yield zlib.decompress(block[start:], -15)


def _find(folder: Path, *texts: bytes) -> set[tuple[str, bytes]]:
    """Returns the files below a folder that contain a text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        (str(path.relative_to(folder)), text)
        for path in files
        for data in [_read(path)]
        for text in texts
        if text in data
    }


class Watch(threading.Thread):
    """Searches all files that exist for a while, such as spools and Spark's temporary files."""

    def __init__(self, folder: Path, *texts: bytes) -> None:
        super().__init__(daemon=True)
        self.folder, self.texts = folder, texts
        self.found: set[tuple[str, bytes]] = set()
        self.names: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            for folder, _, names in os.walk(self.folder):
                for name in names:
                    try:
                        data = Path(folder, name).read_bytes()
                    except OSError:  # deleted in the meantime
                        continue
                    self.names.add(name)
                    self.found |= {(name, text) for text in self.texts if text in data}


def _write_project(folder: Path, database: Database, masks: dict[str, Any]) -> None:
    shipped = yaml.safe_load((ROOT / "profiles/profiles.yml").read_text())["strandline"]
    embedded = shipped["outputs"]["embedded"]
    embedded["server_side_parameters"] |= {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{folder}/events",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    profiles = {"strandline": {"target": "embedded", "outputs": {"embedded": embedded}}}
    (folder / "profiles.yml").write_text(yaml.safe_dump(profiles))
    options = {
        "people": {"cursor_field": "at", "mask": masks, "sweep": "never"},
        "visits": {"sync_mode": "full_refresh", "mask": {"person": "hash"} if masks else {}},
    }
    source = {
        "name": "shop",
        "path": "jdbc",
        "tables": ["people", "visits"],
        "destinations": ["lake"],
        "mask_key": "${STRANDLINE_MASK_KEY}",
        "spec": {
            "url": database.url,
            "user": database.user,
            "password": database.password,
            "table_options": options,
        },
    }
    lake = {"name": "lake", "path": "spark", "spec": {"schema": "raw"}}
    documents = [{"kind": "source", "spec": source}, {"kind": "destination", "spec": lake}]
    (folder / "loader.yml").write_text(yaml.safe_dump_all(documents))
    for name in ("events", "tmp", "scratch"):
        (folder / name).mkdir()
    # Rows are so many that Spark reads them in parallel, and shuffles and caches them.
    database.execute(
        "create table people (id text primary key, name text, email text, phone text, born date, "
        "iban text, note text, at timestamptz not null)",
        "create table visits (person text, n int)",
        "insert into people select 'plantedid' || g, 'Plantedname' || g, "
        "'planted.local' || g || '@example.org', 'plantedphone' || g, '1987-06-05', "
        "'PLANTEDIBAN99', 'Plantedname', timestamptz '2025-01-01' + g * interval '1 s' "
        "from generate_series(1, 20000) g",
        "insert into visits select 'plantedid' || g, g from generate_series(1, 100) g",
    )


def _run(folder: Path, *arguments: str, code: int = 0) -> str:
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("DBT_", "STRANDLINE_TARGET"))},
        "PYTHONPATH": str(ROOT),
        "STRANDLINE_WAREHOUSE": str(folder / "warehouse"),
        "STRANDLINE_LOCKS": str(folder / "locks"),
        "STRANDLINE_MASK_KEY": KEY,
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "TMPDIR": str(folder / "tmp"),
    }
    command = [sys.executable, "-m", "loader", "--debug", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_masked_values_and_the_key_are_nowhere(tmp_path: Path, postgres_database: Database) -> None:
    _write_project(tmp_path, postgres_database, MASKS)
    planted = [text.encode() for text in PLANTED]
    reported = ""
    watch = Watch(tmp_path, *planted, *SECRETS)
    watch.start()
    with ProcessList() as shown:
        reported += _run(tmp_path, "run")
        postgres_database.execute(
            "update people set name = 'Plantedname', at = '2025-03-01' where id = 'plantedid7'",
            "update people set phone = 'plantedphone', at = '2024-01-01' where id = 'plantedid8'",
            "delete from people where id = 'plantedid9'",
            "insert into people values ('plantedid', 'Plantedname', 'planted.local@x.org', "
            "'plantedphone', '1987-06-05', 'PLANTEDIBAN', 'Plantedname', '2025-04-01')",
        )
        reported += _run(tmp_path, "run")
        reported += _run(tmp_path, "reconcile", "--repair")
        reported += _run(tmp_path, "check")
        postgres_database.execute("alter table people drop phone")
        reported += _run(tmp_path, "run", code=1)
    watch.over.set()
    watch.join()
    deadline = time.monotonic() + 60
    while list((tmp_path / "events").glob("*.inprogress")) and time.monotonic() < deadline:
        time.sleep(0.1)

    digest = hmac.new(KEY.encode(), b"plantedid8", "sha256").hexdigest()
    assert digest in reported  # the key of a row that `reconcile` repaired
    assert _find(tmp_path / "warehouse", digest.encode())
    assert len(list((tmp_path / "events").iterdir())) >= 4
    assert _find(tmp_path / "events", b"_cq_mask_inner")  # plans are in the log
    assert any(name.startswith("temp_shuffle") or name.endswith(".data") for name in watch.names)
    assert not watch.found
    assert not _find(tmp_path, *planted, *SECRETS)
    texts = [text.decode(errors="replace") for text in (*planted, *SECRETS[:3])]
    assert not [text for text in texts if text in reported]
    assert not [line for line in shown.lines for text in texts if text in line]


@pytest.mark.slow
def test_the_search_finds_values_without_masks(tmp_path: Path, postgres_database: Database) -> None:
    _write_project(tmp_path, postgres_database, {})
    _run(tmp_path, "run")
    found = _find(tmp_path / "warehouse", *(text.encode() for text in PLANTED[:3]))
    assert {text.decode() for _, text in found} == set(PLANTED[:3])
    # Iceberg's statistics contain values, too
    assert any(name.endswith(".avro") for name, _ in found)
