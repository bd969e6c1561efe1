"""What the simulated model understands, and what it says: a pure function from a request to a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from trouper.core.compaction import HAND_OVER_PROMPT
from trouper.core.messages import Json, Message, Outcome, ToolAnswer, ToolSpec
from trouper.models.protocol import ModelRequest
from trouper.models.simulated_sums import Sum, next_operation, parse_sum, shown

#: Of a result or of a user's words, what is said back.
_SHOWN = 600
_KEY = "memory"


@frozen
class Say:
    text: str = ""
    thinking: str = ""
    #: Name and arguments, as JSON text.
    calls: tuple[tuple[str, str], ...] = ()


def answer(request: ModelRequest) -> Say:
    """The reply to a request."""
    if request.purpose == "compaction" or (request.messages and request.messages[-1].text == HAND_OVER_PROMPT):
        return Say(_hand_over(request.messages[:-1]))
    tools = {spec.name: spec for spec in request.tools} if request.tool_choice != "none" else {}
    asked, since = _asked(request.messages)
    if asked is None:
        return Say("I am here. What shall I do?")
    if request.response_schema is not None:
        return Say(json.dumps(_example(request.response_schema)))
    if asked.kind == "notification":
        return Say(_told(asked.text), "A notification; the user should hear of it.")
    sum_asked = parse_sum(asked.text)
    results = [given for message in since for given in message.answers]
    if sum_asked is not None:
        return _calculated(sum_asked, tools, results)
    if results:
        return _reported(results)
    for pattern, handle in _REQUESTS:
        if (found := pattern.search(asked.text)) and (said := handle(found, tools)) is not None:
            return said
    return Say(_echo(asked, tools), "Nothing that I know how to do; I say it back.")


def _asked(messages: Sequence[Message]) -> tuple[Message | None, Sequence[Message]]:
    """What the user said last, and what came after it."""
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].role == "user" and messages[position].kind in ("normal", "notification"):
            return messages[position], messages[position + 1 :]
    return None, ()


# --- requests that call a tool ---


def _call(name: str, thinking: str, preface: str = "", **arguments: Json) -> Say:
    return Say(preface, thinking, ((name, json.dumps(arguments)),))


def _read(found: re.Match[str], tools: Mapping[str, ToolSpec]) -> Say | None:
    path = found["path"].rstrip(".,!?")
    return (
        _call("read_file", f"The file {path} has to be read.", "Let me read it. ", path=path)
        if "read_file" in tools
        else None
    )


def _list(found: re.Match[str], tools: Mapping[str, ToolSpec]) -> Say | None:
    if "list_directory" not in tools:
        return None
    path = (found["path"] or ".").rstrip(",!?") or "."
    return _call("list_directory", "A look at the directory will tell.", path=path if path == "." else path.rstrip("."))


def _write(found: re.Match[str], tools: Mapping[str, ToolSpec]) -> Say | None:
    if "write_file" not in tools:
        return None
    return _call(
        "write_file",
        "A file is to be written.",
        path=found["path"].rstrip(".,!?"),
        content=found["content"].strip("'\" "),
    )


def _time(found: re.Match[str], tools: Mapping[str, ToolSpec]) -> Say | None:
    if "get_current_time" not in tools:
        return None
    zone = found["zone"]
    return _call("get_current_time", "The clock knows.", **({"timezone": zone.rstrip(".,!?")} if zone else {}))


def _remember(found: re.Match[str], tools: Mapping[str, ToolSpec]) -> Say | None:
    what = found["what"].strip().rstrip(".")
    if (spec := tools.get("remember")) is not None:
        if {"key", "value"} <= set(spec.parameters.get("properties") or ()):
            key = "-".join(re.findall(r"[a-z0-9]+", what.lower())[:6])[:60] or _KEY
            return _call("remember", "Worth keeping.", key=key, value=what, summary=what[:200])
        return _call("remember", "Worth keeping.", **{_text_parameter(spec): what})
    if "kv_store" in tools:
        return _call("kv_store", "Worth keeping.", action="set", key=_KEY, value=what)
    return None


def _recall(found: re.Match[str], tools: Mapping[str, ToolSpec]) -> Say | None:
    about = (found["what"] or "").strip()
    if (spec := tools.get("recall")) is not None and "text" in (spec.parameters.get("properties") or ()):
        if about or "list_memories" not in tools:
            return _call("recall", "It may have been kept.", text=about or _KEY)
        return _call("list_memories", "It may have been kept.")
    if spec is not None:
        wanted = {_text_parameter(spec): found["what"] or ""} if spec.parameters.get("required") else {}
        return _call("recall", "It may have been kept.", **wanted)
    if "kv_store" in tools:
        return _call("kv_store", "It may have been kept.", action="get", key=_KEY)
    return None


def _run(found: re.Match[str], tools: Mapping[str, ToolSpec]) -> Say | None:
    """Any tool by its name; what follows as `key=value` are its arguments."""
    name = found["name"].strip("'\"`").rstrip(".,!?")
    spec = tools.get(name)
    if spec is None:
        return None
    declared = spec.parameters.get("properties", {})
    given = {
        key: _value(text, as_text=declared.get(key, {}).get("type") == "string")
        for key, text in re.findall(r"([A-Za-z_]\w*)\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s,]+)", found["rest"])
    }
    return Say(f"I start {name}. ", f"The user wants {name}.", ((name, json.dumps(given)),))


def _slow(found: re.Match[str], tools: Mapping[str, ToolSpec]) -> Say | None:
    """Something slow, whatever it is called here."""
    for name, spec in tools.items():
        if re.search(
            r"slow|long|report|background", f"{name} {spec.description}", re.IGNORECASE
        ) and not spec.parameters.get("required"):
            return Say(f"I start {name}. ", f"{name} looks slow enough.", ((name, "{}"),))
    return None


def _value(text: str, *, as_text: bool = False) -> Json:
    text = text.rstrip(".,;!?") if text[-1:] not in "\"'" else text[1:-1]
    if as_text:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text_parameter(spec: ToolSpec) -> str:
    """The tool's first parameter that takes text."""
    properties: Mapping[str, Any] = spec.parameters.get("properties") or {}
    wanted = [
        name for name, about in properties.items() if isinstance(about, Mapping) and about.get("type") == "string"
    ]
    required = spec.parameters.get("required") or ()
    return next((name for name in wanted if name in required), wanted[0] if wanted else "text")


_PATH = r"['\"`]?(?P<path>[\w./\-]+)"
_REQUESTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Mapping[str, ToolSpec]], Say | None]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), handle)
    for pattern, handle in (
        (r"\b(?:run|start|call|use)\s+(?:the\s+)?(?:tool\s+)?(?P<name>[\w'\"`.\-]+)(?P<rest>.*)", _run),
        (r"\bwrite\s+(?P<content>.+?)\s+(?:in)?to\s+(?:the\s+)?(?:file\s+)?" + _PATH, _write),
        (
            r"\b(?:read|show|open|print|cat)\s+(?:me\s+)?(?:the\s+)?(?:file\s+)?['\"`]?(?P<path>[\w./\-]*\.\w+|[\w.\-]+/[\w./\-]+)",
            _read,
        ),
        (
            r"\b(?:list|ls)\b(?:\s+(?:the\s+|all\s+|my\s+)*(?:files|entries|directory|contents)?)?(?:\s*(?:in|of|under)?\s+(?:the\s+)?(?:directory\s+)?['\"`]?(?P<path>[\w./\-]+))?",
            _list,
        ),
        (
            r"\b(?:what(?:'s|\s+is)?\s+(?:the\s+)?time|tell\s+(?:me\s+)?the\s+time)\b(?:.*?\bin\s+(?P<zone>\w+/\w+|UTC))?",
            _time,
        ),
        (
            r"\bwhat\s+(?:do|did)\s+(?:you|i)\s+(?:remember|ask\s+you\s+to\s+remember)(?:\s+about\s+(?P<what>[^?.]+))?|\brecall\b",
            _recall,
        ),
        (r"\bremember\s+(?:that\s+)?(?P<what>.+)", _remember),
        (r"\b(?:something\s+slow|slow\s+(?:tool|thing|job))\b", _slow),
    )
)


# --- what is said of results ---


def _calculated(wanted: Sum, tools: Mapping[str, ToolSpec], results: Sequence[ToolAnswer]) -> Say:
    """One operation a step, each with the results of those before; without the tools, in the head."""
    numbers: list[float | int] = []
    for given in results:
        if given.outcome is not Outcome.OK:
            return Say(f"I could not calculate it: {_shown(given.content)}")
        value = given.content.get("result") if isinstance(given.content, Mapping) else given.content
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Say(f"I could not calculate it: {_shown(given.content)}")
        numbers.append(value)
    operation, value = next_operation(wanted, numbers)
    if operation is not None and operation.tool in tools:
        return _call(operation.tool, f"Next: {operation}.", a=operation.a, b=operation.b)
    if operation is not None:
        try:
            value = wanted.value()
        except ZeroDivisionError:
            return Say("That cannot be calculated: it divides by zero.")
    return Say(f"{wanted.text} = {shown(value)}.")


def _reported(results: Sequence[ToolAnswer]) -> Say:
    lines = [_line(given) for given in results]
    return Say("\n".join(lines), "The results are there; I pass them on.")


def _line(given: ToolAnswer) -> str:
    content = given.content
    if given.outcome is not Outcome.OK:
        return f"{given.name} did not work ({given.outcome.value}): {_shown(content)}"
    if isinstance(content, Mapping):
        if content.get("status") == "running" and "task_id" in content:
            return f"{given.name} goes on in the background as {content['task_id']}; I will tell you when it is done."
        if given.name == "list_directory" and isinstance(content.get("entries"), list):
            names = ", ".join(str(entry.get("name")) for entry in content["entries"] if isinstance(entry, Mapping))
            return f"There is: {names}." if names else "There is nothing in it."
        if given.name == "get_current_time" and "time" in content:
            return f"It is {content['time']}."
        if given.name == "kv_store" and "value" in content:
            return f"I remember: {_shown(content['value'])}" if content.get("found") else "I remember nothing."
        if given.name == "kv_store" and content.get("stored"):
            return "I will remember it."
        if isinstance(content.get("content"), str):
            return f"{given.name} says:\n{_shown(content['content'])}"
    return f"{given.name} says: {_shown(content)}"


def _told(text: str) -> str:
    """A notification in one's own words: its titles, and what they say."""
    titles = re.findall(r"^title: (.+)$", text, re.MULTILINE)
    bodies = re.findall(r"^> (.*)$", text, re.MULTILINE)
    said = "; ".join(titles) or "something happened"
    detail = _shown(" ".join(bodies))
    return f"News: {said}." + (f" {detail}" if detail else "")


def _echo(asked: Message, tools: Mapping[str, ToolSpec]) -> str:
    said = f"You said: {_shown(asked.text)}" if asked.text.strip() else "You sent something without words."
    if re.search(r"\bhelp\b", asked.text, re.IGNORECASE):
        named = ", ".join(tools) or "none"
        said += f"\nI am simulated, and know a few requests: read a file, list a directory, calculate, tell the time, remember, run a tool. My tools: {named}."
    return said


def _hand_over(messages: Sequence[Message]) -> str:
    """A summary: the earlier one if there is any, and what the user has asked for since."""
    earlier = [message.text for message in messages if message.kind == "summary"][-1:]
    asked = [_shown(message.text, 80) for message in messages if message.role == "user" and message.kind == "normal"]
    lines = [_shown(text, 400) for text in earlier]
    lines.append(f"The user has asked {len(asked)} things; the last: {'; '.join(asked[-3:]) or 'none'}.")
    return "\n".join(lines)


def _shown(content: Json, limit: int = _SHOWN) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters in all)"


def _example(schema: Mapping[str, Any], depth: int = 0) -> Json:
    """Something that follows a JSON Schema, for the common keywords."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for either in ("anyOf", "oneOf"):
        if schema.get(either):
            return _example(schema[either][0], depth)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = schema.get("required") or ()
        return {
            name: _example(about, depth + 1) for name, about in properties.items() if name in required and depth < 16
        }
    if kind == "array":
        return [_example(schema.get("items") or {}, depth + 1) for _ in range(schema.get("minItems", 0))]
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    if kind == "boolean":
        return False
    if kind == "null":
        return None
    return "x" * max(schema.get("minLength", 0), 0) or "simulated"
