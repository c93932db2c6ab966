"""The loader's own tables: an error names the one that is damaged, not the one being synced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from loader.corruption import BACK
from loader.errors import DamagedError

if TYPE_CHECKING:
    from loader.lake.tables import Tables

PREFIX = "_cq_"
"""No raw table's name begins so."""

STATES = "_cq_plugin_state"
"""The table where `loader serve` keeps the state of plugins, append-only."""


class InLake(Protocol):
    """Something that reads and writes one of the loader's own tables."""

    @property
    def lake(self) -> Tables:
        """The namespace of the table."""


Given = ParamSpec("Given")
Owner = TypeVar("Owner", bound=InLake)
Result = TypeVar("Result")


def describe_remedy(stopped: str, table: str) -> str:
    """Returns the remedy for a damaged table of the loader's own.

    Args:
        stopped: the features that do not work until then.
    """
    if not table.startswith(PREFIX):  # it may be any table: nothing but people may move it
        return f"{stopped} are stopped until it is removed and created again. {BACK}"
    rebuilt = "until `loader state rebuild` (without --select) has created it again"
    return f"{stopped} are stopped {rebuilt}. {BACK}"


@contextmanager
def name_damage(lake: Tables, table: str, remedy: str) -> Iterator[None]:
    """Makes damage that is found meanwhile an error of this table.

    Raises:
        DamagedError: the table is damaged.
        TableError: the warehouse was copied or moved.
    """
    from py4j.protocol import Py4JError  # here, as `status` needs no Spark
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as problem:
        from loader.spark.failures import clear

        where = f"table {lake.schema}.{table}"
        found = clear(problem, where)
        if not isinstance(found, DamagedError):
            raise
        with suppress(Py4JError, PySparkException):
            lake.fresh(table)  # says so if all of the warehouse was moved: then nothing is damaged
        raise DamagedError(found.what, where=where, remedy=remedy) from problem


def naming(
    table: str, remedy: str
) -> Callable[[Callable[Concatenate[Owner, Given], Result]], Callable[..., Result]]:
    """Decorates a method: damage that it finds is this table's error; see :func:`name_damage`."""

    def decorated(
        method: Callable[Concatenate[Owner, Given], Result],
    ) -> Callable[Concatenate[Owner, Given], Result]:
        @wraps(method)
        def inner(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
            with name_damage(self.lake, table, remedy):
                return method(self, *args, **kwargs)

        return inner

    return decorated
