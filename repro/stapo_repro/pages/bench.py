"""What the evaluation's bench measured, for docs/evaluation.md: from its records alone."""

from __future__ import annotations

from pathlib import Path

from stapo_repro.text import grid
from stapo_results.schema import Bench, Run
from stapo_results.store import read_json


def _grading(bench: Bench) -> list[str]:
    """Every way beside ours; the spread of "times as fast" is that of its ratio to the baseline within a repeat."""
    ours = next(r for r in bench.rows if r.name == "stapo-eval grade")
    head = ["Way of grading", "Seconds", "Time against ours", "Same verdict as ours", "Agrees with the label"]
    rows = [
        [r.name, f"{r.seconds:.2f}", f"{r.seconds / ours.seconds:.1f}"]
        + [f"{100 * r.values[name]:.2f} %" for name in ("agrees_with_stapo", "agrees_with_label")]
        for r in bench.rows
    ]
    n, distinct = int(ours.values["responses"]), int(bench.labels["distinct"])
    summary = (
        f"{n:,} made-up responses ({distinct:,} distinct answers) to {bench.labels['golds']}, the best of "
        f"{bench.labels['repeats']} repeats; against {bench.baseline} ours was {1 / ours.ratio_high:.1f} to "
        f"{1 / ours.ratio_low:.1f} times as fast within a repeat."
    )
    return [f"**Grading.** {summary}", "", *grid(head, rows)]


def _generation(bench: Bench) -> list[str]:
    row = next(r for r in bench.rows if r.name == "end to end, one queue")
    return [
        f"**End to end** (engine {row.labels['engine']}, {int(row.labels['samples']):,} samples of a tiny model, six "
        f"benchmarks, two settings): {row.ratio:.2f} of the time of the usual loop ({row.ratio_low:.2f} to "
        f"{row.ratio_high:.2f}); {100 * row.values['own_share']:.1f} % of our wall time is not the engine's."
    ]


def _summary(bench: Bench) -> list[str]:
    row = bench.rows[0]
    return [
        f"**Summary** of {int(row.values['records']):,} records ({row.values['megabytes']:.0f} MB) with "
        f"{int(row.values['resamples']):,} bootstrap draws: {row.seconds:.1f} s."
    ]


def _engines(bench: Bench) -> list[str]:
    """Ratios are of times: below 1 is faster than the best batch size by hand."""
    head = ["Way of sampling", "Tokens a second", "Time against the best by hand", "Share of the matrix product"]
    rows = [
        [r.name, f"{r.values['tokens_per_second']:.0f}", f"{r.ratio:.2f} ({r.ratio_low:.2f} to {r.ratio_high:.2f})",
         f"{100 * r.values['share']:.0f} %"]
        for r in bench.rows
    ]  # fmt: skip
    labels = bench.labels
    summary = (
        f"{labels['responses']} responses of at most {labels['max_tokens']} tokens from a model of "
        f"{int(labels['parameters']):,} parameters, {labels['threads']} threads; a product of square matrices reaches "
        f"{labels['gflops']} GFLOP/s."
    )
    return [f"**Engines.** {summary}", "", *grid(head, rows)]


def page_block(folder: Path) -> str:
    """The block of the page from a folder such as results/records/bench; a part without a record is "not run"."""
    lines: list[str] = []
    machines = []
    parts = {"grading": _grading, "generation": _generation, "summary": _summary, "engines": _engines}
    for part, write in parts.items():
        path = folder / part / "bench.json"
        if not path.exists():
            lines += [f"**{part.capitalize()}**: not run.", ""]
            continue
        lines += [*write(read_json(path, Bench)), ""]
        run = read_json(path.with_name("run.json"), Run)
        machines.append(
            f"{run.hardware['cores']} cores of {run.hardware['cpu']}, code {run.code_commit[:12]}, "
            f"{run.config['repeats']} repeats"
        )
    if machines:
        lines.append(f"Measured by `stapo-eval bench` on {'; '.join(dict.fromkeys(machines))}.")
    return "\n".join(lines)
