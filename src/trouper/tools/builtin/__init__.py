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
from trouper.tools.builtin.progress import echo, report_progress
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
    "default_tools",
    "delete_file",
    "divide",
    "echo",
    "edit_file",
    "find_files",
    "finish",
    "finish_with",
    "get_current_time",
    "get_forecast",
    "get_weather",
    "grep_files",
    "kv_store",
    "list_directory",
    "make_bash",
    "make_run_command",
    "make_web_fetch",
    "multiply",
    "read_file",
    "rename_file",
    "report_progress",
    "run_command",
    "secret_store",
    "set_timer",
    "stat_file",
    "subtract",
    "web_fetch",
    "write_file",
    "write_todos",
]
