"""What codegen wrote last: the common ancestor of a merge, in a file beside what it wrote.

Without it nothing of anybody's is overwritten either; but what was deleted cannot be told from
what was never written, and comes back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.errors import SpecError

FILE = "codegen.json"
_ABOUT = (
    "What `loader codegen` wrote last, to tell your edits from its own: commit this file, do not "
    "edit it. Without it nothing of yours is overwritten, but what you deleted comes back."
)
_VERSION = 1


@dataclass(frozen=True)
class Memory:
    """What was written.

    Attributes:
        data: what each YAML file said, by file.
        models: a hash of each model's text, by file.
        names: by ``<source>.<table>`` the name of the dbt source table and the stem of models.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def wrote(self, file: str, text: str) -> bool:
        """Whether a model's text is as it was written."""
        return self.models.get(file) == fingerprint(text)

    def to_json(self) -> str:
        """The file's text; a line for each small thing, so that people can review its changes."""
        content = {
            "about": _ABOUT,
            "version": _VERSION,
            "names": {name: list(pair) for name, pair in sorted(self.names.items())},
            "models": dict(sorted(self.models.items())),
            "data": self.data,
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | None, where: str) -> Memory:
        """Reads the file's text; None if there is none yet.

        Raises:
            SpecError: if somebody changed it, or a newer loader wrote it.
        """
        if text is None:
            return cls()
        try:
            content = json.loads(text)
            version = content["version"]
            if version == _VERSION:
                names = {name: (table, stem) for name, (table, stem) in content["names"].items()}
                return cls(dict(content["data"]), dict(content["models"]), names)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SpecError(
                "not as codegen wrote it",
                where=where,
                remedy="Take it from version control again; or delete it: nothing of yours will "
                "be overwritten, but what you deleted comes back",
            ) from None
        raise SpecError(
            f"written by another version of the loader (format {version})",
            where=where,
            remedy="Upgrade the loader",
        )


def fingerprint(text: str) -> str:
    """A hash of a model's text; line ends do not count, for version control changes them."""
    return hashlib.sha256("\n".join(text.splitlines()).encode()).hexdigest()[:16]
