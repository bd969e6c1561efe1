"""Values: frozen, equal by their fields, shown whole; and changed by copying only."""

from __future__ import annotations

import attrs
import pytest

from trouper.core.values import changed, frozen


@frozen
class Point:
    x: int
    y: int = 0


@frozen
class Other:
    x: int
    y: int = 0


@frozen
class Nothing:
    pass


@frozen(slots=False)
class Roomy:
    x: int
    #: No part of what it is.
    seen: int = attrs.field(default=0, eq=False, repr=False)

    def __repr__(self) -> str:
        return f"<Roomy {self.x}>"


def test_values_are_equal_by_class_and_fields_and_hash_so() -> None:
    assert Point(1, 2) == Point(1, y=2) and hash(Point(1, 2)) == hash(Point(1, 2))
    assert Point(1, 2) != Point(2, 1) and Point(1, 2) != Other(1, 2) and Point(1) != (1, 0)
    assert Nothing() == Nothing() and len({Nothing(), Nothing(), Point(1), Point(1)}) == 2
    assert Roomy(1, seen=1) == Roomy(1, seen=2) and hash(Roomy(1, 1)) == hash(Roomy(1, 2))


def test_a_value_shows_its_fields_unless_it_says_it_itself() -> None:
    assert repr(Point(1)) == "Point(x=1, y=0)"
    assert repr(Nothing()) == "Nothing()"
    assert repr(Roomy(3)) == "<Roomy 3>"


@pytest.mark.parametrize("value", [Point(1), Roomy(1)])
def test_a_value_does_not_change(value: Point | Roomy) -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.x = 2  # type: ignore[misc]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del value.x
    assert value.x == 1


@pytest.mark.parametrize("value", [Point(1), Roomy(1)])
def test_a_changed_value_is_another_one(value: Point | Roomy) -> None:
    other = changed(value, x=5)
    assert (value.x, other.x) == (1, 5) and type(other) is type(value)
    assert attrs.evolve(value, x=5) == other
    with pytest.raises(TypeError, match="no field"):
        changed(value, z=1)


def test_values_can_be_matched_by_position() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
