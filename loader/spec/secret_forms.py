"""Finds secrets in text, also where they are escaped, encoded or broken over lines.

The text is decoded, with any mixture of escapes, and once more as long as that changes it.
Secrets are decoded the same way and looked up in each of these texts, all at once: the time depends
on the text's length, hardly on how many secrets there are. Only base64, base32 and hexadecimal,
which change with what stands before, are registered in their encoded forms.
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

SHORTEST = 3  # shorter values would mangle every text, and hide little
_SHORTEST_BASE64 = 4
_SHORTEST_BASE32 = 8  # in any case of letters, four may be a word
_SHORTEST_LINE = 16
_KEY = 64
_DEPTH = 6  # JSON in a URL in HTML takes three, bytes of UTF-8 one
_WIDEST = 12  # characters of an escape: %255Cu00e9

_CP1252 = "".join(
    character
    for character in (bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0))
    if character
)
_TAIL = rf"[\x80-\xbf{_CP1252}]"
_ESCAPE = re.compile(
    r"%[0-9A-Fa-f]{2}"
    # however many backslashes nesting has put there, with or without a code
    r"|\\+(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}"
    r"|[nrt])?"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
    # a quote within quotes: of a shell, SQL and CSV
    r"|'\"'\"'|'{2,}|\"{2,}"
    r"|\0+"
    # UTF-8 that was read as Latin-1 or as Windows reads it, half characters, undecodable bytes
    rf"|[\xc2-\xdf]{_TAIL}|[\xe0-\xef]{_TAIL}{{2}}|[\xf0-\xf4]{_TAIL}{{3}}"
    r"|[\ud800-\udbff][\udc00-\udfff]|[\udc80-\udcff]"
)
_SPACE = re.compile(r"\s+")
_ACCENTS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
_FOLDED = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ:-", b"abcdefghijklmnopqrstuvwxyz  ")


class Form(NamedTuple):
    """The pattern of one form of a secret.

    Attributes:
        is_word: only where no letter, digit or underscore is next to it.
        is_coded: a character next to it may hold some bits of the secret.
        is_folded: in any case of letters, and with colons or hyphens for its spaces.
    """

    is_word: bool
    is_coded: bool = False
    is_folded: bool = False


class FormIndex:
    """Finds all of a set of forms in a text.

    Args:
        forms: the forms, and how each is matched.
        names: what stays readable in the loader's own text, like its words.
    """

    def __init__(self, forms: Mapping[str, Form], names: Collection[str] = ()) -> None:
        self._forms = forms
        self._names = names
        self._exact = _Keys(name for name, form in forms.items() if not form.is_folded)
        self._folded = _Keys(name for name, form in forms.items() if form.is_folded)
        lines = [[line for each in name.splitlines() if (line := each.strip())] for name in forms]
        self._blocks = [each for each in lines if len(each) > 1]
        self.longest = _WIDEST * max(map(len, forms), default=0)

    def find(self, text: str, in_own_text: bool) -> Iterator[tuple[int, int]]:
        """Yields the longest form that begins at each character.

        Args:
            in_own_text: whether the loader wrote the text around the secrets. Forms that occur in
                the loader's own words are not looked for then, and elsewhere only as whole words.
        """
        if not self._forms:
            return
        # Of the same length, so positions stay.
        folded = text.encode("ascii", "replace").translate(_FOLDED).decode()
        yield from self._matches(self._folded, folded, text, [], in_own_text)
        views: list[_View] = []
        decoded = text
        while True:
            yield from self._matches(self._exact, decoded, text, views, in_own_text)
            for start, stop in self._find_blocks(decoded):
                yield _in_text(start, stop, views)
            if len(views) == _DEPTH:
                return
            view = _View(decoded, _ESCAPE, _decode)
            if view.text == decoded:
                return
            views.insert(0, view)
            decoded = view.text

    def _matches(
        self, keys: _Keys, decoded: str, text: str, views: list[_View], in_own_text: bool
    ) -> Iterator[tuple[int, int]]:
        """Yields where secrets are in the whole text, of which this is what its escapes say."""
        solid = _View(decoded, _SPACE, _remove)
        last = -1
        for at, spaced in keys.find(solid.text):
            name, form = spaced.name, self._forms[spaced.name]
            if at == last or not _is_spaced(solid, at, spaced, form.is_folded):
                continue
            start, stop = _in_text(at, at + spaced.length, [solid, *views])
            is_own = name in self._names or is_own_word(name)
            if (is_own and in_own_text) or (
                (is_own or form.is_word) and not _is_word(text, start, stop)
            ):
                continue
            last = at
            yield _widen(text, start, stop) if form.is_coded else (start, stop)

    def _find_blocks(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields the lines of secrets that have several, in any context."""
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
    """A form: its text, its length without white space, and where that is."""

    name: str
    length: int
    spaces: frozenset[int]


class _Keys:
    """Looks up all forms at each character, with any white space."""

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
        """Yields where forms begin in a text without white space; the longest first."""
        grams = zip(*(text[offset:] for offset in range(SHORTEST)), strict=False)
        for start, gram in enumerate(grams):
            if gram in self._lengths:
                for length in self._lengths[gram]:
                    for solid, spaced in self._keys.get(text[start : start + length], ()):
                        if text.startswith(solid, start):
                            yield start, spaced


class _View:
    """A text made from another one by replacing each match of a pattern."""

    def __init__(
        self, parent: str, pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str]
    ) -> None:
        self._parent, self._pattern, self._replace = parent, pattern, replace
        self.text = pattern.sub(replace, parent)

    @property
    def begins(self) -> list[int]:
        """Where each replacement begins, after the text's beginning."""
        return self._replacement_positions[0]

    def list_replacements(self, start: int, stop: int) -> Iterator[tuple[int, str]]:
        """Yields the replacements within a part of this text: where, and what they replace."""
        begins, spans = self._replacement_positions
        for n in range(bisect_right(begins, start), len(begins)):
            if begins[n] >= stop:
                return
            yield begins[n] - start, self._parent[spans[n][1] : spans[n][2]]

    @cached_property
    def _replacement_positions(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Where each replacement begins, and where it ends, and begins and ends in the parent."""
        begins, spans, shift = [0], [(0, 0, 0)], 0
        for found in self._pattern.finditer(self._parent):
            start, stop = found.span()
            begin = start + shift
            end = begin + len(self._replace(found))
            shift = end - stop
            begins.append(begin)
            spans.append((end, start, stop))
        return begins, spans

    def in_parent(self, start: int, stop: int) -> tuple[int, int]:
        """Returns where in the parent that is from which a part of this text was made."""
        begins, spans = self._replacement_positions
        end, first, behind = spans[bisect_right(begins, start) - 1]
        start_in_parent = first if start < end else behind + start - end
        last = stop - 1
        end, _, behind = spans[bisect_right(begins, last) - 1]
        return start_in_parent, behind if last < end else behind + stop - end


def _in_text(start: int, stop: int, views: Iterable[_View]) -> tuple[int, int]:
    for view in views:
        start, stop = view.in_parent(start, stop)
    return start, stop


def _decode(found: re.Match[str]) -> str:
    """Returns the character that an escape stands for."""
    escape = found[0]
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
    """Whether a part of a text has a form's white space and no other, line breaks aside."""
    seen = 0
    for offset, space in solid.list_replacements(at, at + form.length):
        if offset in form.spaces:
            seen += 1
        elif "\n" not in space and "\r" not in space:
            return False
    return may_lack or seen == len(form.spaces)


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
    """Returns the forms of a secret by which decoded texts contain it.

    They are itself, decoded and not; its long lines, as a private key is printed line by line; and
    base64, base32 and hexadecimal, of UTF-8 and UTF-16.
    """
    plain = value.strip()
    lines = {line.strip() for line in plain.splitlines()} if "\n" in plain else set()
    lines = {x for x in lines if len(x) >= _SHORTEST_LINE and not x.startswith("-----")}
    # In the query of a URL, a space is a plus. Some systems write accents as characters.
    texts = {plain, plain.replace(" ", "+"), *lines}
    texts |= {normalize(form, text) for text in texts for form in _ACCENTS}
    found = {form: Form(is_word) for text in texts for form in _list_decodings(text)}
    for raw in (_bytes(plain), plain.encode("utf-16-le", "surrogatepass")):
        found[raw.hex(" ")] = Form(is_word, is_folded=True)
        for form in _in_base(raw, base64.b64encode, 6, _SHORTEST_BASE64):
            for each in (form, form.replace("+", "-").replace("/", "_")):
                found.setdefault(each, Form(False, is_coded=True))
        for form in _in_base(raw, base64.b32encode, 5, _SHORTEST_BASE32):
            found.setdefault(form.lower(), Form(False, is_coded=True, is_folded=True))
    return {form: how for form, how in found.items() if len(_SPACE.sub("", form)) >= SHORTEST}


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # as os.environ has what is not UTF-8
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _list_decodings(text: str) -> Iterator[str]:
    for _ in range(_DEPTH):
        yield text.strip()
        decoded = _ESCAPE.sub(_decode, text)
        if decoded == text:
            return
        text = decoded


def _in_base(
    raw: bytes, encode: Callable[[bytes], bytes], bits: int, shortest: int
) -> Iterator[str]:
    """Yields what an encoding of any text with the secret in it contains."""
    for before in range({6: 3, 5: 5}[bits]):
        text = encode(b"\0" * before + raw).decode()
        # Only characters that hold no bits of what stands before or behind.
        text = text[-(-8 * before // bits) : 8 * (before + len(raw)) // bits]
        if len(text) >= shortest:
            yield text


@lru_cache(maxsize=10_000)
def is_own_word(form: str) -> bool:
    """Whether a message of the loader may contain a form of a secret: `loader`, `setup`, `ost`.

    That is so if its source text does. A secret that cannot be guessed is in no source text.
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
