"""`stapo-repro run` and `stapo-repro plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from stapo_repro import labels
from stapo_results.errors import BadInput

# of the paper's cells alone
_GPU_OPTIONS = ("hardware", "data_dir", "ray_address", "source", "judge", "keep_checkpoints", "train_env", "eval_env")


@dataclass(frozen=True)
class Run:
    """Run what the named cells lack: data, train, export, evaluate, tables. The same command resumes.

    A cell is METHOD/SIZE: stapo/mini, stapo/smollm2-135m, stapo/qwen3-1.7b, base/qwen3-8b. The paper's sizes need GPUs.
    It fills the folder named by --out and does not look at committed records: what is recorded elsewhere is run again.
    """

    cells: tyro.conf.Positional[tuple[str, ...]]
    """One or more cells: of the miniature (METHOD/mini), of the small model (METHOD/smollm2-135m, once
    `stapo-train fetch` has fetched it), or of the paper's models. calibration/justrl-deepseek-1.5b alone: a public
    checkpoint at its published settings, then our scores beside the published ones."""
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
        from stapo_repro.driver import request
        from stapo_repro.driver.run import main

        options = {name: getattr(self, name) for name in _GPU_OPTIONS}
        if any(c.startswith(f"{labels.CALIBRATION}/") for c in self.cells):
            options |= {"hardware": self.hardware or "8gpu", "quick": self.quick}
            options |= {name: getattr(self, name) is not None for name in ("seeds", "seed_count", "steps")}
            return main(request.calibration(self.cells, self.out or Path("runs/calibration"), **options), self.dry_run)
        cells = request.parse_cells(self.cells)
        size = request.size_on_cpu(cells)
        seeds = request.named_or_counted(self.seeds, self.seed_count)
        same = {"quick": self.quick, "seeds": seeds, "steps": self.steps}
        if not size:
            options["hardware"] = self.hardware or "8gpu"
            return main(request.paper_cells(cells, self.out or Path("runs/cells"), **same, **options), self.dry_run)
        if self.hardware in request.CPUS:
            same["hardware"] = options.pop("hardware")
        given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value not in (None, "")]
        if given:
            raise BadInput(f"{size} has no such option", found=", ".join(given),
                           expected="--quick, --seeds, --seed-count, --steps, --out, --dry-run",
                           next_step="leave it out, or name cells of the paper's sizes")  # fmt: skip
        methods = ",".join(m for m in labels.METHODS if (m, size) in cells)
        out = self.out or Path("runs") / request.ON_CPU[size]
        return main(request.cpu_run(out, methods=methods, size=size, **same), self.dry_run)


@dataclass(frozen=True)
class Plan:
    """What every cell that is not run would take: hours, GPU hours and disk; of named cells with each formula."""

    cells: tyro.conf.Positional[tuple[str, ...]] = ()
    """Cells such as stapo/qwen3-8b. Default: all of the paper's table, with the base models."""
    hardware: Literal["1gpu", "8gpu", "64gpu"] = "8gpu"
    """The machine, as the training wing's hardware= has it."""
    card: Literal["A100", "H20", "H100", "H200", "B200"] | None = None
    """The GPU. Default: H100, and H20 for 64gpu, the paper's machine."""
    seeds: str | None = None
    """Training seeds, such as 0,1,4. Default: 0."""
    seed_count: int | None = None
    """How many training seeds, from 0 on, in place of their list."""
    steps: int | None = None
    """Training steps. Default: 3,000, and those of their own for the miniature and the small model."""
    records: tuple[Path, ...] = ()
    """Folders with records: what stands there is not planned, and what was measured there replaces the formula.
    Default: the committed ones."""

    def run(self) -> int:
        from stapo_repro.driver.request import at_least, named_or_counted, parse_cells, parse_seeds
        from stapo_repro.paper import checkout
        from stapo_repro.planner import plan
        from stapo_repro.read import APART

        seeds = named_or_counted(self.seeds, self.seed_count)
        found = plan.build(
            parse_cells(self.cells) if self.cells else plan.all_cells(),
            self.records or (checkout() / "results" / "records",),
            hardware=self.hardware,
            card=self.card,
            seeds=parse_seeds("0" if seeds is None else seeds),
            steps=None if self.steps is None else at_least("--steps", self.steps, 1),
            skip=() if self.records else APART,
        )
        print(plan.to_text(found, formulas=bool(self.cells)), end="")
        return 0
