"""Parses database URLs on the command line, such as ``postgresql://user@host/shop``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from loader.errors import SpecError
from loader.spec.redaction import is_secret_key

_URL_EXAMPLES = "postgresql://user@host:5432/shop, mysql://… or mariadb://…"
_KINDS = {"postgresql": "PG", "postgres": "PG", "mysql": "MYSQL", "mariadb": "MYSQL"}
_PASSWORDS = {"PG": "PGPASSWORD", "MYSQL": "MYSQL_PWD"}
# Match a host with an optional port, and a database name. Both are strict, so that no credentials
# end up in the spec.
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?", re.ASCII)
_PORT = re.compile(r":\d+$", re.ASCII)
_DATABASE = re.compile(r"/[\w.$ -]*")


@dataclass(frozen=True)
class DatabaseUrl:
    """A database URL, split into the values that a spec needs.

    Attributes:
        jdbc: the JDBC URL, without credentials.
        user: the account; empty if unknown.
        password: the password, which is never written to a file.
        variable: the environment variable from which the spec reads the password.

    Example:
        >>> DatabaseUrl.parse("postgresql://ann:pw@db/shop", {}).jdbc
        'jdbc:postgresql://db/shop'
    """

    jdbc: str
    user: str
    password: str
    variable: str

    @classmethod
    def parse(cls, url: str, env: Mapping[str, str], where: str = "--from") -> DatabaseUrl:
        """Parses a PostgreSQL, MariaDB or MySQL URL, which may start with `jdbc:`.

        Args:
            env: the environment variables. PostgreSQL's variables (PGHOST, PGUSER …) supply the
                missing parts of a PostgreSQL URL.

        Raises:
            SpecError: if `url` is not one of these URLs, or if it contains credentials other than a
                user and a password. The message does not contain the URL.
        """
        wrong = SpecError(
            "this is not a URL of PostgreSQL, MariaDB or MySQL",
            where=where,
            remedy=f"Write it as {_URL_EXAMPLES}, and characters such as / @ # in a password as "
            "%2F %40 %23. "
            + (
                "For other databases, `loader init` writes a sample to edit"
                if where == "--from"
                else "For other databases, write the URL of the JDBC driver: jdbc:…"
            ),
        )
        try:
            parts = urlsplit(re.sub("^jdbc:", "", url, flags=re.IGNORECASE))
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise wrong from None
        kind = _KINDS.get(parts.scheme.lower())
        if kind is None:
            raise wrong
        defaults = env if kind == "PG" else {}
        account, _, host = parts.netloc.rpartition("@")
        name, _, secret = account.partition(":")
        credentials = {key.lower(): options.pop(key) for key in list(options) if _is_account(key)}
        user = unquote(name) or credentials.get("user") or defaults.get("PGUSER", "")
        password = unquote(secret) or credentials.get("password") or env.get(_PASSWORDS[kind], "")
        host = host or defaults.get("PGHOST", "localhost")
        if defaults.get("PGPORT") and not _PORT.search(host):
            host += f":{defaults['PGPORT']}"
        path = parts.path if len(parts.path) > 1 else f"/{defaults.get('PGDATABASE', user)}"
        is_safe = _HOST.fullmatch(host) and _DATABASE.fullmatch(path) and not parts.fragment
        if not is_safe or "$" in user or any(is_secret_key(key) for key in options):
            raise wrong
        query = f"?{urlencode(options)}" if options else ""
        scheme = "postgresql" if kind == "PG" else parts.scheme.lower()
        return cls(f"jdbc:{scheme}://{host}{path}{query}", user, password, _PASSWORDS[kind])

    @classmethod
    def is_other(cls, url: str) -> bool:
        """Returns whether a string is a JDBC URL for another kind of database, such as Oracle."""
        match = re.match("jdbc:([a-z0-9]+):", url, flags=re.IGNORECASE)
        return match is not None and match[1].lower() not in _KINDS

    @property
    def source_name(self) -> str:
        """The database's name, with `_` for each character that a source's name cannot contain."""
        name = re.split(r"[?;]", self.jdbc)[0].rstrip("/").rpartition("/")[2]
        return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "database"


def _is_account(key: str) -> bool:
    return key.lower() in ("user", "password")
