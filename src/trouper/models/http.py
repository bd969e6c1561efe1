"""What the providers' clients share: a pool of HTTP/1.1 connections, and streams over them (M1-M3). Keys are in `keys`, what goes wrong in `http_faults`.

    endpoint = Endpoint("https://api.example.com", provider="example")
    async with endpoint.open("/v1/stream", body, credential) as stream:
        while piece := await stream.receive():
            ...

HTTP/1.1 only: closing its connection is the one way to stop a provider in mid-reply. Redirects are not followed, so that a key
goes to the host it was meant for and to no other. httpx is imported with the first request, not before.
"""

from __future__ import annotations

import functools
import re
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import trio
from attrs import define

from trouper._errors import ConfigError
from trouper.models._errors import ModelError, ModelFault, NetworkFault
from trouper.models.hosts import checked_url, passwords_in, with_userinfo_apart, without_userinfo
from trouper.models.http_faults import clean_message, network_fault
from trouper.models.keys import Credential

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 10.0
#: Closing a cancelled stream only closes a socket; this bounds a transport that thinks otherwise.
CLOSE_GRACE_S = 5.0
ERROR_BODY_BYTES_MAX = 256 * 1024
ERROR_BODY_WAIT_S = 10.0
KEEP_ALIVE_MAX = 64
KEEP_ALIVE_S = 90.0
#: The names of headers in which keys are sent, to whatever gateway: authorization, api-key, x-goog-api-key, cf-aig-authorization, x-auth-token...
#: By their last word: what an `x-auth-type` says is none, and cut out of a journal would take innocent words with it.
_OF_KEYS = re.compile(r"(?:key|token|secret|password|credentials?|auth|authorization)\Z", re.I)
#: The wall clock. Asked where a provider does not say what time it has; nothing but the wait before the next try comes of it.
_now: Callable[[], float] = time.time
#: What says where a body ends: another word on that, and a server takes it for shorter, or its rest for a request.
_OF_BODIES = frozenset({"content-length", "transfer-encoding"})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@define(eq=False)
class _Pool:
    """The connections of one trio run."""

    client: httpx.AsyncClient
    #: Requests that are under way on them.
    requests: int = 0
    #: They are to be closed with the last of these.
    closing: bool = False


class Endpoint:
    """A provider's address, and the connections to it. Opened by the first request; `aclose` closes what idles."""

    def __init__(
        self,
        base_url: str,
        *,
        provider: str,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.base_url = checked_url(base_url).rstrip("/")
        self.provider = provider
        #: Where requests go. Without a name and password: httpx would write these into its log with every request.
        self._address, self._basic = with_userinfo_apart(self.base_url)
        self.headers: Mapping[str, str] = _checked_headers(headers)
        self.proxy = _checked_proxy(proxy)
        self._transport = transport
        self._connect_timeout_s = connect_timeout_s
        #: By the trio run in which each was made: its sockets are of no use to another.
        self._pools: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, _Pool] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Endpoint {self.shown_url!r}>"

    @property
    def shown_url(self) -> str:
        """The address without a user name or password that may stand in it."""
        return without_userinfo(self.base_url)

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    @property
    def header_names(self) -> frozenset[str]:
        return frozenset(name.lower() for name in self.headers)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never show of that which every request carries: keys in its headers, and passwords in its addresses."""
        # The last word: before it may stand what kind of key it is, as in "Bearer ...".
        keys = (value.split()[-1:] for name, value in self.headers.items() if _OF_KEYS.search(name))
        passwords = map(passwords_in, (self.base_url, self.proxy or ""))
        return tuple(dict.fromkeys(chain(*keys, *passwords)))

    @asynccontextmanager
    async def open(
        self,
        path: str,
        body: bytes,
        credential: Credential | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
        connected: Callable[[], None] | None = None,
    ) -> AsyncIterator[ByteStream]:
        """Send a request; the reply's head has come when the block is entered. Leaving the block frees or closes the connection.

        `connected` is called as soon as there is a connection: servers that load a model or think first may send the head much later.
        """
        pool = self._pool()
        pool.requests += 1
        try:
            response, fault = await self._send(pool.client, method, path, body, credential, headers or {}, connected)
            if response is None:
                # Raised out here, so that it drags along no httpx exception: those hold the request, and with it the key.
                raise fault
            stream = ByteStream(response, self.provider, credential, _foreign_coding(response, pool.client))
            try:
                yield stream
            finally:
                with trio.CancelScope(deadline=trio.current_time() + CLOSE_GRACE_S, shield=True):
                    await stream._aclose()
        finally:
            pool.requests -= 1
            if pool.closing and not pool.requests:
                with trio.CancelScope(deadline=trio.current_time() + CLOSE_GRACE_S, shield=True):
                    await self.aclose()

    async def _send(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        body: bytes,
        credential: Credential | None,
        headers: Mapping[str, str],
        connected: Callable[[], None] | None,
    ) -> tuple[httpx.Response | None, ModelError]:
        from trouper.models.trio_transport import RequestBody, told_when_sending

        fault: ModelError = NetworkFault("no reply", provider=self.provider)
        try:
            request = client.build_request(method, self._address + path, content=body, headers={**_PLAIN, **headers})
            request.stream = RequestBody(body)
            if connected is not None:
                request.extensions["trace"] = told_when_sending(connected)
            if credential is not None and credential.header:
                request.headers[credential.header] = credential.value
            if self._basic:
                request.headers["authorization"] = self._basic
            return await client.send(request, stream=True), fault
        except Exception as exc:
            fault = network_fault(exc, self.provider, credential, is_proxied=self._is_proxied)
            if isinstance(fault, ModelFault):
                raise
        return None, fault

    @property
    def _is_proxied(self) -> bool:
        return self.proxy is not None or (self._transport is None and _proxied_by_environment(self.base_url))

    def _pool(self) -> _Pool:
        run = trio.lowlevel.current_trio_token()
        pool = self._pools.get(run)
        if pool is None:
            pool = self._pools[run] = _Pool(self._new_client())
        return pool

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        from trouper.models.trio_transport import TrioTransport

        transport = self._transport
        if transport is None and not self._is_proxied:
            transport = TrioTransport(_trusted_roots, idle_max=KEEP_ALIVE_MAX, idle_s=KEEP_ALIVE_S)
        try:
            return httpx.AsyncClient(
                headers=self.headers,
                timeout=httpx.Timeout(None, connect=self._connect_timeout_s),
                follow_redirects=False,
                http2=False,
                verify=False if transport is not None else _trusted_roots(),
                proxy=self.proxy,
                transport=transport,
                limits=httpx.Limits(
                    max_connections=None, max_keepalive_connections=KEEP_ALIVE_MAX, keepalive_expiry=KEEP_ALIVE_S
                ),
            )
        except (ValueError, ImportError, httpx.InvalidURL) as exc:
            # Without its own words: a proxy's address may hold a password.
            kind = type(exc).__name__
        raise ModelFault(
            f"the proxy on the way to {self.provider!r} cannot be used ({kind}); correct proxy=, or HTTPS_PROXY and its kin "
            "in the environment: they have to be http:// or https:// addresses",
            provider=self.provider,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of this run, once its requests are over: others may have some under way. The endpoint may be used again, and opens new ones then."""
        run = trio.lowlevel.current_trio_token()
        pool = self._pools.get(run)
        if pool is None:
            return
        pool.closing = True
        if not pool.requests:
            del self._pools[run]
            await pool.client.aclose()


#: Compression would make a stream wait for its dictionary; providers send text of a few bytes at a time.
_PLAIN = {"accept-encoding": "identity", "content-type": "application/json"}


@functools.cache
def _trusted_roots() -> Any:
    """One TLS context for all clients: reading the roots takes tens of milliseconds."""
    import httpx

    try:
        context = httpx.create_ssl_context()
    except OSError as exc:
        # No fault of the network, though Python has it among those: it would be tried again, and the connection blamed.
        wrong = f"{type(exc).__name__}: {exc.strerror or exc}"
    else:
        context.set_alpn_protocols(["http/1.1"])
        return context
    raise ModelFault(
        f"the certificates to trust cannot be read ({wrong}); correct SSL_CERT_FILE, which names a file of them as PEM, or leave it unset"
    )


def _foreign_coding(response: httpx.Response, client: httpx.AsyncClient) -> str:
    """The coding of a body that cannot be undone here, such as br without its library; "" if it can."""
    # What httpx can undo is what its clients offer by themselves. It hands on anything else as it came.
    known = {"", "identity", "gzip", "deflate", *re.split(r"[, ]+", client.headers.get("accept-encoding", "").lower())}
    given = response.headers.get("content-encoding", "")
    return given if set(re.split(r"[, ]+", given.lower())) - known else ""


def _proxied_by_environment(url: str) -> bool:
    """Whether HTTPS_PROXY and its kin ask for a proxy on the way to this address. Never for this machine itself."""
    from urllib.request import getproxies, proxy_bypass

    host = urlsplit(url).hostname or ""
    if host in _LOOPBACK or proxy_bypass(host):
        return False
    proxies = getproxies()
    return urlsplit(url).scheme in proxies or "all" in proxies


def _checked_proxy(given: object) -> str | None:
    if isinstance(given, str | None):
        return given
    # Without the value: its password would show.
    raise ConfigError(f"proxy= is {type(given).__name__}, no text; write an address like 'http://host:3128'")


def _checked_headers(given: object) -> dict[str, str]:
    if given is None:
        return {}
    headers: dict[Any, Any] = dict(given) if isinstance(given, Mapping) else {None: None}
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            # Without the value: it may be a key.
            raise ConfigError(f"headers= has {name!r}; write a mapping of texts, headers={{'name': 'value'}}")
        if name.lower() in _OF_BODIES:
            raise ConfigError(f"headers= has {name!r}, which the client itself fills in; leave it out")
        if not (name + value).isascii():
            raise ConfigError(
                f"headers= has {name!r} with a character that is not ASCII, which HTTP does not carry; leave it out, or write it as urllib.parse.quote() does"
            )
    return headers


class ByteStream:
    """A reply whose head is here and whose body is coming."""

    def __init__(
        self, response: httpx.Response, provider: str, credential: Credential | None, foreign_coding: str = ""
    ) -> None:
        self._response = response
        self._provider = provider
        self._credential = credential
        self.status = response.status_code
        if self.status >= 400 and "date" not in response.headers:
            # A proxy or a server of one's own may leave it out, and still name the moment to come back at: then it is now, by our clock.
            from email.utils import formatdate

            response.headers["date"] = formatdate(_now(), usegmt=True)
        self.headers: Mapping[str, str] = response.headers
        body: Any = response.extensions.get("body")
        coded = response.headers.get("content-encoding", "identity").lower() != "identity"
        # A transport made for tests gives the whole body at once, already read.
        if coded or response.is_stream_consumed:
            self._pieces: Any = response.aiter_bytes()
        else:
            # Our own transport's body is asked directly, without httpx's generators in between.
            self._pieces = response.aiter_raw() if body is None else None
        self._next: Callable[[], Awaitable[bytes]] = body.receive if self._pieces is None else self._pieces.__anext__
        #: How the body is written, where nobody here can read that.
        self._foreign_coding = foreign_coding
        #: Whether the body ended as HTTP says it should.
        self.ended = False

    async def receive(self) -> bytes:
        """The next piece as it came; `b""` at the proper end. `NetworkFault` if the connection breaks before that."""
        if self._foreign_coding:
            raise ModelFault(
                f"{self._provider} answered in the coding {self.clean(self._foreign_coding)!r}, though plain text was asked for; "
                "have the server, or the proxy before it, leave its replies as they are",
                provider=self._provider,
            )
        try:
            piece = await self._next()
        except StopAsyncIteration:
            self.ended = True
            return b""
        except Exception as exc:
            fault = network_fault(exc, self._provider, self._credential)
            if isinstance(fault, ModelFault):
                raise
        else:
            if not piece:
                self.ended = True
            return piece
        raise fault

    async def read_all(self, bytes_max: int) -> bytes:
        """The whole body, or its first `bytes_max` bytes."""
        pieces: list[bytes] = []
        await self._read_into(pieces, bytes_max)
        return b"".join(pieces)[:bytes_max]

    async def read_error(self) -> bytes:
        """The body of a refusal, as much as comes within reason: a provider that stalls or breaks off here has mostly said what there is to say."""
        if self._foreign_coding:
            return b""
        pieces: list[bytes] = []
        with trio.move_on_after(ERROR_BODY_WAIT_S), suppress(NetworkFault):
            await self._read_into(pieces, ERROR_BODY_BYTES_MAX)
        return b"".join(pieces)[:ERROR_BODY_BYTES_MAX]

    async def _read_into(self, pieces: list[bytes], bytes_max: int) -> None:
        size = 0
        while size < bytes_max and (piece := await self.receive()):
            pieces.append(piece)
            size += len(piece)

    def clean(self, text: object) -> str:
        return clean_message(text, self._credential)

    async def _aclose(self) -> None:
        # httpx closes the connection if the body was not read to its end.
        await self._response.aclose()
        if self._pieces is not None:
            # Asked once more, its generators end by the error that a closed connection gives; left as they are, the collector would complain of each.
            with suppress(Exception):
                await self._next()
            await self._pieces.aclose()
