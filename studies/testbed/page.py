"""The testbed's pages: tables and figures; what a run of it shows at its end."""

from __future__ import annotations

from pathlib import Path

from stapo_repro import labels, paper, read
from stapo_repro.figures.groups import groups
from stapo_repro.figures.style import Sketch, save, style
from stapo_repro.run.cells import CellRequest
from stapo_repro.text import grid
from studies import command
from studies.testbed import claims, evidence, figures, planted, tables
from studies.testbed.plan import FOLDER

_DRAWN = (figures.rates, figures.costly, figures.long, figures.claims)


def add(files: dict[Path, bytes]) -> None:
    """Add the pages of the committed records, with what the masks silence of the miniature's planted words."""
    t = tables.Testbed(tables.read(command.RECORDS / FOLDER), claims.load())
    files |= {command.TABLES / name: data for name, data in _tables(t).items()}
    runs = read.load_training_runs([command.RECORDS / "miniature"])
    head = "# What the masks silence of the miniature's planted words (a tiny model on additions)"
    lines = [head, "", *planted.table(runs), ""]
    files[command.TABLES / "planted.md"] = "\n".join(lines).encode()
    with style():
        drawn = planted.figure(groups([], runs, paper.load())[labels.MINI])
        shown = [save(drawn, ())] if drawn else []
    command.add_figures(files, "testbed", [*_draw(t), *shown])


def of_run(folder: Path) -> dict[Path, bytes]:
    """The pages of the main part's run, below its folder."""
    t = tables.Testbed(tables.read(folder, [folder / "eval", folder / "train"]), claims.load())
    drawn = {folder / "figures" / f"{d.name}.{kind}": data for d in _draw(t) for kind, data in d.files.items()}
    return {folder / "tables" / name: data for name, data in _tables(t).items()} | drawn


def _tables(t: tables.Testbed) -> dict[str, bytes]:
    return {"testbed.md": tables.to_markdown(t).encode(), "testbed.json": tables.to_json(t).encode()}


def _draw(t: tables.Testbed) -> list[Sketch]:
    with style():
        return [save(draw(t), ()) for draw in _DRAWN]


def beside_committed(r: CellRequest) -> str:
    """The user's method beside the committed arms, world by world."""
    mine = [r.out / "eval", r.out / "train"]
    own = evidence.gather(read.load_cells(mine), read.load_training_runs(mine))
    committed = evidence.gather(*tables.read(command.RECORDS / FOLDER)["main"])
    head = ["", "T=1.0", "T=0.7", f"Reward 1-{evidence.EARLY}", f"Useful 1-{evidence.EARLY}", "Spurious, late"]
    lines = []
    for world, rows in tables.standing(own, committed, r.user_method).items():
        lines += [f"## {world}: {labels.method_label(r.user_method)} beside the committed arms", ""]
        lines += [*grid(head, [[cell.replace("\n", " ") for cell in row] for row in rows]), ""]
    return "\n".join(lines)
