"""Made-up records at full size: 12 models x 2 settings x 6 benchmarks (215,616 samples) and their trainings.

    python tests/synthetic_suite.py OUT [--seeds 0,1,2] [--steps 3000] [--base]

For trying tables, statistics and figures before anything has been run. Every record says that it is synthetic (engine
and footnotes); none of the levels is the paper's or a measurement. Chances follow a logistic model: a problem has a
difficulty, which all models share, and a model an ability, so paired differences behave as real ones do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import synthetic_records as synthetic

from stapo_repro import labels
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS
from stapo_results.seeds import derive_seed

SAMPLES = 215_616
ABILITY = {"qwen3-1.7b": -1.0, "qwen3-8b": 0.5, "qwen3-14b": 1.0}
GAIN = {labels.BASE: -0.8, "grpo": 0.0, "entropy20": 0.1, "justrl": 0.0, "stapo": 0.4}
EASE = {"aime24": -1.0, "aime25": -1.4, "amc23": 0.8, "math500": 1.9, "minerva": -0.1, "olympiadbench": 0.2}
MARK = "These records are synthetic: made up by tests/synthetic_suite.py. They are no result of anything.\n"


def generator(*parts: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive_seed(*parts)))


def verdicts(size: str, method: str, benchmark: str, setting: str, seed: int) -> list[str]:
    """One string of N letters a problem."""
    spec = registry()[benchmark]
    difficulty = generator("difficulty", benchmark).normal(0, 1.6, spec.rows)
    run = generator("run", size, method, seed).normal(0, 0 if method == labels.BASE else 0.08)
    logit = ABILITY[size] + GAIN[method] + EASE[benchmark] + run + 0.2 * (setting == "t0.7") - difficulty
    draws = generator("draw", size, method, benchmark, setting, seed).random((spec.rows, spec.samples))
    right = draws < 1 / (1 + np.exp(-logit[:, None]))
    return ["".join("01"[int(x)] for x in row) for row in right]


def write(
    out: Path, *, seeds: tuple[int, ...] = (0,), sizes: tuple[str, ...] = tuple(ABILITY), steps: int = 3000,
    base: bool = False,
) -> int:  # fmt: skip
    """Write the records below `out` and return the number of samples in them; `steps` 0 writes no trainings."""
    whole = out.resolve()
    if any(p.name == "results" and (p / "paper").is_dir() for p in (whole, *whole.parents)):
        raise SystemExit(f"{out} is or lies in results/: synthetic records never stand there")
    out.mkdir(parents=True, exist_ok=True)
    (out / "SYNTHETIC.md").write_text(MARK)
    samples = 0
    for size in sizes:
        for method in (*((labels.BASE,) if base else ()), *labels.METHODS):
            for seed in seeds if method != labels.BASE else (0,):
                for benchmark in labels.PAPER_BENCHMARKS:
                    for setting in SETTINGS:
                        letters = verdicts(size, method, benchmark, setting, seed)
                        samples += sum(map(len, letters))
                        synthetic.cell(
                            out / "eval" / size, method, benchmark, setting, letters, size=size, seed=seed,
                            step="base" if method == labels.BASE else 3000, max_tokens=20480, judge_note="",
                        )  # fmt: skip
                if steps and method != labels.BASE:
                    synthetic.training_run(out / "train" / size, method, seed, steps, size)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description="Made-up records at full size, for tables and figures.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0", help="training seeds, separated by commas")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--base", action="store_true", help="the three base models too (53,904 samples more)")
    a = parser.parse_args()
    n = write(a.out, seeds=tuple(int(s) for s in a.seeds.split(",")), steps=a.steps, base=a.base)
    print(f"{n} synthetic samples and their trainings below {a.out}")


if __name__ == "__main__":
    main()
