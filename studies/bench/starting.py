"""How long a training takes before its first step and after its last, by part, beside an earlier commit's.

A part ends when a file of the training's folder appears or grows, so that every commit is measured alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from stapo_repro.paper import checkout
from stapo_results import store
from stapo_results.errors import RunFailed
from stapo_results.schema import Run
from stapo_training.miniature.build import build_base
from studies.bench import benching
from studies.bench.benching import Bench, BenchRow

WINGS = ("results", "training", "eval", "repro")
PARTS = ("checks", "workers", "first step", "other steps", "end")
"""Until run.json is there; until veRL's loop begins (STATUS.md); until the first and the last step are in
metrics.jsonl; until the process has ended."""
_COMMAND = "import sys; from stapo_training.cli import main; sys.exit(main())"


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """A clone of this repository at a commit; this checkout itself for ""."""
    if not commit:
        yield checkout()
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", "--no-checkout", str(checkout()), folder], check=True)
        subprocess.run(["git", "-C", folder, "checkout", "-q", commit], check=True)
        yield Path(folder)


def parts_of(out: Path, steps: int, start: Callable[[], subprocess.Popen[bytes]]) -> dict[str, float]:
    """Start a training into `out`, and return the seconds of each of PARTS.

    Raises:
        RunFailed: the training failed.
    """
    metrics = out / "metrics.jsonl"

    def logged(count: int) -> bool:
        return metrics.is_file() and metrics.read_bytes().count(b"\n") >= count

    reached = [(out / "run.json").is_file, (out / "STATUS.md").is_file, lambda: logged(1), lambda: logged(steps)]
    times, process = [time.perf_counter()], start()
    try:
        running = True
        while running:
            running = process.poll() is None  # looked at before its files: it may end between two looks
            while len(times) <= len(reached) and reached[len(times) - 1]():
                times.append(time.perf_counter())
            time.sleep(0.02)
    finally:
        process.terminate()  # a training ends its processes itself
        process.wait()
    times.append(time.perf_counter())
    if process.returncode or len(times) != len(PARTS) + 1:
        raise RunFailed("a training of the bench failed", found=f"exit code {process.returncode}", expected="0",
                        next_step="its words are above")  # fmt: skip
    return {name: end - begin for name, begin, end in zip(PARTS, times, times[1:], strict=False)}


def training(tree: Path, base: Path, out: Path, steps: int) -> Callable[[], subprocess.Popen[bytes]]:
    """A training of the miniature by the code of a tree, without validation."""
    asked = ["method=stapo", "size=mini", "hardware=cpu", f"run.steps={steps}", f"run.base={base}", f"run.out={out}"]
    command = [sys.executable, "-c", _COMMAND, "run", *asked, "trainer.test_freq=-1", "trainer.val_before_train=false"]
    places = {"PYTHONPATH": os.pathsep.join(str(tree / w) for w in WINGS), "PYTHONSAFEPATH": "1"}
    return lambda: subprocess.Popen(command, env={**os.environ, **places}, stdout=subprocess.DEVNULL)


def _busy() -> float:
    """Seconds that this machine's cores have worked."""
    spent = psutil.cpu_times()
    return spent.user + spent.nice + spent.system


def bench_start(out: Path, repeats: int, before: str, steps: int = 2) -> Bench:
    """Time trainings of the miniature by each commit in turn; the record (run.json, bench.json) is in `out`.

    Args:
        before: a commit; "" leaves it out.
    """

    def measured() -> tuple[list[BenchRow], dict[str, str]]:
        found: dict[str, list[dict[str, float]]] = {}
        commits: dict[str, str] = {}
        with tree_of("") as now, tree_of(before) as then, tempfile.TemporaryDirectory() as folder:
            build_base(base := Path(folder) / "base", 0)
            trees = {"now": now, f"at {before}": then} if before else {"now": now}
            for repeat in range(repeats):
                for name, tree in trees.items():
                    began, place = _busy(), Path(folder) / f"{name.replace(' ', '-')}-{repeat}"
                    parts = parts_of(place, steps, training(tree, base, place, steps))
                    commits[name] = store.read_json(place / "run.json", Run).code_commit
                    found.setdefault(name, []).append({**parts, "core seconds": _busy() - began})
                    print(f"{repeat + 1}/{repeats}, {name}: {sum(parts.values()):.1f} s", flush=True)
        outside = {name: [sum(p[x] for x in PARTS if x != "other steps") for p in all_] for name, all_ in found.items()}
        rows, base = [], list(outside.values())[-1]
        for name, seconds in outside.items():
            fastest, of = found[name][seconds.index(min(seconds))], {"commit": commits[name][:8]}
            rows.append(benching.timed_row(name, seconds, base, labels=of, values=fastest))
        return rows, {"steps": str(steps), "processors": str(os.cpu_count())}

    config = {"before": before, "steps": steps, "repeats": repeats, "seed": 0}
    return benching.record(out, "start", config, f"at {before}" if before else "now", measured)
