"""Forks a child that writes to a real journal, kills it at a drawn moment, checks what is left; as often as asked, on one growing journal.

Run by test_torture.py in a process of its own: a fork of a small, single-threaded process costs a millisecond, a fresh interpreter a
hundred. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Iterator

import trio

from trouper.actors.journal import JournalWriter
from trouper.journal import Entry, Log, open_log, open_reader, verify
from trouper.journal.format import id_of

SEGMENT_BYTES = 16 * 1024
#: What a child sends: O when the journal is open, A for each entry in turn that was acknowledged.
OPEN, ACK = b"O", b"A"


def entries(life: int, draw: random.Random) -> Iterator[Entry]:
    """The entries that a life submits, in order, told apart by life and place; without end."""
    place = 0
    while True:
        name = f"{life}.{place}"
        head = b'{"v":1,"type":"noted","id":"%b","session":"s%d"' % (name.encode(), place % 5)
        body = b'"%b"' % (b"x" * draw.choice((0, 20, 400, 3000)))
        yield Entry(f"s{place % 5}", name, head, body, durable=draw.random() < 0.8)
        place += 1


def alone(log: Log, life: int, draw: random.Random, pipe: int) -> None:
    """One writer that waits for every entry, or for a few at once."""
    sent = 0
    for entry in entries(life, draw):
        log.append(entry)
        if entry.durable and draw.random() < 0.7:
            log.sync()
        elif not entry.durable:
            log.flush()
        covered = log.durable - log.recovery.last
        if covered > sent:
            os.write(pipe, ACK * (covered - sent))
            sent = covered


async def together(log: Log, life: int, draw: random.Random, pipe: int) -> None:
    """Four tasks and the writer with its thread, as the runtime has them."""
    writer = JournalWriter(log)
    supply = entries(life, draw)
    sent = 0

    async def chatter() -> None:
        nonlocal sent
        while True:
            seq = writer.append(next(supply))
            await writer.wait_durable(seq)
            covered = log.durable - log.recovery.last
            if covered > sent:
                os.write(pipe, ACK * (covered - sent))
                sent = covered
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        for _ in range(4):
            nursery.start_soon(chatter)


def live(root: str, life: int, pipe: int) -> None:
    draw = random.Random(f"child {life}")
    log = open_log(root, segment_bytes=SEGMENT_BYTES)
    if log.refusal is not None:
        raise log.refusal
    os.write(pipe, OPEN)
    if life % 2:
        trio.run(together, log, life, draw, pipe)
    else:
        alone(log, life, draw, pipe)


def kill_one(root: str, life: int, draw: random.Random) -> tuple[bool, int]:
    """Let a child live for a drawn while, kill it, and return whether it had opened the journal and how many acks it sent."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            live(root, life, writing)
        except BaseException as error:
            sys.stderr.write(f"life {life}: {error!r}\n")
        finally:
            os._exit(3)  # It should have been killed.
    os.close(writing)
    received = b""
    # A while is counted in acks and in turns of a loop, not in seconds: the next moment of the child may be any.
    wanted = draw.choice((0, 0, 1, 2, 5, 20))
    while len(received) < wanted and (more := os.read(reading, 4096)):
        received += more
    for _ in range(draw.choice((0, 1_000, 20_000, 100_000))):
        pass
    os.kill(pid, signal.SIGKILL)
    while more := os.read(reading, 4096):
        received += more
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"life {life} ended by itself, with status {status}")
    return received.startswith(OPEN), received.count(ACK)


def check(root: str, life: int, acked: int, history: list[str]) -> None:
    """Nothing acknowledged is lost, what is there is a prefix of what was submitted, and every byte is right."""
    try:
        report = verify(root)
    except Exception as error:
        if not history and not acked:
            return  # Killed before there was a journal.
        raise SystemExit(f"life {life}: {error!r}") from error
    if report.damage:
        raise SystemExit(f"life {life}: {report.damage}")
    found = [id_of(record.payload) for record in open_reader(root).records()]
    if found[: len(history)] != history:
        raise SystemExit(f"life {life}: earlier records have changed")
    new = found[len(history) :]
    if new != [f"{life}.{place}" for place in range(len(new))]:
        raise SystemExit(f"life {life}: {new} is no prefix of what was submitted")
    if len(new) < acked:
        raise SystemExit(f"life {life}: {acked} were acknowledged, {len(new)} are there")
    history.extend(new)


def main() -> None:
    root, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    draw = random.Random(seed)
    history: list[str] = []
    opened = acks = 0
    for life in range(kills):
        was_open, acked = kill_one(root, life, draw)
        opened += was_open
        acks += acked
        check(root, life, acked, history)
    log = open_log(root, segment_bytes=SEGMENT_BYTES)
    records = log.recovery.last
    log.close()
    print(json.dumps({"kills": kills, "opened": opened, "acked": acks, "records": records, "epoch": log.epoch}))


if __name__ == "__main__":
    main()
