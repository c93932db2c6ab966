"""Reads the dbt project that codegen writes into, and writes its files: all of them, or none."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loader.codegen.files import FILE
from loader.errors import SpecError

_PROJECT = "dbt_project.yml"
_FOLDER = "strandline"
_SNAPSHOT = re.compile(r"materialized\s*=\s*['\"]deduped_latest['\"]")
_SOURCE = re.compile(r"source\(\s*['\"]([^'\"]+)['\"]\s*,\s*['\"]([^'\"]+)['\"]\s*\)")


@dataclass(frozen=True)
class Elsewhere:
    """A project's declarations outside the output folder.

    Attributes:
        tables: files that declare a source table, by (source, table).
        models: files of models, by name.
        snapshots: files of `deduped_latest` models, by the (source, table) that they read.
    """

    tables: Mapping[tuple[str, str], str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    snapshots: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class DbtProject:
    """A project, and the folder in it that codegen writes.

    Attributes:
        root: the project's folder; None if the output is in no project.
        output: the folder to write, absolute.
        raw_schema: the value of the variable `strandline__raw_schema`.
    """

    root: Path | None
    output: Path
    model_paths: tuple[Path, ...] = ()
    raw_schema: str = "raw"

    @classmethod
    def find(cls, spec_folder: Path, output: Path | None) -> DbtProject:
        """Finds the project beside the spec, or the one that `output` is in.

        The default output is the folder with a `codegen.json`, even if it was moved, else
        `strandline` in the first of the project's model folders.

        Raises:
            SpecError: if there is no project, or it cannot be read.
        """
        if output is not None:
            output = Path(os.path.abspath(output))
            root = next((p for p in (output, *output.parents) if (p / _PROJECT).is_file()), None)
            return cls(None, output) if root is None else cls._read(root, output)
        if not (spec_folder / _PROJECT).is_file():
            raise SpecError(
                "there is no dbt project beside the spec",
                where=str(spec_folder),
                remedy="Name a folder of your project's models with --output; `loader init` "
                "starts a project in an empty folder",
            )
        return cls._read(spec_folder, None)

    @classmethod
    def _read(cls, root: Path, output: Path | None) -> DbtProject:
        where = root / _PROJECT
        try:
            said = yaml.safe_load(where.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            mark = getattr(error, "problem_mark", None)
            raise SpecError(
                "not YAML that can be read",
                where=f"{where}:{mark.line + 1}" if mark else str(where),
                remedy="Correct it: `dbt parse` shows what is wrong",
            ) from None
        said = said if isinstance(said, dict) else {}
        given = said.get("model-paths")
        names = [str(name) for name in given] if isinstance(given, list) and given else ["models"]
        paths = tuple(root / name for name in names)
        if output is None:
            known = sorted({found.parent for path in paths for found in path.rglob(FILE)})
            output = known[0] if known else paths[0] / _FOLDER
        return cls(root, output, paths, _raw_schema(said))

    def elsewhere(self) -> Elsewhere:
        """Reads what the project declares outside the output folder."""
        tables: dict[tuple[str, str], str] = {}
        models: dict[str, str] = {}
        snapshots: dict[tuple[str, str], str] = {}
        for file in self._others():
            shown = self.relative_path(file)
            if file.suffix in (".yml", ".yaml"):
                tables.update(dict.fromkeys(_list_declared_tables(file), shown))
                continue
            models[file.stem] = shown
            text = _text(file)
            if _SNAPSHOT.search(text):
                snapshots.update(dict.fromkeys(_SOURCE.findall(text), shown))
        return Elsewhere(tables, models, snapshots)

    def relative_path(self, file: Path) -> str:
        """Returns a file's path as messages show it: relative to the project."""
        try:
            return file.relative_to(self.root or self.output.parent).as_posix()
        except ValueError:
            return str(file)

    def _others(self) -> Iterator[Path]:
        properties = {self.output / "sources.yml", self.output / "models.yml"}
        for file in sorted(file for path in self.model_paths for file in path.rglob("*")):
            model = file.suffix in (".sql", ".py") and file.parent != self.output
            if model or (file.suffix in (".yml", ".yaml") and file not in properties):
                yield file


def _list_declared_tables(file: Path) -> list[tuple[str, str]]:
    """Returns a properties file's source tables; none if dbt cannot read the file either."""
    text = _text(file)
    if "sources" not in text:
        return []
    try:
        said = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return []
    return [
        (str(source.get("name")), str(table.get("name")))
        for source in entries(said, "sources")
        for table in entries(source, "tables")
    ]


def entries(said: Any, key: str) -> list[dict[str, Any]]:
    """Returns the mappings in a list under a key; ignores anything else there."""
    listed = said.get(key) if isinstance(said, dict) else None
    return (
        [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )


def _raw_schema(said: Mapping[str, Any]) -> str:
    """Returns the variable as dbt finds it: the package's or the project's, else the global one."""
    given = said.get("vars")
    scopes = [given] if isinstance(given, dict) else []
    for name in (said.get("name"), "strandline"):
        if scopes and isinstance(scopes[0].get(name), dict):
            scopes.append(scopes[0][name])
    for scope in reversed(scopes):
        if "strandline__raw_schema" in scope:
            return str(scope["strandline__raw_schema"])
    return "raw"


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError):
        return ""


def read(path: Path) -> str | None:
    """Reads a file's text with its line ends; None if there is no such file.

    Raises:
        SpecError: if it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise _refusal(path, "not UTF-8 text", "Save it as UTF-8") from None
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}", "Make it readable") from None


def write_all(files: Mapping[Path, str]) -> None:
    """Writes new and existing files, and creates their folders.

    First writes all of them under temporary names beside their places, where a full disk or a
    missing permission shows, then renames them. If a rename fails, undoes those before it.

    Raises:
        SpecError: if a file cannot be written; then all are as they were.
    """
    places = {path.resolve(): text for path, text in files.items()}
    before = {path: read(path) for path in places}
    done: list[Path] = []
    path = Path()
    try:
        for path, text in places.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(_beside(path), text)
            if before[path] is not None:
                shutil.copymode(path, _beside(path))
        for path in places:
            os.replace(_beside(path), path)
            done.append(path)
    except OSError as error:
        for path_done in done:
            _restore(path_done, before[path_done])
        problem = f"cannot be written: {error.strerror or error}; no file was changed"
        raise _refusal(path, problem, "Make the folder writable") from None
    finally:
        for path in places:
            with suppress(OSError):
                _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.codegen")


def _put(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _restore(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    else:
        _put(path, text)


def _refusal(path: Path, what: str, remedy: str) -> SpecError:
    return SpecError(what, where=str(path), remedy=remedy)
