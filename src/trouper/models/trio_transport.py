"""An httpx transport straight on trio: HTTP/1.1, direct connections, made for replies of many small pieces.

httpx's own transport hands out each piece of a chunked body through six layers, at some 30 us apiece; a model's reply has one piece per word. Here all
pieces that one read brought are one. There is less of everything else, too: no proxies, no HTTP/2, no deadline but that of connecting.
Closing a connection is a plain call that never waits, so a cancelled request needs no shield to leave nothing behind.

(Where a proxy is wanted, `Endpoint` takes httpx's transport instead.)
"""

from __future__ import annotations

import re
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Self, TypeAlias

import httpx
import trio

RECEIVE_BYTES = 64 * 1024
#: A reply that comes faster than anybody can look at it is taken in gulps: after so many reads in a row that had to wait less than QUICK_S, what comes
#: within GULP_S is read at once. A wake-up costs several times what is then done with a word. At a model's usual pace there is no such row.
QUICK_READS = 8
QUICK_S = 0.0005
GULP_S = 0.002
HEAD_BYTES_MAX = 256 * 1024
_SIZE_LINE_MAX = 4096
#: A piece that a socket takes without waiting, once it can be written to.
_SEND_BYTES = 16 * 1024
#: No round trip takes longer: what connecting took beyond that was the search for the address.
ROUND_TRIP_MAX_S = 1.0

#: What httpx's own transports tell a listener when a request begins to be sent.
_SENDING = "http11.send_request_headers.started"
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: |\Z)")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;|\Z)")
_FIELD_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_FIELD_VALUE = re.compile(rb"[^\x00\r\n]*\Z")
_TARGET = re.compile(rb"[\x21-\x7e]+\Z")

_Origin: TypeAlias = tuple[str, str, int]
_Listen: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class TrioTransport(httpx.AsyncBaseTransport):
    """Connections by origin, kept for the next request when a reply was read to its end."""

    def __init__(self, tls: Callable[[], ssl.SSLContext], *, idle_max: int, idle_s: float) -> None:
        self._tls = tls
        self._idle_max = idle_max
        self._idle_s = idle_s
        #: The one used last is at the end, and is used next: it is the likeliest to be alive.
        self._idle: list[_Connection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        message = _request_head(request) + b"".join([piece async for piece in request.stream])  # type: ignore[union-attr]
        # Taken away: httpx keeps the request until the collector comes by, and with it would go whoever listens.
        listen = request.extensions.pop("trace", None)
        url = request.url
        origin = (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        connection = self._take_idle(origin)
        while True:
            if connection is None:
                connection = await _connected(origin, self._tls, request.extensions.get("timeout", {}).get("connect"))
            try:
                status, headers, rest, keep = await _exchange(connection, message, listen)
                framing, size = _framing(request.method, status, headers)
                break
            except _EndedBefore:
                connection.close()
                connection = None
            except BaseException:
                connection.close()
                raise
        reply = ReplyBody(connection, rest, framing, size, self._put_back if keep else None)
        return httpx.Response(status, headers=headers, stream=reply, extensions={"body": reply})

    def _take_idle(self, origin: _Origin) -> _Connection | None:
        oldest = trio.current_time() - self._idle_s
        for position in range(len(self._idle) - 1, -1, -1):
            connection = self._idle[position]
            if connection.origin == origin:
                del self._idle[position]
                if connection.idle_since >= oldest and connection.is_quiet():
                    connection.trial_s = connection.round_trip_s
                    return connection
                connection.close()
        return None

    def _put_back(self, connection: _Connection) -> None:
        connection.idle_since = trio.current_time()
        self._idle.append(connection)
        if len(self._idle) > self._idle_max:
            self._idle.pop(0).close()

    async def aclose(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class RequestBody(httpx.AsyncByteStream):
    """A request's body. httpx's own is read through a generator, which a cancel in mid-sending leaves for the collector to complain about."""

    def __init__(self, body: bytes) -> None:
        self._pieces = [body]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._pieces:
            raise StopAsyncIteration
        return self._pieces.pop()


def told_when_sending(connected: Callable[[], None]) -> _Listen:
    """A listener for a request's "trace", whichever transport sends it: to send anything there has to be a connection, a new one or one that idled.

    httpx's own transport asks a proxy for a connection (CONNECT) with the same listener: what is sent then is no request to the server yet.
    """

    async def listen(event: str, info: Mapping[str, Any]) -> None:
        if event == _SENDING and getattr(info.get("request"), "method", b"") != b"CONNECT":
            connected()

    return listen


class _Socket(trio.abc.Stream):
    """A connected socket that waits first and reads then. trio's own reads first, which between two words finds nothing, at a fifth of a wake-up's cost."""

    def __init__(self, stream: trio.SocketStream) -> None:
        # The same socket twice, trio's for all but reading: its own gives no way to read without the attempt.
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(self._socket))
        self._descriptor = self._socket.fileno()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            if self._descriptor < 0:
                raise trio.ClosedResourceError("this connection was closed")
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                return self._socket.recv(max_bytes or RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as exc:
                raise trio.BrokenResourceError(f"the connection broke: {exc}") from exc

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    def is_quiet(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._descriptor = -1
        self._stream.socket.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


class _Connection:
    __slots__ = (
        "_socket",
        "idle_since",
        "origin",
        "receive_some",
        "round_trip_s",
        "send_all",
        "trial_s",
        "wait_writable",
    )

    def __init__(
        self, origin: _Origin, socket: _Socket, stream: _Socket | trio.SSLStream[_Socket], round_trip_s: float
    ) -> None:
        self.origin = origin
        self.idle_since = 0.0
        #: To the server and back, about.
        self.round_trip_s = round_trip_s
        #: How long from the next request on it is not known whether this is still a connection. A new one is; of one that idled, the end may be on its way.
        self.trial_s = 0.0
        self._socket = socket
        self.receive_some = stream.receive_some
        self.send_all = stream.send_all
        self.wait_writable = socket.wait_send_all_might_not_block

    def is_quiet(self) -> bool:
        """Whether the other side has said nothing since: an idle connection that can be read from has been closed."""
        return self._socket.is_quiet()

    def close(self) -> None:
        # No TLS farewell: HTTP says where a reply ends.
        self._socket.close()


async def _connected(origin: _Origin, tls: Callable[[], ssl.SSLContext], timeout_s: float | None) -> _Connection:
    scheme, host, port = origin
    context = tls() if scheme == "https" else None
    begun = trio.current_time()
    with trio.move_on_after(timeout_s if timeout_s is not None else float("inf")):
        try:
            socket = _Socket(await trio.open_tcp_stream(host, port))
        except OSError as exc:
            raise httpx.ConnectError(str(exc)) from exc
        met = trio.current_time()
        round_trip_s = min(met - begun, ROUND_TRIP_MAX_S)
        if context is None:
            return _Connection(origin, socket, socket, round_trip_s)
        stream = trio.SSLStream(socket, context, server_hostname=host, https_compatible=True)
        done = False
        try:
            await stream.do_handshake()
            done = True
        except (trio.BrokenResourceError, OSError) as exc:
            raise httpx.ConnectError(str(exc.__cause__ or exc)) from exc
        finally:
            if not done:
                socket.close()
        # Nor can the handshake be had in less than one, and it searches for no address.
        return _Connection(origin, socket, stream, min(trio.current_time() - met, round_trip_s))
    raise httpx.ConnectTimeout(f"no connection within {timeout_s} s")


def _request_head(request: httpx.Request) -> bytes:
    target = request.url.raw_path
    if not _TARGET.match(target):
        raise httpx.LocalProtocolError("illegal character in the request's path")
    lines = [request.method.encode("ascii") + b" " + target + b" HTTP/1.1"]
    for name, value in request.headers.raw:
        if not _FIELD_NAME.match(name) or not _FIELD_VALUE.match(value):
            # Without the value: it may be a key.
            raise httpx.LocalProtocolError(f"illegal header field {name!r}")
        lines.append(name + b": " + value)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


_Fields: TypeAlias = list[tuple[bytes, bytes]]
_Framing: TypeAlias = Literal["chunked", "length", "close"]


class _EndedBefore(Exception):
    """The connection was over before the request came to the server."""


class _Trial:
    """Whether a connection that idled is still one.

    A server that had let go of it is heard of within a round trip after a request's first byte, and has not had that request: it goes out once more, on a new
    connection. Whoever hangs up later may have worked on it; that is a fault like any other, and whether to ask again is for the caller to say (RFC 9110, 9.2.2).
    So it is then, and no sooner, that there is a connection to tell of.
    """

    def __init__(self, connection: _Connection, listen: _Listen | None) -> None:
        self._connection = connection
        self._ends = trio.current_time() + connection.trial_s
        self._listen = listen
        self._is_over = False

    async def send(self, message: bytes) -> None:
        if not self._connection.trial_s:
            await self._pass()
        unsent = memoryview(message)
        # A server that refuses early may have said why before it hung up: a failure to send is not the last word.
        with suppress(trio.BrokenResourceError):
            while unsent and not self._is_over:
                # Waited for by itself: sending cannot be left half-way.
                with trio.move_on_at(self._ends) as waiting:
                    await self._connection.wait_writable()
                if waiting.cancelled_caught:
                    await self._pass()
                else:
                    await self._connection.send_all(unsent[:_SEND_BYTES])
                    unsent = unsent[_SEND_BYTES:]
            if unsent:
                await self._connection.send_all(unsent)

    async def receive(self) -> bytes:
        """What comes next; `_EndedBefore` if that is the end, and the trial not over."""
        if self._is_over:
            return await _received(self._connection)
        piece: bytes | None = None
        with trio.move_on_at(self._ends):
            try:
                piece = await _received(self._connection)
            except httpx.TransportError as error:
                raise _EndedBefore from error
        await self._pass()
        return piece if piece is not None else await _received(self._connection)

    async def _pass(self) -> None:
        self._is_over = True
        if self._listen is not None:
            await self._listen(_SENDING, {})


async def _received(connection: _Connection) -> bytes:
    try:
        piece = await connection.receive_some(RECEIVE_BYTES)
    except trio.BrokenResourceError as exc:
        raise httpx.ReadError(str(exc.__cause__ or exc)) from exc
    if not piece:
        raise httpx.RemoteProtocolError("server disconnected without sending a response")
    return bytes(piece)


async def _exchange(
    connection: _Connection, message: bytes, listen: _Listen | None
) -> tuple[int, _Fields, bytes, bool]:
    """Send the request; the reply's status, fields, the bytes after its head, and whether the connection may serve again."""
    trial = _Trial(connection, listen)
    await trial.send(message)
    got = b""
    while True:
        got += await trial.receive()
        while (end := _HEAD_END.search(got)) is not None:
            status, keep, headers = _parsed_head(got[: end.start()])
            got = got[end.end() :]
            if status >= 200:
                return status, headers, got, keep
            if status == 101:
                raise httpx.RemoteProtocolError("server switched to a protocol that nobody asked for")
        if len(got) > HEAD_BYTES_MAX:
            raise httpx.RemoteProtocolError(f"response head of over {HEAD_BYTES_MAX} bytes")


def _parsed_head(head: bytes) -> tuple[int, bool, _Fields]:
    lines = head.split(b"\n")
    match = _STATUS_LINE.match(lines[0].rstrip(b"\r"))
    if match is None:
        raise httpx.RemoteProtocolError("response without a valid status line")
    fields: _Fields = []
    keep = match[1] == b"1"
    for line in lines[1:]:
        name, colon, value = line.rstrip(b"\r").partition(b":")
        value = value.strip(b" \t")
        if not colon or not _FIELD_NAME.match(name) or not _FIELD_VALUE.match(value):
            raise httpx.RemoteProtocolError("response with an illegal header line")
        fields.append((name, value))
        if name.lower() == b"connection" and b"close" in value.lower():
            keep = False
    return int(match[2]), keep, fields


def _framing(method: str, status: int, headers: _Fields) -> tuple[_Framing, int]:
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    lengths = {value for name, value in headers if name.lower() == b"content-length"}
    if method == "HEAD" or status in (204, 304):
        return "length", 0
    if codings:
        if codings != [b"chunked"]:
            raise httpx.RemoteProtocolError("response with an unknown transfer coding")
        return "chunked", 0
    if lengths:
        text = lengths.pop()
        if lengths or not text.isdigit() or len(text) > 15:
            raise httpx.RemoteProtocolError("response with an invalid content-length")
        return "length", int(text)
    return "close", 0


class ReplyBody(httpx.AsyncByteStream):
    """A reply's body. `receive` returns all that is here, `b""` at the end; iterating does the same."""

    def __init__(
        self,
        connection: _Connection,
        rest: bytes,
        framing: _Framing,
        size: int,
        put_back: Callable[[_Connection], None] | None,
    ) -> None:
        self._connection: _Connection | None = connection
        self._unread = rest
        self._put_back = put_back
        self._chunks = Chunked() if framing == "chunked" else None
        self._left = size if framing == "length" else -1
        #: Reads in a row that had to wait for next to nothing.
        self._quick_reads = 0
        self._ended = self._left == 0
        if self._ended:
            self._release(clean=not rest)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = await self.receive()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def receive(self) -> bytes:
        while not self._ended:
            data = self._unread
            if data:
                self._unread = b""
            else:
                if self._connection is None:
                    raise httpx.StreamClosed
                if self._quick_reads >= QUICK_READS:
                    await trio.sleep(GULP_S)
                    if self._connection is None:
                        raise httpx.StreamClosed
                asked = trio.current_time()
                try:
                    data = bytes(await self._connection.receive_some(RECEIVE_BYTES))
                except trio.BrokenResourceError as exc:
                    raise httpx.ReadError(str(exc.__cause__ or exc)) from exc
                except trio.ClosedResourceError:
                    raise httpx.StreamClosed from None
                if not data:
                    return self._closed_by_peer()
                # No time at all has passed on a clock that stands still: it would not end our sleep. And a full read means that more is there.
                if 0 < trio.current_time() - asked < QUICK_S and len(data) < RECEIVE_BYTES:
                    self._quick_reads += 1
                else:
                    self._quick_reads = 0
            if piece := self._take(data):
                return piece
        return b""

    def _take(self, data: bytes) -> bytes:
        if self._chunks is not None:
            piece = self._chunks.take(data)
            if self._chunks.ended:
                self._ended = True
                self._release(clean=not self._chunks.rest)
            return piece
        if self._left < 0:
            return data
        piece = data[: self._left]
        self._left -= len(piece)
        if self._left == 0:
            self._ended = True
            self._release(clean=len(piece) == len(data))
        return piece

    def _closed_by_peer(self) -> bytes:
        if self._chunks is None and self._left < 0:
            self._ended = True
            self._release(clean=False)
            return b""
        raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")

    def _release(self, *, clean: bool) -> None:
        """Give the connection back, or close it if there is more in it than the reply."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if clean and self._put_back is not None:
            self._put_back(connection)
        else:
            connection.close()

    async def aclose(self) -> None:
        self._release(clean=False)


class Chunked:
    """The chunked transfer coding, read in whatever pieces it comes."""

    def __init__(self) -> None:
        #: What is not understood yet: less than a line. After the end, what does not belong to this body.
        self.rest = b""
        self.ended = False
        #: Bytes of the present chunk still to come.
        self._left = 0
        self._expected: Literal["size", "chunk end", "trailer"] = "size"

    def take(self, data: bytes) -> bytes:
        """The body's bytes in `data`."""
        if self.rest:
            data = self.rest + data
            self.rest = b""
        out: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            if self._expected == "size" and (head := _CHUNK_HEAD.match(data, at)) is not None:
                start, length = head.end(), int(head[1], 16)
                end = start + length
                if length and data[end : end + 2] == b"\r\n":
                    # Nearly always: a whole chunk, which needs no memory of where in it we are.
                    out.append(data[start:end])
                    at = end + 2
                    continue
            if self._left:
                piece = data[at : at + self._left]
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left and at < size:
                    # Nearly always here already, so that it needs no search.
                    if data[at : at + 2] == b"\r\n":
                        at += 2
                        self._expected = "size"
                    elif data[at] not in b"\r\n":
                        raise httpx.RemoteProtocolError("chunk without its line end")
                continue
            line_end = data.find(b"\n", at)
            if line_end < 0:
                self.rest = data[at:]
                if len(self.rest) > _SIZE_LINE_MAX:
                    raise httpx.RemoteProtocolError("chunk size line too long")
                break
            line = data[at:line_end].rstrip(b"\r")
            at = line_end + 1
            self._take_line(line)
            if self.ended:
                self.rest = data[at:]
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def _take_line(self, line: bytes) -> None:
        match self._expected:
            case "size":
                match = _SIZE.match(line)
                if match is None:
                    raise httpx.RemoteProtocolError("illegal chunk size")
                self._left = int(match[1], 16)
                self._expected = "chunk end" if self._left else "trailer"
            case "chunk end":
                if line:
                    raise httpx.RemoteProtocolError("chunk without its line end")
                self._expected = "size"
            case "trailer":
                self.ended = not line
