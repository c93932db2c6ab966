"""A state backend in Redis. Each key has a sorted set in which the versions are the scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.exceptions import RedisError

from loader.errors import SpecError, StateError
from loader.spec.plugins import StateStoreOptions
from loader.spec.redaction import excerpt
from loader.state import StateBackend, StateRow, StoreLocation, build_second_writer_error
from loader.state.value import format_time, parse_time

# Redis runs a script atomically. If the version of a row already exists, this script adds nothing
# and returns the row's number, starting from 1. Otherwise it adds all rows and returns 0.
_APPEND = """
for i = 2, #KEYS do
    local version = ARGV[(i - 2) * 3 + 2]
    if redis.call('zcount', KEYS[i], version, version) > 0 then return i - 1 end
end
for i = 2, #KEYS do
    redis.call('zadd', KEYS[i], ARGV[(i - 2) * 3 + 2], ARGV[(i - 2) * 3 + 3])
    redis.call('sadd', KEYS[1], ARGV[(i - 2) * 3 + 1])
end
return 0
"""


class RedisState(StateBackend):
    """A state backend in Redis.

    The rows of each key are in a sorted set ``<table_name>:<key>``. The set ``<table_name>``
    contains the keys. A member of a sorted set is a JSON object with the keys `updated_at`, `value`
    and `version`.

    The next run restores states that Redis loses in a crash from the data commits, except a cursor
    that a user has set (`docs/operations.md` lists Redis's settings that prevent this). Redis
    Cluster is not supported, because its scripts cannot access several slots.
    """

    options_model = StateStoreOptions

    def __init__(self, options: StateStoreOptions, location: StoreLocation) -> None:
        super().__init__(options, location)
        url = options.connection_string
        try:
            # The client's types do not reflect `decode_responses`.
            self.client: Any = redis.Redis.from_url(
                url if "://" in url else f"redis://{url}",
                decode_responses=True,
                encoding="utf-8",
                encoding_errors="backslashreplace",  # `_read` rejects the result
                socket_connect_timeout=10,
                socket_timeout=30,
            )
        except ValueError:  # the message may contain a part of the password
            raise SpecError(
                "it is not a URL that the Redis client can read",
                where=f"{location.where}.connection_string",
                remedy="Write it as redis://user:password@host:6379/0, rediss:// with TLS; "
                "in the password, write `/` as %2F, `?` as %3F, `#` as %23, `@` as %40",
            ) from None
        self.where = f"state {location.table} in {_strip_url(url)}"

    def prepare(self) -> None:
        with self._translate_errors():
            self.client.ping()
            kind = self.client.type(self.location.table)
        if kind not in ("set", "none"):
            raise self._build_foreign_error(f"the key {self.location.table} is a {kind}")

    def rows(self, key: str | None = None) -> list[StateRow]:
        with self._translate_errors():
            keys = [key] if key is not None else self.client.smembers(self.location.table)
            rows: list[StateRow] = []
            for each in sorted(keys):
                members = self.client.zrevrange(self._build_key(each), 0, -1)
                rows += self._read(each, members)
        return rows

    def latest(self, key: str) -> list[StateRow]:
        with self._translate_errors():
            highest: Any = self.client.zrevrange(self._build_key(key), 0, 0, withscores=True)
            if not highest:
                return []
            score = highest[0][1]
            return self._read(key, self.client.zrangebyscore(self._build_key(key), score, score))

    def append(self, rows: Sequence[StateRow]) -> None:
        if not rows:
            return
        names = [self.location.table, *(self._build_key(row.key) for row in rows)]
        arguments: list[Any] = []
        for row in rows:
            arguments += [row.key, row.version, _format_member(row)]
        with self._translate_errors():
            existing = int(self.client.eval(_APPEND, len(names), *names, *arguments))
        if existing:
            raise build_second_writer_error(rows[existing - 1], self.where)

    def prune(self, floors: Mapping[str, int]) -> None:
        with self._translate_errors(), self.client.pipeline(transaction=True) as pipe:
            for key, floor in floors.items():
                pipe.zremrangebyscore(self._build_key(key), "-inf", f"({floor}")
            pipe.execute()

    def _build_key(self, key: str) -> str:
        return f"{self.location.table}:{key}"

    def _read(self, key: str, members: Sequence[str]) -> list[StateRow]:
        rows = []
        for member in members:
            try:
                content = json.loads(member)
                row = StateRow(
                    key,
                    str(content["value"]),
                    int(content["version"] or 0),
                    content.get("updated_at"),
                )
            except (
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
            ):
                raise self._build_foreign_error(
                    f"{excerpt(member, 80)!r} in the key {self._build_key(key)}"
                ) from None
            rows.append(row)
        return sorted(rows, key=lambda row: -row.version)

    def _build_foreign_error(self, what: str) -> StateError:
        return StateError(
            f"{what}, which was not written by this loader",
            where=self.where,
            remedy="Set `backend_options.table_name` to a name that nothing else uses",
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except RedisError as problem:
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise StateError(
                excerpt(lines[0], 500).rstrip(". "),
                where=self.where,
                remedy="Check `connection_string`, that Redis runs and accepts writes; "
                "then run again",
            ) from problem


def _format_member(row: StateRow) -> str:
    content = {
        "updated_at": format_time(parse_time(row.updated_at)),
        "value": row.value,
        "version": row.version,
    }
    return json.dumps(content, ensure_ascii=False, sort_keys=True)


def _strip_url(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"redis://{url}")
    if "@" in url and "@" not in parts.netloc:
        return f"{parts.scheme}://…"  # the password contains a character that is not encoded
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
