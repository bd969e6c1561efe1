"""Providers on the loopback interface, for tests of ours and of yours (M16).

faults      what goes wrong, as items of a script
script      which reply a request gets
listener    the HTTP server itself
gemini      Gemini's wire format
"""

from trouper.testing.server.faults import Comment, Drop, Event, Fault, RawBytes, Stall, Status, Style
from trouper.testing.server.gemini import GeminiApi, serve_gemini, serve_gemini_in_thread
from trouper.testing.server.listener import SeenRequest, TestServer, serve, serve_in_thread
from trouper.testing.server.script import Item, Script, Turn

__all__ = [
    "Comment",
    "Drop",
    "Event",
    "Fault",
    "GeminiApi",
    "Item",
    "RawBytes",
    "Script",
    "SeenRequest",
    "Stall",
    "Status",
    "Style",
    "TestServer",
    "Turn",
    "serve",
    "serve_gemini",
    "serve_gemini_in_thread",
    "serve_in_thread",
]
