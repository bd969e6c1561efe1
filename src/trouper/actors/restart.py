"""When an actor begins again, and how often it may: a policy as data, and the count that holds it to the policy."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Literal

from trouper._errors import ConfigError
from trouper.actors.exits import Crashed, Normal
from trouper.core.values import frozen


@frozen
class Restart:
    """What to do when an actor's function returns or raises. An actor that is stopped or cancelled never begins again.

    At most `limit` restarts in any `within_s` seconds; one more would be needed, and the actor has failed for good.
    A restart exactly `within_s` seconds ago no longer counts.
    """

    #: `"always"`: permanent, however it ended; `"failure"`: if it raised; `"never"`: once is enough.
    on: Literal["always", "failure", "never"] = "failure"
    limit: int = 3
    within_s: float = 60.0
    #: The wait before a restart: doubled for each restart that still counts, up to `delay_max_s`.
    delay_s: float = 0.0
    delay_max_s: float = 60.0
    #: Whether a failure for good takes the supervisor with it: it cancels the rest and raises `ActorFailed` where it was opened.
    escalate: bool = False

    def __attrs_post_init__(self) -> None:
        if self.on not in ("always", "failure", "never"):
            raise ConfigError(f"restart on {self.on!r} is unknown; use 'always', 'failure' or 'never'")
        if self.limit < 0:
            raise ConfigError(f"restart limit {self.limit!r} is below 0; use on='never' for none")
        if not self.within_s > 0 or math.isnan(self.within_s):
            raise ConfigError(f"restart window within_s={self.within_s!r} is not above 0; give it in seconds")
        if not 0 <= self.delay_s < math.inf or not 0 <= self.delay_max_s < math.inf:
            raise ConfigError(
                f"restart delay {self.delay_s!r} up to {self.delay_max_s!r} makes no sense; give seconds, 0 for none"
            )

    def wants(self, last: Normal | Crashed) -> bool:
        """Whether an actor that ended so should begin again, the limit apart."""
        return self.on == "always" or (self.on == "failure" and isinstance(last, Crashed))


NEVER: Final = Restart(on="never")


class RestartWindow:
    """The restarts of one actor that still count. Handed its time; forgets what has left the window."""

    __slots__ = ("_policy", "_times", "total")

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self._times: deque[float] = deque()
        self.total = 0

    def allows(self, now: float) -> bool:
        return self.counted(now) < self._policy.limit

    def counted(self, now: float) -> int:
        while self._times and now - self._times[0] >= self._policy.within_s:
            self._times.popleft()
        return len(self._times)

    def delay_s(self, now: float) -> float:
        """How long to wait before the next restart."""
        # Doubling more often than this would overflow, and every delay is at its maximum long before.
        doublings = min(self.counted(now), 64)
        return min(self._policy.delay_s * 2.0**doublings, self._policy.delay_max_s)

    def record(self, now: float) -> None:
        """A restart happens now. Counted when it happens, not when it is decided: a delay must not crowd the window."""
        self._times.append(now)
        self.total += 1
