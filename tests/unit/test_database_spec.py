"""`loader init --from`: which database URLs it accepts, and the spec that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader.cli.database_url import DatabaseUrl
from loader.cli.init import render_spec
from loader.errors import SpecError
from loader.spec.spec import load_spec

ENV = {
    "PGHOST": "db",
    "PGPORT": "5433",
    "PGUSER": "ann",
    "PGPASSWORD": "env-4711",
    "PGDATABASE": "x",
}


@pytest.mark.parametrize(
    ("url", "jdbc", "user", "password", "variable"),
    [
        ("postgresql://", "jdbc:postgresql://db:5433/x", "ann", "env-4711", "PGPASSWORD"),
        (
            "postgres://bob:a%2Fb%40@h:1/shop?sslmode=require",
            "jdbc:postgresql://h:1/shop?sslmode=require",
            *("bob", "a/b@", "PGPASSWORD"),
        ),
        (
            "postgresql://ann@[::1]/x",
            "jdbc:postgresql://[::1]:5433/x",
            *("ann", "env-4711", "PGPASSWORD"),
        ),
        ("mysql://bob@h/shop", "jdbc:mysql://h/shop", "bob", "", "MYSQL_PWD"),
        ("mariadb://h:3306/shop", "jdbc:mariadb://h:3306/shop", "", "", "MYSQL_PWD"),
        (
            "jdbc:postgresql://h/shop?user=bob&password=pw-1&ssl=true",
            "jdbc:postgresql://h:5433/shop?ssl=true",
            *("bob", "pw-1", "PGPASSWORD"),
        ),
        (
            "postgresql://@[::1]:1/x?USER=bob",
            "jdbc:postgresql://[::1]:1/x",
            "bob",
            "env-4711",
            "PGPASSWORD",
        ),
    ],
)
def test_urls_and_a_spec_that_loads(
    url: str, jdbc: str, user: str, password: str, variable: str, tmp_path: Path
) -> None:
    found = DatabaseUrl.parse(url, ENV)
    assert found == DatabaseUrl(jdbc, user, password, variable)
    path = tmp_path / "loader.yml"
    for text in (render_spec(found), render_spec(found, ["- on"], ['"on": {cursor_field: xmin}'])):
        path.write_text(text)
        assert "4711" not in text
        assert "pw-1" not in text
        [source] = load_spec(path, {variable: password}).sources
        assert (source.spec["url"], source.spec.get("user", "")) == (jdbc, user)
        assert source.spec.get("password", "") == password
    assert source.name == found.source_name


@pytest.mark.parametrize(
    "url",
    [
        *(
            "shop",
            "oracle://tiger:pw-4711@h/x",
            "http://h",
            "jdbc:",
            "",
            "jdbc:h2:mem:x;PASSWORD=pw-4711",
        ),
        *("jdbc:oracle:thin:scott/pw-4711@//h:1/x", "jdbc:db2://h:1/x:user=a;password=pw-4711;"),
        "jdbc:mysql://(host=h,port=1,user=u,password=pw-4711)/db",
        "jdbc:mariadb:replication://u:pw-4711@h/db",
        *(f"postgresql://u:a{mark}pw-4711@h/db" for mark in "/#?[\u2100"),
        "postgresql://h/db?sslpassword=pw-4711",
        "mysql://h/db?trustStorePassword=pw-4711",
        "postgresql://${LEAK}@h/db",
        "postgresql://h/${LEAK}",
    ],
)
def test_an_invalid_url_is_one_error_that_does_not_show_it(url: str) -> None:
    with pytest.raises(
        SpecError, match="this is not a URL of PostgreSQL, MariaDB or MySQL"
    ) as error:
        DatabaseUrl.parse(url, ENV)
    assert "4711" not in str(error.value)
