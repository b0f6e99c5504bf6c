"""A page of sampled flips to read, problem by problem: one self-contained HTML file, hostile text escaped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources

from stapo_eval.judge.audit import Flip
from stapo_results.benchmarks import Problem

SHOWN = 60
TAIL_CHARACTERS = 1500
_SEED = 0


def sample_flips(flips: Sequence[Flip], shown: int = SHOWN, seed: int = _SEED) -> list[Flip]:
    """At most `shown` of them, in their order: those with the least hash of (seed, question), whatever the rest is."""

    def rank(i: int) -> str:
        return hashlib.sha256(f"{seed}\x1f{flips[i].judgement.key}".encode()).hexdigest()

    return [flips[i] for i in sorted(sorted(range(len(flips)), key=rank)[:shown])]


def visible(text: str) -> str:
    """Characters that a page would swallow or obey (controls, surrogates, direction marks) as their code points."""

    def hidden(c: str) -> bool:
        code = ord(c)
        control = (code < 32 and c not in "\n\t") or 127 <= code < 160 or 0xD800 <= code < 0xE000
        return control or code in (0x061C, 0xFEFF, 0xFFFE, 0xFFFF) or any(
            low <= code <= high for low, high in ((0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F))
        )  # fmt: skip

    return "".join(f"<U+{ord(c):04X}>" if hidden(c) else c for c in text)


def _tail(response: str) -> str:
    return response if len(response) <= TAIL_CHARACTERS else "[...] " + response[-TAIL_CHARACTERS:]


def render(
    flips: Sequence[Flip],
    problems: Mapping[tuple[str, str], Problem],
    benchmark_of: Mapping[str, str],
    *,
    title: str,
    judge: str,
    note: str = "",
    shown: int = SHOWN,
) -> str:
    """The page.

    Args:
        problems: (benchmark, problem id) -> problem.
        benchmark_of: cell id -> benchmark.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = visible
    groups: dict[tuple[str, str], list[dict[str, object]]] = {}
    for f in sample_flips(flips, shown):
        where = benchmark_of[f.verdict.cell], f.verdict.problem_id
        item = {"flip": f, "tail": _tail(f.response), "cut": max(0, len(f.response) - TAIL_CHARACTERS)}
        groups.setdefault(where, []).append(item)
    template = environment.from_string((resources.files("stapo_eval.judge") / "flips.html.jinja").read_text("utf-8"))
    return template.render(
        title=title,
        judge=judge,
        note=note,
        total=len(flips),
        samples=sum(f.samples for f in flips),
        to_correct=sum(f.samples for f in flips if not f.verdict.rule),
        to_incorrect=sum(f.samples for f in flips if f.verdict.rule),
        shown=sum(map(len, groups.values())),
        groups=[
            {"benchmark": b, "problem": problems[b, i], "gold": _gold(problems[b, i]), "items": items}
            for (b, i), items in groups.items()
        ],
    )


def _gold(problem: Problem) -> str:
    return problem.answer if isinstance(problem.answer, str) else ", ".join(problem.answer)
