"""M4: odd JSON costs a character, not a reply."""

from __future__ import annotations

import json

import pytest

from trouper.models import wire_json


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert wire_json.decode(b'{"a":"x\\ud83d","b":"\\ud83d\\ude00"}') == {"a": "x\ufffd", "b": "\U0001f600"}
    assert wire_json.encode({"a": "x\ud83d"}) == '{"a":"x\ufffd"}'.encode()


def test_long_integers_pass() -> None:
    assert wire_json.encode({"n": 10**30}) == b'{"n":1000000000000000000000000000000}'
    for n in (10**30 + 1, 2**64, -(2**63) - 1):
        for data in (b'{"n":%d}' % n, b'{"a": 1, "n" : [ %d ]}' % n, b"[1,%d]" % n):
            assert wire_json.decode(data) == wire_json.decode_or_none(data) == json.loads(data)
    assert isinstance(wire_json.decode(b"[" * 1000 + b"%d" % 10**30 + b"]" * 1000), list)


def test_what_is_no_number_is_written_as_null_beside_anything() -> None:
    """L22: a word that is not JSON has the whole history refused."""
    for number in (float("nan"), float("inf"), float("-inf")):
        assert wire_json.encode({"n": number}) == b'{"n":null}'
        assert wire_json.encode({"n": number, "m": [10**30]}) == b'{"n":null,"m":[1000000000000000000000000000000]}'


def test_what_is_no_text_is_shown_as_json() -> None:
    """M1: a provider's words may be an object, and nested deeper than anybody can show."""
    shown = ["x", None, {}, 7, True, {"a": [1]}, wire_json.decode(b"[" * 1000 + b"]" * 1000)]
    assert [wire_json.as_text(value) for value in shown] == ["x", "", "", "7", "true", '{"a":[1]}', ""]


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert wire_json.decode(b'{"a":"\xff"}') == {"a": "\ufffd"}


@pytest.mark.parametrize("bomb", [b"[" * 200_000, b'{"a":' * 100_000, b"1" * 5_000, b"", b"{", b"nonsense"])
def test_what_is_no_json_or_meant_to_hurt_is_a_value_error(bomb: bytes) -> None:
    """Security page: JSON bombs."""
    with pytest.raises(ValueError, match=r"."):
        wire_json.decode(bomb)
