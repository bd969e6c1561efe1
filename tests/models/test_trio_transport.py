"""M2: the transport under the clients."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from trouper._errors import ConfigError
from trouper.models._errors import AuthFailed, BadRequest, ModelError, ModelFault, NetworkFault
from trouper.models.http import Endpoint
from trouper.models.http_faults import fault_of_status
from trouper.models.trio_transport import GULP_S, QUICK_READS, ROUND_TRIP_MAX_S, Chunked
from trouper.redaction import Redactor

Talk = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def server(*replies: bytes, close: bool = False) -> AsyncIterator[tuple[str, list[int]]]:
    """Answers each request with the next of these bytes, whatever was asked. Its address, and requests per connection."""
    counts: list[int] = []
    left = iter(replies)

    async def talk(stream: trio.SocketStream) -> None:
        number = len(counts)
        counts.append(0)
        async with stream:
            while True:
                got = b""
                while b"\r\n\r\n" not in got:
                    try:
                        piece = await stream.receive_some()
                    except trio.BrokenResourceError:
                        return
                    if not piece:
                        return
                    got += piece
                counts[number] += 1
                await stream.send_all(next(left))
                if close:
                    return

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", counts
        nursery.cancel_scope.cancel()


async def fetch(endpoint: Endpoint) -> tuple[int, bytes]:
    async with endpoint.open("/x", b"{}") as stream:
        return stream.status, await stream.read_all(1_000_000)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(1, 9), min_size=1), st.booleans())
def test_the_chunked_coding_in_any_pieces(bodies: list[bytes], sizes: list[int], extras: bool) -> None:
    extension, trailer = (b";a=b", b"x-t: 1\r\n") if extras else (b"", b"")
    wire = (
        b"".join(b"%x%s\r\n%s\r\n" % (len(body), extension, body) for body in bodies) + b"0\r\n" + trailer + b"\r\nMORE"
    )
    chunked = Chunked()
    out, at = [], 0
    for size in itertools.cycle(sizes):
        out.append(chunked.take(wire[at : at + size]))
        at += size
        if chunked.ended or at >= len(wire):
            break
    assert b"".join(out) == b"".join(bodies)
    assert chunked.ended
    assert b"MORE".startswith(chunked.rest) or chunked.rest == b"MORE"


@pytest.mark.parametrize(
    "wire", [b"zz\r\n", b"-1\r\n", b"\r\n", b"3\r\nabcdef", b"1" * 5000, b"ffffffffffffffffff\r\n"]
)
def test_a_broken_chunked_coding_is_an_error(wire: bytes) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        Chunked().take(wire)


@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 000 No", b"HTTP/1.1 099 No", b"HTTP/1.1 2000 No", b"HTTP/2 200 OK", b"SSH-2.0"]
)
async def test_what_is_no_status_is_a_network_fault_at_once(line: bytes) -> None:
    """M2: nothing is waited for behind it, as behind a 100 Continue."""
    async with server(line + b"\r\ncontent-length: 0\r\n\r\n") as (url, _):
        endpoint = Endpoint(url, provider="test")
        with pytest.raises(NetworkFault, match="valid status line"):
            await fetch(endpoint)
        await endpoint.aclose()


async def test_connections_are_used_again() -> None:
    """M2: after a reply with chunks, with a length, and with none at all."""
    replies = (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\nlf",
    )
    async with server(*replies) as (url, counts):
        endpoint = Endpoint(url, provider="test")
        assert [await fetch(endpoint) for _ in replies] == [(200, b"abc"), (200, b"hi"), (204, b""), (200, b"lf")]
        assert counts == [4]
        await endpoint.aclose()


async def test_a_body_without_length_ends_with_its_connection() -> None:
    async with server(
        b"HTTP/1.1 200 OK\r\n\r\nall of it", b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", close=True
    ) as (url, counts):
        endpoint = Endpoint(url, provider="test")
        assert [await fetch(endpoint), await fetch(endpoint)] == [(200, b"all of it"), (200, b"x")]
        assert counts == [1, 1]
        await endpoint.aclose()


async def test_an_idle_connection_that_the_server_closed_is_not_used() -> None:
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    async with server(reply, reply, close=True) as (url, counts):
        endpoint = Endpoint(url, provider="test")
        assert await fetch(endpoint) == (200, b"hi")
        await trio.testing.wait_all_tasks_blocked()
        assert await fetch(endpoint) == (200, b"hi")
        assert counts == [1, 1]
        await endpoint.aclose()


@pytest.fixture
def connect_within(monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock) -> Callable[[float], None]:
    """Have every connection take so long. No other time passes but what a server lets pass."""
    connect = trio.open_tcp_stream

    def take(seconds: float) -> None:
        async def slowly(*args: Any) -> trio.SocketStream:
            mock_clock.jump(seconds)
            return await connect(*args)

        monkeypatch.setattr(trio, "open_tcp_stream", slowly)

    return take


@pytest.mark.parametrize("reset", [False, True])
async def test_a_request_that_meets_the_end_of_an_idle_connection_goes_to_a_new_one_at_once(
    mock_clock: trio.testing.MockClock, connect_within: Callable[[float], None], reset: bool
) -> None:
    """M2, L13: it is no attempt, and nobody waits. A connection that ends so as a new one, or after a word, is a fault."""
    connect_within(0.2)
    hang_up = RESET if reset else None
    connections: list[list[Step]] = [[HI, 0.1, hang_up], [hang_up], [HI, b"HTTP/1.1 2", hang_up], [HI]]
    async with hanging_up(*connections) as (url, counts):
        endpoint = Endpoint(url, provider="test")
        assert await fetch(endpoint) == (200, b"hi")
        connected: list[None] = []
        with pytest.raises(NetworkFault):  # The old one, and the second, which is new.
            async with endpoint.open("/x", b"{}", connected=lambda: connected.append(None)):
                pass
        assert (counts, len(connected)) == ([2, 1], 1)
        assert await fetch(endpoint) == (200, b"hi")
        with pytest.raises(NetworkFault):
            await fetch(endpoint)
        assert counts == [2, 1, 2]
        assert await fetch(endpoint) == (200, b"hi")
        await endpoint.aclose()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_s", [0.201, 3.0])
async def test_a_request_that_the_server_may_have_worked_on_is_not_sent_again(
    mock_clock: trio.testing.MockClock, connect_within: Callable[[float], None], reset: bool, after_s: float
) -> None:
    """M2, L11: it may have been paid for, and whether to ask again is for the retry policy, which keeps count and waits."""
    connect_within(0.2)
    async with hanging_up([HI, after_s, RESET if reset else None], [HI]) as (url, counts):
        endpoint = Endpoint(url, provider="test")
        assert await fetch(endpoint) == (200, b"hi")
        connected: list[None] = []
        with pytest.raises(NetworkFault) as caught:
            async with endpoint.open("/x", b"{}", connected=lambda: connected.append(None)):
                pass
        assert caught.value.retryable
        assert (counts, len(connected)) == ([2], 1)
        assert await fetch(endpoint) == (200, b"hi")
        assert counts == [2, 1]
        await endpoint.aclose()


async def test_who_waits_for_the_new_connection_in_place_of_a_dead_one_is_not_connected(
    mock_clock: trio.testing.MockClock, connect_within: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L12: it had as long for that as a server has for its first event."""
    connect_within(0.2)

    async def never(*_: object) -> None:
        mock_clock.jump(7)
        await trio.sleep_forever()

    async with hanging_up([HI, None]) as (url, counts):
        endpoint = Endpoint(url, provider="test", connect_timeout_s=7)
        assert await fetch(endpoint) == (200, b"hi")
        monkeypatch.setattr(trio, "open_tcp_stream", never)
        connected: list[None] = []
        with pytest.raises(NetworkFault, match="in time"):
            async with endpoint.open("/x", b"{}", connected=lambda: connected.append(None)):
                pass
        assert (counts, connected) == ([2], [])
        await endpoint.aclose()


async def test_a_server_that_takes_its_time_to_read_a_long_request_is_connected_all_the_same(
    mock_clock: trio.testing.MockClock, connect_within: Callable[[float], None]
) -> None:
    """L12, on a connection that idled: the deadline of connecting is none for that."""
    connect_within(0.2)
    body = bytes(32 * 1024 * 1024)
    happened: list[str] = []

    async def talk(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(HI)
            unread = len(body) - len(await stream.receive_some())
            await trio.testing.wait_all_tasks_blocked()
            happened.append("begun")
            mock_clock.jump(60)
            await trio.testing.wait_all_tasks_blocked()
            happened.append("read")
            while unread > 0:
                unread -= len(await stream.receive_some(1024 * 1024))
            await stream.send_all(HI)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        endpoint = Endpoint(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", provider="test")
        assert await fetch(endpoint) == (200, b"hi")
        async with endpoint.open("/x", body, connected=lambda: happened.append("connected")) as stream:
            assert await stream.read_all(10) == b"hi"
        assert happened == ["begun", "connected", "read"]
        await endpoint.aclose()
        nursery.cancel_scope.cancel()


async def test_a_long_search_for_the_address_is_taken_for_no_round_trip(
    mock_clock: trio.testing.MockClock, connect_within: Callable[[float], None]
) -> None:
    """M2: or a server that had worked for as long would be asked again, and nobody told."""
    connect_within(8)
    async with hanging_up([HI, ROUND_TRIP_MAX_S + 0.1, None]) as (url, counts):
        endpoint = Endpoint(url, provider="test")
        assert await fetch(endpoint) == (200, b"hi")
        with pytest.raises(NetworkFault):
            await fetch(endpoint)
        assert counts == [2]
        await endpoint.aclose()


HI = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
RESET = b"reset"
#: What is sent, or the time that passes; `None` and `RESET` are the end, orderly or not.
Step = bytes | float | None


@asynccontextmanager
async def hanging_up(*connections: list[Step]) -> AsyncIterator[tuple[str, list[int]]]:
    """Each connection plays its own list: an answer for each request, then the end, that comes as the next request does or some time later."""
    counts: list[int] = []

    async def talk(stream: trio.SocketStream) -> None:
        number = len(counts)
        counts.append(0)
        async with stream:
            left = iter(connections[number])
            while await stream.receive_some():
                counts[number] += 1
                while (step := next(left)) is not None:
                    if isinstance(step, float):
                        clock = trio.lowlevel.current_clock()
                        assert isinstance(clock, trio.testing.MockClock)
                        clock.jump(step)
                        await trio.testing.wait_all_tasks_blocked()
                        continue
                    if step == RESET:
                        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return
                    await stream.send_all(step)
                    if step == HI:
                        break
                else:
                    return

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", counts
        nursery.cancel_scope.cancel()


async def test_a_connection_with_more_in_it_than_the_reply_is_not_used_again() -> None:
    """Or the next reply would be someone else's."""
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    async with server(reply + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", reply) as (url, counts):
        endpoint = Endpoint(url, provider="test")
        assert [await fetch(endpoint), await fetch(endpoint)] == [(200, b"hi"), (200, b"hi")]
        assert counts == [1, 1]
        await endpoint.aclose()


async def test_a_body_left_half_way_closes_its_connection() -> None:
    """M2."""
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\nhi"
    async with server(reply, reply) as (url, counts):
        endpoint = Endpoint(url, provider="test")
        for _ in range(2):
            async with endpoint.open("/x", b"{}") as stream:
                assert await stream.receive() == b"hi"
        assert counts == [1, 1]


async def paced(words: int, gap_s: float) -> tuple[list[bytes], float]:
    """The pieces in which a reply comes whose words are sent this far apart, and how long after the last word it was over."""
    sent_at = 0.0

    async def talk(stream: trio.SocketStream) -> None:
        nonlocal sent_at
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % words)
            for _ in range(words):
                await trio.sleep(gap_s)
                sent_at = trio.current_time()
                await stream.send_all(b".")
            await stream.receive_some()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    pieces = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with Endpoint(url, provider="test") as endpoint, endpoint.open("/x", b"{}") as stream:
            while piece := await stream.receive():
                pieces.append(piece)
        late_s = trio.current_time() - sent_at
        nursery.cancel_scope.cancel()
    assert b"".join(pieces) == b"." * words
    return pieces, late_s


async def test_words_at_a_models_pace_are_handed_out_one_by_one(autojump_clock: trio.testing.MockClock) -> None:
    """M2: a thousand of them in a second are not too many."""
    for gap_s in (0.02, 0.001):
        pieces, late_s = await paced(60, gap_s)
        assert len(pieces) == 60
        assert late_s == 0


async def test_words_that_come_faster_than_that_are_read_in_gulps(autojump_clock: trio.testing.MockClock) -> None:
    """M2: each is late by at most the gulp; a short reply has none."""
    pieces, late_s = await paced(300, 0.0003)
    assert len(pieces) < 200
    assert late_s <= GULP_S
    pieces, late_s = await paced(QUICK_READS, 0.0003)
    assert len(pieces) == QUICK_READS
    assert late_s == 0


async def test_a_clock_that_stands_still_does_not_stop_a_stream(mock_clock: trio.testing.MockClock) -> None:
    """M2: no time passes between two reads, and none would pass while sleeping."""
    chunks = [b"1\r\n.\r\n"] * 100
    wire = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]

    async def talk(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            for piece in wire:
                await stream.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        async with Endpoint(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", provider="test") as endpoint:
            assert await fetch(endpoint) == (200, b"." * 100)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nbroken line\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 300_000 + b"\r\n",
    ],
    ids=range(11),
)
async def test_a_broken_reply_is_a_network_fault(reply: bytes) -> None:
    """M1, L14: and one that may be tried again."""
    async with server(reply, close=True) as (url, _):
        with pytest.raises(NetworkFault) as caught:
            await fetch(Endpoint(url, provider="test"))
        assert caught.value.retryable


async def test_nobody_there_is_a_network_fault() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    with pytest.raises(NetworkFault, match="cannot connect"):
        await fetch(Endpoint(f"http://127.0.0.1:{port}", provider="test"))


async def test_connecting_has_a_deadline(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2, L12."""

    async def never(*_: object, **__: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    start = trio.current_time()
    with pytest.raises(NetworkFault, match="in time"):
        await fetch(Endpoint("http://192.0.2.1", provider="test", connect_timeout_s=7))
    assert trio.current_time() - start == 7


async def test_headers_cannot_smuggle() -> None:
    async with server(b"") as (url, counts):
        with pytest.raises(BadRequest, match="cannot be sent"):
            await fetch(Endpoint(url, provider="test", headers={"x": "a\r\nevil: 1"}))
        assert counts in ([], [0])


@pytest.mark.parametrize(("name", "value"), [("x-title", "Köln"), ("x-títle", "a"), ("x-title", "日本")])
def test_headers_that_http_cannot_carry_are_named(name: str, value: str) -> None:
    """M3: where they are given, without the value; it was the proxy that was named, with the first request."""
    with pytest.raises(ConfigError, match="not ASCII") as caught:
        Endpoint("http://host.example", provider="test", headers={name: value})
    assert name in str(caught.value)
    assert "Köln" not in str(caught.value)


@pytest.mark.parametrize("host", [".example.com", "a" * 64 + ".example", "a..b", "xn--a.example"])
@pytest.mark.parametrize("transport", [None, httpx.AsyncHTTPTransport], ids=["ours", "that of httpx"])
async def test_a_host_that_cannot_be_one_is_named_with_the_remedy(host: str, transport: Any) -> None:
    """M1: as any other address that nothing can be sent to; it was a failure of the client, by the name of an exception."""
    with pytest.raises(BadRequest, match="check base_url"):
        await fetch(Endpoint(f"http://{host}", provider="test", transport=transport and transport()))


async def test_a_transport_of_ones_own() -> None:
    """M3."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b"mine")

    endpoint = Endpoint(
        "https://api.example", provider="test", headers={"x-team": "a"}, transport=httpx.MockTransport(answer)
    )
    assert await fetch(endpoint) == (200, b"mine")
    assert seen[0].headers["x-team"] == "a"
    assert str(seen[0].url) == "https://api.example/x"


async def test_a_proxy_is_asked_for_the_whole_address() -> None:
    """M3: proxies can be given."""
    seen: list[bytes] = []

    async def talk(stream: trio.SocketStream) -> None:
        async with stream:
            seen.append(bytes(await stream.receive_some()))
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nproxy")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        endpoint = Endpoint("http://api.example", provider="test", proxy=f"http://127.0.0.1:{port}")
        assert await fetch(endpoint) == (200, b"proxy")
        await endpoint.aclose()
        nursery.cancel_scope.cancel()
    assert seen[0].startswith(b"POST http://api.example/x HTTP/1.1")


async def test_whoever_waits_for_a_proxy_to_connect_is_not_connected() -> None:
    """L12: it had as long for that as a server has for its first event."""
    calls: list[str] = []

    async def refusing(stream: trio.SocketStream) -> None:
        async with stream:
            assert (await stream.receive_some()).startswith(b"CONNECT api.example:443 ")
            await stream.send_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, refusing, listeners)
        proxy = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        endpoint = Endpoint("https://api.example", provider="test", proxy=proxy)
        with pytest.raises(NetworkFault, match="502"):
            async with endpoint.open("/", b"{}", connected=lambda: calls.append("connected")):
                pass
        await endpoint.aclose()
        nursery.cancel_scope.cancel()
    assert calls == []


@pytest.mark.parametrize(
    ("answer", "kind", "retryable", "told"),
    [
        ("407 Proxy Authentication Required", AuthFailed, False, "a name and a password"),
        ("403 Forbidden", NetworkFault, False, "check what it allows"),
        ("429 Too Many Requests", NetworkFault, True, "check what it allows"),
        ("502 Bad Gateway", NetworkFault, True, "check what it allows"),
    ],
)
async def test_a_proxy_that_does_not_let_through_is_blamed_itself(
    answer: str, kind: type[ModelError], retryable: bool, told: str
) -> None:
    """L11, M3: it was the network and base_url that were to be checked, and what a proxy refuses was asked for again and again."""

    async def refusing(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode())

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, refusing, listeners)
        proxy = f"http://me:hidden@127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        endpoint = Endpoint("https://api.example", provider="test", proxy=proxy)
        with pytest.raises(kind, match=told) as caught:
            await fetch(endpoint)
        await endpoint.aclose()
        nursery.cancel_scope.cancel()
    assert "the proxy on the way to 'test'" in str(caught.value) and "hidden" not in str(caught.value)
    assert caught.value.retryable is retryable


@pytest.mark.parametrize("url", ["https://api.example", "http://api.example"])
@pytest.mark.parametrize("is_given", [True, False])
async def test_a_proxy_that_is_not_there_is_thought_of(
    monkeypatch: pytest.MonkeyPatch, url: str, is_given: bool
) -> None:
    """L11, M3: of what could not be reached only the network and base_url were to be checked."""
    proxy = "http://127.0.0.1:9"
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy)
    for name in ("NO_PROXY", "no_proxy", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NetworkFault, match="check proxy=, or HTTPS_PROXY and its kin"):
        await fetch(Endpoint(url, provider="test", proxy=proxy if is_given else None))
    with pytest.raises(NetworkFault) as caught:
        await fetch(Endpoint("http://127.0.0.1:9", provider="test"))
    assert "proxy" not in str(caught.value)


def test_what_a_proxy_wants_is_told_with_nothing_cut_out_of_it() -> None:
    """M3: what an example of an address held stood in results as [redacted]."""
    told = str(fault_of_status(407, "", provider="test"))
    assert Redactor().text(told) == told


def test_a_proxy_on_the_way_to_plain_http_wants_its_own_password() -> None:
    """M3: the provider's key, or the request, were to be changed."""
    fault = fault_of_status(407, "who are you", provider="test")
    assert isinstance(fault, AuthFailed) and fault.status == 407 and not fault.retryable
    assert "proxy=" in str(fault) and "who are you" in str(fault)


def test_proxies_of_the_environment_are_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from trouper.models.http import _proxied_by_environment

    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "internal.example")
    assert _proxied_by_environment("https://generativelanguage.googleapis.com")
    assert not _proxied_by_environment("https://internal.example")
    assert not _proxied_by_environment("https://localhost:8000")


@pytest.mark.parametrize("proxy", ["garbage://me:hidden@proxy", "socks5://me:hidden@proxy:1080", "http://[::1"])
async def test_a_proxy_that_cannot_be_used_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """M3: and its password stays where it was."""
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ModelFault, match="correct proxy=, or HTTPS_PROXY") as caught:
        await fetch(Endpoint("https://api.example", provider="test"))
    assert "hidden" not in str(caught.value) and caught.value.__context__ is None


@pytest.mark.parametrize("url", ["", "ftp://x", "generativelanguage.googleapis.com", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        Endpoint(url, provider="test")
