"""Tables as Markdown, CSV and LaTeX. Every text in them may be a model's: it is escaped here, in each form."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stapo_repro.tables.render import latex as tex
from stapo_repro.templating import visible
from stapo_repro.tokens.cases import Case, percent
from stapo_repro.tokens.labelling import CATEGORIES, harmless
from stapo_repro.tokens.texts import marked, one_line

Plain = str | int | float | bool | None
CASE_HEADER = ("Token", "Probability", "Advantage", "Entropy", "Top 5")
_TEX = {
    "τp": r"$\tau_p$", "τh": r"$\tau_h$",
    "␣": r"\textvisiblespace{}", "⏎": r"$\hookleftarrow$", "⇥": r"$\mapsto$", "⟨": r"$\langle$", "⟩": r"$\rangle$",
    "≥": r"$\geq$", "τ": r"$\tau$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "·": r"$\cdot$",
    "$": r"{\char36}",  # a bold \$ is of a font that small installations have to make first
}  # fmt: skip
_TEX_MARKS = re.compile(f"({'|'.join(map(re.escape, _TEX))})")
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>|~$&@#]|:(?=\S)|(?<=www)\.", re.IGNORECASE)
_LONG = 40  # characters of a cell that is set in lines
_UNBROKEN = 20  # characters after which TeX may break a word


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        rows: as people read them, one text a column of the header.
        records: the same with all digits, for CSV and JSON.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Mapping[str, Plain], ...]
    notes: tuple[str, ...] = ()


def to_markdown(sheet: Sheet) -> str:
    lines = [sheet.header, ["---"] * len(sheet.header), *([md(c) for c in row] for row in sheet.rows)]
    body = ["| " + " | ".join(line) + " |" for line in lines]
    notes = ["", *(f"- {md(n)}" for n in sheet.notes)] if sheet.notes else []
    return "\n".join([f"# {md(sheet.title)}", "", *body, *notes]) + "\n"


def to_csv(records: Sequence[Mapping[str, Plain]]) -> str:
    """One line a record. Control characters are seen, and no text is what a spreadsheet would take for a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(records[0] if records else ())
    for record in records:
        writer.writerow([harmless(visible(v)) if isinstance(v, str) else v for v in record.values()])
    return out.getvalue()


def md(text: str) -> str:
    """Any text as text inside of one line: nothing of it is Markdown, mathematics, HTML, an entity or a link."""
    return _MARKDOWN.sub(r"\\\g<0>", re.sub(r"\s+", " ", text))


def latex(text: str) -> str:
    """Any text as text (see `render.latex.escape`), with this project's marks as symbols and long words breakable."""
    return "".join(_TEX.get(piece) or _breakable(piece) for piece in _TEX_MARKS.split(text))


def _breakable(text: str) -> str:
    words = re.split(rf"(\S{{{_UNBROKEN}}})(?=\S)", text)  # every second one is as long as may stand unbroken
    return "".join(tex.escape(w) + (r"\allowbreak{}" if i % 2 else "") for i, w in enumerate(words))


def to_latex(sheet: Sheet) -> str:
    """A `table` with booktabs, as wide as the text at most."""
    rows = [" & ".join(map(latex, row)) + r" \\" for row in sheet.rows]
    notes = [latex(n) + r"\par" for n in sheet.notes]
    wide = [any(len(row[i]) > _LONG for row in sheet.rows) for i in range(len(sheet.header))]
    columns = "".join("p{7cm}" if w else "l" for w in wide)
    return "\n".join(
        [
            "% Needs booktabs and graphicx; tokens_document.tex compiles it.",
            r"\begin{table}[p]",
            r"\centering",
            r"\setlength{\belowcaptionskip}{4pt}",
            rf"\caption{{{latex(sheet.title)}}}",
            rf"\label{{tab:tokens-{sheet.name}}}",
            r"\scriptsize",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            " & ".join(map(latex, sheet.header)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\par\smallskip",
            r"\begin{minipage}{\linewidth}\tiny\raggedright",
            *notes,
            r"\end{minipage}",
            r"\end{table}",
            "",
        ]
    )


def case_facts(case: Case, category: str | None) -> str:
    """The line below a case."""
    tau = "" if case.tau_h is None else f", threshold {case.tau_h:.4g} nats"
    label = f", labelled {CATEGORIES[category]}" if category else ""
    where = f"step {case.step}, prompt {visible(case.prompt_id)}, sample {case.sample}, position {case.position}"
    return f"{where}{tau}{label}"


def case_cells(case: Case) -> tuple[str, ...]:
    """A case's numbers, in the order of CASE_HEADER."""
    return (
        marked(case.token), percent(case.probability), f"{case.advantage:.2f}", f"{case.entropy:.4g} nats",
        case.top_text,
    )  # fmt: skip


def cases_markdown(title: str, cases: Sequence[Case], labels: Mapping[str, str]) -> str:
    lines = [f"# {md(title)}", ""]
    for i, c in enumerate(cases, 1):
        around = f"{md(one_line(c.before))}**⟦{md(marked(c.token))}⟧**{md(one_line(c.after))}"
        lines += [f"## Case {i}: {md(c.part)}", "", f"Context: {around}", ""]
        lines += ["| " + " | ".join(CASE_HEADER) + " |", "| " + " | ".join(["---"] * len(CASE_HEADER)) + " |"]
        lines += ["| " + " | ".join(map(md, case_cells(c))) + " |", "", md(case_facts(c, labels.get(c.id))), ""]
    return "\n".join(lines if cases else [*lines, "The log has no rare token.", ""])


def cases_latex(title: str, cases: Sequence[Case], labels: Mapping[str, str]) -> str:
    """A `longtable` of one column with a small table of numbers below each context."""
    lines = [
        "% Needs booktabs and longtable; tokens_document.tex compiles it.",
        r"{\small\sloppy",
        r"\begin{longtable}{@{}p{\linewidth}@{}}",
        rf"\caption{{{latex(title)}}} \\",
        r"\toprule",
        r"\endhead",
        r"\bottomrule",
        r"\endlastfoot",
    ]
    for i, c in enumerate(cases, 1):
        token = rf"\fbox{{\textbf{{{latex(marked(c.token))}}}}}"
        numbers = " & ".join(map(latex, case_cells(c)))
        lines += [
            rf"\textbf{{Case {i}: {latex(c.part)}}} \\*",
            rf"\textbf{{Context:}} {latex(one_line(c.before))}{token}{latex(one_line(c.after))} \\*",
            r"\begin{tabular}{@{}llllp{11cm}@{}}",
            " & ".join(rf"\textbf{{{latex(h)}}}" for h in CASE_HEADER) + r" \\",
            numbers + r" \\",
            r"\end{tabular} \\*",
            rf"{{\scriptsize {latex(case_facts(c, labels.get(c.id)))}}} \\",
            r"\midrule" if i < len(cases) else "",
        ]
    return "\n".join(lines if cases else [*lines, r"The log has no rare token. \\"]) + "\n\\end{longtable}}\n"


def document() -> str:
    """A document that inputs taxonomy.tex and cases.tex from the same folder."""
    return (
        "\\documentclass[10pt]{article}\n"
        "\\usepackage[a4paper,landscape,margin=15mm]{geometry}\n"
        "\\usepackage{booktabs,graphicx,longtable}\n"
        "\\begin{document}\n"
        "\\input{taxonomy}\n"
        "\\clearpage\n"
        "\\input{cases}\n"
        "\\end{document}\n"
    )
