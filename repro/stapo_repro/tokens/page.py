"""The HTML page: one file, no script, nothing from a network; its policy allows the one style sheet and no more.

Every text passes `visible` and the template's escaping on its way.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Template
from markupsafe import Markup

from stapo_repro.figures.canvas import Drawn
from stapo_repro.figures.inline import Glyphs, Picture, picture
from stapo_repro.templating import template, visible
from stapo_repro.tokens.cases import Case
from stapo_repro.tokens.labelling import CATEGORIES, Labels
from stapo_repro.tokens.material import Material
from stapo_repro.tokens.silencing import StepCount, statement
from stapo_repro.tokens.tables import CASE_HEADER, Sheet, case_cells, case_facts
from stapo_repro.tokens.texts import marked


@dataclass(frozen=True)
class _CaseView:
    part: str
    before: str
    token: str
    after: str
    cells: tuple[str, ...]
    facts: str


@dataclass(frozen=True)
class _Page:
    title: str
    notices: tuple[str, ...]
    tau_p: str
    q: str
    cards: tuple[tuple[str, str], ...]
    statement: str
    pictures: Mapping[str, Picture]
    glyphs: Glyphs
    taxonomy: Sheet
    steps: Sheet
    cases: tuple[_CaseView, ...]
    cases_said: str
    labels_said: tuple[str, ...]
    provenance: tuple[tuple[str, str], ...]
    inputs: tuple[tuple[str, str], ...]


def to_html(
    material: Material,
    counts: Sequence[StepCount],
    taxonomy: Sheet,
    steps: Sheet,
    cases: Sequence[Case],
    drawn: Sequence[Drawn],
    labels: Labels | None,
) -> str:
    """The page. A pure function of its arguments: the same bytes each time."""
    glyphs = Glyphs()
    pictures = {d.name: picture(d.name, d.title, d.caption, d.files["svg"], glyphs) for d in drawn}
    by_id = labels.by_id if labels is not None else {}
    first, second = material.words
    page = _Page(
        title=material.heading("Tokens"),
        notices=notices(material, counts),
        tau_p=f"{material.facts.tau_p:g}",
        q=f"{material.facts.q:g}",
        cards=_cards(material, counts),
        statement=statement(material, counts),
        pictures=pictures,
        glyphs=glyphs,
        taxonomy=taxonomy,
        steps=steps,
        cases=tuple(_case(c, by_id.get(c.id)) for c in cases),
        cases_said=f"{len(cases)} rare tokens, two thirds {first}, then {second}, each from the lowest probability up; "
        "chosen by nothing else. White space of a token is shown as ␣ and ⏎. The top tokens are of the policy at the "
        "update, which may differ from the one that judged the token."
        if cases
        else "The log has no rare token.",
        labels_said=_labels_said(labels),
        provenance=provenance(material, counts),
        inputs=tuple(sorted(material.inputs.items())),
    )
    style = _asset("stapo_repro.report", "style.css") + _asset("stapo_repro.tokens", "tokens.css")
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _template().render(
        p=page,
        style=Markup(style),
        policy=f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'",
        case_header=CASE_HEADER,
    )


def _shown(value: object) -> object:
    return visible(value) if type(value) is str else value


def _template() -> Template:
    return template("stapo_repro.tokens", "tokens.html.jinja", _shown)


def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath("templates", name).read_text(encoding="utf-8")


def _case(c: Case, category: str | None) -> _CaseView:
    return _CaseView(c.part, c.before, marked(c.token), c.after, case_cells(c), case_facts(c, category))


def notices(material: Material, counts: Sequence[StepCount]) -> tuple[str, ...]:
    """What a reader has to know first."""
    said = []
    if not any(c.tokens for c in counts):
        said.append("The log is empty: no response token was counted.")
    elif not any(c.rare for c in counts):
        said.append("No token of the log is rare: there is nothing that S2T could silence.")
    if material.probe:
        said.append("A probe: a model was asked about responses that exist; nothing was trained, and nothing silenced.")
    if material.facts.loss != "vanilla":
        said.append(
            f"The loss is {material.facts.loss}, whose clip the log does not know: gradient norms are those of the "
            "surrogate without one."
        )
    if lost := material.facts.not_finite:
        said.append(f"{lost:,} tokens have statistics that are not finite; they are in no number here.")
    if not material.silences:
        said.append(
            f"The selector {material.facts.selector} is no mask over rare tokens. Shown is what S2T would silence: "
            "rare tokens with an entropy below the threshold."
        )
    return tuple(said)


def _cards(material: Material, counts: Sequence[StepCount]) -> tuple[tuple[str, str], ...]:
    tokens, rare = sum(c.tokens for c in counts), sum(c.rare for c in counts)
    done = sum(c.silenced if material.silences else c.region for c in counts)
    share = f"{100 * done / tokens:.3g} %" if tokens else "no token"
    return (
        (f"{len(counts):,}", "steps in the log"),
        (f"{tokens:,}", "response tokens"),
        (f"{rare:,}", "rare tokens of correct responses"),
        (f"{done:,}", material.words[0]),
        (share, "of all response tokens"),
    )


def _labels_said(labels: Labels | None) -> tuple[str, ...]:
    how = "stapo-repro tokens RUN --export-labels FILE.csv --labels-sample 200 --seed 0"
    if labels is None:
        names = ", ".join(CATEGORIES)
        return (
            "No labels: whether a token is spurious is judged by reading.",
            f"{how} writes a random sample of rare tokens. Write one of {names} into the column category and run the "
            "command with --labels FILE.csv.",
        )
    total = sum(sum(c.values()) for c in labels.counts.values())
    return (f"{labels.file}: {total} labels, {labels.empty} lines without one. Shares stand in the taxonomy.",)


def provenance(material: Material, counts: Sequence[StepCount]) -> tuple[tuple[str, str], ...]:
    """Where the numbers come from, as pairs of name and value."""
    run, facts = material.run, material.facts
    steps = f"{counts[0].step} to {counts[-1].step}, {len(counts)} in all" if counts else "none"
    return (
        ("Run", f"{run.run_id} ({run.kind}, {run.status})" if run is not None else "no run.json beside the log"),
        ("Folder", material.name),
        ("Method", material.method),
        ("Size", material.size or "not on record"),
        ("Steps", steps),
        ("Selector", f"{facts.selector}, τp = {facts.tau_p:g}, q = {facts.q:g}"),
        ("Log", f"mode {facts.mode}, {len(material.rows['step']):,} rows, {facts.left_out:,} left out at its bound"),
        ("Code of the run", f"{run.code_commit}{' (changed)' if run.code_dirty else ''}" if run else "not on record"),
        ("Inputs", material.inputs_sha256),
    )
