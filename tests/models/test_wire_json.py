"""M4: odd JSON costs a character, not a reply."""

from __future__ import annotations

import pytest

from trouper.models import wire_json


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert wire_json.decode(b'{"a":"x\\ud83d","b":"\\ud83d\\ude00"}') == {"a": "x\ufffd", "b": "\U0001f600"}
    assert wire_json.encode({"a": "x\ud83d"}) == '{"a":"x\ufffd"}'.encode()


def test_long_integers_pass() -> None:
    assert wire_json.encode({"n": 10**30}) == b'{"n":1000000000000000000000000000000}'


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert wire_json.decode(b'{"a":"\xff"}') == {"a": "\ufffd"}


@pytest.mark.parametrize("bomb", [b"[" * 200_000, b'{"a":' * 100_000, b"1" * 5_000, b"", b"{", b"nonsense"])
def test_what_is_no_json_or_meant_to_hurt_is_a_value_error(bomb: bytes) -> None:
    """Security page: JSON bombs."""
    with pytest.raises(ValueError, match=r"."):
        wire_json.decode(bomb)
