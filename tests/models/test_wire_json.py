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


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert wire_json.decode(b'{"a":"\xff"}') == {"a": "\ufffd"}


@pytest.mark.parametrize("bomb", [b"[" * 200_000, b'{"a":' * 100_000, b"1" * 5_000, b"", b"{", b"nonsense"])
def test_what_is_no_json_or_meant_to_hurt_is_a_value_error(bomb: bytes) -> None:
    """Security page: JSON bombs."""
    with pytest.raises(ValueError, match=r"."):
        wire_json.decode(bomb)
