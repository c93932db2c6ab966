"""Real servers that the suite starts for itself: PostgreSQL, MariaDB and Redis.

Each has its own folder (in the suite, in memory: :mod:`tests.services.memory`), listens only on a
free port of 127.0.0.1, checks passwords, trades durability for speed, and has a time zone that is
neither UTC nor the machine's.
"""

from __future__ import annotations

from tests.services.mariadb import MariaDb
from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.server import PASSWORD, USER, Database, Server, ServerMissing

__all__ = [
    "PASSWORD",
    "USER",
    "Database",
    "MariaDb",
    "Postgres",
    "Redis",
    "Server",
    "ServerMissing",
]
