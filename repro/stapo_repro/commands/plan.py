"""`stapo-repro plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class Plan:
    """What every cell that is not run would take: hours, GPU hours, disk and cost; of named cells with each formula."""

    cells: tyro.conf.Positional[tuple[str, ...]] = ()
    """Cells such as stapo/qwen3-8b. Default: all of the paper's table, with the base models."""
    hardware: Literal["1gpu", "8gpu", "64gpu"] = "8gpu"
    """The machine, as the training wing's hardware= has it."""
    card: Literal["A100", "H20", "H100", "H200", "B200"] | None = None
    """The GPU. Default: H100, and H20 for 64gpu, the paper's machine."""
    price: float | None = None
    """Price of a GPU hour, in any currency."""
    seeds: str = "0"
    """Training seeds, separated by commas."""
    steps: int | None = None
    """Training steps. Default: 3,000."""
    records: tuple[Path, ...] = ()
    """Folders with records: what stands there is not planned, and what was measured there replaces the formula.
    Default: the committed ones."""

    def run(self) -> int:
        from stapo_repro.ablation import build as ablation
        from stapo_repro.driver.request import parse_cells, parse_seeds
        from stapo_repro.paper import checkout
        from stapo_repro.planner import plan

        found = plan.build(
            parse_cells(self.cells) if self.cells else plan.all_cells(),
            self.records or (checkout() / "results" / "records",),
            hardware=self.hardware,
            card=self.card,
            seeds=parse_seeds(self.seeds),
            steps=self.steps,
            skip=() if self.records else (ablation.FOLDER,),
        )
        print(plan.to_text(found, self.price, formulas=bool(self.cells)), end="")
        return 0
