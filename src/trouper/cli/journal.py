"""`trouper journal`: look at a journal, check it, repair it. Needs no lock: it works while another process writes (J9)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trouper.cli import journal_checking, journal_looking, journal_making
from trouper.cli.arguments import Parser, add_json, add_root, carry_out, count, text

#: More than this makes browsers slow.
PAGE_RECORDS = 5_000


def main(arguments: Sequence[str]) -> int:
    return carry_out(_parser(), arguments)


def _parser() -> Parser:
    parser = Parser(prog="trouper journal", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    ls = commands.add_parser("ls", help="the sessions in a journal, or its files")
    ls.add_argument("--segments", action="store_true", help="list the files instead of the sessions")
    _finish(ls, journal_looking.ls)

    show = commands.add_parser("show", help="records, one a line; or one of them whole")
    show.add_argument("--session", type=text, metavar="ID", help="of this session only")
    show.add_argument("--after", type=count, default=0, metavar="SEQ", help="begin behind this record")
    show.add_argument("--limit", type=count, metavar="N", help="at most so many records")
    show.add_argument("--record", type=count, metavar="SEQ", help="this one, whole")
    _finish(show, journal_looking.show)

    tail = commands.add_parser("tail", help="the last records, and with --follow those to come")
    tail.add_argument("-n", "--lines", type=count, default=10, metavar="N", help="how many (default 10)")
    tail.add_argument("-f", "--follow", action="store_true", help="wait for more; end with Ctrl-C")
    tail.add_argument("--session", type=text, metavar="ID", help="of this session only")
    _finish(tail, journal_looking.tail)

    verify = commands.add_parser("verify", help="check every byte; exit code 65 if something is wrong")
    _finish(verify, journal_checking.verify)

    replay = commands.add_parser("replay", help="rebuild states from the records, and decide every command again")
    replay.add_argument("--session", type=text, metavar="ID", help="this session's steps or state")
    replay.add_argument("--at", type=count, metavar="SEQ", help="the state after this record, whole")
    replay.add_argument("--diff", nargs=2, type=count, metavar=("SEQ", "SEQ"), help="what changed between two records")
    replay.add_argument(
        "--fork",
        type=_target,
        metavar="DIR",
        help="write the records up to --at to a new journal in DIR; it has nothing else of the root",
    )
    _finish(replay, journal_checking.replay)

    page = commands.add_parser(
        "html",
        help="a page to look at in a browser: who said what, and every event",
        description="A page to look at in a browser: who said what, and every event behind a click. "
        "Very long texts are cut, and say how much is left out; `trouper journal show --record` has them whole.",
    )
    page.add_argument("--session", type=text, metavar="ID", help="of this session only")
    page.add_argument("--after", type=count, default=0, metavar="SEQ", help="begin behind this record")
    page.add_argument(
        "--limit",
        type=count,
        default=PAGE_RECORDS,
        metavar="N",
        help=f"at most so many records (default {PAGE_RECORDS:,})",
    )
    page.add_argument(
        "-o", "--output", metavar="FILE", help="where to write it, anew (default, and -: standard output)"
    )
    add_root(page, positional=True)
    page.set_defaults(command=journal_making.html)

    repair = commands.add_parser("repair", help="write what is good of a damaged root to a new one")
    repair.add_argument("directory", metavar="DIR", help="the damaged root; it is only read")
    repair.add_argument("target", type=_target, metavar="NEW", help="where to write; must not exist")
    add_json(repair)
    repair.set_defaults(command=journal_making.repair, root=None, profile=None)

    archive = commands.add_parser("archive", help="pack away the segments that hold ended sessions only, or drop them")
    archive.add_argument("--drop", action="store_true", help="delete the records for good instead of packing them")
    _finish(archive, journal_making.archive)
    return parser


def _target(argument: str) -> str:
    """The type of an argument that names a directory to be made. Nothing at all would be the one that we are in."""
    if not argument:
        raise argparse.ArgumentTypeError("'' cannot be a directory")
    return argument


def _finish(parser: argparse.ArgumentParser, command: object) -> None:
    add_root(parser, positional=True)
    add_json(parser)
    parser.set_defaults(command=command)
