"""Removes secrets from logs, errors and the ledger.

Registered secrets are the values of secret keys, the user information in URLs, the contents of
``${file:…}``, and the values that a connector declares as secret. Text in places where secrets
usually are, such as after `password=`, is masked even if it is not registered.

A password may be a word in the loader's own messages, such as `loader` or `setup`. It is then
masked only in text from other programs (:func:`redact_foreign`, :func:`excerpt`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from urllib.parse import unquote
from weakref import WeakSet

from loader.spec.secret_forms import FormIndex, FormMatch, list_forms

MASK = "***"
_LOOKAHEAD = 1 << 16
"""How far past the end of an excerpt to search for secrets, because one may cross this end."""

_SECRET_KEY_WORDS = (
    r"(?:passwords?|passwd|pwd|passphrase|secrets?|token|credentials?|private[_.-]?key"
    r"|api[_.-]?key|access[_.-]?key(?:[_.-]?id)?|account[_.-]?key|sas[_.-]?key|secret[_.-]?key"
    r"|secret[_.-]?access[_.-]?key|(?:encryption|signing|shared|master|mask)[_.-]?key"
    r"|(?:credentials?|service[_.-]?account)[_.-]?(?:json|key)"
    r"|(?<![A-Za-z])(?:pass|pat|jwt|bearer))"
)
_SECRET_WORDS = rf"(?:{_SECRET_KEY_WORDS}|authorization)"
_SECRET_KEY = re.compile(rf".*{_SECRET_WORDS}\d*\Z", re.IGNORECASE | re.DOTALL)
# The pattern for Spark's event log and UI, in Java's syntax. Unlike Spark's default pattern, it
# matches `credential`, which is an option of catalogs.
SPARK_REGEX = (
    r"(?i:secret|password|passwd|pwd|passphrase|token|credential|private[_.-]?key|api[_.-]?key"
    r"|access[_.-]?key|account[_.-]?key|sas[_.-]?key|(?:encryption|signing|shared|master)[_.-]?key"
    r"|service[_.-]?account[_.-]?(?:json|key)|authorization|(?<![a-z])(?:pass|pat|jwt|bearer)$"
    r"|fs\.azure\.(account\.key|sas)\.)"
)
# Azure's settings contain the account's name: fs.azure.account.key.<account>.blob.…
_AZURE_KEY = re.compile(r"(?:^|\.)fs\.azure\.(?:account\.key|sas)\.", re.IGNORECASE)

_VALUE = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s&;\"')}\]]*[^\s&;\"')}\],])"
_QUOTED = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[0-9.]+)"
_PORT = r"\d+(?:[/?,;\s]|$)"
_USER = rf"[^\s\"'<>/@:?#]*:(?!{_PORT})"
# Values that are not secrets: `token = 3` is a comparison, and `password = ''` has no password.
_HARMLESS_VALUE = re.compile(r"\d{1,2}|(?P<quote>[\"'])(?:\d{1,2})?(?P=quote)")
_NOT_AFTER_MAILTO = r"(?<![Mm][Aa][Ii][Ll][Tt][Oo])"  # a mail address looks like user information
_REST_OF_VALUE = r"[^\s\"'<>]*"
_ORACLE = r"jdbc:oracle:\w+:"
_KEY = rf"{_SECRET_KEY_WORDS}\d*\s*=\s*"  # "authorization" has a separate pattern
# Passwords in braces or quotes, which may contain characters that would end an unquoted password.
_QUOTED_FORMS = (
    re.compile(rf"{_KEY}(?:(?P<secret>\{{[^}}\s]*\}})|\{{[^}}\s]*)", re.IGNORECASE),
    re.compile(rf"{_ORACLE}(?:(?P<secret>[^\s/@]+/\"[^\"]*\")@|[^\s/@]+)", re.IGNORECASE),
)
# The group "secret" of each match is masked. Some patterns also match text that only starts like a
# secret, with an empty group, so that the search skips this text. Otherwise the search would
# restart at each of its characters, which could take minutes.
_PATTERNS = (
    *_QUOTED_FORMS,
    # scheme://userinfo@host. The password may contain anything except white space and quotes.
    re.compile(
        rf"{_NOT_AFTER_MAILTO}://(?:(?P<secret>{_USER}{_REST_OF_VALUE})@|{_USER}{_REST_OF_VALUE})"
    ),
    re.compile(rf"{_NOT_AFTER_MAILTO}://(?P<secret>[^\s\"'<>/?#]+)@"),
    # Oracle's thin URL: jdbc:oracle:thin:user/password@host
    re.compile(rf"{_ORACLE}(?:(?P<secret>[^\s/@]+/[^\s@]*)@|[^\s/@]+(?:/[^\s@]*)?)", re.IGNORECASE),
    # Authorization: Bearer …, in a header or a mapping
    re.compile(
        r"authorization[\"']?\s*[:=]\s*[\"']?(?:(?:Bearer|Basic|Digest|Token)\s+)?"
        r"(?P<secret>[^\s\"',;}\])]+)",
        re.IGNORECASE,
    ),
    re.compile(r"\bBearer\s+(?P<secret>(?=[\w.~+/-]*\d)[\w.~+/-]{8,}=*)", re.IGNORECASE),
    # password=… in a URL's query, connection string or mapping, but not in dbt's summary: PASS=151
    re.compile(rf"(?-i:(?!PASS=\d+ WARN=)){_KEY}(?P<secret>{_VALUE})", re.IGNORECASE),
    # "password": "…" in JSON and in the repr of a dict, but not in dbt's summary: "pass": 39
    re.compile(
        rf"(?P<quote>[\"'])(?!pass(?P=quote)\s*:\s*\d+[,}}\s])[\w.-]{{0,100}}{_SECRET_WORDS}\d*(?P=quote)\s*:\s*(?P<secret>{_QUOTED})",
        re.IGNORECASE,
    ),
)


def is_secret_key(key: str) -> bool:
    """Returns whether the name of a setting suggests a secret, such as `s3.secret-access-key`."""
    return bool(_SECRET_KEY.match(key) or _AZURE_KEY.search(key))


def java_regex(configured: str | None, keys: Iterable[str]) -> str:
    """Returns `spark.redaction.regex`: the user's pattern, the loader's pattern and `keys`."""
    exact = "|".join(re.escape(key) for key in sorted(keys))
    parts = [f"(?:{configured})"] if configured and configured != SPARK_REGEX else []
    return "|".join([*parts, SPARK_REGEX, *([f"^(?:{exact})$"] if exact else [])])


def url_secrets(text: str) -> Iterator[str]:
    """Yields the passwords in a URL or connection string, both as written and URL-decoded."""
    for match in _find_matches(text):
        secret = match["secret"].strip("\"'{}")
        if match[0].startswith("://"):
            secret = secret.partition(":")[2]
        elif match[0].lower().startswith("jdbc:oracle"):
            secret = secret.partition("/")[2].strip('"')
        if secret:
            yield secret
            yield unquote(secret)


def excerpt(text: str, longest: int) -> str:
    """Returns the start of a text from another program, without secrets.

    Cut text from other programs only with this function. It masks secrets before it cuts the text,
    because later redaction would miss a secret that was cut. It masks the secrets of all redactors
    in the process, and text in places where secrets usually are.

    Args:
        longest: the maximum number of characters of the text that are returned.
    """
    with _known_lock:
        known = list(_known)
    lookahead = max([_LOOKAHEAD, *(redactor.longest for redactor in known)])
    head = text[: longest + lookahead]
    spans = {
        span for redactor in known for span in redactor.find_registered(head, in_own_text=False)
    }
    return _mask(head, sorted(spans.union(_find_by_position(head))), longest)


def redact_foreign(text: str) -> str:
    """Removes secrets from another program's output, values or stack traces."""
    return excerpt(text, len(text))


def _find_by_position(text: str) -> Iterator[tuple[int, int]]:
    return (match.span("secret") for match in _find_matches(text))


def _mask(text: str, spans: Iterable[tuple[int, int]], longest: int) -> str:
    """Replaces each of the sorted spans of a text with a mask. Returns the start of the result."""
    # Overlapping spans become one mask, so that no part of a secret remains.
    pieces, end = [], 0
    for start, stop in spans:
        if start >= longest:
            break
        if start >= end:
            pieces += [text[end:start], MASK]
        end = max(end, stop)
    return "".join([*pieces, text[end:longest]])


def _find_matches(text: str) -> Iterator[re.Match[str]]:
    """Yields matches in places where secrets usually are. Takes linear time."""
    quoted: set[int] = set()
    for pattern in _PATTERNS:
        for match in pattern.finditer(text):
            start = match.start("secret")
            # A pattern for unquoted secrets may match only a part of a quoted secret.
            if start < 0 or start in quoted:
                continue
            if pattern in _QUOTED_FORMS:
                quoted.add(start)
            if not _HARMLESS_VALUE.fullmatch(match["secret"]):
                yield match


class Redactor:
    """A thread-safe filter that replaces secrets in text with ``***``.

    Example:
        redactor = Redactor()
        redactor.add(password)
        log.error("%s: %s", table, redactor.redact(message))
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: dict[str, FormMatch] = {}
        self._names: set[str] = set()
        self._index: FormIndex | None = None
        with _known_lock:
            _known.add(self)

    def add(self, *values: str, whole_word: bool = False) -> None:
        """Registers secrets. Ignores secrets of fewer than three characters.

        Args:
            values: the secrets. Encoded or escaped forms are also found (:func:`list_forms`).
            whole_word: whether to mask the secrets only if no letter, digit or underscore precedes
                or follows them.
        """
        with self._lock:
            current = self._forms
            added = {}
            for value in dict.fromkeys(values):
                for form, match in list_forms(value, whole_word).items():
                    old = current.get(form)
                    if form != MASK and (old is None or old.is_word > match.is_word):
                        added[form] = match
            if added:
                # Replaces the dictionary, because another thread may be reading the old one.
                self._forms, self._index = {**current, **added}, None

    def keep_readable(self, *names: str) -> None:
        """Registers names, such as table names, that are readable even if they equal a secret.

        This applies to the loader's messages (:meth:`redact`), not to text from other programs.
        """
        self._names.update(names)

    def redact(self, text: str) -> str:
        """Removes secrets from one of the loader's messages.

        Masks registered secrets, except names and words that occur in the loader's messages, and
        all text in places where secrets usually are.
        """
        spans = sorted({*self.find_registered(text, in_own_text=True), *_find_by_position(text)})
        return _mask(text, spans, len(text)) if spans else text

    @property
    def longest(self) -> int:
        """The maximum length of a registered secret in a text that escapes every character."""
        return self._get_index().longest

    def find_registered(self, text: str, in_own_text: bool) -> Iterator[tuple[int, int]]:
        """Yields the start and end of each registered secret in a text."""
        return self._get_index().find(text, in_own_text)

    def _get_index(self) -> FormIndex:
        index = self._index
        if index is None:
            with self._lock:
                index = self._index = FormIndex(self._forms, self._names)
        return index

    def __repr__(self) -> str:
        return f"Redactor({len(self._forms)} forms of secrets)"


_known: WeakSet[Redactor] = WeakSet()
_known_lock = threading.Lock()
