"""HTML: a page of its own, without a script and with nothing from a network."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from stapo_repro.tables import Table
from stapo_repro.tables.render.view import introduction, stamp, state_of_paper_cells
from stapo_repro.tables.render.view_statistics import all_grids
from stapo_repro.templating import template


def to_page(table: Table, links: Mapping[str, str]) -> str:
    """All tables as a page; every class begins with "st-".

    Args:
        links: a record's path -> the address of its file, relative to the page.
    """
    return template("stapo_repro.tables.render", "page.html.jinja").render(
        grids=all_grids(table),
        links={path: quote(to, safe="/.-_~") for path, to in links.items()},
        stamp=stamp(table),
        inputs=table.inputs_sha256,
        introduction=introduction(table),
        state=state_of_paper_cells(table),
        records=table.records,
    )
