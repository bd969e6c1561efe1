"""`context.files` in a tool of one's own (T7), under the attacks of security.md, rows Paths and Names (T17)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tool_attacks as attacks
import trio

from trouper import Scripted, ToolContext, ToolError, open_runtime, tool
from trouper.models import call, reply
from trouper.tools import Services
from trouper.tools.guards import descriptors, rooted
from trouper.tools.guards.rooted import RootedFiles
from trouper.tools.session_files import SessionFiles


def files_in(tmp: Path) -> SessionFiles:
    """As a tool gets them; beside them lie things that an attacker wants."""
    return ToolContext(services=Services(files=attacks.tree(tmp))).files


def outside(tmp: Path) -> dict[str, bytes]:
    """All that lies around the session's files, and what it holds."""
    top = tmp / "state" / "files" / "one"
    return {
        str(path): path.read_bytes()
        for path in tmp.rglob("*")
        if path.is_file() and not path.is_symlink() and top not in path.parents
    }


HOSTILE = (
    *("../secret.txt", "a/../../secret.txt", "../one-evil/secret.txt", "/proc/self/environ", "/dev/zero"),
    *("link", "up/secret.txt", "dangling", "hard", "pipe", "..", "inside.txt\0.png", "n" * 4096, "n/" * 4096),
    *("line\nbreak", "txt.\u202eexe", "caf\u0065\u0301", "half\ud800"),
)


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: ascii(path)[:30])
async def test_a_path_that_leads_out_is_refused_in_words_for_the_model(path: str, tmp_path: Path) -> None:
    """T17: whatever a tool does with it."""
    files = files_in(tmp_path)
    top = files.root
    (top / "link").symlink_to(tmp_path / "secret.txt")
    (top / "up").symlink_to(tmp_path)
    (top / "dangling").symlink_to(tmp_path / "planted.txt")
    os.link(tmp_path / "secret.txt", top / "hard")
    os.mkfifo(top / "pipe")
    before = outside(tmp_path)
    for reading in (files.read, files.read_text, files.list):
        with pytest.raises(ToolError) as refused:
            await reading(path)
        assert str(tmp_path) not in refused.value.message
    with pytest.raises(ToolError):
        await files.write(path, "planted")
    # Its own names may go: a link is removed, never followed.
    if path not in ("link", "dangling", "hard", "pipe"):
        with pytest.raises(ToolError):
            await files.delete(path)
    assert outside(tmp_path) == before


async def test_a_file_or_directory_swapped_for_a_link_at_the_worst_moment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T17: the race between a check and a use."""
    files = files_in(tmp_path)
    await files.write("dir/secret.txt", "mine")
    with monkeypatch.context() as swapped:
        swapped.setattr(descriptors, "open_in", attacks.swapping(files.rooted, "inside.txt", tmp_path / "secret.txt"))
        with pytest.raises(ToolError):
            await files.read("inside.txt")
    with monkeypatch.context() as swapped:
        swapped.setattr(rooted, "open_in", attacks.swapping(files.rooted, "dir", tmp_path))
        with pytest.raises(ToolError):
            await files.read_text("dir/secret.txt")


async def test_the_top_and_what_is_not_empty_are_not_deleted(tmp_path: Path) -> None:
    """T14, T17"""
    files = files_in(tmp_path)
    await files.write("dir/a", b"1")
    for path in (".", "", "dir"):
        with pytest.raises(ToolError):
            await files.delete(path)
    await files.delete("dir/a")
    await files.delete(Path("dir"))
    assert [entry.name for entry in await files.list()] == ["inside.txt"]


async def test_too_much_is_refused_and_what_is_no_text_is_said_to_be_none(tmp_path: Path) -> None:
    """T17: the quota holds for a tool of one's own, too."""
    files = files_in(tmp_path)
    with pytest.raises(ToolError, match="split it"):
        await files.write("big", bytes(attacks.QUOTA.file_bytes_max + 1))
    await files.write("picture", b"\x89PNG")
    with pytest.raises(ToolError, match="is not text in UTF-8"):
        await files.read_text("picture")
    with pytest.raises(ToolError, match="surrogate"):
        await files.write("a", "half \ud800")


async def test_a_host_that_names_a_directory_has_its_files_guarded(tmp_path: Path) -> None:
    """T7: what a host offers is where they are; how they are reached is ours."""

    class Place:
        root = tmp_path / "files"

    (tmp_path / "secret.txt").write_bytes(attacks.SECRET)
    files = ToolContext(services=Services(files=Place())).files
    await files.write("a/b.txt", "text")
    assert await files.read_text("a/b.txt") == "text" and files.root == Place.root
    with pytest.raises(ToolError):
        await files.read("../secret.txt")


async def test_a_cancelled_write_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T14, L21: whoever is cancelled in a write has written all of it, or nothing."""
    files = files_in(tmp_path)
    write = files.rooted.write
    with trio.CancelScope() as scope:

        def cancelled_in_the_middle(path: str, data: bytes) -> object:
            trio.from_thread.run_sync(scope.cancel)
            return write(path, data)

        monkeypatch.setattr(files.rooted, "write", cancelled_in_the_middle)
        await files.write("a", "all of it")
    assert files.rooted.read("a") == b"all of it"


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_a_tool_writes_files_of_its_session_and_no_other(in_a_thread: bool, tmp_path: Path) -> None:
    """T7: an `async def` awaits it; a `def`, which runs in a thread, asks the loop to."""

    async def save(path: str, text: str, context: ToolContext) -> str:
        """Save a text."""
        await context.files.write(path, text)
        return await context.files.read_text(path)

    def save_in_a_thread(path: str, text: str, context: ToolContext) -> str:
        """Save a text."""
        return trio.from_thread.run(save, path, text, context)

    function: Callable[..., object] = save_in_a_thread if in_a_thread else save
    saving = tool(name="save", needs=("files",))(function)
    calls = (call("save", path="notes/a.txt", text="tea"), call("save", path="../bob/a.txt", text="tea"))
    script = [reply(*calls), "Done."]
    async with open_runtime(tmp_path / "state", model=Scripted(script), tools=[saving]) as runtime:
        session = await runtime.session("ada")
        await session.ask("save it")
        told = [(answer.outcome.value, answer.content) for each in session.history for answer in each.answers]
        assert told[0] == ("ok", "tea")
        assert told[1][0] == "error" and "'..' is refused" in str(told[1][1])
        files = runtime.files_of("ada")
        assert isinstance(files, RootedFiles) and files.read("notes/a.txt") == b"tea"
    assert not (tmp_path / "state" / "files" / "bob").exists()
