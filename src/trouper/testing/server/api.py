"""An application that plays a provider by a script: what is the same whoever is played (M16)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, TypedDict

from trouper.core.messages import Json
from trouper.models import wire_json
from trouper.testing.server.faults import Status, Style
from trouper.testing.server.listener import Responder, SeenRequest
from trouper.testing.server.playing import StreamPlayer, Writer, gather
from trouper.testing.server.script import Script, Turn


class ApiOptions(TypedDict, total=False):
    """How a provider is played: the options of `ScriptedApi`, for those that hand them on."""

    style: Style | None
    api_key: str | None
    repeat_last: bool
    strict: bool


class ScriptedApi(ABC):
    """An `Application`. `style`: how streams are written. `repeat_last`: whether the last turn answers all further requests."""

    #: Of every reply in one piece.
    json_headers: ClassVar[Mapping[str, str]]
    #: Of every stream, beside those that all have.
    stream_headers: ClassVar[Mapping[str, str]]

    def __init__(
        self,
        turns: Iterable[Turn] = (),
        *,
        style: Style | None = None,
        api_key: str | None = None,
        repeat_last: bool = False,
        strict: bool = True,
    ) -> None:
        self.script = Script(turns, repeat_last=repeat_last)
        self._style = style or Style()
        #: If given, another key is refused as the provider would.
        self._api_key = api_key
        #: Whether requests are checked as the real one does: an answer for each call, nothing empty.
        self._strict = strict

    @abstractmethod
    async def __call__(self, request: SeenRequest, respond: Responder) -> None: ...

    @abstractmethod
    def _error_body(self, status: Status) -> Json:
        """A refusal in the provider's form."""

    @abstractmethod
    def _with_unknown_fields(self, value: dict[str, Json]) -> dict[str, Json]:
        """The same event as a later version of the service might send it."""

    def _wait_headers(self, wait_s: float) -> Mapping[str, str]:
        """How the provider tells in its headers how long to wait, if there it does."""
        return {}

    async def _body(
        self,
        request: SeenRequest,
        respond: Responder,
        unreadable: str,
        problem_in: Callable[[Mapping[str, Json]], str | None],
    ) -> Mapping[str, Json] | None:
        """What was asked, if it can be answered. If not, that was said: in the provider's words, by `problem_in`, of what has the form of a request."""
        value: Json = None
        with suppress(ValueError):
            value = request.json
        body: dict[str, Json] | None = value if isinstance(value, dict) else None
        problem = unreadable if body is None else None
        if body is not None and self._strict:
            try:
                problem = problem_in(body)
            except (AttributeError, KeyError, TypeError, RecursionError):
                problem = "Invalid request: a field is missing, not of its type, or nested too deep"
        if problem is not None:
            await self._refuse(respond, Status(400, problem))
            return None
        return body

    async def _reply(
        self,
        request: SeenRequest,
        respond: Responder,
        writer: Writer,
        whole: Callable[[Sequence[Json]], Json],
        *,
        streamed: bool,
    ) -> None:
        """The script's next turn. `whole`: a stream's events as the reply of a request that wants it in one piece."""
        items = self.script.reply_to(request)
        if items and isinstance(items[0], Status):
            await self._refuse(respond, items[0])
        elif streamed:
            player = StreamPlayer(self._style, respond, writer, self._with_unknown_fields, self.stream_headers)
            await player.play(items)
        else:
            events = await gather(items, writer, respond)
            if isinstance(events, Status):
                await self._refuse(respond, events)
            else:
                await self._answer(respond, whole(events))

    async def _answer(self, respond: Responder, value: Json) -> None:
        await respond.reply(200, self.json_headers, wire_json.encode(value))

    async def _refuse(self, respond: Responder, status: Status) -> None:
        body = status.body if status.body is not None else wire_json.encode(self._error_body(status))
        wait = {} if status.retry_delay_s is None else self._wait_headers(status.retry_delay_s)
        await respond.reply(status.code, {**self.json_headers, **wait, **status.headers}, body)
