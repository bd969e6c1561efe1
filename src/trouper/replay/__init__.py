"""Journals, read only: any state at any moment, step by step, compared, checked, forked, on a page.

    journal = open_journal("./state")
    state = journal.state_at(120, "customer-42")
    for step in journal.steps("customer-42"):
        print(step.record.seq, step.record.cause, step.after.phase)

Needs no lock and no model: it works on a journal that another process is writing, and does no I/O but reading it (I11).
"""

from trouper.replay.difference import Difference, differences
from trouper.replay.journal import (
    Divergence,
    Forked,
    Journal,
    ReplayGap,
    ReplayRefused,
    Step,
    Verdict,
    open_journal,
)
from trouper.replay.page import Page
from trouper.replay.pictured import SnapshotDiffers

__all__ = [
    "Difference",
    "Divergence",
    "Forked",
    "Journal",
    "Page",
    "ReplayGap",
    "ReplayRefused",
    "SnapshotDiffers",
    "Step",
    "Verdict",
    "differences",
    "open_journal",
]
