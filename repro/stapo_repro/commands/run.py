"""`stapo-repro run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from stapo_results.errors import BadInput

_GIVEN_ON = ("hardware", "quick", "steps", "data_dir", "ray_address", "source", "judge", "keep_checkpoints",
             "train_env", "eval_env")  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Run what the named cells lack: data, train, export, evaluate, tables. The same command resumes.

    A cell is METHOD/SIZE: stapo/mini, stapo/smollm2-135m, stapo/qwen3-1.7b, base/qwen3-8b. The paper's sizes need GPUs.
    It fills the folder named by --out and does not look at committed records: what is recorded elsewhere is run again.
    """

    cells: tyro.conf.Positional[tuple[str, ...]] = ()
    """One or more cells: of the miniature (METHOD/mini), of the small model (METHOD/smollm2-135m, once
    `stapo-train fetch` has fetched it), or of the paper's models. calibration/justrl-deepseek-1.5b alone: a public
    checkpoint at its published settings, then our scores beside the published ones."""
    every: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(name="all")] = False
    """All cells of the paper's table, base models included; with --dry-run: what the whole reproduction takes."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print each stage with its exact command, what is there, hours and disk; make every check; start nothing."""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """Few steps, samples and problems: shows that the path works."""
    seeds: str | None = None
    """Training seeds, such as 0,1,4. Default: 0."""
    seed_count: int | None = None
    """How many training seeds, from 0 on, in place of their list."""
    steps: int | None = None
    """Training steps. Default: 30 for the miniature (with --quick 4), 50 for the small model and 3,000 for the paper's
    models (with --quick 2)."""
    data_dir: Path | None = None
    """Folder with the six benchmarks, for the paper's cells. Default: the hub's copies."""
    out: Path | None = None
    """Where everything goes. Default: runs/miniature, runs/calibration, or, where further calls may add cells,
    runs/small and runs/cells."""
    hardware: Literal["1gpu", "8gpu", "64gpu", "cpu", "cpu-2nodes"] | None = None
    """Default: 8gpu for the paper's models, cpu for the others. cpu-2nodes: the miniature on a Ray cluster."""
    ray_address: str = ""
    """A Ray cluster that runs already (HOST:PORT or auto) for training and evaluation; 64gpu: auto."""
    source: str = ""
    """Training prompts: a .jsonl or .parquet file, or a data set's id. Default: DAPO-Math-17k from the hub."""
    judge: str | None = None
    """Verifier of the paper's cells: a folder, a hub id or none. Default: opencompass/CompassVerifier-3B."""
    keep_checkpoints: int | None = None
    """Keep the newest so many checkpoints of each training, at least 1, and one more while it is written. Default:
    3."""
    train_env: Path | None = None
    """Folder of the environment whose stapo-train is used. Default: this one."""
    eval_env: Path | None = None
    """Folder of the environment whose stapo-eval is used. Default: this one."""

    def run(self) -> int:
        from stapo_repro.run import chain, request

        if self.every and self.cells:
            raise BadInput("--all are all cells", found=" ".join(self.cells), expected="no cell beside it",
                           next_step="leave one out")  # fmt: skip
        given = {name: getattr(self, name) for name in _GIVEN_ON}
        seeds = request.seeds_of(self.seeds, self.seed_count)
        cells = request.all_cells() if self.every else self.cells
        return chain.main(request.of_cells(cells, self.out, seeds=seeds, **given), self.dry_run)
