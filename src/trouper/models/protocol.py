"""What Trouper asks of a model: one method.

    class MyModel:
        name = "mine:small"
        context_window = 100_000

        @asynccontextmanager
        async def stream(self, request):
            yield self._chunks(request)      # an async iterator of chunks, ending in Done

Opening the context is connecting, unless `request.connected()` was called: then it is waiting for the first event. Errors of `trouper.models` may come from opening and from iterating, and say whether another try makes sense. Connections that
fail by themselves (`ConnectionError`, `TimeoutError`, those of trio and httpx) count as `NetworkFault`; anything else that is raised ends the turn.
Leaving the context closes the connection, also under cancellation. Retries, deadlines and validation are not a model's business: the model call's actor does them.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from operator import attrgetter
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from trouper._errors import ConfigError
from trouper.core.messages import Json, Message, ToolSpec
from trouper.core.values import frozen
from trouper.models.chunks import Chunk

#: "auto": as the model likes; "none": no tools; "any": at least one; or the name of the one to call.
ToolChoice: TypeAlias = Literal["auto", "none", "any"] | str


@frozen(frequent=True)
class ModelRequest:
    """One step's question. Already validated (L22): each call answered, in order."""

    messages: Sequence[Message]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    temperature: float | None = None
    #: JSON Schema that the reply's text must follow, for providers that can promise it.
    response_schema: Mapping[str, Json] | None = None
    #: Overrides the client's own model name for this request (M6).
    model: str | None = None
    #: Whose request this is: for recordings, scripts and logs; never sent.
    session: str = ""
    turn: int = 0
    step: int = 0
    attempt: int = 1
    #: The silence after which the caller gives up (L12): a client that waits for something after the last word waits for less. Never sent.
    idle_s: float | None = None
    #: "turn", or "compaction" for a summary (L28).
    purpose: str = "turn"
    extra: Mapping[str, Json] = msgspec.field(default_factory=dict)
    #: Called by a client whose connection is there, and which now waits for the reply: that may take as long as the first event may, and not only as long as
    #: connecting (L12). Never sent.
    connected: Callable[[], None] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether it asks the same: whoever hears of the connection is no part of that."""
        return _asked(self) == _asked(other) if isinstance(other, ModelRequest) else NotImplemented


_asked = attrgetter(*(name for name in inspect.get_annotations(ModelRequest) if name != "connected"))


@runtime_checkable
class Model(Protocol):
    """A provider's client, a script, a simulation, or a wrapper around another model (M1).

    It may also have a `name`, and a `context_window`: see `name_of` and `window_of`.
    """

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """The reply to one request, chunk by chunk; leaving the block ends it. Raises `ModelError`s only.

        A clean-up that is shielded from cancels needs a deadline of its own: nothing can end it from outside, and the runtime cannot be closed before it.
        """


def name_of(model: Model) -> str:
    """`provider:model`, as events and errors show it; the class of a model that has no name."""
    name: str = getattr(model, "name", None) or type(model).__name__
    return name


def window_of(model: Model) -> int | None:
    """How many tokens fit, if known: the base of the compaction trigger (L26)."""
    window: int | None = getattr(model, "context_window", None)
    return window


async def close_model(model: Model) -> None:
    """Close what a model keeps open for its next request, if it keeps anything: `aclose` is not part of the protocol, but may be there."""
    if (close := getattr(model, "aclose", None)) is not None:
        await close()


class Confidant(Protocol):
    """Somebody who has to know secrets, to keep them out of what is written."""

    def learn(self, *values: str) -> None: ...

    def text(self, text: str) -> str:
        """A text without all that it knows."""
        ...


def confide_in(model: Model, confidant: Confidant) -> None:
    """Have a model tell its keys, now and whenever it gets another one, if it has any: `confide_in` is not part of the protocol, but may be there."""
    if (confide := getattr(model, "confide_in", None)) is not None:
        confide(confidant)


def forget_session(model: Model, session: str) -> None:
    """Have a model let go of what it keeps for a session's next request, if it keeps anything: `forget_session` is not part of the protocol, but may be there."""
    if (forget := getattr(model, "forget_session", None)) is not None:
        forget(session)


def check_model(model: object) -> None:
    """Refuse what is no model, where it is given and not when it is asked."""
    if isinstance(model, type):
        raise ConfigError(f"model={model.__name__} is a class; give an object of it: model={model.__name__}(...)")
    if model is not None and not callable(getattr(model, "stream", None)):
        raise ConfigError(f"{model!r} is no model; give one of trouper.models, or an object with `stream(request)`")
    stream = getattr(model, "stream", None)
    if inspect.isasyncgenfunction(stream) or inspect.iscoroutinefunction(stream):
        raise ConfigError(
            f"model={model!r} has a stream() that is no context manager; write @asynccontextmanager above it, and yield an async iterator of chunks"
        )
    name = getattr(model, "name", None)
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"{model!r} has name={name!r}; give a name as text, 'provider:model', or none")
    window = getattr(model, "context_window", None)
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or not 0 <= window < 2**63):
        raise ConfigError(f"{model!r} has context_window={window!r}; give a whole number of tokens, or None if unknown")
