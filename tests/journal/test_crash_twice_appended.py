"""I14, J2: an id appended again leaves one record, also when a crash came between, and wherever its record lies."""

from __future__ import annotations

import pytest
from journal_workload import ROOT, Workload, boundaries, check_recovered, entry, ids_of, open_small

from trouper.testing import CrashDisk, Fate


def test_an_id_appended_again_keeps_its_sequence() -> None:
    disk = CrashDisk()
    log = open_small(disk)
    first = [log.append(entry(number)) for number in range(5)]
    again = [log.append(entry(number)) for number in range(5)]
    log.sync()
    assert [log.append(entry(number)) for number in range(5)] == first == again
    log.sync()
    assert ids_of(log) == [f"e{n}" for n in range(5)]


@pytest.mark.parametrize("end", ["kill", "crash", "close"])
def test_a_client_that_repeats_its_last_request_after_a_crash_leaves_one_record(end: str) -> None:
    """A client that got no answer asks again. Its record may be the last of a sealed segment, with a fresh one behind it."""
    for records in range(1, 60, 3):
        disk = CrashDisk()
        log = open_small(disk)
        for number in range(records):
            log.append(entry(number, body=b'"%b"' % (b"r" * 150)))
            log.sync()
        if end == "close":
            log.close()
            after = disk
        else:
            log.abandon()
            after = disk.kill() if end == "kill" else disk.crash(Fate.DROPPED)
        again = open_small(after)
        for number in range(max(0, records - 20), records):
            assert again.append(entry(number)) == number + 1, f"{records} records, id e{number}"
        again.append(entry(records))
        again.sync()
        assert ids_of(again) == [f"e{n}" for n in range(records + 1)]


def test_a_client_that_repeats_everything_unanswered_after_a_crash_at_any_boundary() -> None:
    found, submitted = boundaries(Workload(seed=4), CrashDisk(), events=60)
    for number, boundary in enumerate(found):
        after = boundary.disk.crash(seed=number)
        recovered = check_recovered(after, submitted, boundary.acked)
        log = open_small(after)
        for place in range(max(0, boundary.acked - 3), boundary.submitted):
            log.append(entry(place))
        log.sync()
        assert ids_of(log) == submitted[: max(boundary.submitted, len(recovered))]
        log.abandon()


def test_the_reserve_and_the_lock_are_all_that_is_left_besides_segments() -> None:
    disk = CrashDisk()
    log = open_small(disk)
    for number in range(3):
        log.append(entry(number))
    log.close()
    assert disk.list_dir(ROOT) == ["lock", "reserve", "segment-00000001.log"]
