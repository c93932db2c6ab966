"""JDBC drivers: where each may be on a system, and what is downloaded if it is not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loader.errors import SpecError
from loader.problems import did_you_mean

# A mirror of Maven Central, for networks that have their own.
MIRROR_VARIABLE = "STRANDLINE_MAVEN_MIRROR"
_MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
_TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 1 << 20
# Where Linux distributions put jars: Debian and Fedora share the folder, not the file names.
_SYSTEM_FOLDERS = (Path("/usr/share/java"), Path("/usr/local/share/java"))


@dataclass(frozen=True)
class Driver:
    """A JDBC driver.

    Attributes:
        name: as given to ``loader setup``.
        group, artifact, version: its coordinates on Maven Central.
        sha256: the checksum of the jar at these coordinates.
        jars: its file names in a system's Java folder, the most usual first.
        package: Debian's package that puts it there; empty if there is none.
        protocols: what follows ``jdbc:`` in the URLs that it serves.
    """

    name: str
    group: str
    artifact: str
    version: str
    sha256: str
    jars: tuple[str, ...]
    package: str
    protocols: tuple[str, ...]

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def url(self) -> str:
        base = os.environ.get(MIRROR_VARIABLE, "").rstrip("/") or _MAVEN_CENTRAL
        group = self.group.replace(".", "/")
        return f"{base}/{group}/{self.artifact}/{self.version}/{self.file_name}"

    def owns(self, file_name: str) -> bool:
        """Whether a jar of this name is this driver, in any version."""
        return file_name in self.jars or (
            file_name.startswith(f"{self.artifact}-") and file_name.endswith(".jar")
        )


DRIVERS: Mapping[str, Driver] = {
    driver.name: driver
    for driver in (
        Driver(
            name="postgresql",
            group="org.postgresql",
            artifact="postgresql",
            version="42.7.13",
            sha256="6e0e4cc2d8cae902084f8a2b18728b073a6fd9d1f87c9d8bff8f298c18185b93",
            jars=("postgresql.jar", "postgresql-jdbc.jar", "postgresql-jdbc4.jar"),
            package="libpostgresql-jdbc-java",
            protocols=("postgresql",),
        ),
        Driver(
            name="mariadb",
            group="org.mariadb.jdbc",
            artifact="mariadb-java-client",
            version="3.5.9",
            sha256="11e3bb5bbf8ef0e806ae4d6c5d5033fedf7262cc777f0190bde8a2f3c8e6bd8d",
            jars=("mariadb-java-client.jar",),
            package="libmariadb-java",
            protocols=("mariadb",),
        ),
        Driver(
            name="mysql",
            group="com.mysql",
            artifact="mysql-connector-j",
            version="9.7.0",
            sha256="0353648eaa1c91e0f4020c959abf756bc866ffd583df22ae6b6f6e0cbd43eb44",
            jars=("mysql-connector-j.jar", "mysql-connector-java.jar"),
            package="",
            protocols=("mysql",),
        ),
        Driver(
            name="sqlite",
            group="org.xerial",
            artifact="sqlite-jdbc",
            version="3.49.1.0",
            sha256="5c8609d2ca341deb8c6f71778974b5ba4995c7d32d7c7c89d9392a3e72c39291",
            jars=("sqlite-jdbc.jar",),
            package="libxerial-sqlite-jdbc-java",
            protocols=("sqlite",),
        ),
    )
}
# Spark includes Apache Derby's driver.
BUILT_IN = ("derby",)


def named(name: str) -> Driver:
    """Returns the driver of this name.

    Raises:
        SpecError: if there is none; suggests the name that was probably meant.
    """
    driver = DRIVERS.get(name.lower())
    if driver is None:
        known = [*DRIVERS, *BUILT_IN]
        choices = f"Known are {', '.join(known)}; for any other driver give the path of its jar"
        raise SpecError(
            f"`{name}` is not a known JDBC driver",
            where="loader setup",
            remedy=" ".join(filter(None, (did_you_mean(name, known), choices))),
        )
    return driver


def for_url(url: str) -> Driver | None:
    """Returns the driver for a JDBC URL; None if it is built in or not known here."""
    protocol = url.removeprefix("jdbc:").split(":", 1)[0].lower()
    return next((d for d in DRIVERS.values() if protocol in d.protocols), None)


def on_system(driver: Driver) -> Path | None:
    """Returns the jar that the system's package manager installed, if any."""
    candidates = (folder / jar for folder in _SYSTEM_FOLDERS for jar in driver.jars)
    return next((path for path in candidates if path.is_file()), None)


def download(driver: Driver, folder: Path) -> Path:
    """Downloads the driver's jar into a folder: whole and verified, or not at all.

    Raises:
        SpecError: if it cannot be downloaded, or is not the jar whose checksum is pinned.
        OSError: if the folder cannot be written.
    """
    target = folder / driver.file_name
    partial = folder / f".{driver.file_name}.{os.getpid()}.part"
    try:
        digest = _fetch(driver, partial)
        if digest != driver.sha256:
            raise SpecError(
                f"{driver.url} has the SHA-256 {digest}, expected {driver.sha256}",
                where=f"driver {driver.name}",
                remedy=_by_hand(driver),
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _fetch(driver: Driver, partial: Path) -> str:
    # Imported here, because every sync of a database imports this module but downloads nothing.
    import urllib.error
    import urllib.request

    digest = hashlib.sha256()
    with partial.open("wb") as file:
        try:
            with urllib.request.urlopen(driver.url, timeout=_TIMEOUT_SECONDS) as response:
                while chunk := response.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
        except (OSError, ValueError) as error:
            missing = isinstance(error, urllib.error.HTTPError)
            reason = error if missing else getattr(error, "reason", error)
            raise SpecError(
                f"no jar of it on this system, and {driver.url} cannot be fetched ({reason})",
                where=f"driver {driver.name}",
                remedy=_by_hand(driver),
            ) from error
    return digest.hexdigest()


def _by_hand(driver: Driver) -> str:
    ways = []
    if driver.package:
        ways.append(f"install it (`apt-get install {driver.package}`) and repeat `loader setup`")
    ways.append(f"set {MIRROR_VARIABLE} to a mirror of Maven Central")
    ways.append(f"name the jar itself: `loader setup path/to/{driver.file_name}`")
    text = ", or ".join(ways)
    return text[0].upper() + text[1:]
