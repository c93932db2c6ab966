"""An Iceberg REST catalog on loopback whose server is PyIceberg, not Iceberg's own Java.

It has PyIceberg's rules for commits, which differ from Java's where the specification is silent.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import TypeAdapter
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate

_STATUS: dict[type[Exception], tuple[int, str]] = {
    NoSuchNamespaceError: (404, "NoSuchNamespaceException"),
    NoSuchTableError: (404, "NoSuchTableException"),
    NamespaceAlreadyExistsError: (409, "AlreadyExistsException"),
    TableAlreadyExistsError: (409, "AlreadyExistsException"),
    CommitFailedException: (409, "CommitFailedException"),
    ValueError: (400, "BadRequestException"),
}
_REQUIREMENTS: TypeAdapter[tuple[TableRequirement, ...]] = TypeAdapter(tuple[TableRequirement, ...])
_UPDATES: TypeAdapter[tuple[TableUpdate, ...]] = TypeAdapter(tuple[TableUpdate, ...])


class PyIcebergCatalog:
    """A new catalog, served until :meth:`stop`.

    Args:
        folder: the folder of the server's database and, by default, of the tables.
        properties: PyIceberg's properties of the catalog, such as its warehouse.

    Attributes:
        url: the catalog's URL.
        refusal: if set, each commit is refused with this status and text.
    """

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.refusal: tuple[int, str] | None = None
        own = {
            "uri": f"sqlite:///{folder}/catalog.sqlite",
            "warehouse": f"file://{folder}/warehouse",
        }
        self._catalog = SqlCatalog("served", **own | dict(properties or {}))
        self._turn = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length).decode()
                address, _, query = self.path.partition("?")
                path = [urllib.parse.unquote(part) for part in address.split("/")[2:]]
                if "parent=" in query:  # a request for nested namespaces, of which there are none
                    path = ["nested"]
                status, text = owner._answer(self.command, path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text.encode())

            do_GET = do_POST = do_DELETE = do_HEAD = _answer

            def log_message(self, *_: Any) -> None:
                pass

        self._handler = Handler
        self._port = 0
        self.start()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts the server: a new one, or again at the same address after :meth:`stop`."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def settings(self, catalog: str) -> dict[str, str]:
        """Returns a client's Spark settings."""
        setting = f"spark.sql.catalog.{catalog}"
        return {
            setting: "org.apache.iceberg.spark.SparkCatalog",
            f"{setting}.type": "rest",
            f"{setting}.uri": self.url,
            f"{setting}.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            f"{setting}.cache-enabled": "false",
            "spark.sql.defaultCatalog": catalog,
        }

    def stop(self) -> None:
        """Stops the server; the catalog's tables stay."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, method: str, path: list[str], body: str) -> tuple[int, str]:
        try:
            with self._turn:
                answer = self._route(method, path, json.loads(body or "{}"))
            return (204, "") if answer is None else (200, answer)
        except Exception as error:
            known = (each for kind, each in _STATUS.items() if isinstance(error, kind))
            status, name = next(known, (500, type(error).__name__))
            text = str(error)
            if isinstance(error, _Refusal):
                status, name, text = error.status, "CommitFailedException", error.text
        return status, json.dumps({"error": {"message": text, "type": name, "code": status}})

    def _route(self, method: str, path: list[str], body: dict[str, Any]) -> str | None:
        catalog = self._catalog
        if path == ["config"]:
            return json.dumps({"defaults": {}, "overrides": {}})
        if path == ["nested"]:
            return json.dumps({"namespaces": []})
        if path == ["namespaces"]:
            if method == "GET":
                return json.dumps({"namespaces": [list(n) for n in catalog.list_namespaces()]})
            catalog.create_namespace(tuple(body["namespace"]), body.get("properties") or {})
            return json.dumps({"namespace": body["namespace"], "properties": {}})
        namespace = tuple(path[1].split("\x1f"))
        if len(path) == 2:
            if not catalog.namespace_exists(namespace):
                raise NoSuchNamespaceError(f"Namespace does not exist: {path[1]}")
            if method == "DELETE":
                catalog.drop_namespace(namespace)
                return None
            return json.dumps({"namespace": list(namespace), "properties": {}})
        if len(path) == 3:
            if method == "GET":
                names = [name[-1] for name in catalog.list_tables(namespace)]
                listed = [{"namespace": list(namespace), "name": name} for name in names]
                return json.dumps({"identifiers": listed})
            return self._create(namespace, body)
        if len(path) == 5:  # a client's metrics
            return None
        return self._serve_table(method, (*namespace, path[3]), body)

    def _create(self, namespace: tuple[str, ...], body: dict[str, Any]) -> str:
        wanted = CreateTableRequest.model_validate({"location": None, "write-order": None, **body})
        arguments = (
            (*namespace, wanted.name),
            wanted.table_schema,
            wanted.location,
            wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            wanted.write_order or UNSORTED_SORT_ORDER,
            wanted.properties,
        )
        if wanted.stage_create:
            staged = self._catalog._create_staged_table(*arguments)
            return _describe(staged.metadata, None)
        table = self._catalog.create_table(*arguments)
        return _describe(table.metadata, table.metadata_location)

    def _serve_table(self, method: str, name: tuple[str, ...], body: dict[str, Any]) -> str | None:
        catalog = self._catalog
        if method == "DELETE":
            catalog.drop_table(name)
            return None
        if method in ("GET", "HEAD"):
            table = catalog.load_table(name)
            return _describe(table.metadata, table.metadata_location)
        if self.refusal is not None:
            raise _Refusal(*self.refusal)
        requirements = _REQUIREMENTS.validate_python(body["requirements"])
        updates = _UPDATES.validate_python(body["updates"])
        table: Any = SimpleNamespace(name=lambda: name)  # may not exist yet
        done = catalog.commit_table(table, requirements, updates)
        return _describe(done.metadata, done.metadata_location)


class _Refusal(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def _describe(metadata: Any, location: str | None) -> str:
    text = metadata.model_dump_json(by_alias=True, exclude_none=True)
    return json.dumps({"metadata-location": location, "metadata": json.loads(text)})
