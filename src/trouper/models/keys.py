"""A provider's key: where it comes from, how it is sent, and how it is kept out of all that is shown (M3)."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import TypeAlias
from urllib.parse import quote

from attrs import field, frozen

from trouper._errors import ConfigError
from trouper.models._errors import AuthFailed

#: A key itself, or a function that is asked for it before every request (it may be async).
KeySource: TypeAlias = str | Callable[[], str | Awaitable[str]]

#: Shorter text is not cut out of messages: it would take innocent words with it, and is no key.
_SECRET_MIN = 6
_KEY_TEXT = re.compile(r"[\x21-\x7e]+\Z")


@frozen
class Credential:
    """One request's proof of who asks: a header, and the texts that must never show. Without a header: the client's own headers prove it."""

    header: str = ""
    value: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redact(self, text: str) -> str:
        """`text` without any form of the key."""
        forms = {form for secret in self.secrets if len(secret) >= _SECRET_MIN for form in _forms(secret)}
        # The longest first: a quoted form may contain the plain one, and one secret another.
        for form in sorted(forms, key=len, reverse=True):
            text = text.replace(form, "[key]")
        return text


def _forms(secret: str) -> tuple[str, ...]:
    return secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("=")


class Key:
    """Where a provider's key comes from; asked once per request, shown never (M3)."""

    __slots__ = ("_header", "_prefix", "_provider", "_source")

    def __init__(self, source: KeySource, *, provider: str, header: str, prefix: str = "") -> None:
        self._source = source
        self._provider = provider
        self._header = header
        self._prefix = prefix
        if not callable(source):
            self._credential(source)

    def __repr__(self) -> str:
        return f"<Key of {self._provider}>"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled; build the client anew where it is needed")

    @property
    def known(self) -> tuple[str, ...]:
        """The key, if it is there without asking."""
        return () if callable(self._source) else self._credential(self._source).secrets

    async def ask(self) -> Credential:
        if isinstance(self._source, str):
            return self._credential(self._source)
        answer: object = None
        failed = ""
        try:
            answer = self._source()
            if isawaitable(answer):
                answer = await answer
        except Exception as exc:
            # The chain is left out on purpose: what a key store's exception says may be the key.
            failed = type(exc).__name__
        if failed:
            raise AuthFailed(
                f"the function that gives the key of {self._provider!r} raised {failed}; call it by hand to see why",
                provider=self._provider,
            )
        try:
            return self._credential(answer)
        except ConfigError as wrong:
            refusal = wrong.message
        raise AuthFailed(f"{refusal}; it came from the function that was given as api_key=", provider=self._provider)

    def _credential(self, key: object) -> Credential:
        text = key.strip() if isinstance(key, str) else ""
        if not _KEY_TEXT.match(text):
            raise ConfigError(
                f"the key of {self._provider!r} is {'empty' if isinstance(key, str) and not text else 'not plain ASCII text'}; "
                "give the key as the provider's page shows it, without quotes or line breaks",
                provider=self._provider,
            )
        return Credential(self._header, self._prefix + text, (text,))


def key_from_environment(names: Sequence[str]) -> str | None:
    """The first of these variables that is set and not empty."""
    for name in names:
        if value := os.environ.get(name, "").strip():
            return value
    return None
