r"""LaTeX with booktabs and graphicx: a `table` a grid, with its notes, shrunk to the text's width where it is wider."""

import re

from stapo_repro.tables import Table
from stapo_repro.tables.render.view import Grid, Piece, all_grids, introduction, stamp, state_of_paper_cells

_WORDS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL = {c: f"\\{c}" for c in "{}$&#%_"} | _WORDS | {"<": "$<$", ">": "$>$", "²": "$^2$", "†": r"$\dagger$"}


def escape(text: str) -> str:
    """Text as text, no character of it a command; the sign of a number is set as a sign."""
    return re.sub(r"(?<![\w.])([-+])(?=\d)", r"$\1$", "".join(_SPECIAL.get(c, c) for c in text))


def _piece(piece: Piece) -> str:
    return rf"\textbf{{{escape(piece.text)}}}" if piece.best or piece.kind == "loud" else escape(piece.text)


def _table(g: Grid) -> list[str]:
    lines = [list(map(escape, g.header))]
    for row in g.rows:
        label = rf"\emph{{{escape(row.label)}}}" if row.paper else escape(row.label)
        lines.append([label, *("".join(map(_piece, c.pieces)) for c in row.cells)])
        for i in range(max(len(c.small) for c in row.cells)):
            lines.append(["", *(rf"{{\tiny {escape(c.small[i])}}}" if i < len(c.small) else "" for c in row.cells)])
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    begin = rf"\begin{{table}}[p]\centering\scriptsize\setlength{{\tabcolsep}}{{3pt}}\caption{{{escape(g.title)}}}"
    fit = rf"\label{{tab:stapo-{g.id}}}\resizebox{{\ifdim\width>\linewidth\linewidth\else\width\fi}}{{!}}{{%"
    columns = rf"\begin{{tabular}}{{@{{}}l{'c' * (len(g.header) - 1)}@{{}}}}"
    rows = [begin, fit, columns, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}}"]
    return [*rows, *(rf"\par{{\tiny\raggedright {escape(n)}\par}}" for n in g.notes), r"\end{table}", ""]


def to_latex(table: Table) -> str:
    r"""Every section's table and comparisons, and the paper's gains, for \input in a document with both packages."""
    head = f"% {stamp(table)}\n\n{escape(introduction(table))}\n{escape(state_of_paper_cells(table))}\n"
    return "\n".join([head, *(line for g in all_grids(table) for line in _table(g))])
