"""Stores codegen's last output: the common ancestor of a merge, in a file beside the output.

Even without it, no edits are overwritten. But codegen could not distinguish deleted entries from
new ones, so deleted entries would come back.
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
class Manifest:
    """Codegen's last output.

    Attributes:
        data: each YAML file's data, by file.
        models: a hash of each model's text, by file.
        names: by ``<source>.<table>``, the dbt source table's name and the stem of its models.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def wrote(self, file: str, text: str) -> bool:
        """Whether a model's text is as codegen wrote it."""
        return self.models.get(file) == fingerprint(text)

    def to_json(self) -> str:
        """Returns the file's text, one line for each small item, to make its changes reviewable."""
        content = {
            "about": _ABOUT,
            "version": _VERSION,
            "names": {name: list(pair) for name, pair in sorted(self.names.items())},
            "models": dict(sorted(self.models.items())),
            "data": self.data,
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | None, where: str) -> Manifest:
        """Reads the file's text; None is a file that does not exist yet.

        Raises:
            SpecError: if it was edited, or a newer loader wrote it.
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
                remedy="Restore it from version control; or delete it: nothing of yours will "
                "be overwritten, but what you deleted comes back",
            ) from None
        raise SpecError(
            f"written by another version of the loader (format {version})",
            where=where,
            remedy="Upgrade the loader",
        )


def fingerprint(text: str) -> str:
    """Hashes a model's text; ignores line ends, because version control changes them."""
    return hashlib.sha256("\n".join(text.splitlines()).encode()).hexdigest()[:16]
