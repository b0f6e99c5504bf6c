"""The command: `python -m studies.bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from stapo_results.errors import BadInput
from studies import command


def bench(
    part: tyro.conf.Positional[Literal["training", "grading", "evaluation", "sampler", "mismatch", "update", "start"]],
    out: Path = Path("results/records/bench"),
    repeats: int = 3,
    data_dir: str = "",
    model: str = "",
    before: str = "",
    problems: str = "",
    quick: bool = False,
) -> None:
    """Time the ways of selecting, grading beside math-verify, or an evaluation beside the usual loop; with a record.

    Args:
        part: training: each way of selecting against JustRL's update. grading: the rule grader against math-verify.
            evaluation: one queue against an engine for each benchmark and setting. sampler: tokens a second of the CPU
            sampler against transformers' own and, with --before, an earlier commit's. mismatch: the sampler's
            probabilities against the trainer's. update: a micro-batch by each form of the logits' statistics. start:
            a training's seconds before its first step and after its last, and with --before an earlier commit's.
        out: The record (run.json, bench.json) is in a folder of the part's name below it.
        repeats: How often everything is timed; the fastest counts.
        data_dir: Of grading and sampler: folder with the benchmarks; if empty, $STAPO_DATA_DIR, else (grading)
            problems of our own.
        model: Of evaluation: folder of a small model, such as the miniature's. Of the others: of the model.
        before: Of start: a commit of this repository. Of sampler: one up to af01ada3.
        problems: Of mismatch: JSON lines with id, problem, answer and level, as MATH's training problems have.
        quick: Small sizes, one repeat: shows that it runs, measures nothing.
    """
    from studies.bench import benching

    repeats, share = (1, 0.05) if quick else (repeats, 1.0)
    if part == "training":
        from studies.bench import selecting

        found = selecting.bench(out / part, repeats, quick=quick)
    elif part == "start":
        from studies.bench import starting

        found = starting.bench_start(out / part, repeats, before)
    else:
        from stapo_results.benchmarks import find_data_dir
        from studies.bench import evaluating

        if part == "grading":
            found = evaluating.bench_grading(out / part, find_data_dir(data_dir), repeats, share)
        elif model and part == "sampler":
            from studies.bench import sampling

            sizes = (4, 8) if quick else (32, 64)
            found = sampling.bench_sampling(out / part, Path(model), find_data_dir(data_dir), repeats, before, *sizes)
        elif model and part in ("mismatch", "update"):
            from studies.bench import precision

            if part == "update":
                found = precision.bench_update(out / part, Path(model), repeats, 32 if quick else 512)
            else:
                sizes = (2, 8) if quick else (56, 512)
                found = precision.bench_mismatch(out / part, Path(model), Path(problems), *sizes)
        elif model:
            found = evaluating.bench_evaluation(out / part, model, repeats, share)
        else:
            raise BadInput(f"the part {part} needs --model", found="no --model", expected="folder of a small model",
                           next_step="stapo-train base --out DIR, then --model DIR/model")  # fmt: skip
    names = list(dict.fromkeys(name for r in found.rows for name in r.values))
    head = ["way", *found.rows[0].labels, "seconds", f"to {found.baseline} (spread)", *names]
    rows = [
        [r.name, *r.labels.values(), f"{r.seconds:.2f}", benching.spread(r)]
        + [f"{r.values[name]:.4g}" if name in r.values else "" for name in names]
        for r in found.rows
    ]
    print(benching.text([head, *rows]))
    print(*(f"{name}: {value}" for name, value in found.labels.items()), sep="\n")


if __name__ == "__main__":
    command.run(bench, "studies.bench", "train")
