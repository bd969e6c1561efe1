"""Hypothesis strategies for what flows through Trouper: JSON, opaque fields, and histories that a provider may be sent.

    @given(histories())
    def test_my_model_takes_any_history(messages): ...

Hypothesis is needed to import this module, and is not a dependency of Trouper's: install `hypothesis` next to it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache

from hypothesis import strategies as st

from trouper.core.ids import CallId
from trouper.core.messages import (
    Json,
    Media,
    Message,
    Opaque,
    Outcome,
    Part,
    ProviderPart,
    Text,
    Thinking,
    ToolAnswer,
    ToolCall,
    ToolSpec,
)

# Strategies are built once: hypothesis looks each new one over before its first use, which costs more than drawing from it.
_ENCODABLE = st.characters(codec="utf-8")


@cache
def texts(max_size: int = 40) -> st.SearchStrategy[str]:
    """Any text that UTF-8 can write, with the separators that careless readers split at."""
    return st.one_of(
        st.text(_ENCODABLE, max_size=max_size), st.sampled_from(["a\u2028b", "\ufeffx", "\r\n", "😀", " ", "\x00"])
    )


@cache
def json_values(max_leaves: int = 6) -> st.SearchStrategy[Json]:
    """Any JSON that every reader reads alike."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False, width=32),
        texts(20),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts(10), inner, max_size=3)),
        max_leaves=max_leaves,
    )


@cache
def json_objects(max_leaves: int = 6) -> st.SearchStrategy[dict[str, Json]]:
    """The same, with names: as the arguments of a call are."""
    return st.dictionaries(texts(10), json_values(max_leaves), max_size=3)


@cache
def signatures() -> st.SearchStrategy[str]:
    """Base64 as providers write it: with either alphabet."""
    encoders: list[Callable[[bytes], bytes]] = [base64.b64encode, base64.urlsafe_b64encode]
    return st.builds(
        lambda data, encode: encode(data).decode("ascii"), st.binary(min_size=1, max_size=60), st.sampled_from(encoders)
    )


@cache
def opaques(provider: str) -> st.SearchStrategy[Opaque | None]:
    """What only the provider understands, if there is anything (I7)."""
    return st.one_of(st.none(), st.builds(lambda signed: Opaque(provider, {"thoughtSignature": signed}), signatures()))


@cache
def media() -> st.SearchStrategy[Media]:
    """Pictures, sounds and files, in the message or elsewhere."""
    encoded = st.binary(min_size=1, max_size=30).map(lambda data: base64.b64encode(data).decode("ascii"))
    return st.one_of(
        st.builds(Media, st.sampled_from(["image/png", "application/pdf", "audio/wav"]), data=encoded),
        st.builds(Media, st.just("video/mp4"), uri=st.just("https://files.example/v1/clip")),
    )


@cache
def names() -> st.SearchStrategy[str]:
    """Names of tools and parameters that every provider takes."""
    return st.text("abcxyz_", min_size=1, max_size=8)


@cache
def tool_specs() -> st.SearchStrategy[ToolSpec]:
    """Tools as a model is shown them."""
    properties = st.dictionaries(
        names(),
        st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": ["string", "null"]}, {"enum": ["a", "b"]}]),
    )
    return st.builds(
        lambda name, description, known: ToolSpec(name, description, {"type": "object", "properties": known}),
        names(),
        texts(),
        properties,
    )


def histories(provider: str = "gemini", max_exchanges: int = 5) -> st.SearchStrategy[tuple[Message, ...]]:
    """Histories that `core.history` calls sound and ready: each call answered once, in order, by the tool message after it (L22, I5)."""
    return _histories(provider, max_exchanges)


@st.composite
def _histories(draw: st.DrawFn, provider: str, max_exchanges: int) -> tuple[Message, ...]:
    messages = [draw(_user_messages())]
    for exchange in range(draw(st.integers(0, max_exchanges))):
        reply = draw(_assistant_messages(provider, exchange))
        messages.append(reply)
        if reply.calls:
            messages.append(draw(_tool_messages(reply)))
            messages.extend(draw(st.lists(_user_messages(), max_size=1)))
        else:
            messages.extend(draw(st.lists(_user_messages(), min_size=1, max_size=2)))
    return tuple(messages)


@cache
def _user_messages() -> st.SearchStrategy[Message]:
    said = st.one_of(st.builds(Text, texts().filter(bool)), media())
    return st.builds(
        lambda parts, kind: Message("user", tuple(parts), kind),
        st.lists(said, min_size=1, max_size=3),
        st.sampled_from(["normal", "summary", "note", "notification"]),
    )


@cache
def _said(provider: str) -> st.SearchStrategy[list[Part]]:
    """What a model says beside its calls."""
    opaque = opaques(provider)
    code = Opaque(provider, {"executableCode": {"language": "PYTHON", "code": "1"}})
    return st.lists(
        st.one_of(
            st.builds(Text, texts(), opaque),
            st.builds(Thinking, texts(), st.none(), opaque),
            # Another provider's thinking, from before the session changed its model (M6).
            st.builds(Thinking, texts(), signatures()),
            st.sampled_from([ProviderPart(code), ProviderPart(Opaque("another", {"anything": 1}))]),
        ),
        max_size=3,
    )


@cache
def _results() -> st.SearchStrategy[tuple[Outcome, Json, list[Media]]]:
    return st.tuples(st.sampled_from(list(Outcome)), json_values(), st.lists(media(), max_size=1))


@st.composite
def _assistant_messages(draw: st.DrawFn, provider: str, number: int) -> Message:
    parts = list(draw(_said(provider)))
    count = draw(st.integers(0, 3))
    given = draw(st.booleans())
    for index in range(count):
        call = ToolCall(
            CallId(f"call_1_{number}_{index}"),
            draw(names()),
            draw(json_objects()),
            f"p{number}-{index}" if given else None,
            draw(opaques(provider)),
        )
        parts.append(call)
    if not any(isinstance(part, Text) and part.text for part in parts) and not count:
        parts.append(Text(draw(texts()) or "..."))
    return Message("assistant", tuple(parts))


@st.composite
def _tool_messages(draw: st.DrawFn, reply: Message) -> Message:
    answers = []
    for call in reply.calls:
        outcome, content, images = draw(_results())
        answers.append(ToolAnswer(call.id, call.name, outcome, content, tuple(images), call.provider_id))
    return Message("tool", tuple(answers))
