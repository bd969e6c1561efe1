"""`trouper memory`: what is remembered across sessions. Looking needs no lock; changes go through the process that owns the root."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

from trouper import codec
from trouper._errors import UsageError
from trouper.cli.arguments import Parser, add_ls, carry_out, finish, json_in, root_of, seconds, text, to_type
from trouper.cli.changing import change
from trouper.cli.terminal import Terminal, clean, clean_line, when
from trouper.cli.views import open_view
from trouper.core.memory import Memory, listing, recall


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper memory", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    _filters(parser, inherited=False)
    _filters(add_ls(commands, "what is remembered, the newest change first (the default)"))
    show = commands.add_parser("show", help="one memory, whole")
    _place(show)
    finish(show, _show)
    write = commands.add_parser("set", help="remember something, or write over it")
    _place(write)
    write.add_argument("value", type=text, help="JSON, or else text")
    write.add_argument("--summary", type=text, default="", help="one line for lists and searches")
    write.add_argument("--ttl", type=seconds, metavar="SECONDS", help="forget it after so long")
    finish(write, _set)
    forget = commands.add_parser("forget", help="forget one; forgetting twice is forgetting once")
    _place(forget)
    finish(forget, _forget)
    return carry_out(parser, arguments)


def _filters(parser: argparse.ArgumentParser, *, inherited: bool = True) -> None:
    parser.add_argument("--scope", metavar="NAME", help="only this scope's")
    finish(parser, _ls, inherited=inherited)


def _place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scope", metavar="SCOPE")
    parser.add_argument("key", metavar="KEY")


def _ls(options: argparse.Namespace) -> int:
    out = Terminal()
    with open_view(root_of(options)) as view:
        memories, _ = view.roster.memories()
    scopes = [options.scope] if options.scope else sorted(memories.scopes)
    found = [memory for scope in scopes for memory in listing(memories, scope, time.time())]
    if options.json:
        for memory in found:
            out.json(codec.to_json(memory))
        return 0
    rows = [(memory.scope, memory.key, when(memory.updated_at), _about(memory)) for memory in found]
    out.table(("SCOPE", "KEY", "UPDATED", "ABOUT"), rows)
    return 0


def _about(memory: Memory) -> str:
    return memory.summary or codec.dumps(memory.value).decode()[:200]


def _show(options: argparse.Namespace) -> int:
    out = Terminal()
    with open_view(root_of(options)) as view:
        memories, _ = view.roster.memories()
    memory = recall(memories, options.scope, options.key, time.time())
    if memory is None:
        raise UsageError(
            f"nothing is remembered under {options.scope!r} {options.key!r}; {to_type('memory')} lists what is"
        )
    if options.json:
        out.json(codec.to_json(memory))
    else:
        out.line(clean(json.dumps(memory.value, indent=2, ensure_ascii=False)))
    return 0


def _set(options: argparse.Namespace) -> int:
    try:
        value = json_in(options.value)
    except ValueError:
        value = options.value
    request = {"do": "remember", "scope": options.scope, "key": options.key, "value": value, "summary": options.summary}
    if options.ttl is not None:
        request["ttl_s"] = options.ttl
    change(root_of(options), request)
    return _done(options, "remembered", {})


def _forget(options: argparse.Namespace) -> int:
    answer = change(root_of(options), {"do": "forget", "scope": options.scope, "key": options.key})
    return _done(options, "forgotten" if answer.get("found") else "was not remembered", answer)


def _done(options: argparse.Namespace, what: str, more: dict[str, object]) -> int:
    out = Terminal()
    if options.json:
        out.json({"ok": True, "scope": options.scope, "key": options.key, **more})
    else:
        out.line(f"{what}: {clean_line(options.scope)} {clean_line(options.key)}")
    return 0
