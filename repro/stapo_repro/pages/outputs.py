"""Which files the commands `tables` and `figures` write, as paths and bytes; `generated` writes or compares them.

Two experiments have tables and figures of their own: the main one (all of results/records but the ablation) and the
ablation (results/records/ablation alone). Their cells share ids, since the ablation trains JustRL and STAPO with seed 0
anew, so they are never read together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stapo_repro import paper
from stapo_repro.ablation import build as ablation
from stapo_repro.driver import times
from stapo_repro.pages import figures as render_figures
from stapo_repro.paper import checkout
from stapo_repro.records.reading import Loaded, TrainingRun, load_cells, load_theory, load_training_runs
from stapo_results import generated
from stapo_results.errors import BadInput

if TYPE_CHECKING:
    from stapo_repro.figures import Drawn
    from stapo_results.schema import Theory

Part = Literal["main", "ablation"]


def parts(of: Part | None, records: Sequence[Path]) -> tuple[Part, ...]:
    """Both from the committed records; the main one from a folder that was named, unless `of` says otherwise."""
    if of is not None:
        return (of,)
    return ("main",) if records else ("main", "ablation")


def main_roots(records: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """(roots, folders in them that are left out)"""
    return (list(records), ()) if records else ([checkout() / "results" / "records"], (ablation.FOLDER,))


def ablation_roots(records: Sequence[Path]) -> list[Path]:
    committed = checkout() / "results" / "records" / ablation.FOLDER
    return list(records) or ([committed] if committed.is_dir() else [])  # none yet: every number says "not run"


def _page(page: Path | None, out: Path | None, default: str) -> Path | None:
    """The page whose block is renewed: the one that was named, else the committed one unless `out` is elsewhere."""
    return page or (None if out else checkout() / default)


def main_tables(files: dict[Path, bytes], records: Sequence[Path], out: Path | None, readme: Path | None) -> None:
    """Adds the main table in every form, the README's blocks, the one of docs/statistics.md, and the bench's."""
    from stapo_repro import tables
    from stapo_repro.pages import bench as bench_page
    from stapo_repro.tables import render

    folder = out or checkout() / "results" / "tables"
    roots, skip = main_roots(records)
    cells = load_cells(roots, skip)
    table = tables.build(cells, paper.load())
    links = {c.path: Path(os.path.relpath(c.file.resolve(), folder.resolve())).as_posix() for c in cells}
    forms = {
        "main_table.md": render.to_markdown(table),
        "main_table.csv": render.to_csv(table),
        "main_table.json": render.to_json(table),
        "main_table.html": render.to_page(table, links),
        "main_table.tex": render.to_latex(table),
        "main_table_document.tex": render.document(),
    }
    files |= {folder / name: text.encode() for name, text in forms.items()}
    if page := _page(readme, out, "README.md"):
        generated.renew(files, page, "table", render.readme_block(table))
        if readme is None:  # the README itself
            generated.renew(files, page, "times", times.page_block(checkout() / "results" / "records"))
            if b"<!-- generated:example -->" in files[page]:
                from stapo_repro.tokens import example

                generated.renew(files, page, "example", example.example_block(checkout() / "results" / "records"))
    if page := _page(None, out, "docs/statistics.md"):
        generated.renew(files, page, "gains", render.gains_block(table))
    if not (records or out):
        page = checkout() / "docs" / "evaluation.md"
        measured = bench_page.page_block(checkout() / "results" / "records" / "bench")
        generated.renew(files, page, "bench", measured)


def ablation_tables(files: dict[Path, bytes], records: Sequence[Path], out: Path | None, page: Path | None) -> None:
    """Adds the ablation's tables and judged claims in two forms and the block of its page."""
    from stapo_repro.ablation import claims
    from stapo_repro.ablation import render as render_ablation

    folder = out or checkout() / "results" / "tables"
    roots = ablation_roots(records)
    value = ablation.build(load_cells(roots), load_training_runs(roots), claims.load())
    files |= {
        folder / "ablation.md": render_ablation.to_markdown(value).encode(),
        folder / "ablation.json": render_ablation.to_json(value).encode(),
    }
    if page := _page(page, out, "docs/reproduction.md"):
        generated.renew(files, page, "ablation", render_ablation.page_block(value))


def planted_tables(files: dict[Path, bytes], of: Part | None, records: Sequence[Path], out: Path | None) -> None:
    """Adds what the masks silence of the miniature's planted words, in two forms and on its page.

    One file for both experiments, a section each: from the committed records always both.
    """
    from stapo_repro.tokens import planted_render as render_planted
    from stapo_repro.tokens import planted_runs

    sections = []
    for part in parts(of if records else None, records):
        roots, skip = main_roots(records) if part == "main" else (ablation_roots(records), ())
        title = "The miniature" if part == "main" else "The mask ablation in miniature"
        if (section := planted_runs.section(load_training_runs(roots, skip), title)) is not None:
            sections.append(section)
    folder = out or checkout() / "results" / "tables"
    files |= {
        folder / "planted.md": render_planted.to_markdown(sections).encode(),
        folder / "planted.json": render_planted.to_json(sections).encode(),
    }
    if page := _page(None, out, "docs/tokens.md"):
        generated.renew(files, page, "planted", render_planted.page_block(sections))


def audit_page(files: dict[Path, bytes], out: Path | None) -> None:
    """Adds the block of the audit's page; nothing where the tables go elsewhere."""
    from stapo_repro.audit import render, run

    if page := _page(None, out, "docs/statistics.md"):
        generated.renew(files, page, "audit", render.page_block(run.load_and_audit()))


def figures(
    part: Part, records: Sequence[Path], only: Sequence[str] = (), pdf: bool = False
) -> list[Drawn]:  # fmt: skip
    """The figures of one experiment, in the gallery's order.

    Raises:
        BadInput: matplotlib is not installed, or no such figure.
    """
    roots, skip = main_roots(records) if part == "main" else (ablation_roots(records), ())
    kinds = ("svg", "png", "pdf") if pdf else ("svg", "png")
    theory = load_theory(roots) if part == "main" else []
    return draw(part, load_cells(roots, skip), load_training_runs(roots, skip), only, kinds, theory)


def draw(
    part: Part, cells: Sequence[Loaded], runs: Sequence[TrainingRun], only: Sequence[str] = (),
    kinds: Sequence[str] = ("svg",), theory: Sequence[Theory] = (),
) -> list[Drawn]:  # fmt: skip
    """The figures of records that were read already.

    Raises:
        BadInput: as `figures`.
    """
    try:
        from stapo_repro import figures as package
    except ModuleNotFoundError as e:
        if e.name != "matplotlib":
            raise
        raise BadInput("figures need matplotlib", found="not installed", next_step="pip install -e .[repro]") from None
    return package.draw(package.Material.of(part, cells, runs, paper.load(), theory), only, kinds)


def figure_files(
    of: Part | None, records: Sequence[Path], out: Path | None, *, only: Sequence[str] = (), pdf: bool = False,
    readme: Path | None = None, page: Path | None = None, gallery: Path | None = None,
) -> dict[Path, bytes]:  # fmt: skip
    """The figures of one or both experiments, and the blocks of the pages that show them.

    The default pages are renewed only when nothing is left out: no other folder, no choice of figures.
    """
    if only and (readme or page or gallery):
        raise BadInput("a page needs all figures", found=f"only {', '.join(only)}", next_step="leave out --only")
    folder = out or checkout() / "results" / "figures"
    drawn = {part: figures(part, records, only, pdf) for part in parts(of, records)}
    every = [d for found in drawn.values() for d in found]
    files = {folder / f"{d.name}.{kind}": data for d in every for kind, data in d.files.items()}
    whole = None if not only else folder  # as if written elsewhere: no page is renewed
    by_name = {d.name: d for d in every}
    if "main" in drawn and (path := _page(readme, out or whole, "README.md")):
        generated.renew(files, path, "figure", render_figures.readme_block(by_name))
    if "ablation" in drawn and (path := _page(page, out or whole, "docs/reproduction.md")):
        generated.renew(files, path, "ablation-figure", render_figures.ablation_block(by_name))
    if len(drawn) == 2 and (path := _page(gallery, out or whole, "results/figures/README.md")):
        generated.renew(files, path, "figures", render_figures.gallery(drawn["main"], drawn["ablation"]))
    return files


def report_page(
    records: Sequence[Path], runs: Sequence[Path], out: Path | None, most: int
) -> dict[Path, bytes]:  # fmt: skip
    """The report as one page; from the committed records it is results/report.html."""
    from stapo_repro import report

    page = out or (Path("report.html") if records or runs else checkout() / "results" / "report.html")
    return {page: report.to_html(report.build(records, runs, page.parent, most)).encode()}
