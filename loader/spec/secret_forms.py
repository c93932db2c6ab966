"""Finds secrets in text, also where they are escaped, encoded or broken over lines.

Each secret is registered in the forms in which texts contain it. All forms are looked up at once:
the time depends on the text's length, hardly on how many secrets there are.
"""

from __future__ import annotations

import base64
import html
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_plus

SHORTEST = 3  # shorter values would mangle every text, and hide little
_SHORTEST_BASE64 = 4
_KEY = 64
_BYTES = "surrogateescape"  # how os.environ decodes a variable that is not UTF-8
_PLAIN = re.compile(r"[\w.~-]+", re.ASCII)  # written the same way in a URL, JSON, HTML, a shell
# What escapes and line breaks put into a text, however deep it is nested. White space without a
# line break stays, so the parts of a match that have none are put back.
_INSERTED = re.compile(r"\\+|\s+")
_INSERTED_ESCAPED = re.compile(r"(?:\\+[rn])+\\*|\\+|\s+")


class Form(NamedTuple):
    """How a form of a secret is matched.

    Attributes:
        is_word: only where no letter, digit or underscore is next to it.
        is_base64: a character next to it may hold some bits of the secret.
    """

    is_word: bool
    is_base64: bool


class FormIndex:
    """Finds all of a set of forms in a text.

    Args:
        forms: the forms, and how each is matched.
        names: what stays readable in the loader's own text, like its words.
    """

    def __init__(self, forms: Mapping[str, Form], names: Collection[str] = ()) -> None:
        self._forms = forms
        self._names = names
        keys: dict[str, list[str]] = {}
        for form in sorted(forms, key=len, reverse=True):
            keys.setdefault(form[:_KEY], []).append(form)
        lengths: dict[tuple[str, ...], set[int]] = {}
        for key in keys:
            lengths.setdefault(tuple(key[:SHORTEST]), set()).add(len(key))
        self._keys = keys
        self._lengths = {gram: sorted(each, reverse=True) for gram, each in lengths.items()}
        self.longest = max(map(len, forms), default=0)

    def find(self, text: str, in_own_text: bool) -> Iterator[tuple[int, int]]:
        """Yields the longest form that begins at each character.

        Args:
            in_own_text: whether the loader wrote the text around the secrets. Forms that occur in
                the loader's own words are not looked for then, and elsewhere only as whole words.
        """
        if not self._forms:
            return
        yield from self._find(text, text, None, in_own_text)
        views = [("", _INSERTED), (" ", _INSERTED), ("", _INSERTED_ESCAPED)]
        seen = {text}
        for glue, inserted in views:
            view, positions = _without(text, inserted, glue)
            if view not in seen:
                seen.add(view)
                yield from self._find(view, text, positions, in_own_text)

    def _find(
        self, view: str, text: str, positions: _Positions | None, in_own_text: bool
    ) -> Iterator[tuple[int, int]]:
        grams = zip(*(view[offset:] for offset in range(SHORTEST)), strict=False)
        lengths = self._lengths
        for start, gram in enumerate(grams):
            if gram in lengths:
                match = self._match(view, start, text, positions, in_own_text)
                if match is not None:
                    yield match

    def _match(
        self,
        view: str,
        start: int,
        text: str,
        positions: _Positions | None,
        in_own_text: bool,
    ) -> tuple[int, int] | None:
        for length in self._lengths[tuple(view[start : start + SHORTEST])]:
            for name in self._keys.get(view[start : start + length], ()):
                if not view.startswith(name, start):
                    continue
                first, stop = start, start + len(name)
                if positions is not None:
                    first, stop = positions.at(start), positions.at(stop - 1) + 1
                form = self._forms[name]
                is_own = name in self._names or is_own_word(name)
                if (is_own and in_own_text) or (
                    (is_own or form.is_word) and not _is_word(text, first, stop)
                ):
                    continue
                return _widen(text, first, stop) if form.is_base64 else (first, stop)
        return None


class _Positions:
    """Maps positions in a text without some of its characters to those in the whole text."""

    def __init__(self) -> None:
        self._views: list[int] = []
        self._shifts: list[int] = []

    def add(self, view: int, text: int) -> None:
        self._views.append(view)
        self._shifts.append(text - view)

    def at(self, view: int) -> int:
        return view + self._shifts[bisect_right(self._views, view) - 1]


def _has_insertions(text: str) -> bool:
    return "\\" in text or "\n" in text or "\r" in text


def _without(text: str, inserted: re.Pattern[str], glue: str) -> tuple[str, _Positions]:
    """Returns a text without backslashes and line breaks.

    Args:
        glue: what replaces a line break, and the white space around it.
    """
    positions = _Positions()
    positions.add(0, 0)
    if not _has_insertions(text):
        return text, positions
    pieces: list[str] = []
    end = length = 0
    for found in inserted.finditer(text):
        is_space = found[0][0] != "\\"
        if is_space and "\n" not in found[0] and "\r" not in found[0]:
            continue
        piece = text[end : found.start()] + (glue if is_space else "")
        pieces.append(piece)
        length += len(piece)
        end = found.end()
        positions.add(length, end)
    pieces.append(text[end:])
    return "".join(pieces), positions


def _is_word(text: str, start: int, stop: int) -> bool:
    before, after = text[max(start - 1, 0) : start], text[stop : stop + 1]
    return not any(each.isalnum() or each == "_" for each in before + after)


def _widen(text: str, start: int, stop: int) -> tuple[int, int]:
    """Takes the characters of base64 on both sides along: they hold bits of the secret."""
    if start and (text[start - 1].isalnum() or text[start - 1] in "+/-_"):
        start -= 1
    while stop < len(text) and text[stop] == "=":
        stop += 1
    if stop < len(text) and (text[stop].isalnum() or text[stop] in "+/-_"):
        stop += 1
    return start, stop


def forms_of(value: str, is_word: bool = False) -> dict[str, Form]:
    """Returns the forms of a secret by which texts contain it.

    They are those of URLs, JSON, Python, SQL, CSV, HTML and shells, of one in another, of base64
    and hexadecimal, and its long lines, as a private key is printed line by line.
    """
    plain = value.strip()
    texts = {plain} if _PLAIN.fullmatch(plain) else _written(plain)
    raw = plain.encode("utf-8", _BYTES if _is_bytes(plain) else "surrogatepass")
    coded = {raw.hex(), raw.hex().upper(), *_each_character(plain, raw)}
    lines = {line.strip() for line in plain.splitlines()} if "\n" in plain else set()
    lines = {line for line in lines if len(line) >= 16 and not line.startswith("-----")}
    found = {form: Form(is_word, False) for form in texts | coded | lines}
    for form in [each for each in found if _has_insertions(each)]:
        for inserted, glue in ((_INSERTED, ""), (_INSERTED, " "), (_INSERTED_ESCAPED, "")):
            found.setdefault(_without(form, inserted, glue)[0].strip(), Form(is_word, False))
    for form in _in_base64(raw):
        found.setdefault(form, Form(False, True))
    return {form: how for form, how in found.items() if len(form) >= SHORTEST}


def _written(plain: str) -> set[str]:
    """Returns the ways in which a text that has special characters is written."""
    once = {plain, *_in_urls(plain), *_escaped(plain)}
    # JSON in JSON, or in a URL, or in HTML. Backslashes are found however many there are.
    twice = {quote(form, safe="", errors=_BYTES) for form in once if _is_bytes(form)}
    twice |= {form for each in once for form in (html.escape(each), json.dumps(each)[1:-1])}
    return once | twice


def _is_bytes(text: str) -> bool:
    try:
        text.encode("utf-8", _BYTES)
    except UnicodeEncodeError:
        return False
    return True


def _in_urls(plain: str) -> set[str]:
    if not _is_bytes(plain):
        return set()
    upper = {
        quote(plain, errors=_BYTES),
        quote(plain, safe="", errors=_BYTES),
        quote(plain, safe=" +", errors=_BYTES),  # SQLAlchemy
        quote_plus(plain, errors=_BYTES),
        quote_plus(plain, safe="*", errors=_BYTES),  # java.net.URLEncoder
    }
    lower = {re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in upper}
    return upper | lower


def _escaped(plain: str) -> set[str]:
    in_html = html.escape(plain)
    return {
        json.dumps(plain)[1:-1],
        json.dumps(plain, ensure_ascii=False)[1:-1],
        repr(plain)[1:-1],
        repr(repr(plain)[1:-1])[1:-1],
        plain.replace("'", "''"),
        plain.replace('"', '""'),
        in_html,
        html.escape(plain, quote=False),
        in_html.replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
        in_html.replace("&#x27;", "&apos;"),
        plain.replace("'", "'\"'\"'"),  # in a shell, within single quotes
        plain.replace("'", "'\\''"),
    }


def _each_character(plain: str, raw: bytes) -> Iterator[str]:
    """Yields the encodings of each character by its number."""
    for text in (raw.hex("%"), raw.hex("%").upper()):
        yield f"%{text}"
    yield from (raw.hex(":"), raw.hex(":").upper(), raw.hex(" "), raw.hex(" ").upper())
    yield "".join(f"\\x{byte:02x}" for byte in raw)
    yield "".join(f"\\u{ord(each):04x}" for each in plain)
    yield "".join(f"&#{ord(each)};" for each in plain)
    yield "".join(f"&#x{ord(each):x};" for each in plain)


def _in_base64(raw: bytes) -> set[str]:
    """Returns what base64 of any text with the secret in it contains, by both alphabets."""
    found = set()
    for before in range(3):
        text = base64.b64encode(b"\0" * before + raw).decode()
        bits = 8 * (before + len(raw))
        # Only characters that hold no bits of what stands before or behind.
        text = text[-(-8 * before // 6) : bits // 6]
        if len(text) >= _SHORTEST_BASE64:
            found |= {text, text.replace("+", "-").replace("/", "_")}
    return found


@lru_cache(maxsize=10_000)
def is_own_word(form: str) -> bool:
    """Whether a message of the loader may contain a form of a secret: `loader`, `setup`, `ost`.

    That is so if its source text does. A secret that nobody guesses is in no source text.
    """
    text, words, parts = _own_text()
    longest = max(re.findall(r"\w+", form), key=len, default="")
    return (longest in words or longest in parts) and (longest == form or form in text)


@lru_cache(maxsize=1)
def _own_text() -> tuple[str, frozenset[str], str]:
    """Returns the text of the loader's modules, its words, and those without digits in one."""
    package = Path(__file__).resolve().parents[1]
    modules = set(package.rglob("*.py")) - set((package / "testing").rglob("*.py"))
    text = "\n".join(path.read_text("utf-8") for path in sorted(modules))
    words = frozenset(re.findall(r"\w+", text))
    return text, words, " ".join(word for word in words if not re.search(r"\d", word))
