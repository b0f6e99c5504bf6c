"""The analysis of a token log as files: all numbers as JSON, the figures, and one HTML page.

The page has no script and loads nothing; its policy allows the one style sheet and no more. Every text passes `visible`
and the template's escaping on its way.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources

from markupsafe import Markup

from stapo_repro.figures import tokens as figures
from stapo_repro.figures.inline import Glyphs, picture
from stapo_repro.figures.style import Drawn, save, style
from stapo_repro.text import template, visible
from stapo_repro.tokens import mismatch, mismatch_page, numbers
from stapo_repro.tokens.logged_run import LoggedRun, marked
from stapo_repro.tokens.numbers import Case, Quadrant, StepCount, percent

# STAPO, Table "Taxonomy of Token-Level Optimization Mechanisms", with numbers for high and low; its column "spurious
# risk", which is judged by reading, is left out, and tokens and their share are added
_TAXONOMY = ("Advantage", "Token prob.", "Entropy", "Gradient norm", "Entropy change", "Tokens", "Share")
_CASE_HEADER = ("Token", "Probability", "Advantage", "Entropy", "Top 5")
_MOST_WORDS = 500  # different tokens a part in tokens.json; the page's bars have fewer


def analyse(run: LoggedRun, top: int = 30) -> tuple[dict[str, bytes], list[str]]:
    """The files by name, the same bytes each time, and what the command prints.

    Args:
        top: how many cases are shown.

    Raises:
        RunFailed: the log contradicts the run's metrics (`numbers.by_step`).
    """
    counts, quadrants, cases = numbers.by_step(run), numbers.quadrants(run), numbers.cases(run, top)
    with style():
        drawn = [save(sketch, ("svg", "png")) for sketch in figures.sketches(run)]
    steps, spread, said = numbers.thresholds(run), numbers.all_thresholds(run), _statement(run, counts)
    disagreement = mismatch.measured(run)
    found = {
        "schema_version": 4,
        "run_id": run.record.run_id if run.record is not None else None,
        "inputs": dict(sorted(run.inputs.items())),
        "facts": run.header.model_dump(mode="json"),
        "comparison": said,
        "threshold": {"all": asdict(spread) if spread else None, "steps": [asdict(t) for t in steps]},
        "taxonomy": [asdict(q) for q in quadrants],
        "silenced": [asdict(c) for c in counts],
        "mismatch": None if disagreement is None else asdict(disagreement),
        "ranked": {
            part: {"tokens": sum(w.values()), "counts": dict(list(w.items())[:_MOST_WORDS])}
            for part, w in numbers.words(run).items()
        },
        "cases": [asdict(c) for c in cases],
    }
    texts = {
        "index.html": _html(run, counts, quadrants, cases, disagreement, drawn, said),
        "tokens.json": json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False) + "\n",
    }
    files = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    files |= {f"{d.name}.{kind}": data for d in drawn for kind, data in d.files.items()}
    return files, [said, *mismatch_page.lines(disagreement), *_notices(run, counts)]


def _html(
    run: LoggedRun,
    counts: Sequence[StepCount],
    quadrants: Sequence[Quadrant],
    cases: Sequence[Case],
    disagreement: mismatch.Mismatch | None,
    drawn: Sequence[Drawn],
    said: str,
) -> str:
    glyphs = Glyphs()
    sheet = "".join(
        resources.files(package).joinpath("templates", name).read_text(encoding="utf-8")
        for package, name in (("stapo_repro.report", "style.css"), ("stapo_repro.tokens", "tokens.css"))
    )
    allowed = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    return template("stapo_repro.tokens", "tokens.html.jinja", _shown).render(
        title=run.heading("Tokens"),
        notices=_notices(run, counts),
        tau_p=f"{run.header.tau_p:g}",
        q=f"{run.header.q:g}",
        cards=_cards(run, counts),
        statement=said,
        pictures={d.name: picture(d.name, d.title, d.caption, d.files["svg"], glyphs) for d in drawn},
        glyphs=glyphs,
        taxonomy_header=_TAXONOMY,
        taxonomy=[_taxonomy_row(q) for q in quadrants],
        mismatch=[]
        if disagreement is None
        else zip(mismatch_page.HEAD, mismatch_page.cells(disagreement), strict=True),
        cases=[(c, marked(c.token), _case_cells(c), _case_place(c)) for c in cases],
        case_header=_CASE_HEADER,
        parts=run.part_names,
        provenance=_provenance(run),
        inputs=sorted(run.inputs.items()),
        style=Markup(sheet),
        policy=f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'",
    )


def _shown(value: object) -> object:
    return visible(value) if type(value) is str else value


def _statement(run: LoggedRun, counts: Sequence[StepCount]) -> str:
    """The comparison of log and metrics in words; where they differ `by_step` raises."""
    compared = sum(c.metric is not None for c in counts)
    said = f"silenced: {sum(c.silenced for c in counts):,} in the log"
    said += f", equal to the metrics in {compared} of {len(counts)} steps" if compared else "; no metrics beside it"
    return said + (f"; {run.header.left_out:,} rows left out at the log's bound" if run.header.left_out else "")


def _notices(run: LoggedRun, counts: Sequence[StepCount]) -> list[str]:
    """What a reader has to know first."""
    said = []
    if not any(c.tokens for c in counts):
        said.append("The log is empty: no response token was counted.")
    elif not any(c.rare for c in counts):
        said.append("No token of the log is rare: there is nothing that S2T could silence.")
    if run.is_probe:
        said.append("A probe: a model was asked about responses that exist; nothing was trained, and nothing silenced.")
    if run.header.loss != "vanilla":
        said.append(f"Gradient norms are without the clip of the loss {run.header.loss}, which the log does not know.")
    if lost := run.header.not_finite:
        said.append(f"{lost:,} tokens have statistics that are not finite; they are in no number here.")
    if not run.masks_rare:
        said.append(
            f"The selector {run.header.selector} is no known mask over rare tokens. Shown is what S2T would "
            "silence: rare tokens with an entropy below the threshold."
        )
    return said


def _cards(run: LoggedRun, counts: Sequence[StepCount]) -> list[tuple[str, str]]:
    tokens, rare = sum(c.tokens for c in counts), sum(c.rare for c in counts)
    done = sum(c.silenced if run.masks_rare else c.region for c in counts)
    return [
        (f"{len(counts):,}", "steps in the log"),
        (f"{tokens:,}", "response tokens"),
        (f"{rare:,}", "rare tokens of correct responses"),
        (f"{done:,}", run.part_names[0]),
        (f"{100 * done / tokens:.3g} %" if tokens else "no token", "of all response tokens"),
    ]


def _taxonomy_row(q: Quadrant) -> tuple[str, ...]:
    """A quadrant's texts, in the order of _TAXONOMY."""
    sides = "A > 0", f"p {'<' if q.rare else '≥'} τp", f"H {'<' if q.below else '≥'} τh"
    if q.norm is None or q.entropy_rises is None or q.share is None:
        return *sides, "no token", "no token", "0", "no token"
    ends = "" if q.norm.low is None or q.norm.high is None else f" [{q.norm.low:.4g}, {q.norm.high:.4g}]"
    rises = q.entropy_rises
    change = f"↑ at {100 * rises:.4g} %" if rises > 0.5 else f"↓ at {100 * (1 - rises):.4g} %"
    return *sides, f"{q.norm.mean:.4g}{ends}", change, f"{q.tokens:,}", f"{100 * q.share:.4g} %"


def _case_cells(c: Case) -> tuple[str, ...]:
    """A case's numbers, in the order of _CASE_HEADER."""
    top = " · ".join(f"{marked(text)} {percent(p, 2)}" for text, p in c.top)
    return marked(c.token), percent(c.probability), f"{c.advantage:.2f}", f"{c.entropy:.4g} nats", top


def _case_place(c: Case) -> str:
    tau = "" if c.tau_h is None else f", threshold {c.tau_h:.4g} nats"
    return f"step {c.step}, prompt {c.prompt_id}, sample {c.sample}, position {c.position}{tau}"


def _provenance(run: LoggedRun) -> dict[str, str]:
    """Where the numbers come from."""
    record, header = run.record, run.header
    changed = " (changed)" if record and record.code_dirty else ""
    return {
        "Run": f"{record.run_id} ({record.kind}, {record.status})" if record else "no run.json beside the log",
        "Folder": run.name,
        "Selector": f"{header.selector}, τp = {header.tau_p:g}, q = {header.q:g}",
        "Log": f"mode {header.mode}, {len(run.rows['step']):,} rows, {header.left_out:,} left out at its bound",
        "Code of the run": f"{record.code_commit}{changed}" if record else "not on record",
    }
