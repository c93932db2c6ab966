"""The models of the documents in a spec: sources and destinations."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from loader.errors import SpecError, did_you_mean
from loader.names import explain_refusal
from loader.spec.entry_points import list_plugins
from loader.spec.options import Name, Names, Strict, unique
from loader.spec.redaction import Redactor, redact_foreign
from loader.spec.signing_keys import CREATE, parse_private_key
from loader.spec.validation import Model, OptionError, validate_options

SCHEME = "strandline://"
STATE_GROUP = "strandline.state"
_StatePath = Literal["sqlite", "postgresql", "redis"]
STATE_PATHS: tuple[str, ...] = get_args(_StatePath)
"""The built-in state backends, apart from the lake."""
MIN_KEY_BYTES = 16
"""The minimum length of `mask_key`."""


def _check_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", value):
        raise OptionError(
            f"{value!r} is not a valid name",
            "Use letters, digits, _ and -; a dot separates source and table in the state table",
        )
    return value


def _check_folder_name(value: str) -> str:
    reason = explain_refusal(value)
    if reason is not None:
        raise OptionError(reason, "Use a name that is valid for a folder, without slashes")
    return value


def _empty_if_null(value: Any) -> Any:
    return {} if value is None else value


_Options = Annotated[
    dict[str, Any], BeforeValidator(_empty_if_null, json_schema_input_type=dict[str, Any] | None)
]
FolderName = Annotated[Name, AfterValidator(_check_folder_name)]

_STATE = "_cq_state"


def _check_state_table(value: str) -> str:
    name = value.lower()
    if name.startswith("_cq_") and not name.startswith(_STATE):
        raise OptionError(
            f"{value!r} is reserved for the loader's other tables",
            f"Use {_STATE}, or a name that does not begin with _cq_",
        )
    return value


class BackendOptions(Strict):
    """The backend that stores a source's cursors.

    Attributes:
        table_name: the name of the state table.
        connection: ``@@plugins.<name>.connection``, which refers to a destination. The default is
            the destination of the tables.
    """

    table_name: Annotated[FolderName, AfterValidator(_check_state_table)] = _STATE
    connection: str | None = None


class BackendSpec(Strict):
    """CloudQuery's older option for the store of cursors.

    Attributes:
        path: the folder of the JSON files, relative to the spec's folder.
    """

    path: Name = ".cq/state"


class _Plugin(Strict):
    """The base class of sources and destinations. Its repr contains no secrets.

    Attributes:
        version, registry: accepted for compatibility with CloudQuery, but unused.
    """

    name: Annotated[Name, AfterValidator(_check_name)]
    version: str | None = None
    registry: str | None = None
    _where: str = PrivateAttr(default="")
    _redactor: Redactor = PrivateAttr(default_factory=Redactor)

    @property
    def where(self) -> str:
        return self._where

    def __repr__(self) -> str:
        return redact_foreign(super().__repr__())

    def __str__(self) -> str:
        return repr(self)


class SourceSpec(_Plugin):
    """A document of kind `source`.

    Attributes:
        name: the source's name. It contains no dots, so that ``<source>.<table>`` is unambiguous in
            the state table.
        formerly: earlier names of the source. The source continues to use the raw tables and
            cursors that were stored under these names.
        path: the connector.
        tables, skip_tables: names or wildcards.
        destinations: the name of the lake that the tables are loaded into (`path: spark`).
        schema_: the namespace of the raw tables, of the cursors, and of the ledger, which is the
            table of all syncs (`schema` in the spec). The default is the destination's namespace.
        backend_options: the store of cursors.
        backend, backend_spec: CloudQuery's older options, which store cursors in `local` JSON
            files.
        concurrency: the number of tables that are synced in parallel. The command line overrides
            it.
        mask_key: the secret key of the `hash` mask (:mod:`loader.sources.masked_source`). It also
            encrypts the stored states of connectors.
        spec: the connector's options (:meth:`options`).
    """

    path: Name
    formerly: tuple[Annotated[Name, AfterValidator(_check_name)], ...] = ()
    tables: Names
    skip_tables: tuple[Name, ...] = ()
    destinations: Names
    schema_: FolderName | None = Field(default=None, alias="schema")
    backend_options: Annotated[
        BackendOptions,
        BeforeValidator(_empty_if_null, json_schema_input_type=BackendOptions | None),
    ] = Field(default_factory=BackendOptions)
    backend: Literal["local"] | None = None
    backend_spec: BackendSpec | None = None
    concurrency: int | None = Field(default=None, ge=1)
    mask_key: SecretStr | None = None
    spec: _Options = Field(default_factory=dict)

    _unique_names = field_validator("tables", "skip_tables", "destinations", "formerly")(unique)

    @field_validator("destinations")
    @classmethod
    def _one_destination(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > 1:
            raise OptionError(
                f"a source loads into one destination, but this source has {len(value)}",
                "Keep one of them; a second source can load the same tables into another",
            )
        return value

    @field_validator("mask_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value().encode()) < MIN_KEY_BYTES:
            raise OptionError(
                f"the key has fewer than {MIN_KEY_BYTES} bytes, so its hashes could be guessed",
                "Create one with `openssl rand -hex 32`, and write the name of its variable or "
                "file here: ${STRANDLINE_MASK_KEY} or ${file:/run/secrets/mask_key}",
            )
        return value

    @field_validator(
        "backend", mode="before", json_schema_input_type=Literal["local", "none"] | None
    )
    @classmethod
    def _no_backend(cls, value: Any) -> Any:
        return None if value == "none" else value  # CloudQuery's default backend

    @model_validator(mode="after")
    def _one_backend(self) -> SourceSpec:
        if self.backend == "local" and "backend_options" in self.model_fields_set:
            raise OptionError(
                "`backend: local` and `backend_options` both set the store of cursors",
                "Keep one of them",
            )
        if self.backend_spec is not None and self.backend != "local":
            raise OptionError("`backend_spec` without `backend: local`", "Add `backend: local`")
        return self

    def options(self, model: type[Model]) -> Model:
        """Returns the connector's options. Raises a SpecError that lists all invalid keys."""
        return validate_options(model, self.spec, f"{self.where}.spec", self._redactor)

    @property
    def state_destination(self) -> str:
        """The name of the destination that stores cursors. Unused if :attr:`local_state` is set."""
        connection = self.backend_options.connection
        return connection.removeprefix(SCHEME) if connection else self.destinations[0]

    @property
    def state_table(self) -> str:
        return self.backend_options.table_name

    @property
    def local_state(self) -> str | None:
        """The folder in which `backend: local` stores JSON files; None for other backends."""
        return (self.backend_spec or BackendSpec()).path if self.backend == "local" else None

    @property
    def state_location(self) -> tuple[str, ...]:
        """The location of the cursors. Sources with the same location share a backend."""
        table = self.state_destination, self.state_table
        return (self.local_state,) if self.local_state else table


class LakeOptions(Strict):
    """The inner `spec` of a destination with `path: spark`.

    Attributes:
        profile, target: the profile in dbt's profiles.yml, and its target. The default is the
            profile's default target.
        schema_: the namespace of the raw tables (`schema` in the spec).
        profiles_dir: the folder of profiles.yml, relative to the spec's folder. The default is the
            folder that dbt uses.
        receipt_signing_key: an Ed25519 private key in PEM format. If it is set, each batch gets a
            signed receipt.
    """

    profile: Name = "strandline"
    target: Name | None = None
    schema_: FolderName = Field(default="raw", alias="schema")
    profiles_dir: Name | None = None
    receipt_signing_key: SecretStr | None = None

    @field_validator("receipt_signing_key")
    @classmethod
    def _valid_signing_key(cls, value: SecretStr | None) -> SecretStr | None:
        try:
            if value is not None:
                parse_private_key(value.get_secret_value())
        except ImportError:
            raise OptionError(
                "receipts need the package cryptography", "pip install 'strandline[receipts]'"
            ) from None
        except ValueError as error:
            raise OptionError(
                str(error),
                f"Create a key with `{CREATE}`, and write the name of its file here: "
                "${file:/run/secrets/receipts.pem}",
            ) from None
        return value


class StateStoreOptions(Strict):
    """The inner `spec` of a destination that stores only state.

    Attributes:
        connection_string: a URL. It is never shown, because it may contain a password.
    """

    connection_string: Name = Field(repr=False)


def _append_only(value: Any) -> Any:
    if value in ("overwrite", "overwrite-delete-stale"):
        stale = ""
        if value == "overwrite-delete-stale":
            stale = " and `meta: {strandline: {delete_stale: true}}`"
        raise OptionError(
            f"{value!r} is not possible: rows are only appended to raw tables",
            f"Write `append`; a model with `materialized: deduped_latest`{stale} has the "
            f"same result as {value}",
        )
    return value


def state_backends() -> dict[str, EntryPoint]:
    """Returns the installed state backends, keyed by the destination `path` that selects each."""
    return list_plugins(STATE_GROUP)


def _check_path(value: str) -> str:
    known = list(dict.fromkeys(("spark", *STATE_PATHS, *sorted(state_backends()))))
    if value not in known:
        *most, last = (repr(name) for name in known)
        raise OptionError(
            f"must be {', '.join(most)} or {last}, not {value!r}",
            did_you_mean(value, known) or "Use one of these, or install the connector's package",
        )
    return value


class DestinationSpec(_Plugin):
    """A document of kind `destination`: a lake, or a store of state.

    Attributes:
        name: the name that sources refer to in `destinations`.
        path: `spark` for a lake. For a store of state, `sqlite`, `postgresql`, `redis` or the
            backend of another package.
        write_mode: `append`.
        spec: the options of a lake (:class:`LakeOptions`), of a store of state
            (:class:`StateStoreOptions`), or of another package.
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
        """The options of a lake. Raises SpecError if this is not a lake."""
        if isinstance(self.spec, LakeOptions):
            return self.spec
        raise SpecError(
            f"{self.name} ({self.path}) can store only state, not tables",
            where=self.where,
            remedy="Use a destination with `path: spark`",
        )


class LakeDestination(DestinationSpec):
    """A destination for tables."""

    path: Literal["spark"]
    spec: Annotated[LakeOptions, BeforeValidator(_empty_if_null)] = Field(
        default_factory=LakeOptions
    )


class StateDestination(DestinationSpec):
    """A destination for state only."""

    path: _StatePath
    spec: StateStoreOptions


class PluggedDestination(DestinationSpec):
    """A destination for state only, with a backend from another package."""

    spec: _Options = Field(default_factory=dict)

    def options(self, model: type[Model]) -> Model:
        """Returns the backend's options. Raises a SpecError that lists all invalid keys."""
        return validate_options(model, self.spec, f"{self.where}.spec", self._redactor)
