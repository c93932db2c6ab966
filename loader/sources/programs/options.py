"""The options that all programs have."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from loader.duration import seconds_of
from loader.spec.options import Name, Strict, TableOptions
from loader.spec.validation import OptionError


def _words(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise OptionError(f"it is not a command: {error}", "Write it as a list") from None
    return value


def _seconds(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(seconds_of(value.strip(), "a time", "write '30 minutes' or '2h'"))
        except ValueError as error:
            raise OptionError(str(error), "Correct it or remove it") from None
    return value


Command = Annotated[tuple[Name, ...], BeforeValidator(_words), Field(min_length=1)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]


class ProgramTableOptions(TableOptions):
    """A table's options, beyond the common ones.

    Attributes:
        skip_columns: names or wildcards of fields that are left out.
    """

    skip_columns: tuple[Name, ...] = ()

    @field_validator("skip_columns", mode="before")
    @classmethod
    def _single(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class ProgramOptions(Strict):
    """The part of the inner `spec` that all programs share.

    Attributes:
        config: the connector's own configuration, as its documentation says.
        environment: variables for the program, which sees little of the loader's own.
        timeout: how long it may be silent.
        batch_rows: from how many rows on a state ends a batch.
        batch_time: after how long a state ends a batch.
        message_limit: the most bytes of one message.
        spool: the folder where records wait to be appended; the system's for temporary files by
            default. On a cluster, one that all executors can read.
    """

    config: dict[str, Any] = Field(default_factory=dict)
    environment: dict[Name, str] = Field(default_factory=dict)
    timeout: Seconds = 3600.0
    batch_rows: int = Field(default=250_000, ge=1)
    batch_time: Seconds = 600.0
    message_limit: int = Field(default=64 << 20, ge=1024)
    spool: Name | None = None
    table_options: dict[str, ProgramTableOptions] = Field(default_factory=dict)

    @field_validator("config", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value
