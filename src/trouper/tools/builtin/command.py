"""run_command and bash: programs on the host (T13). Opt-in, and asked for by default: a command can do whatever the user of the runtime can."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from attrs import evolve

from trouper.core.messages import Json
from trouper.tools.builtin.session_files import DirectoryPath, files_of
from trouper.tools.context import ToolContext
from trouper.tools.contract import Policy, Tool
from trouper.tools.define import tool
from trouper.tools.guards.processes import (
    ARGUMENTS_BYTES_MAX,
    DEFAULT_LIMITS,
    CommandLimits,
    Finished,
    run,
    scrubbed_environment,
)
from trouper.tools.results import ToolResult
from trouper.tools.schema import Param
from trouper.tools.session_files import on_thread

TIMEOUT_DEFAULT_S = 120
TIMEOUT_MAX_S = 600
GRACE_S = DEFAULT_LIMITS.grace_s
KEPT_BYTES = DEFAULT_LIMITS.kept_bytes
PROCESSES_MAX = DEFAULT_LIMITS.processes_max
#: The runtime's own time-out must not cut the command's short.
_TOOL_TIMEOUT_S = TIMEOUT_MAX_S + 60.0

Timeout: TypeAlias = Annotated[int, Param("Seconds until the command is ended", ge=1, le=TIMEOUT_MAX_S)]
_ENDINGS = {
    "timed_out": "The command did not end in {timeout_s} s and was ended with everything it had started.",
    "too_many_processes": "The command started more than {processes_max} processes and was ended.",
    "lost": "The command killed the process that watched it; it was ended, and its exit code is not known.",
}


def make_run_command(
    *,
    limits: CommandLimits = DEFAULT_LIMITS,
    environment: Mapping[str, str] | None = None,
    policy: Policy = "requires_approval",
) -> Tool:
    """A `run_command` with other limits, more environment, or another policy."""

    @tool(
        display_name="Run Command",
        destructive=True,
        open_world=True,
        background=True,
        long_running=True,
        policy=policy,
        timeout_s=_TOOL_TIMEOUT_S,
        needs=("files",),
    )
    async def run_command(
        context: ToolContext,
        argv: Annotated[
            list[str],
            Param("The program and its arguments, one each; no shell is involved", min_length=1, max_length=1000),
        ],
        directory: DirectoryPath = ".",
        timeout_s: Timeout = TIMEOUT_DEFAULT_S,
    ) -> ToolResult:
        """Run a program in the session's files, and return its exit code and output. It has no terminal and nothing to read from. Everything it starts ends with it.

        Limits: 1-{TIMEOUT_MAX_S} s, then {GRACE_S:g} s between SIGTERM and SIGKILL; {KEPT_BYTES} bytes of each stream are kept, half from its start and half from its end; {PROCESSES_MAX} processes; {ARGUMENTS_BYTES_MAX} bytes of arguments.
        Errors: a program that cannot be started; a directory that is not there. A command that fails is a result marked as an error.
        """
        return await _carry_out(context, argv, directory, timeout_s, limits, environment)

    return run_command


def make_bash(
    *,
    limits: CommandLimits = DEFAULT_LIMITS,
    environment: Mapping[str, str] | None = None,
    policy: Policy = "requires_approval",
) -> Tool:
    """A `bash` with other limits, more environment, or another policy."""

    @tool(
        display_name="Bash",
        destructive=True,
        open_world=True,
        background=True,
        long_running=True,
        policy=policy,
        timeout_s=_TOOL_TIMEOUT_S,
        needs=("files",),
    )
    async def bash(
        context: ToolContext,
        command: Annotated[str, Param("The command line", min_length=1, max_length=ARGUMENTS_BYTES_MAX)],
        directory: DirectoryPath = ".",
        timeout_s: Timeout = TIMEOUT_DEFAULT_S,
    ) -> ToolResult:
        """Run a shell command line in the session's files, and return its exit code and output. It has no terminal and nothing to read from. Background jobs end with it.

        Limits: as run_command. The shell is bash, or sh where there is none.
        Errors: a directory that is not there. A command that fails is a result marked as an error.
        """
        shell = ["bash", "--noprofile", "--norc", "-c"] if shutil.which("bash") else ["sh", "-c"]
        return await _carry_out(context, [*shell, command], directory, timeout_s, limits, environment)

    return bash


run_command = make_run_command()
bash = make_bash()


async def _carry_out(
    context: ToolContext,
    argv: Sequence[str],
    directory: str,
    timeout_s: int,
    limits: CommandLimits,
    environment: Mapping[str, str] | None,
) -> ToolResult:
    files = files_of(context)
    descriptor = await on_thread(lambda: files.open_directory(directory))
    try:
        finished = await run(
            argv,
            directory=descriptor,
            environment=scrubbed_environment(files.root, environment),
            limits=evolve(limits, timeout_s=float(timeout_s)),
            listener=context.output,
        )
    finally:
        os.close(descriptor)
    return _result(finished, timeout_s, limits)


def _result(finished: Finished, timeout_s: int, limits: CommandLimits) -> ToolResult:
    content: dict[str, Json] = {
        "exit_code": finished.exit_code,
        "stdout": finished.stdout.text,
        "stderr": finished.stderr.text,
    }
    if finished.signal is not None:
        content["signal"] = finished.signal
    notes = []
    if finished.outcome in _ENDINGS:
        content["ended"] = finished.outcome
        notes.append(_ENDINGS[finished.outcome].format(timeout_s=timeout_s, processes_max=limits.processes_max))
    for name, stream in (("stdout", finished.stdout), ("stderr", finished.stderr)):
        if stream.cut:
            notes.append(
                f"{name} had {stream.bytes_total} bytes and was cut in the middle; write to a file to keep it all."
            )
    if finished.left_behind:
        notes.append(f"{finished.left_behind} processes could not be ended; the system holds them.")
    if notes:
        content["note"] = " ".join(notes)
    return ToolResult(content, is_error=finished.outcome != "exited" or finished.exit_code != 0)
