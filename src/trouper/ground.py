"""The ground that all sessions of a runtime share: the journal, the clock, the places, what is counted across them (see `trouper.actors.ground.Ground`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import trio

from trouper import codec
from trouper._errors import TrouperError
from trouper.actors.deadlines import Deadlines
from trouper.actors.environment import Environment
from trouper.actors.exits import is_failure
from trouper.actors.feed import Feed
from trouper.actors.gate import Gate
from trouper.actors.ground import Outfit
from trouper.actors.journal import JournalWriter
from trouper.actors.notes import Notes
from trouper.actors.permits import Permits
from trouper.core.ids import CallId, TaskId
from trouper.core.memory import Memories
from trouper.core.messages import Json
from trouper.core.session import CLOSED, State
from trouper.core.settings import Budget, Limits
from trouper.core.task_record import Owner
from trouper.core.values import changed
from trouper.home import Home
from trouper.journal import Log
from trouper.models.in_use import ModelsInUse
from trouper.resident import Resident
from trouper.roster import Roster
from trouper.services.desk import Desk
from trouper.services.memory import MemoryKeeper
from trouper.services.places import Places
from trouper.snapshots import Snapshots
from trouper.spending import Spending
from trouper.threads import in_thread
from trouper.tools.errors import ToolError
from trouper.tools.guards.rooted import RootedFiles

if TYPE_CHECKING:
    from trouper.session import Session
    from trouper.stores.memory_store import MemoryStore

logger = logging.getLogger("trouper.runtime")

#: Threads that write the files of runs that end. They are small, and each of these threads takes the interpreter from the event loop many times for one of
#: them: with as many as there are runs, a cancel would wait for all of them.
RUN_THREADS_MAX = 2
#: How long a call waits until all of a long output is kept. It is a copy; the call has ended.
KEEP_S = 60.0
#: So many turns begin at a time. If all that are asked for at one instant did, their calls would begin together too, and with them their budgets run out; like this the first
#: are well under way when the last begin, which is no later for that. With fewer, a sync would cover too little.
TURNS_AT_ONCE = 8
#: So many sessions are looked at, of those that might be put to rest, when another one is opened.
LOOKED_AT_MAX = 8


class RuntimeGround:
    """One per runtime, for as long as that is open."""

    def __init__(
        self,
        log: Log,
        writer: JournalWriter,
        environment: Environment,
        limits: Limits,
        budget: Budget,
        places: Places,
    ) -> None:
        self.home = Home()
        self.log = log
        self.writer = writer
        self.environment = environment
        self.epoch = log.epoch
        self._budget = budget
        self.notes = Notes()
        self.deadlines = Deadlines()
        self.door = self.deadlines.door
        #: Where turns begin.
        self.beginning = Gate(TURNS_AT_ONCE)
        self.owner = Owner(environment.ids.new("instance_"), environment.pid, environment.now())
        self.permits = Permits()
        self._run_threads = trio.CapacityLimiter(RUN_THREADS_MAX)
        self.places = places
        self.redact = places.redactor
        self.roster = Roster(log)
        #: Every session that is open and in memory. Of the others the roster keeps what is needed, and whoever holds a handle keeps that.
        self.sessions: dict[str, Resident] = {}
        #: Their names; who was asked for last, or could not be put to rest when that was tried, is the last.
        self._recent: dict[str, None] = {}
        self._resident_max = limits.resident_sessions
        #: What sessions that are not in memory work with when they come back, from rest or after they have failed: it is theirs for as long as the runtime lives, and in no journal.
        self._outfits: dict[str, Outfit] = {}
        #: Those that were put to rest: that one of them is back is nothing to hear of.
        self.resting: set[str] = set()
        #: Of those who follow all sessions.
        self.feeds: list[Feed] = []
        self.spending = Spending(budget)
        self.models = ModelsInUse(self.redact)
        memories, next_seq = self.roster.memories()
        self.memory = MemoryKeeper(
            self.home,
            writer,
            log.epoch,
            environment.now,
            memories,
            next_seq,
            self.in_thread,
            _memory_store(places),
            self.redact,
            self._tell,
        )
        self.snapshots = Snapshots(
            log, writer, self.roster, self.memory, self.sessions, self._let_go_of_failed, limits.snapshot_every
        )
        #: No session is opened any more.
        self.closed = False
        #: None has anything more to tell.
        self.is_silent = False
        self._starts = 0
        #: Sessions of which this process has appended records, or may have: the roster's own no longer suffice.
        self._loaded: set[str] = set()

    def allowed(self, budget: Budget) -> Budget:
        return changed(budget, tool_calls=0) if self._budget.tool_calls == 0 else budget

    # -- the journal

    async def load(self, session: str) -> tuple[State, int]:
        if session not in self._loaded:
            found = self.roster.taken(session)
            self._loaded.add(session)
            return found
        # Begins again, after a crash: what was handed over may still be on its way to the disk.
        await self.settle()
        found = self.roster.reload(session)
        self.roster.opened(session)
        return found

    def ended(self, session: str) -> None:
        """The session is over, closed or failed for good: the journal holds its past, and here stays what one of an earlier process would take."""
        actor = self.sessions[session].actor
        if actor.in_flight is not None:
            return  # It failed with something on its way to the disk, which its state is without: it stands for that until it is opened again (I12).
        if actor.state.phase is CLOSED:
            self._loaded.discard(session)  # One that has failed is read anew.
        else:
            self._outfits[session] = actor.outfit
        self._let_go_of(session)

    def _let_go_of(self, session: str) -> None:
        actor = self.sessions.pop(session).actor
        del self._recent[session]
        if actor.next_seq:  # Else it never came into being, or has not been read.
            self.snapshots.left(self.roster.left(session, actor.state, actor.next_seq))
        self.models.leave(actor.outfit.model, session)

    def _let_go_of_failed(self) -> None:
        """Whether a session begins again after a crash, its supervisor decides: so these are looked for, and not told of."""
        for name in [name for name, each in self.sessions.items() if is_failure(each.ref.exit)]:
            self.ended(name)

    # -- who is in memory

    def outfit_of(self, session: str) -> Outfit | None:
        """What it was given when it was opened, and since: also one that has failed for good keeps that, above all the tools and the budget that it is held to. `None`: it was not here yet."""
        resident = self.sessions.get(session)
        return self._outfits.get(session) if resident is None else resident.actor.outfit

    def opened(self, session: str, resident: Resident) -> None:
        self.sessions[session] = resident
        self._outfits.pop(session, None)
        self.resting.discard(session)
        self._put_last(session)

    def asked_for(self, session: str) -> Session:
        """Its handle. Who is asked for is the last to be put to rest."""
        self._put_last(session)
        return self.sessions[session].handle

    def _put_last(self, session: str) -> None:
        self._recent.pop(session, None)
        self._recent[session] = None

    def put_to_rest(self) -> list[Resident]:
        """More are in memory than are meant to be: those that were not asked for in the longest time, and that nobody misses, are the roster's from now on.

        Whoever calls this has to stop their actors before anybody else runs.
        """
        put: list[Resident] = []
        over = len(self.sessions) - self._resident_max
        if over <= 0 or not self._resident_max:
            return put
        for name in list(islice(self._recent, LOOKED_AT_MAX)):
            resident = self.sessions[name]
            if len(put) == over:
                break
            if resident.is_missed:
                # Not looked at again before all the others were: so the price of an opening does not depend on how many are held.
                self._put_last(name)
            else:
                self._let_go_of(name)
                self._loaded.discard(name)  # Nothing of it is on its way: what the roster has is all.
                self._outfits[name] = resident.actor.outfit
                if resident.ref.exit is None:
                    self.resting.add(name)
                put.append(resident)
        return put

    def recorded(self, record: codec.Record, seq: int) -> None:
        self.spending.count(record)
        if self.feeds:
            self._tell(record, seq)
        self.snapshots.recorded()

    def _tell(self, record: codec.Record, seq: int) -> None:
        """Let those know who follow all records; they put them in order."""
        numbered = changed(record, seq=seq)
        for feed in self.feeds:
            feed.push((numbered,))

    async def settle(self, seq: int | None = None) -> None:
        """Until record `seq`, or everything that was handed over so far, is in the journal."""
        if seq is None or not self.writer.is_durable(seq):
            self.home.check()
            await self.writer.wait_durable(self.log.last if seq is None else seq)

    # -- what a session works with

    def services(self, session: str) -> Desk:
        """What the tools of a session are given."""
        return self.sessions[session].desk

    def desk_for(self, session: Session) -> Desk:
        return Desk(session, self.places, self.memory, self.environment.utc)

    @property
    def has_files(self) -> bool:
        """Whether sessions have files here."""
        return self.places.is_there

    def files_of(self, session: str) -> RootedFiles | None:
        """The files of a session; `None` where the runtime has none."""
        resident = self.sessions.get(session)
        # An open session has them at hand, and counts what is in them once.
        return self.places.files_of(session) if resident is None else resident.desk.files

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """Work that blocks, out of the way."""
        return await in_thread(work)

    async def in_run_thread(self, work: Callable[[], Any]) -> Any:
        """What blocks at the end of a run, out of the way. Whoever gives it up leaves its thread behind: a disk that never answers must not keep a run from ending."""
        return await in_thread(work, limiter=self._run_threads, abandon_on_cancel=True)

    async def keep_output(self, session: str, path: str, text: str) -> str | None:
        files = self.files_of(session)
        if files is None:
            return "the session has no files"
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            # Shielded, and so not given up on a cancel, but when its time is over: it is whole, or not there.
            with trio.CancelScope(deadline=trio.current_time() + KEEP_S, shield=True) as scope:
                await in_thread(lambda: files.write_pieces(path, self.redact.pieces(text)), abandon_on_cancel=True)
            if scope.cancelled_caught:
                logger.warning("session %s: an output was not kept: the disk does not answer", session)
                return "it could not be written in time"
        except ToolError as error:
            logger.warning("session %s: an output was not kept: %s", session, error)
            return str(error)
        except (TrouperError, OSError) as error:
            logger.warning("session %s: an output was not kept: %s", session, error)
            return "it could not be written"
        return None

    def input_answered(self, session: str, task_id: TaskId, answer: Json) -> None:
        """The answer to what a task waited for is on record."""
        if (questions := self.services(session).asked) is not None:
            questions.recorded(task_id, answer)

    def call_went_on(self, session: str, call: CallId, task_id: TaskId) -> None:
        """The turn has let go of a call, which goes on as a task."""
        if (questions := self.services(session).asked) is not None:
            questions.went_on(call, task_id)

    def new_owner(self) -> Owner:
        self._starts += 1
        return changed(self.owner, instance=f"{self.owner.instance}.{self._starts}")


def _memory_store(places: Places) -> Callable[[Memories, float], MemoryStore] | None:
    directory = places.lasting
    if directory is None:
        return None

    def opened(memories: Memories, at: float) -> MemoryStore:
        from trouper.stores.memory_store import open_memory_store  # sqlite3 is for those who remember something.

        return open_memory_store(directory, memories, at)

    return opened
