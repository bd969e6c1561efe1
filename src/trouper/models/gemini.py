"""Gemini over HTTP (M7-M12).

    model = Gemini("gemini-3-flash")                      # the key from GEMINI_API_KEY or GOOGLE_API_KEY
    model = Gemini("gemini-3-pro", api_key=ask_vault, config={"thinkingConfig": {"includeThoughts": True}})
    model = Gemini("gemini-3-flash", vertex=Vertex(project="my-project", location="europe-west4"))

What is said and meant is in `gemini_request` and `gemini_reply`, which are pure; here the two are joined to a connection. No retry, no deadline but
that of connecting: the model call's actor has those.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from trouper._errors import ConfigError, MissingKey
from trouper.models import wire_json
from trouper.models._errors import ModelError
from trouper.models.chunk_stream import ChunkStream
from trouper.models.gemini_config import GeminiConfig, settings_of
from trouper.models.gemini_errors import PROVIDER, fault_of_error, fault_of_reply
from trouper.models.gemini_reply import Reply
from trouper.models.gemini_request import RequestBuilder, SchemaForm, model_path
from trouper.models.gemini_vertex import Vertex
from trouper.models.hosts import Address, address_of
from trouper.models.http import CONNECT_TIMEOUT_S
from trouper.models.http_model import HttpModel, window_in
from trouper.models.keys import Credential, Key, KeySource, key_from_environment
from trouper.models.protocol import ModelRequest
from trouper.models.sse import EVENT_BYTES_MAX

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

BASE_URL = "https://generativelanguage.googleapis.com"
DEFAULT_MODEL = "gemini-3-flash"
#: As in Google's own client, the first wins.
KEY_VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
BASE_URL_VARIABLE = "GOOGLE_GEMINI_BASE_URL"

#: Tokens that fit, by the beginning of the model's name.
CONTEXT_WINDOWS: Mapping[str, int] = {
    "gemini-3": 1_048_576,
    "gemini-3-pro-image": 65_536,
    "gemini-2.5": 1_048_576,
    "gemini-2.5-flash-image": 65_536,
    "gemini-2.5-computer-use": 131_072,
    "gemini-2.0": 1_048_576,
    "gemini-1.5-pro": 2_097_152,
    "gemini-1.5-flash": 1_048_576,
    "gemini-flash": 1_048_576,
    "gemini-pro": 1_048_576,
    "gemma-3": 131_072,
}


def window_of(model: str) -> int | None:
    return window_in(CONTEXT_WINDOWS, model.rsplit("/", 1)[-1])


class Gemini(HttpModel):
    """A `Model` that asks Google. Safe to share between sessions; `aclose()` closes its idle connections."""

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        api_key: KeySource | None = None,
        base_url: str | None = None,
        config: GeminiConfig = None,
        vertex: Vertex | None = None,
        api_version: str | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        context_window: int | None = None,
        schemas: SchemaForm = "json",
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> None:
        model_path(model)
        if schemas not in ("json", "openapi"):
            raise ConfigError(f"schemas {schemas!r} is neither 'json' nor 'openapi'; use one of these", schemas=schemas)
        self._vertex = vertex
        self._version = api_version or ("v1beta1" if vertex else "v1beta")
        self._builder: RequestBuilder = RequestBuilder(settings_of(config), schemas=schemas)
        super().__init__(
            model,
            base_url or (vertex.base_url if vertex else BASE_URL),
            provider=PROVIDER,
            window=context_window if context_window is not None else window_of(model),
            event_bytes_max=event_bytes_max,
            headers=headers,
            proxy=proxy,
            transport=transport,
            connect_timeout_s=connect_timeout_s,
        )
        self._key = (
            None if vertex else self._find_key(api_key, address_of(base_url or BASE_URL, BASE_URL_VARIABLE, BASE_URL))
        )

    def _find_key(self, given: KeySource | None, address: Address) -> Key | None:
        trusted = address.may_have_key_of_environment(self._endpoint.host)
        source = given if given is not None else key_from_environment(KEY_VARIABLES) if trusted else None
        if source is not None:
            return Key(source, provider=PROVIDER, header="x-goog-api-key")
        if self._endpoint.header_names & {"x-goog-api-key", "authorization"}:
            return None
        where = "set the environment variable GEMINI_API_KEY, or give api_key=" if trusted else "give api_key="
        raise MissingKey(
            f"Gemini needs an API key, and there is none for {self._endpoint.host!r}: {where} "
            "(get one at https://aistudio.google.com/apikey); for Vertex AI give vertex=Vertex(project=...)",
            variables=KEY_VARIABLES if trusted else (),
            host=self._endpoint.host,
        )

    @classmethod
    def from_env(cls, model: str = DEFAULT_MODEL, **options: Any) -> Self:
        """As the environment says, with the variables of Google's own client: a key, or a Cloud project for Vertex AI."""
        if os.environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").strip().lower() in ("1", "true"):
            location = os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
            options.setdefault("vertex", Vertex(os.environ.get("GOOGLE_CLOUD_PROJECT"), location))
            options.setdefault("base_url", os.environ.get("GOOGLE_VERTEX_BASE_URL") or None)
        else:
            options.setdefault("base_url", os.environ.get(BASE_URL_VARIABLE, "").strip() or None)
        return cls(model, **options)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[ChunkStream]:
        model = request.model or self._model
        body = self._builder.body(request, model, settings_of(request.extra) if request.extra else None)
        credential = await self._confided()
        path = f"/{self._version}/{self._path(model)}:streamGenerateContent?alt=sse"
        headers = self._extra_headers()
        async with self._endpoint.open(path, body, credential, headers=headers, connected=request.connected) as stream:
            if stream.status != 200:
                raise fault_of_reply(stream.status, await stream.read_error(), stream.headers, credential)
            yield ChunkStream(stream, Reply(credential), PROVIDER, self._event_bytes_max, request.idle_s)

    async def _credential(self) -> Credential | None:
        if self._vertex is not None:
            return await self._vertex.ask()
        return await super()._credential()

    def _path(self, model: str) -> str:
        path = model_path(model)
        return self._vertex.path(model) if self._vertex is not None else path

    def _extra_headers(self) -> dict[str, str]:
        project = self._vertex.quota_project if self._vertex is not None else None
        return {"x-goog-user-project": project} if project else {}

    async def sdk(self, work: Callable[[Any], T]) -> T:
        """Run `work(client)` in a thread, with Google's own client and our key: files, caches, embeddings (M12).

        await model.sdk(lambda client: client.files.upload(file="report.pdf"))
        """
        credential = await self._confided()
        return await trio.to_thread.run_sync(self._run_sdk, work, credential, abandon_on_cancel=True)

    def _run_sdk(self, work: Callable[[Any], T], credential: Credential) -> T:
        from google import genai
        from google.genai import errors

        options: Any = {
            "base_url": self._endpoint.base_url,
            "api_version": self._version,
            "headers": self._sdk_headers(credential),
        }
        if self._endpoint.proxy is not None:
            options["client_args"] = {"proxy": self._endpoint.proxy}
        if self._vertex is not None:
            vertex = self._vertex
            client = genai.Client(
                vertexai=True,
                project=vertex.project,
                location=vertex.location,
                credentials=vertex.credentials,
                http_options=options,
            )
        else:
            client = genai.Client(api_key=credential.value or "none", http_options=options)
        fault: ModelError
        try:
            with client:
                return work(client)
        except errors.APIError as exc:
            details = exc.details if isinstance(exc.details, dict) else {}
            error = details.get("error", details)
            fault = fault_of_error({"message": exc.message, "status": exc.status, **error}, exc.code, {}, credential)
        # Raised out here: the SDK's exception holds its request, and with it the key.
        raise fault

    def _sdk_headers(self, credential: Credential) -> dict[str, str]:
        """What Google's client sends beside its own: in lower case, as it writes the key's, so that none stands there twice."""
        headers = {name.lower(): value for name, value in self._endpoint.headers.items()}
        headers.pop("content-type", None)  # Its own is in other letters, as is the proof of who asks Vertex.
        if self._vertex is None:
            # It insists on a key. Where another header proves who asks, an empty one is none.
            headers["x-goog-api-key"] = credential.value or headers.get("x-goog-api-key", "")
        else:
            headers.pop("authorization", None)
        return headers | self._extra_headers()

    async def count_tokens(self, request: ModelRequest) -> int:
        """How many tokens the provider counts in these messages and the system text."""
        model = request.model or self._model
        contents = wire_json.decode(self._builder.body(request, model))["contents"]
        if request.system:
            contents.insert(0, {"role": "user", "parts": [{"text": request.system}]})

        def count(client: Any) -> int:
            from google.genai import types

            parsed = [types.Content.model_validate_json(wire_json.encode(content)) for content in contents]
            return int(client.models.count_tokens(model=model, contents=parsed).total_tokens or 0)

        return await self.sdk(count)
