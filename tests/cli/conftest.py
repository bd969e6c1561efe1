"""Roots with something in them, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from attrs import frozen

from trouper import Scripted, ToolContext, open_runtime, tool
from trouper.cli import main
from trouper.models import call, reply


@frozen
class Ended:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def trouper(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`trouper("journal", "ls", root)` in this process."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return run


@tool(background=True, idempotent=True, budget_s=0.0)
async def dig(context: ToolContext, deep: int = 1) -> dict[str, int]:
    """Dig a hole."""
    context.report_progress(deep, deep, "m")
    await trio.sleep(0.05)  # Longer than the turn waits for it, which is not at all.
    return {"deep": deep}


@tool
async def add_up(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def _fill(root: Path) -> None:
    script = [
        reply("Let me see. ", call("add_up", a=1, b=2)),
        reply("It is 3."),
        reply(call("dig", deep=4)),
        reply("It digs."),
        reply("It has dug."),
        reply("Hello back."),
    ]
    async with open_runtime(root, model=Scripted(script), tools=[add_up, dig]) as runtime:
        main_session = await runtime.session("main")
        await main_session.ask("what is 1 + 2?")
        with main_session.watch() as events:
            await main_session.ask("dig 4 m")
            with trio.fail_after(30):
                async for event in events:
                    if type(event).__name__ == "NotificationsAcknowledged":
                        break
        other = await runtime.session("other")
        await other.ask("hello \x1b[31mred\x1b[0m \u202eevil")
        await runtime.memory.remember("people", "ada", {"likes": "tea"}, summary="Ada likes tea")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that two sessions have used; not to be changed."""
    root = tmp_path_factory.mktemp("roots") / "filled"
    trio.run(_fill, root)
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    """The same, to do with as one likes."""
    import shutil

    shutil.copytree(filled, tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def damaged(root: Path) -> Path:
    """A root with a flipped byte in the middle of its journal."""
    segment = root / "segment-00000001.log"
    data = bytearray(segment.read_bytes())
    place = data.index(b"It is 3.")
    data[place] ^= 0x01
    segment.write_bytes(data)
    return root
