"""Finds and fetches the jars of the Iceberg runtime and the JDBC drivers.

The loader searches the `STRANDLINE_JARS` folder and the user's cache for a jar, and fetches a
missing jar from Maven Central or a mirror. It does not change Spark's own `jars` folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from loader.errors import SpecError, did_you_mean

if TYPE_CHECKING:
    import urllib.request

T = TypeVar("T")
Report = Callable[[str], None]

MIRROR_VARIABLE = "STRANDLINE_MAVEN_MIRROR"
"""The URL of a Maven Central mirror."""
JARS_VARIABLE = "STRANDLINE_JARS"
"""A folder of jars for machines without a network, which is searched before the cache."""
CACHE_VARIABLE = "STRANDLINE_CACHE"
"""The cache folder; by default `~/.cache/strandline`."""

_MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
_TIMEOUT_SECONDS = 60
_MOST_SECONDS = 3600.0
_MOST_BYTES = 1 << 30  # the largest jar has 70 MB
_CHUNK_BYTES = 1 << 20
_REPORT_SECONDS = 5.0
_OTHER_WAYS = (
    f"Set {MIRROR_VARIABLE} to a mirror of Maven Central, or put the file into a folder and set "
    f"{JARS_VARIABLE} to it"
)
_ENVIRONMENT = re.compile(r"\$\{env\.(\w+)\}")  # the syntax of Maven's settings.xml


@dataclass(frozen=True)
class Jar:
    """A jar on Maven Central.

    Attributes:
        licence: the SPDX identifier of the licence.
    """

    group: str
    artifact: str
    version: str
    sha256: str
    licence: str = "Apache-2.0"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def url(self) -> str:
        group = self.group.replace(".", "/")
        return f"{_repository()}/{group}/{self.artifact}/{self.version}/{self.file_name}"

    @property
    def purl(self) -> str:
        """The package URL, for bills of materials and advisory databases."""
        return f"pkg:maven/{self.group}/{self.artifact}@{self.version}"

    def owns(self, file_name: str) -> bool:
        """Returns whether a file name belongs to any version of this jar."""
        return file_name.startswith(f"{self.artifact}-") and file_name.endswith(".jar")


@dataclass(frozen=True)
class Driver:
    """A JDBC driver.

    Attributes:
        name: the driver's name in ``loader setup``.
        protocols: the driver's protocols, which follow ``jdbc:`` in a URL.
        system_names: the jar's file names in Linux distributions, from which users may link it.
    """

    name: str
    jar: Jar
    protocols: tuple[str, ...]
    system_names: tuple[str, ...]

    def owns(self, file_name: str) -> bool:
        return file_name in self.system_names or self.jar.owns(file_name)


DRIVERS: Mapping[str, Driver] = {
    driver.name: driver
    for driver in (
        Driver(
            name="postgresql",
            jar=Jar(
                "org.postgresql",
                "postgresql",
                "42.7.14",
                "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
                "BSD-2-Clause",
            ),
            protocols=("postgresql",),
            system_names=("postgresql.jar", "postgresql-jdbc.jar", "postgresql-jdbc4.jar"),
        ),
        Driver(
            name="mariadb",
            jar=Jar(
                "org.mariadb.jdbc",
                "mariadb-java-client",
                "3.5.9",
                "11e3bb5bbf8ef0e806ae4d6c5d5033fedf7262cc777f0190bde8a2f3c8e6bd8d",
                "LGPL-2.1-or-later",
            ),
            protocols=("mariadb",),
            system_names=("mariadb-java-client.jar",),
        ),
        Driver(
            name="mysql",
            jar=Jar(
                "com.mysql",
                "mysql-connector-j",
                "9.7.0",
                "0353648eaa1c91e0f4020c959abf756bc866ffd583df22ae6b6f6e0cbd43eb44",
                "GPL-2.0-only WITH Universal-FOSS-exception-1.0",
            ),
            protocols=("mysql",),
            system_names=("mysql-connector-j.jar", "mysql-connector-java.jar"),
        ),
        Driver(
            name="sqlite",
            jar=Jar(
                "org.xerial",
                "sqlite-jdbc",
                "3.53.2.1",
                "f55e405ed96d5ffe629e05b7b51b059e1c7d64527c0cc90a972fbac06730ccc1",
            ),
            protocols=("sqlite",),
            system_names=("sqlite-jdbc.jar",),
        ),
    )
}
BUILT_IN = ("derby",)
"""Drivers that Spark includes."""


def find_driver(name: str) -> Driver:
    """Returns the driver with this name. Raises a SpecError if there is none."""
    driver = DRIVERS.get(name.lower())
    if driver is None:
        known = [*DRIVERS, *BUILT_IN, "aws"]
        choices = f"Use {', '.join(known)}, or the path of another driver's jar"
        raise SpecError(
            f"`{name}` is not a known JDBC driver",
            where="loader setup",
            remedy=" ".join(filter(None, (did_you_mean(name, known), choices))),
        )
    return driver


def driver_for_url(url: str) -> Driver | None:
    """Returns the driver for a JDBC URL; None if Spark includes the driver or it is unknown."""
    protocol = url.removeprefix("jdbc:").split(":", 1)[0].lower()
    return next((d for d in DRIVERS.values() if protocol in d.protocols), None)


def cache_folder() -> Path:
    """Returns the user's cache folder.

    Raises:
        SpecError: if the user has no home folder and STRANDLINE_CACHE is not set.
    """
    configured = _find_folder(CACHE_VARIABLE)
    if configured:
        return configured
    try:
        return Path.home() / ".cache" / "strandline"
    except RuntimeError as error:
        raise SpecError(
            "this user has no home folder",
            where="cache",
            remedy=f"Set {CACHE_VARIABLE} to a folder",
        ) from error


def folders() -> list[Path]:
    """Returns the folders to search for jars, in order. Raises SpecError if there are none."""
    configured = _find_folder(JARS_VARIABLE)
    if configured is None:
        return [cache_folder() / "jars"]
    with suppress(SpecError):
        return [configured, cache_folder() / "jars"]
    return [configured]


def _find_folder(variable: str) -> Path | None:
    configured = os.environ.get(variable)
    return Path(os.path.expanduser(configured)).absolute() if configured else None


def find_jar(jar: Jar) -> Path | None:
    """Returns the path of a jar on this machine; None if it is missing. Verifies no checksum."""
    paths = (folder / jar.file_name for folder in folders())
    return next((path for path in paths if path.is_file()), None)


def find_drivers(*others: Jar) -> list[Path]:
    """Returns all jars in the loader's folders, except Iceberg runtimes.

    Returns only one version of each driver, and of each jar in `others`, preferably the pinned
    version. If several folders have a file with the same name, the file in the first folder is
    used.
    """
    jars_by_name: dict[str, Path] = {}
    for folder in folders():
        with suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path.suffix == ".jar" and path.is_file():
                    jars_by_name.setdefault(path.name, path)
    chosen: list[Path] = []
    known: set[Jar] = set()
    for name, path in jars_by_name.items():
        if name.startswith("iceberg-spark-runtime-"):
            continue
        jar = next((d.jar for d in DRIVERS.values() if d.owns(name)), None)
        jar = jar or next((other for other in others if other.owns(name)), None)
        if jar is not None:
            if jar in known or (jar.file_name in jars_by_name and name != jar.file_name):
                continue
            known.add(jar)
        chosen.append(path)
    return chosen


def provide_jar(jar: Jar, report: Report) -> Path:
    """Returns the path of a verified jar. Fetches the jar if it is not on this machine.

    Raises:
        SpecError: if the jar cannot be fetched, if its checksum is wrong, or if no folder is
            writable.
    """
    present = find_jar(jar)
    if present is not None:
        digest = _hash_file(present)
        if digest != jar.sha256:
            raise _mismatch(jar, digest, str(present), "Delete it, and repeat `loader setup`")
        return present
    return _write(jar.file_name, lambda folder: _fetch_jar(jar, folder, report))


def provide_driver(driver: Driver, report: Report) -> str:
    """Provides a JDBC driver as :func:`provide_jar` does. Returns a message about the result."""
    present = find_jar(driver.jar) is not None
    jar = provide_jar(driver.jar, report)
    return f"{jar.name} is installed" if present else f"{jar.name} fetched ({driver.jar.licence})"


def link_jar(jar: Path) -> str:
    """Links a user's jar into the first writable jar folder. Returns a message.

    Raises:
        SpecError: if no folder is writable.
    """
    done = _write(jar.name, lambda folder: _link(jar, folder))
    pinned = next((driver.jar for driver in DRIVERS.values() if driver.owns(jar.name)), None)
    if pinned is not None and pinned.file_name != jar.name and find_jar(pinned) is not None:
        return f"{done}, but {pinned.file_name} is used: delete {find_jar(pinned)} to use yours"
    return done


def _write(name: str, write: Callable[[Path], T]) -> T:
    """Writes a jar to the first writable folder. In a container, some may be read-only."""
    refused: OSError | None = None
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return write(folder)
        except OSError as error:
            refused = refused or error
    assert refused is not None
    raise SpecError(
        f"cannot write {refused.filename or folders()[0]}: {refused.strerror or refused}",
        where=f"jar {name}",
        remedy=f"Set {JARS_VARIABLE} or {CACHE_VARIABLE} to a folder that you may write to",
    ) from refused


def _link(jar: Path, folder: Path) -> str:
    target = folder / jar.name
    if target.exists() and target.samefile(jar):
        return f"{jar.name} is installed"
    fresh = folder / f".{jar.name}.{os.getpid()}.new"
    try:
        fresh.symlink_to(jar.absolute())
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
    return f"{jar.name} linked"


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _fetch_jar(jar: Jar, folder: Path, report: Report) -> Path:
    """Fetches a jar. The file appears only after a complete and verified download."""
    target = folder / jar.file_name
    for leftover in folder.glob(f".{jar.artifact}-*.part"):
        with suppress(OSError):  # another process may have deleted it
            # No download takes that long, so the process that wrote the file must have been killed.
            if leftover.stat().st_mtime < time.time() - _MOST_SECONDS:
                leftover.unlink()
    with tempfile.NamedTemporaryFile(
        prefix=f".{jar.artifact}-", suffix=".part", dir=folder, delete=False
    ) as partial:
        path = Path(partial.name)
        try:
            digest = _download(jar, partial, report)
            if digest != jar.sha256:
                raise _mismatch(jar, digest, _without_password(jar.url), _OTHER_WAYS)
            partial.flush()
            os.fsync(partial.fileno())
            path.chmod(0o644)
            path.replace(target)
        finally:
            path.unlink(missing_ok=True)
    return target


def _download(jar: Jar, file: IO[bytes], report: Report) -> str:
    # Imported late, because few runs download jars.
    import http.client
    import urllib.error
    import urllib.request

    digest, size = hashlib.sha256(), 0
    began = shown = time.monotonic()
    try:
        with urllib.request.urlopen(_request(jar.url), timeout=_TIMEOUT_SECONDS) as response:
            total = int(response.headers.get("Content-Length") or 0)
            # `read1` returns as soon as bytes arrive, so that progress is visible.
            while chunk := response.read1(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                size += len(chunk)
                if max(size, total) > _MOST_BYTES:
                    raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
                if time.monotonic() - began > _MOST_SECONDS:
                    raise ValueError(f"it took more than {_MOST_SECONDS:,.0f} seconds")
                if time.monotonic() - shown >= _REPORT_SECONDS:
                    shown = time.monotonic()
                    of = f" of {total / 1e6:.0f}" if total else ""
                    report(f"fetching {jar.file_name}: {size / 1e6:.0f}{of} MB")
            if size < total:
                raise ValueError(f"it ended after {size} of {total} bytes")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.filename and not hasattr(error, "url"):
            raise
        answered = isinstance(error, urllib.error.HTTPError)
        reason = error if answered else getattr(error, "reason", error)
        raise SpecError(
            f"{_without_password(jar.url)} cannot be fetched ({reason or type(error).__name__})",
            where=f"jar {jar.file_name}",
            remedy=_OTHER_WAYS,
        ) from error
    return digest.hexdigest()


def _request(url: str) -> urllib.request.Request:
    """Returns a request. Moves the user and password from the URL to a header."""
    import base64
    import urllib.request
    from urllib.parse import unquote

    address, user_information = _split_user(url)
    request = urllib.request.Request(address)
    if user_information:
        name, _, password = user_information.partition(":")
        user = f"{unquote(name)}:{unquote(password)}"
        # An "unredirected" header is not sent to the target of a redirect.
        request.add_unredirected_header(
            "Authorization", f"Basic {base64.b64encode(user.encode()).decode()}"
        )
    return request


def _without_password(url: str) -> str:
    return _split_user(url)[0]


def _split_user(url: str) -> tuple[str, str]:
    """Splits user information, which may contain slashes, from a URL."""
    scheme, mark, rest = url.partition("://")
    host = rest.partition("/")[0]
    port = host.partition(":")[2]
    user = ""
    if "@" in host or (port and not port.isdigit()):
        user, _, rest = rest.rpartition("@")
    return f"{scheme}{mark}{rest}", user


def _mismatch(jar: Jar, digest: str, place: str, remedy: str) -> SpecError:
    return SpecError(
        f"{place} has the SHA-256 {digest}, expected {jar.sha256}",
        where=f"jar {jar.file_name}",
        remedy=remedy,
    )


def _repository() -> str:
    """Returns the URL of the mirror in the environment or in Maven's settings, or Maven Central."""
    configured = os.environ.get(MIRROR_VARIABLE, "").strip()
    return (configured or _mirror_in_settings() or _MAVEN_CENTRAL).rstrip("/")


def _mirror_in_settings() -> str | None:
    """Returns the URL, with user and password, of the mirror in the user's `settings.xml`.

    See https://maven.apache.org/guides/mini/guide-mirror-settings.html.
    """
    from xml.etree import ElementTree

    try:
        root: Any = ElementTree.parse(Path.home() / ".m2" / "settings.xml").getroot()
    except (OSError, ElementTree.ParseError, RuntimeError):
        return None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of = (mirror.findtext("{*}mirrorOf") or "").replace(" ", "").split(",")
        url = (mirror.findtext("{*}url") or "").strip()
        if url and {"*", "external:*", "central"} & {*of} and "!central" not in of:
            return _with_user(url, root, mirror.findtext("{*}id"))
    return None


def _with_user(url: str, settings: Any, mirror: str | None) -> str:
    """Adds a mirror's user and password to its URL. Ignores encrypted passwords."""
    from urllib.parse import quote

    for server in settings.iterfind("{*}servers/{*}server"):
        texts = (server.findtext(f"{{*}}{name}") or "" for name in ("id", "username", "password"))
        name, user, password = (_ENVIRONMENT.sub(_look_up, text.strip()) for text in texts)
        encrypted = password.startswith("{") and password.endswith("}")
        if name == mirror and user and not encrypted and not _split_user(url)[1]:
            return url.replace("://", f"://{quote(user, safe='')}:{quote(password, safe='')}@", 1)
    return url


def _look_up(match: re.Match[str]) -> str:
    return os.environ.get(match[1], match[0])
