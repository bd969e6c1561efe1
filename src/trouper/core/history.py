"""The messages that a model is sent, and the one validator that guards every request (L22, I5).

A history is *sound* when it starts with a user's message, every assistant message with calls is followed by the tool message that answers them all
in order, and no tool message stands anywhere else. Soundness of a longer history follows from that of the shorter one and the new message
alone, so appending keeps the verdict up to date in constant time, and a request of a long session costs no walk over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from trouper.core.growing import Growing
from trouper.core.messages import Message, Outcome, Part, ProviderPart, Text, Thinking, ToolAnswer, ToolCall
from trouper.core.tokens import estimate_message
from trouper.core.values import changed, frozen

LOST_OUTCOME = "No outcome of this call was recorded: it may or may not have done its work."


@frozen(frequent=True)
class History:
    messages: Growing[Message] = msgspec.field(default_factory=Growing)
    #: Estimated tokens of all messages.
    tokens: int = 0
    #: Holds for all messages but an open end: the last one may still wait for its answers.
    sound: bool = True

    def append(self, message: Message) -> History:
        messages = self.messages
        sound = self.sound and _may_follow(messages.last, message)
        return History(messages.grown(message), self.tokens + estimate_message(message), sound)

    @classmethod
    def of(cls, messages: Iterable[Message]) -> History:
        history = cls()
        for message in messages:
            history = history.append(message)
        return history

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last message, which nobody has answered yet."""
        last = self.messages.last
        return last.calls if last is not None and last.role == "assistant" else ()

    @property
    def ready(self) -> bool:
        """Whether this can be sent to a model as it is."""
        return self.sound and bool(self.messages) and not self.open_calls


def _may_follow(before: Message | None, message: Message) -> bool:
    if not message.parts:
        return False
    open_calls = before.calls if before is not None and before.role == "assistant" else ()
    match message.role:
        case "tool":
            return _answer_all(message.parts, open_calls)
        case "assistant":
            return before is not None and not open_calls and _sendable(message)
        case "user":
            return not open_calls


def _answer_all(parts: tuple[Part, ...], calls: tuple[ToolCall, ...]) -> bool:
    """An answer to each call, in their order, and nothing else."""
    if len(parts) != len(calls):
        return False
    for position, part in enumerate(parts):
        if type(part) is not ToolAnswer or part.call_id != calls[position].id:
            return False
    return True


def _sendable(message: Message) -> bool:
    """Providers refuse an assistant message that holds nothing but thinking."""
    for part in message.parts:  # noqa: SIM110 - every reply comes by, and a generator for one part takes three times as long.
        if type(part) is not Thinking:
            return True
    return False


class Walk:
    """Looks over a history again and again as it grows, at each message once: a checker of long sessions would else take time by the square of their length."""

    __slots__ = ("_found", "_ids", "_walked")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._walked: Growing[Message] = Growing()
        self._ids: set[str] = set()
        self._found: list[str] = []

    def problems(self, messages: Growing[Message]) -> list[str]:
        """What a provider would refuse, in words; empty when the messages can be sent."""
        if not messages.starts_with(self._walked):
            self._begin()  # Another story: a compaction changed what is sent.
        before = self._walked.last
        for position in range(len(self._walked), len(messages)):
            message = messages[position]
            self._look_at(position, before, message)
            before = message
        self._walked = messages
        if before is None:
            return [*self._found, "there is no message"]
        if before.role == "assistant" and before.calls:
            return [*self._found, "the last message has calls that nobody answered"]
        return self._found[:]

    def _look_at(self, position: int, before: Message | None, message: Message) -> None:
        if not _may_follow(before, message):
            follows = before.role if before else "nothing"
            self._found.append(f"message {position} ({message.role}) cannot follow {follows}")
        for call in message.calls:
            if call.id in self._ids:
                self._found.append(f"message {position} repeats call id {call.id!r}")
            self._ids.add(call.id)


def problems(messages: Iterable[Message]) -> list[str]:
    """What a provider would refuse, in words; empty when the messages can be sent."""
    return Walk().problems(Growing(messages))


def repaired(messages: Iterable[Message], outcomes: Mapping[str, ToolAnswer] | None = None) -> tuple[Message, ...]:
    """The nearest sequence that a provider accepts, from what the journal knows (`outcomes`, by call id); never raises.

    Orphan answers go, missing ones are filled in, empty messages go, two assistant messages in a row become one, and a call whose id was
    used before is dropped together with its answer.
    """
    known = dict(outcomes or {})
    kept: list[Message] = []
    used: set[str] = set()
    queue = list(messages)
    for position, message in enumerate(queue):
        match message.role:
            case "tool":
                continue  # Taken together with the calls it answers.
            case "user":
                if message.parts and not any(isinstance(part, ToolCall | ToolAnswer) for part in message.parts):
                    kept.append(message)
            case "assistant":
                parts = _unused_parts(message, used)
                message = Message("assistant", parts, message.kind)
                if not parts or not _sendable(message):
                    continue
                if not kept:
                    kept.append(
                        Message("user", (Text("(The beginning of this conversation is not available.)"),), "note")
                    )
                if kept[-1].role == "assistant":
                    message = Message("assistant", (*kept.pop().parts, *parts), message.kind)
                kept.append(message)
                if message.calls:
                    following = queue[position + 1] if position + 1 < len(queue) else None
                    given = {a.call_id: a for a in following.answers} if following and following.role == "tool" else {}
                    kept.append(
                        Message(
                            "tool",
                            tuple(
                                _answer_for(call, given.get(call.id) or known.get(call.id)) for call in message.calls
                            ),
                        )
                    )
    return tuple(kept)


def _unused_parts(message: Message, used: set[str]) -> tuple[Part, ...]:
    """What an assistant's message may hold: no answers, and no call whose id was used before, be it in the same message."""
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            if part.id in used:
                continue
            used.add(part.id)
        if not isinstance(part, ToolAnswer):
            parts.append(part)
    return tuple(parts)


def _answer_for(call: ToolCall, given: ToolAnswer | None) -> ToolAnswer:
    if given is not None:
        return given
    return ToolAnswer(call.id, call.name, Outcome.UNKNOWN, LOST_OUTCOME, provider_id=call.provider_id)


def without_signatures(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages without what only their provider understands: a last resort when it no longer does (M10)."""
    cleaned: list[Message] = []
    for message in messages:
        parts = tuple(
            changed(part, opaque=None) if isinstance(part, Text | ToolCall) and part.opaque is not None else part
            for part in message.parts
            if not isinstance(part, Thinking | ProviderPart)
        )
        cleaned.append(Message(message.role, parts, message.kind))
    return repaired(cleaned)
