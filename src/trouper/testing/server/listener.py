"""A small HTTP/1.1 server for tests, on the loopback interface only: h11 for the protocol, trio for the rest.

It is there to be asked afterwards what it saw: each request, how each one ended, and how many connections are open. While a reply is being written it
listens too, so that a client that leaves in mid-reply is noticed at once.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import h11
import trio
from attrs import define, field

from trouper.core.messages import Json
from trouper.models import wire_json

HOST = "127.0.0.1"
REQUEST_BYTES_MAX = 256 * 1024 * 1024
_RECEIVE_BYTES = 64 * 1024

#: open: being answered; answered: to the end; dropped: the script broke the connection; left: the client did.
Ending: TypeAlias = Literal["open", "answered", "dropped", "left"]


@define(eq=False)
class SeenRequest:
    """A request as it came; headers in small letters."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    #: Which connection it came on, numbered from 0.
    connection: int
    ending: Ending = "open"

    @property
    def json(self) -> Json:
        return wire_json.decode(self.body)


class DroppedOnPurpose(Exception):
    """The script says that the connection breaks here."""


class Responder:
    """Writes one reply. `start`, then `send` as often as wanted, then `end`; or `drop` at any moment."""

    def __init__(self, connection: h11.Connection, stream: trio.SocketStream) -> None:
        self._connection = connection
        self._stream = stream
        self.started = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._write(h11.Response(status_code=status, headers=fields))

    async def send(self, data: bytes) -> None:
        if data:
            await self._write(h11.Data(data))

    async def end(self) -> None:
        await self._write(h11.EndOfMessage())

    async def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        await self.start(status, {"content-length": str(len(body)), **headers})
        await self.send(body)
        await self.end()

    def drop(self, *, reset: bool = False) -> None:
        if reset:
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise DroppedOnPurpose

    async def _write(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._connection.send(event)
        if data:
            await self._stream.send_all(data)


Application: TypeAlias = Callable[[SeenRequest, Responder], Awaitable[None]]


class TestServer:
    """A running server: where it is, and what it has seen."""

    __test__ = False  # Not a test, whatever its name may suggest to pytest.

    def __init__(self, application: Application, port: int) -> None:
        self._application = application
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.requests: list[SeenRequest] = []
        self.connections_opened = 0
        self.connections_open = 0
        #: What the application has raised: then the server is over.
        self._failures: list[Exception] = []
        self._failed = trio.Event()
        self._changed = trio.Event()

    async def wait_idle(self) -> None:
        """Until no request is being answered."""
        while any(request.ending == "open" for request in self.requests):
            await self._changed.wait()

    async def wait_no_connections(self) -> None:
        while self.connections_open:
            await self._changed.wait()

    async def wait_requests(self, count: int) -> None:
        """Until so many requests have come in all."""
        while len(self.requests) < count:
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _serve(self, stream: trio.SocketStream) -> None:
        number = self.connections_opened
        self.connections_opened += 1
        self.connections_open += 1
        try:
            async with stream:
                await self._talk(stream, number)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            pass  # The client's doing; what it left behind is marked in its request.
        finally:
            self.connections_open -= 1
            self._notify()

    async def _talk(self, stream: trio.SocketStream, number: int) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1024 * 1024)
        while (request := await _read_request(connection, stream, number)) is not None:
            self.requests.append(request)
            self._notify()
            try:
                await self._answer(request, connection, stream)
            finally:
                if request.ending == "open":
                    request.ending = "left"
                self._notify()
            if request.ending != "answered" or connection.our_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer(self, request: SeenRequest, connection: h11.Connection, stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                """A client that hangs up ends the reply, also one that is stalled."""
                try:
                    data = await stream.receive_some(_RECEIVE_BYTES)
                except trio.BrokenResourceError:
                    data = b""
                if data:
                    connection.receive_data(data)
                else:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                await self._application(request, Responder(connection, stream))
                request.ending = "answered"
            except DroppedOnPurpose:
                request.ending = "dropped"
            except trio.BrokenResourceError:
                request.ending = "left"
            except (trio.ClosedResourceError, h11.ProtocolError):
                raise
            except Exception as failure:
                # Not raised here: the client hears that it is hung up on, and whoever stops the server then would put a cancel in its place.
                self._failures.append(failure)
                self._failed.set()
            nursery.cancel_scope.cancel()


async def _read_request(connection: h11.Connection, stream: trio.SocketStream, number: int) -> SeenRequest | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                await stream.send_all(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > REQUEST_BYTES_MAX:
                return None
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            try:
                url = urlsplit(head.target.decode())
            except ValueError:
                raise h11.RemoteProtocolError("the request is for no address") from None
            return SeenRequest(
                method=head.method.decode(),
                path=url.path,
                query=dict(parse_qsl(url.query)),
                headers={name.decode(): value.decode("latin-1") for name, value in head.headers},
                body=bytes(body),
                connection=number,
            )
        else:
            return None


@asynccontextmanager
async def serve(application: Application, *, port: int = 0) -> AsyncIterator[TestServer]:
    """Run a server on the loopback interface while the block lasts."""
    listeners = await trio.open_tcp_listeners(port, host=HOST)
    server = TestServer(application, listeners[0].socket.getsockname()[1])
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:

            async def end_with_it() -> None:
                await server._failed.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(trio.serve_listeners, server._serve, listeners)
            nursery.start_soon(end_with_it)
            try:
                yield server
            except Exception as exc:
                # Kept out of the nursery: a test's own failure is to be shown as it is, not as a group of one.
                failure = exc
            finally:
                nursery.cancel_scope.cancel()
    finally:
        if server._failures:
            raise ExceptionGroup("the test server's application failed", server._failures)
    if failure is not None:
        raise failure


@contextmanager
def serve_in_thread(application: Application) -> Iterator[TestServer]:
    """The same from synchronous code: the server runs in a thread of its own. For clients that know no trio."""
    started = threading.Event()
    found: list[TestServer | BaseException] = []
    scope = trio.CancelScope()
    token: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        with scope:
            async with serve(application) as server:
                token.append(trio.lowlevel.current_trio_token())
                found.append(server)
                started.set()
                await trio.sleep_forever()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as exc:
            found.append(exc)
            raise
        finally:
            started.set()

    thread = threading.Thread(target=run, name="trouper-test-server", daemon=True)
    thread.start()
    started.wait()
    server = found[0]
    if not isinstance(server, TestServer):
        raise server
    try:
        yield server
    finally:
        with suppress(trio.RunFinishedError):
            token[0].run_sync_soon(scope.cancel)
        thread.join()
    if isinstance(failure := found[-1], BaseException):
        # A turn that is a function has failed, say.
        raise failure
