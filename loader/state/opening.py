"""Opens the backend that a source's cursors live in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loader.errors import SpecError
from loader.spec.plugins import PluggedDestination, StateDestination, state_backends
from loader.state import StateBackend, StoreLocation

if TYPE_CHECKING:
    from loader.lake.lake import Lake
    from loader.spec.plugins import DestinationSpec, SourceSpec
    from loader.spec.spec import Spec

OWN = ("sqlite", "postgresql", "redis")


def open_state(
    spec: Spec, source: SourceSpec, lake: Callable[[DestinationSpec], Lake]
) -> StateBackend:
    """Returns the backend of a source; connects to nothing yet.

    Args:
        lake: makes the lake of a destination with ``path: spark``.

    Raises:
        SpecError: if a package is missing, or the backend's options are wrong.
    """
    if source.local_state is not None:
        from loader.state.local import LocalState

        return LocalState(spec.folder / Path(source.local_state))
    kept_in = spec.destination(source.state_destination)
    if kept_in.path == "spark":
        opened = lake(kept_in)
        from loader.state.lake_table import LakeState

        return LakeState(opened, source.state_table)
    location = StoreLocation(source.state_table, spec.folder, f"{kept_in.where}.spec")
    return _open_plugin(kept_in, location)


def _open_plugin(kept_in: DestinationSpec, location: StoreLocation) -> StateBackend:
    try:
        kind: type[StateBackend] = state_backends()[kept_in.path].load()
        if isinstance(kept_in, PluggedDestination):
            return kind(kept_in.options(kind.options_model), location)
        assert isinstance(kept_in, StateDestination)
        return kind(kept_in.spec, location)
    except ModuleNotFoundError as missing:
        package = f"strandline[{kept_in.path}]" if kept_in.path in OWN else missing.name
        raise SpecError(
            f"state in {kept_in.path} needs the package {missing.name}",
            where=f"{kept_in.where}.path",
            remedy=f"pip install '{package}'",
        ) from None
