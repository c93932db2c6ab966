"""Secrets never reach a log, an error or the ledger, and nothing else is mangled."""

from __future__ import annotations

import json
import re
import string
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loader.spec.redaction import Redactor, is_secret_key, url_secrets

# No asterisk: a mask beside one can look like a secret of asterisks.
SECRETS = st.text(
    string.ascii_letters + string.digits + "@:/?#&=%+ \"'\\{}äß€\n", min_size=3
).filter(lambda text: len(text.strip()) >= 3)


def redactor(*values: str) -> Redactor:
    made = Redactor()
    for value in values:
        made.add(value)
    return made


@given(SECRETS, st.text(), st.text())
def test_no_registered_secret_survives_in_any_form(secret: str, before: str, after: str) -> None:
    made = redactor(secret)
    secret = secret.strip()
    forms = [
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        re.sub("%..", lambda found: found[0].lower(), quote(secret, safe="")),
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        secret.replace("'", "''"),
    ]
    for form in forms:
        assert form not in made.redact(f"{before}{form}{after}").replace("***", "\0")


def test_an_asterisk_and_a_space_are_found_by_both_rules_of_url_encoding() -> None:
    assert redactor("a b*c").redact("a+b%2Ac a+b*c a%20b%2ac") == "*** *** ***"


@given(st.lists(SECRETS, max_size=4), st.text(), st.randoms())
def test_redacting_twice_changes_nothing(secrets: list[str], noise: str, random: object) -> None:
    made = redactor(*secrets)
    once = made.redact(noise.join(secrets))
    assert made.redact(once) == once


@given(st.permutations(["hunter", "hunter22", "ter22x", "2xyz"]))
def test_overlapping_secrets_leave_no_rest_whatever_the_order(secrets: list[str]) -> None:
    assert redactor(*secrets).redact("a hunter22xyz b") == "a *** b"


@given(st.text(string.ascii_letters + " .,\n"))
def test_text_without_secrets_is_untouched(text: str) -> None:
    assume("qqq" not in text)
    assert redactor("qqq").redact(text) == text


def test_whole_words_do_not_mangle_what_contains_them() -> None:
    made = Redactor()
    made.add("postgres", whole_word=True)
    text = "jdbc:postgresql://db/x as postgres; user=postgres, postgres_fdw"
    assert made.redact(text) == "jdbc:postgresql://db/x as ***; user=***, postgres_fdw"


def test_short_values_are_not_registered() -> None:
    assert redactor("", "a", "ab").redact("ab a cab") == "ab a cab"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgresql://bob:s3cret@db:5432/shop", "postgresql://***@db:5432/shop"),
        ("postgresql+psycopg://bob:p@ss/w@db/shop", "postgresql+psycopg://***@db/shop"),
        ("redis://:s3cret@cache:6379/0", "redis://***@cache:6379/0"),
        ("https://token123@host/x", "https://***@host/x"),
        (
            "jdbc:mysql://h:3306/d?user=u&password=s3cret&ssl=true",
            "jdbc:mysql://h:3306/d?user=u&password=***&ssl=true",
        ),
        (
            "jdbc:sqlserver://h:1433;password={a;b};user=u",
            "jdbc:sqlserver://h:1433;password=***;user=u",
        ),
        ("jdbc:oracle:thin:scott/tiger@//h:1521/x", "jdbc:oracle:thin:***@//h:1521/x"),
        ('{"password": "s\\"x", "user": "u"}', '{"password": ***, "user": "u"}'),
        ("{'db_password': 's3cret', 'port': 5432}", "{'db_password': ***, 'port': 5432}"),
        ("{user=u, password=s3cret, x=1}", "{user=u, password=***, x=1}"),
        ("host=h PASSWORD = 'a b' dbname=d", "host=h PASSWORD = *** dbname=d"),
        ("fs.s3a.secret.key=abcdef", "fs.s3a.secret.key=***"),
        ("sslpassword=abc trustStorePassword=def", "sslpassword=*** trustStorePassword=***"),
    ],
)
def test_places_of_secrets_are_found_unregistered(text: str, redacted: str) -> None:
    assert Redactor().redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "jdbc:postgresql://localhost:5432/shop?user=me",
        "jdbc:postgresql://h1:5432,h2:5432/shop?mail=a@b",
        "http://localhost:4040/jobs?mail=a@b",
        "FATAL: password authentication failed for user bob",
        "loader.yml, spec.spec.password: input should be a valid string",
        "a mail to bob@example.org, see http://example.org",
        "primary_key=id cursor=2025-01-01 00:00:00",
        "bypass=1 compass=2",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().redact(text) == text


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "PASSWORD",
        "db_password",
        "sslpassword",
        "secret",
        "client_secret",
        "token",
        "private_key",
        "privateKey",
        "passphrase",
        "api-key",
        "s3.secret-access-key",
        "pass",
        "spark.hadoop.fs.s3a.secret.key",
        "credential",
        "Authorization",
        "password2",
        "spark.hadoop.fs.azure.account.key.acc.blob.core.windows.net",
    ],
)
def test_keys_of_secrets(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "user",
        "primary_key",
        "key",
        "url",
        "bypass",
        "token_url",
        "tokens",
        "secretary",
        "max_tokens",
    ],
)
def test_keys_of_no_secrets(key: str) -> None:
    assert not is_secret_key(key)


def test_a_private_key_is_masked_line_by_line() -> None:
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
    made = redactor(f"-----BEGIN KEY-----\n{body}\n-----END KEY-----\n")
    assert made.redact(f"bad line {body} in a key") == "bad line *** in a key"


def test_url_secrets_gives_the_password_as_written_and_decoded() -> None:
    assert set(url_secrets("postgresql://bob:p%40ss@db/x")) == {"p%40ss", "p@ss"}
    assert set(url_secrets("jdbc:oracle:thin:scott/tiger@h")) == {"tiger"}
    assert not list(url_secrets("jdbc:postgresql://db:5432/x?user=bob"))


def test_its_repr_shows_nothing() -> None:
    assert "hunter" not in repr(redactor("hunter22"))


@pytest.mark.parametrize(
    "text",
    [
        "://a" * 20_000,
        "://a:b" * 20_000,
        "jdbc:oracle:a:" * 20_000 + "@",
        "jdbc:oracle:a:b/" * 20_000,
        "password={;" * 20_000,
    ],
)
def test_a_long_text_is_read_once(text: str) -> None:
    began = time.monotonic()
    Redactor().redact(text)
    list(url_secrets(text))
    assert time.monotonic() - began < 10  # it takes one or two; if read from each letter, minutes


def test_what_only_begins_like_a_secret_hides_none_after_it() -> None:
    for text in (
        "://a:b c://u:hunter22@h",
        "jdbc:oracle:thin:a/b jdbc:oracle:thin:u/hunter22@h",
        'jdbc:oracle:thin:a/"b jdbc:oracle:thin:u/hunter22@h"',
        'jdbc:oracle:thin:a/jdbc:oracle:thin:u/"x hunter22"@h',
        "password={a;password=hunter22",
        "password={a;b password=hunter22",
    ):
        assert "hunter22" not in Redactor().redact(text)


def test_many_secrets_are_registered_at_once() -> None:
    began = time.monotonic()
    made = Redactor()
    made.add(*(f"hunter{n:06}" for n in range(20_000)))
    assert made.redact("a hunter012345 b") == "a *** b"
    assert time.monotonic() - began < 10
