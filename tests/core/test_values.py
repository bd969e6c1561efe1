"""Values: frozen, equal by their fields, shown whole; and changed by copying only."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Barrier
from typing import Any

import attrs
import msgspec
import pytest

from trouper.core.settings import Retry
from trouper.core.values import changed, frozen, replaced


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


@frozen
class Roomy:
    x: int
    #: No part of what it is.
    seen: int = attrs.field(default=0, eq=False, repr=False)

    def __repr__(self) -> str:
        return f"<Roomy {self.x}>"


@frozen(frequent=True)
class Common:
    x: int
    y: int = 0
    names: list[str] = msgspec.field(default_factory=list)


class Derived(Common):
    """As anybody may derive one."""


class Longer(Common):
    more: int = 3


def test_values_are_equal_by_class_and_fields_and_hash_so() -> None:
    assert Point(1, 2) == Point(1, y=2) and hash(Point(1, 2)) == hash(Point(1, 2))
    assert Point(1, 2) != Point(2, 1) and Point(1, 2) != Other(1, 2) and Point(1) != (1, 0)
    assert Nothing() == Nothing() and len({Nothing(), Nothing(), Point(1), Point(1)}) == 2
    assert Roomy(1, seen=1) == Roomy(1, seen=2) and hash(Roomy(1, 1)) == hash(Roomy(1, 2))


def test_a_value_shows_its_fields_unless_it_says_it_itself() -> None:
    assert repr(Point(1)) == "Point(x=1, y=0)"
    assert repr(Nothing()) == "Nothing()"
    assert repr(Roomy(3)) == "<Roomy 3>"


def test_a_frequent_value_is_made_as_any_other() -> None:
    assert Common(1, names=["a"]) == Common(x=1, y=0, names=["a"]) and Common(1).names is not Common(1).names
    assert type(Common(1)) is Common and repr(Common(1, 2)) == "Common(x=1, y=2, names=[])"
    assert list(inspect.signature(Common).parameters) == ["x", "y", "names"]
    assert copy.deepcopy(Common(1, 2, ["a"])) == pickle.loads(pickle.dumps(Common(1, 2, ["a"]))) == Common(1, 2, ["a"])
    assert Common(1, 2) == Common(1, 2) != Common(2, 1) and Common(1) != Other(1) and Common(1) != (1, 0, [])
    with pytest.raises(TypeError, match="Missing required argument 'x'"):
        Common()  # type: ignore[call-arg]


def test_a_frequent_value_is_one_of_attrs_to_whoever_asks() -> None:
    assert attrs.has(Common) and [field.name for field in attrs.fields(Common)] == ["x", "y", "names"]  # type: ignore[arg-type]
    x, y, names = attrs.fields(Common)  # type: ignore[arg-type]
    assert x.default is attrs.NOTHING and y.default == 0 and names.default == attrs.Factory(list)
    assert (x.type, names.type) == ("int", "list[str]")
    assert attrs.asdict(Common(1)) == {"x": 1, "y": 0, "names": []}  # type: ignore[arg-type]
    match Common(1, 2):
        case Common(x, y):
            assert (x, y) == (1, 2)


@pytest.mark.parametrize("cls", [Derived, Longer])
def test_a_class_derived_from_a_frequent_value_makes_its_own_values(cls: type[Common]) -> None:
    value = cls(1, y=2)
    assert type(value) is cls and (value.x, value.y, value.names) == (1, 2, [])
    with pytest.raises(AttributeError):
        value.x = 2  # type: ignore[misc]


def test_to_attrs_a_class_derived_from_a_frequent_value_has_its_own_fields_too() -> None:
    """Those that it adds were lost where attrs or cattrs copied or wrote it, as the result of a tool."""
    names = [[field.name for field in attrs.fields(cls)] for cls in (Common, Longer, Derived)]  # type: ignore[arg-type]
    assert names == [["x", "y", "names"], ["x", "y", "names", "more"], ["x", "y", "names"]]
    value = Longer(1, more=5)  # type: ignore[call-arg]
    assert attrs.evolve(value, x=2) == changed(value, x=2) == Longer(2, more=5)  # type: ignore[call-arg,misc]
    assert attrs.asdict(value) == {"x": 1, "y": 0, "names": [], "more": 5}  # type: ignore[arg-type]


def test_only_fields_that_are_taken_as_they_are_can_be_those_of_a_frequent_value() -> None:
    with pytest.raises(AssertionError, match="'x' of 'Checked' is not plain"):

        @frozen(frequent=True)
        class Checked:
            x: int = attrs.field(validator=attrs.validators.instance_of(int))


@pytest.mark.parametrize("value", [Point(1), Roomy(1), Common(1)])
def test_a_value_does_not_change(value: Point | Roomy | Common) -> None:
    with pytest.raises(AttributeError):
        value.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del value.x
    assert value.x == 1


@pytest.mark.parametrize("value", [Point(1), Roomy(1), Common(1)])
def test_a_changed_value_is_another_one(value: Point | Roomy | Common) -> None:
    other = changed(value, x=5)
    assert (value.x, other.x) == (1, 5) and type(other) is type(value)
    assert attrs.evolve(value, x=5) == other
    with pytest.raises(TypeError, match="no field"):
        changed(value, z=1)


def test_a_field_may_have_any_name() -> None:
    @frozen
    class Worth:
        value: int

    assert changed(Worth(1), value=2) == Worth(2)


def test_a_frequent_value_is_replaced_without_looking_it_up() -> None:
    value = Common(1, 2, ["a"])
    other = replaced(value, x=5)
    assert (other, value) == (Common(5, 2, ["a"]), Common(1, 2, ["a"])) and other.names is value.names
    with pytest.raises(TypeError, match="no field"):
        replaced(value, z=1)


def test_values_can_be_matched_by_position() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def fresh() -> type:
    """A class that nobody has used yet."""

    @frozen
    class Fresh:
        """Says what it is for."""

        name: str
        _secret: int = attrs.field(default=1, eq=False, repr=False)
        more: list[int] = attrs.field(factory=list, validator=attrs.validators.instance_of(list))

        @property
        def doubled(self) -> int:
            return 2 * self._secret

    return Fresh


def test_a_class_is_whole_whatever_it_is_used_for_first() -> None:
    """attrs completes it when it is first needed; nobody can tell."""
    assert [field.name for field in attrs.fields(fresh())] == ["name", "_secret", "more"]
    assert attrs.has(fresh())
    made = fresh()("a", secret=4)
    assert (made.name, made.doubled, made.more) == ("a", 8, [])
    assert repr(made).endswith("Fresh(name='a', more=[])") and made == type(made)("a", 5)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        fresh()()
    with pytest.raises(TypeError, match="must be <class 'list'>"):
        fresh()("a", more=None)
    cls = fresh()
    match cls("a", 2):
        case cls(name, secret):  # type: ignore[misc]
            assert (name, secret) == ("a", 2)
    assert cls.__doc__ == "Says what it is for." and cls.__module__ == __name__ and cls.__qualname__.endswith("Fresh")
    assert cls.__name__ == "Fresh" and not hasattr(cls("a"), "__dict__")


def test_values_survive_being_copied_and_pickled() -> None:
    for value in (Point(1, 2), Nothing(), Roomy(3)):
        assert copy.deepcopy(value) == value == pickle.loads(pickle.dumps(value))


def test_a_value_that_another_process_pickled_can_be_read_by_one_that_has_made_none() -> None:
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()))"
    value = Retry(opens=5)
    read = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(value), capture_output=True, check=True)
    assert read.stdout.decode().strip() == repr(value)


def test_a_class_tells_how_it_is_called_before_anybody_has_done_so() -> None:
    assert list(inspect.signature(fresh()).parameters) == ["name", "secret", "more"]
    assert fresh().__match_args__ == ("name", "_secret", "more")  # type: ignore[attr-defined]


def test_a_class_derived_from_one_that_nobody_has_used_keeps_its_own_way_to_be_made() -> None:
    class Named(fresh()):  # type: ignore[misc]
        def __init__(self, number: int = 1) -> None:
            super().__init__(name=f"number {number}")

    assert [Named(1).name, Named(2).name, Named().name] == ["number 1", "number 2", "number 1"]
    assert Named(3) == Named(3) != Named(4) and list(inspect.signature(Named).parameters) == ["number"]


def test_threads_may_complete_a_class_at_the_same_moment() -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in range(50):
            cls, together = fresh(), Barrier(4)

            def make(number: int, cls: type = cls, together: Barrier = together) -> Any:
                together.wait()
                return cls("a", number)

            assert [each._secret for each in threads.map(make, range(4))] == [0, 1, 2, 3]


def test_a_value_may_extend_another_that_nobody_has_used() -> None:
    @frozen
    class Base:
        x: int

    @frozen
    class LongerThanThat(Base):
        y: int = 2

    assert LongerThanThat(1) == LongerThanThat(1, 2) != LongerThanThat(1, 3)
    assert [field.name for field in attrs.fields(LongerThanThat)] == ["x", "y"]
    assert isinstance(LongerThanThat(1), Base) and Base(1) != LongerThanThat(1)


def test_a_method_may_mean_its_own_class_and_a_property_keep_its_value() -> None:
    @frozen
    class Own:
        x: int = 0

        @cached_property
        def made(self) -> list[int]:
            return [self.x]

        def kind(self) -> type:
            return __class__  # type: ignore[name-defined]

    own = Own()
    assert own.kind() is Own and own.made is own.made
