"""Several engines on one model: the same cells, each from its own samples, paired by problem."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from stapo_repro.labels import benchmark_label, method_label, size_label
from stapo_repro.read import Loaded
from stapo_repro.scores import Difference, difference, score
from stapo_repro.text import grid, number_shown, shown
from stapo_results.errors import RecordError

RULE = (
    "Written before the second engine ran: two engines agree on a cell within their error when the 95 % interval of "
    "the difference, paired by problem, holds 0. All have the same weights, prompts and grader, each its own samples. "
    "The draw of seed 1 was made after that of seed 0 had been seen, and both were put together after both had been. "
    "Written on 2026-11-29, before a third engine ran on AMC23 (vLLM 0.32.0 on a CPU, seed 2, 320 samples): where the "
    "interval of its difference from hf's draws together lies below 0, vLLM and hf differ on this cell. Where that "
    "holds 0, and that of its difference from vLLM's draw on the H200 does not, the H200's draw stands alone. Else it "
    "stays open. It computes in float32, hf did in bfloat16: a difference may be the precision's."
)
THIRD = "vllm 0.32"
_OF_THE_RULE = ("base", "qwen2.5-coder-0.5b", "0", "base", "amc23", "t1.0")
# of the 0.5B's tokenizer as `fetch` writes it, and as it did until d1309fed: local_files_only is true, and false, in
# tokenizer_config.json; no other byte differs
_SAME_TOKENIZER = {
    "sha256:ac698962b3b98d398b164159f88972372e3ee25f3bf4080fb79dfd497d020ced":
    "sha256:f5f09f51994c28aab90931a2913cb5dca1af8c0c8a923f78ea85415bd2a8426f",
}  # fmt: skip
_HEAD = ("Cell", "Engine", "Other", "Accuracy (%)", "Other's", "First minus other (points)", "Mean tokens", "Agree")


class Pair(NamedTuple):
    """Draws of one engine and of another on a cell, and which; the first's accuracy minus the other's, in points."""

    first: Sequence[Loaded]
    other: Sequence[Loaded]
    which: str
    difference: Difference

    @property
    def engines(self) -> tuple[str, str]:
        return self.first[0].record.engine, self.other[0].record.engine

    @property
    def agree(self) -> bool | None:
        """None: no interval."""
        d = self.difference.number
        return d.low <= 0 <= d.high if d.has_interval else None


def _name(c: Loaded) -> tuple[str, ...]:
    cell = c.record.cell
    return *map(str, cell.model), cell.benchmark, cell.setting


def compared(first: Sequence[Loaded], other: Sequence[Loaded]) -> list[Pair]:
    """Of each cell of `first`, each two of its engines: by draw of the second, and its draws together.

    A draw is an evaluation of whatever seed. The engine with fewer draws is the first of two.
    """
    pairs = []
    for own in first:
        draws = defaultdict[str, list[Loaded]](list)
        for c in (own, *(c for c in other if _name(c) == _name(own))):
            _check_alike(own, c)
            draws[c.record.engine].append(c)
        for a, b in combinations(sorted(draws.values(), key=len), 2):
            pairs += [_pair(a, [c], f"seed {c.record.cell.eval_seed}") for c in b]
            if len(b) > 1:
                pairs.append(_pair(a, b, "together"))
    return pairs


def _pair(a: Sequence[Loaded], b: Sequence[Loaded], which: str) -> Pair:
    cell = a[0].record.cell
    label = (a[0].record.engine, b[0].record.engine, cell.benchmark, cell.setting)
    return Pair(a, b, which, difference([score(a)], [score(b)], label, across_engines=True))


def third_engine(pairs: Sequence[Pair]) -> str:
    """What the rule makes of the third engine's draw; "" where it was not run."""
    pairs = [p for p in pairs if _name(p.first[0]) == _OF_THE_RULE]
    from_hf = [p for p in pairs if p.engines[0].startswith(THIRD) and p.engines[1] == "hf" and p.which == "together"]
    from_vllm = [p for p in pairs if p.engines[0].startswith("vllm") and p.engines[1].startswith(THIRD)]
    if not (from_hf and from_vllm):
        return ""
    if from_hf[0].difference.number.high < 0:
        return "By the rule vLLM and hf differ on AMC23."
    if from_hf[0].agree and from_vllm[0].agree is False:
        return "By the rule the H200's draw stands alone on AMC23."
    return "By the rule AMC23 stays open."


def _row(p: Pair) -> list[str]:
    cell, d = p.first[0].record.cell, p.difference
    told = d.status if p.agree is None else number_shown(d.number, 1, sign=True)
    lengths = [math.fsum(c.record.mean_response_tokens for c in of) / len(of) for of in (p.first, p.other)]
    accuracies = [number_shown(score(of).estimate, 1, 100) for of in (p.first, p.other)]
    base = (
        "" if _name(p.first[0])[:2] == _OF_THE_RULE[:2] else f"{method_label(cell.method)}, {size_label(cell.size)}, "
    )
    name = f"{base}{benchmark_label(cell.benchmark)}, {cell.setting}, {p.which}"
    agree = {True: "yes", False: "no", None: "undecided"}[p.agree]
    return [name, *p.engines, *accuracies, told, " and ".join(shown(n, 0) for n in lengths), agree]


def _check_alike(own: Loaded, theirs: Loaded) -> None:
    """Raises RecordError where more than the engine differs."""
    both = {name: [getattr(c.record, name) for c in (own, theirs)] for name in ("grader", "max_tokens", "n")}
    for name in ("model", "tokenizer"):
        revisions = (c.record.revisions.get(name, "") for c in (own, theirs))
        both[name] = [_SAME_TOKENIZER.get(revision, revision) for revision in revisions]
    for what, (one, other) in both.items():
        if one != other:
            raise RecordError(f"two engines' records of {own.record.cell.id} differ in {what}", found=other,
                              expected=one, next_step=f"evaluate again as {own.file} was")  # fmt: skip


def section(first: Sequence[Loaded], other: Sequence[Loaded]) -> list[str]:
    """The rule and the cells, or that none was run by two engines."""
    pairs = compared(first, other)
    found = grid(_HEAD, [_row(p) for p in pairs], 3) if pairs else ["Not run."]
    decided = third_engine(pairs)
    return ["## Do the engines agree?", "", RULE, "", *found, "", *([decided, ""] if decided else [])]
