"""A lifecycle table is the law and the picture."""

from __future__ import annotations

from enum import Enum

import pytest

from trouper._errors import InternalError
from trouper.core.lifecycle import Table, draw_mermaid, draw_table, move, terminal_states


class Lamp(Enum):
    OFF = "off"
    ON = "on"
    BROKEN = "broken"


class Made: ...


class Pressed: ...


class Dusted: ...


class Dropped: ...


LAMP: Table[Lamp] = {
    (None, Made): Lamp.OFF,
    (Lamp.OFF, Pressed): Lamp.ON,
    (Lamp.ON, Pressed): Lamp.OFF,
    (Lamp.ON, Dusted): Lamp.ON,
    (Lamp.OFF, Dropped): Lamp.BROKEN,
    (Lamp.ON, Dropped): Lamp.BROKEN,
}


def test_moves_follow_the_table() -> None:
    assert move(LAMP, None, Made()) is Lamp.OFF
    assert move(LAMP, Lamp.OFF, Pressed()) is Lamp.ON


def test_a_move_that_is_not_in_the_table_is_our_fault_and_names_both_sides() -> None:
    with pytest.raises(InternalError, match="Pressed has no move from 'broken'") as caught:
        move(LAMP, Lamp.BROKEN, Pressed())
    assert caught.value.facts["state"] is Lamp.BROKEN


def test_terminal_states_are_those_that_nothing_leaves() -> None:
    assert terminal_states(LAMP, Lamp) == {Lamp.BROKEN}


def test_the_diagram_joins_arrows_and_leaves_out_what_moves_nothing() -> None:
    drawn = draw_mermaid(LAMP)
    assert drawn.splitlines()[0] == "stateDiagram-v2"
    assert "    [*] --> off: Made" in drawn
    assert "    off --> broken: Dropped" in drawn
    assert "    broken --> [*]" in drawn
    assert "Dusted" not in drawn


def test_the_text_table_lists_each_move_once() -> None:
    lines = draw_table(LAMP).splitlines()
    assert lines[0].split() == ["from", "event", "to"]
    assert len(lines) == 2 + len(LAMP)
    assert lines[2].split() == ["-", "Made", "off"]
