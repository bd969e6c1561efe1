"""What refusals mean in any provider's format: those that a status alone tells of, and replies that nobody can read.

What only one provider says, by codes and by prose, is in the module of its errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trouper.core.messages import Json
from trouper.models._errors import BadRequest, ModelError, ServerFault
from trouper.models.http_faults import clean_message, fault_of_status
from trouper.models.keys import Credential

_STATUS = re.compile(r"[45][0-9]{2}\Z")
#: How much of a body in an unknown format is repeated in a message.
_SHOWN_CHARS = 400


def fault_of_unknown_body(
    provider: str,
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    credential: Credential | None,
    retry_after_s: float | None,
) -> ModelError:
    """The fault of a refusal that is not in the provider's format: often a proxy's, or a gateway's."""
    # Cut when the key is out of it: half a key at the cut would be taken for none.
    said = clean_message(body.decode("utf-8", "replace"), credential)[:_SHOWN_CHARS]
    return fault_of_status(
        status, said, provider=provider, retry_after_s=retry_after_s, location=headers.get("location")
    )


def fault_of_status_said(said: str, facts: Mapping[str, Any]) -> ModelError:
    """The fault of a refusal of which only its status is known to mean something. `facts`: the fields of the error."""
    status, provider = facts["status"], facts["provider"]
    if status == 404:
        return BadRequest(f"{provider} answered {status} {said}; check the model's name and base_url", **facts)
    if status == 499:
        return ServerFault(f"{provider} answered {status} {said}; try again", **facts)
    fault = fault_of_status(status, said, provider=provider, retry_after_s=facts["retry_after_s"])
    if facts["retryable"] is not None:
        fault.retryable = facts["retryable"]
    return fault


def status_in(code: Json) -> int | None:
    """The status of a refusal that an error's code gives, as a number or in digits."""
    if isinstance(code, str) and _STATUS.match(code):
        return int(code)
    return code if type(code) is int and 400 <= code < 600 else None


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """`x-should-retry`: where the server says it outright, it knows best."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", ""))


class UnreadableEvent(ServerFault):
    """An event that is in no provider's format: the last one of a stream may be cut short."""


def says_nothing(data: bytes) -> bool:
    """Whether an event is blank, as some gateways keep connections open, or the end marker of Chat Completions, which some servers write in any format (vLLM in Anthropic's)."""
    return data.strip() in (b"", b"[DONE]")


def fault_of_event(provider: str, data: bytes) -> UnreadableEvent:
    """The fault of an event that cannot be read. It is not repeated: it may be long, and hold anything."""
    return UnreadableEvent(
        f"{provider} sent an event of {len(data)} bytes that is not a JSON object; try again", provider=provider
    )
