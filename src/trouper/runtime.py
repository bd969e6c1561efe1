"""`open_runtime`: the nursery tree, from the journal outermost to the sessions.

    open_runtime
    |- journal writer      shielded; ends when its last sender has closed
    `- supervisor
       |- sessions
       |  `- session *     one actor each; its model calls, tool calls and timers are its children
       |- triggers
       |  `- trigger *
       |- notes            has what a model says recorded while it speaks
       |- deadlines        ends work whose time is up
       |- snapshots        written every so often
       `- memory           brings its readable copy up to date, once

Shutdown is the reverse: the sessions stop (what runs is interrupted, and recorded), a snapshot is written, the last sender closes, the journal is sealed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from trouper.actors.environment import Environment
from trouper.actors.ground import Outfit
from trouper.actors.journal import Inline, JournalWriter
from trouper.actors.reference import Inbox
from trouper.actors.restart import NEVER
from trouper.actors.session import SESSION_RESTART
from trouper.actors.supervisor import Supervisor, open_supervisor
from trouper.arguments import all_of, check_arguments, check_disk, default_model, environment_of, places_for, root_path
from trouper.block import Block
from trouper.core.settings import Budget, Limits
from trouper.foreign import alone
from trouper.ground import RuntimeGround
from trouper.host import Runtime
from trouper.journal import Disk, JournalError, Level, Log, open_log
from trouper.models.protocol import Model
from trouper.services.desk import provided
from trouper.tools.equipping import equipped
from trouper.tools.hooks import Hooks
from trouper.tools.policy import Rule
from trouper.tools.registry import ToolSource

__all__ = ["Runtime", "open_runtime"]


def open_runtime(
    root: str | os.PathLike[str] | None = None,
    *,
    model: Model | None = None,
    tools: Iterable[ToolSource] = (),
    limits: Limits | None = None,
    budget: Budget | None = None,
    durability: Level = "fsync",
    policies: Iterable[Rule] = (),
    hooks: Iterable[Hooks] = (),
    environment: Environment | None = None,
    disk: Disk | None = None,
    take_up: bool = True,
) -> AbstractAsyncContextManager[Runtime]:
    """Run Trouper inside this block: `async with open_runtime("./state") as runtime:`.

    `root`: the directory of the journal and the sessions' files; `None` is the default profile's. `durability`: "fsync" survives a power cut, "write"
    a killed process, "memory" nothing. Without a `model` the simulated one serves, which needs no key. `take_up=False`: for a look or a small change; what a
    dead process left open in a session stays as it is until that session is opened; as it does anyway in one that was given a model or tools of its own, or needs a tool that is not here.
    """
    return Block(
        _open_runtime(
            root, model, tools, limits, budget, durability, policies, hooks, environment_of(environment), disk, take_up
        ),
        "async with open_runtime(...) as runtime:",
    )


@asynccontextmanager
async def _open_runtime(
    root: str | os.PathLike[str] | None,
    model: Model | None,
    tools: Iterable[ToolSource],
    limits: Limits | None,
    budget: Budget | None,
    durability: Level,
    policies: Iterable[Rule],
    hooks: Iterable[Hooks],
    environment: Environment,
    disk: Disk | None,
    take_up: bool,
) -> AsyncIterator[Runtime]:
    limits = Limits() if limits is None else limits
    budget = Budget() if budget is None else budget
    check_arguments(root, model, tools, limits, budget)
    check_disk(disk)
    rules, all_hooks = all_of(Rule, policies, "policies"), all_of(Hooks, hooks, "hooks")
    path = root_path(root, durability)
    outfit = Outfit(
        model=default_model() if model is None else model,
        registry=equipped(tools),
        budget=Budget(inline_s=budget.inline_s, wall_s=budget.wall_s, tool_calls=0 if budget.tool_calls == 0 else None),
        limits=limits,
        rules=rules,
        hooks=all_hooks,
    )
    places = places_for(root, path, durability, disk, environment)
    # Before anything is advertised, and before the disk is touched (T7).
    outfit.registry.check_needs(provided(places))
    log = open_log(path, level=durability, disk=disk, new_id=lambda: environment.ids.new("journal_"))
    if log.refusal is not None:
        log.close()
        raise log.refusal
    body_error: BaseException | None = None
    try:
        async with _journal(log, environment) as writer, _supervised() as supervisor:
            ground = RuntimeGround(log, writer, environment, limits, budget, places)
            runtime = Runtime(None if durability == "memory" else path, ground, supervisor, outfit)
            runtime._recover(take_up)
            _serve_sessions(ground, supervisor)
            try:
                async with _until_terminated():
                    try:
                        yield runtime
                    except BaseException as error:
                        body_error = error
                        raise
            finally:
                with trio.CancelScope(shield=True):
                    # Sessions first, then the snapshot: see `_journal` for the rest.
                    await runtime._stop()
                    await _wind_up(ground)
                    await ground.models.close(
                        [outfit.model, *(each.actor.outfit.model for each in ground.sessions.values())]
                    )
    except BaseExceptionGroup as group:
        # The nurseries in here are our business, not the caller's; a group that the block itself raised is the caller's, with one error in it too.
        found = alone(group)
        if body_error is not None and isinstance(found, Exception) and _leaves(group) == _leaves(body_error):
            found = body_error
        if body_error is None and isinstance(found, BaseExceptionGroup) and found.split(JournalError)[1] is None:
            # The journal has failed before or behind the block, for more than one of us: the first says enough.
            found = _first(found)
        if isinstance(found, BaseExceptionGroup) and found.subgroup(KeyboardInterrupt) is not None:
            # A Ctrl-C that came down in a tool: that its session has ended, and who fell over that, only followed from it.
            raise KeyboardInterrupt from found
        context = found.__context__
        try:
            raise found
        finally:  # Raising it here made the group its context, which says nothing new; what led to it does.
            found.__context__ = context
    finally:
        log.close()
        places.close()


def _leaves(error: BaseException) -> set[int]:
    """What the groups hold. The groups themselves are no longer the same ones once a nursery has taken its cancels out of them."""
    if isinstance(error, BaseExceptionGroup):
        return {leaf for each in error.exceptions for leaf in _leaves(each)}
    return {id(error)}


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def _journal(log: Log, environment: Environment) -> AsyncIterator[JournalWriter]:
    """The writer's task around everything that may append."""
    latency = environment.sync_latency
    writer = JournalWriter(log, sync=None if latency is None else Inline(latency))
    async with trio.open_nursery() as nursery:
        with writer.open_sender():
            nursery.start_soon(writer.run)
            try:
                yield writer
            finally:
                writer.close()


@asynccontextmanager
async def _supervised() -> AsyncIterator[Supervisor]:
    async with open_supervisor(name="trouper") as supervisor:
        yield supervisor


@asynccontextmanager
async def _until_terminated() -> AsyncIterator[None]:
    """SIGTERM ends the block as a cancel would, and the process with the exit code that it would have had; Ctrl-C does the like by itself.

    Only where nobody else has said what SIGTERM means, and where signals can be received at all.
    """
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not mine:
        yield
        return
    terminated = False
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal terminated
                async for _ in signals:
                    terminated = True
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()
    if terminated:
        raise SystemExit(128 + signal.SIGTERM)


def _serve_sessions(ground: RuntimeGround, supervisor: Supervisor) -> None:
    """Start what all of them need besides the journal."""

    async def refresh_memory(inbox: Inbox[None, None]) -> None:
        await ground.memory.refresh()

    if ground.memory.next_seq:
        supervisor.spawn("memory", refresh_memory, restart=NEVER)
    supervisor.spawn("notes", ground.notes.run, restart=SESSION_RESTART)
    supervisor.spawn("deadlines", ground.deadlines.run, restart=SESSION_RESTART)
    supervisor.spawn("snapshots", ground.snapshots.run, restart=SESSION_RESTART, mailbox=1)


async def _wind_up(ground: RuntimeGround) -> None:
    """When no session runs any more."""
    ground.is_silent = True
    for feed in ground.feeds:
        feed.end()
    try:
        await ground.settle()
    except JournalError:
        return  # The writer says itself what is wrong.
    await ground.snapshots.write_last()
    ground.memory.close()
