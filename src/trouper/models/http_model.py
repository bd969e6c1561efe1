"""What the clients of providers have in common, whoever is asked: a name, a window, an address with its connections, and a key."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, Self

from attrs import evolve

from trouper.models.http import Endpoint
from trouper.models.keys import Credential, Key
from trouper.models.protocol import Confidant

if TYPE_CHECKING:
    import httpx


def window_in(windows: Mapping[str, int], name: str) -> int | None:
    """Tokens that fit, from a table by the beginnings of models' names; the longest that matches counts."""
    matching = [prefix for prefix in windows if name.startswith(prefix)]
    return windows[max(matching, key=len)] if matching else None


class Builder(Protocol):
    """Makes the bodies of requests, each from that of the one before."""

    def forget(self, session: str) -> None:
        """Drop what is kept for a session; it only costs its next request some time."""


class HttpModel:
    """A `Model` over HTTP but for its `stream`, which each client has in its provider's words, and its key, which each looks for by itself."""

    #: `None` if none is sent.
    _key: Key | None
    _builder: Builder

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        provider: str,
        window: int | None,
        event_bytes_max: int,
        headers: Mapping[str, str] | None,
        proxy: str | None,
        transport: httpx.AsyncBaseTransport | None,
        connect_timeout_s: float,
    ) -> None:
        self._model = model
        self._provider = provider
        self._window = window
        self._event_bytes_max = event_bytes_max
        # Weakly: a client may outlive many runtimes.
        self._confidants: weakref.WeakSet[Confidant] = weakref.WeakSet()
        self._endpoint = Endpoint(
            base_url,
            provider=provider,
            headers=headers,
            proxy=proxy,
            transport=transport,
            connect_timeout_s=connect_timeout_s,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, base_url={self._endpoint.shown_url!r})"

    @property
    def name(self) -> str:
        """`provider:model`, as events and errors show it."""
        return f"{self._provider}:{self._model}"

    @property
    def context_window(self) -> int | None:
        """How many tokens fit, if known."""
        return self._window

    def confide_in(self, confidant: Confidant) -> None:
        """Tell a key that is known by now, and every one that is asked for later (J8, I36)."""
        self._confidants.add(confidant)
        confidant.learn(*(self._key.known if self._key is not None else ()), *self._endpoint.secrets)

    async def _confided(self) -> Credential:
        """The credential of the next request, with all that must not show of it; whoever has to know that is told first."""
        asked = await self._credential() or Credential()
        for confidant in self._confidants:
            confidant.learn(*asked.secrets)
        return evolve(asked, secrets=(*asked.secrets, *self._endpoint.secrets))

    async def _credential(self) -> Credential | None:
        return await self._key.ask() if self._key is not None else None

    def forget_session(self, session: str) -> None:
        """It has ended, or was put to rest: nothing is kept for its next request."""
        self._builder.forget(session)

    async def aclose(self) -> None:
        """Close the idle connections. The client may be used again."""
        await self._endpoint.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
