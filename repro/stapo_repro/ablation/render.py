"""The written forms of the ablation: Markdown (file and page) and JSON. LF, no time stamp."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from stapo_repro import labels
from stapo_repro.ablation.build import REFERENCE, Ablation
from stapo_repro.ablation.by_seed import Measure, Number
from stapo_repro.ablation.claims import NARROWING, VERDICTS, Claim, JudgedClaim
from stapo_repro.tables import shown
from stapo_repro.tables.render import grid
from stapo_results.schema import SETTINGS

# heading, unit, digits
MEASURES: dict[Measure, tuple[str, str, int]] = {
    "reward": ("Reward", "", 3),
    "entropy": ("Entropy", "nats", 4),
    "entropy_std": ("Std of entropy over steps", "nats", 4),
    "entropy_rise": ("Rise of entropy", "nats", 4),
    "silenced_share": ("Silenced, all steps", "%", 4),
    "silenced_late": ("Silenced, last quarter", "%", 4),
}
_TITLE = "Ablation in miniature (a tiny model on additions; not a result of the paper)"


def to_json(ablation: Ablation) -> str:
    """The full data: every number with its seeds and standard errors, every claim with its quantity and verdict."""
    data = asdict(ablation)
    data["claims"] = [
        {**j.claim.model_dump(), "number": asdict(j.number), "verdict": j.verdict} for j in ablation.claims
    ]
    return json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _value(n: Number, digits: int, signed: bool = False) -> str:
    if n.mean is None:
        return n.status
    return f"{'+' if signed and n.mean >= 0 else ''}{shown(n.mean, digits)}"


def _gap(planned: int, *numbers: Number) -> str:
    """How many of the planned seeds a value is made of, where some are missing."""
    counts = list(dict.fromkeys(f"{len(n.seeds)}/{planned}" for n in numbers if n.status == "incomplete"))
    return f" **{' and '.join(counts)} seeds**" if counts else ""


def _interval(n: Number, digits: int) -> str:
    return "n/a" if n.low is None else f"{shown(n.low, digits)} to {shown(n.high, digits)}"


def _one(n: Number, digits: int, planned: int, signed: bool = False) -> str:
    text = _value(n, digits, signed) + _gap(planned, n)
    return text if n.mean is None else f"{text}<br><sub>{_interval(n, max(1, digits - 1))}</sub>"


def _both(by_setting: dict[str, Number], planned: int) -> str:
    """The paper's cell: temperature 1.0, in brackets 0.7."""
    first, second = (by_setting[s] for s in SETTINGS)
    if first.status == second.status == "not run":
        return "not run"
    text = f"{_value(first, 2)} ({_value(second, 2)}){_gap(planned, first, second)}"
    return f"{text}<br><sub>{_interval(first, 1)} ({_interval(second, 1)})</sub>"


def _accuracy(a: Ablation) -> list[str]:
    parts = [*a.benchmarks, labels.AVERAGE]
    header = ["Method", *(labels.benchmark_label(b) for b in a.benchmarks), f"Avg of {len(a.benchmarks)}"]
    lines = grid(header, [[r.label, *(_both(r.accuracy[b], len(a.seeds)) for b in parts)] for r in a.rows])
    note = (
        f"Accuracy in percent at temperature 1.0 / top-p 1.0, in brackets at 0.7 / 0.9: mean over {len(a.seeds)} "
        "training seeds. Below it the 95 % interval for the choice of problems and of seeds: t interval with "
        "SE² = SE² over problems + SE² over seeds, degrees of freedom by Welch and Satterthwaite. The base model is "
        "one model; its interval is over problems."
    )
    return [*lines, "", f"<sub>{note}</sub>"]


def _differences(a: Ablation) -> list[str]:
    columns = [(b, s) for b in (*a.benchmarks, labels.AVERAGE) for s in SETTINGS]
    header = [f"Difference to {labels.method_label(REFERENCE)}"]
    header += [f"{labels.benchmark_label(b)}, T={SETTINGS[s][0]}" for b, s in columns]
    rows = [
        [r.label, *(_one(r.difference[b][s], 2, len(a.seeds), signed=True) for b, s in columns)]
        for r in a.rows
        if r.difference
    ]
    note = "In percentage points, paired by problem and by training seed; the interval as above, of the differences."
    return [*grid(header, rows), "", f"<sub>{note}</sub>"]


def _training(a: Ablation) -> list[str]:
    header = ["Training", *(f"{title} ({unit})" if unit else title for title, unit, _ in MEASURES.values())]
    rows = [
        [r.label, *(_one(r.training[m], digits, len(a.seeds)) for m, (_, _, digits) in MEASURES.items())]
        for r in a.rows
        if r.training
    ]
    note = (
        "Means over seeds with the 95 % t interval over seeds. Reward and entropy: mean over the last quarter of the "
        "steps. Std of entropy: between the steps of that quarter. Rise: last quarter's mean less the first's. "
        "Silenced: share of response tokens. An interval of what cannot be negative ends at 0."
    )
    return [*grid(header, rows), "", f"<sub>{note}</sub>"]


def quantity(c: Claim) -> str:
    """The claim's quantity in words, with its unit."""
    first = labels.method_label(c.first)
    if c.measure == "accuracy":
        lead = c.setting == NARROWING
        what = "lead at T=1.0 less lead at T=0.7" if lead else f"accuracy at T={SETTINGS[str(c.setting)][0]}"
        unit = "points"
    else:
        title, unit, _ = MEASURES[c.measure]
        what = title[0].lower() + title[1:]
    if c.second is not None:
        text = f"{what}: {first} minus {labels.method_label(c.second)}"
    elif c.reference:
        text = f"{what}: {first} minus {100 * c.reference:g} %"
    else:
        text = f"{what}: {first}"
    return f"{text} ({unit})" if unit else text


def _claim(number: int, j: JudgedClaim, planned: int) -> list[str]:
    digits = 2 if j.claim.measure == "accuracy" else MEASURES[j.claim.measure][2]
    value = _value(j.number, digits, signed=True) + _gap(planned, j.number)
    if j.number.mean is not None:  # the verdict is read off the interval: as many digits as the value
        value += f"<br><sub>{_interval(j.number, digits)}</sub>"
    if j.number.missing:
        value += f"<br><sub>missing: {'; '.join(j.number.missing)}</sub>"
    side = "above 0" if j.claim.direction == "above" else "below 0"
    claim = f"{j.claim.claim}<br><sub>{j.claim.place}</sub>"
    return [str(number), claim, f"{quantity(j.claim)}; claimed {side}", value, f"**{j.verdict}**"]


def headline(a: Ablation) -> str:
    """How many claims came out how, and which."""
    parts = []
    for verdict, title in VERDICTS.items():
        numbers = [str(n) for n, j in enumerate(a.claims, 1) if j.verdict == verdict]
        word = "claim" if len(numbers) == 1 else "claims"
        which = f" ({word} {', '.join(numbers)})" if 0 < len(numbers) < len(a.claims) else ""
        parts.append(f"{title}: {len(numbers)}{which}")
    return f"Of {len(a.claims)} claims. {'. '.join(parts)}."


def _claims(a: Ablation) -> list[str]:
    rows = [_claim(n, j, len(a.seeds)) for n, j in enumerate(a.claims, 1)]
    note = (
        f"{a.rule} Intervals are not adjusted for the number of claims. Not tested by these runs: "
        f"{'; '.join(a.not_tested)}."
    )
    return [headline(a), "", *grid(["#", "Claim", "Quantity", "Value", "Verdict"], rows, 3), "", f"<sub>{note}</sub>"]


def _sections(a: Ablation, level: int) -> list[str]:
    mark = "#" * level
    lines: list[str] = []
    parts: Sequence[tuple[str, list[str]]] = (
        (f"The paper's claims ({a.paper})", _claims(a)),
        ("Accuracy", [*_accuracy(a), "", *_differences(a)]),
        ("Training", _training(a)),
    )
    for title, body in parts:
        lines += [f"{mark} {title}", "", *body, ""]
    if a.footnotes:
        lines += [*(f"- {note}" for note in a.footnotes), ""]
    return lines


def _generated(a: Ablation) -> str:
    return (
        f"Generated by `stapo-repro tables` from {len(a.records)} evaluation records and {len(a.trainings)} trainings, "
        f"inputs {a.inputs_sha256[:16]}."
    )


def to_markdown(a: Ablation) -> str:
    """The file in results/tables."""
    return "\n".join([f"# {_TITLE}", "", _generated(a), "", *_sections(a, 2)]).rstrip("\n") + "\n"


def page_block(a: Ablation) -> str:
    """What stands between the page's markers."""
    return "\n".join([*_sections(a, 2), _generated(a)]) + "\n"
