"""Finds secrets in text, even if they are escaped, encoded or wrapped over several lines.

Escapes in the text and in the secrets are decoded repeatedly, until nothing changes. An index finds
all secrets in one pass over each decoded text, so the time hardly depends on the number of secrets.
For base64, base32 and hexadecimal, the secrets are encoded instead, because the encoded characters
depend on the preceding bytes.
"""

from __future__ import annotations

import base64
import html
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple
from unicodedata import normalize

SHORTEST = 3  # shorter values would be masked almost everywhere in a text
_SHORTEST_BASE64 = 4
_SHORTEST_BASE32 = 8  # common words are shorter; they could match because the case is ignored
_MIN_LINE_LENGTH = 16
_KEY = 64
_MAX_DECODINGS = 6  # JSON in a URL in HTML needs three decodings, and misread UTF-8 a fourth
_WIDEST = 12  # the length of the longest escape, such as %255Cu00e9

_CP1252 = "".join(
    character
    for character in (bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0))
    if character
)
_TAIL = rf"[\x80-\xbf{_CP1252}]"
_ESCAPE = re.compile(
    r"%[0-9A-Fa-f]{2}"
    # any number of backslashes, which an escape code may follow
    r"|\\+(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}"
    r"|[nrt])?"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
    # an escaped quote in a shell, in SQL or in CSV
    r"|'\"'\"'|'{2,}|\"{2,}"
    r"|\0+"
    # UTF-8 that was decoded as Latin-1 or Windows-1252, surrogates, undecodable bytes
    rf"|[\xc2-\xdf]{_TAIL}|[\xe0-\xef]{_TAIL}{{2}}|[\xf0-\xf4]{_TAIL}{{3}}"
    r"|[\ud800-\udbff][\udc00-\udfff]|[\udc80-\udcff]"
)
_SPACE = re.compile(r"\s+")
_ACCENTS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
_LOWER_CASE_TABLE = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ:-", b"abcdefghijklmnopqrstuvwxyz  "
)


class FormMatch(NamedTuple):
    """How to match one form of a secret.

    Attributes:
        is_word: whether the form matches only as a whole word.
        is_coded: whether the form is base64 or base32, so that adjacent characters may contain bits
            of the secret.
        is_folded: whether the search ignores the case, and treats colons and hyphens as spaces.
    """

    is_word: bool
    is_coded: bool = False
    is_folded: bool = False


class FormIndex:
    """An index that finds the forms of secrets in a text.

    Args:
        names: registered names. Forms that equal a name are not masked in the loader's messages.
    """

    def __init__(self, forms: Mapping[str, FormMatch], names: Collection[str] = ()) -> None:
        self._forms = forms
        self._names = names
        self._exact = _Keys(name for name, match in forms.items() if not match.is_folded)
        self._folded = _Keys(name for name, match in forms.items() if match.is_folded)
        lines = [[line for each in name.splitlines() if (line := each.strip())] for name in forms]
        self._blocks = [each for each in lines if len(each) > 1]
        self.longest = _WIDEST * max(map(len, forms), default=0)

    def find(self, text: str, in_own_text: bool) -> Iterator[tuple[int, int]]:
        """Yields the start and end of each secret.

        If several secrets have the same start, yields only the longest of them.

        Args:
            in_own_text: whether the text is one of the loader's messages. If so, secrets that are
                also words of the loader's messages are ignored. Otherwise, they match only as whole
                words.
        """
        if not self._forms:
            return
        # Each character is replaced by exactly one character, so positions do not change.
        folded = text.encode("ascii", "replace").translate(_LOWER_CASE_TABLE).decode()
        yield from self._matches(self._folded, folded, text, [], in_own_text)
        views: list[_View] = []
        decoded = text
        while True:
            yield from self._matches(self._exact, decoded, text, views, in_own_text)
            for start, stop in self._find_blocks(decoded):
                yield _map_to_text(start, stop, views)
            if len(views) == _MAX_DECODINGS:
                return
            view = _View(decoded, _ESCAPE, _decode)
            if view.text == decoded:
                return
            views.insert(0, view)
            decoded = view.text

    def _matches(
        self, keys: _Keys, decoded: str, text: str, views: list[_View], in_own_text: bool
    ) -> Iterator[tuple[int, int]]:
        """Searches the decoded text. Yields the start and end of each secret in the original text.

        Args:
            views: the decodings from `text` to `decoded`, the last decoding first.
        """
        solid = _View(decoded, _SPACE, _remove)  # without white space
        last = -1
        for at, spaced in keys.find(solid.text):
            name, form = spaced.name, self._forms[spaced.name]
            if at == last or not _is_spaced(solid, at, spaced, form.is_folded):
                continue
            start, stop = _map_to_text(at, at + spaced.length, [solid, *views])
            is_public = name in self._names or is_own_word(name)
            if (is_public and in_own_text) or (
                (is_public or form.is_word) and not _is_word(text, start, stop)
            ):
                continue
            last = at
            yield _widen(text, start, stop) if form.is_coded else (start, stop)

    def _find_blocks(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields the start and end of each line of a secret that has several lines.

        Consecutive lines of the text must contain the lines of the secret.
        """
        blocks = [lines for lines in self._blocks if all(line in text for line in lines)]
        if not blocks:
            return
        rows = text.splitlines(keepends=True)
        starts = [0]
        for row in rows:
            starts.append(starts[-1] + len(row))
        for lines in blocks:
            for first in range(len(rows) - len(lines) + 1):
                if all(line in rows[first + n] for n, line in enumerate(lines)):
                    for n, line in enumerate(lines):
                        start = starts[first + n] + rows[first + n].index(line)
                        yield start, start + len(line)


class _Spaced(NamedTuple):
    """A form of a secret, its length without white space, and the positions of its white space."""

    name: str
    length: int
    spaces: frozenset[int]


class _Keys:
    def __init__(self, names: Iterable[str]) -> None:
        self._keys: dict[str, list[tuple[str, _Spaced]]] = {}
        solids = ((_SPACE.sub("", name), name) for name in names)
        for solid, name in sorted(solids, key=lambda each: len(each[0]), reverse=True):
            spaced = _Spaced(name, len(solid), frozenset(_View(name, _SPACE, _remove).begins[1:]))
            self._keys.setdefault(solid[:_KEY], []).append((solid, spaced))
        lengths: dict[tuple[str, ...], set[int]] = {}
        for key in self._keys:
            lengths.setdefault(tuple(key[:SHORTEST]), set()).add(len(key))
        self._lengths = {gram: sorted(each, reverse=True) for gram, each in lengths.items()}

    def find(self, text: str) -> Iterator[tuple[int, _Spaced]]:
        """Yields the matches of all forms in a text without white space, longest forms first."""
        grams = zip(*(text[offset:] for offset in range(SHORTEST)), strict=False)
        for start, gram in enumerate(grams):
            if gram in self._lengths:
                for length in self._lengths[gram]:
                    for solid, spaced in self._keys.get(text[start : start + length], ()):
                        if text.startswith(solid, start):
                            yield start, spaced


class _View:
    """A text with all matches of a pattern replaced. Maps positions to the original text."""

    def __init__(
        self, parent: str, pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str]
    ) -> None:
        self._parent, self._pattern, self._replace = parent, pattern, replace
        self.text = pattern.sub(replace, parent)

    @property
    def begins(self) -> list[int]:
        return self._replacement_positions[0]

    def list_replacements(self, start: int, stop: int) -> Iterator[tuple[int, str]]:
        """Yields the offset and the original text of each replacement in a part of this text."""
        begins, spans = self._replacement_positions
        for n in range(bisect_right(begins, start), len(begins)):
            if begins[n] >= stop:
                return
            yield begins[n] - start, self._parent[spans[n][1] : spans[n][2]]

    @cached_property
    def _replacement_positions(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Returns the start of each replacement, and tuples (end, replaced start, replaced end)."""
        begins, spans, shift = [0], [(0, 0, 0)], 0
        for match in self._pattern.finditer(self._parent):
            start, stop = match.span()
            begin = start + shift
            end = begin + len(self._replace(match))
            shift = end - stop
            begins.append(begin)
            spans.append((end, start, stop))
        return begins, spans

    def map_to_parent(self, start: int, stop: int) -> tuple[int, int]:
        begins, spans = self._replacement_positions
        end, first, behind = spans[bisect_right(begins, start) - 1]
        start_in_parent = first if start < end else behind + start - end
        last = stop - 1
        end, _, behind = spans[bisect_right(begins, last) - 1]
        return start_in_parent, behind if last < end else behind + stop - end


def _map_to_text(start: int, stop: int, views: Iterable[_View]) -> tuple[int, int]:
    for view in views:
        start, stop = view.map_to_parent(start, stop)
    return start, stop


def _decode(match: re.Match[str]) -> str:
    escape = match[0]
    match escape[0]:
        case "%":
            return chr(int(escape[1:], 16))
        case "\\":
            return _decode_backslash(escape.lstrip("\\"))
        case "&":
            return html.unescape(escape)
        case "'" | '"' as quote:
            return quote
        case "\0":
            return ""
        case half if half >= "\ud800" and half <= "\udfff":
            if len(escape) == 1:
                return chr(ord(half) - 0xDC00)
            return escape.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    if len(escape) > 1:
        try:
            return b"".join(map(_byte, escape)).decode()
        except UnicodeDecodeError:
            pass
    return escape


def _decode_backslash(code: str) -> str:
    if not code:
        return ""
    if code in "nrt":
        return {"n": "\n", "r": "\r", "t": "\t"}[code]
    number = int(code[1:].strip("{}"), 16) if code[0] in "xuU" else int(code, 8)
    return chr(number) if number < 0x110000 else ""


def _byte(character: str) -> bytes:
    return character.encode("latin-1" if character <= "\xff" else "cp1252")


def _remove(_: re.Match[str]) -> str:
    return ""


def _is_spaced(solid: _View, at: int, form: _Spaced, may_lack: bool) -> bool:
    """Returns whether part of a text has the same white space as a form, apart from line breaks."""
    count = 0
    for offset, space in solid.list_replacements(at, at + form.length):
        if offset in form.spaces:
            count += 1
        elif "\n" not in space and "\r" not in space:
            return False
    return may_lack or count == len(form.spaces)


def _is_word(text: str, start: int, stop: int) -> bool:
    before, after = text[max(start - 1, 0) : start], text[stop : stop + 1]
    return not any(each.isalnum() or each == "_" for each in before + after)


def _widen(text: str, start: int, stop: int) -> tuple[int, int]:
    """Extends a match by adjacent base64 characters, which may contain bits of the secret."""
    if start and (text[start - 1].isalnum() or text[start - 1] in "+/-_"):
        start -= 1
    while stop < len(text) and text[stop] == "=":
        stop += 1
    if stop < len(text) and (text[stop].isalnum() or text[stop] in "+/-_"):
        stop += 1
    return start, stop


def list_forms(value: str, is_word: bool = False) -> dict[str, FormMatch]:
    """Returns the forms in which a decoded text may contain a secret.

    These are the secret, its decodings, and the base64, base32 and hexadecimal encodings of its
    UTF-8 and UTF-16 bytes. Each long line of the secret is also a form, because programs print
    private keys line by line.
    """
    plain = value.strip()
    lines = {line.strip() for line in plain.splitlines()} if "\n" in plain else set()
    lines = {x for x in lines if len(x) >= _MIN_LINE_LENGTH and not x.startswith("-----")}
    # URLs encode a space as a plus sign. Some systems decompose accented characters.
    texts = {plain, plain.replace(" ", "+"), *lines}
    texts |= {normalize(form, text) for text in texts for form in _ACCENTS}
    forms = {form: FormMatch(is_word) for text in texts for form in _list_decodings(text)}
    for raw in (_encode(plain), plain.encode("utf-16-le", "surrogatepass")):
        forms[raw.hex(" ")] = FormMatch(is_word, is_folded=True)
        for form in _in_base(raw, base64.b64encode, 6, _SHORTEST_BASE64):
            for each in (form, form.replace("+", "-").replace("/", "_")):
                forms.setdefault(each, FormMatch(False, is_coded=True))
        for form in _in_base(raw, base64.b32encode, 5, _SHORTEST_BASE32):
            forms.setdefault(form.lower(), FormMatch(False, is_coded=True, is_folded=True))
    return {f: match for f, match in forms.items() if len(_SPACE.sub("", f)) >= SHORTEST}


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # os.environ uses these surrogates
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _list_decodings(text: str) -> Iterator[str]:
    for _ in range(_MAX_DECODINGS):
        yield text.strip()
        decoded = _ESCAPE.sub(_decode, text)
        if decoded == text:
            return
        text = decoded


def _in_base(
    raw: bytes, encode: Callable[[bytes], bytes], bits: int, shortest: int
) -> Iterator[str]:
    """Yields the encoding of a secret for each possible alignment to the preceding bytes."""
    for before in range({6: 3, 5: 5}[bits]):
        text = encode(b"\0" * before + raw).decode()
        # Omits the first and last character if they also encode bits of adjacent bytes.
        text = text[-(-8 * before // bits) : 8 * (before + len(raw)) // bits]
        if len(text) >= shortest:
            yield text


@lru_cache(maxsize=10_000)
def is_own_word(form: str) -> bool:
    """Returns whether the loader's messages may contain a form by chance, such as `loader`.

    True if the loader's source code contains the form, even within a word, such as `ost`. The
    source code is very unlikely to contain a secure password.
    """
    text, words, parts = _read_own_text()
    longest = max(re.findall(r"\w+", form), key=len, default="")
    return (longest in words or longest in parts) and (longest == form or form in text)


@lru_cache(maxsize=1)
def _read_own_text() -> tuple[str, frozenset[str], str]:
    """Returns the loader's source code, its words, and a string of those words without digits."""
    package = Path(__file__).resolve().parents[1]
    modules = set(package.rglob("*.py")) - set((package / "testing").rglob("*.py"))
    text = "\n".join(path.read_text("utf-8") for path in sorted(modules))
    words = frozenset(re.findall(r"\w+", text))
    return text, words, " ".join(word for word in words if not re.search(r"\d", word))
