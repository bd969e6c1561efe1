"""Running a root from the command line: its configuration, its runtime, its control socket, and signals; and changing one that somebody else runs."""

from __future__ import annotations

import argparse
import errno
import signal
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

import trio
from attrs import field, frozen

from trouper import codec
from trouper._errors import ConfigError, TrouperError, UsageError
from trouper.cli.arguments import to_type
from trouper.cli.configuration import Configuration, read_configuration
from trouper.cli.control import OwnerSilent, ask_owner, check_place, serving
from trouper.cli.endings import HUNG_UP, Stopped, ending_signals, say
from trouper.cli.leaving import leaving_told
from trouper.cli.owner import is_served, owner_of
from trouper.cli.printed import Printed, printed_aside
from trouper.cli.requests import answered
from trouper.cli.unheard import HELD_UP, ended_if_unheard
from trouper.core.ids import check_name
from trouper.core.messages import Json
from trouper.host import NAMED_MAX
from trouper.journal import JournalLocked, open_reader
from trouper.models.chunks import Chunk
from trouper.models.protocol import Model, ModelRequest, close_model
from trouper.runtime import Runtime, open_runtime
from trouper.session import Session
from trouper.tools.contract import Tool

T = TypeVar("T")

#: How long a command waits for a root that somebody has open who takes no commands: so do others that change something, for a moment. And how often it looks.
BRIEF_S, LOOK_S = 3.0, 0.05
#: How long closing a model's idle connections may take.
CLOSE_S = 2.0


@frozen
class Hosted:
    """A root that this process runs, and what its agent is made of."""

    root: Path
    runtime: Runtime
    configuration: Configuration
    model: Model
    tools: list[Tool]
    printed: Printed = field(factory=Printed)


@asynccontextmanager
async def hosting(root: Path, options: argparse.Namespace, *, delay_s: float = 0.0) -> AsyncIterator[Hosted]:
    """The root's runtime with its control socket."""
    # First: where something is refused nothing is made.
    if options.session is not None:
        check_name(options.session, "session")
    check_place(root)
    configuration = read_configuration(root)
    model = configuration.model_made(options.model, delay_s=delay_s)
    with printed_aside() as printed:
        tools = configuration.tools_made(options.tools)
        try:
            async with leaving_told() as leaving, AsyncExitStack() as opened:
                leaving.runtime = runtime = await _once_free(
                    root, lambda: opened.enter_async_context(_opened(root, configuration, tools, model))
                )
                try:
                    async with serving(root, lambda request: answered(runtime, request)):
                        yield Hosted(root, runtime, configuration, model, tools, printed)
                finally:
                    leaving.begun.set()
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await close_model(model)


async def session_of(hosted: Hosted, id: str | None, system: str | None) -> Session:
    """The session that a command is about. One with work that only other tools, or another model, can go on with is left to them: here that work would end."""
    waiting = hosted.runtime.not_taken_up
    if id is not None and id in waiting:
        raise ConfigError(
            f"session {id!r} has work under way that needs {waiting[id]}; go on where that is (--tools FILE, or the program that gave it), "
            f"or end the work with {to_type('tasks cancel TASK')}, {to_type('schedules cancel SCHEDULE')} or {to_type(f'sessions interrupt {id}')}",
            session=id,
        )
    for other, needs in islice(waiting.items(), NAMED_MAX):
        say(f"session {other!r} waits as the last process left it: it needs {needs}")
    if (more := len(waiting) - NAMED_MAX) > 0:
        say(f"{more} more sessions wait so")
    return await hosted.runtime.session(id, system=system or hosted.configuration.system)


async def _once_free(root: Path, open_it: Callable[[], Awaitable[Runtime]]) -> Runtime:
    """The root, opened, as soon as nobody has it who has it for a moment only: whoever takes commands is there to stay."""
    until = trio.current_time() + BRIEF_S
    while True:
        try:
            return await open_it()
        except JournalLocked:
            if trio.current_time() >= until or is_served(root):
                raise
            await trio.sleep(LOOK_S)


@asynccontextmanager
async def _opened(
    root: Path, configuration: Configuration, tools: Sequence[Tool], model: Model, *, take_up: bool = True
) -> AsyncIterator[Runtime]:
    async with open_runtime(
        root,
        model=model,
        tools=tools,
        limits=configuration.limits,
        budget=configuration.budget,
        durability=configuration.durability,
        policies=configuration.policies_for(tools),
        take_up=take_up,
    ) as runtime:
        yield runtime


@asynccontextmanager
async def ended_by_signals() -> AsyncIterator[None]:
    """A signal cancels the block, and what it holds is closed in order; then the program ends with the signal's code."""
    code: list[int] = []
    codes = ending_signals()
    if not codes:  # Nothing is to end us.
        yield
        return
    before = {number: signal.getsignal(number) for number in codes}

    async def watch(
        scope: trio.CancelScope, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # Shielded: while what is inside closes in order, a second signal must not come down in the midst of it.
        with trio.CancelScope(shield=True) as listening, trio.open_signal_receiver(*codes) as signals:
            task_status.started(listening)
            async for number in signals:
                code.append(codes[number])
                scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            # Listens before anything else does: what runs inside leaves signals to us.
            listening = await nursery.start(watch, nursery.cancel_scope)
            try:
                with ended_if_unheard(codes, lambda: say(HELD_UP)):
                    yield
            finally:
                listening.cancel()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        _, others = group.split(_is_of_a_terminal_that_has_gone)
        if HUNG_UP not in code or others is not None:
            raise
    finally:
        # Whoever listened inside may have ended after we did, and put our handler back, which nobody hears any more.
        for number, handler in before.items():
            signal.signal(number, handler)
    if code:
        raise Stopped(code[0])


def _is_of_a_terminal_that_has_gone(error: BaseException) -> bool:
    """Whoever writes to it, or sets it back to what it was, fails."""
    return isinstance(error, OSError | termios.error) and error.args[:1] == (errno.EIO,)


def change(
    root: Path, request: Json, tools: Sequence[str] | None = None, *, owner_only: str | None = None
) -> dict[str, Json]:
    """Have something changed in a root: by its owner, or, when nobody owns it, by opening it for a moment.

    `owner_only`: for what makes sense only while somebody runs the root, what is to be said where nobody does.
    """
    open_reader(root)  # A missing or unreadable journal is named as such; nothing is made.
    answer = once_free(lambda: _changed(root, request, tools, owner_only))
    if not answer.pop("ok", False):
        failed, code = TrouperError(str(answer["error"])), answer["exit_code"]
        assert isinstance(code, int)
        failed.exit_code = code
        raise failed
    return answer


def once_free(attempt: Callable[[], T]) -> T:
    """What the attempt gives, as soon as nobody is in its way who has the root open for a moment only."""
    until = time.monotonic() + BRIEF_S
    while True:
        try:
            return attempt()
        except (JournalLocked, OwnerSilent):
            # Perhaps somebody who changes something, too, or who is just opening or closing it.
            if time.monotonic() >= until:
                raise
            time.sleep(LOOK_S)


def _changed(root: Path, request: Json, tools: Sequence[str] | None, owner_only: str | None) -> dict[str, Json]:
    """The answer of whoever has the root open, or our own. Nothing has happened where this raises `JournalLocked` or `OwnerSilent`."""
    answer = ask_owner(root, request)
    if answer is not None:
        return answer
    owner = owner_of(root)
    if owner is not None:
        who = f"process {owner}" if owner else "another process"
        raise OwnerSilent(
            f"{who} owns {str(root)!r} and takes no commands; do it in that program, or stop it first",
            root=str(root),
            pid=owner,
        )
    if owner_only is not None:
        raise UsageError(f"no process has {str(root)!r} open, so {owner_only}")
    with printed_aside():
        return trio.run(_change_here, root, request, tools)


class Silent:
    """The model of a process that has a root open for one change: it says nothing, for nobody has asked it.

    A turn that begins meanwhile for a notification is interrupted as the root is closed, and the notification is told again by who runs the root next, to the model
    that is meant.
    """

    name = "silent"

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return nullcontext(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        await trio.sleep_forever()


async def _change_here(root: Path, request: Json, tools: Sequence[str] | None) -> dict[str, Json]:
    configuration = read_configuration(root)
    # What a dead process left open in other sessions is for the process that has their tools and their model: here runs and turns would end that can go on (J12, B10).
    async with _opened(root, configuration, configuration.tools_made(tools), Silent(), take_up=False) as runtime:
        return await answered(runtime, codec.loads(codec.dumps(request)))
