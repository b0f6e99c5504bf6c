"""What a command shows: a live block on a terminal, elsewhere whole lines, at most one a minute; and its errors.

A command that the driver started tells it its progress by a small JSON file, whose path STAPO_PROGRESS holds.
"""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Self, TextIO

from stapo_results import safe_path
from stapo_results.errors import BadInput, RunFailed, StapoError, near_name
from stapo_results.store import FULL, write_atomic

PLAIN_SECONDS = 60.0
REDRAW_SECONDS = 0.25
PROGRESS = "STAPO_PROGRESS"


def duration(seconds: float | None) -> str:
    """ "4.6 s", "48 s", "24 min 12 s", "3 h 20 min", "2 d 4 h"; "?" where it is not known."""
    if seconds is None:
        return "?"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = int(seconds + 0.5)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    hours, minutes = divmod(int(rounded / 60 + 0.5), 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


class Display:
    """One line of what is under way, with lines that stay above it.

    Args:
        stream: where it goes.
        every: seconds between two plain lines.

    Attributes:
        live: the block that is drawn anew on a terminal; None elsewhere.
    """

    def __init__(self, stream: TextIO | None = None, every: float = PLAIN_SECONDS):
        self.stream = stream or sys.stderr
        self.every = every
        self._shown = time.monotonic()
        self.live = None

    def show(self, line: Callable[[], str] | str, share: float | None = None) -> None:
        """What is under way; may be called as often as convenient.

        Args:
            line: the one line; a function is called only when it is shown.
            share: finished, 0 to 1: a bar on a terminal.
        """
        now = time.monotonic()
        if now - self._shown < (REDRAW_SECONDS if self.live else self.every):
            return
        self._shown = now
        text = line() if callable(line) else line
        if self.live is None:
            self.say(text)
            return
        from rich.console import Group
        from rich.progress_bar import ProgressBar

        bar = [] if share is None else [ProgressBar(total=1.0, completed=min(share, 1.0), width=60)]
        self.live.update(Group(text, *bar), refresh=True)  # a bar ends without a line end

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        if self.live is None:
            print(text, file=self.stream, flush=True)
            return
        from rich.text import Text

        self.live.console.print(Text(text, style=style))  # print's own style would be the live block's too

    def __enter__(self) -> Self:
        if self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.stream, highlight=False, markup=False, emoji=False)
            self.live = Live(console=console, auto_refresh=False, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:  # what follows prints as usual
            self.live.stop()
            self.live = None


def report_progress(stage: str, done: int, total: int, **values: float | str) -> None:
    """Say to the driver, if one started this command, that `done` of `total` units of `stage` are finished; `values`
    are shown as they are (reward, entropy)."""
    if path := os.environ.get(PROGRESS):
        write_atomic(path, json.dumps({"stage": stage, "done": done, "total": total, "values": values}))


def read_progress(path: str | os.PathLike) -> dict | None:
    """The last report, or None before the first one."""
    try:
        return json.loads(Path(path).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _reader_gone() -> bool:
    """Whether what stdout goes to has ended, as `head` does; nothing more is then written to it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLERR)
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def check_command(
    prog: str, arguments: Sequence[str] | None, commands: Collection[str], repeated: Collection[str] = ()
) -> None:
    """Raises BadInput for a first word that is no command: tyro answers --help behind any word with exit code 0. And
    for a flag that is given twice, unless it is one of the `repeated`: tyro would take the last."""
    words = sys.argv[1:] if arguments is None else arguments
    word, flags = words[:1], [w.partition("=")[0].replace("_", "-") for w in words if w.startswith("--")]
    if word and not word[0].startswith("-") and word[0] not in commands:
        raise BadInput("no such command", found=word[0], expected=", ".join(commands),
                       next_step=f"{near_name(word[0], commands)}{prog} --help")  # fmt: skip
    if twice := [f for f in flags if flags.count(f) > 1 and f not in repeated]:
        raise BadInput("a flag is given twice", found=twice[0],
                       next_step="give it once: its values follow it, or are joined by commas (--help)")  # fmt: skip


@safe_path.for_children()
def run_main(main: Callable[[], int | None], extra: str = "") -> int:
    """Run a command's body and turn its end into the agreed exit code (see `errors`).

    An unexpected exception keeps its traceback: it is a defect, and hiding it would hide where. A KeyboardInterrupt
    may carry what its command says of it. Where `extra` names the extra of pyproject.toml with what the command
    imports, a package that is not installed is bad input.
    """
    try:
        try:
            code = main() or 0
        except BrokenPipeError:
            raise
        except BaseException:  # what ended the command is said, whether or not its output has a reader
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                if not _reader_gone():
                    raise
            raise
        sys.stdout.flush()  # at the interpreter's end it would be too late to say anything
        return code
    except StapoError as e:
        return _said("error", e, e.exit_code)
    except ModuleNotFoundError as e:
        # a module of this suite, or of a package that is installed, is a defect
        if not extra or not e.name or "." in e.name or e.name.startswith("stapo_"):
            raise
        cure = f"python -m pip install -c requirements/cpu.txt -e '.[{extra}]'   in the clone (README.md, Start)"
        return _said("error", BadInput(f"the package {e.name} is not installed in {sys.prefix}", next_step=cure), 2)
    except KeyboardInterrupt as e:
        default = "the same command starts again"
        return _said("interrupted", e.args[0] if e.args else default, 130)
    except BrokenPipeError:
        if not _reader_gone():
            raise
        return 1
    except OSError as e:
        if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and e.filename:
            denied = RunFailed("this user may not read or write what the command needs",
                               found=f"{e.filename}: {e.strerror}",
                               next_step="have its owner allow it, then repeat the command")  # fmt: skip
            return _said("error", denied, denied.exit_code)
        if e.errno not in FULL:
            raise
        full = f"the disk is full, or a quota{f' ({e.filename})' if e.filename else ''}: {e.strerror}"
        cure = "free some space, then repeat the command: it resumes"
        return _said("error", RunFailed(full, next_step=cure), 1)


def _said(kind: str, what: object, code: int) -> int:
    print(f"{kind}: {what}", file=sys.stderr)
    return code
