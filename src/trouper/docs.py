"""Writes the pages of design/ that are made from the code: `python -m trouper.docs`. With `--check` it writes nothing, and fails if a page is stale.

A page is a name and a function that returns its text; to add one, add a line to `PAGES`.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trouper.core.messages import Json
from trouper.tools.contract import Tool

_ROOT = Path(__file__).resolve().parents[2]


def tools_page() -> str:
    """design/TOOLS.md: every built-in tool with its parameters, limits and errors."""
    from trouper.tools.builtin import OPT_IN, default_tools

    parts = [
        "# Built-in tools",
        "Written by `python -m trouper.docs` from `trouper.tools.builtin`; do not edit.",
        "A refusal is a `ToolError`: the model reads it and the turn goes on. Arguments that do not fit are repaired where that is safe, or refused.",
        "## The default set",
        *(_tool(each) for each in default_tools()),
        "## By choice",
        *(_tool(each) for each in OPT_IN),
    ]
    return "\n\n".join(parts) + "\n"


def lifecycles_page() -> str:
    """design/LIFECYCLES.md: the tables of the core, drawn."""
    from trouper.core import memory, notification, schedule, session, task_events
    from trouper.core.lifecycle import draw_mermaid, draw_table

    tables: list[tuple[str, str, str, Any]] = [
        ("Session", "core/session.py", "A turn is the way from `idle` and back.", session.TRANSITIONS),
        ("Task", "core/task_events.py", "A background run (B11). Terminal is final (I28).", task_events.TRANSITIONS),
        ("Notification", "core/notification.py", "The durable queue (B14, I30).", notification.TRANSITIONS),
        ("Schedule", "core/schedule_events.py", "When something is to happen (B18).", schedule.TRANSITIONS),
        (
            "Fire of a schedule",
            "core/schedule_events.py",
            "Claimed before it acts, completed after (I32).",
            schedule.FIRE_TRANSITIONS,
        ),
        ("Memory", "core/memory.py", "One entry (B21).", memory.TRANSITIONS),
    ]
    parts = [
        "# Lifecycles",
        "Written by `python -m trouper.docs` from the tables in `trouper.core`; do not edit.",
        "Each lifecycle is one enum and one table. What is not in the table cannot happen: `evolve` refuses it.",
        "The pictures leave out events that move nothing; the tables list every move.",
    ]
    for name, module, about, table in tables:
        parts += [
            f"## {name}",
            f"`{module}`. {about}",
            f"```mermaid\n{draw_mermaid(table)}```",
            f"```text\n{draw_table(table)}```",
        ]
    parts += ["## Commands by the state of a notification", "What a command by id does (B14).", _responses()]
    return "\n\n".join(parts) + "\n"


def _responses() -> str:
    from trouper.core.notification import RESPONSES, NotificationState

    states = list(NotificationState)
    commands = list(dict.fromkeys(command for command, _ in RESPONSES))
    rows = [
        f"| {command.__name__} | {' | '.join(RESPONSES[command, state] for state in states)} |" for command in commands
    ]
    head = f"| command | {' | '.join(state.value for state in states)} |"
    return "\n".join([head, "|---" * (len(states) + 1) + "|", *rows])


#: page -> its text, relative to the root of the project
PAGES: Mapping[str, Callable[[], str]] = {
    "design/TOOLS.md": tools_page,
    "design/LIFECYCLES.md": lifecycles_page,
}


def stale(root: Path = _ROOT) -> list[str]:
    """The pages that are not as the code would have them."""
    return [page for page, make in PAGES.items() if not (root / page).exists() or (root / page).read_text() != make()]


def main(arguments: Sequence[str] | None = None, root: Path = _ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m trouper.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    options = parser.parse_args(arguments)
    outdated = stale(root)
    if options.check:
        for page in outdated:
            print(f"{page} is stale; run: python -m trouper.docs", file=sys.stderr)
        return 1 if outdated else 0
    for page in outdated:
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        (root / page).write_text(PAGES[page]())
        print(f"wrote {page}")
    return 0


def _tool(tool: Tool) -> str:
    lines = [f"### {tool.name}", "", f"*{tool.display_name}.* {tool.description}", ""]
    required = tool.parameters.get("required", ())
    rows = [_row(name, schema, name in required) for name, schema in tool.parameters["properties"].items()]
    if rows:
        lines += ["| parameter | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    facts = [f"side effects: {tool.side_effect.replace('_', ' ')}"]
    if tool.policy != "auto":
        facts.append(f"policy: {tool.policy}")
    if tool.needs:
        facts.append(f"needs: {', '.join(sorted(tool.needs))}")
    if tool.supports_background:
        facts.append("can run in the background")
    lines.append(f"- {'; '.join(facts)}")
    lines += [f"- {name}: {text}" for name, text in sections(tool).items()]
    return "\n".join(lines)


def _row(name: str, schema: Mapping[str, Json], required: bool) -> str:
    default = "required" if required else f"`{_json(schema.get('default'))}`"
    return f"| `{name}` | {_type(schema)} | {default} | {str(schema.get('description', '')).replace('|', '/')} |"


def _type(schema: Mapping[str, Json]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    kind = str(schema.get("type", "any JSON value"))
    if kind == "array":
        kind = f"list of {_type(schema['items'])}"
    elif kind == "object" and "properties" in schema:
        kind = "{" + ", ".join(f"{name}: {_type(part)}" for name, part in schema["properties"].items()) + "}"
    bounds = [
        (low, high)
        for low, high in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))
        if low in schema or high in schema
    ]
    for low, high in bounds:
        kind += f" ({schema.get(low, '')}..{schema.get(high, '')})"
    return kind


def _json(value: Json) -> str:
    import orjson

    return orjson.dumps(value).decode()


def sections(tool: Tool) -> dict[str, str]:
    """What the docstring says under `Limits:` and `Errors:`, with the constants of its module filled in: a number is written down once."""
    function = tool.function
    found: dict[str, str] = {}
    if function is None or not function.__doc__:
        return found
    constants = {**inspect.unwrap(function).__globals__}
    for line in inspect.cleandoc(function.__doc__).splitlines():
        if match := re.match(r"(Limits|Errors): (.*)", line):
            found[match[1]] = match[2].format_map(constants)
    return found


if __name__ == "__main__":
    sys.exit(main())
