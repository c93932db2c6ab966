"""After any sequence of changes to files, the lake contains the newest row of each key.

Files are added, replaced, appended to, moved in with an older time, touched and deleted, and a run
dies before its state is stored. A row is as new as the file that it was read from.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loader.sync import protocol
from tests.sync.project import Project

BEGIN = 1_735_689_600  # 2025-01-01
ROUNDS = 4
TABLES = [f"{form}_{number}" for form in ("csv", "json") for number in range(3)]


class Death(Exception):
    """Ends a run after its batches are published."""


@dataclass
class Folder:
    """A table's files, and the rows that its syncs must have found.

    Attributes:
        rows: by key, the newest row: its version (time of the file, sync) and its value.
        clock: the newest modification time of any file so far.
    """

    path: Path
    chance: random.Random
    clock: int = BEGIN
    number: int = 0
    files: dict[str, dict[int, str]] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    rows: dict[int, tuple[tuple[int, int], str]] = field(default_factory=dict)

    def change(self) -> list[str]:
        """Makes up to three random changes; returns their names."""
        done = []
        for _ in range(self.chance.randint(0, 3)):
            events = [self.add, self.add_late, self.add_beside, self.replace, self.append]
            events += [self.touch, self.delete, self.replace_beside]
            event = self.chance.choice(events)
            done.append(event.__name__)
            event()
        return done

    def note(self, sync: int) -> None:
        """Records the rows that a sync must find: all rows of the current files."""
        for name, rows in self.files.items():
            at = (self.times[name], sync)
            for key, value in rows.items():
                if key not in self.rows or self.rows[key][0][0] < at[0]:
                    self.rows[key] = at, value

    def add(self) -> None:
        """Adds a file that is newer than all others; it may repeat keys of other files."""
        keys = [self.chance.randint(1, 12) for _ in range(self.chance.randint(1, 4))]
        self._write(self._name(), {key: self._value() for key in keys}, self._later())

    def add_late(self) -> None:
        """Adds a file whose time is older than the newest file's."""
        self.clock += 1
        self._write(self._name(), self._own_rows(), self.clock - self.chance.randint(1, 50))

    def add_beside(self) -> None:
        """Adds a file with the same time as the newest file."""
        self._write(self._name(), self._own_rows(), self.clock)

    def replace(self) -> None:
        """Replaces the values in a file without changing its size."""
        name = self._any()
        self._write(name, {key: self._value() for key in self.files[name]}, self._later())

    def replace_beside(self) -> None:
        """Adds rows to a file that has the newest time, and keeps this time."""
        name = self._any()
        if self.times[name] == self.clock:
            self._write(name, {**self.files[name], **self._own_rows()}, self.clock)

    def append(self) -> None:
        """Adds rows to a file, which gets a new time."""
        name = self._any()
        self._write(name, {**self.files[name], **self._own_rows()}, self._later())

    def touch(self) -> None:
        """Gives a file a new time."""
        name = self._any()
        self._write(name, self.files[name], self._later())

    def delete(self) -> None:
        """Deletes a file unless it is the only one; its rows stay in the lake."""
        if len(self.files) < 2:
            return
        name = self._any()
        (self.path / name).unlink()
        del self.files[name], self.times[name]

    def _any(self) -> str:
        return self.chance.choice(sorted(self.files))

    def _name(self) -> str:
        self.number += 1
        return f"{self.number}.txt"

    def _own_rows(self) -> dict[int, str]:
        """Returns rows with new keys, because files with the same time have no order."""
        self.number += 1
        return {100 * self.number + n: self._value() for n in range(self.chance.randint(1, 2))}

    def _value(self) -> str:
        return f"{self.chance.randrange(10_000):04}"

    def _later(self) -> int:
        self.clock += self.chance.randint(1, 100)
        return self.clock

    def _write(self, name: str, rows: dict[int, str], time: int) -> None:
        self.files[name], self.times[name] = dict(rows), time
        if self.path.name.startswith("csv"):
            lines = ["id,v", *(f"{key},{value}" for key, value in rows.items())]
        else:
            lines = [json.dumps({"id": key, "v": value}) for key, value in rows.items()]
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text("\n".join(lines) + "\n")
        os.utime(self.path / name, (time, time))


def test_the_newest_rows_after_any_sequence_of_files(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("FILES_SEED", random.randrange(1_000_000)))
    folders = {
        name: Folder(project.folder / "data" / name, random.Random(f"{seed} {name}"))
        for name in TABLES
    }
    types = "id int, v string"
    options = {
        name: {"format": name.partition("_")[0], "primary_key": "id", "column_types": types}
        for name in TABLES
    }
    project.add("drop", "file", TABLES, {"path": "data", "format": "csv", "table_options": options})
    events: dict[str, list[list[str]]] = {name: [] for name in TABLES}
    for folder in folders.values():
        folder.add()
    for sync in range(ROUNDS):
        for name, folder in folders.items():
            events[name].append(folder.change() if sync else ["add"])
            folder.note(sync)
        if sync == 2:
            _die_before_the_state_is_stored(project, monkeypatch)
        project.run()
        newest = " union all ".join(
            f"select '{name}', id, max_by(v, struct(_cq_generation, _file_modified_at, _cq_batch, "
            f"_cq_seq)) from raw.{name} group by id"
            for name in TABLES
        )
        found = set(project.rows(newest))
        for name, folder in folders.items():
            wanted = {(name, key, value) for key, (_, value) in folder.rows.items()}
            assert {row for row in found if row[0] == name} == wanted, (
                f"FILES_SEED={seed}, {name}, {events[name]}"
            )


def _die_before_the_state_is_stored(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "record", die)
        project.loader("run")
