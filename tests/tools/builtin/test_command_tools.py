"""run_command and bash as a model uses them (T13). That nothing survives them is in tests/tools/guards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tool_bench import Heard, call, context_at, result, root

from trouper.tools import InvalidArguments, ToolError
from trouper.tools.builtin import bash, run_command, write_file


async def test_command_runs_in_the_sessions_files(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(write_file, context, path="sub/a.txt", content="x")
    told = await call(run_command, context, argv=["ls"], directory="sub")
    assert told == {"exit_code": 0, "stdout": "a.txt\n", "stderr": ""}
    with pytest.raises(ToolError, match="does not exist"):
        await call(run_command, context, argv=["ls"], directory="nothing")
    with pytest.raises(ToolError, match=r"'\.\.' is refused"):
        await call(run_command, context, argv=["ls"], directory="../..")


async def test_arguments_are_not_read_by_a_shell(tmp_path: Path) -> None:
    told = await call(run_command, context_at(tmp_path), argv=["echo", "$HOME; rm -rf *", "`id`"])
    assert told["stdout"] == "$HOME; rm -rf * `id`\n"


async def test_failing_command_is_a_result_marked_as_an_error(tmp_path: Path) -> None:
    ended = await result(bash, context_at(tmp_path), command="echo out; echo err >&2; exit 3")
    assert ended.is_error
    assert ended.content == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}


async def test_program_that_does_not_exist_is_an_error_for_the_model(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="'no-such-program' could not be started"):
        await call(run_command, context_at(tmp_path), argv=["no-such-program"])


async def test_command_line_in_place_of_a_program_is_told_apart(tmp_path: Path) -> None:
    """T13, L18: a text for a list of texts is put into one, and a shell's line is no program."""
    prepared = run_command.prepare({"argv": "ls -l"})
    with pytest.raises(ToolError, match="give the program and each of its arguments by itself"):
        await run_command.run(prepared.arguments, context_at(tmp_path))


async def test_command_that_kills_itself_says_by_which_signal(tmp_path: Path) -> None:
    ended = await result(bash, context_at(tmp_path), command="kill -SEGV $$")
    assert ended.is_error
    assert (ended.content["exit_code"], ended.content["signal"]) == (None, "SIGSEGV")


async def test_output_comes_live(tmp_path: Path) -> None:
    context = context_at(tmp_path)
    await call(bash, context, command="echo one; echo two >&2")
    assert isinstance(context.sink, Heard)
    assert sorted(context.sink.outputs) == [("stderr", "two\n"), ("stdout", "one\n")]


async def test_command_waiting_for_input_gets_the_end_of_it(tmp_path: Path) -> None:
    told = await call(
        run_command,
        context_at(tmp_path),
        argv=[sys.executable, "-I", "-S", "-c", "import sys; print(repr(sys.stdin.read()))"],
    )
    assert told["stdout"] == "''\n"


async def test_long_output_is_cut_with_a_note(tmp_path: Path) -> None:
    told = await call(bash, context_at(tmp_path), command="head -c 1000000 /dev/zero | tr '\\0' x; echo end")
    assert "bytes of stdout left out" in told["stdout"]
    assert told["stdout"].endswith("xend\n")
    assert "had 1000004 bytes and was cut" in told["note"]


async def test_files_made_by_commands_are_private(tmp_path: Path) -> None:
    await call(bash, context_at(tmp_path), command="touch a; mkdir d")
    assert (root(tmp_path) / "a").stat().st_mode & 0o077 == 0
    assert (root(tmp_path) / "d").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("seconds", [0, 601, -1])
async def test_time_out_is_between_one_second_and_ten_minutes(seconds: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidArguments):
        await call(bash, context_at(tmp_path), command="true", timeout_s=seconds)


@pytest.mark.parametrize(
    ("argv", "said"), [([""], "empty"), (["echo", "a\0b"], "NUL"), (["echo", "x" * 200_000], "at most 100000")]
)
async def test_arguments_that_cannot_be_passed_are_errors(argv: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=said):
        await call(run_command, context_at(tmp_path), argv=argv)
