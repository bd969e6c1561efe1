"""A host in memory for the built-in tools, and one way to call them: as the runtime does, through `prepare` and `run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trouper.tools import Question, Reply, Services, Tool, ToolContext, ToolResult
from trouper.tools.guards.rooted import RootedFiles

NOW = datetime(2026, 3, 29, 0, 59, 30, tzinfo=UTC)


class Store:
    """Key-value and secret store at once."""

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = dict(values)

    async def get(self, key: str) -> Any:
        return self.values.get(key)

    async def set(self, key: str, value: Any) -> None:
        self.values[key] = value

    async def delete(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    async def keys(self) -> Sequence[str]:
        return list(self.values)

    names = keys


class Asked:
    """A user who answers everything in one way."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.questions: list[Question] = []
        self.timeout_s: float | None = None

    async def ask(
        self, questions: Sequence[Question], *, timeout_s: float | None = None, call: str | None = None
    ) -> Reply:
        self.questions, self.timeout_s = list(questions), timeout_s
        return self.reply


class Calendar:
    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    async def create(self, **options: Any) -> Mapping[str, Any]:
        self.made.append(options)
        return {"id": f"schedule_{len(self.made)}"}

    async def list(self) -> Sequence[Mapping[str, Any]]:
        return []

    async def cancel(self, schedule_id: str) -> bool:
        return False


class Heard:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.reports: list[tuple[Any, ...]] = []
        self.outputs: list[tuple[str, str]] = []

    def progress(self, current: float | None, total: float | None, unit: str, label: str) -> None:
        self.reports.append((current, total, unit, label))

    def status(self, text: str) -> None:
        self.reports.append((text,))

    def output(self, stream: str, delta: str) -> None:
        self.outputs.append((stream, delta))


def context_at(tmp: Path, **services: Any) -> ToolContext:
    files = RootedFiles(tmp / "state", "files", "one")
    return ToolContext(services=Services(files=files, clock=lambda: NOW, **services), sink=Heard())


def root(tmp: Path) -> Path:
    return tmp / "state" / "files" / "one"


async def result(tool: Tool, context: ToolContext | None = None, /, **arguments: Any) -> ToolResult:
    return await tool.run(tool.prepare(arguments).arguments, context or ToolContext())


async def call(tool: Tool, context: ToolContext | None = None, /, **arguments: Any) -> Any:
    return (await result(tool, context, **arguments)).content
