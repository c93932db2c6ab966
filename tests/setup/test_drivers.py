"""Drivers by name: known ones, downloads, and nothing unverified stays."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from loader.errors import SpecError
from loader.runtime import drivers

JAR = b"the bytes of a jar"
DRIVER = replace(drivers.DRIVERS["postgresql"], sha256=hashlib.sha256(JAR).hexdigest())


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: requests are not worth a line of a test's output."""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository on this machine; yields its folder."""
    folder = tmp_path / "maven"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        monkeypatch.setenv(drivers.MIRROR_VARIABLE, f"http://127.0.0.1:{port}/")
        yield folder
        server.shutdown()


def _publish(mirror: Path, content: bytes) -> None:
    folder = mirror / "org" / "postgresql" / "postgresql" / DRIVER.version
    folder.mkdir(parents=True)
    (folder / DRIVER.file_name).write_bytes(content)


def test_a_verified_jar_is_kept(mirror: Path, tmp_path: Path) -> None:
    _publish(mirror, JAR)
    jars = tmp_path / "jars"
    jars.mkdir()

    assert drivers.download(DRIVER, jars) == jars / DRIVER.file_name
    assert (jars / DRIVER.file_name).read_bytes() == JAR


def test_a_jar_with_another_checksum_is_refused(mirror: Path, tmp_path: Path) -> None:
    _publish(mirror, JAR + b"!")
    jars = tmp_path / "jars"
    jars.mkdir()

    with pytest.raises(SpecError, match=f"expected {DRIVER.sha256}"):
        drivers.download(DRIVER, jars)

    assert list(jars.iterdir()) == []


def test_a_jar_that_is_not_there_says_how_else(mirror: Path, tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()

    with pytest.raises(SpecError) as told:
        drivers.download(DRIVER, jars)

    assert "driver postgresql: no jar of it on this system" in str(told.value)
    assert "cannot be fetched (HTTP Error 404: File not found)" in str(told.value)
    assert "apt-get install libpostgresql-jdbc-java" in str(told.value)
    assert f"loader setup path/to/{DRIVER.file_name}" in str(told.value)
    assert list(jars.iterdir()) == []


def test_a_mirror_that_is_down_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(drivers.MIRROR_VARIABLE, "http://127.0.0.1:9")

    with pytest.raises(SpecError, match="Connection refused"):
        drivers.download(DRIVER, tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_driver_gets_a_suggestion() -> None:
    with pytest.raises(SpecError, match="Did you mean `postgresql`") as told:
        drivers.named("postgresq")

    assert told.value.exit_code == 2
    assert "mariadb, mysql, sqlite, derby" in str(told.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("jdbc:postgresql://localhost/shop", "postgresql"),
        ("jdbc:mariadb://localhost/shop", "mariadb"),
        ("jdbc:mysql://localhost/shop", "mysql"),
        ("jdbc:sqlite:shop.db", "sqlite"),
        ("jdbc:derby:shop", None),
        ("jdbc:oracle:thin:@//localhost/shop", None),
    ],
)
def test_a_url_names_its_driver(url: str, name: str | None) -> None:
    driver = drivers.for_url(url)

    assert (driver.name if driver else None) == name


def test_any_version_of_a_driver_is_recognised() -> None:
    driver = drivers.DRIVERS["postgresql"]

    assert driver.owns("postgresql.jar")
    assert driver.owns("postgresql-42.2.5.jar")
    assert not driver.owns("postgres-thing.jar")
