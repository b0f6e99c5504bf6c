"""Runs the commands of a check: a log each, the largest memory meanwhile, and nobody left afterwards."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from stapo_repro.run import processes
from stapo_repro.run.engine import CHILD_ENVIRONMENT
from stapo_results.errors import RunFailed
from stapo_results.provenance import nvidia_smi

_EVERY_SECONDS = 1.0
_TAIL = 15  # lines of a failed command's log that are shown


class Shell:
    """Commands that write into one folder, on one card or on none.

    Attributes:
        card: the card as CUDA_VISIBLE_DEVICES names it; "" hides all.
        peak: the largest GiB since `measured` began: "host_gib", and with a card "gpu_gib" above what was used before.
    """

    def __init__(self, out: Path, card: str):
        self.out, self.card = out, card
        self.mark = processes.new_mark(out)
        self.peak: dict[str, float] = {}
        self._started = 0

    def log(self, name: str) -> Path:
        return self.out / "logs" / f"{name}.log"

    def about_card(self, fields: str) -> list[str]:
        """nvidia-smi's values of the card, [] without one."""
        rows = [line.split(", ") for line in nvidia_smi(f"index,uuid,{fields}").splitlines()]
        mine = [r for r in rows if self.card and (r[0] == self.card or r[1].startswith(self.card))]
        return mine[0][2:] if mine else []

    @contextmanager
    def started(self, name: str, *command: str, grace: float = 20) -> Iterator[subprocess.Popen]:
        """A command in a session of its own, its output in `log(name)`; at the end all it started is gone."""
        self._started += 1
        mark = f"{self.mark}.{self._started:03d}"
        environment = CHILD_ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": self.card}
        environment |= {} if self.card else {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")}
        process = processes.start(command, self.log(name), mark, environment, self.out)
        try:
            yield process
        finally:
            processes.end_all(processes.Family(mark), process, grace)

    def run(self, name: str, *command: str, limit_s: float = 600) -> float:
        """Run a command to its end; returns its seconds.

        Raises:
            RunFailed: it failed or took longer than the limit, with the end of its log.
        """
        began = time.perf_counter()
        with self.started(name, *command, grace=5) as process:
            try:
                code: int | str = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = f"none within {limit_s:.0f} s"
        if code != 0:
            self.fail(name, f"exit code {code}")
        return time.perf_counter() - began

    def kill_when(self, name: str, there: Callable[[], bool], *command: str, limit_s: float = 600) -> None:
        """Run a command until `there()` is true, and end it with SIGKILL.

        Raises:
            RunFailed: it ended before that, or never came so far.
        """
        with self.started(name, *command, grace=0) as process:
            deadline = time.monotonic() + limit_s
            while not there():
                if process.poll() is not None or time.monotonic() > deadline:
                    self.fail(name, "it did not come to the place where it is killed")
                time.sleep(0.02)
            process.kill()

    def fail(self, name: str, found: str) -> None:
        """Raises: RunFailed: with the end of the log."""
        lines = self.log(name).read_text(errors="replace").splitlines()[-_TAIL:]
        raise RunFailed(f"{name} failed", found=found + "".join(f"\n    | {line[:300]}" for line in lines),
                        next_step=f"the whole log: {self.log(name)}")  # fmt: skip

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Fills `peak` while it is open."""
        family, before, over = processes.Family(self.mark), self.about_card("memory.used"), threading.Event()
        self.peak = {}

        def watch() -> None:
            while not over.wait(_EVERY_SECONDS):
                now = {"host_gib": _host_gib(family)}
                if before and (used := self.about_card("memory.used")):
                    now["gpu_gib"] = (float(used[0]) - float(before[0])) / 1024
                self.peak = {k: round(max(v, self.peak.get(k, 0.0)), 2) for k, v in now.items()}

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _host_gib(family: processes.Family) -> float:
    """GiB of the family's own memory; what its processes share is not counted."""
    total = 0
    for p in family.members():
        with suppress(psutil.NoSuchProcess):
            memory = p.memory_info()
            total += memory.rss - memory.shared
    return total / 2**30
