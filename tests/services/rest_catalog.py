"""An Iceberg REST catalog on loopback: Python's HTTP server over Iceberg's reference handlers.

Iceberg ships the handlers of a REST server (``CatalogHandlers``) and a catalog in memory; this
module only adds the routes. Clients run in the same JVM and use real HTTP.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_STATUS = {
    "NoSuchNamespaceException": 404,
    "NoSuchTableException": 404,
    "AlreadyExistsException": 409,
    "CommitFailedException": 409,
    "ValidationException": 400,
    "IllegalArgumentException": 400,
}


class RestCatalog:
    """A new catalog; gone after :meth:`close`."""

    def __init__(self, spark: SparkSession, warehouse: Path) -> None:
        jvm: Any = spark._jvm
        self.jvm = jvm
        self.warehouse = warehouse
        self._away = False
        self.handlers = jvm.org.apache.iceberg.rest.CatalogHandlers
        self.catalog = jvm.org.apache.iceberg.inmemory.InMemoryCatalog()
        properties = jvm.java.util.HashMap()
        properties.put("warehouse", f"file:{warehouse}")
        self.catalog.initialize("served", properties)
        jackson = jvm.org.apache.iceberg.shaded.com.fasterxml.jackson
        self.mapper = jackson.databind.ObjectMapper()
        field = jackson.annotation.PropertyAccessor.FIELD
        self.mapper.setVisibility(field, jackson.annotation.JsonAutoDetect.Visibility.ANY)
        kebab = jackson.databind.PropertyNamingStrategies.KEBAB_CASE
        self.mapper.setPropertyNamingStrategy(kebab)
        jvm.org.apache.iceberg.rest.RESTSerializers.registerAll(self.mapper)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length).decode()
                path = [urllib.parse.unquote(p) for p in self.path.split("?")[0].split("/")[2:]]
                status, text = owner.answer(self.command, path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text.encode())

            do_GET = do_POST = do_DELETE = do_HEAD = _answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def settings(self, catalog: str) -> dict[str, str]:
        """Returns a client's Spark settings."""
        setting = f"spark.sql.catalog.{catalog}"
        return {
            setting: "org.apache.iceberg.spark.SparkCatalog",
            f"{setting}.type": "rest",
            f"{setting}.uri": f"http://127.0.0.1:{self._server.server_port}",
            f"{setting}.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            f"{setting}.cache-enabled": "false",
            "spark.sql.defaultCatalog": catalog,
        }

    def close(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Answers each request with an error, like a catalog that is being restarted."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    def answer(self, method: str, path: list[str], body: str) -> tuple[int, str]:
        """Answers a request: status and JSON text."""
        if self._away:
            reported = {"message": "unavailable", "type": "ServiceFailure", "code": 503}
            return 503, json.dumps({"error": reported})
        try:
            answer = self._route(method, path, body)
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getSimpleName()
            status = _STATUS.get(kind, 500)
            message = str(error.java_exception.getMessage())
            return status, json.dumps({"error": {"message": message, "type": kind, "code": status}})
        return (204, "") if answer is None else (200, answer)

    def _route(self, method: str, path: list[str], body: str) -> str | None:
        handlers, catalog = self.handlers, self.catalog
        requests = "org.apache.iceberg.rest.requests"
        root = self.jvm.org.apache.iceberg.catalog.Namespace.empty()
        answer: Any = None
        if path == ["config"]:
            return json.dumps({"defaults": {}, "overrides": {}})
        if path == ["namespaces"] and method == "GET":
            answer = handlers.listNamespaces(catalog, root)
        elif path == ["namespaces"]:
            request = self._read(body, f"{requests}.CreateNamespaceRequest")
            answer = handlers.createNamespace(catalog, request)
        else:
            namespace = self._namespace(path[1])
            rest = path[2:]
            if not rest:
                answer = handlers.loadNamespace(catalog, namespace)
            elif rest == ["tables"] and method == "GET":
                answer = handlers.listTables(catalog, namespace)
            elif rest == ["tables"]:
                request = self._read(body, f"{requests}.CreateTableRequest")
                staged = json.loads(body).get("stage-create")
                create = handlers.stageTableCreate if staged else handlers.createTable
                answer = create(catalog, namespace, request)
            elif len(rest) == 2:
                identifier = self.jvm.org.apache.iceberg.catalog.TableIdentifier.of(
                    namespace, rest[1]
                )
                if method == "GET":
                    answer = handlers.loadTable(catalog, identifier)
                elif method == "POST":
                    request = self._read(body, f"{requests}.UpdateTableRequest")
                    answer = handlers.updateTable(catalog, identifier, request)
                elif method == "DELETE":
                    handlers.dropTable(catalog, identifier)
        return None if answer is None else str(self.mapper.writeValueAsString(answer))

    def _namespace(self, text: str) -> Any:
        parts = text.split("\x1f")
        levels = self.jvm.java.lang.reflect.Array.newInstance(
            self.jvm.java.lang.Class.forName("java.lang.String"), len(parts)
        )
        for index, part in enumerate(parts):
            levels[index] = part
        return self.jvm.org.apache.iceberg.catalog.Namespace.of(levels)

    def _read(self, body: str, kind: str) -> Any:
        return self.mapper.readValue(body, self.jvm.java.lang.Class.forName(kind))
