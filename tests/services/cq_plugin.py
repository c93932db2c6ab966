"""A CloudQuery source plugin on the official SDK: the SDK's own memdb, or tables with a state.

    python cq_plugin.py memdb serve …
    python cq_plugin.py DATA.json serve …      tables `orders` (incremental) and `kinds`

`orders` sends the order in its state again, as with an inclusive cursor. In DATA, `{"fail": n}`
makes its resolver fail before it sends order n, counted from 0; `{"since": n}` makes it start at id
n instead of its state; `{"deletes": {"first": [column, value, …], "last": …}}` deletes, before
and after that, the orders whose column has one of the values.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
from cloudquery.plugin_v3 import arrow, plugin_pb2
from cloudquery.sdk import plugin, schema, serve
from cloudquery.sdk.internal.memdb import MemDB
from cloudquery.sdk.internal.servers.plugin_v3 import PluginServicer
from cloudquery.sdk.scheduler import Scheduler, TableResolver
from cloudquery.sdk.stateclient.stateclient import StateClientBuilder
from cloudquery.sdk.types import JSONType, UUIDType

EVERY = 2


class Client:
    """The states and data that the resolvers share."""

    def __init__(self, states: Any, data: dict[str, Any]) -> None:
        self.states, self.data = states, data

    def id(self) -> str:
        """Returns the client's name."""
        return "shop"


class Orders(TableResolver):
    """Sends orders, starting at the one in the state."""

    def resolve(self, client: Client, _parent: Any) -> Generator[Any, None, None]:
        """Yields orders, and flushes the state after every few."""
        low = int(client.data.get("since") or client.states.get_key("orders") or 0)
        wanted = [order for order in client.data["orders"] if order["id"] >= low]
        for number, order in enumerate(wanted):
            if number == client.data.get("fail"):
                raise RuntimeError("the shop is closed")
            yield order
            client.states.set_key("orders", str(order["id"]))
            if (number + 1) % EVERY == 0:
                client.states.flush()


class Kinds(TableResolver):
    """Sends one row with a value of each kind."""

    def resolve(self, _client: Client, _parent: Any) -> Generator[Any, None, None]:
        """Yields the row."""
        yield {
            "id": uuid.UUID(int=1),
            "data": {"a": [1, None]},
            "at": dt.datetime(2025, 1, 1, 0, 0, 0, 5, tzinfo=dt.timezone.utc),
            "day": "2025-01-02",
            "large": 2**64 - 1,
            "blob": b"\x00\x01",
        }


def tables() -> list[tuple[schema.Table, type[TableResolver]]]:
    """Returns the plugin's tables."""
    orders = schema.Table(
        name="orders",
        is_incremental=True,
        columns=[
            schema.Column(name="id", type=pa.int64(), primary_key=True, incremental_key=True),
            schema.Column(name="note", type=pa.string()),
        ],
    )
    types = {
        "id": UUIDType(),
        "data": JSONType(),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "large": pa.uint64(),
        "blob": pa.binary(),
    }
    columns = [schema.Column(name=n, type=k, primary_key=n == "id") for n, k in types.items()]
    return [(orders, Orders), (schema.Table(name="kinds", columns=columns), Kinds)]


class Shop(plugin.Plugin):
    """The plugin."""

    def __init__(self, path: Path) -> None:
        super().__init__("shop", "v1.0.0", opts=plugin.plugin.Options(team="test", kind="source"))
        self._path = path

    def set_logger(self, logger: Any) -> None:
        """Takes the SDK's logger."""
        self._logger = logger

    def init(self, spec: bytes, no_connection: bool = False) -> None:
        """Takes the spec."""
        if json.loads(spec or b"{}").get("token") == "wrong":
            raise RuntimeError("the token is wrong")

    def get_tables(self, options: Any) -> list[schema.Table]:
        """Returns the requested tables."""
        return schema.filter_dfs([t for t, _ in tables()], options.tables, options.skip_tables)

    def sync(self, options: Any) -> Generator[Any, None, None]:
        """Sends the requested tables."""
        scheduler = Scheduler(concurrency=4, queue_size=1, logger=self._logger)
        states = StateClientBuilder.build(
            backend_options=options.backend_options, checkpoints=scheduler.checkpoints
        )
        scheduler.set_post_sync_hook(states.flush)
        client = Client(states, json.loads(self._path.read_text()))
        wanted = {table.name for table in self.get_tables(options)}
        resolvers = [kind(table) for table, kind in tables() if table.name in wanted]
        yield from scheduler.sync(client, resolvers, options.deterministic_cq_id)

    def close(self) -> None:
        """Does nothing."""


class Deleting(PluginServicer):
    """Also sends deletions, which the Python SDK does not support yet."""

    def Sync(self, request: Any, context: Any) -> Generator[Any, None, None]:
        """Yields the SDK's messages between the deletions."""
        path = getattr(self._plugin, "_path", None)
        deletes = json.loads(path.read_text()).get("deletes", {}) if path else {}
        yield from deletions(*deletes.get("first", ()))
        yield from super().Sync(request, context)
        yield from deletions(*deletes.get("last", ()))


def deletions(column: str = "", *values: Any) -> Generator[Any, None, None]:
    """Yields the deletion of orders whose column has one of the values, if a column is given."""
    predicates = [
        plugin_pb2.Predicate(
            operator="EQ",
            column=column,
            record=arrow.record_to_bytes(pa.RecordBatch.from_pydict({column: [value]})),
        )
        for value in values
    ]
    if column:
        group = plugin_pb2.PredicatesGroup(grouping_type="OR", predicates=predicates)
        yield plugin_pb2.Sync.Response(
            delete_record=plugin_pb2.Sync.MessageDeleteRecord(
                table_name="orders", where_clause=[group]
            )
        )


if __name__ == "__main__":
    serve.plugin.PluginServicer = Deleting
    which = sys.argv[1]
    chosen = MemDB() if which == "memdb" else Shop(Path(which))
    serve.PluginCommand(chosen).run(sys.argv[2:])
