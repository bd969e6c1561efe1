"""M1, M10: what Gemini's refusals mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trouper.models._errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    HistoryRefused,
    ModelError,
    ModelFault,
    QuotaExceeded,
    RateLimited,
    ServerFault,
)
from trouper.models.gemini_errors import fault_of_reply
from trouper.models.http_faults import retry_after_s


def fault(code: int, message: str = "", status: str = "", details: Any = (), **headers: str) -> ModelError:
    body = {"error": {"code": code, "message": message, "status": status, "details": list(details)}}
    return fault_of_reply(code, json.dumps(body).encode(), headers, None)


PER_DAY = {"violations": [{"quotaMetric": "x", "quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
PER_MINUTE = {"violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel"}]}
TOO_LONG = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
PARITY = "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn."
TURN = "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
SIGNATURE = "Function call `f` in the 2. content block is missing a `thought_signature`."


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (fault(400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT"), AuthFailed, False),
        (fault(400, "x", details=[{"reason": "API_KEY_INVALID"}]), AuthFailed, False),
        (fault(401, "x"), AuthFailed, False),
        (fault(403, "x", "PERMISSION_DENIED"), AuthFailed, False),
        (fault(404, "models/x is not found", "NOT_FOUND"), BadRequest, False),
        (fault(400, TOO_LONG, "INVALID_ARGUMENT"), ContextOverflow, False),
        (fault(400, "Request payload size exceeds the limit: 20971520 bytes."), ContextOverflow, False),
        (fault(413, "x"), ContextOverflow, False),
        (fault(400, PARITY), HistoryRefused, False),
        (fault(400, TURN), HistoryRefused, False),
        (fault(400, SIGNATURE), HistoryRefused, False),
        (fault(400, "Unknown name 'foo'"), BadRequest, False),
        (fault(429, "x", details=[PER_MINUTE]), RateLimited, True),
        (fault(429, "x", details=[PER_DAY]), QuotaExceeded, False),
        (fault(500, "x", "INTERNAL"), ServerFault, True),
        (fault(503, "The model is overloaded.", "UNAVAILABLE"), ServerFault, True),
        (fault(504, "x", "DEADLINE_EXCEEDED"), ServerFault, True),
        (fault(499, "x", "CANCELLED"), ServerFault, True),
        (fault_of_reply(502, b"<html>Bad gateway</html>", {}, None), ServerFault, True),
        (fault_of_reply(429, b"", {}, None), RateLimited, True),
        (fault_of_reply(302, b"", {"location": "https://evil.example/x"}, None), ModelFault, False),
        (fault_of_reply(400, b'[{"error": {"code": 400, "message": "in a list"}}]', {}, None), BadRequest, False),
    ],
    ids=lambda value: value.message[:60] if isinstance(value, ModelError) else None,
)
def test_each_refusal_has_its_kind(error: ModelError, kind: type[ModelError], retryable: bool) -> None:
    assert type(error) is kind
    assert error.retryable is retryable
    assert error.provider == "gemini"
    assert error.status is not None


def test_the_providers_words_are_in_the_message() -> None:
    assert "The model is overloaded." in fault(503, "The model is overloaded.", "UNAVAILABLE").message


@pytest.mark.parametrize(
    ("details", "seconds"),
    [
        ([{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"}], 34.074824224),
        ([{"retryDelay": "0s"}], 0.0),
        ([{"retryDelay": {"seconds": "3", "nanos": 500000000}}], 3.5),
        ([{"retryDelay": {"seconds": "3", "nanos": None}}], 3.0),
        ([{"retryDelay": {"seconds": "³"}}], None),
        ([{"retryDelay": {"seconds": 10**400}}], None),
        ([{"retryDelay": {"nanos": "9" * 400}}], None),
        ([{"retryDelay": "soon"}], None),
        ([{"retryDelay": "-5s"}], None),
        ([], None),
    ],
)
def test_retry_info_is_read(details: Any, seconds: float | None) -> None:
    """M10, L11."""
    assert fault(429, details=details).retry_after_s == seconds


def test_retry_info_comes_before_the_header() -> None:
    headers = {"retry-after": "9"}
    assert fault(429, details=[{"retryDelay": "3s"}], **headers).retry_after_s == 3.0
    assert fault(429, **headers).retry_after_s == 9.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:10 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wednesday, 21-Oct-26 07:28:10 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
        ({"retry-after": "Wed Oct 21 07:28:10 2026", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:10 GMT"}, None),
        ({"retry-after": "99999999999"}, 1e9),
        ({"retry-after": "9" * 400}, 1e9),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "-1"}, None),
        ({}, None),
    ],
)
def test_retry_after_in_seconds_or_as_a_date(headers: dict[str, str], seconds: float | None) -> None:
    """L11. A date, in any of the three forms that HTTP has, is read against the provider's own clock. Who says never is not asked again at once."""
    assert retry_after_s(headers) == seconds
