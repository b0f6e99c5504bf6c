r"""LaTeX with booktabs and graphicx: tables for a paper, and a document to compile them with.

The widest table takes 26 cm; on a narrower page a table shrinks to the text's width (that is what graphicx is for).
Only commands of the LaTeX kernel and of these two packages are used, in any font encoding.
"""

from __future__ import annotations

import re

from stapo_repro.tables import Table
from stapo_repro.tables.render.view import Cell, Grid, Piece, all_grids, introduction, stamp, state_of_paper_cells

# Brackets and stars too: after a line's end they are its argument. Double quotes are set as one character.
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "*": "{*}",
    "[": "{[}",
    "]": "{]}",
    '"': r"{\char34}",
    "`": r"{\char96}",
    "²": "$^2$",
    "†": r"$\dagger$",
    "−": "$-$",
}


def escape(text: str) -> str:
    """Any text as text: no character of it is a command, and one that fonts may lack stands as U+code."""
    out = []
    for c in re.sub(r"\s+", " ", text):
        known = _SPECIAL.get(c)
        out.append(known if known is not None else c if " " <= c <= "~" else f"U+{ord(c):04X}")
    return re.sub(r"([-'])(?=\1)", r"\1{}", "".join(out))  # two dashes or quotes in a row are a ligature


def _numbers(text: str) -> str:
    """Escaped text whose signs are set as signs, not as hyphens."""
    return re.sub(r"(?<![\w.])([-+])(?=\d)", r"$\1$", escape(text))


def _piece(piece: Piece) -> str:
    text = _numbers(piece.text) if piece.kind == "number" else escape(piece.text)
    return rf"\textbf{{{text}}}" if piece.best or piece.kind == "loud" else text


def _lines(label: str, cells: tuple[Cell, ...], paper: bool) -> list[str]:
    head = rf"\emph{{{escape(label)}}}" if paper else escape(label)
    lines = [" & ".join([head, *("".join(map(_piece, c.pieces)) for c in cells)]) + r" \\"]
    for i in range(max(len(c.small) for c in cells)):
        small = [rf"{{\tiny {_numbers(c.small[i])}}}" if i < len(c.small) else "" for c in cells]
        lines.append(" & ".join(["", *small]) + r" \\")
    return lines


def _notes(notes: tuple[str, ...]) -> list[str]:
    if not notes:
        return []
    body = [escape(n) + r"\par" for n in notes]
    return [r"\par\smallskip", r"\begin{minipage}{\linewidth}\tiny\raggedright", *body, r"\end{minipage}"]


def _table(g: Grid) -> list[str]:
    label = re.sub(r"[^a-z0-9]+", "-", g.id.lower())
    rows = [line for r in g.rows for line in (*_lines(r.label, r.cells, r.paper), r"\addlinespace[1pt]")]
    return [
        r"\begin{table}[p]",
        r"\centering",
        r"\setlength{\belowcaptionskip}{4pt}",
        rf"\caption{{{escape(g.title)}}}",
        rf"\label{{tab:stapo-{label}}}",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}l{'c' * (len(g.header) - 1)}@{{}}}}",
        r"\toprule",
        " & ".join(map(escape, g.header)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}}",
        *_notes(g.notes),
        r"\end{table}",
        "",
    ]


def to_latex(table: Table) -> str:
    r"""Every section's table and comparisons, and the paper's gains, each a `table` of its own."""
    head = [
        f"% {stamp(table)}",
        "% Needs booktabs and graphicx; main_table_document.tex compiles it.",
        "",
        rf"\par\noindent {escape(stamp(table))} {escape(introduction(table))}",
        rf"{escape(state_of_paper_cells(table))}\par",
        "",
    ]
    return "\n".join([*head, *(line for g in all_grids(table) for line in _table(g))])


def document() -> str:
    """A document of the plain article class that inputs main_table.tex from the same folder."""
    return (
        "\\documentclass[10pt]{article}\n"
        "\\usepackage[a4paper,landscape,margin=12mm]{geometry}\n"
        "\\usepackage{booktabs,graphicx}\n"
        "\\begin{document}\n"
        "\\input{main_table}\n"
        "\\end{document}\n"
    )
