"""A table and a figure of what each mask silences of the miniature's planted words."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from stapo_repro import labels
from stapo_repro.figures import style
from stapo_repro.figures.groups import Group
from stapo_repro.figures.style import GREY, Sketch
from stapo_repro.read import TrainingRun
from stapo_repro.text import escape, grid, number_shown, shown
from stapo_repro.tokens.log import Vocabulary
from stapo_results import token_log
from studies import masks
from studies.masks import MaskRow


def table(runs: Sequence[TrainingRun]) -> list[str]:
    """Precision and recall of every mask against the planted words of the miniature; `masks.parts` says of which."""
    logged = masks.planted_logs(runs)
    if not logged:
        return ["Not run: the records hold no such token log."]
    first, log = logged[0]
    file = token_log.tokenizer_file(first.folder)
    text_of = Vocabulary(file).one if file.exists() else "id {}".format
    words = ", ".join(escape(text_of(i).strip()) for i in log.header.watch)
    synthetic = f"{labels.SYNTHETIC} " if any(run.synthetic for run, _ in logged) else ""
    steps = set()
    for _, other in logged:
        column = other.histogram["step"].to_numpy()
        steps.add(f"{column.min()} to {column.max()}")
    lines = [
        f"{synthetic}Planted: {words}.",
        "",
        f"Tokens of responses with a positive advantage, steps {' and '.join(sorted(steps))}; tau_p = "
        f"{log.header.tau_p:g}, q = {log.header.q:g}. Intervals are 95 %: over prompts, or † over mini-batches, where "
        "the log has no row for each token. Differences are in percentage points, paired over the draws of prompts.",
    ]
    head = ("Mask", "Silenced tokens (A > 0)", "Precision: planted among them", "Recall: planted tokens silenced",
            "Rare planted tokens silenced", "Base rate: planted among all (among rare)")  # fmt: skip
    for title, (of_masks, differences) in masks.parts(logged).items():
        lines += ["", f"### {escape(title)}", "", *grid(head, [_planted_row(mask) for mask in of_masks])]
        rows = []
        for name, numbers_of in differences.items():
            texts = [number_shown(d, 2, 100, sign=True) for d in numbers_of.values()]
            rows.append([f"S2T minus {masks.NAMES[name]}", *texts])
        if rows:
            lines += ["", *grid(("Difference", "Precision", "Recall"), rows)]
    return lines


def _planted_row(mask: MaskRow) -> list[str]:
    m, texts = mask.measured, []
    for share in (m["precision"], m["recall"], m["rare_recall"]):
        text = f"{_tokens(share.part)} of {_tokens(share.whole)}" if share.whole else "n/a"
        if m["precision"].whole:
            unit = " %" if share.over == "prompts" else " % †"
            text = f"{number_shown(share, 2, 100, unit)}; {text}"
        texts.append(text)
    name = masks.NAMES.get(mask.selector, mask.selector)
    label = mask.label if mask.label == name else f"{mask.label}: {name}"
    base = f"{number_shown(m['base'], 2, 100)} % ({number_shown(m['rare_base'], 2, 100)} %)"
    return [escape(label), _tokens(m["precision"].whole), *texts, base]


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if abs(count - round(count)) < 1e-6 else f"{count:,.1f}"  # sums of fractions


def figure(g: Group) -> Sketch | None:
    """Precision and recall of each mask; None where no run of the group has a token log with planted words."""
    logged = masks.planted_logs(g.runs)
    if not logged:
        return None
    parts = masks.parts(logged)
    lines: list[tuple[str, MaskRow | None]] = []  # a part's heading is a line without a mask
    for i, (title, (of_masks, _)) in enumerate(parts.items()):
        lines.append((title, None))
        lines += [(masks.NAMES[mask.selector] if i else mask.label, mask) for mask in of_masks]
    sheet = style.sheet(1.4 + 0.2 * len(lines))
    precision, recall = sheet.subplots(1, 2, sharey=True)
    for axes, name in ((precision, "precision"), (recall, "recall")):
        axes.set_title(name.capitalize())
        for i, (_, mask) in enumerate(lines):
            if mask is not None:
                _draw_mask(axes, -i, mask, name)
        style.bare(axes, len(lines))
        axes.set(xlim=(0, 119), xticks=[0, 25, 50, 75, 100])  # room for the numbers
    precision.set_xlabel("planted words among the silenced tokens (%)")
    recall.set_xlabel("silenced share of the planted words (%)")
    precision.set_yticks([-i for i, (_, mask) in enumerate(lines) if mask], [text for text, mask in lines if mask])
    for i, (text, mask) in enumerate(lines):
        if mask is None:
            head = precision.annotate(text, (0, -i), xytext=(3, 0), textcoords="offset points", va="center",
                                      weight="bold", bbox={"facecolor": "white", "linewidth": 0, "pad": 1})  # fmt: skip
            head.set_in_layout(False)  # it may reach into the gap between the panels
    style.legend(sheet, [Line2D([], [], color="black", linewidth=0.9, label="planted words among all rare tokens")])
    caption = (
        "Silenced tokens of right responses; the base model was taught meaningless words, which are the planted ones. "
        "Bars: 95 % bootstrap intervals over prompts, over mini-batches for masks beyond rare tokens. Random mask: "
        "expectation over its draws."
    )
    finding = ""
    for title, (of_masks, _) in list(parts.items())[1:2]:  # all tokens of one run without a mask
        silenced = {mask.selector: mask.measured["precision"] for mask in of_masks}
        s2t, chance = silenced[masks.S2T], silenced[masks.RANDOM]
        if s2t.known and chance.known:
            finding = f"{title}: of what S2T would silence {100 * s2t.mean:.0f} % is planted, "
            finding += f"of a random choice {100 * chance.mean:.0f} %"
    return g.sketch("planted", "What the masks silence of the planted words", sheet, caption, finding=finding)


def _draw_mask(axes: Axes, y: float, mask: MaskRow, name: str) -> None:
    share, base = mask.measured[name].times(100), mask.measured["rare_base"]
    silences = bool(mask.measured["precision"].whole)
    if not silences or not share.known:
        style.number(axes, 0, y, "no planted word" if silences else "silences none", 3, color=GREY)
        return
    style.mark(axes, share, y, style.method_style(mask.method), f"planted-{-y}")
    end = share.high if share.has_interval else share.mean
    style.number(axes, end, y, shown(share.mean, 1), 5)
    if name == "precision" and base.known:
        axes.plot([100 * base.mean] * 2, [y - 0.5, y + 0.5], color="black", linewidth=0.9, zorder=2)
