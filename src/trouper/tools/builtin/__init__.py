"""The built-in tools (T12, T13), one file a family.

    default_tools()   the eighteen that a session has unless told otherwise: nothing in them reaches beyond the session's files, but for web_fetch,
                      which reaches public hosts only
    OPT_IN            those that a host adds by choice
    BUILTIN           all of them, by name

Each is described in design/TOOLS.md, which `python -m trouper.docs` writes from this code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from trouper.tools.builtin.arithmetic import add, divide, multiply, subtract
from trouper.tools.builtin.ask import ask_user
from trouper.tools.builtin.background import (
    TASK_TOOLS,
    cancel_task,
    get_task,
    list_tasks,
    message_task,
    spawn_background,
    wait_task,
)
from trouper.tools.builtin.clock import get_current_time
from trouper.tools.builtin.command import bash, make_bash, make_run_command, run_command
from trouper.tools.builtin.files import (
    delete_file,
    edit_file,
    list_directory,
    read_file,
    rename_file,
    stat_file,
    write_file,
)
from trouper.tools.builtin.finish import finish, finish_with
from trouper.tools.builtin.memory import forget, list_memories, recall, remember
from trouper.tools.builtin.progress import echo, report_progress
from trouper.tools.builtin.schedules import cancel_schedule, create_schedule, list_schedules
from trouper.tools.builtin.search import find_files, grep_files
from trouper.tools.builtin.stores import kv_store, secret_store
from trouper.tools.builtin.timer import set_timer
from trouper.tools.builtin.todos import write_todos
from trouper.tools.builtin.weather import get_forecast, get_weather
from trouper.tools.builtin.web import make_web_fetch, web_fetch
from trouper.tools.contract import Tool

_DEFAULT = (
    *(get_current_time, echo, report_progress, add, subtract, multiply, divide, get_weather, get_forecast, write_todos),
    *(read_file, write_file, edit_file, list_directory, grep_files, delete_file, stat_file, web_fetch),
)
OPT_IN: tuple[Tool, ...] = (
    *(run_command, bash, find_files, rename_file, kv_store, secret_store, set_timer, ask_user, finish),
    *(remember, recall, forget, list_memories, spawn_background, *TASK_TOOLS),
    *(create_schedule, list_schedules, cancel_schedule),
)
BUILTIN: Mapping[str, Tool] = MappingProxyType({each.name: each for each in (*_DEFAULT, *OPT_IN)})


def default_tools() -> tuple[Tool, ...]:
    """The default set, in a stable order (T12)."""
    return _DEFAULT


__all__ = [
    "BUILTIN",
    "OPT_IN",
    "add",
    "ask_user",
    "bash",
    "cancel_schedule",
    "cancel_task",
    "create_schedule",
    "default_tools",
    "delete_file",
    "divide",
    "echo",
    "edit_file",
    "find_files",
    "finish",
    "finish_with",
    "forget",
    "get_current_time",
    "get_forecast",
    "get_task",
    "get_weather",
    "grep_files",
    "kv_store",
    "list_directory",
    "list_memories",
    "list_schedules",
    "list_tasks",
    "make_bash",
    "make_run_command",
    "make_web_fetch",
    "message_task",
    "multiply",
    "read_file",
    "recall",
    "remember",
    "rename_file",
    "report_progress",
    "run_command",
    "secret_store",
    "set_timer",
    "spawn_background",
    "stat_file",
    "subtract",
    "wait_task",
    "web_fetch",
    "write_file",
    "write_todos",
]
