"""How a command ends: its exit code, and one line on stderr if something is wrong.

0    done                               70   our fault: please report it
1    the turn failed                    73   the target exists already
2    wrong arguments                    74   disk, memory, network or provider
3    the turn stopped short (budget,    75   somebody else has the root open; try again later
     max_steps, max_tokens)             77   no permission
4    the model refused                  78   a setting is wrong or missing
65   the journal is damaged             129  the terminal went away (SIGHUP)
66   there is no such journal           130  interrupted (Ctrl-C)
                                        141  the reader of the output went away
                                        143  asked to stop (SIGTERM)
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable

from trouper.cli.streams import prepare_streams

TURN_FAILED = 1
STOPPED_SHORT = 3
REFUSED = 4
DAMAGED = 65
INTERNAL = 70
HUNG_UP = 129
INTERRUPTED = 130
PIPE_CLOSED = 141
STOPPED = 143

_NO_MEMORY = "there is not enough memory; free some, or raise the limit on it (ulimit -v, or that of the container)"
_NO_FILE = "too many files are open; close some, or raise the limit on them (ulimit -n)"
#: What the system may be short of; it is no fault of the file that was wanted.
SHORTAGES = {errno.ENOMEM: _NO_MEMORY, errno.EMFILE: _NO_FILE, errno.ENFILE: _NO_FILE}
#: How the loader says that there was no memory for a library.
_UNMAPPED = ("failed to map segment", "annot allocate memory")

#: Set to see the traceback of an error that is our fault.
TRACEBACK_VARIABLE = "TROUPER_TRACEBACK"
#: The level of the log on stderr (debug, info, warning, error); without it there is none.
LOG_VARIABLE = "TROUPER_LOG"


def ending_signals() -> dict[int, int]:
    """The signals that ask a program to end, with its exit code for each. Without those that whoever started it has had ignored, so that it goes on (`nohup`, and `&` in a script)."""
    import signal

    codes: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: STOPPED, signal.SIGHUP: HUNG_UP}
    return {number: code for number, code in codes.items() if signal.getsignal(number) is not signal.SIG_IGN}


class Stopped(Exception):
    """A signal asked the program to end; it has, and this says with which code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def ended(command: Callable[[], int]) -> int:
    """Run a command and turn whatever it raises into a line on stderr and an exit code."""
    code = _code_of(command)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _drop_output()  # That it cannot be written is told by now, or something worse is.
    return code


def _code_of(command: Callable[[], int]) -> int:
    try:
        prepare_streams()
        _quiet_log()
        try:
            code = command()
        except SystemExit as leaving:  # argparse, after --help
            code = leaving.code if isinstance(leaving.code, int) else 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _pipe_closed()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Stopped as stopped:
        return stopped.code
    except (Exception, BaseExceptionGroup) as error:
        return _failed(error)


def _failed(error: BaseException) -> int:
    from trouper._errors import TrouperError

    if isinstance(error, BaseExceptionGroup):
        found = _only(error)
        if isinstance(found, BrokenPipeError):
            return _pipe_closed()
        if isinstance(found, KeyboardInterrupt):
            return INTERRUPTED
        if isinstance(found, Stopped):
            return found.code
        error = found
    if isinstance(error, TrouperError):
        say(error.message)
        return error.exit_code
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        traceback.print_exception(error)
    of_the_world = of_the_system(error)
    if of_the_world is not None:
        say(of_the_world)
        return 77 if isinstance(error, PermissionError) else 74
    say(
        f"{type(error).__name__}: {error}; this is a bug of Trouper's: please report it, with what {TRACEBACK_VARIABLE}=1 adds"
    )
    return INTERNAL


def of_the_system(error: BaseException) -> str | None:
    """What the system did not do for us, and what to do about it. None: that is not what is wrong."""
    match error:
        case MemoryError():
            return _NO_MEMORY
        case ImportError() if any(words in str(error) for words in _UNMAPPED):
            return _NO_MEMORY
        case RuntimeError() if "start new thread" in str(error):
            return "no thread can be started; raise the limits on threads and memory (ulimit -u, ulimit -v)"
        case BlockingIOError():  # What would have to be waited for elsewhere is, so that it is left to those who make processes.
            return "no process can be started; end some, or raise the limit on them (ulimit -u)"
        case OSError(errno=number) if number in SHORTAGES:
            return SHORTAGES[number]
        case FileNotFoundError(filename=name) if _is_nowhere(name):
            return "the current directory is no longer there; change to another, or give whole paths"
        case OSError():
            where = f": {error.filename!r}" if error.filename else ""
            return f"{error.strerror or error}{where}; check the disk and its permissions"
    return None


def _is_nowhere(name: object) -> bool:
    """Whether a file could not be found because its name begins nowhere."""
    if isinstance(name, str) and os.path.isabs(name):
        return False
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error in a group that matters most: a lone one, else the first that we raised on purpose."""
    from trouper._errors import TrouperError

    flat: list[BaseException] = []
    left: list[BaseException] = [group]
    while left:
        item = left.pop(0)
        if isinstance(item, BaseExceptionGroup):
            left = [*item.exceptions, *left]
        else:
            flat.append(item)
    ours = (item for item in flat if isinstance(item, TrouperError | Stopped | BrokenPipeError | KeyboardInterrupt))
    return next(ours, flat[0])


def say(message: str) -> None:
    """One line on stderr, whatever the message holds."""
    from trouper.cli.terminal import clean_message

    with contextlib.suppress(OSError):  # Perhaps nobody listens on stderr either.
        print(f"trouper: {clean_message(message)}", file=sys.stderr, flush=True)


def _pipe_closed() -> int:
    """Whoever read our output has gone."""
    _drop_output()
    return PIPE_CLOSED


def _drop_output() -> None:
    """What Python still holds of the output must not raise again at the end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass
    finally:
        os.close(devnull)


def _quiet_log() -> None:
    """The log is for those who ask for it: people who use a command get lines that are meant for them."""
    import logging

    logger = logging.getLogger("trouper")
    level = os.environ.get(LOG_VARIABLE)
    if level:
        logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
        logger.setLevel(level.upper() if level.upper() in logging.getLevelNamesMapping() else "DEBUG")
    elif not logger.handlers:
        logger.addHandler(logging.NullHandler())
