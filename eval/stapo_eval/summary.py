"""From samples and verdicts to cell records and the summary: pure functions, the same bytes each time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stapo_results.benchmarks import Benchmark
from stapo_results.schema import Cell, CellRecord, JudgeVerdict, ProblemResult, Run, Sample, Verdict
from stapo_results.statistics import clustered, parse_verdicts

_JUDGE_LETTER: dict[JudgeVerdict, str] = {"correct": "c", "incorrect": "i", "invalid": "x", "not_asked": "."}


def _letter(sample: Sample, verdict: Verdict) -> str:
    """1, 0, or - where the engine gave no response: an engine's failure is missing data, not a wrong answer."""
    return "-" if sample.finish_reason == "error" else "1" if verdict.correct else "0"


def cell_record(
    cell: Cell,
    benchmark: Benchmark,
    problem_ids: Sequence[str],
    n: int,
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict],
    *,
    decoding: tuple[float, float, int],
    scored_by: str,
    judge_note: str,
    run: Run,
    engine: str,
    miniature: bool,
) -> CellRecord:
    """The record of one finished cell.

    Args:
        samples, verdicts: those of this cell, in the same order.
        decoding: temperature, top_p, max_tokens.
    """
    letters = {i: ["-"] * n for i in problem_ids}
    judged = {i: ["."] * n for i in problem_ids}
    for s, v in zip(samples, verdicts, strict=True):
        letters[s.problem_id][s.sample_index] = _letter(s, v)
        judged[s.problem_id][s.sample_index] = _JUDGE_LETTER[v.judge]
    asked = any(v.judge != "not_asked" for v in verdicts)
    identity = benchmark.identity
    part = "" if len(problem_ids) == len(benchmark.problems) else (
        f"only the first {len(problem_ids)} of {len(benchmark.problems)} problems"
    )  # fmt: skip
    return CellRecord(
        cell=cell,
        n=n,
        temperature=decoding[0],
        top_p=decoding[1],
        max_tokens=decoding[2],
        scored_by=scored_by,  # type: ignore[arg-type]  # pydantic checks it
        judge_note=judge_note,
        problems=[
            ProblemResult(problem_id=i, verdicts="".join(letters[i]), judged="".join(judged[i]) if asked else "")
            for i in problem_ids
        ],
        benchmark_rows=identity.rows,
        benchmark_sha256=identity.golds_sha256,
        variant="; ".join(x for x in (identity.variant, part) if x),
        text_variants=len(identity.text_variants),
        finish_reasons=dict(sorted(Counter(s.finish_reason for s in samples).items())),
        no_answer=sum(v.reason == "no_answer" for v in verdicts),
        mean_response_tokens=round(math.fsum(s.response_tokens for s in samples) / max(1, len(samples)), 3),
        engine=engine,
        deterministic=run.deterministic,
        run_id=run.run_id,
        code_commit=run.code_commit,
        code_dirty=run.code_dirty,
        revisions=run.revisions,
        miniature=miniature,
    )


def _number(x: float) -> float | None:
    return None if math.isnan(x) else round(x, 8)


def summarise(record: CellRecord) -> dict[str, Any]:
    """avg@N with its 95 % interval and the shares that a reader needs to trust it; fractions, null where undefined."""
    estimate = clustered([parse_verdicts(p.verdicts) for p in record.problems])
    letters = "".join(p.verdicts for p in record.problems)
    total = len(letters)
    judged = Counter("".join(p.judged for p in record.problems))
    return {
        "cell": record.cell.id,
        "benchmark": record.cell.benchmark,
        "setting": record.cell.setting,
        "n": record.n,
        "problems": len(record.problems),
        "correct": letters.count("1"),
        "samples": total,
        "missing": letters.count("-"),
        "accuracy": _number(estimate.mean),
        "standard_error": _number(estimate.se),
        "low": _number(estimate.low),
        "high": _number(estimate.high),
        "truncated": round(record.finish_reasons.get("length", 0) / total, 8),
        "no_answer": round(record.no_answer / total, 8),
        "mean_response_tokens": record.mean_response_tokens,
        "judge": {name: judged.get(letter, 0) for name, letter in _JUDGE_LETTER.items() if name != "not_asked"},
        "scored_by": record.scored_by,
        "judge_note": record.judge_note,
        "variant": record.variant,
        "text_variants": record.text_variants,
    }


def print_summary(summary: Mapping[str, Any]) -> None:
    """The closing table, on stdout."""
    from rich.console import Console
    from rich.table import Table

    def percent(x: float | None) -> str:
        return "–" if x is None else f"{100 * x:.1f}"

    table = Table(title=f"{summary['model']}, accuracy in %")
    for name in ("benchmark", "setting", "avg@N", "95 % interval", "k of n", "cut off", "no box", "judge c/i/x"):
        table.add_column(name, justify="left" if name in ("benchmark", "setting") else "right")
    for c in summary["cells"]:
        j = c["judge"]
        table.add_row(
            c["benchmark"],
            c["setting"],
            f"{percent(c['accuracy'])} @{c['n']}",
            f"{percent(c['low'])} to {percent(c['high'])}",
            f"{c['correct']} of {c['samples'] - c['missing']}",
            percent(c["truncated"]),
            percent(c["no_answer"]),
            f"{j['correct']}/{j['incorrect']}/{j['invalid']}",
        )
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)
    for note in summary["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False)


def notes(records: Sequence[CellRecord], samples: Sequence[Sample]) -> list[str]:
    """What a reader must know beside the numbers, loudest first."""
    out = []
    errors = Counter(s.cell for s in samples if s.finish_reason == "error")
    for cell, count in errors.items():
        first = next(s.error for s in samples if s.cell == cell and s.finish_reason == "error")
        out.append(f"{count} samples of {cell} are MISSING because the engine failed on them: {first}")
    for r in records:
        if r.variant:
            out.append(f"{r.cell.benchmark}: {r.variant}")
        if r.text_variants:
            out.append(f"{r.cell.benchmark}: {r.text_variants} problem texts differ from the registered copy")
        if r.judge_note:
            out.append(r.judge_note)
    return list(dict.fromkeys(out))
