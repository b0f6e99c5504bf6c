"""What a run prints: one line while it works, the tables at its end, and what it cost."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stapo_results import store, terminal
from stapo_results.answers import last_boxed
from stapo_results.schema import Run, Sample
from stapo_results.terminal import Display

if TYPE_CHECKING:
    from stapo_eval.plan import EvaluationPlan

_WIDTH = 160
_REPORT_SECONDS = 0.5


class Tally:
    """Counts of a run while it generates: the share that is right by rule without algebra, of all: the least accuracy.

    Those that need algebra are mostly wrong: a share of the decided ones alone would flatter.

    Attributes:
        failed: samples on which the engine failed.
        before, tokens: response tokens of the samples that were on record, and of this process's.
    """

    def __init__(self, plan: EvaluationPlan, recorded: Iterable[Sample]):
        self.cells = {c.cell.id: (f"{c.benchmark.name} {c.cell.setting}", c.golds()) for c in plan.cells}
        self.right, self.seen = Counter[str](), Counter[str]()
        self.failed = self.tokens = 0
        self.add(recorded)
        self.before, self.tokens = self.tokens, 0

    def add(self, samples: Iterable[Sample]) -> None:
        from stapo_eval.grading.rules import quick  # here: commands that only print start without it

        for s in samples:
            self.tokens += s.response_tokens
            if s.finish_reason == "error":
                self.failed += 1
                continue
            name, golds = self.cells[s.cell]
            gold, options = golds[s.problem_id]
            answer = last_boxed(s.response)
            self.seen[name] += 1
            self.right[name] += answer is not None and quick(gold, answer, options) is True

    def __str__(self) -> str:
        """The end of a line: failures, and each cell's least accuracy in percent."""
        names = dict.fromkeys(name for name, _ in self.cells.values())
        shares = "; ".join(f"{name} {100 * self.right[name] / n:.1f}" for name in names if (n := self.seen[name]))
        failed = f", {self.failed} FAILED" if self.failed else ""
        return failed + (f", in % so far by rule, at least: {shares}" if shares else "")


class StageDisplay(Display):
    """Counts of a stage; `update` may be called as often as convenient.

    Args:
        label: what is being worked on, shown before the stage.
    """

    def __init__(self, label: str):
        super().__init__()
        self.label, self.stage, self.first = label, "", 0
        self.began = self.reported = 0.0

    def start(self, stage: str, done: int, total: int) -> None:
        self.stage, self.first, self.began = stage, done, time.monotonic()
        if self.live is None:
            self.say(f"{self.label}: {stage}, {done} of {total} done")
        terminal.report_progress(stage, done, total)

    def update(self, done: int, total: int, tally: Tally | None = None, under_way: int = 0) -> None:
        """Show where the stage is; of generation, with its speed and accuracy so far.

        Args:
            under_way: tokens of responses that are not finished. They are a part of the work: by whole responses alone
                a run of long ones would seem ten times slower in its first minutes.
        """
        now, left, speed = time.monotonic(), None, 0.0
        if done > self.first:
            left = (now - self.began) * (total - done) / (done - self.first)
        if tally:
            speed = (tally.tokens + under_way) / max(1e-9, now - self.began)
            # the first to end are the short ones: as much is left of a response that is under way as of a new one
            if speed and (made := tally.before + tally.tokens):
                left = made / done * (total - done) / speed
        more = f", {speed:,.0f} tokens/s" if tally else ""
        line = f"{self.label}: {self.stage} {done}/{total}, {terminal.duration(left)} left{more}"
        self.show(lambda: f"{line}{tally or ''}", done / max(1, total))
        if now - self.reported >= _REPORT_SECONDS or done == total:
            self.reported = now
            terminal.report_progress(self.stage, done, total, **({"tokens_per_second": speed} if tally else {}))


def percent(x: float | None) -> str:
    """A fraction in percent; an en dash where it is undefined."""
    # plus 0.0: what rounds to zero has no sign
    return "–" if x is None else f"{round(100 * x, 1) + 0.0:.1f}"


def interval(low: float | None, high: float | None) -> str:
    """Both ends in percent, or an en dash."""
    return "–" if low is None or high is None else f"[{percent(low)}, {percent(high)}]"


def intervals(c: Mapping[str, Any]) -> list[str]:
    """The t and the bootstrap interval of an estimate."""
    return [interval(c["low"], c["high"]), interval(c["bootstrap_low"], c["bootstrap_high"])]


def p_value(p: float | None) -> str:
    """A p-value to three places; an en dash where there is none."""
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 2) -> None:
    """The first `text_columns` columns to the left, numbers to the right.

    No number is cut off: on a narrow terminal the lines wrap instead.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < text_columns else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False)
    console.width = max(console.width, _WIDTH)
    console.print(table)


def tables_of(summary: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, columns, rows) of the scores, the responses and, with a judge, its share."""

    def score(c: Mapping[str, Any]) -> list[str]:
        return [percent(c["accuracy"]), percent(c["standard_error"]), *intervals(c)]

    scores, responses, judged, tables = [], [], [], []
    for c in summary["cells"]:
        name, n = [c["benchmark"], c["setting"]], str(c["n"])
        counts = f"{c['correct']}/{c['samples'] - c['missing']}"
        scores.append([*name, n, *score(c), counts, percent(c["pass_at"][n]), percent(c["majority_at"][n])])
        lengths = [[c["response_tokens"][k][q] for k in ("correct", "incorrect")] for q in ("p50", "p95")]
        tokens = (" / ".join("–" if x is None else f"{x:,.0f}" for x in both) for both in lengths)
        responses.append([*name, percent(c["truncated"]), percent(c["no_answer"]), *tokens])
        a, j, without = c["audit"], c["judge"], Counter(c.get("judge_unanswered", {}))
        if a["asked"] or without:
            by_rule = a["rule_accuracy"] if a["asked"] else c["accuracy"]
            moved = [*map(percent, (by_rule, c["accuracy"], a["difference"])), interval(a["low"], a["high"])]
            letters = j["correct"], j["incorrect"], j["invalid"] - without["no_letter"], without["no_letter"]
            replies = "/".join(map(str, letters)), f"{without['too_long']}/{without['error']}/{without['stray']}"
            flips = f"{a['flips_to_correct']}/{a['flips_to_incorrect']}", percent(a["flip_rate"])
            # a summary of an older version does not know
            unseen = f"{a.get('flips_without_answer', '–')}/{a.get('flips_cut_off', '–')}"
            judged.append([*name, *moved, str(a["asked"]), *replies, unseen, *flips])
    for a in summary["averages"]:
        if a["benchmarks"] > 1:
            scores.append([f"average of {a['benchmarks']}", a["setting"], "", *score(a), "", "", ""])
    for title, columns, rows in (
        ("accuracy in %", "N,avg@N,SE,95 % t,95 % bootstrap,k/n,pass@N,maj@N", scores),
        ("responses, lengths in tokens (right / wrong)", "cut off %,no box %,median,95th pct.", responses),
        (
            "the judge's share, accuracy by rule alone and as scored, in %",
            "rule,scored,diff.,95 % t,asked,A/B/C/none,too long/failed/stray,no box/cut off,to right/wrong,flips",
            judged,
        ),
    ):
        if rows:
            tables.append((f"{summary['model']}: {title}", ["benchmark", "setting", *columns.split(",")], rows))
    return tables


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Its tables and notes, and what the run in the folder cost."""
    for title, columns, rows in tables_of(summary):
        print_table(title, columns, rows)
    for note in summary["notes"]:
        print(f"note: {note}")
    print(cost(summary, store.read_json(folder / "run.json", Run)))
    print(f"records: {folder}")


def summary_page(summary: Mapping[str, Any]) -> str:
    """The same tables and notes as Markdown."""
    lines = []
    for title, columns, rows in tables_of(summary):
        cells = [columns, ["---", "---", *["---:"] * (len(columns) - 2)], *rows]
        lines += [f"## {_plain(title)}", "", *(f"| {' | '.join(map(_plain, row))} |" for row in cells), ""]
    return "\n".join([*lines, *(f"- {_plain(note)}" for note in summary["notes"])]).rstrip() + "\n"


def _plain(text: str) -> str:
    """On one line, without a meaning in Markdown: a note may carry a server's words."""
    return re.sub(r"([\\`*_{}\[\]<>#|!])", r"\\\1", " ".join(text.split()))


def cost(summary: Mapping[str, Any], run: Run) -> str:
    """One line: tokens per second of sampling, and the GPU hours of all attempts, with loading and judging.

    No record of scores holds it: times are no function of the samples.
    """
    tokens = round(sum(c["mean_response_tokens"] * (c["samples"] - c["missing"]) for c in summary["cells"]))
    seconds, hours = run.generating_seconds, "not known"
    if not seconds:
        return "cost: not known: the run's record has no time"
    if not run.hardware.get("gpus"):
        hours = "not known (no GPU)"
    elif run.config["engine"] != "openai" and run.wall_seconds:
        gpus = max(1, run.config["tensor_parallel"]) * max(1, run.config["replicas"])
        hours = f"{run.wall_seconds * gpus / 3600:.2f}"
    speed = f"{tokens:,} tokens in {seconds:,.1f} s, {tokens / seconds:,.0f} tokens per second"
    judge = f", judge {run.judging_seconds:,.1f} s" if run.judging_seconds else ""
    return f"cost: {speed}{judge}, GPU hours {hours}"


def print_plan(plan: EvaluationPlan, state: str) -> None:
    """Model, judge, folder with what it holds, and the samples of each cell: what a run would do."""
    print(f"model: {plan.title}, {plan.model.revision}\njudge: {plan.judge_text or 'none'}")
    print(f"out: {plan.out} ({state})")
    rows = [
        [c.benchmark.name, c.cell.setting, str(len(c.problems)), str(c.n), f"{len(c.problems) * c.n:,}"]
        for c in plan.cells
    ]
    columns = ("benchmark", "setting", "problems", "N", "samples")
    print_table(f"{len(plan.keys()):,} samples", columns, rows)
