#!/usr/bin/env python3
"""What is counted of the house, since lines alone say little: run with the packages of the environment `test`."""

import ast
from collections import Counter, defaultdict
from importlib import import_module
from itertools import combinations
from pathlib import Path
from subprocess import run

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("results", "training", "eval", "repro")
MASK = ("silence_high_entropy", "stapo-high-entropy")  # a mask as any other: its selector and its method


def files(*rooms: str, ends: tuple[str, ...] = (".py",)) -> list[Path]:
    """Tracked files of these folders, without tests and records."""
    listed = run(["git", "ls-files", *rooms], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    found = [ROOT / f for f in listed if f.endswith(ends) and not f.startswith("results/records")]
    return [f for f in found if not f.name.startswith("test_") and f.is_file()]


TREES = {f: ast.parse(f.read_text(encoding="utf-8")) for f in files(*PRODUCT, "studies")}


def lines(*rooms: str) -> int:
    return sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files(*rooms))


def nodes_a_line(room: str) -> float:
    """Syntax nodes a line that is neither blank, comment nor docstring."""
    nodes = code = 0
    for f in files(room):
        nodes += sum(not isinstance(n, ast.expr_context | ast.operator | ast.cmpop) for n in ast.walk(TREES[f]))
        docs = [n.body[0] for n in ast.walk(TREES[f])
                if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(n)]  # fmt: skip
        said = {i for d in docs for i in range(d.lineno, (d.end_lineno or d.lineno) + 1)}
        texts = enumerate(f.read_text(encoding="utf-8").splitlines(), 1)
        code += sum(i not in said and bool(text.strip()) and not text.lstrip().startswith("#") for i, text in texts)
    return nodes / code


def upward(room: str, package: str) -> int:
    """Of rooms that import each other, the imports in the rarer direction, in functions too."""
    arrows = Counter[tuple[str, str]]()
    for f in files(f"{room}/{package}"):
        own = f.relative_to(ROOT / room / package).with_suffix("").parts[0]
        for node in ast.walk(TREES[f]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
                inner = (node.module or "").split(".")[1:]
                arrows.update((own, to) for to in (inner[:1] or [a.name for a in node.names]) if to != own)
    names = {name for pair in arrows for name in pair}
    return sum(min(arrows[a, b], arrows[b, a]) for a, b in combinations(names, 2))


def main() -> None:
    scripts = {s: import_module(f"{package}.cli")._COMMANDS for s, package in
               (("train", "stapo_training"), ("eval", "stapo_eval"), ("repro", "stapo_repro"))}  # fmt: skip
    counts = {s: len(c) + (s == "train") for s, c in scripts.items()}  # stapo-train run is beside the others
    places = defaultdict(set)
    for f, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(f)
    intervals = set[str]()
    for _ in range(3):  # those that inherit from one, too
        for f, node in ((f, n) for f, tree in TREES.items() for n in tree.body if isinstance(n, ast.ClassDef)):
            fields = {t.target.id for t in node.body if isinstance(t, ast.AnnAssign) and isinstance(t.target, ast.Name)}
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if {"low", "high"} <= fields or bases & {name.rpartition(".")[2] for name in intervals}:
                intervals.add(f"{f.stem}.{node.name}")
    twice = sorted(name for name, of in places.items() if len(of) > 1)
    named = [f for f in files(*PRODUCT, ends=(".py", ".yaml")) if any(m in f.read_text(encoding="utf-8") for m in MASK)]
    print(f"commands                     {sum(counts.values())} {counts}")
    print(f"lines of the product         {lines(*PRODUCT):,} { ({room: lines(room) for room in PRODUCT}) }")
    print(f"lines of studies             {lines('studies'):,}")
    print(f"classes with an interval     {len(intervals)} {', '.join(sorted(intervals))}")
    print(f"files that name a mask       {len(named)} {', '.join(f.name for f in named)}")
    print(f"class names used twice       {len(twice)} {', '.join(twice)}")
    print(f"upward imports of training   {upward('training', 'stapo_training')}")
    print(f"syntax nodes a line of repro {nodes_a_line('repro'):.2f}")


if __name__ == "__main__":
    main()
