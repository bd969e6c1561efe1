"""What a user can set: groups of limits instead of long argument lists. All values, no behaviour.

Durations are seconds. `None` means no limit, except where it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from attrs import field, fields

from trouper._errors import ConfigError
from trouper.core.messages import Json
from trouper.core.values import changed, frozen

#: Of a budget: past this, a warning (L25).
WARN_SHARE = 0.8

#: More than this is no count and no time.
_MOST = 2**63 - 1

OnRestart: TypeAlias = Literal["end", "resume"]


def _number(
    *, least: float = 0, most: float | None = None, whole: bool = False, optional: bool = False, finite: bool = False
) -> Any:
    """A validator: a number of at least so much, and at most so much. A mistake is told where it is made, not by a session later."""

    def check(instance: object, attribute: Any, value: object) -> None:
        if value is None and optional:
            return
        right = isinstance(value, int) if whole else isinstance(value, int | float)
        # A whole number beyond the most is none that a clock or a counter could work with; infinity is: it never comes.
        if finite and value == float("inf"):
            right = False
        if most is not None and right:
            right = value <= most  # type: ignore[operator]
        if not right or isinstance(value, bool) or not value >= least or (isinstance(value, int) and value > _MOST):  # type: ignore[operator]
            what = f"{type(instance).__name__}.{attribute.name}"
            kind = "a whole number" if whole else "a finite number" if finite else "a number"
            up_to = f" and at most {most:g}" if most is not None else ""
            raise ConfigError(
                f"{what}={_shown(value)} makes no sense; give {kind} of at least {least:g}{up_to}", setting=what
            )

    return check


def _of(kind: type) -> Any:
    """A validator: a group of settings of this kind."""

    def check(instance: object, attribute: Any, value: object) -> None:
        if not isinstance(value, kind):
            what = f"{type(instance).__name__}.{attribute.name}"
            raise ConfigError(
                f"{what}={_shown(value)} is no {kind.__name__}; write {attribute.name}={kind.__name__}(...)",
                setting=what,
            )

    return check


def _one_of(*words: str) -> Any:
    """A validator: one of these."""

    def check(instance: object, attribute: Any, value: object) -> None:
        if value not in words:
            what = f"{type(instance).__name__}.{attribute.name}"
            raise ConfigError(f"{what}={_shown(value)} is unknown; use {' or '.join(map(repr, words))}", setting=what)

    return check


def _shown(value: object) -> str:
    """As it was written, unless that is very long."""
    try:
        shown = repr(value)
    except ValueError:  # A number of more digits than Python writes.
        return "a very large number"
    return shown if len(shown) <= 100 else f"{shown[:100]}..."


_COUNT = _number(least=1, whole=True)
_COUNT_OR_NONE = _number(whole=True, optional=True)
_COUNT_OR_OFF = _number(whole=True)
_SECONDS = _number()
_SECONDS_OR_NONE = _number(optional=True)
_SHARE_OR_NONE = _number(most=1, optional=True)
#: Of what is recorded with the commands that look at it: JSON has no infinity.
_RECORDED_SECONDS = _number(finite=True)


@frozen
class Budget:
    """What may be spent: per call (`inline_s`), and per session or runtime (the others). At 80 % a warning, then the turn ends (L25).

    0 tokens, steps or seconds: the model is not asked at all. What a step costs is known when it has ended, so that one step may go beyond the budget. Of a
    runtime's, sessions that ask at the same time each hold what their step is expected to cost (of tokens, what it sends, and the longest reply
    so far, at least 2,000), and near the end of it they wait for each other.
    """

    #: How long a turn waits for a tool that can go on in the background (B1). 0: not at all.
    inline_s: float = field(default=0.3, validator=_SECONDS)
    #: As the provider counts them: one that reports none is not held by this, and a warning is logged; for such a model set `steps`.
    tokens: int | None = field(default=None, validator=_COUNT_OR_NONE)
    steps: int | None = field(default=None, validator=_COUNT_OR_NONE)
    #: 0: the model is offered no tools, a call that it makes all the same is denied, and turns of text alone go on.
    tool_calls: int | None = field(default=None, validator=_COUNT_OR_NONE)
    #: Wall time of one turn.
    wall_s: float | None = field(default=None, validator=_SECONDS_OR_NONE)


#: As good as for ever, and JSON has a number for it.
FOREVER_S = 1e9


def recordable(budget: Budget) -> Budget:
    """The same, as a journal can hold it."""
    wall_s = None if budget.wall_s is None else min(budget.wall_s, FOREVER_S)
    return changed(budget, inline_s=min(budget.inline_s, FOREVER_S), wall_s=wall_s)


@frozen
class Deadlines:
    """How long a model call may keep silent (L12). Keep-alives do not count as speech."""

    #: Until there is a connection; of a model of your own that does not say when (`ModelRequest.connected`), until its stream is open.
    connect_s: float = field(default=10.0, validator=_SECONDS)
    #: From then until the reply begins, and once more from there until the first thing that is said.
    first_event_s: float = field(default=90.0, validator=_SECONDS)
    idle_s: float = field(default=90.0, validator=_SECONDS)
    step_s: float | None = field(default=600.0, validator=_SECONDS_OR_NONE)


@frozen
class Retry:
    """How a fault is tried again: opening (L11), and reconnecting before any progress (L13)."""

    opens: int = field(default=3, validator=_COUNT_OR_OFF)
    first_delay_s: float = field(default=1.0, validator=_SECONDS)
    max_delay_s: float = field(default=16.0, validator=_SECONDS)
    #: Attempts in all for one step, the first one and stalls before progress included.
    attempts: int = field(default=6, validator=_COUNT)


@frozen
class Compaction:
    """When and how the context is made smaller (L26-L31)."""

    #: Share of the model's window; needs a known window.
    share: float | None = 0.85
    #: Absolute number of tokens.
    threshold: int | None = None
    #: Overrides what the model says of its window.
    window: int | None = None
    keep_pairs: int = 6
    min_messages: int = 8
    mask_after_turns: int = 2
    mask_min_saving: int = 2_000


#: Shared by all that have no other: what is the very default is left out of the journal without a closer look.
DEFAULT_COMPACTION = Compaction()


def _sane_compaction(instance: object, attribute: Any, value: object) -> None:
    """Here, and not in the class itself: turns are recorded with theirs, and what was recorded can be read."""
    _of(Compaction)(instance, attribute, value)
    kind: Any = Compaction
    for each in fields(kind):
        check = {"share": _SHARE_OR_NONE, "threshold": _COUNT_OR_NONE, "window": _COUNT_OR_NONE}
        check.get(each.name, _COUNT_OR_OFF)(value, each, getattr(value, each.name))


@frozen
class Limits:
    """Every bound of a runtime that a user may move."""

    #: Steps a turn; 0 means no cap (L2).
    max_steps: int = field(default=8, validator=_COUNT_OR_OFF)
    #: Calls of one step that run at once (L8).
    parallel_calls: int = field(default=32, validator=_COUNT)
    parallel_tool_calls: bool = True
    #: A tool's hard time-out, unless it has its own (B2).
    tool_timeout_s: float = field(default=120.0, validator=_SECONDS)
    #: How long a cancelled tool's shielded clean-up may take before the runtime goes on without it (L21).
    grace_s: float = field(default=5.0, validator=_SECONDS)
    deadlines: Deadlines = field(factory=Deadlines, validator=_of(Deadlines))
    retry: Retry = field(factory=Retry, validator=_of(Retry))
    compaction: Compaction = field(default=DEFAULT_COMPACTION, validator=_sane_compaction)
    #: Identical call and result this many times in a row: a warning; `loop_end` more: the turn ends (L23). 0 of the first: neither; 0 of the second: it ends at once.
    loop_warn: int = field(default=3, validator=_COUNT_OR_OFF)
    loop_end: int = field(default=3, validator=_COUNT_OR_OFF)
    #: Into the model, per tool result (T9).
    tool_output_bytes: int = field(default=65_536, validator=_COUNT)
    attachment_bytes: int = field(default=20 * 1024 * 1024, validator=_COUNT_OR_OFF)
    #: Text of one prompt.
    input_chars: int = field(default=4_000_000, validator=_COUNT)
    #: All that one reply holds: visible text, thinking, arguments, media; more than this ends the step as an error.
    reply_chars: int = field(default=32_000_000, validator=_COUNT)
    #: How long a call waits for its approval before it is denied (T4).
    approval_s: float = field(default=3_600.0, validator=_RECORDED_SECONDS)
    #: How long a client-side call waits for the host's answer, unless its tool has a time-out of its own; then the model is told. `None`: without limit.
    answer_s: float | None = field(default=3_600.0, validator=_number(optional=True, finite=True))
    runs_per_session: int = field(default=5, validator=_COUNT_OR_OFF)
    runs_per_runtime: int = field(default=64, validator=_COUNT_OR_OFF)
    #: How often a background run says that it is alive (B8). Each time is a record.
    heartbeat_s: float = field(default=10.0, validator=_number(least=0.05))
    #: How long ended tasks are kept before a sweep archives them; 0: for ever (B13).
    task_retention_s: float = field(default=30 * 86_400.0, validator=_RECORDED_SECONDS)
    #: Deliveries of one notification before it is given up; 0: no cap (B14).
    notification_attempts: int = field(default=16, validator=_COUNT_OR_OFF)
    #: Age at which a queued notification is given up; 0: never.
    notification_expire_s: float = field(default=0.0, validator=_RECORDED_SECONDS)
    schedules_per_session: int = field(default=5, validator=_COUNT_OR_OFF)
    #: The shortest time between two fires of a schedule (B18).
    schedule_interval_s: float = field(default=60.0, validator=_RECORDED_SECONDS)
    mailbox: int = field(default=1_024, validator=_COUNT)
    subscriber_events: int = field(default=8_192, validator=_COUNT)
    queued_inputs: int = field(default=64, validator=_COUNT)
    #: Open sessions that stay in memory. Beyond them, those that were not used for longest and that nobody holds are put to rest until they are opened again; 0: no bound.
    resident_sessions: int = field(default=1_000, validator=_COUNT_OR_OFF)
    #: What becomes of a turn that was cut off by the end of the process (J12): ended visibly, or run on where it is safe.
    on_restart: OnRestart = field(default="end", validator=_one_of("end", "resume"))
    #: A snapshot is written after this many records, and at a clean end (J13).
    snapshot_every: int = field(default=20_000, validator=_COUNT)


@frozen
class TurnOptions:
    """What one turn runs with: fixed at its start, and recorded with it, so that a replay needs no settings."""

    max_steps: int = 8
    parallel_calls: int = 32
    #: The model's name.
    model: str | None = None
    #: Tokens that fit into the model, if known.
    window: int | None = None
    compaction: Compaction = DEFAULT_COMPACTION
    loop_warn: int = 3
    loop_end: int = 3
    wall_s: float | None = None
    #: What the whole session may spend, all turns counted.
    token_cap: int | None = None
    step_cap: int | None = None
    call_cap: int | None = None
    #: JSON Schema that the final text must follow.
    schema: Mapping[str, Json] | None = None
    #: How often the notifications that it carries may be delivered in all.
    notification_attempts: int = 16


#: Shared by all turns that were given none, so that reading them again does not make one each.
DEFAULT_OPTIONS = TurnOptions()
