"""`python -m stapo_repro.driver.watchdog MARK`: waits until the driver's end of the pipe closes; see `processes`."""

from __future__ import annotations

import sys

from stapo_repro.driver.processes import Family, end_all


def main() -> None:
    goodbye = sys.stdin.buffer.read()  # blocks until the driver closes its end, or dies
    if goodbye != b"done":
        end_all(Family(sys.argv[1]))


if __name__ == "__main__":
    main()
