"""What the three console programs share: exit codes and the way an error is shown."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable, Collection, Sequence

from stapo_results.errors import BadInput, StapoError


def _reader_gone() -> bool:
    """Whether what stdout goes to has ended, as `head` does; nothing more is then written to it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLERR)
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def check_command(prog: str, arguments: Sequence[str] | None, commands: Collection[str]) -> None:
    """Raises BadInput for a first word that is no command: tyro answers --help behind any word with exit code 0."""
    word = (sys.argv[1:] if arguments is None else arguments)[:1]
    if word and not word[0].startswith("-") and word[0] not in commands:
        raise BadInput("no such command", found=word[0], expected=", ".join(commands), next_step=f"{prog} --help")


def run_main(main: Callable[[], int | None]) -> int:
    """Run a command's body and turn its end into the agreed exit code (see `errors`).

    An unexpected exception keeps its traceback: it is a defect, and hiding it would hide where. A KeyboardInterrupt
    may carry what its command says of it.
    """
    try:
        try:
            return main() or 0
        finally:
            sys.stdout.flush()  # at the interpreter's end it would be too late to say anything
    except StapoError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt as e:
        said = e.args[0] if e.args else "nothing finished is lost; the same command goes on from here"
        print(f"interrupted: {said}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _reader_gone():
            raise
        return 1
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            print(
                f"error: the disk is full, or a quota ({e.filename or os.getcwd()}): {e.strerror}\n"
                "  next:     free some space, then run the same command: it goes on",
                file=sys.stderr,
            )
            return 1
        raise
