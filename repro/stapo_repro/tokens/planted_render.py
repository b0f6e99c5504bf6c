"""The written forms of what the masks silence of the planted words: Markdown (file and page) and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stapo_repro.tables import percent, shown, signed
from stapo_repro.tables.render import grid
from stapo_repro.tables.render.markdown import escape
from stapo_repro.tokens import planted
from stapo_repro.tokens.planted_runs import SELECTORS, MasksOnSameTokens, PlantedSection
from stapo_repro.tokens.shares import Interval, Share

NOT_RUN = "not run: `stapo-repro miniature`, then `stapo-repro collect`"
_HEAD = [
    *("Silenced tokens (A > 0)", "Precision: planted among them", "Recall: planted tokens silenced"),
    *("Rare planted tokens silenced", "Base rate: planted among all (among rare)"),
]


def to_json(sections: Sequence[PlantedSection]) -> str:
    """Everything, with eight decimals."""
    data = {"schema_version": 1, "sections": [asdict(s) for s in sections]}
    return json.dumps(_rounded(data), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 8) + 0.0
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


def to_markdown(sections: Sequence[PlantedSection]) -> str:
    """The file of its own."""
    return f"# What the masks silence of the planted words (a tiny model on additions)\n\n{page_block(sections)}\n"


def page_block(sections: Sequence[PlantedSection]) -> str:
    """What stands between the markers of docs/tokens.md."""
    return "\n\n".join(_section(s) for s in sections) if sections else NOT_RUN


def _section(s: PlantedSection) -> str:
    lines = [f"## {s.title}", "", f"Planted: {', '.join(escape(w) for w in s.words)}.", ""]
    rows = [
        [escape(t.label), escape(SELECTORS.get(t.selector, t.selector)), *_cells(t.measured, t.base)] for t in s.trained
    ]
    lines += ["### As trained", "", *grid(["Run", "Mask", *_HEAD], rows, 2), ""]
    lines += [f"<sub>{_note(s)}</sub>"]
    for same in s.on_same:
        lines += ["", *_on_same(same)]
    return "\n".join(lines)


def _note(s: PlantedSection) -> str:
    steps = " and ".join(f"steps {a} to {b}" for a, b in sorted({t.steps for t in s.trained}))
    text = (
        f"Tokens of responses with a positive advantage, {steps}. Below each share its 95 % interval (bootstrap over "
        "prompts, 10,000 draws) and the tokens it is made of. Base rates are those of the run's own tokens."
    )
    if any(t.measured.precision.over == "mini-batches" for t in s.trained):
        text += " \u2020 over mini-batches: the log has no row for each of these tokens."
    return text


def _cells(m: planted.Measured, base: planted.BaseRates) -> list[str]:
    silenced = m.precision.whole
    rates = f"{_percent(base.correct)} ({_percent(base.rare)})"
    if not silenced:
        return ["0", "n/a", f"0 of {_tokens(m.recall.whole)}", f"0 of {_tokens(m.rare_recall.whole)}", rates]
    return [_tokens(silenced), _share(m.precision), _share(m.recall), _share(m.rare_recall, ends=False), rates]


def _on_same(same: MasksOnSameTokens) -> list[str]:
    rows = [[SELECTORS[name], *_cells(m, same.base)] for name, m in same.compared.masks.items()]
    between = [
        [f"S2T minus {SELECTORS[name]}", _points(same.compared.precision[name]), _points(same.compared.recall[name])]
        for name in planted.OTHERS
    ]
    return [
        f"### {escape(same.title)}",
        "",
        *grid(["Mask", *_HEAD], rows),
        "",
        *grid(["Difference, percentage points", "Precision", "Recall"], between),
        "",
        f"<sub>What each mask would silence of the same tokens, mini-batch by mini-batch (tau_p = {same.tau_p:g}, "
        f"q = {same.q:g}). Of the random mask the expectation over its draws. Differences are paired over the draws of "
        "prompts.</sub>",
        "",
        _said(same),
    ]


def _said(same: MasksOnSameTokens) -> str:
    """In words: what S2T silences, and how much more of it is planted than of two masks that silence as many tokens."""
    m = same.compared.masks[planted.S2T].precision
    if m.value is None:
        return "S2T silences none of these tokens."
    parts = []
    for name in planted.OTHERS:
        d = same.compared.precision[name]
        if d.low is None or d.high is None:
            parts.append(f"against {SELECTORS[name]} {_points(d)} points, without an interval")
            continue
        side = "above 0" if d.low > 0 else "below 0" if d.high < 0 else "0 is within"
        parts.append(f"against {SELECTORS[name]} {_points(d, '{} points ({} to {}, ')}{side})")
    return (
        f"Of the {_tokens(m.whole)} tokens that S2T silences here {_tokens(m.part)} are planted words "
        f"({_percent(m)}), of all {_tokens(same.base.rare.whole)} rare tokens {_tokens(same.base.rare.part)} "
        f"({_percent(same.base.rare)}). Precision: {'; '.join(parts)}."
    )


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if abs(count - round(count)) < 1e-6 else f"{count:,.1f}"  # sums of fractions


def _percent(share: Share) -> str:
    return "n/a" if share.value is None else f"{shown(percent(share.value))} %"


def _share(share: Share, ends: bool = True) -> str:
    if share.value is None:
        return "n/a"
    mark = " \u2020" if share.over == "mini-batches" else ""
    counts = f"{_tokens(share.part)} of {_tokens(share.whole)}"
    if not ends or share.low is None or share.high is None:
        return f"{_percent(share)}{mark}<br><sub>{counts}</sub>"
    low, high = (shown(percent(x)) for x in (share.low, share.high))
    return f"{_percent(share)}{mark}<br><sub>{low} to {high}; {counts}</sub>"


def _points(d: Interval, form: str = "{}<br><sub>{} to {}</sub>") -> str:
    if d.value is None:
        return "n/a"
    if d.low is None or d.high is None:
        return signed(percent(d.value))
    return form.format(*(signed(percent(x)) for x in (d.value, d.low, d.high)))
