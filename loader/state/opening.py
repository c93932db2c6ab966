"""Opens the state backend of a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loader.errors import LoaderError, SpecError
from loader.spec.entry_points import explain_failure, load_plugin
from loader.spec.plugins import (
    STATE_PATHS,
    PluggedDestination,
    StateDestination,
    state_backends,
)
from loader.state import StateBackend, StoreLocation

if TYPE_CHECKING:
    from loader.lake.lake import Lake
    from loader.spec.plugins import DestinationSpec, SourceSpec
    from loader.spec.spec import Spec


def open_state(
    spec: Spec, source: SourceSpec, open_lake: Callable[[DestinationSpec], Lake]
) -> StateBackend:
    """Returns the state backend of a source. Does not open a connection.

    `open_lake` returns the lake of a destination with ``path: spark``. Raises a SpecError if a
    package is missing or the backend's options are wrong.
    """
    if source.local_state is not None:
        from loader.state.local import LocalState

        return LocalState(spec.folder / Path(source.local_state))
    destination = spec.destination(source.state_destination)
    if destination.path == "spark":
        state_lake = open_lake(destination)
        from loader.state.lake_table import LakeState

        return LakeState(state_lake, source.state_table)
    location = StoreLocation(source.state_table, spec.folder, f"{destination.where}.spec")
    return _open_plugin(destination, location)


def _open_plugin(destination: DestinationSpec, location: StoreLocation) -> StateBackend:
    where = f"{destination.where}.path"
    is_included = destination.path in STATE_PATHS
    entry = state_backends()[destination.path]
    try:
        kind = load_plugin(entry, StateBackend, where)  # type: ignore[type-abstract]
        if isinstance(destination, PluggedDestination):
            return kind(destination.options(kind.options_model), location)
        assert isinstance(destination, StateDestination)
        return kind(destination.spec, location)
    except Exception as error:
        # The module or the constructor imports a driver.
        missing = error.__cause__ if isinstance(error, SpecError) else error
        if is_included and isinstance(missing, ModuleNotFoundError):
            raise SpecError(
                f"state in {destination.path} needs the package {missing.name}",
                where=where,
                remedy=f"pip install 'strandline[{destination.path}]'",
            ) from None
        if is_included or isinstance(error, LoaderError):
            raise
        raise explain_failure(entry, error, where) from error
