"""Implements `loader init`, which creates a project, and `loader setup`, which provides jars."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from loader.errors import SpecError
from loader.package import package_folder, page
from loader.spark import jars
from loader.spark.class_path import (
    find_spark_iceberg,
    lacks_iceberg,
    list_jars,
    list_own_jars,
    read_text,
)
from loader.spark.jars import Driver, Report
from loader.spark.java import choose_java
from loader.spark.profile import find_named_profile, read_profile_name
from loader.spark.spark_version import SparkHome, SparkLine, find_spark

# The project's link to the dbt package, which `loader setup` recreates on a new machine.
LINK = Path(".strandline") / "package"
SCHEMA = Path(".strandline") / "loader.schema.json"
"""The JSON Schema for editors. The first comment in a new loader.yml refers to it."""
# The folder of the installed package, which `dbt deps` would create from the target of LINK.
_INSTALLED = Path("dbt_packages") / "strandline"
_PACKAGES = Path("packages.yml")
_PROJECT = "__PROJECT__"
# The warehouse in the dbt package's profile, relative to the working folder.
_RELATIVE = "env_var('PWD', '.') ~ '/warehouse'"
# The warehouse in a project's profile is absolute, because tables store their paths, and dbt may be
# started in any folder.
_WAREHOUSE = re.compile(r"(?<=env_var\('STRANDLINE_WAREHOUSE', )'(/[^'\\]*/warehouse)'(?=\))")
EMBEDDED, CLUSTER = "embedded", "cluster"
"""The targets of the profile."""
_DEFAULT_TARGET = f"env_var('STRANDLINE_TARGET', '{EMBEDDED}')"
# Names that dbt or the package reserves.
_RESERVED_PROJECT_NAMES = {"dbt", "dbt_spark", "strandline"}

_SPEC = Path("loader.yml")
# The templates, keyed by the file to write.
_TEMPLATES = {
    _SPEC: "loader.yml",
    Path("dbt_project.yml"): "dbt_project.yml",
    _PACKAGES: "packages.yml",
}
# dbt looks here first for a profile. In an existing project, this file would override the user's
# profile, so it is written to a subfolder instead.
_PROFILES = Path("profiles.yml")
_PROFILES_IN_FOLDER = Path("profiles") / "profiles.yml"
_GITIGNORE = Path(".gitignore")

_NEXT_STEPS = (
    "Next:",
    "  1. loader.yml: enter your database and its tables; export the variables that it uses",
    "  2. loader setup postgresql      # prepare Spark and the database's JDBC driver",
    "  3. loader check                 # report errors and remedies",
    "  4. loader run                   # append new and changed rows",
    "  5. loader codegen               # write dbt sources, models and tests",
    "  6. dbt build                    # latest tables and tests",
)

_CLUSTER_STEPS = (
    "Next:",
    "  1. loader.yml: enter your database and its tables; export the variables that it uses",
    "  2. export the variables of the target cluster, at least STRANDLINE_SPARK_MASTER and "
    "STRANDLINE_WAREHOUSE:",
    f"     {page('cluster', 'Settings')}",
    "  3. loader setup postgresql aws  # prepare Spark, the JDBC driver and the client of S3",
    "  4. loader check                 # report errors, also of catalog, warehouse and executors",
    "  5. loader run                   # append new and changed rows",
    "  6. loader codegen               # write dbt sources, models and tests",
    "  7. dbt build                    # latest tables and tests",
)

# What the user has to add to an existing project so that it uses the package.
_DISPATCH = "dispatch: [{macro_namespace: dbt, search_order: [your_project, strandline, dbt]}]"
_ADVICE_FOR_EXISTING = {
    Path("dbt_project.yml"): f"add `{_DISPATCH}` to it, and `profile: strandline` unless "
    "loader.yml has your profile's name",
    _PACKAGES: f"add `- local: {LINK.as_posix()}` to it, and run `dbt deps`",
}


def create(
    folder: Path,
    report: Callable[[str], None],
    spec: str | None = None,
    schema: str | None = None,
    target: str = EMBEDDED,
) -> None:
    """Writes the missing files of a starter project to a folder. Does not change existing files.

    Args:
        report: called with a message for each file.
        spec: the text of loader.yml; by default a sample.
        target: the profile's default target.

    Raises:
        SpecError: if no file is missing, or if the folder is not writable.
    """
    folder = folder.absolute()
    profiles = _profiles_of(folder)
    kept = [path for path in (*_TEMPLATES, profiles) if (folder / path).exists()]
    if len(kept) == len(_TEMPLATES) + 1:
        raise SpecError(
            f"{folder} already has {', '.join(map(str, kept))}",
            where="loader init",
            remedy="Nothing is missing: `loader check` reports errors in them",
        )
    if spec is not None:
        refuse_existing_spec(folder)
    contents = _contents(folder, profiles, target)
    contents |= {_SPEC: spec} if spec is not None else {}
    try:
        for path, text in contents.items():
            if path in kept:
                foreign = path in _ADVICE_FOR_EXISTING and not (
                    path == _PACKAGES and uses_link(folder)
                )
                report(f"kept {path}" + (f": {_ADVICE_FOR_EXISTING[path]}" if foreign else ""))
                continue
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
            report(f"wrote {path}")
        report(_ignore(folder))
        report(link_package(folder))
        if schema is not None:
            report(write_schema(folder, schema))
    except OSError as error:
        raise SpecError(
            f"cannot write {error.filename or folder}: {error.strerror or error}",
            where="loader init",
            remedy="Run it in a folder that you may write to",
        ) from error
    steps = _CLUSTER_STEPS if target == CLUSTER else _NEXT_STEPS
    for line in steps if spec is None else ():
        report(line)


def refuse_existing_spec(folder: Path) -> None:
    """Raises SpecError if a folder has a loader.yml, which `loader init --from` would replace."""
    if (folder / _SPEC).exists():
        raise SpecError(
            "loader.yml already exists",
            where="loader init --from",
            remedy="Run it in another folder, or rename the file to compare the two",
        )


def _profiles_of(folder: Path) -> Path:
    """Returns the path of a project's profile, which need not exist."""
    profiles = [path for path in (_PROFILES, _PROFILES_IN_FOLDER) if (folder / path).exists()]
    if profiles:
        return profiles[0]
    gitignore = read_text(folder / _GITIGNORE)
    ignored = _PROFILES.name in gitignore.split()  # `loader init` adds this line
    existed_before = (folder / "dbt_project.yml").exists() and not ignored
    return _PROFILES_IN_FOLDER if existed_before else _PROFILES


def uses_link(folder: Path) -> bool:
    """Returns whether the dbt project in `folder` uses the link to the dbt package."""
    packages = folder / _PACKAGES
    return packages.is_file() and LINK.as_posix() in packages.read_text(encoding="utf-8")


def link_package(folder: Path) -> str:
    """Links the dbt package into a project, as `dbt deps` does. Returns a message."""
    package = package_folder()
    done = link(package, folder / LINK)
    if uses_link(folder):
        link(package, folder / _INSTALLED)
    return f"dbt package: {LINK} {done}"


def write_schema(folder: Path, schema: str) -> str:
    """Writes the JSON Schema of loader.yml for editors. Returns a message."""
    path = folder / SCHEMA
    path.parent.mkdir(exist_ok=True)
    path.write_text(schema, encoding="utf-8")
    return f"schema of loader.yml, for editors: {SCHEMA}"


def repair_profile(folder: Path) -> str | None:
    """Writes a project's profile if it is missing, or corrects the warehouse's path in it.

    A clone of the project's repository lacks the profile, because git ignores the file. Writes no
    profile if ~/.dbt or DBT_PROFILES_DIR contains it. Does not change the path if a warehouse
    exists there.

    Returns:
        A message, or None if nothing had to be repaired.
    """
    name = _profiles_of(folder)
    path = folder / name
    elsewhere = find_named_profile(folder) if not path.exists() else None
    if elsewhere is not None:
        return f"profile: {read_profile_name(folder)}, in {elsewhere}"
    if not path.exists() and name == _PROFILES:
        path.write_text(_profiles(folder), encoding="utf-8")
        return f"wrote {name}, which git ignores"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    match = _WAREHOUSE.search(text)
    own = _quote_warehouse(folder.absolute())
    if match is None or match[0] == own:
        return None
    if Path(match[1]).exists():
        return f"warehouse: {match[1]}, from {name}; it is not in this folder"
    path.write_text(text[: match.start()] + own + text[match.end() :], encoding="utf-8")
    return f"warehouse: {folder.absolute() / 'warehouse'}, in {name}"


def _quote_warehouse(folder: Path) -> str:
    """Returns the warehouse's path as a Jinja string, escaped for a double-quoted YAML string."""
    text = str(folder / "warehouse").replace("\\", "\\\\").replace("'", "\\'")
    return "'" + text.replace("\\", "\\\\").replace('"', '\\"') + "'"


def project_name(folder: Path) -> str:
    """Converts a folder's name to a dbt project name of letters, digits and underscores."""
    name = re.sub(r"[^a-z0-9_]+", "_", folder.name.lower()).strip("_")
    if not name or name[0].isdigit() or name in _RESERVED_PROJECT_NAMES:
        name = (
            f"{name}_project" if name in _RESERVED_PROJECT_NAMES else f"project_{name}".rstrip("_")
        )
    return name


def _contents(folder: Path, profiles: Path, target: str) -> dict[Path, str]:
    name = project_name(folder)
    contents = {
        path: _template(template).replace(_PROJECT, name) for path, template in _TEMPLATES.items()
    }
    return {**contents, profiles: _profiles(folder, target)}


def _profiles(folder: Path, target: str = EMBEDDED) -> str:
    text = (package_folder() / "profiles" / "profiles.yml").read_text(encoding="utf-8")
    text = text.replace(_DEFAULT_TARGET, _DEFAULT_TARGET.replace(EMBEDDED, target))
    return text.replace(_RELATIVE, _quote_warehouse(folder.absolute()))


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _ignore(folder: Path) -> str:
    ignored = _template("gitignore")
    path = folder / _GITIGNORE
    if path.exists():
        return f"kept {_GITIGNORE}: add {', '.join(ignored.split())} to it"
    path.write_text(ignored, encoding="utf-8")
    return f"wrote {_GITIGNORE}"


def link(source: Path, target: Path) -> str:
    """Links a folder, or copies it if links are not supported.

    Replaces a link to another folder, or a folder at `target`.

    Returns:
        The end of a message about the result.
    """
    source = source.absolute()
    if target.is_symlink():
        if target.exists() and target.samefile(source):
            return "is installed"
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.symlink_to(source)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, PermissionError) and os.name == "posix":
            raise  # the folder is not writable, so copying would also fail
        shutil.copytree(source, target)
        return "copied"
    return "linked"


AWS = "aws"


def prepare(drivers: Sequence[str], folder: Path, report: Report) -> None:
    """Prepares Spark, the JDBC drivers, and the project in `folder` if there is one.

    Can be repeated safely, because it only creates missing files and replaces wrong ones.

    Args:
        drivers: names, such as `postgresql` or `aws`, or paths of jars.
        folder: the project's folder, in which the link to the dbt package is repaired.
        report: called with a message for each step.

    Raises:
        SpecError: if Java or Spark is missing, or if a jar is unknown or cannot be fetched or
            written.
    """
    home = find_spark()
    java = choose_java(home.line)
    wanted = [(name, _find_jar_or_driver(name, home.line)) for name in drivers]
    report(f"Spark {home.line.version}: {home.folder}")
    report(f"Java: {java.reason}")
    report(f"Iceberg: {_provide_iceberg(home, report)}")
    for name, driver in wanted:
        report(f"{name}: {_provide(driver, report)}")
    own = ",".join(map(str, list_own_jars(home, {})))
    report(f"spark.jars: {own} (for a profile whose Spark the loader does not start)")
    if uses_link(folder):
        report(link_package(folder))
        repaired = repair_profile(folder)
        if repaired:
            report(repaired)


def provide_jars(conf: Mapping[str, str], urls: Iterable[str], report: Report) -> None:
    """Fetches the Iceberg runtime and the drivers for `urls` if they are missing.

    Does not fetch jars that the profile names. If a driver cannot be fetched, no error is raised,
    because only the sources that need the driver will fail.

    Raises:
        SpecError: if the Iceberg runtime cannot be provided.
    """
    home = find_spark()
    configured = f"{conf.get('spark.jars', '')},{conf.get('spark.jars.packages', '')}"
    if lacks_iceberg(home, conf):
        report(f"Iceberg: {_provide_iceberg(home, report)}")
    present = [path.name for path in list_jars(home, conf)]
    for url in urls:
        driver = jars.driver_for_url(url)
        if driver is None or driver.jar.artifact in configured or any(map(driver.owns, present)):
            continue
        with suppress(SpecError):
            report(f"{driver.name}: {jars.provide_driver(driver, report)}")
            present.append(driver.jar.file_name)


def _provide_iceberg(home: SparkHome, report: Report) -> str:
    other = find_spark_iceberg(home)
    if other:
        return f"{other.name} is in Spark's folder"
    present = jars.find_jar(home.line.iceberg)
    jar = jars.provide_jar(home.line.iceberg, report)
    return f"{jar.name} {'is installed' if present else 'fetched'}"


def _find_jar_or_driver(name: str, line: SparkLine) -> Path | jars.Jar | Driver | None:
    """Resolves a name to a jar or a driver; None if Spark includes the driver."""
    if name.lower() in jars.BUILT_IN:
        return None
    if name.lower() == AWS:
        return line.aws
    if not name.endswith(".jar") and os.sep not in name:
        return jars.find_driver(name)
    jar = Path(os.path.expanduser(name)).absolute()
    if not jar.is_file():
        raise SpecError(f"there is no file {jar}", where="loader setup")
    if jar.suffix != ".jar":
        raise SpecError(f"{jar} is not a .jar file", where="loader setup")
    return jar


def _provide(driver: Path | jars.Jar | Driver | None, report: Report) -> str:
    if driver is None:
        return "comes with Spark"
    if isinstance(driver, jars.Jar):
        present = jars.find_jar(driver)
        jar = jars.provide_jar(driver, report)
        return f"{jar.name} {'is installed' if present else 'fetched'}"
    if isinstance(driver, Driver):
        return jars.provide_driver(driver, report)
    return jars.link_jar(driver)
