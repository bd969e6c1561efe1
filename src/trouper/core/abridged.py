"""An outcome in few words, for when what it holds finds no place in the journal: no room for its blob, no free descriptor.

The work has ended, and its session goes on all the same: a reply that cannot be kept is a fault of its step, a result that cannot be kept an error of its call.
"""

from __future__ import annotations

from collections.abc import Callable

from trouper.core.commands import (
    Close,
    Command,
    DeliverFault,
    DeliverReply,
    DeliverResult,
    DeliverResults,
    DeliverSummary,
    EndTurn,
    Interrupt,
    NoteProgress,
)
from trouper.core.messages import Fault, Message, Outcome, Text
from trouper.core.tokens import estimate_json
from trouper.core.values import changed

#: As much of it as stands in a line of the journal whatever the characters, and however many of the record's values repeat it.
KEPT_CHARS = 16_000
LOST = "The call has ended, but its result is too large to be recorded at the moment, and is lost. It may have done its work: look before you repeat it."


def abridged(command: Command, why: str, redact: Callable[[str], str]) -> Command | None:
    """The same outcome without most of what it holds; `None` of a command that has nothing to leave out.

    `redact` cuts out secrets before the rest is: half a one would not be known as one (I36).
    """
    match command:
        case DeliverReply(turn, step, message, _, at, usage):
            kept = _beginning(message, redact)
            return DeliverFault(turn, step, Fault("journal", why), at, kept, usage + command.retried, progressed=True)
        case DeliverFault(partial=Message() as partial) | Interrupt(partial=Message() as partial):
            return changed(command, partial=_beginning(partial, redact))
        case EndTurn(partial=Message() as partial) | Close(partial=Message() as partial):
            return changed(command, partial=_beginning(partial, redact))
        case DeliverResult():
            return _lost(command, why)
        case DeliverResults(results):
            limit = KEPT_CHARS // len(results)
            return DeliverResults(tuple(each if _size(each) <= limit else _lost(each, why) for each in results))
        case DeliverSummary():
            return changed(command, text=None, fault=Fault("journal", why))
        case NoteProgress():
            return changed(command, text="", thinking="")  # That something was seen is noted all the same (L13).
        case _:
            return None


def _beginning(message: Message, redact: Callable[[str], str]) -> Message | None:
    """Of what somebody may have seen, the first words, marked as cut short."""
    text = redact(message.text)[:KEPT_CHARS]
    return Message("assistant", (Text(text),), "cut_short") if text.strip() else None


def _lost(result: DeliverResult, why: str) -> DeliverResult:
    return changed(result, outcome=Outcome.ERROR, content=LOST, images=(), internal=why)


def _size(result: DeliverResult) -> int:
    if result.images:
        return KEPT_CHARS + 1
    return len(result.content) if isinstance(result.content, str) else 4 * estimate_json(result.content)
