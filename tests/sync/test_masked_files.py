"""No file, message or process list contains the original values of masked columns, or the key.

The loader runs in its own process, with Spark's event log and debug messages turned on, and with
its own temporary folders, so that everything it writes can be searched.
"""

from __future__ import annotations

import gzip
import hmac
import json
import os
import re
import signal
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

from tests.crash.workers import Worker
from tests.services import Database
from tests.sync.test_process_list import ProcessList

ROOT = Path(__file__).resolve().parents[2]
KEY = "planted-key-of-thirty-two-bytes!"
INNER = bytes(byte ^ 0x36 for byte in KEY.encode().ljust(64, b"\0"))
PLANTED = ("Plantedname", "planted.local", "plantedphone", "1987-06-05", "PLANTEDIBAN", "plantedid")
"""Personal data in each row, one value for each mask. The last one is in the key column."""
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
    except OSError:  # deleted since it was listed
        return b""
    if path.suffix == ".parquet" and data.endswith(b"PAR1") and len(data) > 4:  # not half-written
        return str(pq.read_table(path).to_pylist()).encode() + data
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".avro":
        return data + b"".join(_list_avro_blocks(data))
    return data


def _list_avro_blocks(data: bytes) -> Iterator[bytes]:
    """Yields the decompressed blocks of an Avro file. Its last 16 bytes separate the blocks."""
    for block in data.split(data[-16:])[1:-1]:
        start = 0
        for _ in range(2):  # skips the block's counts of rows and bytes
            while block[start] & 0x80:
                start += 1
            start += 1
        yield zlib.decompress(block[start:], -15)


def _find(folder: Path, *texts: bytes) -> set[tuple[str, bytes]]:
    """Returns the files below a folder that contain one of the texts, each with the text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        (str(path.relative_to(folder)), text)
        for path in files
        for data in [_read(path)]
        for text in texts
        if text in data
    }


class Watch(threading.Thread):
    """Searches short-lived files, such as spools and Spark's temporary files, in the background.

    A file is read again if its size or its modification time has changed. Event logs are not
    deleted, so they are searched only at the end.
    """

    def __init__(self, folder: Path, *texts: bytes) -> None:
        super().__init__(daemon=True)
        self.folder, self.texts = folder, texts
        self.found: set[tuple[str, bytes]] = set()
        self.names: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        read: dict[Path, tuple[int, int]] = {}
        while not self.over.wait(0.05):
            for folder, folders, names in os.walk(self.folder):
                if "events" in folders:
                    folders.remove("events")
                for name in names:
                    path = Path(folder, name)
                    try:
                        found = path.stat()
                        version = found.st_mtime_ns, found.st_size
                        if read.get(path) == version:
                            continue
                        data = path.read_bytes()
                    except OSError:  # deleted in the meantime
                        continue
                    read[path] = version
                    self.names.add(name)
                    self.found |= {(name, text) for text in self.texts if text in data}


def _write_spec(folder: Path, **source: Any) -> None:
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
    source |= {"name": "shop", "destinations": ["lake"], "mask_key": "${STRANDLINE_MASK_KEY}"}
    lake = {"name": "lake", "path": "spark", "spec": {"schema": "raw"}}
    documents = [{"kind": "source", "spec": source}, {"kind": "destination", "spec": lake}]
    (folder / "loader.yml").write_text(yaml.safe_dump_all(documents))
    for name in ("events", "tmp", "scratch"):
        (folder / name).mkdir(exist_ok=True)


def _write_project(folder: Path, database: Database, masks: dict[str, Any]) -> None:
    options = {
        "people": {"cursor_field": "at", "mask": masks, "sweep": "never"},
        "visits": {"sync_mode": "full_refresh", "mask": {"person": "hash"} if masks else {}},
    }
    login = {"url": database.url, "user": database.user, "password": database.password}
    tables = ["people", "visits"]
    _write_spec(folder, path="jdbc", tables=tables, spec={**login, "table_options": options})
    # There are enough rows for Spark to read them in parallel, shuffle them and cache them.
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


class Search:
    """Searches all files, messages and command lines of a project's runs for planted data.

    One process runs all commands, because starting the JVM takes most of a command's time. After a
    command that kills the process, the next one starts a new process.
    """

    def __init__(self, folder: Path, *others: str) -> None:
        self.folder = folder
        self.planted = [text.encode() for text in (*PLANTED, *others)]
        self.reported = ""
        self._watch = Watch(folder, *self.planted, *SECRETS)
        self._shown = ProcessList()
        self._loader: Worker | None = None
        self._killed: set[Path] = set()

    def __enter__(self) -> Search:
        self._watch.start()
        self._shown.__enter__()
        return self

    def run(self, *arguments: str, code: int = 0, crash_at: str = "") -> str:
        """Runs a command, and returns its messages."""
        self._loader = self._loader or Worker(self.folder, self._environment())
        options = ("-c", str(self.folder / "loader.yml"), "--debug")
        self._loader.send(*options, *arguments, crash_at=crash_at)
        if crash_at:
            assert self._loader.died() == signal.SIGKILL
            self._end_process()
            self._killed = self._list_open_logs()
            return ""
        ran = self._loader.ended()
        assert ran.code == code, ran.text
        self.reported += ran.text
        return ran.text

    def find_in_files(self) -> set[tuple[str, bytes]]:
        """Returns the files that contain planted data now."""
        return _find(self.folder, *self.planted, *SECRETS)

    def __exit__(self, *_: object) -> None:
        self._end_process()
        deadline = time.monotonic() + 60
        while self._list_open_logs() - self._killed and time.monotonic() < deadline:
            time.sleep(0.1)
        self._shown.__exit__()
        self._watch.over.set()
        self._watch.join()

    def assert_nothing_found(self) -> None:
        """Asserts that no file, message or command line has contained planted data."""
        assert not self._watch.found
        assert not self.find_in_files()
        texts = [text.decode(errors="replace") for text in (*self.planted, *SECRETS[:3])]
        assert not [text for text in texts if text in self.reported]
        assert not [line for line in self._shown.lines for text in texts if text in line]

    def _environment(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("DBT_", "STRANDLINE_TARG"))
        }
        return {
            **kept,
            "STRANDLINE_WAREHOUSE": str(self.folder / "warehouse"),
            "STRANDLINE_LOCKS": str(self.folder / "locks"),
            "STRANDLINE_MASK_KEY": KEY,
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def _end_process(self) -> None:
        if self._loader is not None:
            self.reported += self._loader.stop()
        self._loader = None

    def _list_open_logs(self) -> set[Path]:
        """Returns the event logs that are not complete. The log of a killed process never is."""
        return set((self.folder / "events").glob("*.inprogress"))

    @property
    def names(self) -> set[str]:
        """The names of all files that were searched during the runs."""
        return self._watch.names


@pytest.mark.slow
def test_no_file_or_message_contains_masked_values_or_the_key(
    tmp_path: Path, postgres_database: Database
) -> None:
    _write_project(tmp_path, postgres_database, MASKS)
    with Search(tmp_path) as search:
        search.run("run")
        postgres_database.execute(
            "update people set name = 'Plantedname', at = '2025-03-01' where id = 'plantedid7'",
            "update people set phone = 'plantedphone', at = '2024-01-01' where id = 'plantedid8'",
            "delete from people where id = 'plantedid9'",
            "insert into people values ('plantedid', 'Plantedname', 'planted.local@x.org', "
            "'plantedphone', '1987-06-05', 'PLANTEDIBAN', 'Plantedname', '2025-04-01')",
        )
        search.run("run")
        search.run("reconcile", "--repair")
        search.run("check")
        postgres_database.execute("alter table people drop phone")
        search.run("run", code=1)
    digest = hmac.new(KEY.encode(), b"plantedid8", "sha256").hexdigest()
    assert digest in search.reported  # the key of a row that `reconcile` repaired
    assert _find(tmp_path / "warehouse", digest.encode())
    assert _find(tmp_path / "events", b"_cq_mask_inner")  # the event log contains query plans
    names = search.names
    assert any(name.startswith("temp_shuffle") or name.endswith(".data") for name in names)
    search.assert_nothing_found()


@pytest.mark.slow
def test_the_search_finds_values_without_masks(tmp_path: Path, postgres_database: Database) -> None:
    _write_project(tmp_path, postgres_database, {})
    with Search(tmp_path) as search:
        search.run("run")
    found = _find(tmp_path / "warehouse", *(text.encode() for text in PLANTED[:3]))
    assert {text.decode() for _, text in found} == set(PLANTED[:3])
    # Iceberg's file statistics also contain values.
    assert any(name.endswith(".avro") for name, _ in found)


FIELDS = ("id", "name", "email", "phone", "born", "iban", "note", "at")


def _build_records(count: int, first: int = 1) -> list[dict[str, Any]]:
    """Returns records with planted data in each masked field."""
    return [
        {
            "id": f"plantedid{n}",
            "name": f"Plantedname{n}",
            "email": f"planted.local{n}@example.org",
            "phone": f"plantedphone{n}",
            "born": "1987-06-05",
            "iban": "PLANTEDIBAN99",
            "note": "Plantedname",
            "at": f"2025-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z",
        }
        for n in range(first, first + count)
    ]


def _write_csv(path: Path, records: list[dict[str, Any]], end: str = "") -> None:
    lines = [FIELDS, *(each.values() for each in records)]
    path.write_text("".join(",".join(line) + "\n" for line in lines) + end)


@pytest.mark.slow
def test_no_file_or_message_contains_masked_values_of_files(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Malformed records, which Spark would quote in its log and event log, do not appear either."""
    drop = tmp_path_factory.mktemp("drop")
    types = {"born": "date", "at": "timestamp"}
    malformed = {
        "csv_1": "too,few,Plantedname\n",
        "csv_2": 'plantedid,"Plantedname\n',
        "csv_3": '"Plantedname\\", x",\n',
        "csv_4": "x,Plantedname,,,1987-06-05x,,,2025-01-01\n",
        "lines_1": "too,few,Plantedname\n",
        "json_1": '{"id": "plantedid", "name": Plantedname}\n',
        "json_2": '{"id": "x"} Plantedname\n',
        "json_3": '{"NAME": "Plantedname"}\n',
        "json_4": '{"born": "1987-06-05x"}\n',
        "json_5": '{"": "Plantedname"}\n',
        "json_6": '{"at": "Plantedname"}\n',
    }
    options = {
        "*": {"column_types": types, "mask": MASKS, "primary_key": "id"},
        "json*": {"format": "json"},
        "lines*": {"options": {"multiLine": "true"}},
    }
    spec = {"path": str(drop), "format": "csv", "table_options": options}
    _write_spec(tmp_path, path="file", tables=["*"], spec=spec)
    records = _build_records(20000)
    for name in ("csv", "json", "lines", *malformed):
        (drop / name).mkdir()
        some = records if name == "csv" else records[:9]
        if name.startswith("json"):
            text = "".join(json.dumps(each) + "\n" for each in some)
            (drop / name / "1.json").write_text(text + malformed.get(name, ""))
        else:
            _write_csv(drop / name / "1.csv", some, malformed.get(name, ""))
    with Search(tmp_path) as search:
        search.run("run", "--select", "shop.csv", "--select", "shop.json", "--select", "shop.lines")
        _write_csv(drop / "csv/2.csv", _build_records(9, 30000))
        reported = search.run("run", code=1)
        search.run("check", code=1)
    failed = {name for name in malformed if f"shop.{name}: failed" in reported}
    refused = {name for name in malformed if f"error: table shop.{name}" in reported}
    assert failed | refused == {*malformed}, reported
    assert re.search(r"^shop\.csv +synced +2 ", reported, re.MULTILINE), reported
    digest = hmac.new(KEY.encode(), b"plantedphone7", "sha256").hexdigest()
    assert _find(tmp_path / "warehouse", digest.encode())
    search.assert_nothing_found()


@pytest.mark.slow
def test_no_file_or_message_contains_masked_values_of_connectors(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """This includes the spool of a run that is killed before it publishes its rows, and `_rest`."""
    outside = tmp_path_factory.mktemp("outside")
    text = {"type": ["null", "string"]}
    properties = {
        **dict.fromkeys(FIELDS, text),
        "born": {**text, "format": "date"},
        "at": {**text, "format": "date-time"},
    }
    stream = {
        "name": "people",
        "json_schema": {"type": "object", "properties": properties},
        "supported_sync_modes": ["full_refresh", "incremental"],
        "source_defined_cursor": True,
        "default_cursor_field": ["at"],
        "source_defined_primary_key": [["id"]],
    }
    data, catalog = outside / "data.json", outside / "catalog.json"
    catalog.write_text(json.dumps({"streams": [stream]}))
    records = _build_records(5000)
    records[7] |= {"born": "Plantedname", "email_2": "planted.local@x.org", "Phone": "plantedphone"}
    data.write_text(json.dumps({"people": records}))
    data.with_suffix(".raw").write_text('{"type": "RECORD", "record": Plantedname}')
    config: dict[str, Any] = {"data": str(data), "catalog": str(catalog)}
    masks = {**MASKS, "email_*": "hash"}
    command = [sys.executable, str(ROOT / "tests/services/connector.py")]
    spec = {"command": command, "config": config, "table_options": {"people": {"mask": masks}}}
    _write_spec(tmp_path, path="airbyte", tables=["people"], spec=spec)
    with Search(tmp_path) as search:
        search.run("run", crash_at="staged")
        [spool] = (tmp_path / "tmp").rglob("*.jsonl")
        assert b"***" in spool.read_bytes()
        assert not search.find_in_files()
        search.run("run")
        config["acts"] = {"people.0": [{"raw_file": str(data.with_suffix(".raw"))}]}
        _write_spec(tmp_path, path="airbyte", tables=["people"], spec=spec)
        search.run("run", code=1)
    digest = hmac.new(KEY.encode(), b"plantedphone7", "sha256").hexdigest()
    assert _find(tmp_path / "warehouse", digest.encode())
    assert _find(tmp_path / "warehouse", b'"email_2":"***"')
    search.assert_nothing_found()
