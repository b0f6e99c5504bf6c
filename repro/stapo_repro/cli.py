"""`stapo-repro`: the table, the figures, and the driver that runs the whole chain. A function a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from stapo_results import generated
from stapo_results.errors import BadInput
from stapo_results.runs import check_folder
from stapo_results.terminal import check_command, run_main

Records = Annotated[
    tuple[Path, ...], tyro.conf.arg(help="Folders with records; the committed ones by default, the testbed's apart.")
]
Of = Annotated[
    Literal["main", "testbed"] | None,
    tyro.conf.arg(help="Which experiment's. Default: both; with --records the main one."),
]
Seeds = Annotated[str | None, tyro.conf.arg(help="Training seeds, such as 0,1,4. Default: 0.")]
SeedCount = Annotated[int | None, tyro.conf.arg(help="How many training seeds, from 0 on, in place of their list.")]
DryRun = Annotated[
    bool,
    tyro.conf.arg(
        help="Print each stage with its exact command, what is there, hours and disk; make every check; start nothing."
    ),
]


def _check_out(out: Path | None, records: Sequence[Path] = ()) -> None:
    """Raises: BadInput for a file; and for other records without a folder: results/ is made of the committed ones."""
    if out is not None:
        check_folder(out, "--out")
    elif records:
        raise BadInput("pages of other records go to a folder of their own", found="--records without --out",
                       expected="both", next_step="--out DIR")  # fmt: skip


def tables(records: Records = (), of: Of = None, out: Path | None = None, check: bool = False) -> int:
    """Regenerate the main table (Markdown, LaTeX, CSV, JSON), and those of testbed, tokens and audit.

    Args:
        out: Where to write. Default: results/tables, and the README's table.
        check: Write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    from stapo_repro import pages

    _check_out(out, records)
    files = pages.table_files(of, records, out)
    return generated.check(files, "stapo-repro tables") if check else generated.write(files)


def figures(
    records: Records = (), of: Of = None, only: tuple[str, ...] = (), out: Path | None = None, pdf: bool = False,
    paper: bool = False, check: bool = False,
) -> int:  # fmt: skip
    """Draw all figures from records alone: training curves, differences, token logs, ...

    Args:
        only: Names of figures, such as pareto or forest; all by default. A wrong name lists them.
        out: Where to write. Default: results/figures, and the README's picture.
        pdf: PDF beside SVG and PNG.
        paper: List the paper's figures and tables by name, each with its state; draw nothing.
        check: Write nothing; compare with what is on disk and exit 1 if it is stale.
    """
    from stapo_repro import pages

    if paper:
        print(pages.papers_figures(records))
        return 0
    _check_out(out, records)
    files = pages.figure_files(of, records, out, only, pdf)
    return generated.check(files, "stapo-repro figures") if check else generated.write(files)


def report(
    records: tuple[Path, ...] = (), runs: tuple[Path, ...] = (), responses: int = 600, out: Path | None = None
) -> int:
    """One HTML page of what the records say: table, gaps, figures, single responses, runs.

    Args:
        records: Folders with records. Default: those of --runs, or else the committed ones.
        runs: Run folders, such as runs/miniature, whose single responses are shown.
        responses: How many responses in all, spread evenly over the cells.
        out: The page. Default: results/report.html, or report.html in the first folder named.
    """
    from stapo_repro import report

    if out is not None and (out.is_dir() or out.parent.is_file()):
        raise BadInput("--out is the page's file", found=f"{out} or its folder is of another kind", expected="a file",
                       next_step=f"--out {out / 'report.html'}")  # fmt: skip
    print(report.write(records, runs, out, responses))
    return 0


def miniature(
    quick: bool = False, seeds: Seeds = None, seed_count: SeedCount = None, rebuild_base: bool = False,
    out: Path = Path("runs/miniature"), dry_run: DryRun = False,
) -> int:  # fmt: skip
    """The whole reproduction in miniature, from base model to table and curves. The same command resumes.

    Args:
        quick: Short form for CI: JustRL and STAPO, 4 steps, 2 samples of 16 problems.
        rebuild_base: Train the base model anew (2 minutes) instead of taking the weights that the repository carries.
        out: Where everything goes.
    """
    from stapo_repro.run import chain, request

    numbers = request.seeds_of(seeds, seed_count)
    return chain.main(request.cpu_run(out, quick=quick, seeds=numbers, rebuild_base=rebuild_base), dry_run)


def of_testbed(
    quick: bool = False, worlds: str | None = None, arms: str | None = None, seeds: str | None = None,
    seed_count: SeedCount = None, steps: int | None = None, pilot: bool = False, long: bool = False,
    method: str | None = None, out: Path | None = None, dry_run: DryRun = False,
) -> int:  # fmt: skip
    """Worlds in which the worth of every rare token is known: five arms a world, the sweeps over q and tau_p in one.

    The same command resumes; other --worlds, --arms and --seeds add to its folder. docs/testbed.md has the claims that
    its records judge.

    Args:
        quick: Short form to try the path: one world, two arms, one seed, 2 steps, 2 samples of 16 problems.
        worlds: Out of paper,mixed,inverted. Default: all.
        arms: Such as justrl,stapo,stapo-q0.5. Default:
            justrl,justrl-fullmask,stapo-high-entropy,stapo-random,stapo, and in paper
            stapo-q0.25,stapo-q0.5,stapo-tau0.0002,stapo-tau0.02. With --long justrl,stapo and, at 2.5 times the
            learning rate, justrl-lr2.5x,stapo-lr2.5x; at five times, when named, justrl-lr5x,stapo-lr5x.
        seeds: Training seeds, such as 10,11. Default: 10 to 14; 100,101,102 with --pilot, 20 to 25 with --long,
            10,11,12 with --method.
        steps: Training steps. Default: 20, with --pilot 30, with --long 300, with --quick 2.
        pilot: Other seeds, which judge nothing: the spread between seeds, from which the seeds needed follow.
        long: JustRL and STAPO in paper at two learning rates, long enough that some run may collapse; validation every
            25 steps, no evaluation.
        method: Train this method (a name, or a YAML overlay) in the worlds, and print it beside the committed arms.
        out: Where everything goes. Default: runs/testbed, runs/testbed-pilot, runs/testbed-long or
            runs/testbed-METHOD.
    """
    from stapo_repro.run import chain, request

    if pilot and long:
        raise BadInput("a run is the pilot or a long one", found="--pilot and --long", expected="one of them",
                       next_step="leave one out")  # fmt: skip
    part = "pilot" if pilot else "long" if long else "main"
    numbers = request.seeds_of(seeds, seed_count)
    asked = request.of_testbed(
        out, part=part, quick=quick, worlds=worlds, arms=arms, seeds=numbers, steps=steps, method=method
    )
    return chain.main(asked, dry_run)


def run(
    cells: tyro.conf.Positional[tuple[str, ...]] = (), all: bool = False, dry_run: DryRun = False, quick: bool = False,
    seeds: Seeds = None, seed_count: SeedCount = None, steps: int | None = None, data_dir: Path | None = None,
    out: Path | None = None, hardware: Literal["1gpu", "8gpu", "64gpu", "cpu", "cpu-2nodes"] | None = None,
    ray_address: str = "", source: str = "", judge: str | None = None, keep_checkpoints: int | None = None,
    train_env: Path | None = None, eval_env: Path | None = None,
) -> int:  # fmt: skip
    """Run what the named cells lack: data, train, export, evaluate, tables. The same command resumes.

    A cell is METHOD/SIZE: stapo/mini, stapo/smollm2-135m, stapo/qwen3-1.7b, base/qwen3-8b. The paper's sizes need GPUs.
    Results go to --out. Committed records are ignored.

    Args:
        cells: One or more cells: of the miniature (METHOD/mini), of the small model (METHOD/smollm2-135m, once
            `stapo-train fetch` has fetched it), or of the paper's models. calibration/justrl-deepseek-1.5b alone: a
            public checkpoint at its published settings, then our scores beside the published ones.
        all: All cells of the paper's table, base models included; with --dry-run: what the reproduction takes.
        quick: Few steps, samples and problems: shows that the path works.
        steps: Training steps. Default: 30 for the miniature (with --quick 4), 50 for the small model and 3,000 for the
            paper's models (with --quick 2).
        data_dir: Folder with the six benchmarks, for the paper's cells. Default: the hub's copies.
        out: Where everything goes. Default: runs/miniature, runs/calibration, or, where further calls may add cells,
            runs/small and runs/cells.
        hardware: Default: 8gpu for the paper's models, cpu for the others. cpu-2nodes: the miniature on a Ray cluster.
        ray_address: A Ray cluster that runs already (HOST:PORT or auto) for training and evaluation; 64gpu: auto.
        source: Training prompts: a .jsonl or .parquet file, or a data set's id. Default: DAPO-Math-17k from the hub.
        judge: Verifier of the paper's cells: a folder, a hub id or none. Default: opencompass/CompassVerifier-3B.
        keep_checkpoints: Keep the newest so many checkpoints of each training, at least 1, and one more while it is
            written. Default: 3.
        train_env: Folder of the environment whose stapo-train is used. Default: this one.
        eval_env: Folder of the environment whose stapo-eval is used. Default: this one.
    """
    from stapo_repro.run import chain, request

    if all and cells:
        raise BadInput("--all are all cells", found=" ".join(cells), expected="no cell beside it",
                       next_step="leave one out")  # fmt: skip
    asked = request.of_cells(
        request.all_cells() if all else cells, out, hardware=hardware, quick=quick, steps=steps,
        seeds=request.seeds_of(seeds, seed_count), data_dir=data_dir, ray_address=ray_address, source=source,
        judge=judge, keep_checkpoints=keep_checkpoints, train_env=train_env, eval_env=eval_env,
    )  # fmt: skip
    return chain.main(asked, dry_run)


def collect(run_folder: tyro.conf.Positional[Path], out: Path) -> int:
    """Copy a finished run's records (no responses, no paths of this machine) to where they can be committed.

    What each of its stages took goes to stages.json there.

    Args:
        run_folder: Folder of the run, such as runs/miniature.
        out: Folder to write, such as results/records/miniature.
    """
    from stapo_repro.collect import collect

    print(f"{len(collect(run_folder, out))} files written below {out}")
    return 0


def tokens(run_folder: tyro.conf.Positional[Path], out: Path | None = None, top: int = 30) -> int:
    """The analysis of a token log: a page, figures and numbers of the tokens that S2T silences.

    Args:
        run_folder: A folder with token_log/: a training run, its collected record, or a probe.
        out: Where to write. Default: tokens/ in that folder.
        top: How many single tokens are shown with their context.
    """
    from stapo_repro import token_page
    from stapo_repro.tokens import log
    from stapo_results.store import write_atomic

    if top < 0:
        raise BadInput("--top is a number of cases", found=top, expected="0 or more", next_step="--top 30")
    files, messages = token_page.analyse(log.load(run_folder), top)
    _check_out(out)
    folder = out or run_folder / "tokens"
    for name, data in files.items():
        write_atomic(folder / name, data)
    print("\n".join(messages))
    print(f"{len(files)} files in {folder}; the page is {folder / 'index.html'}")
    return 0


def audit(table: Path | None = None) -> int:
    """Check the numbers of a printed table against each other.

    Args:
        table: A table in the form of results/paper/main_table.json. Default: that table, with the paper's claims.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from stapo_repro import audit

    Console().print(Markdown(audit.page(table, "stapo-repro audit")))
    return 0


def calibrate(
    model: tyro.conf.Positional[str] = "",
    runs: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="RUN ...")] = (),
    margin: float = 5.0, out: Path | None = None,
) -> int:  # fmt: skip
    """Check the harness against known numbers: our scores of a public checkpoint beside its published ones.

    Intervals count both sides' noise; each pair has a verdict.

    Args:
        model: A public checkpoint, as hbx/JustRL-DeepSeek-1.5B or JustRL-DeepSeek-1.5B; an unknown one lists those
            that are known.
        runs: Folders of finished evaluations of it, or of their records. Default: none, its published results alone.
        margin: Points within which the whole interval has to lie for "agrees".
        out: Folder for calibration.md and calibration.json. Default: the table is printed only.
    """
    from stapo_repro.calibrate import calibration, to_markdown
    from stapo_results.store import write_atomic, write_json

    _check_out(out)
    found = calibration(model, runs, margin)
    print(to_markdown(found))
    if out:
        write_atomic(out / "calibration.md", to_markdown(found))
        write_json(out / "calibration.json", found)
        print(f"written: {out / 'calibration.md'}, {out / 'calibration.json'}")
    return 0


def gpu_check(cpu: bool = False, out: Path = Path("runs/gpu-check")) -> int:
    """The suite's own commands on this machine's GPU, small: a page of what passed, and a record to send back.

    Args:
        cpu: The same without a GPU, on vLLM's CPU build.
        out: A new folder for everything.
    """
    from stapo_repro.gpu_check import check

    return check(out, cpu)


_COMMANDS = {
    f.__name__.removeprefix("of_").replace("_", "-"): f
    for f in (tables, figures, audit, report, miniature, of_testbed, run, collect, tokens, calibrate, gpu_check)
}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script."""

    def command() -> int:
        check_command("stapo-repro", argv, _COMMANDS)
        return tyro.extras.subcommand_cli_from_dict(
            _COMMANDS,
            prog="stapo-repro",
            description="Tables, figures and the driver of the STAPO reproduction.",
            args=argv,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
        )

    sys.exit(run_main(command, extra="repro"))


if __name__ == "__main__":
    main()
