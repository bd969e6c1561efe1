"""The actor kernel: mailboxes, references, questions, monitors, supervisors. It knows nothing of agents; use it for actors of your own.

    exits.py        why an actor ended, as data
    errors.py       what can go wrong between actors, by fault
    request.py      a question and its one answer
    mailbox.py      the bounded queue
    reference.py    its two faces: Ref for the others, Inbox for the actor; monitors
    restart.py      the restart policy and its window
    child.py        one actor's life: its single task
    supervisor.py   the block that starts, restarts and stops actors
    statistics.py   what a supervisor can tell of itself

The page of its semantics is design/SEMANTICS.md. The agents' own actors are in this package too and are not re-exported here.
"""

from trouper.actors.child import Crash
from trouper.actors.errors import (
    ActorFailed,
    ActorGone,
    ActorNameTaken,
    AlreadyAnswered,
    AskDeadlock,
    AskLost,
    AskTimeout,
    MailboxFull,
    SupervisorClosed,
)
from trouper.actors.exits import Cancelled, Crashed, Ended, Exit, Killed, Normal, RestartLimit, Stopped, is_failure
from trouper.actors.mailbox import MAILBOX_MAX
from trouper.actors.reference import Inbox, MailboxStatistics, Monitor, Ref, open_mailbox
from trouper.actors.request import Reply, Request
from trouper.actors.restart import NEVER, Restart
from trouper.actors.statistics import ActorState, ActorStatistics, SupervisorStatistics
from trouper.actors.supervisor import GRACE_S, Supervisor, log_crash, open_supervisor

__all__ = [
    "GRACE_S",
    "MAILBOX_MAX",
    "NEVER",
    "ActorFailed",
    "ActorGone",
    "ActorNameTaken",
    "ActorState",
    "ActorStatistics",
    "AlreadyAnswered",
    "AskDeadlock",
    "AskLost",
    "AskTimeout",
    "Cancelled",
    "Crash",
    "Crashed",
    "Ended",
    "Exit",
    "Inbox",
    "Killed",
    "MailboxFull",
    "MailboxStatistics",
    "Monitor",
    "Normal",
    "Ref",
    "Reply",
    "Request",
    "Restart",
    "RestartLimit",
    "Stopped",
    "Supervisor",
    "SupervisorClosed",
    "SupervisorStatistics",
    "is_failure",
    "log_crash",
    "open_mailbox",
    "open_supervisor",
]
