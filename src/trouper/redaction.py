"""Secrets are cut out before anything is written (J8, I36): values that are known, and texts that look like keys.

Cheap where there is nothing to cut: a record is searched for a handful of fixed beginnings, and only if one is found by a pattern.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping

BLANK = b"[redacted]"
#: A shorter one would be found in innocent text.
KNOWN_MIN_CHARS = 8
#: Where keys of providers usually are; their values are known from the start.
KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TROUPER_API_KEY")

#: What keys look like, each with a beginning that is quickly looked for.
_PATTERNS: tuple[tuple[bytes, re.Pattern[bytes]], ...] = (
    (b"AIza", re.compile(rb"AIza[0-9A-Za-z_-]{35}")),
    (b"sk-", re.compile(rb"\bsk-(?:ant-|proj-|or-)?[0-9A-Za-z_-]{20,}")),
    (b"ghp_", re.compile(rb"\bghp_[0-9A-Za-z]{36}")),
    (b"github_pat_", re.compile(rb"\bgithub_pat_[0-9A-Za-z_]{40,}")),
    (b"xox", re.compile(rb"\bxox[abprs]-[0-9A-Za-z-]{10,}")),
    (b"AKIA", re.compile(rb"\bAKIA[0-9A-Z]{16}\b")),
    (b"ya29.", re.compile(rb"\bya29\.[0-9A-Za-z_-]{20,}")),
    (
        b"PRIVATE KEY-----",
        re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|(?=\"))"),
    ),
)


class Redactor:
    """Cuts secrets out of JSON text. Learns values as they become known; never forgets one, and never shows one."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        # Longest first: one may be part of another.
        self._known: tuple[bytes, ...] = ()
        self.learn(*known)

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._known)} forms>"

    def learn(self, *values: str) -> None:
        """These may stand nowhere from now on: as they are, as JSON writes them, and in base64."""
        forms = set(self._known)
        for value in values:
            if len(value.strip()) >= KNOWN_MIN_CHARS:
                plain = value.encode("utf-8", "replace")
                forms.add(plain)
                forms.add(json.dumps(value)[1:-1].encode("ascii"))
                forms.add(base64.b64encode(plain).rstrip(b"="))
                forms.add(base64.urlsafe_b64encode(plain).rstrip(b"="))
        if len(forms) != len(self._known):
            self._known = tuple(sorted(forms, key=len, reverse=True))

    def text(self, text: str) -> str:
        """The same for plain text; `text` itself if there is nothing to cut."""
        data = text.encode("utf-8", "replace")
        clean = self(data)
        return text if clean is data else clean.decode("utf-8", "replace")

    def __call__(self, data: bytes) -> bytes:
        """`data` itself if there is nothing to cut."""
        # `find`, not `in`: to look for bytes in bytes, `in` first tries a number, and pays for the exception.
        for form in self._known:
            if data.find(form) >= 0:
                data = data.replace(form, BLANK)
        for beginning, pattern in _PATTERNS:
            if data.find(beginning) >= 0:
                data = pattern.sub(BLANK, data)
        return data


def keys_in(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The keys that this process was given in its environment."""
    return tuple(environment[name] for name in KEY_VARIABLES if environment.get(name))
