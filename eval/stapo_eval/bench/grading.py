"""How fast responses are graded, and with which verdicts: this suite, math-verify one call after the other, lighteval.

All see the same made-up responses in one run. This suite starts with nothing warm: its time holds the start of the
processes and their imports. math-verify is called as its documentation shows, in this process, its imports done; once
on the whole response and, which is kinder to it, once on the boxed answer alone. The second is the baseline.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from stapo_eval.bench import responses
from stapo_eval.bench.responses import Response
from stapo_eval.grading.pool import Limits, Pool
from stapo_eval.grading.rules import in_one
from stapo_results.answers import last_boxed
from stapo_results.benching import timed_row
from stapo_results.errors import RunFailed
from stapo_results.schema import BenchRow

BASELINE = "math-verify, boxed answer, serial"
OURS = "stapo-eval grade"
Verdicts = list[bool]


@dataclass(frozen=True)
class Size:
    """What is measured. repeats: of everything, each way once a repeat."""

    share: float = 1.0
    repeats: int = 3
    seed: int = 0
    workers: int = 0


def ours(made: list[Response], workers: int) -> tuple[float, Verdicts]:
    began = time.perf_counter()
    with Pool(Limits(workers=workers)) as pool:
        verdicts = [o.rule for o in pool.grade([x.item for x in made])]
    return time.perf_counter() - began, verdicts


def math_verify(made: list[Response], *, whole: bool) -> tuple[float, Verdicts]:
    """math-verify's parse and verify, one response after the other, with its own time limits."""
    from math_verify import parse, verify

    texts = [x.text if whole else f"\\boxed{{{last_boxed(x.text) or ''}}}" for x in made]
    golds = [in_one(x.gold) for x in made]
    began = time.perf_counter()
    verdicts = [bool(verify(parse(f"${g}$"), parse(t))) for g, t in zip(golds, texts, strict=True)]
    return time.perf_counter() - began, verdicts


def lighteval_python() -> str:
    """An interpreter that has lighteval: this one, or tox's; "" where there is none."""
    if find_spec("lighteval"):
        return sys.executable
    beside = Path(sys.prefix).parent / "lighteval" / "bin" / "python"
    return str(beside) if beside.exists() else ""


def lighteval(made: list[Response], python: str, folder: Path) -> tuple[float, Verdicts]:
    """lighteval's metric, in an interpreter of its own.

    Raises:
        RunFailed: it does not run there.
    """
    source, target = folder / "responses.jsonl", folder / "verdicts.jsonl"
    lines = [{"id": i, "answer": in_one(x.gold), "response": x.text} for i, x in enumerate(made)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [python, "-m", "stapo_eval.interop.lighteval_grade", "--input", str(source), "--output", str(target)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise RunFailed(
            "lighteval's metric does not run",
            found=ended.stderr.strip().splitlines()[-1:],
            next_step=f"{python} -m stapo_eval.interop.lighteval_grade --help   shows why; tox -e lighteval makes one",
        )
    graded = [json.loads(line) for line in target.read_text().splitlines()]
    return math.fsum(g["seconds"] for g in graded), [g["rule"] for g in graded]


def _agreement(a: Verdicts, b: Verdicts) -> float:
    return sum(x == y for x, y in zip(a, b, strict=True)) / len(a)


def _row(
    name: str, times: list[float], baseline: list[float], verdicts: dict[str, Verdicts], labels: Verdicts
) -> BenchRow:
    mine = verdicts[name]
    values = {
        "responses": float(len(mine)),
        "responses_per_second": len(mine) / min(times),
        "accepted": float(sum(mine)),
        "agrees_with_stapo": _agreement(mine, verdicts[OURS]),
        "agrees_with_label": _agreement(mine, labels),
    }
    return timed_row(name, times, baseline, values=values)


def rows(
    data_dir: Path | None, size: Size | None = None, say: Callable[[str], None] = print
) -> tuple[list[BenchRow], dict[str, str]]:
    """Measured rows, and labels that say what was graded and what was not run.

    Args:
        data_dir: folder of the six benchmarks, or None for problems of our own.

    Raises:
        RunFailed: lighteval is there and its metric does not run.
    """
    size = size or Size()
    made = responses.make(data_dir, seed=size.seed, share=size.share)
    labels = {k: str(v) for k, v in asdict(size).items()} | {
        "golds": "six benchmarks" if data_dir is not None else "problems of our own",
        "distinct": str(len({x.item for x in made})),
        "characters": str(sum(len(x.text) for x in made) // len(made)),
    }
    ways: dict[str, Callable[[], tuple[float, Verdicts]]] = {
        OURS: lambda: ours(made, size.workers),
        BASELINE: lambda: math_verify(made, whole=False),
        "math-verify, whole response, serial": lambda: math_verify(made, whole=True),
    }
    folder = Path(tempfile.mkdtemp())
    if found := lighteval_python():
        ways["lighteval's metric"] = lambda: lighteval(made, found, folder)
    else:
        labels["lighteval's metric"] = "not run: lighteval is not installed (tox -e lighteval makes its environment)"
    times: dict[str, list[float]] = {name: [] for name in ways}
    verdicts: dict[str, Verdicts] = {}
    try:
        for repeat in range(size.repeats):
            for name, way in ways.items():
                seconds, verdicts[name] = way()
                times[name].append(seconds)
                say(f"repeat {repeat + 1}/{size.repeats}, {name}: {len(made)} responses in {seconds:.2f} s")
    finally:
        shutil.rmtree(folder)
    truth = [x.label for x in made]
    return [_row(name, own, times[BASELINE], verdicts, truth) for name, own in times.items()], labels
