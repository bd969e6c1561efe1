"""Every code block of the README and of the guides is run.

python: as a program, in an empty directory. A `text` block right behind it is what it prints; a line `...` there stands for any lines.
sh:     command by command, in an empty directory. `make` targets are looked up in the Makefile instead of run.
toml:   as a `trouper.toml`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trouper import Budget, Compaction, Deadlines, Hooks, Limits, Retry, ToolContext, events, tools
from trouper.cli import main
from trouper.cli.configuration import read_configuration
from trouper.tools.context import SERVICE_NAMES, KeyValue, Memory, Schedules, Secrets, Tasks
from trouper.tools.session_files import SessionFiles

ROOT = Path(__file__).parents[1]
#: The actors guide has a test of its own, which also runs its program under many schedules.
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "design" / "guides").glob("*.md") if page.name != "actors.md"),
]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_RUN = {"python", "sh", "toml"}
_SHOWN_ONLY = {"text", "mermaid", "json"}


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in _BLOCK.finditer(page.read_text())]


def cases() -> list[object]:
    found = []
    for page in PAGES:
        listed = blocks(page)
        for number, (kind, code) in enumerate(listed):
            following = listed[number + 1][1] if number + 1 < len(listed) and listed[number + 1][0] == "text" else None
            if kind in _RUN:
                found.append(pytest.param(kind, code, following, id=f"{page.name}-{number + 1}-{kind}"))
    return found


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        assert page.read_text().count("\n```") % 2 == 0, f"{page.name}: a block is not closed"
        for kind, _ in blocks(page):
            assert kind in _RUN | _SHOWN_ONLY, f"{page.name}: a block of {kind!r} is neither run nor text"


@pytest.mark.parametrize(("kind", "code", "printed"), cases())
def test_the_block_works(kind: str, code: str, printed: str | None, tmp_path: Path) -> None:
    match kind:
        case "python":
            out = _run([sys.executable, "-c", code], tmp_path)
            if printed is not None:
                _compare(out, printed)
        case "sh":
            out = "".join(_command(line, tmp_path) for line in _lines(code))
            if printed is not None:
                _compare(out, printed)
        case "toml":
            (tmp_path / "trouper.toml").write_text(code)
            assert read_configuration(tmp_path).found


def programs() -> list[tuple[str, str, str | None]]:
    """The Python ones: where it stands, the code, and what it prints."""
    listed: list[object] = cases()
    return [(case.id, case.values[1], case.values[2]) for case in listed if case.values[0] == "python"]


@pytest.mark.slow
def test_the_programs_work_in_one_directory_and_again(tmp_path: Path) -> None:
    """Whoever follows the pages stays in one directory, and runs a program twice. One hung then, others failed: they counted on an empty journal."""
    with_a_root = [(code, printed) for _, code, printed in programs() if '"./' in code]
    assert len(with_a_root) > 5
    for code, printed in with_a_root * 2:
        out = _run([sys.executable, "-c", code], tmp_path)
        if printed is not None:
            _compare(out, printed)


@pytest.mark.slow
def test_the_programs_pass_a_strict_type_check(tmp_path: Path) -> None:
    """api.md: what the pages and examples show is typed, and so is what Trouper gives them."""
    for where, code, _ in programs():
        (tmp_path / re.sub(r"\W", "_", where)).with_suffix(".py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    checked = [*tmp_path.glob("*.py"), *(ROOT / "examples").glob("*.py")]
    done = subprocess.run([*command, *map(str, checked)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


#: Of a context: the runtime's side of it, and no tool's.
_OF_THE_RUNTIME = {"services", "sink", "run", "home", "in_thread"}
_SERVICES = {"files": SessionFiles, "kv": KeyValue, "secrets": Secrets, "memory": Memory, "tasks": Tasks}
_SERVICES["schedules"] = Schedules


def test_the_page_on_tools_has_all_that_a_context_offers() -> None:
    """T7: its table is the whole of `ToolContext`, with the methods of each service and the need that stands for it."""
    page = (ROOT / "design" / "guides" / "tools.md").read_text()
    section = page[page.index("## What a tool can use") : page.index("### Files, values, memory")]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
    told: dict[str, tuple[str, str]] = {}
    for first, second, need in rows:
        told |= {name: (second, need.strip(" `")) for name in re.findall(r"`(\w+)", first)}
        told |= {name: (second, need.strip(" `")) for name in re.findall(r"`(\w+)` is the service", second)}
    assert told.keys() == {name for name in dir(ToolContext) if not name.startswith("_")} - _OF_THE_RUNTIME
    assert {need for _, need in told.values() if need} == set(SERVICE_NAMES)
    for name, service in _SERVICES.items():
        second, need = told[name]
        methods = {each for each, found in vars(service).items() if not each.startswith("_") and callable(found)}
        assert set(re.findall(r"`(\w+)", second)) == methods and need == name


def test_the_page_on_embedding_has_every_hook_budget_and_limit() -> None:
    """T5, api.md: its tables are the whole of what can be set, and of what a hook gets."""
    page = (ROOT / "design" / "guides" / "embedding.md").read_text()
    settings = page[page.index("## Budgets and limits") : page.index("## Structured output")]
    rows = "".join(line for line in settings.splitlines() if line.startswith("| "))
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", rows))))
    groups: tuple[Any, ...] = (Budget, Limits, Retry, Deadlines, Compaction)
    assert told == {name for group in groups for name in group.__annotations__} | {each.__name__ for each in groups}
    hooks = page[page.index("## Hooks") : page.index("## Budgets and limits")]
    table = dict(re.findall(r"^\| `(\w+)` \| `(\w+\([\w, ]+\))`", hooks, re.MULTILINE))
    assert table.keys() == Hooks.__annotations__.keys() - {"timeout_s"}
    for event in table.values():
        name, fields = event.removesuffix(")").split("(")
        assert fields.split(", ") == list(getattr(tools, name).__annotations__)


def test_events_that_a_page_names_are_there() -> None:
    page = (ROOT / "design" / "guides" / "embedding.md").read_text()
    table = page[page.index("| live | recorded |") : page.index("## Attachments")]
    names = set(re.findall(r"`([A-Z]\w+)`", table))
    assert len(names) > 20 and names <= set(events.__all__)


def _lines(code: str) -> list[str]:
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def _command(line: str, place: Path) -> str:
    words = line.split()
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets, f"the Makefile has no target {words[1]!r}"
        return ""
    if words[:2] == ["pip", "install"]:
        assert all(word.startswith(("trouper", "'trouper")) for word in words[2:])
        return ""
    if words[0] == "trouper" and not set("|;&<>$") & set(line):
        return _in_process(shlex.split(line)[1:], place)
    return _run(["bash", "-e", "-o", "pipefail", "-c", line], place)


def _in_process(arguments: list[str], place: Path) -> str:
    """The same as a process of its own, without the time that starting one takes."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as changed,
        contextlib.chdir(place),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name in [name for name in os.environ if name.startswith("TROUPER_") or name.endswith("_API_KEY")]:
            changed.delenv(name)
        code = main(arguments)
    assert code == 0, f"{arguments}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue()


def _run(command: list[str], place: Path) -> str:
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TROUPER_") and not name.endswith("_API_KEY")
        },
        "HOME": str(place),
        "XDG_DATA_HOME": str(place / ".data"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _compare(out: str, printed: str) -> None:
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in printed.splitlines())
    assert re.fullmatch(pattern, out), f"printed:\n{out}\nthe page says:\n{printed}"
