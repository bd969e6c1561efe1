"""What goes wrong on the way to a provider, by name and with the remedy: the network, a proxy, a status; and how long to wait for the next try (L11, M3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trouper.models._errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ModelError,
    ModelFault,
    NetworkFault,
    QuotaExceeded,
    RateLimited,
    ServerFault,
)
from trouper.models.hosts import host_in
from trouper.models.keys import Credential

MESSAGE_MAX = 1_000
#: A longer wait than this is none that anybody keeps; as long as this it still says that trying sooner is in vain.
_WAIT_MAX_S = 1e9


def clean_message(text: object, credential: Credential | None) -> str:
    """A provider's words as an error may show them: without the key, on one line, and short."""
    shown = text if isinstance(text, str) else str(text)
    if credential is not None:
        shown = credential.redact(shown)
    shown = "".join(char if char.isprintable() else " " for char in shown[: MESSAGE_MAX * 2])
    shown = " ".join(shown.split())
    return shown if len(shown) <= MESSAGE_MAX else shown[:MESSAGE_MAX] + "..."


def network_fault(
    exc: Exception, provider: str, credential: Credential | None, *, is_proxied: bool = False
) -> ModelError:
    """What an exception of httpx means. A plain `ModelFault` if it is none of the network's: then raise the exception itself."""
    import httpx

    detail = clean_message(_words_of(exc), credential)
    said = f"{type(exc).__name__}: {detail}" if detail else type(exc).__name__
    # What could not be reached may as well be the proxy: of a CONNECT it is nobody else.
    of_proxy = ", or of the proxy on the way," if is_proxied else ""
    or_proxy = "; or it is the proxy on the way: check proxy=, or HTTPS_PROXY and its kin" if is_proxied else ""
    # A host's name that cannot be encoded for the network is a `UnicodeError`.
    if isinstance(exc, httpx.UnsupportedProtocol | httpx.LocalProtocolError | httpx.InvalidURL | UnicodeError):
        return BadRequest(
            f"the request to {provider!r} cannot be sent ({said}); check base_url and headers", provider=provider
        )
    if isinstance(exc, httpx.TimeoutException):
        return NetworkFault(
            f"no connection to {provider!r} in time ({said}); check the network{or_proxy}", provider=provider
        )
    if isinstance(exc, httpx.ConnectError) and "CERTIFICATE_VERIFY" in detail.upper():
        return NetworkFault(
            f"the certificate of {provider!r}{of_proxy} is not trusted ({said}); check base_url and the clock; "
            "where an authority of one's own vouches for it, name the file of its certificate in SSL_CERT_FILE",
            provider=provider,
            retryable=False,
        )
    if isinstance(exc, httpx.ProxyError):
        # Asked for a connection, it says why it makes none as "407 Proxy Authentication Required".
        said_status = re.match(r"[1-5]\d\d\b", detail)
        return _fault_of_proxy(int(said_status[0]) if said_status else None, said, provider)
    if isinstance(exc, httpx.ConnectError):
        return NetworkFault(
            f"cannot connect to {provider!r} ({said}); check the network and base_url{or_proxy}", provider=provider
        )
    if isinstance(exc, httpx.HTTPError | httpx.StreamError | OSError):
        return NetworkFault(f"the connection to {provider!r} broke ({said}); try again", provider=provider)
    return ModelFault(f"{type(exc).__name__}", provider=provider)


def _words_of(error: BaseException) -> str:
    """What an error says, or, of one without words, its cause: the transport that goes through proxies wraps the network's errors in others that are empty."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return str(cause) if cause is not None else ""


def _fault_of_proxy(status: int | None, said: str, provider: str) -> ModelError:
    """The fault of a proxy that did not let us through: nothing is wrong with the key or the request, and the provider has not seen them."""
    blamed = f"the proxy on the way to {provider!r} makes no connection ({said})"
    if status == 407:
        return AuthFailed(
            # Not written as a whole address: of one with a password in it no error shows that.
            f"{blamed}; give it a name and a password that it takes, as name:password@ before its host, in proxy=, or in HTTPS_PROXY and its kin",
            status=status,
            provider=provider,
        )
    # What it refuses, it refuses again; what it fails at may be over soon.
    is_refused = status is not None and 400 <= status < 500 and status not in (408, 425, 429)
    return NetworkFault(
        f"{blamed}; check what it allows, and proxy=, or HTTPS_PROXY and its kin",
        provider=provider,
        retryable=False if is_refused else None,
    )


def fault_of_status(
    status: int, message: str, *, provider: str, retry_after_s: float | None = None, location: str | None = None
) -> ModelError:
    """The fault that a status code alone tells of; providers that say more look at their bodies first."""
    facts: dict[str, Any] = {"status": status, "provider": provider, "retry_after_s": retry_after_s}
    said = f"{provider} answered {status}: {message}" if message else f"{provider} answered {status}"
    if 300 <= status < 400:
        where = host_in(location or "")
        return ModelFault(
            f"{said} (a redirect{f' to {where!r}' if where else ''}, which is not followed, so as not to pass the key on); "
            "set base_url to the final address",
            **facts,
        )
    match status:
        case 401 | 403:
            return AuthFailed(f"{said}; check the key and what it may use", **facts)
        case 402:
            return QuotaExceeded(f"{said}; check plan and billing", **facts)
        case 404 | 405:
            # No model of this name, or no provider at this address.
            return BadRequest(f"{said}; check the model's name and base_url", **facts)
        case 407:
            # Only a proxy answers so (RFC 9110, 15.5.8).
            return _fault_of_proxy(status, f"407: {message}" if message else "407", provider)
        case 413:
            return ContextOverflow(f"{said}; send less", **facts)
        case 429:
            return RateLimited(f"{said}; wait, or ask for a higher limit", **facts)
        case 408 | 409 | 425:
            return ServerFault(f"{said}; try again", **facts)
        case _ if status >= 500:
            return ServerFault(f"{said}; try again later", **facts)
        case _ if status >= 400:
            return BadRequest(f"{said}; change the request", **facts)
        case _:
            return ModelFault(f"{said}, which is no reply to this request; check base_url", **facts)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that a `Retry-After` asks for, in seconds or as a date, or that of the finer `retry-after-ms`."""
    millis = _seconds(headers.get("retry-after-ms"))
    if millis is not None:
        return millis / 1000
    said = headers.get("retry-after")
    if said is None:
        return None
    if (seconds := _seconds(said)) is not None:
        return seconds
    try:
        # Against the provider's own clock: ours may be wrong.
        return max(0.0, _moment(said) - _moment(headers["date"]))
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def _moment(date: str) -> float:
    """The seconds of a date of HTTP, in any of its three forms. The oldest, `Wed Oct 21 07:28:10 2026`, names no zone, and means UTC as the others do."""
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    moment = parsedate_to_datetime(date)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(text: str | None) -> float | None:
    if text is None or not re.match(r"\d+(\.\d+)?\Z", text.strip()):
        return None
    return min(float(text), _WAIT_MAX_S)
