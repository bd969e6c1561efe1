"""The journal writer: the one place where records go to the disk, and where everyone waits for theirs to be there.

Group commit without a clerk: the first that waits sends all that is pending to the disk, in one write and one sync; who comes while that
sync runs is in the next one. When several waited for the last sync, the first gives everyone who can run one turn of the scheduler before it
sends. So nothing is ever held back by a timer, and under load a sync covers many.

A waiter that is alone, or the first of those that have gathered, waits in place for the sync if the disk has been fast lately, for a bounded time; that saves the two hops
between threads and tasks that cost as much as the sync, and the thread need not share the interpreter with a busy event loop, which would keep it waiting for milliseconds. Past the bound it parks like any other, so a disk that stalls never stalls the event loop.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import time
from collections.abc import Callable
from types import TracebackType

import outcome
import trio

from trouper._errors import UsageError
from trouper.actors.request import ki_safe
from trouper.core.values import frozen
from trouper.journal import Entry, JournalClosed, JournalError, JournalFailed, Log
from trouper.journal.log import Batch
from trouper.journal.sync_thread import Flight, SyncThread
from trouper.threads import is_virtual_time

#: A batch that is this large is sent without waiting for anyone (J2).
GATHER_BYTES = 256 * 1024
#: Durable entries that nobody waits for are sent within this time (J2).
GATHER_S = 0.005
#: A task that waits in place again and again lets the others run this often.
TURN_S = 0.002
#: Buffered entries are sent within this time; J1 allows 1 s until they are safe.
BUFFERED_S = 0.5
#: How often a journal on a full disk looks whether there is space again.
RESUME_S = 1.0


@frozen
class Threaded:
    """Sync in a thread of its own: for the real disk and the real clock."""

    #: The longest that the event loop may be held for one sync; 0 never holds it.
    hold_s: float = 0.001


@frozen
class Inline:
    """Sync in the event loop: for simulated disks and virtual time, where every run must be the same.

    `latency` says how long the next sync takes, in virtual time; None is no time at all.
    """

    latency: Callable[[], float] | None = None


def _never_abort(_: object) -> trio.lowlevel.Abort:
    """A cancel does not end a wait for the disk: whoever wakes the task has the answer."""
    return trio.lowlevel.Abort.FAILED


@frozen
class JournalStatistics:
    """How the writer stands."""

    last: int
    durable: int
    pending: int
    pending_bytes: int
    waiting: int
    batches: int
    records: int
    #: Batches that were waited for in place.
    held: int
    #: How long the last commit took.
    sync_s: float
    degraded: bool
    senders: int


class JournalWriter:
    """Appends for everyone, and wakes them when their records are durable. `run` is its task, outermost in the tree."""

    def __init__(
        self, log: Log, *, sync: Threaded | Inline | None = None, on_degraded: Callable[[bool], None] | None = None
    ) -> None:
        self.log = log
        self._mode = sync
        #: Called with True when the disk turns out to be full, with False when there is space again.
        self.on_degraded = on_degraded
        self._degraded = log.degraded
        self._thread: SyncThread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        # At most one flight at a time; `_gathering` is set while the first waiter lets the others append.
        self._flight: Flight | None = None
        self._gathering = False
        self._simulated: Batch | None = None
        # How many waited when the last flight landed, besides the one that may have held it.
        self._crowd = 0
        # When the scheduler had its last turn from a task that waits in place.
        self._turned = 0.0
        self._waiting: list[tuple[int, trio.lowlevel.Task]] = []
        # Those who have gone on, and want to know when their record is safe.
        self._told: list[tuple[int, Callable[[], None]]] = []
        self._failure: JournalFailed | None = None
        # How soon the task of `run` will look at what is pending by itself; `_wake` makes it look now.
        self._looks_in = math.inf
        self._seen = log.last
        self._wake = trio.Event()
        self._senders = 0
        self._closing = False
        self._batches = 0
        self._records = 0
        self._held = 0
        self._sync_s = collections.deque((0.0,), maxlen=4)

    # -- for those who append. A Ctrl-C waits until they are through: it would leave a flight that nobody lands, and everyone waiting for it.

    @ki_safe
    def append(self, entry: Entry) -> int:
        """Give the entry its sequence. Nobody may see its effect before `wait_durable` of that sequence has returned (J4)."""
        log = self.log
        if log.degraded and entry.opens and log.try_resume():
            self._tell_degraded()
        try:
            seq = log.append(entry)
        except BaseException:
            self._heed_refusal()
            self._tell_degraded()
            raise
        if log.degraded is not self._degraded:
            self._tell_degraded()
        if log.pending_bytes >= GATHER_BYTES:
            if self._flight is None:
                self._send()
        elif log.pending_bytes and self._looks_in > (GATHER_S if entry.durable else BUFFERED_S):
            self._wake_runner()
        return seq

    def is_durable(self, seq: int) -> bool:
        return seq <= self.log.durable

    @ki_safe
    async def wait_durable(self, seq: int) -> None:
        """Return when the record is as safe as the level promises; at once, without a checkpoint, if it is already.

        A cancel does not end the wait: memory must not run ahead of the disk, nor behind it (J2). Raises `JournalFailed` if the sync failed.
        """
        log = self.log
        if seq <= log.durable:
            return
        if seq > log.last:
            raise UsageError(
                f"record {seq} was never appended, the last is {log.last}; wait for what append returned", seq=seq
            )
        if self._is_idle():
            await self._lead(seq)
            if seq <= log.durable:
                return
        # The body of `_park`, without the price of another coroutine.
        if self._failure is not None:
            raise self._failed()
        self._waiting.append((seq, trio.lowlevel.current_task()))
        await trio.lowlevel.wait_task_rescheduled(_never_abort)

    @ki_safe
    def write_ahead(self, seq: int, tell: Callable[[], None]) -> bool:
        """Write the record now, and have it synced with what comes next, or within GATHER_S; `tell` is called when it is durable, and must not raise.

        For what may begin before its cause is durable. False, and nothing was done, where it might take long: then `wait_durable` is the way.
        """
        log = self.log
        if not (self._is_idle() and self._is_quick()):
            return False
        try:
            if not log.write_ahead():
                return False
        except BaseException:
            self._heed_refusal()
            raise
        if log.degraded is not self._degraded:
            self._tell_degraded()
        self._told.append((seq, tell))
        if self._looks_in > GATHER_S:
            self._wake_runner()
        return True

    def _is_quick(self) -> bool:
        """Whether the disk has been fast lately: the best of the last few. One slow sync says little, four of them that this disk is slow."""
        return not isinstance(self._mode, Threaded) or min(self._sync_s) < self._mode.hold_s / 2

    def open_sender(self) -> JournalSender:
        """A claim on the writer: its task goes on until every sender is closed."""
        if self._closing:
            raise JournalClosed(
                f"the writer of the journal {self.log.root!r} is ending; open the journal again", root=self.log.root
            )
        self._senders += 1
        return JournalSender(self)

    def close(self) -> None:
        """No new senders; `run` ends when those that are open have closed."""
        self._closing = True
        self._wake_runner()

    @property
    def is_threaded(self) -> bool:
        """Whether blocking calls go to a thread here; under virtual time nothing does."""
        return self._thread is not None

    @property
    def degraded(self) -> bool:
        """The disk is full: entries that open new work are refused with `JournalFull`."""
        return self.log.degraded

    @property
    def failure(self) -> JournalFailed | None:
        """Why the writer has stopped; None while all is well."""
        return self._failure

    def statistics(self) -> JournalStatistics:
        log = self.log
        return JournalStatistics(
            last=log.last,
            durable=log.durable,
            pending=log.pending_count,
            pending_bytes=log.pending_bytes,
            waiting=len(self._waiting),
            batches=self._batches,
            records=self._records,
            held=self._held,
            sync_s=self._sync_s[-1],
            degraded=log.degraded,
            senders=self._senders,
        )

    # -- the task

    @ki_safe
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what nobody waits for, watch a full disk, and at the end leave nothing behind. Raises `JournalFailed` when the disk did.

        Shielded: it ends when the last sender has closed, not when the tree around it is cancelled. It leaves the log open, with all of it synced.
        """
        self._token = trio.lowlevel.current_trio_token()
        if self._is_threaded():
            self._thread = self._start_thread()
        task_status.started()
        try:
            with trio.CancelScope(shield=True):
                while self._failure is None and not (self._closing and not self._senders):
                    if await self._rest():
                        await self._work()
                while self._failure is None and (self._flight is not None or self._has_unsynced()):
                    await self._work()
                    if self._flight is not None and self._simulated is None:
                        with contextlib.suppress(JournalFailed):
                            await self._park(self._flight.last)
            if self._failure is not None:
                raise self._failed()
        finally:
            self._closing = True
            self._token = None
            if self._thread is not None:
                self._thread.stop()
                self._thread = None

    def _is_threaded(self) -> bool:
        if self._mode is None:
            # A mock clock jumps while a thread runs, so it gets no thread; nor does a disk that is memory, and takes no time. Any other one may, also if it is not ours.
            real = self.log.level == "fsync" and not getattr(self.log.disk, "in_memory", False)
            self._mode = Threaded() if real and not is_virtual_time() else Inline()
        return isinstance(self._mode, Threaded)

    def _start_thread(self) -> SyncThread:
        try:
            return SyncThread()
        except (OSError, RuntimeError) as error:
            raise JournalError(
                f"the journal {self.log.root!r} cannot start the thread that writes it ({error}); "
                "raise the limits on open files and threads (ulimit -n, ulimit -u), or close some, then start again",
                root=self.log.root,
            ) from error

    async def _rest(self) -> bool:
        """Sleep until there is something to do, and return True; or until the reasons to wake have changed."""
        log = self.log
        if self._simulated is not None:
            return True
        # Whoever appends has mostly taken it to the disk before we get to look; so while records come we look now and then,
        # instead of being woken for each.
        busy = self._seen != log.last
        self._seen = log.last
        if log.pending_durable or log.is_ahead or (busy and log.level == "fsync" and not log.pending_count):
            self._looks_in = GATHER_S
        elif log.pending_count:
            self._looks_in = BUFFERED_S
        elif log.degraded:
            self._looks_in = RESUME_S
        else:
            self._looks_in = math.inf
        with trio.move_on_after(self._looks_in) as scope:
            await self._wake.wait()
            self._wake = trio.Event()
        return scope.cancelled_caught

    async def _work(self) -> None:
        """What must be done now: fly a simulated sync, send what nobody waits for, look for space."""
        log = self.log
        if self._is_idle() and self._has_unsynced():
            self._send()
        if self._simulated is not None:
            batch, flight = self._simulated, self._flight
            assert flight is not None and isinstance(self._mode, Inline) and self._mode.latency is not None
            await trio.sleep(self._mode.latency())
            self._simulated = None
            self._commit_here(batch, flight)
        if log.degraded and log.try_resume():
            self._tell_degraded()

    def _wake_runner(self) -> None:
        self._looks_in = 0.0
        self._wake.set()

    # -- flights

    async def _lead(self, seq: int) -> None:
        """The first that waits sends for all."""
        if self._thread is None or self._crowd > 1:
            # Others wait too, of late: let all who can run append before the batch is closed.
            self._gathering = True
            try:
                await trio.lowlevel.cancel_shielded_checkpoint()
            finally:
                self._gathering = False
            if self._is_idle() and seq > self.log.durable:
                flight = self._depart()
                if flight is not None:
                    self._hold_or_follow(flight)
            return
        flight = self._depart()
        if flight is None:
            return
        try:
            now = time.perf_counter()
            if self._crowd or now - self._turned > TURN_S:
                # The others are owed a turn of the scheduler; while the disk is busy it costs little.
                self._turned = now
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            if self._waiting:
                self._follow(flight)
            else:
                self._hold_or_follow(flight)

    def _send(self) -> None:
        """Send what is pending to the disk; whoever waits for it is woken when it is there."""
        flight = self._depart()
        if flight is not None:
            self._follow(flight)

    def _depart(self) -> Flight | None:
        """Begin to commit what is pending. The flight that is returned must be followed; None when it has ended, or needs no care."""
        try:
            batch = self.log.take()
        except Exception:
            self._heed_refusal()
            if self._failure is None:
                raise
            return None
        if batch is None:
            return None
        self._batches += 1
        self._records += batch.count
        flight = self._flight = Flight(batch.last)
        if self._thread is not None:
            self._thread.submit(self.log.commit, batch, flight)
            return flight
        if self._token is not None and self._is_sync_simulated():
            self._simulated = batch
            self._wake_runner()
        else:
            self._commit_here(batch, flight)
        return None

    def _is_sync_simulated(self) -> bool:
        # Without a sync nothing takes time: `append` writes at once what somebody waits for, and must not overtake a batch.
        return self.log.level == "fsync" and isinstance(self._mode, Inline) and self._mode.latency is not None

    def _hold_or_follow(self, flight: Flight) -> None:
        if self._hold(flight):
            self._held += 1
            self._land(flight)
        else:
            self._follow(flight)

    def _follow(self, flight: Flight) -> None:
        """Have the flight landed when it has ended."""
        if not flight.tell(functools.partial(self._tell_landed, flight)):
            self._land(flight)

    def _hold(self, flight: Flight) -> bool:
        """Wait in place for a disk that has been fast lately; returns whether the flight has ended."""
        assert isinstance(self._mode, Threaded)
        return self._is_quick() and flight.wait(self._mode.hold_s)

    def _commit_here(self, batch: Batch, flight: Flight) -> None:
        error: BaseException | None = None
        try:
            self.log.commit(batch, sync=self.log.level == "fsync")
        except BaseException as caught:
            # Whatever it is, those who wait must hear of it; they are shielded, and nothing else would wake them.
            error = caught
        flight.land(error, 0.0)
        self._land(flight)
        if error is not None and not isinstance(error, Exception):
            raise error

    def _tell_landed(self, flight: Flight) -> None:
        """In the sync thread: have the event loop land the flight."""
        token = self._token
        if token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._land, flight)

    def _land(self, flight: Flight) -> None:
        """A commit has ended: wake those whose records are safe, and send what has gathered for others."""
        if self._flight is not flight:
            return  # Landed already: the thread told us of what we had seen.
        self._flight = None
        self._sync_s.append(flight.seconds)
        if flight.error is not None:
            self._fail(flight.error)
            return
        if self.log.degraded is not self._degraded:
            self._tell_degraded()
        self._crowd = len(self._waiting)
        durable = self.log.durable
        if self._told:
            told, self._told = self._told, []
            for seq, tell in told:
                if seq <= durable:
                    tell()
                else:
                    self._told.append((seq, tell))
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for seq, task in waiting:
                if seq <= durable:
                    trio.lowlevel.reschedule(task)
                else:
                    self._waiting.append((seq, task))
        if self._is_idle() and (self._waiting or self.log.pending_bytes >= GATHER_BYTES):
            self._send()

    def _has_unsynced(self) -> bool:
        return self.log.pending_count > 0 or self.log.is_ahead

    def _is_idle(self) -> bool:
        """Nothing is in flight or about to be; and nothing has failed."""
        return self._flight is None and not self._gathering and self._failure is None

    async def _park(self, seq: int) -> None:
        if self._failure is not None:
            raise self._failed()
        self._waiting.append((seq, trio.lowlevel.current_task()))
        await trio.lowlevel.wait_task_rescheduled(_never_abort)

    # -- what goes wrong

    def _fail(self, error: BaseException) -> None:
        """The disk has failed: nothing is tried again, everyone who waits is told, and `run` ends loudly (J11)."""
        if self._failure is not None:
            return
        if isinstance(error, JournalFailed):
            self._failure = error
        else:
            self._failure = JournalFailed(
                f"the journal {self.log.root!r} could not be written ({error!r}); start again: recovery keeps all that was acknowledged",
                root=self.log.root,
            )
            self._failure.__cause__ = error
        waiting, self._waiting, self._told = self._waiting, [], []
        for _, task in waiting:
            trio.lowlevel.reschedule(task, outcome.Error(self._failed()))
        self._wake_runner()

    def _heed_refusal(self) -> None:
        """Whatever the log raised: if it takes nothing more for it, those who wait must hear of that; nothing else would wake them."""
        refusal = self.log.refusal
        if isinstance(refusal, JournalFailed):
            self._fail(refusal)

    def _failed(self) -> JournalFailed:
        """The failure, in a copy of its own for each task that raises it."""
        assert self._failure is not None
        copy = JournalFailed(self._failure.message, **self._failure.facts)
        copy.__cause__ = self._failure
        return copy

    def _tell_degraded(self) -> None:
        if self.log.degraded is not self._degraded:
            self._degraded = self.log.degraded
            if self._degraded:
                self._wake_runner()
            if self.on_degraded is not None:
                self.on_degraded(self._degraded)

    def _sender_closed(self) -> None:
        self._senders -= 1
        if not self._senders:
            # The last one out: what runs outermost may now end.
            self.close()


class JournalSender:
    """The claim of one part of the tree on the journal; while it is open, the writer's task goes on."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._open = True

    def append(self, entry: Entry) -> int:
        if not self._open:
            raise JournalClosed("this sender of the journal is closed; open another with open_sender()")
        return self._writer.append(entry)

    def is_durable(self, seq: int) -> bool:
        return self._writer.is_durable(seq)

    async def wait_durable(self, seq: int) -> None:
        await self._writer.wait_durable(seq)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._writer._sender_closed()

    def __enter__(self) -> JournalSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
