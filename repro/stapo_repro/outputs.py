"""Which files the commands `tables` and `figures` write, as paths and bytes; `generated` writes or compares them.

Two experiments have tables and figures of their own: the main one (all of results/records but the ablation) and the
ablation (results/records/ablation alone). Their cells share ids, since the ablation trains JustRL and STAPO with seed 0
anew, so they are never read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stapo_repro import ablation, generated, render_figures
from stapo_repro.paper import checkout
from stapo_repro.records import load_cells, load_training_runs
from stapo_results.errors import BadInput

if TYPE_CHECKING:
    from stapo_repro.figures import Drawn

Part = Literal["main", "ablation"]


def parts(of: Part | None, records: Sequence[Path]) -> tuple[Part, ...]:
    """Both from the committed records; the main one from a folder that was named, unless `of` says otherwise."""
    if of is not None:
        return (of,)
    return ("main",) if records else ("main", "ablation")


def _main_roots(records: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """(roots, folders in them that are left out)"""
    return (list(records), ()) if records else ([checkout() / "results" / "records"], (ablation.FOLDER,))


def _ablation_roots(records: Sequence[Path]) -> list[Path]:
    committed = checkout() / "results" / "records" / ablation.FOLDER
    return list(records) or ([committed] if committed.is_dir() else [])  # none yet: every number says "not run"


def _page(page: Path | None, out: Path | None, default: str) -> Path | None:
    """The page whose block is renewed: the one that was named, else the committed one unless `out` is elsewhere."""
    return page or (None if out else checkout() / default)


def main_tables(records: Sequence[Path], out: Path | None, readme: Path | None) -> dict[Path, bytes]:
    """The main table in three forms and the README's block."""
    from stapo_repro import paper, render, tables

    folder = out or checkout() / "results" / "tables"
    roots, skip = _main_roots(records)
    table = tables.build(load_cells(roots, skip), paper.load())
    files = {
        folder / "main_table.md": render.to_markdown(table).encode(),
        folder / "main_table.csv": render.to_csv(table).encode(),
        folder / "main_table.json": render.to_json(table).encode(),
    }
    if page := _page(readme, out, "README.md"):
        files[page] = generated.replace_block(page, "table", render.readme_block(table))
    return files


def ablation_tables(records: Sequence[Path], out: Path | None, page: Path | None) -> dict[Path, bytes]:
    """The ablation's tables and judged claims in two forms and the block of its page."""
    from stapo_repro import claims, render_ablation

    folder = out or checkout() / "results" / "tables"
    roots = _ablation_roots(records)
    value = ablation.build(load_cells(roots), load_training_runs(roots), claims.load())
    files = {
        folder / "ablation.md": render_ablation.to_markdown(value).encode(),
        folder / "ablation.json": render_ablation.to_json(value).encode(),
    }
    if page := _page(page, out, "docs/ablation.md"):
        files[page] = generated.replace_block(page, "ablation", render_ablation.page_block(value))
    return files


def figures(
    part: Part, records: Sequence[Path], only: Sequence[str] = (), pdf: bool = False
) -> list[Drawn]:  # fmt: skip
    """The figures of one experiment, in the gallery's order.

    Raises:
        BadInput: matplotlib is not installed, or no such figure.
    """
    from stapo_repro import paper

    try:
        from stapo_repro.figures import Material, draw
    except ModuleNotFoundError as e:
        if e.name != "matplotlib":
            raise
        raise BadInput("figures need matplotlib", found="not installed", next_step="pip install -e .[repro]") from None
    roots, skip = _main_roots(records) if part == "main" else (_ablation_roots(records), ())
    material = Material.of(part, load_cells(roots, skip), load_training_runs(roots, skip), paper.load())
    return draw(material, only, ("svg", "png", "pdf") if pdf else ("svg", "png"))


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
        files[path] = generated.replace_block(path, "figure", render_figures.readme_block(by_name))
    if "ablation" in drawn and (path := _page(page, out or whole, "docs/ablation.md")):
        files[path] = generated.replace_block(path, "ablation-figure", render_figures.ablation_block(by_name))
    if len(drawn) == 2 and (path := _page(gallery, out or whole, "docs/figures.md")):
        files[path] = generated.replace_block(path, "figures", render_figures.gallery(drawn["main"], drawn["ablation"]))
    return files
