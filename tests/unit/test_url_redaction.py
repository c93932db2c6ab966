"""Messages show URLs of databases and Redis without any part of the password."""

from __future__ import annotations

import pytest

from loader.sources.jdbc.database import strip_url
from loader.state.redis import _strip_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("jdbc:postgresql://db:5432/shop?sslmode=require", "jdbc:postgresql://db:5432/shop"),
        ("jdbc:postgresql://me:pw@db/shop?user=me", "jdbc:postgresql://db/shop"),
        ("jdbc:postgresql://me:tR9/kw#Lq2?x@db/shop", "jdbc:postgresql:…"),
        ("jdbc:mysql://u:p4;s/s@db/shop", "jdbc:mysql:…"),
        ("jdbc:mysql://u:a@b@db/shop", "jdbc:mysql:…"),
        ("jdbc:mysql://db/shop?password=x@y", "jdbc:mysql:…"),
        ("jdbc:sqlserver://db;user=me;password=x@y", "jdbc:sqlserver:…"),
        ("jdbc:sqlserver://db;user=me;password=xy", "jdbc:sqlserver://db"),
        ("jdbc:oracle:thin:scott/tiger@//db:1521/x", "jdbc:oracle:thin:@//db:1521/x"),
        ("jdbc:oracle:thin:scott/ti?g3r@//db:1521/x", "jdbc:oracle:…"),
        ("jdbc:derby:/data/shop;create=true\nx", "jdbc:derby:/data/shop"),
    ],
)
def test_jdbc_urls(url: str, shown: str) -> None:
    assert strip_url(url) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:pw@cache:6379/0", "redis://cache:6379/0"),
        ("cache:6379/0", "redis://cache:6379/0"),
        ("redis://:Zq9#x@cache/0", "redis://…"),
        ("rediss://:12?x@cache/0", "rediss://…"),
    ],
)
def test_redis_urls(url: str, shown: str) -> None:
    assert _strip_url(url) == shown
