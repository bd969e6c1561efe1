"""Where the demo is told: plain lines for a pipe; on a terminal colours, and below them a live tree of the actors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from attrs import define, field

from trouper.cli.terminal import Terminal, clean, clean_line
from trouper.core.outstanding import CallModel, RunCall, outstanding
from trouper.core.session import State
from trouper.core.task import RunTask

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


#: The tree is drawn at most this often, in seconds: whoever draws all the time falls behind what it shows.
FRAME_S = 0.04


@define
class Cast:
    """What the tree shows. All of it is read from events: the state is folded from them, and what runs is what it waits for."""

    process: int | None = None
    killed: int | None = None
    state: State = field(factory=State)
    progress: tuple[float, float] | None = None


class Stage:
    """Plain text."""

    def __init__(self, out: Terminal) -> None:
        self.out = out
        self.cast = Cast()
        self._open = ""

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_line()

    def scene(self, title: str) -> None:
        self.close_line()
        self.out.line()
        self.out.line(self.out.style(f"== {title}", "bold"))

    def line(self, text: str, *styles: str) -> None:
        self.close_line()
        self.out.line(self.out.style(_indented(text), *styles))
        self.out.stream.flush()

    def stream(self, speaker: str, text: str, *styles: str) -> None:
        """Text as it comes: the pieces of one speaker stand on one line."""
        if self._open != speaker:
            self.close_line()
            self.out.stream.write(self.out.style(f"{speaker}: ", "bold"))
            self._open = speaker
        self.out.stream.write(self.out.style(clean(text).replace("\n", " "), *styles))
        self.out.stream.flush()

    def close_line(self) -> None:
        if self._open:
            self.out.stream.write("\n")
            self._open = ""

    def refresh(self, *, at_once: bool = False) -> None:
        """The cast has changed."""


class LiveStage(Stage):
    """A terminal: finished lines scroll up; the line being spoken and the tree stay below."""

    def __init__(self, out: Terminal) -> None:
        from rich.console import Console

        super().__init__(out)
        self._console = Console(file=out.stream, highlight=False, markup=False, width=out.width)
        self._live: Live | None = None
        self._spoken: Any = None
        self._drawn_at = 0.0

    def __enter__(self) -> LiveStage:
        from rich.live import Live

        # Drawn by us alone: a thread that draws meanwhile may erase a line that has just been printed.
        self._live = Live(self._bottom(), console=self._console, auto_refresh=False, transient=True)
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close_line()
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def scene(self, title: str) -> None:
        self.close_line()
        self._print()
        self._print(f"== {title}", style="bold")

    def line(self, text: str, *styles: str) -> None:
        self.close_line()
        self._print(_indented(text), style=" ".join(styles) or None)

    def stream(self, speaker: str, text: str, *styles: str) -> None:
        from rich.text import Text

        if self._open != speaker:
            self.close_line()
            self._spoken = Text.assemble((f"{speaker}: ", "bold"))
            self._open = speaker
        self._spoken.append(clean(text).replace("\n", " "), style=" ".join(styles) or None)
        self.refresh()

    def close_line(self) -> None:
        if self._open:
            # Gone from below first: otherwise it would stand there twice for a moment.
            spoken, self._open, self._spoken = self._spoken, "", None
            self.refresh(at_once=True)
            self._print(spoken)

    def refresh(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._live is not None and (at_once or now - self._drawn_at >= FRAME_S):
            self._drawn_at = now
            self._fit()
            self._live.update(self._bottom(), refresh=True)

    def _print(self, *shown: Any, style: str | None = None) -> None:
        self._fit()
        self._console.print(*shown, style=style)

    def _fit(self) -> None:
        """As wide as the terminal is now: it would take the word of `COLUMNS` for it, and rows that are wrapped unseen cannot be taken back."""
        self._console.width = self.out.width

    def _bottom(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding

        tree = Padding(self._tree(), (1, 0, 0, 2))
        return Group(self._spoken, tree) if self._spoken is not None else tree

    def _tree(self) -> RenderableType:
        from rich.text import Text
        from rich.tree import Tree

        cast = self.cast
        if cast.process is None:
            gone = f"process {cast.killed}: killed" if cast.killed is not None else "no process yet"
            return Tree(Text(gone, style="red" if cast.killed is not None else "dim"))
        root = Tree(Text(f"runtime, process {cast.process}", style="bold"))
        root.add(Text("journal", style="dim"))
        session = root.add("supervisor").add(
            Text(f"session {cast.state.session or 'demo'}: {cast.state.phase.value}", style="cyan")
        )
        for work in outstanding(cast.state).values():
            shown = _shown(work, cast)
            if shown is not None:
                session.add(shown)
        return root


def _indented(text: str) -> str:
    return " " * (len(text) - len(text.lstrip())) + clean_line(text)


def _shown(work: object, cast: Cast) -> Any:
    from rich.text import Text

    match work:
        case CallModel(turn, step):
            return Text(f"model call, turn {turn} step {step}", style="magenta")
        case RunCall(call):
            budget_s = call.preparation.budget_s
            waits = "" if budget_s is None else f", the turn waits {budget_s * 1000:.0f} ms"
            return Text(f"tool call {call.request.name}{waits}{_far(cast)}", style="yellow")
        case RunTask(task_id, attempt):
            about = cast.state.tasks.live[task_id].about
            name = "run" if about.origin_call is None or attempt > 1 else "run (spilled call)"
            return Text(f"{name} {about.tool}, attempt {attempt}{_far(cast)}", style="yellow")
        case _:
            return None


def _far(cast: Cast) -> str:
    if cast.progress is None:
        return ""
    current, total = cast.progress
    filled = round(20 * current / total) if total else 0
    return f"  {'█' * filled}{'░' * (20 - filled)} {current:.0f}/{total:.0f}"
