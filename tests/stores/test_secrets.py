"""Secrets (B24, I36): a file of mode 0600, or the system's keyring; values in no text that we make."""
# ruff: noqa: ASYNC240 - a look at a small local file holds nothing up here

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from trouper._errors import ConfigError, InvalidName, TrouperError, UsageError
from trouper.stores.secrets import (
    FileSecrets,
    KeyringSecrets,
    LearnedSecrets,
    SecretsExposed,
    SecretsUnreadable,
    values_in,
)

VALUE = "hunter2-very-secret"


class DictKeyring:
    """A keyring in memory, as the `keyring` package would be."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture(params=["file", "keyring"])
def secrets(request: pytest.FixtureRequest, tmp_path: Path) -> FileSecrets | KeyringSecrets:
    if request.param == "file":
        return FileSecrets(tmp_path / "secrets" / "s.json")
    return KeyringSecrets(tmp_path / "secrets" / "s.names", "trouper/s", DictKeyring())


async def test_a_secret_is_kept_and_deleted(secrets: FileSecrets | KeyringSecrets) -> None:
    assert await secrets.get("token") is None and await secrets.names() == []
    await secrets.set("token", VALUE)
    await secrets.set("api-key", "é\n\u2028 any text")
    await secrets.set("token", VALUE + "2")
    assert await secrets.get("token") == VALUE + "2" and await secrets.get("api-key") == "é\n\u2028 any text"
    assert await secrets.names() == ["api-key", "token"]
    assert await secrets.delete("token") is True and await secrets.delete("token") is False
    assert await secrets.names() == ["api-key"]


async def test_the_values_of_a_directory_are_known_from_the_start_whatever_is_wrong_with_one_file(
    tmp_path: Path,
) -> None:
    """J8: so that they can be blanked before any of them is used."""
    await FileSecrets(tmp_path / "a.json").set("long", VALUE)
    await FileSecrets(tmp_path / "b.json").set("other", "another-value")
    (tmp_path / "b.json").chmod(0o644)
    (tmp_path / "c.json").write_text("no JSON")
    assert values_in(tmp_path) == {VALUE} and values_in(tmp_path / "none") == frozenset()


async def test_no_repr_error_or_log_shows_a_value(
    secrets: FileSecrets | KeyringSecrets, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I36."""
    caplog.set_level(logging.DEBUG)
    await secrets.set("token", VALUE)
    texts = [repr(secrets), str(secrets), caplog.text]
    for name, value in (("token", VALUE * 10_000), ("../x", VALUE), ("token", "")):
        with pytest.raises(UsageError) as caught:
            await secrets.set(name, value)
        texts += [str(caught.value), repr(caught.value), repr(caught.value.facts)]
    path = tmp_path / "secrets" / "s.json"
    if path.exists():
        path.write_text(f'{{"token": "{VALUE}"')  # Torn: a decoder's message would quote it.
        with pytest.raises(SecretsUnreadable) as unreadable:
            await secrets.get("token")
        error: BaseException | None = unreadable.value
        while error is not None:
            texts += [str(error), repr(error), repr(getattr(error, "doc", ""))]
            error = error.__cause__
    assert not any("hunter2" in text for text in texts)


async def test_the_file_is_the_users_alone_from_its_first_moment(tmp_path: Path) -> None:
    """B24, J8."""
    path = tmp_path / "secrets" / "s.json"
    await FileSecrets(path).set("token", VALUE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
async def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "s.json"
    await FileSecrets(path).set("token", VALUE)
    path.chmod(mode)
    with pytest.raises(SecretsExposed, match="chmod 600"):
        await FileSecrets(path).get("token")


async def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "s.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(OSError, match="symbolic link"):
        await FileSecrets(tmp_path / "s.json").get("token")


async def test_names_follow_the_rule(secrets: FileSecrets | KeyringSecrets) -> None:
    """B22."""
    for name in ("", "a b", "..", "a\nb"):
        with pytest.raises(InvalidName):
            await secrets.get(name)


async def test_with_a_keyring_no_value_touches_the_disk(tmp_path: Path) -> None:
    keyring = DictKeyring()
    await KeyringSecrets(tmp_path / "s.names", "trouper/s", keyring).set("token", VALUE)
    assert keyring.kept == {("trouper/s", "token"): VALUE}
    assert (tmp_path / "s.names").read_text() == "token\n"
    assert not any("hunter2" in path.read_text() for path in tmp_path.iterdir())


def test_without_the_package_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "keyring", None)
    with pytest.raises(ConfigError, match=r"pip install 'trouper\[keyring\]'") as caught:
        KeyringSecrets(tmp_path / "s.names", "trouper/s")
    assert isinstance(caught.value, TrouperError)


@pytest.mark.parametrize("value", [7, None, ""])
async def test_a_secret_that_is_no_text_is_refused_before_anybody_learns_it(tmp_path: Path, value: Any) -> None:
    """B24: with the remedy, and not by whoever was to blank it."""
    learned: list[str] = []
    secrets = LearnedSecrets(FileSecrets(tmp_path / "secrets.json"), learned.append)
    with pytest.raises(UsageError, match="has to be text, and not empty; delete it instead"):
        await secrets.set("key", value)
    assert learned == []
