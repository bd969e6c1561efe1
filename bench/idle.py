"""What sessions cost that nobody has touched since the last start: time to open the root, and memory for each.

Sessions are made by the hundred thousand straight in the journal, a first start writes the snapshot, the second start is what is measured.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import trio

from _report import Row, parse_arguments, print_rows
from trouper import codec, open_runtime
from trouper.core.commands import OpenSession
from trouper.core.events import SessionOpened
from trouper.journal import Entry, open_log

GOAL_KIB = 2.0
GOAL_S = 1.0


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def make(root: str, count: int) -> None:
    log = open_log(root, level="write")
    for number in range(count):
        name = f"customer-{number:06d}"
        record = codec.Record(name, 0, log.epoch, 1.5, OpenSession(name, 1.5), (SessionOpened(name, 1.5),))
        head, body = codec.encode(record)
        log.append(Entry(name, record.id, head, body))
    log.close()


async def open_once(root: str) -> tuple[float, float]:
    gc.collect()
    before, begun = resident_kib(), time.perf_counter()
    async with open_runtime(root, durability="write") as runtime:
        took = time.perf_counter() - begun
        gc.collect()
        used = resident_kib() - before
        session = await runtime.session("customer-000042")
        assert (await session.ask("hello")).error is None
    return took, used


def measured(root: str) -> tuple[float, float]:
    """In a process of its own: this one has made the sessions, and its memory says nothing."""
    done = subprocess.run([sys.executable, __file__, "--open", root], capture_output=True, text=True, check=True)
    took, used = json.loads(done.stdout)
    return took, used


def main() -> None:
    if sys.argv[1:2] == ["--open"]:
        print(json.dumps(trio.run(open_once, sys.argv[2])))
        return
    arguments = parse_arguments(__doc__)
    count = 10_000 if arguments.quick else 100_000
    root = tempfile.mkdtemp(prefix="trouper-bench-", dir=os.environ.get("TROUPER_BENCH_DIR"))
    try:
        make(root, count)
        measured(root)
        took, used = measured(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    rows = [
        Row(f"open {count:,} idle sessions", took, "s", "the goal", GOAL_S),
        Row("memory an idle session", used / count, "KiB", "the goal", GOAL_KIB),
    ]
    print_rows(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
