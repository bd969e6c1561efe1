"""The thread in which the real disk is written and synced.

A worker thread of trio costs 0.2-0.3 ms a call, about as much as the sync itself; a thread that waits for the next batch costs a tenth of
that (design/decisions/journal.md). One batch is in flight at a time. The owner either waits for it, for a bounded time, or asks to be
told when it has landed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable


class Flight:
    """One commit on its way. `error` and `seconds` are set when it has landed."""

    __slots__ = ("_gate", "_landed", "_mutex", "_tell", "error", "last", "seconds")

    def __init__(self, last: int) -> None:
        self.last = last
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._mutex = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()
        self._landed = False
        self._tell: Callable[[], None] | None = None

    def wait(self, seconds: float) -> bool:
        """Block until it has landed, for so long at most; returns whether it has."""
        return self._gate.acquire(True, seconds)

    def tell(self, call: Callable[[], None]) -> bool:
        """Have `call` called by the thread once it lands; False, and no call, if it has landed already."""
        with self._mutex:
            if self._landed:
                return False
            self._tell = call
            return True

    def land(self, error: BaseException | None, seconds: float) -> None:
        with self._mutex:
            self.error = error
            self.seconds = seconds
            self._landed = True
        self._gate.release()
        if self._tell is not None:
            self._tell()


class SyncThread:
    """Runs commits one after another. A daemon: a disk that never answers must not keep a dying process alive."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], Flight] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="trouper journal sync", daemon=True)
        self._thread.start()

    def submit(self, commit: Callable[[], None], flight: Flight) -> None:
        self._jobs.put((commit, flight))

    def stop(self) -> None:
        """End the thread; nothing may be in flight."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            commit, flight = job
            started = time.perf_counter()
            error: BaseException | None = None
            try:
                commit()
            except BaseException as caught:
                # Whatever it is, it is the owner's to raise; a thread that died would leave everyone waiting.
                error = caught
            flight.land(error, time.perf_counter() - started)
            # The frame must not keep the batch alive while it waits.
            del job, commit, flight, error
