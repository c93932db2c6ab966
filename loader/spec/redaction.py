"""Keeps secrets out of logs, errors and the ledger.

Values are secret under a secret key, in the user information of a URL, in ``${file:…}``, or if a
connector declares them so; nothing else is. Values known to be secret are masked, and so is any
text where secrets stand (a URL's user information, `password=…`), registered or not.

A password may also be a word of the loader's own, such as `loader` or `setup`. It is masked in the
text of others (:func:`redact_foreign`, :func:`excerpt`), but not where the loader's own words are
around it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from urllib.parse import unquote
from weakref import WeakSet

from loader.spec.secret_forms import Form, FormIndex, forms_of

MASK = "***"
_BEYOND = 1 << 16
"""So much is looked at behind an excerpt: no secret that begins in it is taken to be longer."""

_WORDS = (
    r"(?:passwords?|passwd|pwd|passphrase|secrets?|token|credentials?|private[_.-]?key"
    r"|api[_.-]?key|access[_.-]?key(?:[_.-]?id)?|account[_.-]?key|sas[_.-]?key|secret[_.-]?key"
    r"|secret[_.-]?access[_.-]?key|(?:encryption|signing|shared|master)[_.-]?key"
    r"|(?:credentials?|service[_.-]?account)[_.-]?(?:json|key)"
    r"|(?<![A-Za-z])(?:pass|pat|jwt|bearer))"
)
_SECRET_WORDS = rf"(?:{_WORDS}|authorization)"
_SECRET_KEY = re.compile(rf".*{_SECRET_WORDS}\d*\Z", re.IGNORECASE | re.DOTALL)
# The same for Spark's event log and UI, in Java's syntax. Unlike Spark's own default, it knows a
# catalog's `credential`.
SPARK_REGEX = (
    r"(?i:secret|password|passwd|pwd|passphrase|token|credential|private[_.-]?key|api[_.-]?key"
    r"|access[_.-]?key|account[_.-]?key|sas[_.-]?key|(?:encryption|signing|shared|master)[_.-]?key"
    r"|service[_.-]?account[_.-]?(?:json|key)|authorization|(?<![a-z])(?:pass|pat|jwt|bearer)$"
    r"|fs\.azure\.(account\.key|sas)\.)"
)
# Azure's account keys carry the account at the end: fs.azure.account.key.<account>.blob.…
_AZURE_KEY = re.compile(r"(?:^|\.)fs\.azure\.(?:account\.key|sas)\.", re.IGNORECASE)

_VALUE = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s&;\"')}\]]*[^\s&;\"')}\],])"
_QUOTED = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[0-9.]+)"
_PORT = r"\d+(?:[/?,;\s]|$)"
_USER = rf"[^\s\"'<>/@:?#]*:(?!{_PORT})"
# `token = 3` compares a number, `password = ''` says that there is none.
_NO_SECRET = re.compile(r"\d{1,2}|(?P<quote>[\"'])(?:\d{1,2})?(?P=quote)")
_NO_MAIL = r"(?<![Mm][Aa][Ii][Ll][Tt][Oo])"  # what is before the @ of an address is no secret
_REST = r"[^\s\"'<>]*"
_ORACLE = r"jdbc:oracle:\w+:"
_KEY = rf"{_WORDS}\d*\s*=\s*"  # "authorization" has a pattern of its own
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
    re.compile(rf"{_NO_MAIL}://(?:(?P<secret>{_USER}{_REST})@|{_USER}{_REST})"),
    re.compile(rf"{_NO_MAIL}://(?P<secret>[^\s\"'<>/?#]+)@"),
    # Oracle's thin URL: jdbc:oracle:thin:user/password@host
    re.compile(rf"{_ORACLE}(?:(?P<secret>[^\s/@]+/[^\s@]*)@|[^\s/@]+(?:/[^\s@]*)?)", re.IGNORECASE),
    # Authorization: Bearer …, as a header's text or a map's
    re.compile(
        r"authorization[\"']?\s*[:=]\s*[\"']?(?:(?:Bearer|Basic|Digest|Token)\s+)?"
        r"(?P<secret>[^\s\"',;}\])]+)",
        re.IGNORECASE,
    ),
    re.compile(r"\bBearer\s+(?P<secret>(?=[\w.~+/-]*\d)[\w.~+/-]{8,}=*)", re.IGNORECASE),
    # password=…, in a URL's query, a connection string or a map's text; dbt counts tests: PASS=151
    re.compile(rf"(?-i:(?!PASS=\d+ WARN=)){_KEY}(?P<secret>{_VALUE})", re.IGNORECASE),
    # "password": "…", in JSON and in a Python dict's repr; "pass": 39 counts tests
    re.compile(
        rf"(?P<quote>[\"'])(?!pass(?P=quote)\s*:\s*\d+[,}}\s])[\w.-]{{0,100}}{_SECRET_WORDS}\d*(?P=quote)\s*:\s*(?P<secret>{_QUOTED})",
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
    """Returns the beginning of the text of others, without secrets: the only way to cut it.

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
    spans = {
        span for redactor in known for span in redactor.find_registered(seen, in_own_text=False)
    }
    return _mask(seen, sorted(spans.union(_open(seen))), longest)


def redact_foreign(text: str) -> str:
    """Removes secrets from the text of others: a program's output, a value, a stack trace."""
    return excerpt(text, len(text))


def _open(text: str) -> Iterator[tuple[int, int]]:
    """Yields where what stands where secrets do begins and ends, registered or not."""
    return (found.span("secret") for found in _places(text))


def _mask(text: str, spans: Iterable[tuple[int, int]], longest: int) -> str:
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
            if not _NO_SECRET.fullmatch(found["secret"]):
                yield found


class Redactor:
    """Replaces secrets in text by ``***``. May be shared between threads.

    Example:
        redactor = Redactor()
        redactor.add(password)
        log.error("%s: %s", table, redactor.redact(message))
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: dict[str, Form] = {}
        self._names: set[str] = set()
        self._index: FormIndex | None = None
        with _known_lock:
            _known.add(self)

    def add(self, *values: str, whole_word: bool = False) -> None:
        """Registers secrets; values of fewer than three characters are not registered.

        Args:
            values: the secrets. They are found encoded and escaped, too: :func:`forms_of`.
            whole_word: only where no letter, digit or underscore is next to it.
        """
        with self._lock:
            known = self._forms
            added = {}
            for value in dict.fromkeys(values):
                for form, how in forms_of(value, whole_word).items():
                    if form != MASK and (form not in known or known[form].is_word > how.is_word):
                        added[form] = how
            if added:
                # Replaced, never changed: another thread may be reading it.
                self._forms, self._index = {**known, **added}, None

    def keep_readable(self, *names: str) -> None:
        """Registers names that are shown though a secret has the same value: users, tables."""
        self._names.update(names)

    def redact(self, text: str) -> str:
        """Removes secrets from a text that the loader wrote.

        Registered secrets, and whatever stands where secrets do, become ``***``. Names and the
        loader's own words stay.
        """
        spans = sorted({*self.find_registered(text, in_own_text=True), *_open(text)})
        return _mask(text, spans, len(text)) if spans else text

    @property
    def longest(self) -> int:
        """The most characters that a registered secret has."""
        return self._search().longest

    def find_registered(self, text: str, in_own_text: bool) -> Iterator[tuple[int, int]]:
        """Yields where a registered secret begins and ends."""
        return self._search().find(text, in_own_text)

    def _search(self) -> FormIndex:
        index = self._index
        if index is None:
            with self._lock:
                index = self._index = FormIndex(self._forms, self._names)
        return index

    def __repr__(self) -> str:
        return f"Redactor({len(self._forms)} forms of secrets)"


_known: WeakSet[Redactor] = WeakSet()
_known_lock = threading.Lock()
