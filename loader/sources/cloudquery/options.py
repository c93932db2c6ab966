"""The options of a source document with `path: cloudquery`."""

from __future__ import annotations

from pydantic import model_validator

from loader.sources.programs.options import Command, ProgramOptions
from loader.spec.options import Name
from loader.spec.validation import OptionError


class CloudQueryOptions(ProgramOptions):
    """The inner `spec` of a source with `path: cloudquery`.

    Attributes:
        command: the plugin's program, which is started with `serve`.
        connection: the address of a plugin that is running: `localhost:7777`.
        python: a Python that has `cloudquery-plugin-pb`; the loader's own by default.
        config: the plugin's own `spec`.
        deterministic_cq_id: whether `_cq_id` is made from the key, so that it stays the same.
    """

    command: Command | None = None
    connection: Name | None = None
    python: Name | None = None
    deterministic_cq_id: bool = True

    @model_validator(mode="after")
    def _one_plugin(self) -> CloudQueryOptions:
        if (self.command is None) == (self.connection is None):
            raise OptionError(
                "nothing says which plugin to read"
                if self.command is None
                else "`command` and `connection` both say which plugin to read",
                "Write `command` (a program) or `connection` (the address of one that is running)",
            )
        return self
