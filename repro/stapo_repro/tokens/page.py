"""The HTML page: one file, no script, nothing from a network; its policy allows the one style sheet and no more.

Every text passes `visible` and the template's escaping on its way.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from markupsafe import Markup

from stapo_repro.figures.canvas import Drawn
from stapo_repro.figures.inline import Glyphs, picture
from stapo_repro.templating import template, visible
from stapo_repro.tokens.cases import Case, percent
from stapo_repro.tokens.logged_run import LoggedRun
from stapo_repro.tokens.quadrants import Quadrant
from stapo_repro.tokens.silencing import StepCount, statement, thresholds
from stapo_repro.tokens.vocabulary import marked

CASE_HEADER = ("Token", "Probability", "Advantage", "Entropy", "Top 5")


@dataclass(frozen=True)
class PageTable:
    """A table as people read it: one text a column of the header."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def to_html(
    run: LoggedRun,
    counts: Sequence[StepCount],
    quadrants: Sequence[Quadrant],
    cases: Sequence[Case],
    drawn: Sequence[Drawn],
) -> str:
    """The page. A pure function of its arguments: the same bytes each time."""
    glyphs = Glyphs()
    style = _asset("stapo_repro.report", "style.css") + _asset("stapo_repro.tokens", "tokens.css")
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return template("stapo_repro.tokens", "tokens.html.jinja", _shown).render(
        title=run.heading("Tokens"),
        notices=notices(run, counts),
        tau_p=f"{run.header.tau_p:g}",
        q=f"{run.header.q:g}",
        cards=_cards(run, counts),
        statement=statement(run, counts),
        pictures={d.name: picture(d.name, d.title, d.caption, d.files["svg"], glyphs) for d in drawn},
        glyphs=glyphs,
        taxonomy=_taxonomy(run, quadrants),
        steps=_steps(run, counts),
        cases=[(c, marked(c.token), _case_cells(c), _case_place(c)) for c in cases],
        case_header=CASE_HEADER,
        parts=run.part_names,
        provenance=provenance(run, counts),
        inputs=sorted(run.inputs.items()),
        style=Markup(style),
        policy=f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'",
    )


def _shown(value: object) -> object:
    return visible(value) if type(value) is str else value


def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath("templates", name).read_text(encoding="utf-8")


def _case_cells(c: Case) -> tuple[str, ...]:
    """A case's numbers, in the order of CASE_HEADER."""
    top = " · ".join(f"{marked(text)} {percent(p, 2)}" for text, p in c.top)
    return marked(c.token), percent(c.probability), f"{c.advantage:.2f}", f"{c.entropy:.4g} nats", top


def _case_place(c: Case) -> str:
    tau = "" if c.tau_h is None else f", threshold {c.tau_h:.4g} nats"
    return f"step {c.step}, prompt {c.prompt_id}, sample {c.sample}, position {c.position}{tau}"


def notices(run: LoggedRun, counts: Sequence[StepCount]) -> tuple[str, ...]:
    """What a reader has to know first."""
    said = []
    if not any(c.tokens for c in counts):
        said.append("The log is empty: no response token was counted.")
    elif not any(c.rare for c in counts):
        said.append("No token of the log is rare: there is nothing that S2T could silence.")
    if run.is_probe:
        said.append("A probe: a model was asked about responses that exist; nothing was trained, and nothing silenced.")
    if run.header.loss != "vanilla":
        said.append(
            f"The loss is {run.header.loss}, whose clip the log does not know: gradient norms are those of the "
            "surrogate without one."
        )
    if lost := run.header.not_finite:
        said.append(f"{lost:,} tokens have statistics that are not finite; they are in no number here.")
    if not run.masks_rare:
        said.append(
            f"The selector {run.header.selector} is no mask over rare tokens. Shown is what S2T would silence: rare "
            "tokens with an entropy below the threshold."
        )
    return tuple(said)


def _cards(run: LoggedRun, counts: Sequence[StepCount]) -> tuple[tuple[str, str], ...]:
    tokens, rare = sum(c.tokens for c in counts), sum(c.rare for c in counts)
    done = sum(c.silenced if run.masks_rare else c.region for c in counts)
    share = f"{100 * done / tokens:.3g} %" if tokens else "no token"
    return (
        (f"{len(counts):,}", "steps in the log"),
        (f"{tokens:,}", "response tokens"),
        (f"{rare:,}", "rare tokens of correct responses"),
        (f"{done:,}", run.part_names[0]),
        (share, "of all response tokens"),
    )


def _taxonomy(run: LoggedRun, quadrants: Sequence[Quadrant]) -> PageTable:
    """STAPO, Table "Taxonomy of Token-Level Optimization Mechanisms", with numbers for high and low.

    The paper's column "spurious risk" is left out, because it is judged by reading. Tokens and their share are added.
    """
    header = run.header
    notes = (
        f"A > 0: tokens of responses with a positive advantage. τp = {header.tau_p:g}; τh is the {header.q:g}-quantile "
        "of the entropies of each mini-batch's rare tokens.",
        "Gradient norm: mean over the tokens of the norm with respect to the logits, 0 where the clip takes hold, "
        "before any silencing; rank 1 is the largest. Brackets: 95 % t interval over the mini-batches of this run "
        "(ratio estimator). It says how mini-batches differ, not how runs do.",
        "Entropy change: share of the tokens at which a gradient step raises (↑) or lowers (↓) the entropy, by the "
        "sign of log p + H (the paper's lemma on entropy, for an advantage above its expectation).",
    )
    header = ("Advantage", "Token prob.", "Entropy", "Gradient norm", "Entropy change", "Tokens", "Share")
    title = run.heading("Tokens of correct responses by probability and entropy")
    return PageTable("taxonomy", title, header, tuple(map(_taxonomy_row, quadrants)), notes)


def _taxonomy_row(q: Quadrant) -> tuple[str, ...]:
    norm = change = share = "no token"
    if q.norm is not None:
        ends = "" if q.norm.low is None or q.norm.high is None else f" [{q.norm.low:.4g}, {q.norm.high:.4g}]"
        norm = f"{q.norm.mean:.4g}{ends} (rank {q.rank})"
    if (rises := q.entropy_rises) is not None:
        change = f"↑ at {100 * rises:.4g} %" if rises > 0.5 else f"↓ at {100 * (1 - rises):.4g} %"
    if q.share is not None:
        share = f"{100 * q.share:.4g} %"
    sides = f"p {'<' if q.rare else '≥'} τp", f"H {'<' if q.below else '≥'} τh"
    return "A > 0", *sides, norm, change, f"{q.tokens:,}", share


def _steps(run: LoggedRun, counts: Sequence[StepCount]) -> PageTable:
    medians = {t.step: f"{t.median:.4g}" for t in thresholds(run)}
    rows = []
    for c in counts:
        share = f"{100 * c.silenced / c.tokens:.4g} %" if c.tokens else "no token"
        metric = "no metrics" if c.metric is None else f"{c.metric:,}"
        numbers = (f"{n:,}" for n in (c.tokens, c.rare, c.region, c.silenced))
        rows.append((f"{c.step}", *numbers, metric, share, medians.get(c.step, "none")))
    header = ("Step", "Tokens", "Rare", "S2T's region", "Silenced", "In the metrics", "Silenced share")
    return PageTable("silenced", run.heading("Silenced tokens by step"), (*header, "Threshold (nats)"), tuple(rows))


def provenance(run: LoggedRun, counts: Sequence[StepCount]) -> dict[str, str]:
    """Where the numbers come from."""
    record, header = run.record, run.header
    rows, changed = len(run.rows["step"]), " (changed)" if record and record.code_dirty else ""
    return {
        "Run": f"{record.run_id} ({record.kind}, {record.status})" if record else "no run.json beside the log",
        "Folder": run.name,
        "Method": run.method,
        "Size": run.size or "not on record",
        "Steps": f"{counts[0].step} to {counts[-1].step}, {len(counts)} in all" if counts else "none",
        "Selector": f"{header.selector}, τp = {header.tau_p:g}, q = {header.q:g}",
        "Log": f"mode {header.mode}, {rows:,} rows, {header.left_out:,} left out at its bound",
        "Code of the run": f"{record.code_commit}{changed}" if record else "not on record",
        "Inputs": run.inputs_sha256,
    }
