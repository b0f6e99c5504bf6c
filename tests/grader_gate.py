r"""Do two versions of the grader give the same verdicts? Freeze those of one, then compare the other with them.

    python tests/grader_gate.py freeze  --frozen DIR [--data-dir BENCHMARKS] [--responses FILE.jsonl ...]
    python tests/grader_gate.py compare --frozen DIR [--data-dir BENCHMARKS] [--responses FILE.jsonl ...]

Sets: the labelled cases and their near misses; made-up responses, and the golds of the six benchmarks in their variants
and near misses (--data-dir); files of responses as `stapo-eval grade` takes them, also compressed (.xz). The last are
graded by three presets. A change is printed as a JSON line; a new yes on a near miss is a fault by itself.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

from near_misses import CASES, benchmark_golds, gold_of, near_misses, options_of, variants

from stapo_eval.grading.pool import Item, Limits, Pool
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Options

sys.path.append(str(Path(__file__).resolve().parents[1]))  # studies are run from the clone, not installed
from studies.bench import evaluating

Set = Iterator[tuple[str, Item]]


def cases() -> Set:
    for i, c in enumerate(CASES):
        yield f"case-{i}", Item(gold_of(c), c["answer"], options_of(c))


def near_misses_of_cases() -> Set:
    for i, c in enumerate(CASES):
        if c["correct"] and c["category"] != "options":
            for source in (gold_of(c), c["answer"]):
                for wrong in near_misses(source):
                    yield f"case-{i}", Item(gold_of(c), wrong, Options())


def made_up(data_dir: Path) -> Set:
    for i, x in enumerate(evaluating.responses(data_dir, steps=1)):
        yield str(i), x.item


def of_golds(data_dir: Path, *, near: bool) -> Set:
    for name, gold, options in benchmark_golds(data_dir):
        for answer in near_misses(gold) if near else variants(gold, options.unit):
            yield name, Item(gold, answer, options)


def of_file(path: Path, preset: str) -> Set:
    with lzma.open(path) if path.suffix == ".xz" else open(path, "rb") as f:
        for line in f:
            row = json.loads(line)
            gold = tuple(map(str, row["answer"])) if isinstance(row["answer"], list) else str(row["answer"])
            yield str(row["id"]), Item(gold, extract(row["response"], gold, preset), Options(preset=preset))


def sets(data_dir: Path | None, files: list[Path]) -> Iterator[tuple[str, Set]]:
    yield "cases", cases()
    yield "cases.near", near_misses_of_cases()
    if data_dir:
        yield "made-up", made_up(data_dir)
        yield "golds.variants", of_golds(data_dir, near=False)
        yield "golds.near", of_golds(data_dir, near=True)
    for file in files:
        for preset in ("ours", "strict", "justrl"):
            yield f"{file.name.partition('.')[0]}.{preset}", of_file(file, preset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("freeze", "compare"))
    parser.add_argument("--frozen", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--responses", type=Path, nargs="*", default=[])
    parser.add_argument("--only", help="sets whose name contains this")
    args = parser.parse_args()
    args.frozen.mkdir(parents=True, exist_ok=True)
    with Pool(Limits()) as pool:
        for name, items in sets(args.data_dir, args.responses):
            if args.only and args.only not in name:
                continue
            ids, things = zip(*items, strict=True)
            rows = [
                {"id": i, "gold": x.gold, "answer": o.extracted or x.answer, "rule": o.rule, "reason": o.reason}
                for i, x, o in zip(ids, things, pool.grade(things), strict=True)
            ]
            frozen = args.frozen / f"{name}.jsonl"
            if args.what == "freeze":
                frozen.write_text("".join(json.dumps(row) + "\n" for row in rows))
                print(f"{name}: {len(rows)}, {sum(r['rule'] for r in rows)} right", flush=True)
                continue
            before = [json.loads(line) for line in frozen.read_text().splitlines()]
            rows = rows[: len(before)]  # cases that are newer than the frozen verdicts come last
            changed = [(b, r) for b, r in zip(before, rows, strict=True) if b["rule"] != r["rule"]]
            for b, r in changed:
                print(json.dumps({"set": name, "was": b["rule"], "then": b["answer"], **r}))
            share = 1 - len(changed) / len(rows)
            yes = sum(r["rule"] for _, r in changed)
            print(f"{name}: {len(rows)}, {share:.3%} equal, {yes} new yes, {len(changed) - yes} new no", flush=True)


if __name__ == "__main__":
    main()
