"""The options of a source document with `path: airbyte`."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from loader.sources.programs.options import Command, ProgramOptions
from loader.spec.options import Name
from loader.spec.validation import OptionError


class AirbyteOptions(ProgramOptions):
    """The inner `spec` of a source with `path: airbyte`.

    Attributes:
        command: the connector's command, without its verb; a path is relative to the spec.
        image: the connector's container image.
        manifest: a declarative manifest (YAML), relative to the spec. The package `airbyte-cdk`
            runs it, or `command` or `image` if that is given, too.
        catalog: a file with the connector's catalog, relative to the spec; it is asked by default.
        docker_options: further options of `docker run`.
        renewed_config: a file for what the connector renews in its configuration (tokens).
        logged_errors: the meaning of an error that the connector logs, and goes on: that its
            streams lack something (`fail`), or nothing (`warn`).
    """

    command: Command | None = None
    image: Name | None = None
    manifest: Name | None = None
    catalog: Name | None = None
    docker_options: tuple[Name, ...] = ()
    renewed_config: Name | None = None
    logged_errors: Literal["fail", "warn"] = "fail"

    @model_validator(mode="after")
    def _one_connector(self) -> AirbyteOptions:
        if self.command is not None and self.image is not None:
            raise OptionError("`command` and `image` both say what to run", "Keep one of them")
        if self.command is None and self.image is None and self.manifest is None:
            raise OptionError(
                "nothing says which connector to run",
                "Add `command` (a program), `image` (a container image) or `manifest` (YAML)",
            )
        if self.docker_options and self.image is None:
            raise OptionError("`docker_options` without `image`", "Add `image`, or remove it")
        return self
