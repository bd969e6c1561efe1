"""Tools: the contract (`@tool`, `Tool`, `ToolResult`, `ToolError`), what a tool is handed (`ToolContext`), and how tools are gathered (`Toolset`, `Registry`)."""

from trouper.tools.arguments import Parsed, parse_arguments
from trouper.tools.context import Question, Reply, Services, Sink, ToolContext
from trouper.tools.contract import Hints, Prepared, Tool
from trouper.tools.define import tool
from trouper.tools.errors import ConnectionRequired, InvalidArguments, InvalidResult, ToolError
from trouper.tools.registry import Registry, Toolset
from trouper.tools.results import ToolResult, image
from trouper.tools.schema import Param

__all__ = [
    "ConnectionRequired",
    "Hints",
    "InvalidArguments",
    "InvalidResult",
    "Param",
    "Parsed",
    "Prepared",
    "Question",
    "Registry",
    "Reply",
    "Services",
    "Sink",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "Toolset",
    "image",
    "parse_arguments",
    "tool",
]
