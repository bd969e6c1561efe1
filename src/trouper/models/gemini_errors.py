"""What Gemini's refusals mean: google.rpc statuses, their details, and their prose (M10)."""

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
    ServerFault,
)
from trouper.models.http_faults import clean_message, fault_of_status, retry_after_s
from trouper.models.keys import Credential
from trouper.models.refusals import fault_of_unknown_body, status_in

PROVIDER = "gemini"

_STATUS_OF = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_TOO_LONG = re.compile(
    r"token count.{0,40}exceeds|maximum number of tokens|payload size exceeds|context (length|window)", re.I
)
_BAD_KEY = re.compile(r"api[ _-]?key (not valid|expired|invalid|not found)|API_KEY_(INVALID|SERVICE_BLOCKED)", re.I)
_BAD_SIGNATURE = re.compile(r"thought[ _]?signature", re.I)
#: Of a duration: a longer one is none that anybody waits for.
_NUMBER = re.compile(r"\d{1,9}\Z")
_BAD_PARITY = re.compile(
    r"function (response|call) (parts|turn)|number of function|functionResponse|function_response|corresponding function call",
    re.I,
)


def fault_of_reply(status: int, body: bytes, headers: Mapping[str, str], credential: Credential | None) -> ModelError:
    """The fault of a reply that is no 200."""
    value = wire_json.decode_or_none(body)
    if isinstance(value, list) and value:
        # Without alt=sse, and from some gateways, errors come in a list of one.
        value = value[0]
    error = value.get("error") if isinstance(value, Mapping) else None
    if not isinstance(error, Mapping):
        return fault_of_unknown_body(PROVIDER, status, body, headers, credential, retry_after_s(headers))
    return fault_of_error(error, status, headers, credential)


def fault_of_error(
    error: Mapping[str, Json], status: int | None, headers: Mapping[str, str], credential: Credential | None
) -> ModelError:
    """The fault of an `error` object: of a reply, or sent in the midst of a stream."""
    code = error.get("code")
    name = wire_json.as_text(error.get("status"))
    if status is None or status == 200:
        status = status_in(code) or _STATUS_OF.get(name, 500)
    details = details_of(error)
    prose = wire_json.as_text(error.get("message"))
    said = clean_message(f"{name}: {prose}" if name else prose, credential)
    wait = retry_delay_s(details)
    facts: dict[str, Any] = {
        "status": status,
        "provider": PROVIDER,
        "retry_after_s": wait if wait is not None else retry_after_s(headers),
    }
    said = f"gemini answered {status} {said}"
    reasons = {wire_json.as_text(item.get("reason")) for item in details if "reason" in item}
    if status == 429 or name == "RESOURCE_EXHAUSTED":
        if is_daily(details) or "BILLING_DISABLED" in reasons:
            return QuotaExceeded(
                f"{said}; the quota of the day or plan is used up: wait for the next, or raise it", **facts
            )
        return RateLimited(f"{said}; wait, or ask for a higher limit", **facts)
    if _BAD_KEY.search(prose) or any(_BAD_KEY.search(reason) for reason in reasons):
        return AuthFailed(f"{said}; check GEMINI_API_KEY or the api_key argument", **facts)
    if status in (400, 413):
        if status == 413 or _TOO_LONG.search(prose):
            return ContextOverflow(f"{said}; compact the history", **facts)
        if _BAD_SIGNATURE.search(prose) or _BAD_PARITY.search(prose):
            return HistoryRefused(f"{said}; the history does not match what the model said", **facts)
        return BadRequest(f"{said}; change the request", **facts)
    if status == 404:
        return BadRequest(f"{said}; check the model's name and the API version", **facts)
    if status == 499:
        return ServerFault(f"{said}; try again", **facts)
    return fault_of_status(
        status, said.removeprefix(f"gemini answered {status} "), provider=PROVIDER, retry_after_s=facts["retry_after_s"]
    )


def details_of(error: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """What google.rpc adds to an error."""
    return [item for item in _listed(error.get("details")) if isinstance(item, Mapping)]


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def retry_delay_s(details: list[Mapping[str, Json]]) -> float | None:
    """google.rpc.RetryInfo: `{"retryDelay": "34.07s"}`, or a duration as an object."""
    for item in details:
        delay = item.get("retryDelay")
        if isinstance(delay, str) and (match := re.match(r"(\d{1,9}(?:\.\d{1,9})?)s\Z", delay)):
            return float(match[1])
        if isinstance(delay, Mapping):
            seconds, nanos = (_NUMBER.match(wire_json.as_text(delay.get(name)) or "0") for name in ("seconds", "nanos"))
            if seconds and nanos:
                return float(seconds[0]) + float(nanos[0]) / 1e9
    return None


def is_daily(details: list[Mapping[str, Json]]) -> bool:
    """Whether google.rpc.QuotaFailure speaks of a limit that no back-off outlasts."""
    for item in details:
        for violation in _listed(item.get("violations")):
            if isinstance(violation, Mapping) and "perday" in wire_json.as_text(violation.get("quotaId")).lower():
                return True
    return False
