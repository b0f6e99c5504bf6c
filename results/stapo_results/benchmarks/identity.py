"""What identifies a benchmark's copy, and the comparison of a copy with its registry entry."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from stapo_results.answers import normalise_gold
from stapo_results.benchmarks.spec import Identity, Problem, Spec
from stapo_results.errors import BadInput

_SHOWN = 20  # differing rows that a message names


def golds_sha256(golds: Iterable[str | Sequence[str]]) -> str:
    """Hash of the multiset of normalised gold answers: the order of the rows does not count."""
    return hashlib.sha256("\n".join(sorted(map(normalise_gold, golds))).encode()).hexdigest()


def normal_text(problem: str) -> str:
    """A problem text in NFC with runs of white space as one space: what identifies a problem."""
    return " ".join(unicodedata.normalize("NFC", problem).split())


def text_hash(problem: str) -> str:
    """8 hex digits of a problem text's normal form."""
    return hashlib.sha256(normal_text(problem).encode()).hexdigest()[:8]


def shown(ids: Sequence[str]) -> str:
    """The ids joined by commas, the first twenty of many."""
    return ", ".join(ids[:_SHOWN]) + (" ..." if len(ids) > _SHOWN else "")


def check_identity(
    name: str,
    spec: Spec,
    problems: Sequence[Problem],
    source: str,
    *,
    accept_variant: bool = False,
    strict: bool = False,
) -> Identity:
    """Compare a copy with the registry.

    Raises:
        BadInput: for another number of rows or other gold answers (unless `accept_variant`), with both values; under
            `strict` also for differing problem texts.
    """
    golds = golds_sha256(p.answer for p in problems)
    known = Counter(spec.text_hashes.split())
    differing = []
    for p in problems:
        h = text_hash(p.problem)
        if known[h] > 0:
            known[h] -= 1
        else:
            differing.append(p.id)
    differs = []
    if len(problems) != spec.rows:
        differs.append(("rows", len(problems), spec.rows))
    if golds != spec.golds_sha256:
        differs.append(("gold answers (sha256)", golds[:16], spec.golds_sha256[:16]))
    if differs and not accept_variant:
        raise BadInput(
            f"{source} is not the benchmark {name}",
            found=", ".join(f"{what} {found}" for what, found, _ in differs),
            expected=", ".join(f"{what} {expected}" for what, _, expected in differs),
            next_step="get the registered copy; stapo-eval run --accept-variant takes this one, and scores then say so",
        )
    if differing and strict:
        raise BadInput(
            f"{source}: {len(differing)} problem texts of {name} differ from the registered copy",
            found=shown(differing),
            expected="the registered texts (up to white space)",
            next_step="leave out --strict: the differing rows are then counted and named in the records",
        )
    variant = "; ".join(f"{what} {found} instead of {expected}" for what, found, expected in differs)
    return Identity(len(problems), golds, variant, tuple(differing))
