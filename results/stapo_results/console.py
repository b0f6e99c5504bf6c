"""What the three console programs share: exit codes and the way an error is shown."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from stapo_results.errors import StapoError


def run_main(main: Callable[[], int | None]) -> int:
    """Run a command's body and turn its end into the agreed exit code (see `errors`).

    An unexpected exception keeps its traceback: it is a defect, and hiding it would hide where.
    """
    try:
        return main() or 0
    except StapoError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("interrupted: nothing finished is lost; the same command goes on from here", file=sys.stderr)
        return 130
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            print(
                f"error: the disk is full, or a quota ({e.filename or os.getcwd()}): {e.strerror}\n"
                "  next:     free some space, then run the same command: it goes on",
                file=sys.stderr,
            )
            return 1
        raise
