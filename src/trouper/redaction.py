"""Secrets are cut out before anything is written (J8, I36): values that are known, and texts that look like keys.

Cheap where there is nothing to cut: a record is searched for some fixed beginnings, and only if one is found is it read and cut. What is cut is what
somebody said, never the text's own structure: a number, a name of the format or a run of punctuation may well be the same as somebody's password.

What is encoded, as a picture is or a provider's signature, is looked through for known values only: some of it looks like a key by chance, and with a hole in it
neither could be sent again (I7).

A secret that comes in pieces must not slip through in halves: what is written before the rest is there ends where `settled` says.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

from trouper import codec
from trouper.core.messages import Json

BLANK = "[redacted]"
#: A shorter one would be found in innocent text.
KNOWN_MIN_CHARS = 8
#: Where keys of providers usually are; their values are known from the start.
KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TROUPER_API_KEY")
#: Enough to tell the few keys of a session apart, and too few to find out a secret by: of any list of passwords, many would fit.
_DIGEST_CHARS = 4
#: A long text is looked through in slices that overlap by the longest secret there is.
_SLICE, _LONGEST = 1 << 18, 1 << 15
#: The characters of base64, both alphabets, and how many of them in one run are data rather than a key and what stands around it. The longest keys have some 200.
_ENCODED_CHARS = "".join(chr(code) for code in range(128) if chr(code).isalnum()) + "+/_-"
_ENCODED_MIN_CHARS = 512
_ENCODED = re.compile(rf"[{re.escape(_ENCODED_CHARS)}]{{{_ENCODED_MIN_CHARS},}}={{0,2}}")
_KINDS = (re.compile("[0-9]"), re.compile("[A-Z]"), re.compile("[a-z]"))
#: What has no end for so long is no secret: it is written down as it is.
HELD_BACK_MAX_CHARS = 16_384

# Where a word begins, also in text that holds JSON, which writes a line end before it as `\n` and a letter with an accent as `\u00e9`.
_START = r"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4}))"
#: Between a name and its value: `: `, `=`, `": "`, and the same in JSON within JSON.
_IS = r"[\"'\\\s]{0,6}[:=][\"'\\\s]{0,6}"


def _pattern(beginnings: str, pattern: str) -> tuple[tuple[str, ...], str]:
    """What is looked for first, and what then. The group `kept` is not cut out."""
    return tuple(beginnings.split("|")), pattern


#: What keys look like, each with beginnings that are quickly looked for. Compiled by whoever finds one: mostly nobody does.
_PATTERNS: tuple[tuple[tuple[str, ...], str], ...] = (
    _pattern("AIza", r"AIza[0-9A-Za-z_-]{35,}"),
    _pattern("sk-", _START + r"sk-[0-9A-Za-z_-]{20,}"),
    _pattern("k_live_|k_test_", _START + r"[prs]k_(?:live|test)_[0-9A-Za-z]{16,}"),
    _pattern("ghp_|gho_|ghu_|ghs_|ghr_", _START + r"gh[pousr]_[0-9A-Za-z]{36,}"),
    _pattern("github_pat_", _START + r"github_pat_[0-9A-Za-z_]{40,}"),
    _pattern("glpat-", _START + r"glpat-[0-9A-Za-z_.-]{20,}"),
    _pattern("xox|xapp-", _START + r"(?:xox[abceoprs]|xapp)-[0-9A-Za-z-]{10,}"),
    _pattern("hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows)/[0-9A-Za-z_/+-]{20,}"),
    _pattern("AKIA|ASIA", _START + r"A[KS]IA[0-9A-Z]{16}(?![0-9A-Z])"),
    _pattern(
        "ecret_access_key|ecretAccessKey|ECRET_ACCESS_KEY",
        r"(?P<kept>(?i:secret_?access_?key)" + _IS + r")[0-9A-Za-z/+]{40}(?![0-9A-Za-z/+])",
    ),
    _pattern("ya29.", _START + r"ya29\.[0-9A-Za-z_-]{20,}"),
    _pattern("GOCSPX-", r"GOCSPX-[0-9A-Za-z_-]{20,}"),
    _pattern("hf_|npm_|gsk_", _START + r"(?:hf|npm|gsk)_[0-9A-Za-z]{30,}"),
    # JSON web tokens: signed ones, whose second part is JSON as well, and encrypted ones of five parts.
    _pattern(
        "eyJ",
        _START
        + r"eyJ[0-9A-Za-z_-]{8,}\.(?:eyJ[0-9A-Za-z_-]{4,}\.[0-9A-Za-z_-]*|[0-9A-Za-z_-]*(?:\.[0-9A-Za-z_-]{8,}){3})",
    ),
    # A word after "bearer" is a token if there is a digit in it.
    _pattern(
        "earer",
        r"(?P<kept>(?i:bearer)(?:\s|\\[nrt]){1,4})(?=[A-Za-z._~+/=-]{0,512}[0-9])[0-9A-Za-z._~+/=-]{16,}",
    ),
    _pattern(
        "uthorization",
        r"(?P<kept>(?i:authorization)" + _IS + r"(?:(?i:bearer|basic|token|digest)\s{1,4}))[^\s\"'\\,]{6,}",
    ),
    _pattern(
        "pi-key|pi_key|pi-Key|PI-Key|PI_KEY|pikey|piKey",
        r"(?P<kept>(?i:api[-_]?key)" + _IS + r")(?=[A-Za-z_.-]{0,64}[0-9])[0-9A-Za-z_.-]{16,}",
    ),
    # https://user:password@host
    _pattern("://", r"(?P<kept>[A-Za-z][0-9A-Za-z+.-]{1,20}://[^\s/:@\"'\\]{0,128}:)[^\s/@\"'\\]{1,256}(?=@)"),
    # Up to its end; one that is cut off goes as far as it looks like one.
    _pattern(
        "PRIVATE KEY",
        r"-----BEGIN [0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:(?!-----BEGIN)[^\"]){0,16384}?-----END [0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|[0-9A-Za-z+/=\s\\]{0,16384})",
    ),
)
#: At the end of a text: what a secret may follow that is a word of its own.
_ANNOUNCED = re.compile(
    r"(?:(?:bearer|basic|token|digest|authorization|secret_?access_?key|api[-_]?key)[\"'\\\s:=]{0,16}){1,3}\Z",
    re.IGNORECASE,
)
_BLOCK_BEGINS, _BLOCK_ENDS = "-----BEGIN ", re.compile("-----END [0-9A-Z ]{0,60}-----")


_compiled = functools.cache(re.compile)
_WORD = re.compile(r"[A-Za-z_]+\Z")
# The quick look: those that have no rarer character in them are looked for as they are, the others by it. `_` and `-` are in most keys and in few words.
_RARE = (
    "AIza",
    "AKIA",
    "ASIA",
    "ya29.",
    "eyJ",
    "bearer",
    "Bearer",
    "uthorization",
    "://",
    "hooks.slack.com/",
    "PRIVATE KEY",
    "ccessKey",
    "pikey",
    "piKey",
)
_AT_A_LINE = (
    r"_(?<=[pousrfmkteiIT]_)(?:(?<=gh[pousr]_)|(?<=hf_)|(?<=npm_)|(?<=gsk_)|(?<=github_pat_)|(?<=k_live_)|(?<=k_test_)|(?<=pi_)key|(?<=PI_)KEY"
    r"|(?<=ecret_)access_|(?<=ECRET_)ACCESS_)"
)
_AT_A_DASH = (
    r"-(?:(?<=sk-)|(?<=glpat-)|(?<=xox[abceoprs]-)|(?<=xapp-)|(?<=GOCSPX-)|(?<=pi-)key|(?<=pi-)Key|(?<=PI-)Key)"
)
_QUICK = (re.compile(_AT_A_LINE), re.compile(_AT_A_DASH))


#: Characters that are in most records anyhow: to look for one of them tells nothing.
_COMMON = frozenset(' "{}[]:,._0123456789acdeghilmnoprstuvyCEMRST')
#: A character, and what cannot be in a text without it; what has no rare character stands for itself.
Needles = tuple[tuple[str, tuple[str, ...]], ...]


def _needles(words: Iterable[str]) -> Needles:
    """What to look for, by a rare character that all of a group have in them. Most records have none of these, and a single
    character is looked for in a third of the time that a word takes."""
    groups: dict[str, list[str]] = {}
    for word in words:
        rare = set(word) - _COMMON
        groups.setdefault(min(rare) if rare else word, []).append(word)
    return tuple((sign, tuple(group)) for sign, group in groups.items())


class Redactor:
    """Cuts secrets out of text and JSON. Learns values as they become known; never forgets one, and never shows one."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        # Longest first: one may be part of another.
        self._forms: tuple[str, ...] = ()
        #: What to look for in ASCII JSON: the forms as they stand there, and the beginnings of keys.
        self._needles = _needles(_RARE)
        #: Known values of several words, which may come one word at a time.
        self._phrases: tuple[str, ...] = ()
        self.learn(*known)

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._forms)} forms>"

    def learn(self, *values: str) -> None:
        """These may stand nowhere from now on: as they are, as JSON, URLs and errors write them, and in base64, also as a part of something longer."""
        new = {value for value in values if len(value.strip()) >= KNOWN_MIN_CHARS} - self._values
        # A word of the format is in every journal anyhow, and cut out of it would leave no record that can be read.
        new = {value for value in new if not (_WORD.match(value) and any(value in word for word in codec.vocabulary()))}
        if not new:
            return
        forms = set(self._forms)
        for value in new:
            plain = value.encode("utf-8", "replace")
            forms |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
            forms |= {quote(plain, safe=""), quote(plain), quote_plus(plain)}
            # A single quote is escaped where a double one stands beside it, whether in the value or not.
            forms |= {repr(value)[1:-1], repr('"' + value)[2:-1]}
            for before in range(3):
                # The characters that hold nothing but bits of the value, wherever it stands in what was encoded.
                inside = slice((before * 8 + 5) // 6, (before + len(plain)) * 8 // 6)
                forms.add(base64.b64encode(b"\0" * before + plain)[inside].decode())
                forms.add(base64.urlsafe_b64encode(b"\0" * before + plain)[inside].decode())
        self._phrases = (*self._phrases, *sorted(value for value in new if value.split() != [value]))
        self._values |= new
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._needles = _needles([*(json.dumps(form)[1:-1] for form in self._forms), *_RARE])

    def text(self, text: str) -> str:
        """Plain text; `text` itself if there is nothing to cut."""
        if len(text) >= _ENCODED_MIN_CHARS and _is_encoded(text):
            return self._cut_known(text)
        if len(text) > _SLICE:
            pieces = list(self._pieces(text))
            return text if all(clean is piece for clean, piece in pieces) else "".join(clean for clean, _ in pieces)
        return self._cut(text)

    def _cut_known(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, BLANK)
        return text

    def _cut(self, text: str) -> str:
        text = self._cut_known(text)
        if not (any(beginning in text for beginning in _RARE) or any(quick.search(text) for quick in _QUICK)):
            return text
        for beginnings, pattern in _PATTERNS:
            for beginning in beginnings:
                if beginning in text:
                    text = _compiled(pattern).sub(_blanked_after if "(?P<kept>" in pattern else _blanked, text)
                    break
        return text

    def key(self, key: str) -> str:
        """What somebody tells things apart by, as the journal can hold it. Two that differ only in what has to be cut out of them stay two."""
        clean = self.text(key.encode("utf-8", "replace").decode())
        if clean == key:
            return key
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{clean} #{digest[:_DIGEST_CHARS]}"

    def pieces(self, text: str) -> Iterator[bytes]:
        """Long text without secrets, a slice at a time: an expression holds the interpreter's lock for as long as it runs."""
        for clean, _ in self._pieces(text):
            yield clean.encode("utf-8", "replace")

    def _pieces(self, text: str) -> Iterator[tuple[str, str]]:
        """Each slice as it may be written, and as it was."""
        start = 0
        while start < len(text):
            window = text[start : start + _SLICE + _LONGEST]
            end = self._between(window, _SLICE) if start + len(window) < len(text) else len(window)
            piece = window[:end]
            yield self._cut(piece), piece
            start += end

    def _between(self, window: str, cut: int) -> int:
        """`cut`, or the beginning of the secret that the cut would fall into."""
        for form in self._forms:
            at = window.rfind(form, max(cut - len(form) + 1, 0), min(cut + len(form) - 1, len(window)))
            if 0 <= at < cut:
                cut = at
        for beginnings, pattern in _PATTERNS:
            if any(beginning in window for beginning in beginnings):
                for found in _compiled(pattern).finditer(window, max(cut - _LONGEST, 0)):
                    if found.start() < cut < found.end():
                        cut = found.start()
        # A secret that fills a whole slice is none.
        return cut or _SLICE

    def value(self, value: Json) -> Json:
        """Any JSON value, its keys included."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(key): self.value(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self.value(inner) for inner in value]
            case bool() | None:
                return value
            case _:
                return BLANK if str(value) in self._values else value

    def __call__(self, data: bytes) -> bytes:
        """A record's JSON, which is ASCII; `data` itself if there is nothing to cut."""
        if not self._may_hold(data):
            return data
        value = codec.loads(data)
        clean = self.value(value)
        return data if clean == value else codec.dumps(clean)

    def _may_hold(self, data: bytes) -> bool:
        # As text, each byte a character: to look for one takes a third of the time that it takes in bytes.
        text = data.decode("latin-1")
        for sign, needles in self._needles:
            if sign in text:
                for needle in needles:
                    if needle in text:
                        return True
        line, dash = _QUICK
        return line.search(text) is not None or ("-" in text and dash.search(text) is not None)

    def settled(self, text: str, paused: bool = False) -> int:
        """How much of a text that goes on may be written down by itself: up to the last whole word that is not a part of a secret so far.

        `paused`: nothing has come for a while, so that the last word is taken for a whole one.
        """
        end = len(text) if paused else max(text.rfind(" "), text.rfind("\n")) + 1
        announced = _ANNOUNCED.search(text, max(end - 64, 0), end)
        if announced is not None:
            end = announced.start()
        block = text.rfind(_BLOCK_BEGINS, max(end - HELD_BACK_MAX_CHARS, 0), end)
        if block >= 0 and _BLOCK_ENDS.search(text, block, end) is None:
            end = block
        for phrase in self._phrases:
            for length in range(min(len(phrase) - 1, end), 0, -1):
                if text.startswith(phrase[:length], end - length):
                    end -= length
                    break
        return end if len(text) - end <= HELD_BACK_MAX_CHARS else len(text)


def _blanked_after(found: re.Match[str]) -> str:
    return found["kept"] + BLANK


def _blanked(found: re.Match[str]) -> str:
    return found[0] if _is_amid_encoded(found) else BLANK


def _is_encoded(text: str) -> bool:
    """Whether all of it is data; not if it begins as a key does: then it is a long one."""
    # The beginning of it: all of it holds the key that may stand at its end.
    if _ENCODED.fullmatch(text) is None or not _is_mixed(text[: len(text) // 4]):
        return False
    return not any(
        text.startswith(beginnings) and _compiled(pattern).match(text) is not None for beginnings, pattern in _PATTERNS
    )


def _is_amid_encoded(found: re.Match[str]) -> bool:
    """Whether what was found is a piece of data that is much longer: of a picture within a text, say."""
    if found[0].strip(_ENCODED_CHARS):
        return False  # It goes over the end of the run.
    before = found.string[max(found.start() - _ENCODED_MIN_CHARS, 0) : found.start()]
    behind = found.string[found.end() : found.end() + _ENCODED_MIN_CHARS]
    around = before[len(before.rstrip(_ENCODED_CHARS)) :] + behind[: len(behind) - len(behind.lstrip(_ENCODED_CHARS))]
    return len(around) >= _ENCODED_MIN_CHARS and _is_mixed(around)


def _is_mixed(text: str) -> bool:
    """Of all kinds of characters, as data is: a ruler of dashes or x's may well stand right before a key."""
    return all(kind.search(text) is not None for kind in _KINDS)


def keys_in(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The keys that this process was given in its environment."""
    return tuple(environment[name] for name in KEY_VARIABLES if environment.get(name))
