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
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from math_verify import parse, verify

from stapo_eval.engines import Request, make_engine
from stapo_eval.grading.pool import Item, Limits, Pool
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Gold, Options, in_one
from stapo_eval.options import RunOptions
from stapo_eval.plan import EvaluationPlan, make_plan
from stapo_eval.run import run
from stapo_eval.samples import requests_of
from stapo_results import benching, store
from stapo_results.answers import last_boxed
from stapo_results.benchmarks import load, registry_entry, write_registry
from stapo_results.schema import Bench, BenchRow, Run, Sample

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
_INTEGERS = ("aime24", "aime25", "amc23")
_CUT_OFF = 0.04
_STEP = (
    "We rewrite the expression as $x^2 - {a}x + {b} = 0$, whose discriminant is $\\Delta = {a}^2 - 4 \\cdot {b}$.\n",
    "Substituting $n = {a}$ gives $\\frac{{{a}}}{{{b}}}$, so both sides agree modulo ${b}$.\n",
    "Wait, let me check this again: the sum of the first {a} terms is {b}, which fits.\n",
    "By the law of cosines, $c^2 = {a}^2 + {b}^2 - 2 \\cdot {a} \\cdot {b} \\cos\\theta$.\n",
)


@dataclass(frozen=True)
class Response:
    """One response to grade; `label`: whether it is correct by construction."""

    gold: Gold
    options: Options
    text: str
    label: bool

    @property
    def item(self) -> Item:
        return Item(self.gold, extract(self.text, self.gold), self.options)


def responses(data_dir: Path | None, *, seed: int = 0, share: float = 1.0, steps: int = 20) -> list[Response]:
    """The responses, the same for the same arguments.

    Of each problem's samples a share that differs from problem to problem is correct, written in a few ways; the wrong
    ones share a handful of wrong answers; some are cut off before a box.

    Args:
        data_dir: folder of the six benchmarks, or None for small problems of our own in the same proportions.
        share: of each benchmark's problems.
        steps: sentences before the answer, about 90 characters each.
    """
    r = random.Random(seed)
    made = []
    for samples, golds in _golds(data_dir, r):
        others = [g for g, _ in golds]
        for gold, options in golds[: max(1, round(share * len(golds)))]:
            skill, ways = r.betavariate(0.7, 0.7), _ways(gold)
            wrong = [_wrong(gold, others, r) for _ in range(4)]
            for _ in range(samples):
                if r.random() < _CUT_OFF:
                    answer, label = None, False
                elif label := r.random() < skill:
                    answer = r.choice(ways)
                else:
                    answer = r.choices(wrong, (8, 4, 2, 1))[0]
                text = "".join(r.choice(_STEP).format(a=r.randint(2, 99), b=r.randint(2, 99)) for _ in range(steps))
                if answer is not None:
                    text += f"Therefore, the final answer is $\\boxed{{{answer}}}$."
                made.append(Response(gold, options, text, label))
    r.shuffle(made)
    return made


def _golds(data_dir: Path | None, r: random.Random) -> Iterator[tuple[int, list[tuple[Gold, Options]]]]:
    for name, (problems, samples) in SIZES.items():
        if data_dir is not None:
            b = load(name, data_dir)
            yield samples, [(p.answer, Options(b.spec.unordered, b.spec.tolerance, p.unit)) for p in b.problems]
        elif name in _INTEGERS:
            yield samples, [(str(r.randint(0, 999)), Options()) for _ in range(problems)]
        else:
            yield samples, [(_own_gold(r), Options()) for _ in range(problems)]


def _own_gold(r: random.Random) -> Gold:
    kind, a, b, c = r.randint(0, 15), r.randint(2, 40), r.randint(2, 40), r.randint(2, 9)
    golds: tuple[Gold, ...] = (
        str(a * b), f"\\frac{{{2 * a + 1}}}{{{2 * b}}}", f"{a}\\sqrt{{{c * c + 1}}}", f"({a}, {-b})", f"{a}\\pi",
        f"{a / 8}", f"{a}.{b}e{c}", f"x^2+{a}x-{b}", f"[{-a}, {b})", f"{a}^\\circ", (str(a), str(-b)),
        f"\\frac{{{a} n}}{{{b}}}+{c}", f"{a}-{b}i", f"y={c}x-{b}", f"{a} \\text{{ cm}}^2", (f"({a},{c})", f"({c},{a})"),
    )  # fmt: skip
    return golds[kind % len(golds)]


def _ways(gold: Gold) -> list[str]:
    """A gold as a model may write it."""
    if not isinstance(gold, str):
        return [", ".join(gold), ", ".join(reversed(gold)), r" \text{ and } ".join(gold)]
    ways = [gold, gold.replace("\\frac", "\\dfrac"), gold.replace("(", "\\left(").replace(")", "\\right)")]
    if m := re.fullmatch(r"\\frac\{(\d+)\}\{(\d+)\}", gold):
        ways.append(f"{m[1]}/{m[2]}")
    return ways


def _wrong(gold: Gold, others: list[Gold], r: random.Random) -> str:
    if isinstance(gold, str) and re.fullmatch(r"-?\d+", gold):
        return str(int(gold) + r.choice((-100, -10, -2, -1, 1, 2, 3, 10)))
    other = r.choice(others)
    for _ in range(20):
        if other != gold and not ("\\pi" in gold and "circ" in other):  # pi is 180 degrees
            break
        other = r.choice(others)
    return in_one(other)


def ours(made: list[Response]) -> list[bool]:
    """This suite's verdicts, by the preset `ours`."""
    with Pool(Limits()) as pool:
        return [outcome.rule for outcome in pool.grade([x.item for x in made])]


def serially(made: list[Response], *, whole: bool) -> list[bool]:
    """math-verify's verdicts, with its own time limits."""
    texts = [x.text if whole else f"\\boxed{{{last_boxed(x.text) or ''}}}" for x in made]
    return [bool(verify(parse(f"${in_one(x.gold)}$"), parse(text))) for x, text in zip(made, texts, strict=True)]


def _rows(made: list[Response], repeats: int) -> list[BenchRow]:
    """A row for each way, timed once in every repeat, with how often its verdicts are ours and the labels."""
    ways: dict[str, Callable[[], list[bool]]] = {
        OURS: lambda: ours(made),
        BASELINE: lambda: serially(made, whole=False),
        "math-verify, whole response, serial": lambda: serially(made, whole=True),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    verdicts: dict[str, list[bool]] = {}
    for repeat in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            verdicts[name] = way()
            times[name].append(time.perf_counter() - began)
            print(f"{repeat + 1}/{repeats}, {name}: {len(made)} responses in {times[name][-1]:.2f} s", flush=True)
    known = {"agrees_with_stapo": verdicts[OURS], "agrees_with_label": [x.label for x in made]}
    rows = []
    for name, said in verdicts.items():
        values = {"responses": len(made), "responses_per_second": len(made) / min(times[name]), "accepted": sum(said)}
        for key, other in known.items():
            values[key] = sum(a == b for a, b in zip(said, other, strict=True)) / len(made)
        rows.append(benching.timed_row(name, times[name], times[BASELINE], values=values))
    return rows


def bench(out: Path, data_dir: Path | None, repeats: int, share: float, seed: int) -> Bench:
    """Measure, and write the record (run.json, bench.json) to `out`; arguments as of `responses`."""
    made = responses(data_dir, seed=seed, share=share)
    labels = {
        "golds": "problems of our own" if data_dir is None else "six benchmarks",
        "distinct": str(len({x.item for x in made})),
        "characters": str(sum(len(x.text) for x in made) // len(made)),
    }
    config = {"repeats": repeats, "share": share, "seed": seed}
    return benching.record(out, "grading", config, BASELINE, lambda: (_rows(made, repeats), labels))


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
                for f in (f for piece in engine.stream(requests, ()) for f in piece):
                    gold, options = golds[f.request.problem_id]
                    items.append(Item(gold, extract(f.text, gold), options))
                    tokens += f.response_tokens
    with Pool(Limits()) as pool:
        pool.grade(items)
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
        times: dict[str, list[float]] = {LOOP: [], QUEUE: []}
        made, busy = dict[str, int](), 0.0
        with tempfile.TemporaryDirectory() as name:
            options = _evaluation(Path(name), model, share)
            plan = make_plan(options)
            make_engine(options.engine, plan.model).close()  # imports and caches, which both need once
            for repeat in range(repeats):
                began = time.perf_counter()
                made[LOOP] = usual_loop(plan)
                times[LOOP].append(time.perf_counter() - began)
                folder, began = Path(name) / f"out{repeat}", time.perf_counter()
                run(replace(options, out=str(folder)))
                times[QUEUE].append(time.perf_counter() - began)
                made[QUEUE] = sum(s.response_tokens for s in store.read(folder / "samples.jsonl", Sample))
                print(f"{repeat + 1}/{repeats}: {times[LOOP][-1]:.1f} s against {times[QUEUE][-1]:.1f} s", flush=True)
                busy = store.read_json(folder / "run.json", Run).engine_seconds or 0.0
        values = {
            LOOP: {"tokens": made[LOOP], "own_share": 0.0},
            QUEUE: {"tokens": made[QUEUE], "own_share": 1 - busy / times[QUEUE][-1]},
        }
        rows = [benching.timed_row(way, times[way], times[LOOP], values=values[way]) for way in (LOOP, QUEUE)]
        return rows, {"engine": options.engine, "samples": str(len(plan.keys())), "model": plan.model.name}

    return benching.record(out, "evaluation", {"repeats": repeats, "share": share, "seed": 0}, LOOP, measured)
