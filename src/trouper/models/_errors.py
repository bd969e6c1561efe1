"""How a provider fails, by name, each with its advice: may it be tried again, and after how long (M1).

ModelError
|- RateLimited       slow down                       retryable
|- ServerFault       5xx, overloaded                 retryable
|  `- MalformedReply the model broke its own format  one silent retry, then terminal (M9)
|- NetworkFault      no connection, stall, cut off   retryable
|- AuthFailed        the key is wrong or missing
|- QuotaExceeded     the account has no more
|- ContextOverflow   the request is too long: compact, then one more try (L32)
|- BadRequest        the provider refuses the request
|  `- HistoryRefused because of calls, answers or signatures: repair it from the journal, once (M10)
`- ModelFault        anything else
   `- BadChunk       what a client hands over is no chunk, or holds what does not belong there
"""

from __future__ import annotations

import math
import socket
import sys
from typing import ClassVar

import trio

from trouper._errors import WorldError
from trouper.core.messages import Fault


class ModelError(WorldError):
    """A model call failed. Never holds a key: messages come from the provider's body, with known secrets cut out."""

    kind: ClassVar[str] = "other"
    may_retry: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        status: int | None = None,
        provider: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.provider = provider
        self.retryable = self.may_retry if retryable is None else retryable

    def as_fault(self) -> Fault:
        """The error as events and results carry it. The class may be somebody else's: whatever its fields hold, the journal can hold this."""
        kind, message = getattr(self, "kind", None), getattr(self, "message", None)
        return Fault(
            kind=kind if isinstance(kind, str) else ModelError.kind,
            message=message if isinstance(message, str) else str(self),
            retryable=bool(getattr(self, "retryable", self.may_retry)),
            retry_after_s=_seconds(getattr(self, "retry_after_s", None)),
        )


def _seconds(advice: object) -> float | None:
    """A wait that makes sense, if it is one: also as the text of a header, which clients hand on as it came."""
    if isinstance(advice, bool) or not isinstance(advice, int | float | str):
        return None
    try:
        seconds = float(advice)
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


class RateLimited(ModelError):
    """Too many requests; `retry_after_s` if the provider says so."""

    kind = "rate_limit"
    may_retry = True


class ServerFault(ModelError):
    """The provider failed, or is overloaded."""

    kind = "server"
    may_retry = True


class MalformedReply(ServerFault):
    """The model wrote a call that its own provider cannot read. Worth one silent retry, and no more (M9)."""


class NetworkFault(ModelError):
    """The connection failed, or broke off."""

    kind = "network"
    may_retry = True


class AuthFailed(ModelError):
    """The key is wrong, missing, or may not do this."""

    kind = "auth"


class QuotaExceeded(ModelError):
    """The account has nothing left; trying again does not help."""

    kind = "quota"


class ContextOverflow(ModelError):
    """The request is larger than the model's window; one forced compaction is tried (L32)."""

    kind = "context_overflow"


class BadRequest(ModelError):
    """The provider does not accept the request as it is."""

    kind = "bad_request"


class HistoryRefused(BadRequest):
    """The provider does not accept how calls, answers and signatures match. To be repaired from the journal, once (M10)."""


class ModelFault(ModelError):
    """Anything else that a provider or a model went wrong with."""

    kind = "other"


class BadChunk(ModelFault):
    """A client does not keep to the protocol; the message says where. Made here, so it holds nothing that is secret."""


#: How connections fail that a client uses directly. Not every `OSError`: a missing file is no reason to try again.
_CONNECTION = (ConnectionError, TimeoutError, socket.gaierror, trio.BrokenResourceError, trio.TooSlowError)


def as_model_error(error: BaseException, client: str) -> ModelError:
    """What a client raised, as one of ours, so that its drops are tried again as anybody's (L11, L13).

    Without its text, which may hold anything, a key included; that is for the log.
    """
    if isinstance(error, ModelError):
        return error
    httpx = sys.modules.get("httpx")  # Whoever has not imported it raises none of its errors.
    connection = _CONNECTION if httpx is None else (*_CONNECTION, httpx.TransportError)
    kind = NetworkFault if isinstance(error, connection) else ModelFault
    return kind(f"{client} raised {type(error).__name__}")
