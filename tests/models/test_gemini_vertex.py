"""M12: Gemini on Vertex AI."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from google.auth import credentials as google_credentials

from trouper._errors import ConfigError
from trouper.core.messages import Message, Text
from trouper.models._errors import AuthFailed
from trouper.models.chunks import Done, TextChunk
from trouper.models.gemini import Gemini
from trouper.models.gemini_vertex import Vertex
from trouper.models.protocol import ModelRequest
from trouper.testing.server import serve_gemini

ASK = ModelRequest(messages=(Message("user", (Text("hi"),)),))
TURN = [TextChunk("hello"), Done("end_turn")]


class CountingCredentials(google_credentials.Credentials):  # type: ignore[misc, no-untyped-call]
    """Google's own class, with a token that is made here."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refreshed_in: list[str] = []
        self._quota_project_id = "billing-project"

    def refresh(self, request: Any) -> None:
        self.refreshed_in.append(threading.current_thread().name)
        self.token = f"token-{len(self.refreshed_in)}"


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("global", "https://aiplatform.googleapis.com"),
        ("europe-west4", "https://europe-west4-aiplatform.googleapis.com"),
        ("eu", "https://aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_addresses(location: str, url: str) -> None:
    assert Vertex("p", location).base_url == url


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-3-flash", "projects/p/locations/l/publishers/google/models/gemini-3-flash"),
        ("models/gemini-3-flash", "projects/p/locations/l/publishers/google/models/gemini-3-flash"),
        ("meta/llama", "projects/p/locations/l/publishers/meta/models/llama"),
        ("publishers/x/models/y", "projects/p/locations/l/publishers/x/models/y"),
        ("projects/a/locations/b/endpoints/c", "projects/a/locations/b/endpoints/c"),
    ],
)
def test_paths(model: str, path: str) -> None:
    assert Vertex("p", "l").path(model) == path


async def test_the_token_is_fetched_in_a_thread_once_and_renewed_when_it_is_no_longer_valid() -> None:
    """M12: many requests at once make one refresh."""
    credentials = CountingCredentials()
    async with serve_gemini([TURN], repeat_last=True) as server:
        vertex = Vertex("my-project", "europe-west4", credentials)
        async with Gemini("gemini-3-flash", vertex=vertex, base_url=server.url) as model:

            async def ask() -> None:
                async with model.stream(ASK) as chunks:
                    assert [chunk async for chunk in chunks][-1] == Done("end_turn")

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(ask)
            credentials.token = None
            await ask()
        requests = server.requests
    assert requests[0].path == (
        "/v1beta1/projects/my-project/locations/europe-west4/publishers/google/models/gemini-3-flash:streamGenerateContent"
    )
    assert [request.headers["authorization"] for request in requests] == ["Bearer token-1"] * 5 + ["Bearer token-2"]
    assert requests[0].headers["x-goog-user-project"] == "billing-project"
    assert "x-goog-api-key" not in requests[0].headers
    assert len(credentials.refreshed_in) == 2
    assert threading.main_thread().name not in credentials.refreshed_in


async def test_credentials_that_fail_are_named() -> None:
    class Broken(CountingCredentials):
        def refresh(self, request: Any) -> None:
            raise OSError("no network")

    with pytest.raises(AuthFailed, match=r"OSError.*gcloud auth"):
        async with Gemini("m", vertex=Vertex("p", "global", Broken())).stream(ASK):
            pass


async def test_a_project_has_to_be_known() -> None:
    credentials = CountingCredentials()
    with pytest.raises(ConfigError, match="GOOGLE_CLOUD_PROJECT"):
        async with Gemini("m", vertex=Vertex(None, "global", credentials)).stream(ASK):
            pass


def test_the_environment_chooses_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "env-project")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-east5")
    model = Gemini.from_env("gemini-3-flash")
    assert "us-east5-aiplatform" in repr(model)
    assert model._path("gemini-3-flash").startswith("projects/env-project/locations/us-east5/")
