"""The thread in which the real disk is written and synced.

A worker thread of trio costs 0.2-0.3 ms a call, about as much as the sync itself; a thread that waits for the next batch costs a tenth of
that (design/decisions/journal.md). One batch is in flight at a time. The owner either waits for it, for a bounded time, or asks to be
told when it has landed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from trouper.journal.log import Batch


class Flight:
    """One commit on its way. `error` and `seconds` are set when it has landed."""

    __slots__ = ("_gate", "_tell", "error", "landed", "last", "seconds")

    def __init__(self, last: int) -> None:
        self.last = last
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._gate = threading.Lock()
        self._gate.acquire()
        self.landed = False
        self._tell: Callable[[], None] | None = None

    def wait(self, seconds: float) -> bool:
        """Block until it has landed, for so long at most; returns whether it has."""
        return self._gate.acquire(True, seconds)

    def tell(self, call: Callable[[], None]) -> bool:
        """Have `call` called by the thread once it lands. False if it has landed already; then the call may come or not."""
        self._tell = call
        # The thread sets this before it looks for a call: so at least one of us sees the other.
        return not self.landed

    def land(self, error: BaseException | None, seconds: float) -> None:
        self.error = error
        self.seconds = seconds
        self.landed = True
        self._gate.release()
        if self._tell is not None:
            self._tell()


class SyncThread:
    """Runs commits, one at a time. A daemon: a disk that never answers must not keep a dying process alive.

    `OSError` or `RuntimeError` when the system has no descriptor or no thread left for it.
    """

    def __init__(self) -> None:
        # A byte for each job, and there is never a second one. A pipe and not a lock: who releases a lock holds the interpreter,
        # so that the thread would wake only to wait for that, and be woken once more.
        self._jobs, self._door = os.pipe()
        self._job: tuple[Callable[[Batch], None], Batch, Flight] | None = None
        self._flight: Flight | None = None
        self._thread = threading.Thread(target=self._run, name="trouper journal sync", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._close()
            raise

    def submit(self, commit: Callable[[Batch], None], batch: Batch, flight: Flight) -> None:
        """Begin a commit; the one before must have landed."""
        self._flight = flight
        self._job = (commit, batch, flight)
        os.write(self._door, b"\n")

    def stop(self) -> None:
        """End the thread; waits for the flight that it may be on."""
        if self._flight is not None and not self._flight.landed:
            self._flight.wait(-1)
        os.write(self._door, b"\n")
        self._thread.join()
        self._close()

    def _close(self) -> None:
        os.close(self._door)
        os.close(self._jobs)

    def _run(self) -> None:
        while True:
            os.read(self._jobs, 1)
            job, self._job = self._job, None
            if job is None:
                return
            commit, batch, flight = job
            started = time.perf_counter()
            error: BaseException | None = None
            try:
                commit(batch)
            except BaseException as caught:
                # Whatever it is, it is the owner's to raise; a thread that died would leave everyone waiting.
                error = caught
            flight.land(error, time.perf_counter() - started)
            # The frame must not keep the batch alive while it waits.
            del job, commit, batch, flight, error
