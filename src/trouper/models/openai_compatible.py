"""Chat Completions: OpenAI, and the many servers that speak its language: Ollama, vLLM, llama.cpp, OpenRouter... (M13).

    model = OpenAICompatible("gpt-5.6-sol")                                        # the key from OPENAI_API_KEY
    model = OpenAICompatible("qwen3", base_url="http://localhost:11434/v1")        # Ollama: no key
    model = OpenAICompatible("z-ai/glm-5", base_url="https://openrouter.ai/api/v1", api_key=ask_vault)

What is said and meant is in `openai_request` and `openai_reply`, which are pure; here the two are joined to a connection. No retry, no deadline
but that of connecting: the model call's actor has those.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from trouper._errors import ConfigError, MissingKey
from trouper.core.messages import Json
from trouper.models.chunk_stream import ChunkStream
from trouper.models.hosts import Address, address_of, host_in, is_local
from trouper.models.http import CONNECT_TIMEOUT_S
from trouper.models.http_model import HttpModel, window_in
from trouper.models.keys import Key, KeySource, key_from_environment
from trouper.models.openai_errors import fault_of_reply
from trouper.models.openai_reply import ChatReply
from trouper.models.openai_request import ChatRequestBuilder, Dialect, Reasoning
from trouper.models.protocol import ModelRequest
from trouper.models.sse import EVENT_BYTES_MAX

if TYPE_CHECKING:
    import httpx

BASE_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
BASE_URL_VARIABLE = "OPENAI_BASE_URL"
_OLLAMA_PORT = 11434

#: Tokens that fit, by the beginning of the model's name. Other servers' models: `context_window=`.
CONTEXT_WINDOWS: Mapping[str, int] = {
    "gpt-6": 1_050_000,
    "gpt-5.6": 1_050_000,
    "gpt-5": 400_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "o1": 200_000,
    "o3": 200_000,
    "o4": 200_000,
}


def window_of(model: str) -> int | None:
    return window_in(CONTEXT_WINDOWS, model)


def provider_of(base_url: str) -> str:
    """A short name for who is asked: what is opaque is returned to its own provider only, and this says who that is."""
    host = host_in(base_url)
    if not host:
        return "unknown"
    if host == "api.openai.com":
        return "openai"
    if host == "openrouter.ai" or host.endswith(".openrouter.ai"):
        return "openrouter"
    if is_local(host):
        return "ollama" if urlsplit(base_url).port == _OLLAMA_PORT else "local"
    return host


class OpenAICompatible(HttpModel):
    """A `Model` that speaks Chat Completions. Safe to share between sessions; `aclose()` closes its idle connections."""

    def __init__(
        self,
        model: str,
        *,
        api_key: KeySource | None = None,
        base_url: str | None = None,
        config: Mapping[str, Json] | None = None,
        provider: str | None = None,
        reasoning: Reasoning = "auto",
        stream_usage: bool = True,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        context_window: int | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> None:
        """`config`: fields of the body in the wire's own words, such as `{"reasoning_effort": "high"}`.

        `provider`: who is asked, where the address does not tell: what is opaque is returned to its own provider only, and all
        servers of one's own count as one. `"openai"` also says that the limit of a reply is called `max_completion_tokens`.
        """
        if not model or not isinstance(model, str):
            raise ConfigError(f"{model!r} is not a model's name; write one like 'gpt-5.6-sol'", model=model)
        if reasoning not in ("auto", "always", "never"):
            raise ConfigError(
                f"reasoning {reasoning!r} is none of 'auto', 'always', 'never'; use one of these", reasoning=reasoning
            )
        address = address_of(base_url, BASE_URL_VARIABLE, BASE_URL)
        provider = provider or provider_of(address.url)
        limit_field: Literal["max_completion_tokens", "max_tokens"] = (
            "max_completion_tokens" if provider == "openai" else "max_tokens"
        )
        self._builder: ChatRequestBuilder = ChatRequestBuilder(
            Dialect(provider, limit_field, reasoning, stream_usage), config
        )
        super().__init__(
            model,
            address.url,
            provider=provider,
            window=context_window if context_window is not None else window_of(model.rsplit("/", 1)[-1]),
            event_bytes_max=event_bytes_max,
            headers=headers,
            proxy=proxy,
            transport=transport,
            connect_timeout_s=connect_timeout_s,
        )
        self._key = self._find_key(api_key, address)

    def _find_key(self, given: KeySource | None, address: Address) -> Key | None:
        host = self._endpoint.host
        trusted = address.may_have_key_of_environment(host)
        source = given if given is not None else key_from_environment([KEY_VARIABLE]) if trusted else None
        if source is not None:
            return Key(source, provider=self._provider, header="authorization", prefix="Bearer ")
        if "authorization" in self._endpoint.header_names or "api-key" in self._endpoint.header_names or is_local(host):
            return None
        where = "set the environment variable OPENAI_API_KEY, or give api_key=" if trusted else "give api_key="
        raise MissingKey(
            f"{self._provider!r} needs an API key, and there is none: {where}; "
            "a server of your own, such as Ollama at http://localhost:11434/v1, needs none: give its base_url=, or set OPENAI_BASE_URL",
            variables=(KEY_VARIABLE,) if trusted else (),
            provider=self._provider,
        )

    @classmethod
    def from_env(cls, model: str, **options: Any) -> Self:
        """As the environment says, with the variables of OpenAI's own client: OPENAI_API_KEY and OPENAI_BASE_URL."""
        return cls(model, **options)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[ChunkStream]:
        body = self._builder.body(request, request.model or self._model)
        credential = await self._confided()
        async with self._endpoint.open(
            "/chat/completions", body, credential, headers=_ACCEPT, connected=request.connected
        ) as stream:
            if stream.status != 200:
                # The body has no name here: it may repeat the key, and tracebacks show variables.
                raise fault_of_reply(
                    self._provider, stream.status, await stream.read_error(), stream.headers, credential
                )
            yield ChunkStream(
                stream, ChatReply(self._provider, credential), self._provider, self._event_bytes_max, request.idle_s
            )


_ACCEPT = {"accept": "text/event-stream, application/json"}
