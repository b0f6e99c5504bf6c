"""`stapo-repro collect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Collect:
    """Copy a finished run's records (no responses, no paths of this machine) to where they can be committed, and write
    what each of its stages took to stages.json there."""

    run_folder: tyro.conf.Positional[Path]
    """Folder of the run, such as runs/miniature."""
    out: Path
    """Folder to write, such as results/records/miniature."""

    def run(self) -> int:
        from stapo_repro.collect import collect

        print(f"{len(collect(self.run_folder, self.out))} files written below {self.out}")
        return 0
