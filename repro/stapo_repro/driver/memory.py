"""Peak memory of a tree of processes, shared pages counted once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_KIB = 1024
_PAGE = 4096


def pss_bytes(pid: int) -> int | None:
    """Proportional set size: own pages plus a fair part of the shared ones. None when the process is gone or hidden."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * _KIB
    return None


def unshared_bytes(pid: int) -> int:
    """Resident minus file-backed and shared-memory pages: cheap, but counts pages that forks share once for each.

    0 when the process is gone.
    """
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE


class Peak:
    """Highest sum of PSS that was seen.

    Reading PSS makes the kernel walk all page tables (5 to 20 ms a process), so the cheap sum is taken each time, and
    PSS when that reached a new height or when five seconds have passed. Where PSS cannot be read, the cheap value
    stands in.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._cheap_peak = 0
        self._last = 0.0

    def sample(self, pids: Iterable[int]) -> int:
        """Look once at these processes.

        Returns:
            The peak so far, bytes.
        """
        pids = list(pids)
        cheap = sum(map(unshared_bytes, pids))
        now = time.monotonic()
        if cheap > 1.02 * self._cheap_peak or now - self._last > 5:
            self._cheap_peak, self._last = max(cheap, self._cheap_peak), now
            pss = {p: pss_bytes(p) for p in pids}
            total = sum(unshared_bytes(p) if v is None else v for p, v in pss.items())
            self.bytes = max(self.bytes, total)
        return self.bytes
