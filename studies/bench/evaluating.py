"""Side by side in one run: grading by this suite and by math-verify, and a whole evaluation beside the usual loop.

Both graders see the same made-up responses with known labels, as many and as repetitive as those of one evaluation with
the six benchmarks. This suite starts with nothing warm: its time holds the start of the processes and their imports.
math-verify is called as its documentation shows, in this process, one call after the other, its imports done; once on
the whole response and, which is kinder to it, once on the boxed answer alone. The second is the baseline.

The usual loop is what evaluation scripts do: an engine for every benchmark and setting, one blocking pass over the
problems for every seed, grading at the end. Engine, model, decoding, batch size and grader are this suite's, so what
differs is the order of the work. Six benchmarks have the paper's N and a tenth of its problems.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from math_verify import parse, verify

from stapo_eval.engines import Request, make_engine
from stapo_eval.grading.pool import Item, grade
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Gold, Options, in_one
from stapo_eval.options import RunOptions
from stapo_eval.plan import EvaluationPlan, make_plan
from stapo_eval.run import run
from stapo_eval.samples import requests_of
from stapo_results import store
from stapo_results.answers import last_boxed
from stapo_results.benchmarks import load, registry_entry, write_registry
from stapo_results.schema import Run, Sample
from studies.bench import benching
from studies.bench.benching import Bench, BenchRow

BASELINE = "math-verify, boxed answer, serial"
OURS = "stapo-eval grade"
LOOP, QUEUE = "end to end, usual loop", "end to end, one queue"

# name -> (problems, samples): 8,984 responses
SIZES = {
    "aime24": (30, 32),
    "aime25": (30, 32),
    "amc23": (40, 32),
    "math500": (500, 4),
    "minerva": (272, 4),
    "olympiadbench": (674, 4),
}
_CUT_OFF = 0.04
_STEP = (
    "We rewrite the expression as $x^2 - {a}x + {b} = 0$, whose discriminant is $\\Delta = {a}^2 - 4 \\cdot {b}$.\n",
    "Substituting $n = {a}$ gives $\\frac{{{a}}}{{{b}}}$, so both sides agree modulo ${b}$.\n",
    "Wait, let me check this again: the sum of the first {a} terms is {b}, which fits.\n",
    "By the law of cosines, $c^2 = {a}^2 + {b}^2 - 2 \\cdot {a} \\cdot {b} \\cos\\theta$.\n",
)
_GOLD = (
    "{a}{b}", "\\frac{{{a}}}{{{b}}}", "{a}\\sqrt{{{b}}}", "({a}, -{b})", "{a}\\pi", "{a}.{b}e5", "x^2+{a}x-{b}",
    "[-{a}, {b})", "{a}^\\circ", "\\frac{{{a} n}}{{{b}}}+1", "{a}-{b}i", "y={a}x-{b}", "{a} \\text{{ cm}}^2",
)  # fmt: skip


class MadeResponse(NamedTuple):
    """One response to grade; `label`: whether it is correct by construction."""

    item: Item
    text: str
    label: bool


def responses(data_dir: Path | None, *, share: float = 1.0, steps: int = 20) -> list[MadeResponse]:
    """The responses, the same for the same arguments.

    Of each problem's samples a share that differs from problem to problem is correct, written in a few ways; the wrong
    ones share a handful of wrong answers; some are cut off before a box.

    Args:
        data_dir: folder of the six benchmarks, or None for small problems of our own in the same proportions.
        share: of each benchmark's problems.
        steps: sentences before the answer, about 90 characters each.
    """
    r = random.Random(0)
    made = []
    for samples, golds in _golds(data_dir, r):
        texts = [in_one(gold) for gold, _ in golds]
        for gold, options in golds[: max(1, round(share * len(golds)))]:
            # golds that end in the same character may be equal (1 and k=1), and pi is 180 degrees
            others = [x for x in texts if x[-1] != in_one(gold)[-1] and not ("\\pi" in gold and "circ" in x)]
            right, wrong, skill = _ways(gold), r.choices(others, k=4), r.betavariate(0.7, 0.7)
            for _ in range(samples):
                text = "".join(r.choice(_STEP).format(a=r.randint(2, 99), b=r.randint(2, 99)) for _ in range(steps))
                label = False
                if r.random() >= _CUT_OFF:
                    label = r.random() < skill
                    answer = r.choice(right) if label else r.choices(wrong, (8, 4, 2, 1))[0]
                    text += f"Therefore, the final answer is $\\boxed{{{answer}}}$."
                made.append(MadeResponse(Item(gold, extract(text, gold), options), text, label))
    r.shuffle(made)
    return made


def _golds(data_dir: Path | None, r: random.Random) -> Iterator[tuple[int, list[tuple[Gold, Options]]]]:
    for name, (problems, samples) in SIZES.items():
        if data_dir is not None:
            b = load(name, data_dir)
            yield samples, [(p.answer, Options(b.spec.unordered, b.spec.tolerance, p.unit)) for p in b.problems]
        else:
            forms = _GOLD[:1] if samples == 32 else _GOLD
            made = (r.choice(forms).format(a=r.randint(2, 40), b=r.randint(2, 40)) for _ in range(problems))
            yield samples, [(gold, Options()) for gold in made]


def _ways(gold: Gold) -> list[str]:
    """A gold as a model may write it."""
    if not isinstance(gold, str):
        return [", ".join(gold), ", ".join(reversed(gold)), r" \text{ and } ".join(gold)]
    ways = [gold, gold.replace("\\frac", "\\dfrac"), gold.replace("(", "\\left(").replace(")", "\\right)")]
    if m := re.fullmatch(r"\\frac\{(\d+)\}\{(\d+)\}", gold):
        ways.append(f"{m[1]}/{m[2]}")
    return ways


def serially(made: list[MadeResponse], *, whole: bool) -> list[bool]:
    """Verdicts of math-verify, with its own time limits."""
    texts = [x.text if whole else f"\\boxed{{{last_boxed(x.text) or ''}}}" for x in made]
    return [bool(verify(parse(f"${in_one(x.item.gold)}$"), parse(text))) for x, text in zip(made, texts, strict=True)]


def _timed(ways: Mapping[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """(seconds of each repeat, last result) by way; every repeat goes through all ways."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    results = {}
    for repeat in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            results[name] = way()
            times[name].append(time.perf_counter() - began)
            print(f"{repeat + 1}/{repeats}, {name}: {times[name][-1]:.2f} s", flush=True)
    return times, results


def bench_grading(out: Path, data_dir: Path | None, repeats: int, share: float) -> Bench:
    """Measure the graders on `responses`, and write the record (run.json, bench.json) to `out`."""

    def measured() -> tuple[list[BenchRow], dict[str, str]]:
        made = responses(data_dir, share=share)
        ways = {
            OURS: lambda: [outcome.rule for outcome in grade([x.item for x in made])],
            BASELINE: lambda: serially(made, whole=False),
            "math-verify, whole response, serial": lambda: serially(made, whole=True),
        }
        times, verdicts = _timed(ways, repeats)
        known = {"agrees_with_stapo": verdicts[OURS], "agrees_with_label": [x.label for x in made]}
        rows = []
        for name, said in verdicts.items():
            agrees = {k: sum(a == b for a, b in zip(said, x, strict=True)) / len(made) for k, x in known.items()}
            values = {"responses": len(made), **agrees}
            rows.append(benching.timed_row(name, times[name], times[BASELINE], values=values))
        return rows, {
            "golds": "problems of our own" if data_dir is None else "six benchmarks",
            "distinct": str(len({x.item for x in made})),
            "characters": str(sum(len(x.text) for x in made) // len(made)),
        }

    return benching.record(out, "grading", {"repeats": repeats, "share": share, "seed": 0}, BASELINE, measured)


def usual_loop(plan: EvaluationPlan) -> int:
    """Response tokens of an engine for every benchmark and setting, a blocking pass for every seed, then grading."""
    o, items, tokens = plan.options, list[Item](), 0
    for cell in plan.cells:
        golds = cell.golds()
        with closing(make_engine(o.engine, plan.model, threads=plan.run.config["threads"])) as engine:
            passes: dict[int, list[Request]] = {}
            for r in requests_of(replace(plan, cells=(cell,)), engine):
                passes.setdefault(r.sample_index, []).append(r)
            for requests in passes.values():
                for f in (f for piece in engine.stream(requests, {}) for f in piece):
                    gold, options = golds[f.request.problem_id]
                    items.append(Item(gold, extract(f.text, gold), options))
                    tokens += f.response_tokens
    grade(items)
    return tokens


def _evaluation(folder: Path, model: str, share: float) -> RunOptions:
    """Six benchmarks of sums, both settings: 1,792 samples where `share` is 1."""
    entries = {}
    for name, (problems, samples) in SIZES.items():
        rows = [
            {"id": f"{i}", "problem": f"Compute {i} + {len(entries)} modulo 4.", "answer": str((i + len(entries)) % 4)}
            for i in range(max(1, round(share * problems / 10)))
        ]
        path = folder / f"small-{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        entries[path.stem] = registry_entry(path, path.stem, samples=samples)
    write_registry(folder / "registry.yaml", entries)
    return RunOptions(model, data_dir=str(folder), benchmarks=",".join(entries), max_tokens=240)


def bench_evaluation(out: Path, model: str, repeats: int, share: float) -> Bench:
    """Measure both orders of the work, and write the record (run.json, bench.json) to `out`.

    Args:
        model: a small model's folder.
        share: of the problems.
    """

    def measured() -> tuple[list[BenchRow], dict[str, str]]:
        with tempfile.TemporaryDirectory() as name:
            options = _evaluation(Path(name), model, share)
            plan = make_plan(options)
            make_engine(options.engine, plan.model).close()  # imports and caches, which both need once

            def queue() -> Path:
                folder = Path(tempfile.mkdtemp(dir=name))
                run(replace(options, out=str(folder)))
                return folder

            times, made = _timed({LOOP: lambda: usual_loop(plan), QUEUE: queue}, repeats)
            tokens = sum(s.response_tokens for s in store.read(made[QUEUE] / "samples.jsonl", Sample))
            busy = store.read_json(made[QUEUE] / "run.json", Run).engine_seconds or 0.0
        values = {
            LOOP: {"tokens": made[LOOP], "own_share": 0.0},
            QUEUE: {"tokens": tokens, "own_share": 1 - busy / times[QUEUE][-1]},
        }
        rows = [benching.timed_row(way, times[way], times[LOOP], values=values[way]) for way in (LOOP, QUEUE)]
        return rows, {"engine": options.engine, "samples": str(len(plan.keys())), "model": plan.model.name}

    return benching.record(out, "evaluation", {"repeats": repeats, "share": share, "seed": 0}, LOOP, measured)
