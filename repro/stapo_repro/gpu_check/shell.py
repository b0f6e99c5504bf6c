"""Runs the commands of a check: a log each, the largest memory meanwhile, and nobody left afterwards."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from stapo_repro.driver import processes
from stapo_repro.driver.stages import CHILD_ENVIRONMENT
from stapo_results.errors import RunFailed
from stapo_results.provenance import nvidia_smi

_EVERY_SECONDS = 1.0
_TAIL = 15  # lines of a failed command's log that are shown


class Shell:
    """Commands that write into one folder.

    Attributes:
        environment: variables of every command.
        peak: the largest GiB since `measured` began, by where: "host_gib", and on a GPU "gpu_gib" above what was used
            before.
    """

    def __init__(self, out: Path, environment: dict[str, str]):
        self.out, self.environment = out, CHILD_ENVIRONMENT | environment
        self.mark = processes.new_mark(out)
        self.family = processes.Family(self.mark)
        self.peak: dict[str, float] = {}

    def log(self, name: str) -> Path:
        return self.out / "logs" / f"{name}.log"

    def start(self, name: str, *command: str) -> subprocess.Popen:
        """Start a command in a session of its own; its output goes to `log(name)`."""
        return processes.start(command, self.log(name), self.mark, self.environment, self.out)

    def run(self, name: str, *command: str, limit_s: float = 600) -> float:
        """Run a command to its end; returns its seconds.

        Raises:
            RunFailed: it failed or took longer than the limit, with the end of its log.
        """
        began = time.perf_counter()
        process = self.start(name, *command)
        try:
            code: int | str = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = f"none within {limit_s:.0f} s"
        finally:
            processes.end_all(self.family, process, grace=5)
        if code != 0:
            self.fail(name, f"exit code {code}")
        return time.perf_counter() - began

    def kill_when(self, name: str, there: Callable[[], bool], *command: str, limit_s: float = 600) -> None:
        """Run a command until `there()` is true, then end it and all it started with SIGKILL.

        Raises:
            RunFailed: it ended before that, or never came so far.
        """
        process = self.start(name, *command)
        deadline = time.monotonic() + limit_s
        while not there():
            if process.poll() is not None or time.monotonic() > deadline:
                processes.end_all(self.family, process, grace=0)
                self.fail(name, "it did not come to the place where it is killed")
            time.sleep(0.02)
        self.family.members()
        process.kill()
        processes.end_all(self.family, process, grace=0)

    def fail(self, name: str, found: str) -> None:
        """Raises: RunFailed: with the end of the log."""
        lines = self.log(name).read_text(errors="replace").splitlines()[-_TAIL:]
        raise RunFailed(f"{name} failed", found=found + "".join(f"\n    | {line[:300]}" for line in lines),
                        next_step=f"the whole log: {self.log(name)}")  # fmt: skip

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Fills `peak` while it is open."""
        self.peak, before, over = {}, _gpu_gib(), threading.Event()

        def watch() -> None:
            while not over.wait(_EVERY_SECONDS):
                now = {"host_gib": self._host_gib()}
                if before is not None:
                    now["gpu_gib"] = (_gpu_gib() or 0.0) - before
                self.peak = {k: round(max(v, self.peak.get(k, 0.0)), 2) for k, v in now.items()}

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _host_gib(self) -> float:
        total = 0
        for p in self.family.members():
            with suppress(psutil.NoSuchProcess):
                memory = p.memory_info()
                total += memory.rss - memory.shared
        return total / 2**30


def _gpu_gib() -> float | None:
    """GiB in use on the first card, None without one."""
    used = nvidia_smi("memory.used").split()
    return float(used[0]) / 1024 if used and used[0].isdigit() else None
