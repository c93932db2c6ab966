"""The two kinds of document in a spec: sources and destinations."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from loader.error_report import did_you_mean
from loader.errors import SpecError
from loader.names import explain_refusal
from loader.spec.options import Name, Names, Strict, unique
from loader.spec.redaction import Redactor, redact_foreign
from loader.spec.validation import Model, OptionError, validate_options

SCHEME = "strandline://"
STATE_GROUP = "strandline.state"
_PATHS = ("spark", "sqlite", "postgresql", "redis")


def _check_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", value):
        raise OptionError(
            f"{value!r} cannot be a name",
            "Use letters, digits, _ and -; a dot would split the keys of the state table",
        )
    return value


def _folder_name(value: str) -> str:
    wrong = explain_refusal(value)
    if wrong is not None:
        raise OptionError(wrong, "Use a name that a folder can have, without slashes")
    return value


FolderName = Annotated[Name, AfterValidator(_folder_name)]

_STATE = "_cq_state"


def _state_name(value: str) -> str:
    name = value.lower()
    if name.startswith("_cq_") and not name.startswith(_STATE):
        raise OptionError(
            f"{value!r} is, or may become, another of the loader's own tables",
            f"Use {_STATE}, or a name that does not begin with _cq_",
        )
    return value


class BackendOptions(Strict):
    """The backend that stores a source's cursors.

    Attributes:
        table_name: the state table.
        connection: ``@@plugins.<name>.connection`` of a destination; default: the tables'.
    """

    table_name: Annotated[FolderName, AfterValidator(_state_name)] = _STATE
    connection: str | None = None


class BackendSpec(Strict):
    """CloudQuery's older local backend: JSON files in the folder `path`."""

    path: Name = ".cq/state"


class _Plugin(Strict):
    """The base of sources and destinations, with a repr without secrets."""

    name: Annotated[Name, AfterValidator(_check_name)]
    version: str | None = None
    registry: str | None = None
    _where: str = PrivateAttr(default="")
    _redactor: Redactor = PrivateAttr(default_factory=Redactor)

    @property
    def where(self) -> str:
        """The file, the document and its `spec`, for errors."""
        return self._where

    def __repr__(self) -> str:
        return redact_foreign(super().__repr__())

    def __str__(self) -> str:
        return repr(self)


class SourceSpec(_Plugin):
    """A document of kind `source`.

    Attributes:
        name: without dots, so that ``<source>.<table>`` is unambiguous in the state table.
        formerly: names that the source had before; it keeps their raw tables and cursors.
        path: the connector.
        version, registry: accepted for CloudQuery's users; unused.
        tables, skip_tables: names or wildcards.
        destinations: the name of the destination that holds the tables (`path: spark`).
        schema_: the namespace of its raw tables, ledger and cursors; `schema` in the spec; the
            destination's by default.
        backend_options: where cursors live.
        backend, backend_spec: the older way to set that: `local` JSON files.
        concurrency: how many tables are synced at once; the command line overrides it.
        spec: the connector's own options, validated by :meth:`options`.
    """

    path: Name
    formerly: tuple[Annotated[Name, AfterValidator(_check_name)], ...] = ()
    tables: Names
    skip_tables: tuple[Name, ...] = ()
    destinations: Names
    schema_: FolderName | None = Field(default=None, alias="schema")
    backend_options: BackendOptions = Field(default_factory=BackendOptions)
    backend: Literal["local"] | None = None
    backend_spec: BackendSpec | None = None
    concurrency: int | None = Field(default=None, ge=1)
    spec: dict[str, Any] = Field(default_factory=dict)

    _unique_names = field_validator("tables", "skip_tables", "destinations", "formerly")(unique)

    @field_validator("destinations")
    @classmethod
    def _one_destination(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > 1:
            raise OptionError(
                f"a source loads into one destination, and this one names {len(value)}",
                "Keep one of them; a second source can load the same tables into another",
            )
        return value

    @field_validator("spec", "backend_options", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("backend", mode="before")
    @classmethod
    def _no_backend(cls, value: Any) -> Any:
        return None if value == "none" else value  # CloudQuery's word for the default

    @model_validator(mode="after")
    def _one_backend(self) -> SourceSpec:
        if self.backend == "local" and "backend_options" in self.model_fields_set:
            raise OptionError(
                "`backend: local` and `backend_options` both say where cursors live",
                "Keep one of them",
            )
        if self.backend_spec is not None and self.backend != "local":
            raise OptionError("`backend_spec` without `backend: local`", "Add `backend: local`")
        return self

    def options(self, model: type[Model]) -> Model:
        """Returns the connector's own options; raises SpecError that names every wrong key."""
        return validate_options(model, self.spec, f"{self.where}.spec", self._redactor)

    @property
    def state_destination(self) -> str:
        """The name of the destination where cursors live; see :attr:`local_state` first."""
        connection = self.backend_options.connection
        return connection.removeprefix(SCHEME) if connection else self.destinations[0]

    @property
    def state_table(self) -> str:
        """The name of the state table."""
        return self.backend_options.table_name

    @property
    def local_state(self) -> str | None:
        """The folder of the JSON files of `backend: local`; None if state is in a table."""
        return (self.backend_spec or BackendSpec()).path if self.backend == "local" else None

    @property
    def state_place(self) -> tuple[str, ...]:
        """The place that stores cursors: sources with equal places share one backend."""
        table = self.state_destination, self.state_table
        return (self.local_state,) if self.local_state else table


class LakeOptions(Strict):
    """The inner `spec` of a destination with `path: spark`.

    Attributes:
        profile, target: those of dbt's profiles.yml; default: the profile's own target.
        schema_: the namespace of the raw tables; `schema` in the spec.
        profiles_dir: the folder of profiles.yml, relative to the spec's; if absent, searched for.
    """

    profile: Name = "strandline"
    target: Name | None = None
    schema_: FolderName = Field(default="raw", alias="schema")
    profiles_dir: Name | None = None


class StateStoreOptions(Strict):
    """The inner `spec` of a destination that holds state only.

    Attributes:
        connection_string: a URL; may carry a password, so it is never shown.
    """

    connection_string: Name = Field(repr=False)


def _append_only(value: Any) -> Any:
    if value in ("overwrite", "overwrite-delete-stale"):
        stale = " and `delete_stale: true`" if value == "overwrite-delete-stale" else ""
        raise OptionError(
            f"{value!r} is not for raw tables: they only ever append",
            f"Write `append`; a snapshot model with `materialized: deduped_latest`{stale} gives "
            f"what {value} gives",
        )
    return value


def state_backends() -> dict[str, EntryPoint]:
    """Returns the state backends that installed packages provide, by their destination's `path`."""
    return {entry.name: entry for entry in entry_points(group=STATE_GROUP)}


def _check_path(value: str) -> str:
    known = list(dict.fromkeys((*_PATHS, *sorted(state_backends()))))
    if value not in known:
        *most, last = (repr(name) for name in known)
        raise OptionError(
            f"must be {', '.join(most)} or {last}, not {value!r}",
            did_you_mean(value, known) or "Write one of these, or install the package that has it",
        )
    return value


class DestinationSpec(_Plugin):
    """A document of kind `destination`: a lake, or a store for state only.

    Attributes:
        name: its name in the `destinations` of sources.
        path: `spark` for lakes; `sqlite`, `postgresql`, `redis`, or one that another package
            provides, for state.
        write_mode: `append`.
        spec: :class:`LakeOptions` or :class:`StateStoreOptions`; another package's as they are.
    """

    path: Annotated[Name, AfterValidator(_check_path)]
    write_mode: Annotated[Literal["append"], BeforeValidator(_append_only)] = "append"
    spec: LakeOptions | StateStoreOptions | dict[str, Any] = Field(default_factory=LakeOptions)

    @property
    def connection(self) -> str:
        """The value of ``@@plugins.<name>.connection``."""
        return f"{SCHEME}{self.name}"

    @property
    def lake(self) -> LakeOptions:
        """The options of a lake; raises SpecError if this holds state only."""
        if isinstance(self.spec, LakeOptions):
            return self.spec
        raise SpecError(
            f"{self.name} ({self.path}) holds state only, no tables",
            where=self.where,
            remedy="Name a destination with `path: spark`",
        )


class LakeDestination(DestinationSpec):
    """A destination that holds tables."""

    path: Literal["spark"]
    spec: LakeOptions = Field(default_factory=LakeOptions)

    @field_validator("spec", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value


class StateDestination(DestinationSpec):
    """A destination that holds state only."""

    path: Literal["sqlite", "postgresql", "redis"]
    spec: StateStoreOptions


class PluggedDestination(DestinationSpec):
    """A destination that holds state only, in a backend of another package."""

    spec: dict[str, Any] = Field(default_factory=dict)

    @field_validator("spec", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value

    def options(self, model: type[Model]) -> Model:
        """Returns the backend's own options; raises SpecError that names every wrong key."""
        return validate_options(model, self.spec, f"{self.where}.spec", self._redactor)
