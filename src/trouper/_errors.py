"""Every exception that Trouper raises on purpose, by whose fault it is.

    TrouperError
    |- UsageError              the caller's fault: change the call
    |  |- CommandRejected      a command that the state does not allow (a turn while one runs, input to a closed session)
    |  |- InvalidName          a profile, scope, key or id outside letters, digits, `-_.`
    |  |- ToolDefinitionError  a tool that cannot be built: duplicate name, unsupported annotation, unmet need
    |  |- ConfigError          a setting that makes no sense
    |  |  `- MissingKey        a provider's key that is nowhere to be found
    |  `- ActorNameTaken, SupervisorClosed, AskDeadlock, AlreadyAnswered   see trouper.actors
    |- WorldError              the world's fault: disk, network, provider; the message says what to do
    |  |- JournalError         the journal cannot be opened, read or written
    |  |  |- JournalNotFound, JournalNotADirectory, JournalUnreadable, JournalTooNew, JournalLocked, JournalExists,
    |  |  `- JournalDamaged, JournalFull (BlobRefused), BlobUnplaced, JournalBehind, JournalReadOnly, JournalFailed, JournalClosed
    |  |- ModelError           a provider failed; see trouper.models
    |  `- ActorGone, MailboxFull, AskTimeout, AskLost, ActorFailed           the other actor; see trouper.actors
    `- InternalError           our fault: please report it

An error names its subject with `!r`, ends in the remedy, and carries its facts as attributes. What is meant for the *model* to read
is not in this tree: a tool raises `trouper.ToolError`, and the turn goes on.
"""

from __future__ import annotations

from typing import Any


class TrouperError(Exception):
    """The root of everything that Trouper raises on purpose. Keyword arguments become attributes."""

    #: The process exit code when this error ends a command-line program (sysexits-like; see the docs of the command line).
    exit_code = 1

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)


class UsageError(TrouperError):
    """The caller's fault: change the call."""

    exit_code = 2


class CommandRejected(UsageError):
    """The state does not allow this command; the message says what to do first."""


class InvalidName(UsageError):
    """A name outside 1-128 letters, digits, `-`, `_`, `.` (and not `.` or `..`)."""


class ToolDefinitionError(UsageError):
    """A tool that cannot be built or registered as written."""


class ConfigError(UsageError):
    """A setting that makes no sense, or one that is missing."""

    exit_code = 78


class MissingKey(ConfigError):
    """A provider's key is needed, and there is none; `variables` are those of the environment that it is looked for in, if any."""

    def __init__(self, message: str, *, variables: tuple[str, ...] = (), **facts: Any) -> None:
        super().__init__(message, variables=variables, **facts)
        self.variables = variables


class WorldError(TrouperError):
    """The world's fault: disk, network, provider. The message says what to do."""

    exit_code = 74


class InternalError(TrouperError):
    """Our fault: an invariant of Trouper itself does not hold. Please report it with the journal."""

    exit_code = 70
