"""What Anthropic's refusals mean: by type, by code, and by their prose (M14)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trouper.core.messages import Json
from trouper.models import wire_json
from trouper.models._errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    HistoryRefused,
    ModelError,
    QuotaExceeded,
    RateLimited,
)
from trouper.models.http_faults import clean_message, retry_after_s
from trouper.models.keys import Credential
from trouper.models.refusals import fault_of_status_said, fault_of_unknown_body, should_retry, status_in

PROVIDER = "anthropic"

_STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
#: The second is llama.cpp's.
_LONG_KINDS = frozenset({"request_too_large", "exceed_context_size_error"})
_QUOTA_CODES = frozenset({"enforced_spend_limit_reached", "organization_on_hold"})
_TOO_LONG = re.compile(
    r"(prompt|input|request) is too long|exceeds? (the )?(context|maximum)|context (limit|length|window)|maximum number of tokens",
    re.I,
)
_NO_MONEY = re.compile(r"credit balance|usage limits?\b.{0,80}regain|spend(ing)? limit|monthly (usage|spend)", re.I)
_BAD_THINKING = re.compile(r"`?signature`? in `?(redacted_)?thinking`?|bound to a different conversation", re.I)
_BOUND = re.compile(r"bound to a different conversation|prefix_mismatch_behavior", re.I)
_BAD_PARITY = re.compile(
    r"tool_use.{0,40}(ids?|blocks?).{0,60}(without|must be unique|found)|tool_result|tool_use_id"
    r"|expected `?thinking`?|`?thinking`? or `?redacted_thinking`?.{0,60}(cannot be modified|found)",
    re.I,
)


class ThinkingRefused(HistoryRefused):
    """A thinking block is not taken back: most often because the conversation before it was changed since (compacted, masked)."""

    #: Whether that is why, and the provider offers to drop such blocks itself.
    bound = False


def fault_of_reply(status: int, body: bytes, headers: Mapping[str, str], credential: Credential | None) -> ModelError:
    """The fault of a reply that is no 200."""
    value = wire_json.decode_or_none(body)
    error = value.get("error") if isinstance(value, Mapping) else None
    if not isinstance(error, Mapping):
        return fault_of_unknown_body(PROVIDER, status, body, headers, credential, _wait_s(status, headers))
    return fault_of_error(error, status, headers, credential)


def fault_of_error(
    error: Mapping[str, Json], status: int | None, headers: Mapping[str, str], credential: Credential | None
) -> ModelError:
    """The fault of an `error` object: of a reply, or of an `error` event in the midst of a stream."""
    kind = wire_json.as_text(error.get("type"))
    if status is None or status < 300:
        status = _STATUS_OF.get(kind) or status_in(error.get("code")) or 500
    prose = wire_json.as_text(error.get("message"))
    details = error.get("details")
    code = wire_json.as_text(details.get("error_code")) if isinstance(details, Mapping) else ""
    named = f"{kind} ({code})" if code else kind
    said = clean_message(f"{named}: {prose}" if named else prose, credential)
    facts: dict[str, Any] = {
        "status": status,
        "provider": PROVIDER,
        "retry_after_s": _wait_s(status, headers),
        "retryable": should_retry(headers),
    }
    shown = f"{PROVIDER} answered {status} {said}"
    if code in _QUOTA_CODES or kind == "billing_error" or _NO_MONEY.search(prose):
        return QuotaExceeded(f"{shown}; check plan and billing", **facts)
    if status == 413 or kind in _LONG_KINDS or (status == 400 and _TOO_LONG.search(prose)):
        return ContextOverflow(f"{shown}; compact the history", **facts)
    if status == 429:
        return RateLimited(f"{shown}; wait, or ask for a higher limit", **facts)
    if status == 401:
        return AuthFailed(f"{shown}; check ANTHROPIC_API_KEY or the api_key argument", **facts)
    if status == 400:
        if _BAD_THINKING.search(prose):
            refused = ThinkingRefused(f"{shown}; thinking is only taken back where it was made", **facts)
            refused.bound = _BOUND.search(prose) is not None
            return refused
        if _BAD_PARITY.search(prose):
            return HistoryRefused(f"{shown}; the history does not match what the model said", **facts)
        return BadRequest(f"{shown}; change the request", **facts)
    return fault_of_status_said(said, facts)


def _wait_s(status: int, headers: Mapping[str, str]) -> float | None:
    """`retry-after`; else, for a rate limit, the latest reset of those limits of which nothing is left."""
    if (wait := retry_after_s(headers)) is not None or status != 429:
        return wait
    waits = [
        wait
        for name, left in headers.items()
        if name.startswith("anthropic-ratelimit-") and name.endswith("-remaining") and left == "0"
        and (wait := _until_s(headers.get(name.removesuffix("remaining") + "reset"), headers.get("date"))) is not None
    ]  # fmt: skip
    return max(waits) if waits else None


def _until_s(moment: str | None, now: str | None) -> float | None:
    """Seconds from the reply's own date to an RFC 3339 moment: our clock may be wrong, and need not be asked."""
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    if moment is None or now is None:
        return None
    try:
        until = datetime.fromisoformat(moment)
        until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
        return max(0.0, (until - parsedate_to_datetime(now)).total_seconds())
    except (ValueError, TypeError):
        return None
