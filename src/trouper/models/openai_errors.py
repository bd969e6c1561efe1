"""What refusals in the format of OpenAI mean, as it and the many servers that speak its language write them (M13)."""

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
from trouper.models.gemini_errors import details_of, is_daily, retry_delay_s
from trouper.models.http_faults import clean_message, retry_after_s
from trouper.models.keys import Credential
from trouper.models.refusals import fault_of_status_said, fault_of_unknown_body, should_retry, status_in

_QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded"})
_LONG_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
#: Statuses of errors that come in the midst of a stream, or from servers that say 200 and mean another.
_STATUS_OF = {
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "notfounderror": 404,
    "insufficient_quota": 429,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "tokens": 429,
    "requests": 429,
    "overloaded_error": 503,
    "server_error": 500,
}
_TOO_LONG = re.compile(
    r"maximum context|context[ _](length|window|size)|exceeds? the (available|maximum) (context|number of tokens)|too many (input )?tokens"
    r"|(prompt|input|request) is too (long|large)|request too large|reduce the length|maximum number of tokens",
    re.I,
)
_NO_MONEY = re.compile(r"exceeded your current quota|insufficient (credits|balance|funds|quota)|out of credits", re.I)
_BAD_PARITY = re.compile(
    r"tool_call_ids? did not have response|must be a response to a preceed?ing message|must be followed by tool messages|tool_call_id"
    r"|reasoning_content.{0,60}(missing|passed back|required)|thought[ _]?signature",
    re.I,
)
_TRY_AGAIN = re.compile(r"(?:try again|retry) in (?:(\d{1,4})m)?(?:(\d{1,9}(?:\.\d{1,9})?)(ms|s))", re.I)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def fault_of_reply(
    provider: str, status: int, body: bytes, headers: Mapping[str, str], credential: Credential | None
) -> ModelError:
    """The fault of a reply that is no 200."""
    value = wire_json.decode_or_none(body)
    error = error_in(value) or _bare_error(value)
    if error is None:
        return fault_of_unknown_body(provider, status, body, headers, credential, _wait_s(status, headers, ""))
    return fault_of_error(provider, error, status, headers, credential)


def error_in(value: Json) -> Mapping[str, Json] | None:
    """The error of an event or a body, under "error" as an object or as text; or bare, as vLLM writes it."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, Mapping):
        return None
    error = value.get("error")
    if isinstance(error, Mapping):
        return error
    if isinstance(error, str) and error:
        return {"message": error}
    return value if value.get("object") == "error" else None


def _bare_error(value: Json) -> Mapping[str, Json] | None:
    """What gateways put into the body of a refusal instead: a message at the top, or FastAPI's "detail"."""
    if not isinstance(value, Mapping):
        return None
    if "message" in value:
        return value
    if "detail" in value:
        return {"message": wire_json.as_text(value["detail"])}
    return None


def fault_of_error(
    provider: str,
    error: Mapping[str, Json],
    status: int | None,
    headers: Mapping[str, str],
    credential: Credential | None,
) -> ModelError:
    """The fault of an `error` object: of a reply, or sent in the midst of a stream."""
    code = error.get("code")
    names = {str(name).lower() for name in (code, error.get("type")) if isinstance(name, str) and name}
    if status is None or status < 300:
        status = _status(code, names)
    prose = wire_json.as_text(error.get("message"))
    named = next((str(name) for name in (code, error.get("type")) if isinstance(name, str) and name), "")
    said = clean_message(f"{named}: {prose}" if named else prose, credential)
    # Google, which speaks this language as well, calls every limit a quota, also that of a minute; its details say which it is.
    details = details_of(error)
    wait = retry_delay_s(details)
    facts: dict[str, Any] = {
        "status": status,
        "provider": provider,
        "retry_after_s": wait if wait is not None else _wait_s(status, headers, prose),
        "retryable": should_retry(headers),
    }
    shown = f"{provider} answered {status} {said}"
    passes = wait is not None or _TRY_AGAIN.search(prose) is not None
    if names & _QUOTA_CODES or is_daily(details) or (_NO_MONEY.search(prose) and not passes):
        return QuotaExceeded(f"{shown}; check plan and billing", **facts)
    if names & _LONG_CODES or (status in (400, 413, 422, 429, 500) and _TOO_LONG.search(prose)):
        # A request above the limit of a whole minute is refused as 429, however long one waits.
        return ContextOverflow(f"{shown}; compact the history", **facts)
    if status == 429:
        return RateLimited(f"{shown}; wait, or ask for a higher limit", **facts)
    if "invalid_api_key" in names:
        return AuthFailed(f"{shown}; check OPENAI_API_KEY or the api_key argument", **facts)
    if status in (400, 422):
        if _BAD_PARITY.search(prose):
            return HistoryRefused(f"{shown}; the history does not match what the model said", **facts)
        return BadRequest(f"{shown}; change the request", **facts)
    return fault_of_status_said(said, facts)


def _status(code: Json, names: set[str]) -> int:
    return status_in(code) or next((_STATUS_OF[name] for name in sorted(names) if name in _STATUS_OF), 500)


def _wait_s(status: int, headers: Mapping[str, str], prose: str) -> float | None:
    if (wait := retry_after_s(headers)) is not None:
        return wait
    if status != 429:
        return None
    waits = [
        wait
        for kind in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{kind}") == "0"
        and (wait := duration_s(headers.get(f"x-ratelimit-reset-{kind}", ""))) is not None
    ]
    if waits:
        return max(waits)
    if match := _TRY_AGAIN.search(prose):
        return int(match[1] or 0) * 60 + float(match[2]) * _UNITS[match[3].lower()]
    return None


def duration_s(text: str) -> float | None:
    """`6m0s`, `1.5s`, `20ms`, as the x-ratelimit-reset headers write it."""
    found = _DURATION.findall(text)
    if not found or "".join(number + unit for number, unit in found) != text.strip():
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in found)
