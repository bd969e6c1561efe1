"""HTML to text: what it makes of pages, and that no page makes it slow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trouper.tools.builtin.html_text import readable


@pytest.mark.parametrize(
    ("page", "markdown"),
    [
        ("plain", "plain"),
        ("<p>a<p>b", "a\n\nb"),
        ("a<br>b<br/>c", "a\nb\nc"),
        ("<b>bold</b> and <code>x</code>", "**bold** and `x`"),
        ("<h2>T</h2>text", "## T\ntext"),
        ("<pre>  keep\n  this</pre>", "```\n  keep\n  this\n```"),
        ('<a href="https://x.example/?a=1&amp;b=2">go</a>', "[go](https://x.example/?a=1&b=2)"),
        ('<a href="javascript:alert(1)">go</a>', "go"),
        ("<a>x</a></a></b>", "x**"),
        ("a &lt;b&gt; &amp; &#65; &#x42; &nope; &", "a <b> & A B &nope; &"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<script>if (a < b) { '<p>' }</script>after", "after"),
        ("<SCRIPT>x</SCRIPT>after", "after"),
        ("<style>never closed", ""),
        ("<!-- hidden <p> -->shown<!-- never closed", "shown"),
        ("<!doctype html><?xml?>x", "x"),
        ("<svg><text>no</text></svg>yes", "yes"),
        ("&#" + "9" * 5000 + ";", "&#" + "9" * 5000 + ";"),
        ("<p", "<p"),
        ("", ""),
    ],
)
def test_pages_as_markdown(page: str, markdown: str) -> None:
    assert readable(page).text == markdown


def test_title_is_told_apart_from_the_text() -> None:
    found = readable("<title> A\n page </title><p>text", style="text")
    assert (found.title, found.text) == ("A page", "text")


_SCRIPT = """
import resource
from trouper.tools.builtin.html_text import readable
used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 1
resource.setrlimit(resource.RLIMIT_CPU, (used + 20, used + 20))
size = 100_000
for piece in ("<", "<!--", "<a ", "<a href=", "&", "&#", "</", "<script>", "<script", "<![CDATA[", "<a href='", "&a", "<p>", "<?", "<pre>", "<SCRIPT></script "):
    readable(piece * (size // len(piece)))
"""


def test_no_page_takes_more_than_linear_time() -> None:
    """Sixteen hostile pages of 100 kB within twenty seconds of the processor: less than one is needed."""
    assert subprocess.run([sys.executable, "-c", _SCRIPT], check=False).returncode == 0
