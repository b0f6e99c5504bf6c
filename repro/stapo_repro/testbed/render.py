"""The written forms of the testbed: Markdown (file and the page's blocks) and JSON. LF, no time stamp."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stapo_repro import labels
from stapo_repro.testbed import long_runs
from stapo_repro.testbed.build import COLUMNS, Testbed
from stapo_repro.testbed.claims import VERDICTS, Claim, Judged
from stapo_repro.testbed.evidence import EARLY, NEAR_BASE, Measure, Quantity
from stapo_repro.testbed.plan import method_and_rate, rate_text
from stapo_repro.text import escape, grid, p_shown, shown, signed
from stapo_repro.tokens import planted

# name in a sentence, unit, digits
MEASURES: dict[Measure, tuple[str, str, int]] = {
    "precision": ("precision for spurious tokens", "points", 1),
    "accuracy_t1.0": ("accuracy at T=1.0", "points", 1),
    "accuracy_t0.7": ("accuracy at T=0.7", "points", 1),
    "pass8_t1.0": ("pass@8 at T=1.0", "points", 1),
    "pass8_t0.7": ("pass@8 at T=0.7", "points", 1),
    "useful_early": (f"useful words in steps 1 to {EARLY}", "words per 100 responses", 1),
    "reward_early": (f"reward in steps 1 to {EARLY}", "", 3),
    "useful_late": ("useful words late in training", "words per 100 responses", 1),
    "spurious_late": ("spurious words late in training", "words per 100 responses", 1),
    "entropy_late": ("entropy late in training", "nats", 3),
    "reward_late": ("reward late in training", "", 3),
    "entropy_growth": ("growth of entropy", "nats", 3),
    "spurious_growth": ("growth of spurious words", "words per 100 responses", 1),
    "collapse_step": ("step of collapse", "steps", 0),
}
MASKS = {method: planted.NAMES[mask] for mask, method in planted.METHODS.items()}
_HEADS = {
    "accuracy_t1.0": "Accuracy, T=1.0", "accuracy_t0.7": "Accuracy, T=0.7", "pass8_t1.0": "pass@8, T=1.0",
    "reward_early": f"Reward, steps 1 to {EARLY}", "useful_early": f"Useful / 100, steps 1 to {EARLY}",
    "useful_late": "Useful / 100, late", "spurious_late": "Spurious / 100, late",
    "entropy_late": "Entropy, late (nats)",
}  # fmt: skip
NOT_RUN = "not run: `stapo-repro testbed`, then `stapo-repro collect runs/testbed --out results/records/testbed`"


def to_json(t: Testbed) -> str:
    """The full data: every number with its seeds, every claim with its quantity and verdicts."""

    def plain(value: Any) -> Any:
        if isinstance(value, Claim):
            return value.model_dump()
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k != "raw"}
        return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

    shallow = {**vars(t), "evidence": None}
    data = {k: [asdict(x) if hasattr(x, "__dataclass_fields__") else x for x in v] if isinstance(v, list) else v
            for k, v in shallow.items() if k != "evidence"}  # fmt: skip
    return json.dumps(plain(data), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def quantity_words(c: Claim) -> str:
    """The claim's quantity in words, with its unit."""
    what, unit, _ = MEASURES[c.measure]
    if c.kind == "optimum":
        pair = f"best of {', '.join(map(labels.method_label, c.inside))}, minus the better of "
        pair += " and ".join(map(labels.method_label, c.ends))
    elif c.measure == "precision":
        pair = f"{MASKS[c.first]} minus {MASKS[c.second]} mask"
    else:
        (first, rate), (second, _) = method_and_rate(c.first), method_and_rate(c.second)
        pair = f"{labels.method_label(first)} minus {labels.method_label(second)}"
        pair += f" at learning rate {rate_text(rate)}" if rate else ""
    return f"{what}: {pair}{f' ({unit})' if unit else ''}"


def expected(c: Claim) -> str:
    """Where the claim puts its quantity."""
    return f"within ±{c.margin:g}" if c.margin is not None else f"{c.direction} {c.reference:g}"


def value(q: Quantity, digits: int, sign: bool = False) -> str:
    """Mean over its interval; a status where there is none."""
    if q.mean is None:
        return q.status if not q.missing or q.status == "not run" else "incomplete"
    text = signed(q.mean, digits) if sign else shown(q.mean, digits)
    if q.low is not None:
        text += f"<br><sub>{shown(q.low, digits)} to {shown(q.high, digits)}</sub>"
    if q.missing:
        text += f"<br><sub>of {len(q.seeds)} seed{'s' if len(q.seeds) > 1 else ''}</sub>"
    return text


def headline(t: Testbed) -> str:
    """How many claims came out how, and which; checks of the instrument apart."""
    parts = {check: [j for j in t.claims if j.claim.check == check] for check in (False, True)}
    checks = ", ".join(j.claim.number for j in parts[True])
    return f"{_counted('claims', parts[False])} {_counted(f'checks of the instrument ({checks})', parts[True])}"


def _counted(name: str, judged: Sequence[Judged]) -> str:
    parts = []
    for verdict, title in VERDICTS.items():
        numbers = [j.claim.number for j in judged if j.verdict == verdict]
        which = f" ({', '.join(numbers)})" if 0 < len(numbers) < len(judged) else ""
        parts.append(f"{title}: {len(numbers)}{which}")
    return f"Of {len(judged)} {name}. {'. '.join(parts)}."


def _notice(t: Testbed) -> list[str]:
    return ["SYNTHETIC RECORDS, made up for a test: this is no result.", ""] if t.synthetic else []


def _claim(j: Judged) -> list[str]:
    c, digits = j.claim, MEASURES[j.claim.measure][2]
    text = value(j.quantity, digits, sign=True)
    if j.quantity.missing and j.verdict == "not run" and j.quantity.status != "not run":
        text += f"<br><sub>missing: {'; '.join(j.quantity.missing)}</sub>"
    says = f"**{j.verdict}**"
    if j.verdict == "not distinguishable" and j.detectable is not None:
        says += f"<br><sub>{len(j.quantity.seeds)} seeds find {shown(j.detectable, digits)}</sub>"
    holm = "not run" if j.p_holm is None else f"{j.verdict_holm}<br><sub>p {p_shown(j.p_holm)}</sub>"
    claim = f"{c.claim}<br><sub>{c.place}. Against it: {c.contradicted_by}.</sub>"
    return [c.number, c.world, claim, f"{quantity_words(c)}; claimed {expected(c)}", text, says, holm]


def claims_block(t: Testbed) -> str:
    """Every claim with its verdict."""
    head = ["#", "World", "Claim", "Quantity", "Value", "Verdict", "After Holm"]
    note = (
        f'{t.rule} Below each value its 95 % interval; below "not distinguishable" the smallest true difference from '
        "the reference that these seeds find with 80 % power at 5 %."
    )
    stamp = ", ".join(f"{n} {part}" for part, n in t.trainings.items())
    made = f"Generated by `stapo-repro tables` from {t.records} evaluation records and trainings ({stamp}), inputs "
    lines = [*_notice(t), headline(t), "", *grid(head, [_claim(j) for j in t.claims], 4), "", f"<sub>{note}</sub>", "",
             *(f"- {escape(n)}" for n in t.footnotes), "", f"{made}{t.inputs_sha256[:16]}."]  # fmt: skip
    return "\n".join(lines)


def masks_block(t: Testbed) -> str:
    """What each mask finds, by world."""
    rows = []
    for world in labels.WORLDS:
        found = [m for m in t.masks if m.world == world]
        rows += [[world, MASKS[m.mask], shown(m.tokens, 0), *(value(x, 1) for x in (m.precision, m.recall, m.useful))]
                 for m in found] or [[world, *(["not run"] * 5)]]  # fmt: skip
    head = ["World", "Mask", "Tokens", "Precision: spurious among the silenced (%)",
            "Recall: rare spurious silenced (%)", "Rare useful silenced (%)"]  # fmt: skip
    note = (
        f"Rare tokens of correct responses (A > 0, p < 0.002) in steps 1 to {NEAR_BASE} of every run of JustRL, which "
        "silences none: every mask is measured on the same tokens, mini-batch by mini-batch, with q = 0.75. Of the "
        "random mask the expectation over its draws. Means over runs with their 95 % t interval over runs."
    )
    return "\n".join([*_notice(t), *grid(head, rows, 2), "", f"<sub>{note}</sub>"])


def arms_block(t: Testbed) -> str:
    """What training made of each arm, by world."""
    rows = []
    for world in labels.WORLDS:
        mine = [r for r in t.rows if r.world == world]
        if all(q.mean is None for r in mine for q in r.values.values()):
            rows.append([world, "all", *["not run"] * len(COLUMNS)])
            continue
        for r in mine:
            absent = "n/a" if r.values else "not run"
            cells = (value(r.values[m], MEASURES[m][2]) if m in r.values else absent for m in COLUMNS)
            rows.append([world, escape(r.label), *cells])
    steps = t.evidence["main"].steps if t.evidence else None
    note = (
        f"{f'{steps} training steps. ' if steps else ''}Accuracy in percent, with the 95 % interval over problems and "
        f"seeds; reward and words per 100 responses: means over steps 1 to {EARLY} (how fast) and over the last "
        "quarter (late), with the t interval over seeds. The base model has no training."
    )
    return "\n".join([*_notice(t), *grid(["World", "Arm", *(_HEADS[m] for m in COLUMNS)], rows, 2), "",
                      f"<sub>{note}</sub>"])  # fmt: skip


def power_block(t: Testbed) -> str:
    """Seeds that each claim takes, from the pilot's spread."""
    rows: list[Sequence[str]] = []
    for p in t.power:
        _, unit, digits = MEASURES[p.claim.measure]
        more = "more than 10,000" if p.sd is not None and p.needed is None else str(p.needed)
        spread = "not run" if p.sd is None else f"{shown(p.sd, max(1, digits))} ({p.pilot_seeds} seeds)"
        least = p.claim.margin if p.claim.margin is not None else p.claim.smallest
        what = quantity_words(p.claim).removesuffix(f" ({unit})")
        rows.append([p.claim.number, p.claim.world, what, f"{least:g} {unit}".strip(), spread,
                     "not known" if p.sd is None else more, str(p.run)])  # fmt: skip
    head = ["#", "World", "Quantity", "Difference that matters", "Spread between seeds, pilot", "Seeds for 80 %",
            "Seeds run"]  # fmt: skip
    note = (
        "Paired differences of the pilot, whose seeds judge nothing. Power of the two-sided t test (noncentral t) at "
        f"5 % / {len(t.power)} claims, Bonferroni in the place of Holm, as if the spread of so few seeds were the true "
        "one; of an equivalence that of its two one-sided "
        "tests at a true difference of 0. Of an optimum the pair named first. Accuracies vary between problems too, "
        "which no seed removes: their numbers are the least."
    )
    return "\n".join([*grid(head, rows, 3), "", f"<sub>{note}</sub>"])


def blocks(t: Testbed) -> dict[str, str]:
    """Name of a block of docs/testbed.md -> its text."""
    return {
        "testbed-masks": masks_block(t),
        "testbed-arms": arms_block(t),
        "testbed-long": long_runs.block(t),
        "testbed-claims": claims_block(t),
        "testbed-power": power_block(t),
    }


def to_markdown(t: Testbed) -> str:
    """The file in results/tables."""
    titles = ("What each mask finds", "What training made of it", "Long trainings", "The claims", "Seeds")
    parts = [x for title, block in zip(titles, blocks(t).values(), strict=True) for x in (f"## {title}", "", block, "")]
    return "\n".join(["# Testbed (a tiny model on sums modulo 4; not a result of the paper)", "", *parts])
