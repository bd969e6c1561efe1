"""Closed streams, odd locales, other ways to start: one line or the result, the right code, no traceback."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import trio
import trio.testing
from terminal_driver import PATIENCE_S, run

from trouper.cli import main
from trouper.cli.endings import Stopped, ended, ending_signals
from trouper.cli.hosting import ended_by_signals
from trouper.core.messages import Media
from trouper.replay import open_journal

ODD = "say €ñ"
#: A locale without any character beyond ASCII, which Python is not to replace by a better one.
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def started(
    *arguments: str, closed: str = "", how: str = "trouper", pass_fds: tuple[int, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command with some of its three streams closed, as `<&-`, `>&-` and `2>&-` do."""
    return subprocess.run(
        ["bash", "-c", f'exec "$0" -m {how} "$@" {closed}', sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        pass_fds=pass_fds,
        env={**os.environ, **environment},
    )


def test_the_package_itself_can_be_run() -> None:
    for how in ("trouper", "trouper.cli"):
        done = started("--version", how=how)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("trouper ")


#: Presses Ctrl-C when a module is about to be imported, then does what the installed script does.
PRESSED_AT_IMPORT = """
import os, signal, sys
module = sys.argv.pop(1)
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
from trouper.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module",
    # The last one is imported by an extension, that crashes if it cannot be.
    ["trouper.cli.endings", "trouper._errors", "trouper.cli.run", "trio", "uuid"],
)
def test_a_ctrl_c_while_the_program_loads_ends_it_quietly(tmp_path: Path, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESSED_AT_IMPORT, module, "run", "hello", "--root", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


#: The same for a program that Python starts itself; and it is pressed within text that is being executed, as in the making of many a class.
PRESSED_IN_TEXT = """
import os, signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["PRESSED_AT"]:
            exec("os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(10_000): pass")
sys.meta_path.insert(0, Press())
"""


@pytest.mark.parametrize("module", ["trouper.cli.endings", "trouper._errors"])
@pytest.mark.parametrize("how", ["trouper", "trouper.cli"])
def test_a_ctrl_c_that_was_caught_is_an_exit_code_however_the_program_was_started(
    tmp_path: Path, how: str, module: str
) -> None:
    """Whoever started it is told 130, and not that a signal killed it (-2 to a program in Python)."""
    (tmp_path / "sitecustomize.py").write_text(PRESSED_IN_TEXT)
    done = started("sessions", how=how, PYTHONPATH=str(tmp_path), PRESSED_AT=module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_command_can_be_carried_out_in_any_thread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the main thread may say what a Ctrl-C does."""
    codes: list[int] = []
    elsewhere = threading.Thread(target=lambda: codes.append(main(["sessions", "--root", str(tmp_path)])))
    elsewhere.start()
    elsewhere.join()
    assert codes == [66] and "holds no journal" in capsys.readouterr().err


@pytest.mark.parametrize("pressed", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_program_ends_it_without_a_traceback_out_of_a_nursery_too(
    capsys: pytest.CaptureFixture[str], pressed: BaseException
) -> None:
    async def main() -> int:
        async with trio.open_nursery():
            raise pressed

    assert ended(lambda: trio.run(main)) == (130 if isinstance(pressed, KeyboardInterrupt) else 70)
    said = capsys.readouterr().err
    assert "Traceback" not in said and said.count("\n") == (0 if isinstance(pressed, KeyboardInterrupt) else 1)


def test_before_ctrl_c_can_be_caught_nothing_is_loaded_that_takes_time() -> None:
    program = "import sys; before = set(sys.modules); from trouper.cli import main; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert set(done.stdout.split()) <= {"__future__", "trouper", "trouper.cli"}, done


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        (MemoryError(), "not enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "not enough memory"),
        (ImportError("libssl.so.3: failed to map segment from shared object"), "not enough memory"),
        (RuntimeError("can't start new thread"), "no thread can be started; raise the limits"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "no process can be started; end some"),
        (OSError(errno.EMFILE, "Too many open files", "trouper.toml"), "too many files are open; close some"),
    ],
    ids=["memory", "memory for a call", "memory for a library", "threads", "processes", "files"],
)
def test_what_the_system_is_short_of_is_no_bug_of_ours(
    capsys: pytest.CaptureFixture[str], lacking: Exception, words: str
) -> None:
    async def main() -> int:
        async with trio.open_nursery():
            raise lacking

    assert ended(lambda: trio.run(main)) == 74
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and "disk" not in said


@pytest.mark.parametrize(
    "arguments",
    [("sessions", "--root", "r"), ("run", "hello", "--root", "r"), ("journal", "repair", "r", "x"), ("doctor",)],
    ids=" ".join,
)
def test_a_current_directory_that_has_been_removed_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """It was "No such file or directory; check the disk", and nobody could tell which."""
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["bash", "-c", 'rmdir "$PWD"; exec "$@"', "-", sys.executable, "-m", "trouper", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path / "gone",
        env={**os.environ, "TROUPER_ROOT": "r"},
    )
    doctor = arguments == ("doctor",)
    assert done.returncode == (1 if doctor else 74) and done.stderr.count("\n") == (0 if doctor else 1), done
    assert "the current directory is no longer there; change to another" in done.stdout + done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_no_outcome(tmp_path: Path, closed: str) -> None:
    root = str(tmp_path / "state")
    for arguments, code in (
        (("run", "hello", "--root", root), 0),
        (("chat", "--root", root), 0),
        (("sessions", "--root", root), 0),
        (("--help",), 0),
        (("frob",), 2),
        (("run", "-", "--root", root), 2),
    ):
        done = started(*arguments, closed=closed)
        assert done.returncode == code, (arguments, done)
        assert "bug of Trouper" not in done.stderr and "Traceback" not in done.stderr
        if "2>&-" in closed and code:
            assert done.stdout == ""  # What is meant for people does not end up among the data.
    done = started("journal", "verify", root)
    assert done.returncode == 0, done.stdout  # Nobody wrote to the journal in the belief that it was a stream.


def test_text_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    root = str(tmp_path / "state")
    for number, (arguments, given) in enumerate(((("run", ODD), ""), (("run", "-"), ODD), (("chat",), f"{ODD}\n"))):
        session = f"s{number}"
        done = subprocess.run(
            [sys.executable, "-m", "trouper", *arguments, "--root", root, "--session", session],
            input=given.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            env={**os.environ, **ASCII_ONLY},
        )
        assert done.returncode == 0 and b"You said: say \\u20ac\\xf1" in done.stdout, done
        assert f"You said: {ODD}" in run("sessions", "show", session, "--root", root).stdout


def test_names_of_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """T17: the tools failed with an internal error for each name that the locale's encoding cannot say."""
    root = tmp_path / "state"
    (tmp_path / "täglich.txt").write_text("every day")
    (tmp_path / "täglich.py").write_text(
        "from trouper import tool\n@tool\ndef greet() -> str:\n    'Greet.'\n    return 'hello'\n"
    )

    def ascii_only(*arguments: str, given: str = "") -> str:
        done = run(*arguments, "--root", str(root), "--session", "s", input=given, cwd=tmp_path, **ASCII_ONLY)
        assert done.returncode == 0, done
        return done.stdout

    ascii_only("run", "write hello to ö/ü.txt")
    assert (root / "files" / "s" / "ö" / "ü.txt").read_text() == "hello"
    assert "read_file says:\nhello\n" in ascii_only("run", "read ö/ü.txt")
    assert r"There is: \xf6." in ascii_only("run", "run list_directory")
    assert '"deleted": 2' in ascii_only("run", "run delete_file path=ö recursive=true")
    assert not list((root / "files" / "s").iterdir())
    assert "there is no file" not in ascii_only("chat", given="look at @täglich.txt\n")
    ascii_only("run", "look at this", "--attach", "täglich.txt")
    journal = open_journal(root)
    sent = [
        part.name
        for message in journal.state_at(journal.last).history.messages
        for part in message.parts
        if isinstance(part, Media)
    ]
    assert sent == ["täglich.txt", "täglich.txt"]
    (tmp_path / "täglich.py").rename(root / "täglich.py")
    (root / "trouper.toml").write_text('tools = ["täglich.py"]')
    assert "greet says: hello" in ascii_only("run", "run greet")


def test_where_there_is_no_home_the_remedy_is_a_root(tmp_path: Path) -> None:
    done = started("run", "hello", HOME="/dev/null", XDG_DATA_HOME="", TROUPER_ROOT="", TROUPER_PROFILE="")
    assert done.returncode == 74 and done.stderr.count("\n") == 1 and "--root DIR" in done.stderr, done
    found = started("run", "hello", "--root", str(tmp_path / "state"), HOME="/dev/null", XDG_DATA_HOME="")
    assert (found.returncode, found.stdout) == (0, "You said: hello\n")


#: Does what the installed script does, as a user that the system does not know.
NOBODY = """
import os, sys
# Imported first: another user may not be able to read the place where the package lies.
import platformdirs.unix, trouper.cli.doctor, trouper.cli.run, trouper.cli.sessions, trouper.stores.profiles, trouper.models.simulated, trouper.tools.builtin
from trouper.cli import main
os.setgroups([]); os.setgid(12345); os.setuid(12345)
sys.exit(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("home", [{}, {"HOME": ""}, {"HOME": "rel"}, {"XDG_DATA_HOME": "rel"}], ids=str)
def test_where_nobody_knows_of_a_home_the_remedy_is_a_root(home: dict[str, str]) -> None:
    """B23: as in a container that runs as just any number. It was told as a bug of Trouper's."""
    environment = {each: value for each, value in os.environ.items() if each not in ("HOME", "XDG_DATA_HOME")}
    environment |= {"TROUPER_ROOT": "", "TROUPER_PROFILE": "", **home}
    for arguments, code in ((("sessions",), 78), (("run", "hello"), 78), (("doctor",), 1)):
        done = subprocess.run(
            [sys.executable, "-c", NOBODY, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=PATIENCE_S,
            cwd="/",
        )
        assert done.returncode == code and "--root DIR, or set TROUPER_ROOT" in done.stdout + done.stderr, done
        assert done.stderr.count("\n") == (0 if arguments == ("doctor",) else 1)
    assert "ok       version: " in done.stdout and "ok       model: simulated" in done.stdout


def test_a_default_profile_that_is_none_is_a_wrong_setting_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "trouper").mkdir()
    (tmp_path / "trouper" / "default").write_bytes(b"\xaf\xfe")
    done = started("sessions", HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path), TROUPER_ROOT="", TROUPER_PROFILE="")
    assert done.returncode == 78 and done.stderr.count("\n") == 1, done
    assert repr(str(tmp_path / "trouper" / "default")) in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_profiles_of_another_user_are_a_matter_of_permission() -> None:
    program = (
        # Imported first: another user may not be able to read the place where the package lies.
        "import os, sys, platformdirs, trouper.cli.sessions\n"
        "from trouper.cli import main\n"
        "from trouper.stores.profiles import Profiles\n"
        "Profiles()\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(main(['sessions']))\n"
    )
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "XDG_DATA_HOME": home, "TROUPER_ROOT": "", "TROUPER_PROFILE": ""}
        (Path(home) / "trouper").mkdir()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 77 and done.stderr.count("\n") == 1 and "--root DIR" in done.stderr, done


def test_a_profile_without_a_name_is_not_the_default_one() -> None:
    done = started("run", "hello", "--profile", "")
    assert done.returncode == 2 and "profile ''" in done.stderr


@pytest.mark.parametrize("command", ["serve", "attach", "live"])
def test_what_is_not_there_yet_is_refused_and_not_offered(command: str) -> None:
    done = started(command)
    assert done.returncode == 2 and done.stderr == f"trouper: there is no command {command!r}; see trouper --help\n"
    assert f"  {command} " not in started("--help").stdout


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
async def test_a_program_that_is_asked_to_end_does_so_in_order_and_says_by_what(number: signal.Signals) -> None:
    """I21: whichever way it is asked; a window that is closed asks by SIGHUP."""
    left = False
    with pytest.raises(Stopped) as stopped:
        async with ended_by_signals():
            try:
                signal.raise_signal(number)
                await trio.sleep_forever()
            finally:
                left = True
    assert left and stopped.value.code == 128 + number


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("journal", "--help"), ("sessions", "ls")])
def test_output_that_cannot_be_written_is_told_once(filled: Path, arguments: tuple[str, ...], buffered: str) -> None:
    """A full disk is one line and 74, a reader that has gone is 141; Python does not stumble over it once more at the end."""
    where = {"PYTHONUNBUFFERED": buffered, "TROUPER_ROOT": str(filled)}
    full = started(*arguments, closed="> /dev/full", **where)
    assert (full.returncode, full.stderr.count("\n")) == (74, 1) and "No space left on device" in full.stderr
    read, write = os.pipe()
    os.close(read)
    try:
        gone = started(*arguments, closed=f">&{write}", pass_fds=(write,), **where)
    finally:
        os.close(write)
    assert (gone.returncode, gone.stderr) == (141, "")


async def test_a_second_signal_does_not_come_down_in_the_midst_of_closing() -> None:
    """I21: what is closed in order is closed to its end."""
    closed = False
    with pytest.raises(Stopped) as stopped:
        async with ended_by_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
                    signal.raise_signal(signal.SIGINT)
                    await trio.testing.wait_all_tasks_blocked()
                    closed = True
    assert closed and stopped.value.code == 143


@pytest.mark.parametrize(
    "ignored", [(signal.SIGHUP,), (signal.SIGINT,), (signal.SIGTERM,), (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]
)
async def test_a_signal_that_whoever_started_the_program_has_had_ignored_does_not_end_it(
    ignored: tuple[signal.Signals, ...],
) -> None:
    """`nohup trouper run ...`, and `trouper run ... &` in a script: a Ctrl-C there is for what runs in the foreground."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        assert not set(ignored) & set(ending_signals())
        async with ended_by_signals():
            for number in ignored:
                signal.raise_signal(number)
            await trio.testing.wait_all_tasks_blocked()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert set(ignored) <= set(ending_signals())
