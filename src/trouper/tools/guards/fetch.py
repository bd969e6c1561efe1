"""One page from the public Internet, with every size and time bounded (T18).

It speaks HTTP through h11 over a stream of its own, because clients take proxies, cookies, redirects and `.netrc` from their surroundings, and here the
surroundings are what must not leak. The name is resolved and checked by `ssrf`; the connection is made to an address that was checked, while `Host`
and TLS keep the name. Redirects are followed by hand, and each is checked as if it were the first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import urljoin

import trio
from attrs import frozen

from trouper.tools.guards.refusal import Refused
from trouper.tools.guards.ssrf import Address, Network, Resolver, Target, parse_url, resolve, system_resolver

if TYPE_CHECKING:
    import ssl

    import h11

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: The most that one step of decompression may give, so that a bomb is seen before it has gone off.
_INFLATE_STEP = 64 * 1024
#: How a gzip file begins.
_GZIP_MARK = b"\x1f"
_AGENT = "trouper"
#: An address that never answers must not eat the time of the next.
_CONNECT_TRY_S = 5.0
_READ_BYTES = 64 * 1024
#: Status line and headers together.
_HEADER_BYTES_MAX = 64 * 1024


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
        url = _redirected(target.url, answer)


def _redirected(base: str, location: str) -> str:
    try:
        return urljoin(base, location)
    except ValueError:
        return location  # No address in any reading; `parse_url` finds the words.


async def _request(
    target: Target,
    addresses: Sequence[Address],
    method: str,
    limits: FetchLimits,
    tls: ssl.SSLContext | None,
    redirects: tuple[str, ...],
) -> Page | str:
    """The page, or where it says that it has gone."""
    import h11

    try:
        stream = await _connect(target, addresses, tls)
        try:
            return await _converse(_Exchange(stream, method), target, limits, redirects)
        finally:
            await trio.aclose_forcefully(stream)  # nothing more is said: a polite goodbye could wait for the other side
    except (h11.ProtocolError, trio.BrokenResourceError, OSError) as error:
        said = str(error.__cause__ or error) or type(error).__name__
        raise FetchFailed(
            f"{_shown(target.url)} could not be fetched ({said[:200]}); check the address or try later", url=target.url
        ) from error


async def _connect(target: Target, addresses: Sequence[Address], tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """To an address that was checked; the name is only told to the other side."""
    stream: trio.abc.Stream | None = None
    for address in addresses[:-1]:
        with suppress(OSError), trio.move_on_after(_CONNECT_TRY_S):
            stream = await trio.open_tcp_stream(str(address), target.port)
            break
    if stream is None:
        stream = await trio.open_tcp_stream(str(addresses[-1]), target.port)
    if target.scheme == "http":
        return stream
    import ssl

    secured = trio.SSLStream(
        stream, tls or ssl.create_default_context(), server_hostname=target.host, https_compatible=True
    )
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


async def _converse(exchange: _Exchange, target: Target, limits: FetchLimits, redirects: tuple[str, ...]) -> Page | str:
    response = await exchange.ask(target)
    found = {name.decode("latin-1"): _text(value) for name, value in reversed(response.headers)}
    if response.status_code in _REDIRECTS and "location" in found:
        return found["location"]
    encoding = ", ".join(_text(value) for name, value in response.headers if name == b"content-encoding")
    body, cut, wire = b"", False, 0
    if exchange.method != "HEAD":
        body, cut, wire = await _read_body(exchange, encoding, limits)
    return Page(
        url=target.url,
        status=response.status_code,
        content_type=found.get("content-type", ""),
        body=body,
        cut=cut,
        wire_bytes=wire,
        redirects=redirects,
        content_length=found.get("content-length"),
    )


def _text(value: bytes) -> str:
    """A header as it is meant: addresses are sent in plain UTF-8 these days, whatever the standard says."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class _Exchange:
    """One request and its answer on one connection."""

    def __init__(self, stream: trio.abc.Stream, method: str) -> None:
        import h11

        self.method = method
        self._stream = stream
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEADER_BYTES_MAX)

    async def ask(self, target: Target) -> h11.Response:
        import h11

        headers = [("Host", target.netloc), ("User-Agent", _AGENT), ("Accept", "text/*, application/json, */*;q=0.5")]
        headers += [("Accept-Encoding", "gzip"), ("Connection", "close")]
        request = h11.Request(method=self.method, target=target.path_and_query, headers=headers)
        await self._stream.send_all(
            (self._protocol.send(request) or b"") + (self._protocol.send(h11.EndOfMessage()) or b"")
        )
        while True:
            event = await self.next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("there is no answer in what came")

    async def next_event(self) -> h11.Event | type[h11.PAUSED]:
        import h11

        while True:
            event = self._protocol.next_event()
            if event is not h11.NEED_DATA:
                # Answers that are always there already would otherwise never let another task run, nor a deadline pass.
                await trio.lowlevel.checkpoint()
                return event  # type: ignore[return-value]
            received = bytes(await self._stream.receive_some(_READ_BYTES))
            if not received and self._protocol.their_state is h11.SEND_RESPONSE:
                # h11 has no words for it.
                raise h11.RemoteProtocolError("the connection was closed before an answer came")
            self._protocol.receive_data(received)


async def _read_body(exchange: _Exchange, encoding: str, limits: FetchLimits) -> tuple[bytes, bool, int]:
    """The body, whether it was cut, and what came over the wire."""
    import h11

    decoder = _decoder(encoding)
    body = bytearray()
    wire = 0
    while isinstance(event := await exchange.next_event(), h11.Data):
        chunk = bytes(event.data)
        room = limits.wire_bytes_max - wire
        wire += len(chunk)
        if not decoder.feed(chunk[:room], body, limits.decoded_bytes_max) or len(chunk) > room:
            return bytes(body), True, wire
    if wire and not decoder.ended:
        raise FetchFailed("the page ends in the middle of its compressed data; try again, or another source")
    return bytes(body), False, wire


class _Identity:
    ended = True

    def feed(self, chunk: bytes, into: bytearray, limit: int) -> bool:
        """Add to `into`, up to `limit`. False: there was more."""
        room = limit - len(into)
        into += chunk[:room]
        return len(chunk) <= room


class _Inflate:
    """gzip or zlib, a bounded step at a time: the ratio of a bomb does not matter, as no step gives more than it may."""

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        self._inflater = zlib.decompressobj(wbits)

    @property
    def ended(self) -> bool:
        return self._inflater.eof

    def feed(self, chunk: bytes, into: bytearray, limit: int) -> bool:
        while chunk:
            if self._inflater.eof:
                # A gzip file may be several in a row, as servers that compress piece by piece send it. What else follows is nothing of the page.
                if chunk[:1] != _GZIP_MARK:
                    return True
                self._inflater = zlib.decompressobj(self._wbits)
            room = limit - len(into)
            if room <= 0:
                return False
            try:
                into += self._inflater.decompress(chunk, min(room, _INFLATE_STEP))
            except zlib.error as error:
                raise FetchFailed(f"the page is not compressed as it says ({error}); try another source") from None
            chunk = self._inflater.unconsumed_tail or self._inflater.unused_data
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


def _shown(url: str) -> str:
    return repr(url if len(url) <= 200 else url[:200] + "...")
