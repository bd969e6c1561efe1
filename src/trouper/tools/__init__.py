"""Tools: the contract (`@tool`, `Tool`, `ToolResult`, `ToolError`), what a tool is handed (`ToolContext`), how tools are gathered (`Toolset`, `Registry`), and what may be put around them (`Rule`, `Hooks`)."""

from trouper.tools.arguments import Parsed, parse_arguments
from trouper.tools.context import Question, Reply, Services, Sink, ToolContext
from trouper.tools.contract import Hints, Prepared, Tool
from trouper.tools.deferral import revealed_by
from trouper.tools.define import tool
from trouper.tools.errors import ConnectionRequired, InvalidArguments, InvalidResult, ToolError
from trouper.tools.hooks import (
    AfterTool,
    AfterTurn,
    Allow,
    BeforeTool,
    BeforeTurn,
    Deny,
    Hooks,
    Rewrite,
    SessionEnded,
    SessionStarted,
)
from trouper.tools.narration import narration
from trouper.tools.output import OUTPUT_MAX, Shaped, shape_output
from trouper.tools.policy import Approval, Approvals, Rule, arguments_digest, decide_policy, explain_policy
from trouper.tools.registry import Registry, Toolset
from trouper.tools.results import ToolResult, image
from trouper.tools.schema import Param

__all__ = [
    "OUTPUT_MAX",
    "AfterTool",
    "AfterTurn",
    "Allow",
    "Approval",
    "Approvals",
    "BeforeTool",
    "BeforeTurn",
    "ConnectionRequired",
    "Deny",
    "Hints",
    "Hooks",
    "InvalidArguments",
    "InvalidResult",
    "Param",
    "Parsed",
    "Prepared",
    "Question",
    "Registry",
    "Reply",
    "Rewrite",
    "Rule",
    "Services",
    "SessionEnded",
    "SessionStarted",
    "Shaped",
    "Sink",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "Toolset",
    "arguments_digest",
    "decide_policy",
    "explain_policy",
    "image",
    "narration",
    "parse_arguments",
    "revealed_by",
    "shape_output",
    "tool",
]
