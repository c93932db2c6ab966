"""SQL in the spec must be one expression, by the quoting rules of the source database."""

from __future__ import annotations

import pytest

from loader.sources.jdbc.options import check_sql
from loader.spec.validation import OptionError

POSTGRESQL, MARIADB = "jdbc:postgresql://localhost/shop", "jdbc:mariadb://localhost/shop"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("state = 'open' and (amount > 1 or amount is null)", (POSTGRESQL, MARIADB)),
        ("note = 'it''s ( -- ; /* ? \"'", (POSTGRESQL, MARIADB)),
        ('"we--ird ;(" = 1', (POSTGRESQL, MARIADB)),
        ("`we--ird ;(` = 1", (MARIADB,)),
        (r"path = 'C:\'", (POSTGRESQL,)),
        (r"path = E'it\'s ('", (POSTGRESQL,)),
        (r"path = 'it\'s ('", (MARIADB,)),
        (r'path = "it\" ("', (MARIADB,)),
        ("note = $$it's ( --$$ or note = $x$ $$ ; $x$", (POSTGRESQL,)),
        ("a # 1 = 0 and data ->> 'x' = 'y'", (POSTGRESQL,)),
    ],
)
def test_accepted_expressions(text: str, urls: tuple[str, ...]) -> None:
    for url in urls:
        check_sql(text, "t.where", url, "a condition")


@pytest.mark.parametrize(
    ("text", "urls", "expected"),
    [
        ("", (POSTGRESQL, MARIADB), "t.where is empty"),
        ("a = 1 -- b", (POSTGRESQL, MARIADB), "-- at character 7 begins a comment"),
        ("a = 1 # b", (MARIADB,), "# at character 7 begins a comment"),
        ("a = 1 /* b", (POSTGRESQL, MARIADB), "/* at character 7 begins a comment"),
        ("a = 1; drop table b", (POSTGRESQL, MARIADB), "; at character 6 ends the statement"),
        ("(a = 1", (POSTGRESQL, MARIADB), "a parenthesis is not closed"),
        ("a = 1) or (b", (POSTGRESQL, MARIADB), ") at character 6 has no opening parenthesis"),
        ("a = 'b", (POSTGRESQL, MARIADB), "' at character 5 begins a string that does not end"),
        (r"a = 'b\'", (MARIADB,), "' at character 5 begins a string that does not end"),
        ('a = "b', (POSTGRESQL, MARIADB), "begins a quoted name that does not end"),
        ("data ? 'x'", (POSTGRESQL,), "? at character 6 is a parameter for JDBC"),
    ],
)
def test_refused_texts(text: str, urls: tuple[str, ...], expected: str) -> None:
    for url in urls:
        with pytest.raises(OptionError) as error:
            check_sql(text, "t.where", url, "a condition")
        assert expected in str(error.value)
        assert "a condition" in error.value.remedy
