"""Reads the dbt project that codegen writes to, and writes all generated files or none."""

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
        tables: maps (source, table) to the file that declares the source table.
        models: maps the name of a model to its file.
        snapshots: maps (source, table) to the file of the `deduped_latest` model that reads this
            table.
    """

    tables: Mapping[tuple[str, str], str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    snapshots: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class DbtProject:
    """A dbt project, and the folder that codegen writes to.

    Attributes:
        root: the project's folder; None if the output folder is not in a project.
        output: the absolute path of the output folder.
        raw_schema: the value of the `strandline__raw_schema` variable.
    """

    root: Path | None
    output: Path
    model_paths: tuple[Path, ...] = ()
    raw_schema: str = "raw"

    @classmethod
    def find(cls, spec_folder: Path, output: Path | None) -> DbtProject:
        """Finds the project that contains `output`, or by default the project next to the spec.

        The default output folder is the one that contains `codegen.json`, because users may have
        moved it. If there is none, it is `strandline` in the project's first model folder. Raises a
        SpecError if there is no project, or its file cannot be read.
        """
        if output is not None:
            output = Path(os.path.abspath(output))
            root = next((p for p in (output, *output.parents) if (p / _PROJECT).is_file()), None)
            return cls(None, output) if root is None else cls._read(root, output)
        if not (spec_folder / _PROJECT).is_file():
            raise SpecError(
                "there is no dbt project next to the spec",
                where=str(spec_folder),
                remedy="Set a folder of your project's models with --output; `loader init` "
                "creates a project in an empty folder",
            )
        return cls._read(spec_folder, None)

    @classmethod
    def _read(cls, root: Path, output: Path | None) -> DbtProject:
        where = root / _PROJECT
        try:
            data = yaml.safe_load(where.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            mark = getattr(error, "problem_mark", None)
            raise SpecError(
                "not valid YAML",
                where=f"{where}:{mark.line + 1}" if mark else str(where),
                remedy="Correct it: `dbt parse` shows the error",
            ) from None
        data = data if isinstance(data, dict) else {}
        names = data.get("model-paths")
        names = list(map(str, names)) if isinstance(names, list) and names else ["models"]
        paths = tuple(root / name for name in names)
        if output is None:
            folders = sorted({file.parent for path in paths for file in path.rglob(FILE)})
            output = folders[0] if folders else paths[0] / _FOLDER
        return cls(root, output, paths, _raw_schema(data))

    def elsewhere(self) -> Elsewhere:
        """Reads the declarations of the project outside the output folder."""
        tables: dict[tuple[str, str], str] = {}
        models: dict[str, str] = {}
        snapshots: dict[tuple[str, str], str] = {}
        for file in self._list_other_files():
            path = self.relative_path(file)
            if file.suffix in (".yml", ".yaml"):
                tables.update(dict.fromkeys(_list_declared_tables(file), path))
                continue
            models[file.stem] = path
            text = _read_or_empty(file)
            if _SNAPSHOT.search(text):
                snapshots.update(dict.fromkeys(_SOURCE.findall(text), path))
        return Elsewhere(tables, models, snapshots)

    def relative_path(self, file: Path) -> str:
        try:
            return file.relative_to(self.root or self.output.parent).as_posix()
        except ValueError:
            return str(file)

    def _list_other_files(self) -> Iterator[Path]:
        properties = {self.output / "sources.yml", self.output / "models.yml"}
        for file in sorted(file for path in self.model_paths for file in path.rglob("*")):
            model = file.suffix in (".sql", ".py") and file.parent != self.output
            if model or (file.suffix in (".yml", ".yaml") and file not in properties):
                yield file


def _list_declared_tables(file: Path) -> list[tuple[str, str]]:
    """Returns the source tables that a properties file declares; [] if it is not valid YAML."""
    text = _read_or_empty(file)
    if "sources" not in text:
        return []
    try:
        data = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return []
    return list_source_tables(data)


def list_source_tables(data: Any) -> list[tuple[str, str]]:
    """Returns the source tables in the data of a properties file."""
    return [
        (str(source.get("name")), str(table.get("name")))
        for source in _entries(data, "sources")
        for table in _entries(source, "tables")
    ]


def _entries(data: Any, key: str) -> list[dict[str, Any]]:
    """Returns the mappings in the list under `key`. Ignores other items."""
    listed = data.get(key) if isinstance(data, dict) else None
    return (
        [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )


def _raw_schema(data: Mapping[str, Any]) -> str:
    """Returns `strandline__raw_schema` from the most specific scope that sets it, as dbt does."""
    variables = data.get("vars")
    scopes = [variables] if isinstance(variables, dict) else []
    for name in (data.get("name"), "strandline"):
        if scopes and isinstance(scopes[0].get(name), dict):
            scopes.append(scopes[0][name])
    for scope in reversed(scopes):
        if "strandline__raw_schema" in scope:
            return str(scope["strandline__raw_schema"])
    return "raw"


def _read_or_empty(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError):
        return ""


def read(path: Path) -> str | None:
    """Reads a file without changing its line breaks. Returns None if the file does not exist."""
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

    First writes temporary files next to the files, to detect a full disk or a missing permission.
    Then renames them. If a rename fails, undoes the earlier renames, and raises a SpecError.
    """
    texts = {path.resolve(): text for path, text in files.items()}
    before = {path: read(path) for path in texts}
    done: list[Path] = []
    path = Path()
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_durably(_temporary(path), text)
            if before[path] is not None:
                shutil.copymode(path, _temporary(path))
        for path in texts:
            os.replace(_temporary(path), path)
            done.append(path)
    except OSError as error:
        for path_done in done:
            _restore(path_done, before[path_done])
        problem = f"cannot be written: {error.strerror or error}; no file was changed"
        raise _refusal(path, problem, "Make the folder writable") from None
    finally:
        for path in texts:
            with suppress(OSError):
                _temporary(path).unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.codegen")


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _restore(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    else:
        _write_durably(path, text)


def _refusal(path: Path, what: str, remedy: str) -> SpecError:
    return SpecError(what, where=str(path), remedy=remedy)
