"""Work that may begin before its cause is on the disk, because nobody could notice that it did.

A tool that declares that it changes nothing and reaches for nothing outside, and that has no context through which to say something, leaves no trace but its outcome. So
its intent is written before it starts, which a killed process leaves behind, and synced together with the outcome: one sync a step in place of two. Until then nobody is told of either,
and the session's state, as everybody else sees it, does not have them (J1, J4). design/decisions/journal.md says why.
"""

from __future__ import annotations

from trouper.core.calls import RUNNING
from trouper.core.commands import Command, DeliverReply
from trouper.core.session import ACTING, State
from trouper.tools.registry import Registry


def may_go_ahead(command: Command, after: State, registry: Registry) -> bool:
    """Whether all that the state after this command waits for is calls that nobody could notice."""
    if type(command) is not DeliverReply or after.phase is not ACTING:
        return False
    for call in after.in_turn.calls:
        tool = registry.get(call.request.name)
        if call.phase is not RUNNING or tool is None or not tool.is_unnoticed:
            return False
    return True
