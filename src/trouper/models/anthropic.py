"""Anthropic's Messages API (M14).

    model = Anthropic("claude-opus-5-5")                         # the key from ANTHROPIC_API_KEY
    model = Anthropic("claude-sonnet-5-5", api_key=ask_vault, max_tokens=64_000, config={"output_config": {"effort": "high"}})

What is said and meant is in `anthropic_request` and `anthropic_reply`, which are pure; here the two are joined to a connection. No retry, no deadline but
that of connecting: the model call's actor has those.

Newer models take their signed thinking back only if nothing before it has changed, and a compacted or masked history has changed. A session that is refused
for this is remembered, and its next request asks the provider to drop what it no longer takes; should that not help, thinking is left out altogether.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from trouper._errors import ConfigError, MissingKey
from trouper.core.messages import Json
from trouper.models.anthropic_errors import PROVIDER, ThinkingRefused, fault_of_reply
from trouper.models.anthropic_reply import MessagesReply
from trouper.models.anthropic_request import BINDING_BETA, CacheLife, MessagesRequestBuilder, ThinkingForm
from trouper.models.chunk_stream import ChunkStream
from trouper.models.hosts import Address, address_of, is_local
from trouper.models.http import CONNECT_TIMEOUT_S
from trouper.models.http_model import HttpModel, window_in
from trouper.models.keys import Key, KeySource, key_from_environment
from trouper.models.protocol import ModelRequest
from trouper.models.sse import EVENT_BYTES_MAX

if TYPE_CHECKING:
    import httpx

BASE_URL = "https://api.anthropic.com"
API_VERSION = "2026-10-21"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
BASE_URL_VARIABLE = "ANTHROPIC_BASE_URL"
#: Thinking included. Every current model allows more.
MAX_TOKENS = 32_000
#: Sessions whose thinking was refused that are remembered; the oldest is forgotten first, and would be refused once more.
REFUSALS_KEPT = 4_096

#: Tokens that fit, by the beginning of the model's name.
CONTEXT_WINDOWS: Mapping[str, int] = {
    "claude": 200_000,
    "claude-fable-5": 1_000_000,
    "claude-mythos-5": 1_000_000,
    "claude-opus-5": 1_000_000,
    "claude-opus-4-6": 1_000_000,
    "claude-opus-4-7": 1_000_000,
    "claude-opus-4-8": 1_000_000,
    "claude-sonnet-5": 1_000_000,
    "claude-sonnet-4-6": 1_000_000,
}


def window_of(model: str) -> int | None:
    return window_in(CONTEXT_WINDOWS, model)


class Anthropic(HttpModel):
    """A `Model` that asks Anthropic. Safe to share between sessions; `aclose()` closes its idle connections."""

    def __init__(
        self,
        model: str,
        *,
        api_key: KeySource | None = None,
        base_url: str | None = None,
        max_tokens: int = MAX_TOKENS,
        config: Mapping[str, Json] | None = None,
        cache: CacheLife = "5m",
        betas: Sequence[str] = (),
        api_version: str = API_VERSION,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        context_window: int | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> None:
        """`config`: fields of the body in the wire's own words, such as `{"thinking": {"type": "adaptive"}}`.

        `cache`: how long prompts are kept at the provider ("5m", "1h"); `None` keeps none."""
        if not model or not isinstance(model, str):
            raise ConfigError(f"{model!r} is not a model's name; write one like 'claude-opus-5-5'", model=model)
        if cache not in ("5m", "1h", None):
            raise ConfigError(f"cache {cache!r} is none of '5m', '1h', None; use one of these", cache=cache)
        if max_tokens < 1:
            raise ConfigError(f"max_tokens {max_tokens!r} is no positive number; give one", max_tokens=max_tokens)
        address = address_of(base_url, BASE_URL_VARIABLE, BASE_URL)
        self._version = api_version
        self._betas = tuple(betas)
        self._builder: MessagesRequestBuilder = MessagesRequestBuilder(
            config, max_tokens=max_tokens, api_version=api_version, cache=cache
        )
        super().__init__(
            model,
            address.url.rstrip("/").removesuffix("/v1"),
            provider=PROVIDER,
            window=context_window if context_window is not None else window_of(model),
            event_bytes_max=event_bytes_max,
            headers=headers,
            proxy=proxy,
            transport=transport,
            connect_timeout_s=connect_timeout_s,
        )
        self._key = self._find_key(api_key, address)
        self._thinking: OrderedDict[tuple[str, str], ThinkingForm] = OrderedDict()

    def _find_key(self, given: KeySource | None, address: Address) -> Key | None:
        host = self._endpoint.host
        trusted = address.may_have_key_of_environment(host)
        source = given if given is not None else key_from_environment([KEY_VARIABLE]) if trusted else None
        if source is not None:
            return Key(source, provider=PROVIDER, header="x-api-key")
        if self._endpoint.header_names & {"x-api-key", "authorization"} or is_local(host):
            return None
        where = "set the environment variable ANTHROPIC_API_KEY, or give api_key=" if trusted else "give api_key="
        raise MissingKey(
            f"Anthropic needs an API key, and there is none for {host!r}: {where} (get one at https://platform.claude.com)",
            variables=(KEY_VARIABLE,) if trusted else (),
            host=host,
        )

    @classmethod
    def from_env(cls, model: str, **options: Any) -> Self:
        """As the environment says, with the variables of Anthropic's own client: ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL."""
        return cls(model, **options)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[ChunkStream]:
        model = request.model or self._model
        thinking = self._thinking.get((request.session, model), "kept")
        body = self._builder.body(request, model, thinking)
        credential = await self._confided()
        headers = self._headers(thinking)
        async with self._endpoint.open(
            "/v1/messages", body, credential, headers=headers, connected=request.connected
        ) as stream:
            if stream.status != 200:
                fault = fault_of_reply(stream.status, await stream.read_error(), stream.headers, credential)
                if isinstance(fault, ThinkingRefused):
                    fault.retryable = self._make_do_with_less(request, model, thinking, fault.bound)
                raise fault
            yield ChunkStream(stream, MessagesReply(credential), PROVIDER, self._event_bytes_max, request.idle_s)

    def _headers(self, thinking: ThinkingForm) -> dict[str, str]:
        betas = (*self._betas, BINDING_BETA) if thinking == "checked" else self._betas
        beta = {"anthropic-beta": ",".join(dict.fromkeys(betas))} if betas else {}
        return {"anthropic-version": self._version, "accept": "text/event-stream, application/json", **beta}

    def _make_do_with_less(self, request: ModelRequest, model: str, thinking: ThinkingForm, bound: bool) -> bool:
        """Whether the next request of this session can do with less thinking than this one, and so may succeed."""
        if thinking == "left_out":
            return False
        may_check = bound and thinking == "kept" and self._builder.can_check_thinking(request)
        self._thinking[request.session, model] = "checked" if may_check else "left_out"
        self._thinking.move_to_end((request.session, model))
        while len(self._thinking) > REFUSALS_KEPT:
            self._thinking.popitem(last=False)
        return True
