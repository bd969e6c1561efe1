"""One page from the public Internet, with every size and time bounded (T18).

It speaks through httpcore rather than httpx, because httpx reads proxies, cookies, redirects and `.netrc` from its surroundings, and here the
surroundings are what must not leak. The name is resolved and checked by `ssrf`; the connection is made to an address that was checked, while `Host`
and TLS keep the name. Redirects are followed by hand, and each is checked as if it were the first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import urljoin

import trio
from attrs import frozen

from trouper.tools.guards.refusal import Refused
from trouper.tools.guards.ssrf import Address, Network, Resolver, Target, parse_url, resolve, system_resolver

if TYPE_CHECKING:
    import ssl

    import httpcore

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: The most that one step of decompression may give, so that a bomb is seen before it has gone off.
_INFLATE_STEP = 64 * 1024
_AGENT = "trouper"
_CONNECT_TRY_S = 5.0


class FetchFailed(Refused):
    """The page was not had: the network, the server, or a limit."""


@frozen
class FetchLimits:
    redirects_max: int = 5
    #: As it comes over the wire, and as it is after decompression. Past either the page is cut.
    wire_bytes_max: int = 4 * 1024 * 1024
    decoded_bytes_max: int = 8 * 1024 * 1024
    #: For everything together: names, redirects, body.
    deadline_s: float = 30.0


DEFAULT_LIMITS = FetchLimits()


@frozen
class Page:
    url: str
    status: int
    content_type: str
    body: bytes
    #: The body ends at a limit, not where the server ended it.
    cut: bool
    wire_bytes: int
    redirects: tuple[str, ...]
    #: As the server declared it; a claim.
    content_length: str | None = None


async def fetch(
    url: str,
    *,
    method: Literal["GET", "HEAD"] = "GET",
    limits: FetchLimits = DEFAULT_LIMITS,
    resolver: Resolver = system_resolver,
    allow: Iterable[Network] = (),
    tls: ssl.SSLContext | None = None,
) -> Page:
    """Raises `AddressRefused` or `FetchFailed`. `allow` opens networks that are refused otherwise: for the operator's code alone."""
    allowed = tuple(allow)
    with trio.move_on_after(limits.deadline_s):
        return await _follow(url, method, limits, resolver, allowed, tls)
    raise FetchFailed(f"{_shown(url)} was not complete after {limits.deadline_s:g} s; try another source")


async def _follow(
    url: str,
    method: str,
    limits: FetchLimits,
    resolver: Resolver,
    allow: tuple[Network, ...],
    tls: ssl.SSLContext | None,
) -> Page:
    passed: list[str] = []
    while True:
        target = parse_url(url)
        addresses = await resolve(target, resolver, allow=allow)
        answer = await _request(target, addresses, method, limits, tls, tuple(passed))
        if isinstance(answer, Page):
            return answer
        passed.append(target.url)
        if len(passed) > limits.redirects_max:
            raise FetchFailed(
                f"{_shown(passed[0])} redirects more than {limits.redirects_max} times; ask for its final address"
            )
        url = urljoin(target.url, answer)


async def _request(
    target: Target,
    addresses: Sequence[Address],
    method: str,
    limits: FetchLimits,
    tls: ssl.SSLContext | None,
    redirects: tuple[str, ...],
) -> Page | str:
    """The page, or where it says that it has gone."""
    import httpcore

    headers = [("Host", target.netloc), ("User-Agent", _AGENT), ("Accept", "text/*, application/json, */*;q=0.5")]
    headers += [("Accept-Encoding", "gzip"), ("Connection", "close")]
    address = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path_and_query)
    try:
        async with httpcore.AsyncConnectionPool(
            ssl_context=tls, max_connections=1, http2=False, retries=0, network_backend=_pinned(addresses)
        ) as pool:
            async with pool.stream(method, address, headers=headers) as response:
                found = {
                    name.lower().decode("latin-1"): value.decode("latin-1")
                    for name, value in reversed(response.headers)
                }
                if response.status in _REDIRECTS and "location" in found:
                    return found["location"]
                body, cut, wire = b"", False, 0
                if method != "HEAD":
                    body, cut, wire = await _read_body(response, found.get("content-encoding", ""), limits)
                return Page(
                    url=target.url,
                    status=response.status,
                    content_type=found.get("content-type", ""),
                    body=body,
                    cut=cut,
                    wire_bytes=wire,
                    redirects=redirects,
                    content_length=found.get("content-length"),
                )
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
        said = str(error) or type(error).__name__
        raise FetchFailed(
            f"{_shown(target.url)} could not be fetched ({said[:200]}); check the address or try later", url=target.url
        ) from error


async def _read_body(response: httpcore.Response, encoding: str, limits: FetchLimits) -> tuple[bytes, bool, int]:
    decoder = _decoder(encoding)
    body = bytearray()
    wire = 0
    cut = False
    async for chunk in response.aiter_stream():
        wire += len(chunk)
        if wire > limits.wire_bytes_max:
            chunk = chunk[: len(chunk) - (wire - limits.wire_bytes_max)]
            cut = True
        complete = decoder.feed(chunk, body, limits.decoded_bytes_max)
        if cut or not complete:
            cut = True
            break
        # A server that drips bytes which are always there would otherwise never let another task run.
        await trio.lowlevel.checkpoint()
    return bytes(body), cut, wire


class _Identity:
    def feed(self, chunk: bytes, into: bytearray, limit: int) -> bool:
        """Add to `into`, up to `limit`. False: there was more."""
        room = limit - len(into)
        into += chunk[:room]
        return len(chunk) <= room


class _Inflate:
    """gzip or zlib, a bounded step at a time: the ratio of a bomb does not matter, as no step gives more than it may."""

    def __init__(self, wbits: int) -> None:
        self._inflater = zlib.decompressobj(wbits)

    def feed(self, chunk: bytes, into: bytearray, limit: int) -> bool:
        while chunk and not self._inflater.eof:
            room = limit - len(into)
            if room <= 0:
                return False
            try:
                into += self._inflater.decompress(chunk, min(room, _INFLATE_STEP))
            except zlib.error as error:
                raise FetchFailed(f"the page is not compressed as it says ({error}); try another source") from None
            chunk = self._inflater.unconsumed_tail
        return True


def _decoder(encoding: str) -> _Identity | _Inflate:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _Identity()
    if name in ("gzip", "x-gzip"):
        return _Inflate(16 + zlib.MAX_WBITS)
    if name == "deflate":
        return _Inflate(zlib.MAX_WBITS)
    raise FetchFailed(
        f"the page is encoded as {encoding[:60]!r}, which was not asked for and is not decoded; try another source"
    )


def _pinned(addresses: Sequence[Address]) -> httpcore.AsyncNetworkBackend:
    """A network in which every name leads to the addresses that were checked."""
    import httpcore

    inner = httpcore.TrioBackend()

    class Pinned(httpcore.AsyncNetworkBackend):
        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
        ) -> httpcore.AsyncNetworkStream:
            for address in addresses[:-1]:
                # An address that never answers must not eat the time of the next.
                with trio.move_on_after(_CONNECT_TRY_S):
                    try:
                        return await inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
                    except (httpcore.ConnectError, httpcore.ConnectTimeout):
                        pass
            return await inner.connect_tcp(str(addresses[-1]), port, timeout, local_address, socket_options)

        async def sleep(self, seconds: float) -> None:
            await trio.sleep(seconds)

    return Pinned()


def _shown(url: str) -> str:
    return repr(url if len(url) <= 200 else url[:200] + "...")
