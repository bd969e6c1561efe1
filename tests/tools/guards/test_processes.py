"""Commands under a warden (T13): how they end. What they may not leave behind is in tool_attacks.py."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio
from tool_attacks import COMMAND_LIMITS, alive, fenced, fences, python, run
from trio.testing import MockClock

from trouper.tools.guards import processes
from trouper.tools.guards.fence import build, find
from trouper.tools.guards.processes import CommandLimits, CommandRefused


async def test_exit_code_and_both_streams_come_back(tmp_path: Path) -> None:
    finished = await run(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (finished.outcome, finished.exit_code, finished.stdout.text, finished.stderr.text) == (
        "exited",
        7,
        "out\n",
        "err\n",
    )
    assert finished.left_behind == 0


async def test_time_out_ends_the_command_and_keeps_its_output(tmp_path: Path, mock_clock: MockClock) -> None:
    """The clock stands still until the command has spoken, then jumps past the deadline."""

    def listener(stream: str, text: str) -> None:
        mock_clock.jump(COMMAND_LIMITS.timeout_s + 1)

    finished = await run(
        tmp_path, *python("import time; print('here', flush=True); time.sleep(600)"), listener=listener
    )
    assert (finished.outcome, finished.signal, finished.stdout.text) == ("timed_out", "SIGTERM", "here\n")


async def test_command_that_tidies_up_on_sigterm_is_given_the_time(tmp_path: Path) -> None:
    script = """
        import signal, sys, time
        def tidy(*_):
            open("tidied", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, tidy)
        print("ready", flush=True)
        time.sleep(600)
    """
    with trio.CancelScope() as scope:
        await run(
            tmp_path,
            *python(script),
            limits=attrs.evolve(COMMAND_LIMITS, grace_s=30),
            listener=lambda stream, text: scope.cancel(),
        )
    assert (tmp_path / "tidied").exists()


async def test_output_of_a_cut_stream_keeps_head_and_tail_at_characters(tmp_path: Path) -> None:
    limits = attrs.evolve(COMMAND_LIMITS, kept_bytes=10)
    finished = await run(tmp_path, *python("print('é' * 1000, end='')"), limits=limits)
    head, note, tail = finished.stdout.text.split("\n")
    assert (head, tail) == ("éé", "éé")
    assert "1990 bytes of stdout left out" in note
    assert finished.stdout.bytes_total == 2000


async def test_live_output_has_an_end(tmp_path: Path) -> None:
    heard: list[str] = []
    limits = attrs.evolve(COMMAND_LIMITS, live_chars_max=100)
    await run(
        tmp_path, *python("print('x' * 100_000)"), limits=limits, listener=lambda stream, text: heard.append(text)
    )
    assert len("".join(heard)) < 200
    assert "live output ends here" in heard[-1]


async def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    finished = await run(tmp_path, *python("import os; os.write(1, b'ok \\xff\\xfe end')"))
    assert finished.stdout.text == "ok \ufffd\ufffd end"


async def test_commands_run_side_by_side(tmp_path: Path) -> None:
    ended: list[int | None] = []

    async def one(code: int) -> None:
        ended.append((await run(tmp_path, "sh", "-c", f"exit {code}")).exit_code)

    async with trio.open_nursery() as nursery:
        for code in range(5):
            nursery.start_soon(one, code)
    assert sorted(code for code in ended if code is not None) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fence", [True, False])
async def test_a_flood_of_processes_in_sessions_of_their_own_is_ended(
    tmp_path: Path, fence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Security: a bomb of nine generations, which ignore SIGTERM and share neither group nor session; a bomb without end would be everybody's."""
    monkeypatch.setattr(processes, "CONTROLS", {**processes.CONTROLS, "fence": fence})
    script = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for generation in range(9):
            try:
                if os.fork() == 0:
                    os.setsid()
            except OSError:
                pass
        time.sleep(600)
    """
    (tmp_path / "flood.py").write_text(textwrap.dedent(script))
    finished = await run(tmp_path, sys.executable, "-I", "-S", str(tmp_path / "flood.py"))
    assert (finished.outcome, finished.left_behind) == ("too_many_processes", 0)
    assert running(str(tmp_path / "flood.py")) == []


def running(script: str) -> list[str]:
    """The processes that were started with this argument."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if script.encode() in place.read_bytes():
                found.append(place.parent.name)
    return found


@pytest.mark.skipif(not fenced(), reason="no control groups to be had here")
async def test_no_fence_is_left(tmp_path: Path) -> None:
    """I21: whichever way the command ended."""
    await run(tmp_path, "true")
    await run(tmp_path, "sh", "-c", "kill -9 $PPID; sleep 600")
    with pytest.raises(CommandRefused):
        await run(tmp_path, "no-such-program")
    with trio.move_on_after(0):
        await run(tmp_path, "sleep", "600")
    assert fences() == []


@pytest.mark.skipif(not fenced(), reason="no control groups to be had here")
def test_a_fence_that_its_warden_did_not_tell_of_is_found_by_its_name() -> None:
    """I21: a command may kill its warden before that has said a word."""
    name = f"trouper-{os.getpid()}-untold"
    built = build(name, 4)
    assert built is not None
    try:
        found = find(name)
        assert found is not None and found.directory == built.directory
    finally:
        built.remove()
    assert find(name) is None


def children() -> set[int]:
    """Our own, zombies too."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(place.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                found.add(int(place.parent.name))
    return found


async def test_no_descriptor_or_child_is_left(tmp_path: Path) -> None:
    await run(tmp_path, "true")
    before = (sorted(os.listdir("/proc/self/fd")), children())
    for _ in range(3):
        await run(tmp_path, "true")
    with trio.move_on_after(0):
        await run(tmp_path, "sleep", "600")
    assert (sorted(os.listdir("/proc/self/fd")), children()) == before


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watches processes that are not its own")
async def test_command_dies_with_the_runtime(tmp_path: Path) -> None:
    """The runtime is killed without a chance to say anything; the warden sees its socket close."""
    script = f"""
        import os, sys, trio
        from pathlib import Path
        from trouper.tools.guards.processes import CommandLimits, run, scrubbed_environment
        directory = os.open({str(tmp_path)!r}, os.O_RDONLY)
        inner = [sys.executable, "-I", "-S", "-c", "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(600)"]
        async def main():
            await run(inner, directory=directory, environment=scrubbed_environment(Path("/")), limits=CommandLimits(grace_s=0.05), listener=lambda stream, text: print(text, end="", flush=True))
        trio.run(main)
    """
    runtime = await trio.lowlevel.open_process([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    assert runtime.stdout is not None
    said = b""
    while not said.endswith(b"\n"):
        said += await runtime.stdout.receive_some(100)
    watched = [os.pidfd_open(int(word)) for word in said.split()]
    runtime.kill()
    await runtime.wait()
    await runtime.stdout.aclose()
    for descriptor in watched:
        await trio.lowlevel.wait_readable(descriptor)  # the process has ended
        os.close(descriptor)


@pytest.mark.slow
async def test_gigabyte_of_output_does_not_fill_the_memory(tmp_path: Path) -> None:
    """Ignores SIGTERM, forks a daemon, prints 1 GB, then waits for input: it is over, nothing is left, the memory has not grown by 50 MiB."""
    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open("daemon.pid", "w").write(str(os.getpid()))
                time.sleep(600)
            os._exit(0)
        block = b"x" * 1_000_000
        for _ in range(1000):
            os.write(1, block)
        sys.stdin.read()
    """
    await run(tmp_path, "true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    finished = await run(tmp_path, *python(script), limits=CommandLimits(grace_s=0.2))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert finished.outcome == "exited"
    assert finished.stdout.bytes_total >= 900_000_000
    assert finished.stdout.cut
    assert "left out" in finished.stdout.text
    assert grown < 50 * 1024
    assert not alive(int((tmp_path / "daemon.pid").read_text()))
