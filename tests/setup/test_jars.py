"""Jars are taken from a local folder, the cache or a mirror, and are verified by checksum."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from loader.errors import SpecError
from loader.spark import jars, setup
from loader.spark.class_path import list_own_jars
from loader.spark.jars import JARS_VARIABLE, MIRROR_VARIABLE
from loader.spark.spark_version import LINES, find_spark

CONTENT = b"the bytes of a jar"
JAR = replace(jars.DRIVERS["postgresql"].jar, sha256=hashlib.sha256(CONTENT).hexdigest())
DRIVER = replace(jars.DRIVERS["postgresql"], jar=JAR)
_UNREACHABLE = "http://127.0.0.1:9"


class _Quiet(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []
    """The first line of each request."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Records the request instead of printing it."""
        self.asked.append(str(arguments[0]))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home with an empty cache, and no network. Returns the cache's folder of jars."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(jars.CACHE_VARIABLE, raising=False)
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    monkeypatch.setenv(MIRROR_VARIABLE, _UNREACHABLE)
    return tmp_path / "home" / ".cache" / "strandline" / "jars"


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A local Maven repository: its address, and the path of the jar's file in it."""
    place = tmp_path / "maven" / "org" / "postgresql" / "postgresql" / JAR.version
    place.mkdir(parents=True)
    handler = partial(_Quiet, directory=tmp_path / "maven")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", place / JAR.file_name
        server.shutdown()


@pytest.fixture(params=LINES)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark installation of each supported version, with Iceberg among its jars."""
    line = LINES[request.param]
    folder = tmp_path / "spark"
    (folder / "jars").mkdir(parents=True)
    (folder / "jars" / f"spark-core_{line.scala}-{line.version}.9.jar").touch()
    (folder / "jars" / line.iceberg.file_name).touch()
    monkeypatch.setenv("SPARK_HOME", str(folder))
    return folder


def _silent(line: str) -> None:
    """Discards progress messages."""


def test_a_jar_is_fetched_once_and_verified(
    mirror: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = mirror
    file.write_bytes(CONTENT)
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    assert jars.provide_driver(DRIVER, _silent) == f"{JAR.file_name} fetched (BSD-2-Clause)"
    assert [path.name for path in cache.iterdir()] == [JAR.file_name]
    monkeypatch.setenv(MIRROR_VARIABLE, _UNREACHABLE)
    assert jars.provide_driver(DRIVER, _silent) == f"{JAR.file_name} is installed"
    assert jars.find_drivers() == [cache / JAR.file_name]


def test_a_jar_with_another_checksum_is_refused(
    mirror: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = mirror
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    for content in (CONTENT + b"!", CONTENT[:-1], b""):
        file.write_bytes(content)
        with pytest.raises(SpecError, match=f"expected {JAR.sha256}"):
            jars.provide_jar(JAR, _silent)
        assert [*cache.iterdir()] == []


def test_a_cached_jar_that_was_changed_is_refused(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / JAR.file_name).write_bytes(CONTENT[:-1])
    with pytest.raises(SpecError, match=r"expected .*Delete it, and repeat `loader setup`"):
        jars.provide_driver(DRIVER, _silent)


def test_without_network_the_error_names_alternatives(
    mirror: tuple[str, Path], cache: Path
) -> None:
    with pytest.raises(SpecError) as refused:
        jars.provide_jar(JAR, _silent)
    assert f"jar {JAR.file_name}: {_UNREACHABLE}/org/postgresql/" in str(refused.value)
    assert "cannot be fetched ([Errno 111] Connection refused)" in str(refused.value)
    assert f"Set {MIRROR_VARIABLE} to a mirror" in refused.value.remedy
    assert f"set {JARS_VARIABLE} to it" in refused.value.remedy
    assert [*cache.iterdir()] == []


def test_a_folder_of_jars_comes_before_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (cache, tmp_path / "image"):
        folder.mkdir(parents=True)
        (folder / JAR.file_name).write_bytes(CONTENT)
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "image"))
    assert jars.provide_jar(JAR, _silent) == tmp_path / "image" / JAR.file_name
    assert jars.find_drivers() == [tmp_path / "image" / JAR.file_name]


def test_the_mirror_of_mavens_settings_is_used(
    mirror: tuple[str, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = mirror
    file.write_bytes(CONTENT)
    monkeypatch.delenv(MIRROR_VARIABLE)
    settings = tmp_path / "home" / ".m2" / "settings.xml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>'
        f"<mirror><mirrorOf>other</mirrorOf><url>{_UNREACHABLE}</url></mirror>"
        f"<mirror><mirrorOf>*, !other</mirrorOf><url>{address}</url></mirror>"
        "</mirrors></settings>"
    )
    assert jars.provide_jar(JAR, _silent) == cache / JAR.file_name


def test_a_system_jar_is_not_used_together_with_the_pinned_one(
    mirror: tuple[str, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "postgresql.jar").write_bytes(b"the system's")
    assert jars.link_jar(tmp_path / "postgresql.jar") == "postgresql.jar linked"
    assert jars.find_drivers() == [cache / "postgresql.jar"]
    address, file = mirror
    file.write_bytes(CONTENT)
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    jars.provide_driver(DRIVER, _silent)
    monkeypatch.setattr(jars, "DRIVERS", {"postgresql": DRIVER})
    assert jars.find_drivers() == [cache / JAR.file_name]  # one version on the class path


def test_a_users_own_jar_is_linked(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "oracle.jar").write_bytes(b"oracle")
    assert jars.link_jar(tmp_path / "oracle.jar") == "oracle.jar linked"
    assert jars.link_jar(tmp_path / "oracle.jar") == "oracle.jar is installed"
    assert jars.find_drivers() == [cache / "oracle.jar"]


def test_a_folder_that_cannot_be_written_is_one_error(
    mirror: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = mirror
    file.write_bytes(CONTENT)
    (tmp_path / "file").touch()
    (tmp_path / "oracle.jar").touch()
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(SpecError, match=rf"cannot write .*Set {JARS_VARIABLE} or .* to a folder"):
        jars.provide_jar(JAR, _silent)
    with pytest.raises(SpecError, match=r"jar oracle.jar: cannot write"):
        jars.link_jar(tmp_path / "oracle.jar")
    setup.provide_jars({"spark.jars": "iceberg-spark-runtime.jar"}, ["jdbc:postgresql:x"], _silent)


def test_a_folder_of_jars_that_cannot_be_created_is_replaced_by_the_cache(
    mirror: tuple[str, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = mirror
    file.write_bytes(CONTENT)
    (tmp_path / "file").touch()
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "file" / "jars"))  # cannot be created
    assert jars.provide_jar(JAR, _silent) == cache / JAR.file_name
    (cache / JAR.file_name).unlink()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "image"))
    assert jars.provide_jar(JAR, _silent) == tmp_path / "image" / JAR.file_name


def test_a_user_without_a_home_needs_a_folder_of_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(SpecError, match=f"no home folder.*Set {jars.CACHE_VARIABLE}"):
        jars.find_drivers()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    (tmp_path / "oracle.jar").touch()
    assert jars.find_drivers() == [tmp_path / "oracle.jar"]


def test_folders_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that records the class archive has another working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(jars.CACHE_VARIABLE, "cache")
    monkeypatch.setenv(JARS_VARIABLE, "~/jars")
    assert jars.folders() == [tmp_path / "home" / "jars", tmp_path / "cache" / "jars"]


class _Broken(_Quiet):
    """Ends in the middle of a file, or sends something other than HTTP."""

    def do_GET(self) -> None:
        if "postgresql" in self.path and self.headers["Authorization"]:
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:-3])
        else:
            self.wfile.write(b"SSH-2.0-OpenSSH\r\n")
        self.close_connection = True


def test_a_download_that_is_cut_off_leaves_nothing_and_shows_no_password(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv(MIRROR_VARIABLE, f"http://me:p%40ss@{place}")
        with pytest.raises(SpecError, match=r"ended after 15 of 18 bytes") as refused:
            jars.provide_jar(JAR, _silent)
        assert f"http://{place}/org/postgresql" in str(refused.value)
        assert "p%40ss" not in str(refused.value)
        monkeypatch.setenv(MIRROR_VARIABLE, f"http://{place}")
        with pytest.raises(SpecError, match=r"cannot be fetched \(SSH-2.0"):
            jars.provide_jar(JAR, _silent)
        server.shutdown()
    assert [*cache.iterdir()] == []


def test_a_mirror_that_asks_for_a_password_gets_it() -> None:
    request = jars._request("https://me:p%40ss@maven.example/a.jar")
    assert request.full_url == "https://maven.example/a.jar"
    assert request.get_header("Authorization") == "Basic bWU6cEBzcw=="  # me:p@ss


@pytest.mark.parametrize(
    ("url", "address", "user"),
    [
        ("http://me:p/w@h:81/maven", "http://h:81/maven", "me:p/w"),
        ("https://me:p%2Fw@h/m", "https://h/m", "me:p/w"),
        ("https://me:p@x/w@h/m", "https://h/m", "me:p@x/w"),
        ("https://token@h/m", "https://h/m", "token:"),
        ("http://h:8081/m/p@x", "http://h:8081/m/p@x", None),
        ("http://h/p@x", "http://h/p@x", None),
        ("http://[::1]:81/m", "http://[::1]:81/m", None),
    ],
)
def test_a_password_with_a_slash_is_no_host(url: str, address: str, user: str | None) -> None:
    request = jars._request(url)
    assert (request.full_url, jars._without_password(url)) == (address, address)
    sent = (request.get_header("Authorization") or "").removeprefix("Basic ")
    assert (base64.b64decode(sent).decode() or None) == user


class _Endless(SimpleHTTPRequestHandler):
    """Sends bytes until the client disconnects."""

    pause = 0.0
    length: str | None = None

    def do_GET(self) -> None:
        self.send_response(200)
        if self.length:
            self.send_header("Content-Length", self.length)
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"x" * (10 if self.pause else 1 << 16))
                time.sleep(self.pause)

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppresses the access log."""


@pytest.mark.parametrize(
    ("attributes", "limits", "problem"),
    [
        ({}, {"_MOST_BYTES": 1 << 20}, "more than 1,048,576 bytes"),
        ({"length": "9999999999999"}, {}, "more than 1,073,741,824 bytes"),
        ({"pause": 0.05}, {"_MOST_SECONDS": 1.0}, "took more than 1 seconds"),
    ],
)
def test_a_download_without_end_is_one_error(
    attributes: dict[str, Any],
    limits: dict[str, Any],
    problem: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = type("Handler", (_Endless,), attributes)
    for name, value in limits.items():
        monkeypatch.setattr(jars, name, value)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(MIRROR_VARIABLE, f"http://127.0.0.1:{server.server_address[1]}")
        started = time.monotonic()
        with pytest.raises(SpecError, match=rf"cannot be fetched \(it .*{problem}\)"):
            jars.provide_jar(JAR, _silent)
        assert time.monotonic() - started < 10
        server.shutdown()
    assert [*cache.iterdir()] == []


def test_what_a_killed_download_left_is_deleted(
    mirror: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = mirror
    file.write_bytes(CONTENT)
    cache.mkdir(parents=True)
    left, busy, other = (cache / f".{name}.part" for name in ("postgresql-a", "postgresql-b", "x"))
    for path in (left, busy, other):
        path.touch()
    for path in (left, other):
        os.utime(path, (1, 1))
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    jars.provide_jar(JAR, _silent)
    assert {path.name for path in cache.iterdir()} == {busy.name, other.name, JAR.file_name}


@pytest.mark.parametrize(
    ("server", "user"),
    [
        ("<id>ours</id><username>me</username><password>p/w@</password>", "me:p/w@"),
        ("<id>ours</id><username>me</username><password>${env.PW}</password>", "me:from-env"),
        ("<id>ours</id><username>me</username><password>{COQLCE6DU6}</password>", None),
        ("<id>theirs</id><username>me</username><password>pw</password>", None),
    ],
)
def test_a_mirror_in_mavens_settings_gets_its_servers_password(
    server: str, user: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MIRROR_VARIABLE)
    monkeypatch.setenv("PW", "from-env")
    settings = tmp_path / "home" / ".m2" / "settings.xml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors><mirror><id>ours</id>'
        "<mirrorOf>central</mirrorOf><url>https://maven.example/all</url></mirror></mirrors>"
        f"<servers><server>{server}</server></servers></settings>"
    )
    request = jars._request(JAR.url)
    assert request.full_url.startswith("https://maven.example/all/org/postgresql/")
    sent = (request.get_header("Authorization") or "").removeprefix("Basic ")
    assert (base64.b64decode(sent).decode() or None) == user


def test_concurrent_setups_do_not_interfere(
    mirror: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = mirror
    file.write_bytes(CONTENT)
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: jars.provide_jar(JAR, _silent), range(8)))
    assert {*found} == {cache / JAR.file_name}
    assert [path.name for path in cache.iterdir()] == [JAR.file_name]


def test_another_version_of_a_pinned_driver_is_reported_as_unused(
    cache: Path, tmp_path: Path
) -> None:
    cache.mkdir(parents=True)
    (cache / JAR.file_name).write_bytes(CONTENT)
    (tmp_path / "postgresql-42.5.0.jar").touch()
    assert jars.link_jar(tmp_path / "postgresql-42.5.0.jar") == (
        f"postgresql-42.5.0.jar linked, but {JAR.file_name} is used: "
        f"delete {cache / JAR.file_name} to use yours"
    )
    assert jars.find_drivers() == [cache / JAR.file_name]


def test_a_misspelt_driver_gets_a_suggestion() -> None:
    with pytest.raises(SpecError, match="Did you mean `postgresql`") as refused:
        setup.prepare(["postgresq"], Path("."), _silent)
    assert refused.value.exit_code == 2
    assert "mariadb, mysql, sqlite, derby, aws" in str(refused.value)
    with pytest.raises(SpecError, match=r"there is no file .*oracle.jar"):
        setup.prepare(["drivers/oracle.jar"], Path("."), _silent)


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
    driver = jars.driver_for_url(url)
    assert (driver.name if driver else None) == name


def test_a_run_fetches_only_what_the_machine_lacks(
    mirror: tuple[str, Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that cannot be fetched fails its source later, and no other source."""
    monkeypatch.setattr(jars, "DRIVERS", {"postgresql": DRIVER})
    lines: list[str] = []
    (iceberg_jar,) = (home / "jars").glob("iceberg-*")
    iceberg_jar.unlink()
    with pytest.raises(SpecError, match=f"jar {iceberg_jar.name}: .* cannot be fetched"):
        setup.provide_jars({}, [], lines.append)
    iceberg = {"spark.jars.packages": f"org.apache.iceberg:{iceberg_jar.name}"}
    url = "jdbc:postgresql://localhost/shop"
    setup.provide_jars(iceberg, [url], lines.append)
    assert lines == []
    named = {**iceberg, "spark.jars": "/opt/postgresql-42.7.1.jar"}
    address, file = mirror
    file.write_bytes(CONTENT)
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    setup.provide_jars(named, [url], lines.append)
    assert lines == []
    setup.provide_jars(iceberg, [url, url, "None", "jdbc:derby:shop"], lines.append)
    assert lines == [f"postgresql: {JAR.file_name} fetched (BSD-2-Clause)"]


def test_a_new_driver_is_one_jar_and_nothing_else_is_fetched(
    mirror: tuple[str, Path], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, file = mirror
    file.write_bytes(CONTENT)
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    monkeypatch.setattr(jars, "DRIVERS", {"postgresql": DRIVER})
    _Quiet.asked.clear()
    for _ in range(2):
        setup.prepare(["postgresql"], tmp_path, _silent)
    [line] = _Quiet.asked
    assert JAR.file_name in line


def test_each_line_has_its_own_aws_bundle(cache: Path, home: Path) -> None:
    line = find_spark().line
    assert line.aws.version.split(".")[:2] == line.iceberg.version.split(".")[:2]
    cache.mkdir(parents=True)
    with pytest.raises(SpecError, match=f"jar {line.aws.file_name}: .* cannot be fetched"):
        setup.prepare(["aws"], Path("."), _silent)
    for other in LINES.values():
        (cache / other.aws.file_name).touch()
    assert list_own_jars(find_spark(), {}) == [cache / line.aws.file_name]
