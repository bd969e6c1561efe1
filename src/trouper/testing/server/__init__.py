"""Providers on the loopback interface, for tests of ours and of yours (M16).

faults      what goes wrong, as items of a script
script      which reply a request gets
listener    the HTTP server itself
gemini      Gemini's wire format
openai      that of Chat Completions
anthropic   Anthropic's
api         what the three share: options, answers, refusals
playing     a reply as a stream of events
"""

from trouper.testing.server.anthropic import AnthropicApi, serve_anthropic, serve_anthropic_in_thread
from trouper.testing.server.faults import Comment, Drop, Event, Fault, RawBytes, Stall, Status, Style
from trouper.testing.server.gemini import GeminiApi, serve_gemini, serve_gemini_in_thread
from trouper.testing.server.listener import SeenRequest, TestServer, serve, serve_in_thread
from trouper.testing.server.openai import OpenAiApi, serve_openai, serve_openai_in_thread
from trouper.testing.server.script import Item, Script, Turn

__all__ = [
    "AnthropicApi",
    "Comment",
    "Drop",
    "Event",
    "Fault",
    "GeminiApi",
    "Item",
    "OpenAiApi",
    "RawBytes",
    "Script",
    "SeenRequest",
    "Stall",
    "Status",
    "Style",
    "TestServer",
    "Turn",
    "serve",
    "serve_anthropic",
    "serve_anthropic_in_thread",
    "serve_gemini",
    "serve_gemini_in_thread",
    "serve_in_thread",
    "serve_openai",
    "serve_openai_in_thread",
]
