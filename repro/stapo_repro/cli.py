"""`stapo-repro`: the table, the figures, and the driver that runs the whole chain."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from stapo_repro.commands.report import Report
from stapo_repro.commands.run import Plan, Run
from stapo_repro.commands.share import Collect, Pack, Unpack
from stapo_repro.commands.tokens import Tokens
from stapo_results.terminal import check_command, run_main

Roots = Annotated[
    tuple[Path, ...], tyro.conf.arg(help="Folders with records; the committed ones by default, the ablation's apart.")
]
Of = Annotated[
    Literal["main", "ablation"] | None,
    tyro.conf.arg(help="Which experiment's. Default: both; with --records the main one."),
]


@dataclass(frozen=True)
class Tables:
    """Regenerate the main table (Markdown, HTML, LaTeX, CSV, JSON), the ablation's and that of planted words (Markdown,
    JSON) from records."""

    records: Roots = ()
    of: Of = None
    out: Path | None = None
    """Where to write. Default: results/tables, and the blocks of README and of the pages in docs too."""
    readme: Path | None = None
    """A file whose block <!-- generated:table --> is renewed."""
    page: Path | None = None
    """A file whose block <!-- generated:ablation --> is renewed."""
    check: bool = False
    """Write nothing; compare with what is on disk and exit 1 with a diff if it is stale."""

    def run(self) -> int:
        from stapo_repro.pages import outputs
        from stapo_results import generated

        files: dict[Path, bytes] = {}
        for part in outputs.parts(self.of, self.records):
            if part == "main":
                outputs.main_tables(files, self.records, self.out, self.readme)
            else:
                outputs.ablation_tables(files, self.records, self.out, self.page)
        outputs.planted_tables(files, self.of, self.records, self.out)
        outputs.audit_page(files, self.out)
        return generated.check(files, "stapo-repro tables") if self.check else generated.write(files)


@dataclass(frozen=True)
class Figures:
    """Draw all figures (SVG and PNG) from records alone: training curves, Pareto view, differences, ..."""

    records: Roots = ()
    of: Of = None
    only: tuple[str, ...] = ()
    """Names of figures, such as pareto or forest; all by default. A wrong name lists them."""
    out: Path | None = None
    """Where to write. Default: results/figures; then the blocks of the pages too."""
    pdf: bool = False
    """PDF beside SVG and PNG."""
    check: bool = False
    """Write nothing; compare with what is on disk and exit 1 if it is stale."""

    def run(self) -> int:
        from stapo_repro.pages import outputs
        from stapo_results import generated

        files = outputs.figure_files(self.of, self.records, self.out, self.only, self.pdf)
        return generated.check(files, "stapo-repro figures") if self.check else generated.write(files)


@dataclass(frozen=True)
class Miniature:
    """The whole reproduction in miniature, from base model to table and curves. The same command resumes."""

    quick: bool = False
    """Short form for CI: JustRL and STAPO, 4 steps, 2 samples of 16 problems."""
    seeds: str = "0"
    """Training seeds, separated by commas."""
    out: Path = Path("runs/miniature")
    """Where everything goes."""

    def run(self) -> int:
        from stapo_repro.driver.request import miniature
        from stapo_repro.driver.run import main

        return main(miniature(self.out, quick=self.quick, seeds=self.seeds))


@dataclass(frozen=True)
class Ablation:
    """The mask ablation in miniature: five masks, three training seeds, one base model. The same command resumes."""

    quick: bool = False
    """Short form to try the path: one seed, 2 steps, 2 samples of 16 problems; the options below override it."""
    seeds: str | None = None
    """Training seeds, separated by commas. Default: 0,1,2 (with --quick: 0)."""
    methods: str | None = None
    """Methods, separated by commas. Default: justrl,justrl-fullmask,stapo-high-entropy,stapo-random,stapo."""
    steps: int | None = None
    """Training steps. Default: 40 (with --quick: 2)."""
    out: Path = Path("runs/ablation")
    """Where everything goes."""

    def run(self) -> int:
        from stapo_repro.driver.request import miniature
        from stapo_repro.driver.run import main

        return main(miniature(self.out, experiment="ablation", quick=self.quick, seeds=self.seeds, methods=self.methods,
                              steps=self.steps))  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """Check the numbers of a printed table against each other: the paper's, or any table given as JSON."""

    table: Path | None = None
    """A table in the form of docs/statistics.md. Default: results/paper/main_table.json with the paper's claims."""
    claims: Path | None = None
    """Claims about the table, in the form of results/paper/claims.json."""

    def run(self) -> int:
        from rich.console import Console
        from rich.markdown import Markdown

        from stapo_repro.audit import findings, run

        audit = run.load_and_audit(self.table, self.claims)
        Console().print(Markdown(findings.page_block(audit, "stapo-repro audit")))
        return 0


_COMMANDS = {
    "tables": Tables,
    "figures": Figures,
    "audit": Audit,
    "report": Report,
    "miniature": Miniature,
    "ablation": Ablation,
    "run": Run,
    "collect": Collect,
    "tokens": Tokens,
    "plan": Plan,
    "pack": Pack,
    "unpack": Unpack,
}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script."""
    sys.exit(run_main(lambda: _command(argv)))


def _command(argv: list[str] | None) -> int:
    check_command("stapo-repro", argv, _COMMANDS)
    command = tyro.extras.subcommand_cli_from_dict(
        _COMMANDS,
        prog="stapo-repro",
        description="Tables, figures and the driver of the STAPO reproduction.",
        args=argv,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return command.run()


if __name__ == "__main__":
    main()
