"""The options of an Airbyte source, and its command line: a program, an image or a manifest."""

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
_CONTAINER_FOLDER = "/strandline"


class AirbyteOptions(ProgramOptions):
    """The inner `spec` of a source with `path: airbyte`.

    Attributes:
        command: the connector's command, without the protocol's verb. A path is relative to the
            spec's folder.
        image: the connector's container image.
        manifest: the path of a declarative manifest (YAML), relative to the spec's folder. The
            program in `command` or `image` runs the manifest. By default, the `airbyte-cdk` package
            runs it.
        catalog: the path of a file that contains the connector's catalog, relative to the spec's
            folder. By default, the connector is called to list its streams.
        docker_options: additional options for `docker run`.
        renewed_config: a file in which the loader stores configuration values that the connector
            refreshes, such as tokens.
        logged_errors: what happens if the connector logs an error but continues. `fail` fails all
            streams that may lack records. `warn` only reports the error.
    """

    command: Command | None = None
    image: Name | None = None
    manifest: Name | None = None
    catalog: Name | None = None
    docker_options: tuple[Name, ...] = ()
    renewed_config: Name | None = None
    logged_errors: Literal["fail", "warn"] = "fail"

    @model_validator(mode="after")
    def _check_connector(self) -> AirbyteOptions:
        if self.command is not None and self.image is not None:
            raise OptionError("`command` and `image` are both set", "Remove one of them")
        if self.command is None and self.image is None and self.manifest is None:
            raise OptionError(
                "no connector is set",
                "Add `command` (a program), `image` (a container image) or `manifest` (YAML)",
            )
        if self.docker_options and self.image is None:
            raise OptionError(
                "`docker_options` is set without `image`", "Add `image`, or remove the option"
            )
        return self


class _Manifest(yaml.SafeLoader):
    """Loads timestamps as strings, because the connector receives the manifest as JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML declares it so
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def build_command(
    options: AirbyteOptions, folder: Path, verb: str, files: Mapping[str, Path]
) -> list[str]:
    """Returns the command line for a verb of the protocol.

    Args:
        folder: the folder that contains the files. It is mounted into the container.
        files: maps the name of an option to the path of its file.
    """
    if options.image is None:
        return [*_find_program(options), verb, *_list_arguments(files, folder, str(folder))]
    variables = [part for name in options.environment for part in ("--env", name)]
    return [
        "docker",
        "run",
        "--rm",
        "--init",
        "--name",
        f"strandline-{uuid.uuid4().hex[:12]}",
        "--volume",
        f"{folder}:{_CONTAINER_FOLDER}:ro",
        *variables,
        *options.docker_options,
        options.image,
        verb,
        *_list_arguments(files, folder, _CONTAINER_FOLDER),
    ]


def _list_arguments(files: Mapping[str, Path], folder: Path, folder_name: str) -> list[str]:
    relative = ((name, path.relative_to(folder)) for name, path in files.items())
    return [part for name, path in relative for part in (f"--{name}", f"{folder_name}/{path}")]


def _find_program(options: AirbyteOptions) -> list[str]:
    if options.command is not None:
        return list(options.command)
    installed = Path(sys.executable).with_name(RUNNER)
    program = str(installed) if installed.exists() else shutil.which(RUNNER)
    if program is None:
        raise SpecError(
            "a manifest needs the package `airbyte-cdk`, which is not installed",
            where="manifest",
            remedy="Run `pip install 'strandline[airbyte]'`; or install airbyte-cdk into another "
            f"environment, and set `command` to its bin/{RUNNER}",
        )
    return [program]


def build_config(options: AirbyteOptions, folder: Path) -> dict[str, Any]:
    """Returns the connector's configuration, including the manifest if one is set.

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
            remedy="Correct the file",
        ) from None
    if not isinstance(manifest, dict):
        raise SpecError(
            "the manifest is not a YAML mapping",
            where=str(path),
            remedy="Use a declarative manifest, which begins with `version:` and `type: "
            "DeclarativeSource`",
        )
    return {**options.config, "__injected_declarative_manifest": manifest}
