"""The options of a source document with `path: singer`."""

from __future__ import annotations

from loader.sources.programs.options import Command, ProgramOptions
from loader.spec.options import Name


class SingerOptions(ProgramOptions):
    """The inner `spec` of a source with `path: singer`.

    Attributes:
        command: the tap's command; a path is relative to the spec.
        catalog: a catalog file, relative to the spec, for a tap that cannot discover its own.
    """

    command: Command
    catalog: Name | None = None
