"""`stapo-repro`: the table, the figures, and the driver that runs the whole chain."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from stapo_repro.commands.calibrate import Calibrate
from stapo_repro.commands.graders import Graders
from stapo_repro.commands.label import Label
from stapo_repro.commands.run import Plan, Run
from stapo_repro.commands.share import Collect, Pack, Unpack
from stapo_repro.commands.testbed import Testbed
from stapo_results.terminal import check_command, run_main

Roots = Annotated[
    tuple[Path, ...], tyro.conf.arg(help="Folders with records; the committed ones by default, the testbed's apart.")
]
Of = Annotated[
    Literal["main", "testbed"] | None,
    tyro.conf.arg(help="Which experiment's. Default: both; with --records the main one."),
]


@dataclass(frozen=True)
class Tables:
    """Regenerate the main table (Markdown, HTML, LaTeX, CSV, JSON), the testbed's and that of planted words."""

    records: Roots = ()
    of: Of = None
    out: Path | None = None
    """Where to write. Default: results/tables, and the blocks of README and of the pages in docs too."""
    check: bool = False
    """Write nothing; compare with what is on disk and exit 1 with a diff if it is stale."""

    def run(self) -> int:
        from stapo_repro.pages import outputs
        from stapo_results import generated

        files = outputs.table_files(self.of, self.records, self.out)
        return generated.check(files, "stapo-repro tables") if self.check else generated.write(files)


@dataclass(frozen=True)
class Figures:
    """Draw all figures (SVG, and PNG of dense ones) from records alone: training curves, differences, ..."""

    records: Roots = ()
    of: Of = None
    only: tuple[str, ...] = ()
    """Names of figures, such as forest or paper-5; all by default. A wrong name lists them."""
    paper: bool = False
    """Draw nothing; list the figures and tables that the paper prints, each with its state."""
    out: Path | None = None
    """Where to write. Default: results/figures; then the blocks of the pages too."""
    pdf: bool = False
    """PDF beside each."""
    check: bool = False
    """Write nothing; compare with what is on disk and exit 1 if it is stale."""

    def run(self) -> int:
        from stapo_repro.pages import outputs
        from stapo_results import generated

        if self.paper:
            print(outputs.paper_figures(self.records))
            return 0
        files = outputs.figure_files(self.of, self.records, self.out, self.only, self.pdf)
        return generated.check(files, "stapo-repro figures") if self.check else generated.write(files)


@dataclass(frozen=True)
class Report:
    """One self-contained HTML page of everything that the records say: state, tables, figures, audit, provenance."""

    records: tuple[Path, ...] = ()
    """Folders with records. Default: those of --runs, or else the committed ones, with the testbed's claims."""
    runs: tuple[Path, ...] = ()
    """Run folders, such as runs/miniature, whose single responses are shown."""
    responses: int = 600
    """How many responses in all, spread evenly over the cells."""
    out: Path | None = None
    """The page. Default: results/report.html, with --records or --runs report.html here."""
    check: bool = False
    """Write nothing; compare with what is on disk and exit 1 with a diff if it is stale."""

    def run(self) -> int:
        from stapo_repro.pages import outputs
        from stapo_results import generated

        files = outputs.report_page(self.records, self.runs, self.out, self.responses)
        return generated.check(files, "stapo-repro report") if self.check else generated.write(files)


@dataclass(frozen=True)
class Tokens:
    """The analysis of a token log: a page, figures and numbers of the tokens that S2T silences."""

    run_folder: tyro.conf.Positional[Path]
    """A folder with token_log/: a training run, its collected record, or a probe."""
    out: Path | None = None
    """Where to write. Default: tokens/ in that folder."""
    top: int = 30
    """How many single tokens are shown with their context."""

    def run(self) -> int:
        from stapo_repro.tokens import logged_run, page
        from stapo_results.errors import BadInput
        from stapo_results.store import write_atomic

        if self.top < 0:
            raise BadInput("--top is a number of cases", found=self.top, expected="0 or more", next_step="--top 30")
        files, messages = page.analyse(logged_run.load(self.run_folder), self.top)
        out = self.out or self.run_folder / "tokens"
        for name, data in files.items():
            write_atomic(out / name, data)
        print("\n".join(messages))
        print(f"{len(files)} files in {out}; the page is {out / 'index.html'}")
        return 0


@dataclass(frozen=True)
class Miniature:
    """The whole reproduction in miniature, from base model to table and curves. The same command resumes."""

    quick: bool = False
    """Short form for CI: JustRL and STAPO, 4 steps, 2 samples of 16 problems."""
    seeds: str | None = None
    """Training seeds, such as 0,1,4. Default: 0."""
    seed_count: int | None = None
    """How many training seeds, from 0 on, in place of their list."""
    rebuild_base: bool = False
    """Train the base model anew (2 minutes) instead of taking the weights that the repository carries."""
    out: Path = Path("runs/miniature")
    """Where everything goes."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print each stage with its exact command and what is there; make every check; start nothing."""

    def run(self) -> int:
        from stapo_repro.driver.request import cpu_run, named_or_counted
        from stapo_repro.driver.run import main

        options = {n: getattr(self, n) for n in ("quick", "rebuild_base")}
        seeds = named_or_counted(self.seeds, self.seed_count)
        return main(cpu_run(self.out, seeds=seeds, **options), self.dry_run)


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


@dataclass(frozen=True)
class GpuCheck:
    """The suite's own commands on this machine's GPU, small: a page of what passed, and a record to send back."""

    cpu: bool = False
    """The same without a GPU, on vLLM's CPU build."""
    out: Path = Path("runs/gpu-check")
    """A new folder for everything."""

    def run(self) -> int:
        from stapo_repro.gpu_check.run import check

        return check(self.out, self.cpu)


_COMMANDS = {
    "tables": Tables,
    "figures": Figures,
    "audit": Audit,
    "report": Report,
    "miniature": Miniature,
    "testbed": Testbed,
    "run": Run,
    "collect": Collect,
    "tokens": Tokens,
    "label": Label,
    "plan": Plan,
    "calibrate": Calibrate,
    "graders": Graders,
    "gpu-check": GpuCheck,
    "pack": Pack,
    "unpack": Unpack,
}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script."""
    sys.exit(run_main(lambda: _command(argv), extra="repro"))


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
