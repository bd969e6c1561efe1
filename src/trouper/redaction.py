"""Secrets are cut out before anything is written (J8, I36): values that are known, and texts that look like keys.

Cheap where there is nothing to cut: a record is searched for a handful of fixed beginnings, and only if one is found is it read and cut. What is cut is what
somebody said, never the text's own structure: a number, a name of the format or a run of punctuation may well be the same as somebody's password.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping

from trouper import codec
from trouper.core.messages import Json

BLANK = "[redacted]"
#: A shorter one would be found in innocent text.
KNOWN_MIN_CHARS = 8
#: Where keys of providers usually are; their values are known from the start.
KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TROUPER_API_KEY")

#: What keys look like, each with a beginning that is quickly looked for.
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("AIza", re.compile(r"AIza[0-9A-Za-z_-]{35}")),
    ("sk-", re.compile(r"\bsk-(?:ant-|proj-|or-)?[0-9A-Za-z_-]{20,}")),
    ("ghp_", re.compile(r"\bghp_[0-9A-Za-z]{36}")),
    ("github_pat_", re.compile(r"\bgithub_pat_[0-9A-Za-z_]{40,}")),
    ("xox", re.compile(r"\bxox[abprs]-[0-9A-Za-z-]{10,}")),
    ("AKIA", re.compile(r"\bAKIA[0-9A-Z]{16}\b")),
    ("ya29.", re.compile(r"\bya29\.[0-9A-Za-z_-]{20,}")),
    (
        "PRIVATE KEY-----",
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    ),
)
_WORD = re.compile(r"[A-Za-z_]+\Z")
_BEGINNINGS = tuple(beginning.encode() for beginning, _ in _PATTERNS)


class Redactor:
    """Cuts secrets out of text and JSON. Learns values as they become known; never forgets one, and never shows one."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        # Longest first: one may be part of another.
        self._forms: tuple[str, ...] = ()
        #: What to look for in ASCII JSON: the forms as they stand there, and the beginnings of keys.
        self._needles = _BEGINNINGS
        self.learn(*known)

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._forms)} forms>"

    def learn(self, *values: str) -> None:
        """These may stand nowhere from now on: as they are, as JSON writes them, and in base64."""
        new = {value for value in values if len(value.strip()) >= KNOWN_MIN_CHARS} - self._values
        # A word of the format is in every journal anyhow, and cut out of it would leave no record that can be read.
        new = {value for value in new if not (_WORD.match(value) and any(value in word for word in codec.vocabulary()))}
        if not new:
            return
        forms = set(self._forms)
        for value in new:
            plain = value.encode("utf-8", "replace")
            forms |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
            forms |= {encoded(plain).rstrip(b"=").decode() for encoded in (base64.b64encode, base64.urlsafe_b64encode)}
        self._values |= new
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._needles = (*(json.dumps(form)[1:-1].encode() for form in self._forms), *_BEGINNINGS)

    def text(self, text: str) -> str:
        """Plain text; `text` itself if there is nothing to cut."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, BLANK)
        for beginning, pattern in _PATTERNS:
            if beginning in text:
                text = pattern.sub(BLANK, text)
        return text

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
        # `find`, not `in`: to look for bytes in bytes, `in` first tries a number, and pays for the exception.
        for needle in self._needles:  # noqa: SIM110 - for every record: a generator would cost more than the search
            if data.find(needle) >= 0:
                return True
        return False


def keys_in(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The keys that this process was given in its environment."""
    return tuple(environment[name] for name in KEY_VARIABLES if environment.get(name))
