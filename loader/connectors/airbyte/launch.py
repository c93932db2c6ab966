"""The options of a connector, and its command line: a program, a container image or a manifest."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import model_validator

from loader.connectors.subprocess.source import Command, ProgramOptions
from loader.errors import SpecError
from loader.spec.options import Name
from loader.spec.validation import OptionError

RUNNER = "source-declarative-manifest"
"""The command of `airbyte-cdk` that runs a manifest."""
_INSIDE = "/strandline"


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


class _Manifest(yaml.SafeLoader):
    """Leaves times as they are written: JSON, in which a connector gets its manifest, has none."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML declares it
        first: [(tag, form) for tag, form in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def build_command(
    options: AirbyteOptions, folder: Path, verb: str, files: Mapping[str, Path]
) -> list[str]:
    """Returns the command line for a verb of the protocol.

    Args:
        folder: holds the files, and nothing else that a container may not see.
        files: by the option that they are given with.
    """
    if options.image is None:
        return [*_program(options), verb, *_list_arguments(files, folder, str(folder))]
    variables = [part for name in options.environment for part in ("--env", name)]
    return [
        "docker",
        "run",
        "--rm",
        "--init",
        "--name",
        f"strandline-{uuid.uuid4().hex[:12]}",
        "--volume",
        f"{folder}:{_INSIDE}:ro",
        *variables,
        *options.docker_options,
        options.image,
        verb,
        *_list_arguments(files, folder, _INSIDE),
    ]


def _list_arguments(files: Mapping[str, Path], folder: Path, seen_as: str) -> list[str]:
    named = ((name, path.relative_to(folder)) for name, path in files.items())
    return [part for name, path in named for part in (f"--{name}", f"{seen_as}/{path}")]


def _program(options: AirbyteOptions) -> list[str]:
    if options.command is not None:
        return list(options.command)
    beside = Path(sys.executable).with_name(RUNNER)
    found = str(beside) if beside.exists() else shutil.which(RUNNER)
    if found is None:
        raise SpecError(
            "a manifest needs the package `airbyte-cdk`, which is not installed",
            where="manifest",
            remedy="Run `pip install 'strandline[airbyte]'`; or install airbyte-cdk into an "
            f"environment of its own, and set `command` to its bin/{RUNNER}",
        )
    return [found]


def build_config(options: AirbyteOptions, folder: Path) -> dict[str, Any]:
    """Returns the connector's configuration, with its manifest.

    Args:
        folder: of the spec.

    Raises:
        SpecError: if the manifest cannot be read.
    """
    if options.manifest is None:
        return options.config
    path = folder / options.manifest
    try:
        manifest = yaml.load(path.read_text(encoding="utf-8"), _Manifest)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"the manifest cannot be read: {error}",
            where=str(path),
            remedy="Correct the path; it is relative to the spec's folder",
        ) from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        raise SpecError(
            f"the manifest is not YAML: {getattr(error, 'problem', error)}",
            where=f"{path}, line {where.line + 1}" if where else str(path),
            remedy="Correct it there",
        ) from None
    if not isinstance(manifest, dict):
        raise SpecError(
            "the manifest has no keys and values",
            where=str(path),
            remedy="Name a declarative manifest, which begins with `version:` and `type: "
            "DeclarativeSource`",
        )
    return {**options.config, "__injected_declarative_manifest": manifest}
