"""`stapo-repro`: the table, the figures, and the driver that runs the whole chain."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from stapo_results.console import run_main

Roots = Annotated[tuple[Path, ...], tyro.conf.arg(help="Folders with records; the committed ones by default.")]


def _roots(given: tuple[Path, ...]) -> list[Path]:
    from stapo_repro.paper import checkout

    return list(given) or [checkout() / "results" / "records"]


@dataclass(frozen=True)
class Tables:
    """Regenerate the main table (Markdown, CSV, JSON) from records alone."""

    records: Roots = ()
    out: Path | None = None
    """Where to write. Default: results/tables, and the marked block of the README is renewed too."""
    readme: Path | None = None
    """A file whose block <!-- generated:table --> is renewed."""
    check: bool = False
    """Write nothing; compare with what is on disk and exit 1 with a diff if it is stale."""

    def run(self) -> int:
        from stapo_repro import generated, paper, render, tables
        from stapo_repro.records import load_cells

        root = paper.checkout()
        out = self.out or root / "results" / "tables"
        readme = self.readme or (None if self.out else root / "README.md")
        table = tables.build(load_cells(_roots(self.records)), paper.load())
        files = {
            out / "main_table.md": render.to_markdown(table).encode(),
            out / "main_table.csv": render.to_csv(table).encode(),
            out / "main_table.json": render.to_json(table).encode(),
        }
        if readme is not None:
            files[readme] = generated.replace_block(readme, "table", render.readme_block(table))
        return generated.check(files, "stapo-repro tables") if self.check else generated.write(files)


@dataclass(frozen=True)
class Figures:
    """Draw the training curves (SVG and PNG) from records alone."""

    records: Roots = ()
    out: Path | None = None
    """Where to write. Default: results/figures, and the marked block of the README is renewed too."""
    readme: Path | None = None
    """A file whose block <!-- generated:figure --> is renewed."""
    check: bool = False
    """Write nothing; compare with what is on disk and exit 1 if it is stale."""

    def run(self) -> int:
        from stapo_repro import figures, generated, paper
        from stapo_repro.records import load_training_runs

        root = paper.checkout()
        out = self.out or root / "results" / "figures"
        readme = self.readme or (None if self.out else root / "README.md")
        drawn = figures.training_curves(load_training_runs(_roots(self.records)))
        files = {out / f"{figures.NAME}.{kind}": data for kind, data in drawn.files.items()}
        if readme is not None:
            files[readme] = generated.replace_block(readme, "figure", drawn.readme_block())
        return generated.check(files, "stapo-repro figures") if self.check else generated.write(files)


@dataclass(frozen=True)
class Miniature:
    """The whole reproduction in miniature, from base model to table and curves. The same command resumes."""

    quick: bool = False
    """Short form for CI: JustRL and STAPO, 4 steps, 2 samples of 16 problems; the options below override it."""
    seeds: str = "0"
    """Training seeds, separated by commas."""
    methods: str | None = None
    """Methods, separated by commas. Default: grpo,entropy20,justrl,stapo (with --quick: justrl,stapo)."""
    steps: int | None = None
    """Training steps. Default: 40 (with --quick: 4)."""
    data_dir: Path | None = None
    """Folder with the six real benchmarks; two problems of each are then evaluated too."""
    out: Path = Path("runs/miniature")
    """Where everything goes."""

    def run(self) -> int:
        from stapo_repro import driver

        return driver.main(driver.plan(self.quick, self.seeds, self.methods, self.steps, self.data_dir, self.out))


@dataclass(frozen=True)
class Run:
    """Run what the named cells lack: train, export, evaluate, tables. A cell is METHOD/SIZE, such as stapo/mini."""

    cells: tyro.conf.Positional[tuple[str, ...]]
    """One or more cells."""
    quick: bool = False
    """Few steps, samples and problems."""
    seeds: str = "0"
    """Training seeds, separated by commas."""
    steps: int | None = None
    """Training steps. Default: 40 (with --quick: 4)."""
    data_dir: Path | None = None
    """Folder with the six real benchmarks; two problems of each are then evaluated too."""
    out: Path = Path("runs/miniature")
    """Where everything goes."""

    def run(self) -> int:
        from stapo_repro import driver

        methods = driver.methods_of_cells(self.cells)
        return driver.main(driver.plan(self.quick, self.seeds, methods, self.steps, self.data_dir, self.out))


@dataclass(frozen=True)
class Collect:
    """Copy a finished run's records (no responses, no paths of this machine) to where they can be committed."""

    run_folder: tyro.conf.Positional[Path]
    """Folder of the run, such as runs/miniature."""
    out: Path
    """Folder to write, such as results/records/miniature."""

    def run(self) -> int:
        from stapo_repro.collect import collect

        print(f"{len(collect(self.run_folder, self.out))} files written below {self.out}")
        return 0


_COMMANDS = {"tables": Tables, "figures": Figures, "miniature": Miniature, "run": Run, "collect": Collect}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script."""
    command = tyro.extras.subcommand_cli_from_dict(
        _COMMANDS,
        prog="stapo-repro",
        description="Tables, figures and the driver of the STAPO reproduction.",
        args=argv,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    sys.exit(run_main(command.run))


if __name__ == "__main__":
    main()
