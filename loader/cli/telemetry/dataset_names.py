"""Names tables by OpenLineage's naming convention, https://openlineage.io/docs/spec/naming.

Other programs that follow the convention use the same names for these tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loader.spec.plugins import SourceSpec

# The scheme of a namespace, and the default port if a JDBC URL has none.
_DATABASES = {
    "postgresql": ("postgres", 5432),
    "mysql": ("mysql", 3306),
    "mariadb": ("mysql", 3306),
    "sqlserver": ("mssql", 1433),
    "oracle": ("oracle", 1521),
}
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
_OBJECT_STORES = {"s3a": "s3", "s3n": "s3", "s3": "s3", "gs": "gs"}
_HOST = r"(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d+))?"
_URLS = (
    # If there are several hosts, the first one names the server.
    re.compile(
        rf"(?P<kind>postgresql|mysql|mariadb)://(?:[^@/]*@)?{_HOST}(?:,[\w.:,-]+)?/(?P<database>[\w$-]*)(?:$|[?;])"
    ),
    re.compile(
        rf"(?P<kind>sqlserver)://{_HOST}(?:;.*?;?\s*database(?:Name)?\s*=\s*(?P<database>[\w$-]+)|)"
        r"(?:$|;)",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?P<kind>oracle):thin:(?:[^@]*@)(?://)?{_HOST}[/:](?P<database>[\w$.-]+)(?:$|[?:])"
    ),
)


@dataclass(frozen=True)
class DatasetName:
    """The name of a dataset. The namespace identifies a server, and the name a table on it."""

    namespace: str
    name: str


def name_location(location: str) -> DatasetName:
    """Derives a dataset name for the table in a folder from the folder's URL or path.

    Example:
        >>> name_location("s3a://lake/warehouse/raw/orders")
        DatasetName(namespace='s3://lake', name='warehouse/raw/orders')
    """
    parts = urlsplit(location)
    path = parts.path.rstrip("/") or "/"
    server = parts.netloc.rpartition("@")[2]
    if parts.scheme in _CONTAINERS:
        server = parts.netloc  # container@account
    if parts.scheme in ("", "file"):
        return DatasetName("file", path)
    if parts.scheme in _OBJECT_STORES:
        return DatasetName(f"{_OBJECT_STORES[parts.scheme]}://{server}", path.lstrip("/"))
    return DatasetName(f"{parts.scheme}://{server}", path)


def name_source_table(source: SourceSpec, table: str, folder: Path) -> DatasetName:
    """Names a source table. The name contains no user or password.

    Args:
        table: the table's unambiguous name in the source, with its schema if it has one.
        folder: the spec's folder. Relative paths are resolved against it.
    """
    options = source.spec
    url = str(options.get("url", ""))
    if source.path == "jdbc" and url.startswith("jdbc:"):
        return _name_database_table(url.removeprefix("jdbc:"), table, source.name)
    if source.path == "file":
        own = options.get("table_options", {}).get(table, {})
        path = f"{options.get('path', '.')}/{_find_path(own, table)}"
        is_local = not urlsplit(path).scheme
        return name_location(str((folder / path).resolve()) if is_local else path)
    return DatasetName(f"{source.path}://{source.name}", table)


def _find_path(options: Any, table: str) -> str:
    return str(options.get("path", table)) if isinstance(options, Mapping) else table


def _name_database_table(url: str, table: str, source: str) -> DatasetName:
    """Names a table from the part of a JDBC URL after ``jdbc:``.

    If the URL's format is unknown, uses the source's name, because any part of the URL might
    contain a password.
    """
    found = next(filter(None, (pattern.match(url) for pattern in _URLS)), None)
    if found is None:
        return DatasetName(f"jdbc://{source}", table)
    scheme, default_port = _DATABASES[found["kind"]]
    database = found["database"] or ""
    namespace = f"{scheme}://{found['host']}:{found['port'] or default_port}"
    if "." not in table:
        schemas = {"postgres": "public", "mssql": "dbo", "mysql": database}
        table = f"{schemas[scheme]}.{table}" if schemas.get(scheme) else table
    has_database = database and scheme != "mysql"  # in MySQL, schemas are databases
    return DatasetName(namespace, f"{database}.{table}" if has_database else table)
