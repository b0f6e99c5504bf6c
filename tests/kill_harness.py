"""Kills `stapo-eval run` at chosen stages and random moments, and starts it again, until it is done.

As a program it is the other half: a process that has imported what a run needs and forks once for every command that
it reads, so that two hundred starts do not cost two hundred imports of torch. The forked process runs the real command
line; nothing of a run's own work is done before the fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STAGES = ("start", "generate", "grade", "judge", "summary")
DEADLINE = 300.0  # seconds for one start, on a loaded machine


def _serve() -> None:
    import math_verify  # noqa: F401
    import torch
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    import stapo_eval.run  # noqa: F401
    from stapo_eval.cli import main
    from stapo_results import generation  # noqa: F401

    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            with open(order["log"], "ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ |= order["env"]
            if order["file_limit"]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"],) * 2)
            sys.argv = ["stapo-eval", *order["argv"]]
            code = 1
            try:
                code = main(order["argv"])
            except SystemExit as e:
                code = int(e.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class Forker:
    """Starts commands one after another; `env` is added to each."""

    def __enter__(self) -> Forker:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    @contextlib.contextmanager
    def start(self, argv: Sequence[str], log: Path, env: dict[str, str], file_limit: int = 0) -> Iterator[Started]:
        assert self.process.stdin is not None
        order = {"argv": list(argv), "log": str(log), "env": env, "file_limit": file_limit}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        started = Started(int(self._line()))
        try:
            yield started
        finally:
            started.code = int(self._line())  # waits for the end


@dataclass
class Started:
    pid: int
    code: int | None = None

    def alive(self) -> bool:
        """Whether it runs; a zombie that waits for its parent does not."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def stage_of(out: Path, progress: Path, total: int) -> str:
    """Where a run stands, read from outside: from its files and from what it tells a driver."""
    samples = out / "samples.jsonl"
    if not samples.exists():
        return "start"
    if samples.read_bytes().count(b"\n") < total:
        return "generate"
    if (out / "verdicts.jsonl").exists() and not (out / "summary.json").exists():
        return "summary"
    try:
        stage = str(json.loads(progress.read_text())["stage"])
    except (FileNotFoundError, json.JSONDecodeError):
        return "start"
    return stage if stage in STAGES else "start"


@dataclass
class Series:
    """One run folder that is killed several times and then left to end.

    Attributes:
        argv: of `stapo-eval`, without --out.
        kills: where the kills hit.
        seen: lines of the samples file that were whole when a process was killed.
    """

    forker: Forker
    argv: Sequence[str]
    out: Path
    total: int
    draw: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    seen: set[bytes] = field(default_factory=set)

    @property
    def progress(self) -> Path:
        return self.out.with_suffix(".progress")

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".log")

    def _start(self) -> contextlib.AbstractContextManager[Started]:
        self.progress.unlink(missing_ok=True)
        env = {"STAPO_PROGRESS": str(self.progress)}
        return self.forker.start([*self.argv, "--out", str(self.out)], self.log, env)

    def kill_in(self, stage: str, most_delay: float) -> bool:
        """Start, wait for the stage and a random while, kill. False: the process had ended before."""
        began = time.monotonic()
        with self._start() as process:
            while process.alive() and STAGES.index(self._stage()) < STAGES.index(stage):
                assert time.monotonic() - began < DEADLINE, self.log.read_text()
                time.sleep(0.001)
            time.sleep(self.draw.uniform(0, most_delay))
            hit = self._stage()
            process.kill()
        if process.code != -signal.SIGKILL:
            assert process.code == 0, self.log.read_text()
            return False
        self.kills[hit] += 1
        self._check_kept()
        return True

    def _stage(self) -> str:
        return stage_of(self.out, self.progress, self.total)

    def _check_kept(self) -> None:
        """What was whole on record at an earlier kill still is, once."""
        path = self.out / "samples.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [x for x in lines if x.endswith(b"\n")]
        assert len(set(whole)) == len(whole), "a sample stands twice"
        assert self.seen <= set(whole), "a recorded sample was lost or made anew"
        self.seen = set(whole)

    def finish(self) -> None:
        with self._start() as process:
            pass
        assert process.code == 0, self.log.read_text()
        self._check_kept()


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


if __name__ == "__main__":
    _serve()
