"""What a tool raises for somebody else to read. None of these is a fault of the program, so none is in the tree of `trouper._errors`.

ToolError            the model's to read: the turn goes on with this text as the call's answer
`- InvalidArguments  arguments that do not fit the schema; made by `Tool.prepare`, and open to tools that check more than a schema can
ConnectionRequired   the host's to solve: an account has to be connected first; the turn may pause for it
InvalidResult        the tool author's to fix: what the tool returned cannot be shown to a model. Internal, so the model never sees the text
"""

from __future__ import annotations


class ToolError(Exception):
    """The tool cannot do what was asked, and the model should know why: `raise ToolError("no order 17; try list_orders")`."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidArguments(ToolError):
    """Arguments that do not fit, even after repair. The message is bounded and never echoes long values (L19)."""

    def __init__(self, message: str, *, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        #: The paths of the arguments at fault, as the message names them.
        self.fields = fields


class ConnectionRequired(Exception):
    """The tool needs an account that nobody has connected yet. The host is asked; the model only learns that the tool is waiting."""

    def __init__(self, provider: str, message: str = "") -> None:
        super().__init__(message or f"a connection to {provider!r} is required")
        self.provider = provider
        self.message = message or f"a connection to {provider!r} is required"


class InvalidResult(Exception):
    """A tool returned something that is not JSON, or an image that is none. The text is for the log and the tool's author."""

    def __init__(self, message: str, *, tool: str) -> None:
        super().__init__(message)
        self.message = message
        self.tool = tool
