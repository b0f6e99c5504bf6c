"""`stapo-repro calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from stapo_results.errors import BadInput


@dataclass(frozen=True)
class Calibrate:
    """Check the harness against known numbers: our scores of a public checkpoint beside its published ones, with
    intervals that count both sides' noise, and a verdict."""

    model: tyro.conf.Positional[str] = ""
    """A public checkpoint, as hbx/JustRL-DeepSeek-1.5B or JustRL-DeepSeek-1.5B; an unknown one lists those that are
    known."""
    runs: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="RUN ...")] = ()
    """Folders of finished evaluations of it, or of their records. Default: none, its published results alone."""
    margin: float = 5.0
    """Points within which the whole interval has to lie for "agrees"."""
    out: Path | None = None
    """Folder for calibration.md and calibration.json. Default: the table is printed only."""

    def run(self) -> int:
        from stapo_repro.calibrate import calibration, to_markdown
        from stapo_results import runs, store

        if self.margin <= 0:
            raise BadInput("--margin is above zero", found=self.margin, next_step="correct the number")
        if self.out:
            runs.check_folder(self.out, "--out")
        found = calibration(self.model, self.runs, self.margin)
        print(to_markdown(found))
        if self.out:
            store.write_atomic(self.out / "calibration.md", to_markdown(found))
            store.write_json(self.out / "calibration.json", found)
            print(f"written: {self.out / 'calibration.md'}, {self.out / 'calibration.json'}")
        return 0
