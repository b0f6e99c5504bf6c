"""HTML: a fragment that another page embeds, and a page of its own. No script, nothing from a network."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from stapo_repro.tables import Table
from stapo_repro.tables.render.view import introduction, stamp, state_of_paper_cells
from stapo_repro.tables.render.view_statistics import all_grids
from stapo_repro.templating import template


def _fill(name: str, table: Table, links: Mapping[str, str]) -> str:
    return template("stapo_repro.tables.render", name).render(
        grids=all_grids(table),
        links={path: quote(to, safe="/.-_~") for path, to in links.items()},
        stamp=stamp(table),
        inputs=table.inputs_sha256,
        introduction=introduction(table),
        state=state_of_paper_cells(table),
        records=table.records,
    )


def to_fragment(table: Table, links: Mapping[str, str]) -> str:
    """One <section> with all tables and its own <style>; every class begins with "st-".

    Args:
        links: a record's path -> the address of its file, relative to the page.
    """
    return _fill("table.html.jinja", table, links)


def to_page(table: Table, links: Mapping[str, str]) -> str:
    """The fragment as a page of its own."""
    return _fill("page.html.jinja", table, links)
