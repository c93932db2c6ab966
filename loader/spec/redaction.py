"""Keeps secrets out of logs, errors and the ledger.

It masks values known to be secret (registered while a spec is read) and whatever stands where
secrets do (a URL's user information, `password=…`), registered or not.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote
from weakref import WeakSet

MASK = "***"
_BYTES = "surrogateescape"  # how os.environ decodes a variable that is not UTF-8
_SHORTEST = 3  # shorter values would mangle every text, and hide little
_BEYOND = 1 << 16
"""So much is looked at behind an excerpt: no secret that begins in it is taken to be longer."""

_SECRET_WORDS = (
    r"(?:passwords?|passwd|pwd|passphrase|secrets?|token|credentials?|private[_.-]?key"
    r"|api[_.-]?key|access[_.-]?key(?:[_.-]?id)?|account[_.-]?key|sas[_.-]?key|secret[_.-]?key"
    r"|secret[_.-]?access[_.-]?key|authorization|(?<![A-Za-z])pass)"
)
_SECRET_KEY = re.compile(rf".*{_SECRET_WORDS}\d*\Z", re.IGNORECASE | re.DOTALL)
# The same for Spark's event log and UI, in Java's syntax. Unlike Spark's own default, it knows a
# catalog's `credential`.
SPARK_REGEX = (
    r"(?i:secret|password|passwd|pwd|passphrase|token|credential|private[_.-]?key|api[_.-]?key"
    r"|access[_.-]?key|account[_.-]?key|sas[_.-]?key|authorization|(?<![a-z])pass$"
    r"|fs\.azure\.(account\.key|sas)\.)"
)
# Azure's account keys carry the account at the end: fs.azure.account.key.<account>.blob.…
_AZURE_KEY = re.compile(r"(?:^|\.)fs\.azure\.(?:account\.key|sas)\.", re.IGNORECASE)

_VALUE = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s&;\"')}\]]*[^\s&;\"')}\],])"
_QUOTED = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[0-9.]+)"
_PORT = r"\d+(?:[/?,;\s]|$)"
_USER = rf"[^\s\"'<>/@:?#]*:(?!{_PORT})"
_REST = r"[^\s\"'<>]*"
_ORACLE = r"jdbc:oracle:\w+:"
_KEY = rf"{_SECRET_WORDS}\d*\s*=\s*"
# Password in braces or quotes: what ends an unquoted one may be in it.
_QUOTED_FORMS = (
    re.compile(rf"{_KEY}(?:(?P<secret>\{{[^}}\s]*\}})|\{{[^}}\s]*)", re.IGNORECASE),
    re.compile(rf"{_ORACLE}(?:(?P<secret>[^\s/@]+/\"[^\"]*\")@|[^\s/@]+)", re.IGNORECASE),
)
# Each pattern's group "secret" is masked. Where a text only begins like one, some take what they
# have looked at as a match without a secret: to look again from each letter takes minutes.
_PLACES = (
    *_QUOTED_FORMS,
    # scheme://userinfo@host; the password may hold anything but white space and quotes
    re.compile(rf"://(?:(?P<secret>{_USER}{_REST})@|{_USER}{_REST})"),
    re.compile(r"://(?P<secret>[^\s\"'<>/?#]+)@"),
    # Oracle's thin URL: jdbc:oracle:thin:user/password@host
    re.compile(rf"{_ORACLE}(?:(?P<secret>[^\s/@]+/[^\s@]*)@|[^\s/@]+(?:/[^\s@]*)?)", re.IGNORECASE),
    # password=…, in a URL's query, a connection string or a map's text
    re.compile(rf"{_KEY}(?P<secret>{_VALUE})", re.IGNORECASE),
    # "password": "…", in JSON and in a Python dict's repr
    re.compile(
        rf"(?P<quote>[\"'])[\w.-]{{0,100}}{_SECRET_WORDS}\d*(?P=quote)\s*:\s*(?P<secret>{_QUOTED})",
        re.IGNORECASE,
    ),
)


def is_secret_key(key: str) -> bool:
    """True for the names of settings that hold secrets: `password`, `s3.secret-access-key`."""
    return bool(_SECRET_KEY.match(key) or _AZURE_KEY.search(key))


def java_regex(given: str | None, keys: Iterable[str]) -> str:
    """Returns the value of `spark.redaction.regex`: the user's own, ours, and these keys."""
    exact = "|".join(re.escape(key) for key in sorted(keys))
    parts = [f"(?:{given})"] if given and given != SPARK_REGEX else []
    return "|".join([*parts, SPARK_REGEX, *([f"^(?:{exact})$"] if exact else [])])


def url_secrets(text: str) -> Iterator[str]:
    """Yields the passwords in a URL or connection string, as written and decoded."""
    for found in _places(text):
        secret = found["secret"].strip("\"'{}")
        if found[0].startswith("://"):
            secret = secret.partition(":")[2]
        elif found[0].lower().startswith("jdbc:oracle"):
            secret = secret.partition("/")[2].strip('"')
        if secret:
            yield secret
            yield unquote(secret)


def excerpt(text: str, longest: int) -> str:
    """Returns the beginning of a text, without secrets: the only way to cut what is shown.

    A secret across the cut would be found no more, and its first half would be shown. So this
    removes all that a redactor of this process knows, and whatever stands where secrets do, before
    it cuts.

    Args:
        longest: so many of the text's characters are shown at most.
    """
    with _known_lock:
        known = list(_known)
    beyond = max([_BEYOND, *(redactor.longest for redactor in known)])
    seen = text[: longest + beyond]
    spans = {span for redactor in known for span in redactor.registered(seen)}
    return _masked(seen, sorted(spans.union(_open(seen))), longest)


def _open(text: str) -> Iterator[tuple[int, int]]:
    """Yields where what stands where secrets do begins and ends, registered or not."""
    return (found.span("secret") for found in _places(text))


def _masked(text: str, spans: Iterable[tuple[int, int]], longest: int) -> str:
    """Returns the beginning of a text with a mask at each of the spans, which are sorted."""
    # Overlapping secrets become one mask: masking one must not leave the rest of the other.
    pieces, end = [], 0
    for start, stop in spans:
        if start >= longest:
            break
        if start >= end:
            pieces += [text[end:start], MASK]
        end = max(end, stop)
    return "".join([*pieces, text[end:longest]])


def _places(text: str) -> Iterator[re.Match[str]]:
    """Yields what stands where secrets do, in time proportional to the text."""
    quoted: set[int] = set()
    for pattern in _PLACES:
        for found in pattern.finditer(text):
            start = found.start("secret")
            if start < 0 or start in quoted:  # without its quotes, it may end too early
                continue
            if pattern in _QUOTED_FORMS:
                quoted.add(start)
            yield found


class Redactor:
    """Replaces secrets in text by ``***``. May be shared between threads."""

    def __init__(self) -> None:
        # Tuples are replaced, never changed: another thread may be reading them.
        self._parts: tuple[str, ...] = ()
        self._words: tuple[re.Pattern[str], ...] = ()
        with _known_lock:
            _known.add(self)

    def add(self, *values: str, whole_word: bool = False) -> None:
        """Registers secrets; values of fewer than three characters are not registered.

        Args:
            values: the secrets. They are also found URL-encoded and escaped as JSON, SQL and Python
                do.
            whole_word: only if no letter, digit or underscore is next to it, so that the user
                `postgres` does not mangle `jdbc:postgresql`.
        """
        given = {form for value in dict.fromkeys(values) for form in _forms(value)}
        forms = [form for form in given if len(form) >= _SHORTEST and form != MASK]
        if whole_word:
            words = [re.compile(rf"(?<!\w){re.escape(form)}(?!\w)") for form in sorted(forms)]
            self._words += tuple(word for word in words if word not in self._words)
        else:
            parts = {*self._parts, *forms}
            self._parts = tuple(sorted(parts, key=lambda part: (-len(part), part)))

    def redact(self, text: str) -> str:
        """Replaces every registered secret, and whatever stands where secrets do, by ``***``."""
        spans = sorted({*self.registered(text), *_open(text)})
        return _masked(text, spans, len(text)) if spans else text

    @property
    def longest(self) -> int:
        """The most characters that a registered secret has."""
        return len(self._parts[0]) if self._parts else 0

    def registered(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields where a registered secret begins and ends."""
        for part in self._parts:
            start = text.find(part)
            while start >= 0:
                yield start, start + len(part)
                start = text.find(part, start + 1)
        for word in self._words:
            for found in word.finditer(text):
                yield found.span()

    def __repr__(self) -> str:
        return f"Redactor({len(self._parts) + len(self._words)} forms of secrets)"


_known: WeakSet[Redactor] = WeakSet()
_known_lock = threading.Lock()


def _forms(value: str) -> set[str]:
    """Returns a secret's possible forms: as is, URL-encoded by several rules, escaped, by line."""
    stripped = value.strip()
    encoded = {
        quote(stripped, errors=_BYTES),
        quote(stripped, safe="", errors=_BYTES),
        quote(stripped, safe=" +", errors=_BYTES),  # SQLAlchemy
        quote_plus(stripped, errors=_BYTES),
        quote_plus(stripped, safe="*", errors=_BYTES),  # java.net.URLEncoder
    }
    encoded |= {re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in encoded}
    escaped = {
        json.dumps(stripped)[1:-1],
        json.dumps(stripped, ensure_ascii=False)[1:-1],
        repr(stripped)[1:-1],
        stripped.replace("'", "''"),
    }
    # A private key is printed line by line.
    lines = {line.strip() for line in stripped.splitlines()} if "\n" in stripped else set()
    long_lines = {line for line in lines if len(line) >= 16 and not line.startswith("-----")}
    return {stripped} | encoded | escaped | long_lines
