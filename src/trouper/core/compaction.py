"""Making a context smaller: when, where to cut, what to mask, what to say (L26-L35). Pure; the summary itself comes from a model."""

from __future__ import annotations

from collections.abc import Sequence

from trouper.core.history import History
from trouper.core.messages import Message, Text, ToolAnswer
from trouper.core.settings import Compaction
from trouper.core.tokens import estimate_json, estimate_message
from trouper.core.values import changed

SUMMARY_OPEN = "<conversation-summary>"
SUMMARY_CLOSE = "</conversation-summary>"
DROPPED_NOTE = "(The oldest part of this conversation was left out to make room; no summary of it could be made.)"
MASK_NOTE = "(An old result of {size} characters was left out to make room. Call the tool again if it is needed.)"
#: What masking a result has to save: else a note would be put in place of a note.
_MASK_GAIN = 8

HAND_OVER_PROMPT = """\
Stop here and write a hand-over: the conversation above is about to be replaced by what you write now, and you will go on from it alone.
Say in plain text, without calling any tool:
- what the user wants, in their own terms, and every constraint they gave;
- what has been done so far, and what came out of it, with exact names, file paths, ids and numbers;
- which decisions were made, and why;
- what is still open, and the next steps in order.
If the conversation starts with an earlier hand-over, carry over what still holds; yours replaces it. Leave out what no longer matters."""


def limit(policy: Compaction, window: int | None) -> int | None:
    """The number of tokens past which a history is compacted; `None` when compaction is off (L26)."""
    known = policy.window if policy.window is not None else window
    if known is None or policy.share is None:
        return policy.threshold
    by_share = int(known * policy.share)
    return by_share if policy.threshold is None else min(by_share, policy.threshold)


def anchored(history: History, reported: int | None, estimated_then: int) -> int:
    """The best guess at the tokens of `history`: what the provider last reported, plus our estimate of what came since."""
    if reported is None:
        return history.tokens
    return max(0, reported + history.tokens - estimated_then)


def questions(messages: Sequence[Message], since: int | None, split: int) -> tuple[int, ...]:
    """Where, before `split`, the words are that the turn which runs is about: they stay as they are, or it would go on without its question.

    `since`: where that turn begins; `None`: no turn runs.
    """
    if since is None:
        return ()
    return tuple(
        position
        for position in range(since, split)
        if messages[position].role == "user" and messages[position].kind in ("normal", "notification")
    )


def pick_split(messages: Sequence[Message], keep_pairs: int, min_messages: int, since: int | None = None) -> int:
    """How many leading messages to fold away, but for the `questions` among them; 0: none.

    The last `keep_pairs` pairs stay. A cut before a tool message would orphan its answers, so it moves earlier, which keeps more.
    """
    if len(messages) < min_messages:
        return 0
    split = min(len(messages) - 2 * keep_pairs, len(messages) - 1)
    while split > 0 and messages[split].role == "tool":
        split -= 1
    # An earlier summary alone is not worth another one: only newly aged turns are (L30).
    kept = questions(messages, since, split)
    for position in range(split):
        if messages[position].kind != "summary" and position not in kept:
            return split
    return 0


def forced_split(messages: Sequence[Message], keep_pairs: int, since: int | None = None) -> int:
    """As `pick_split`, for a history that must shrink: keeps fewer and fewer pairs until half of it is gone, but at least the last message, with the calls that it answers."""
    sizes = list(map(estimate_message, messages))
    half = sum(sizes) // 2
    for pairs in range(keep_pairs, 0, -1):
        split = pick_split(messages, pairs, 2, since)
        if split and sum(sizes[split:]) + sum(sizes[kept] for kept in questions(messages, since, split)) <= half:
            return split
    # One pair may be too much already: a prompt that fits no window would be sent again with the next one (I35).
    split = len(messages) - 1
    while split > 0 and messages[split].role == "tool":
        split -= 1
    # Nothing but the question: without it there is nothing to ask.
    return 0 if split <= len(questions(messages, since, split)) else split


def mask_boundary(messages: Sequence[Message], turns: int) -> int:
    """Where the last `turns` user turns begin: tool results before that are old."""
    seen = 0
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].role == "user" and messages[position].kind != "note":
            seen += 1
            if seen == turns:
                return position
    return 0


def mask(messages: Sequence[Message], before: int) -> tuple[tuple[Message, ...], int]:
    """The messages with the tool results before a position replaced by a note, and how many tokens that saves."""
    saved = 0
    masked: list[Message] = []
    for message in messages[:before]:
        if message.role != "tool":
            masked.append(message)
            continue
        answers: list[ToolAnswer] = []
        for part in message.answers:
            size = len(part.content) if isinstance(part.content, str) else 4 * estimate_json(part.content)
            note = changed(part, content=MASK_NOTE.format(size=size), images=())
            gain = estimate_message(Message("tool", (part,))) - estimate_message(Message("tool", (note,)))
            if gain >= _MASK_GAIN:
                saved += gain
                part = note
            answers.append(part)
        masked.append(Message("tool", tuple(answers), message.kind))
    return (*masked, *messages[before:]), saved


def summary_message(text: str) -> Message:
    """One tagged synthetic user message (L30)."""
    return Message("user", (Text(f"{SUMMARY_OPEN}\n{text.strip()}\n{SUMMARY_CLOSE}"),), "summary")


def dropped_message(messages: Sequence[Message]) -> Message:
    """What stands for turns that were dropped without a summary; an earlier summary among them is carried over."""
    earlier = next((m.text for m in reversed(messages) if m.kind == "summary"), None)
    text = DROPPED_NOTE if earlier is None else f"{earlier}\n{DROPPED_NOTE}"
    return Message("user", (Text(text),), "summary" if earlier else "note")


def installed(history: History, split: int, summary: Message, kept: Sequence[int] = ()) -> History:
    """The history with `summary` in place of the messages before `split`, but for those at the positions that are kept."""
    messages = history.messages
    return History.of((summary, *(messages[position] for position in kept), *messages[split:]))
