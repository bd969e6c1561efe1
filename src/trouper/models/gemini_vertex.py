"""Gemini on Vertex AI: whose project, where, and a token that Google's own library fetches and renews, in a thread (M12)."""

from __future__ import annotations

from typing import Any

import trio
from attrs import define, field

from trouper._errors import ConfigError
from trouper.models._errors import AuthFailed
from trouper.models.gemini_errors import PROVIDER
from trouper.models.keys import Credential

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_REGIONS_OF_MANY = ("us", "eu")


@define(eq=False)
class Vertex:
    """`Gemini("gemini-3-flash", vertex=Vertex(project="my-project", location="europe-west4"))`.

    Without `credentials`, the application default ones serve (`gcloud auth application-default login`, a service account, the metadata server).
    """

    project: str | None = None
    location: str = "global"
    #: Of `google.auth`; anything with `valid`, `token` and `refresh(request)`.
    credentials: Any = field(default=None, repr=False)
    _lock: trio.Lock = field(factory=trio.Lock, init=False, repr=False)

    @property
    def base_url(self) -> str:
        if self.location == "global":
            return "https://aiplatform.googleapis.com"
        if self.location in _REGIONS_OF_MANY:
            return f"https://aiplatform.{self.location}.rep.googleapis.com"
        return f"https://{self.location}-aiplatform.googleapis.com"

    def path(self, model: str) -> str:
        """A model's resource name."""
        if model.startswith(("projects/", "publishers/")):
            resource = model
        elif "/" in (name := model.removeprefix("models/")):
            publisher, _, name = name.partition("/")
            resource = f"publishers/{publisher}/models/{name}"
        else:
            resource = f"publishers/google/models/{name}"
        if resource.startswith("projects/"):
            return resource
        return f"projects/{self.project}/locations/{self.location}/{resource}"

    async def ask(self) -> Credential:
        """A valid token. One task fetches it, others wait for that."""
        async with self._lock:
            if self.credentials is None or not self.credentials.valid:
                failed = await trio.to_thread.run_sync(self._refresh, abandon_on_cancel=True)
                if failed:
                    raise AuthFailed(
                        f"no Google Cloud token ({failed}); run 'gcloud auth application-default login', "
                        "or give credentials= to Vertex",
                        provider=PROVIDER,
                    )
            if not self.project:
                raise ConfigError(
                    "the Google Cloud project is not known; give project= to Vertex, or set GOOGLE_CLOUD_PROJECT"
                )
            token = str(self.credentials.token)
        return Credential("authorization", f"Bearer {token}", (token,))

    @property
    def quota_project(self) -> str | None:
        project = getattr(self.credentials, "quota_project_id", None)
        return project if isinstance(project, str) else None

    def _refresh(self) -> str:
        """In a thread: this library reads files and asks servers. The name of what went wrong, or nothing."""
        import google.auth
        from google.auth.transport.requests import Request

        try:
            credentials, project = self.credentials, None
            if credentials is None:
                credentials, project = google.auth.default(scopes=[_SCOPE])
            if not credentials.valid:
                credentials.refresh(Request())
        except Exception as exc:
            return type(exc).__name__
        self.credentials = credentials
        self.project = self.project or project
        return ""
