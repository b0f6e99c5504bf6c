"""`stapo-repro report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Report:
    """One self-contained HTML page of everything that the records say: state, tables, figures, audit, provenance."""

    records: tuple[Path, ...] = ()
    """Folders with records. Default: those of --runs, or else the committed ones, the ablation's apart."""
    runs: tuple[Path, ...] = ()
    """Run folders, such as runs/miniature, whose single responses are shown."""
    responses: int = 600
    """How many responses in all, spread evenly over the cells."""
    out: Path | None = None
    """The page. Default: results/report.html, with --records or --runs report.html here."""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Write nothing; compare with what is on disk and exit 1 with a diff if it is stale."""

    def run(self) -> int:
        from stapo_repro.pages import outputs
        from stapo_results import generated

        files = outputs.report_page(self.records, self.runs, self.out, self.responses)
        return generated.check(files, "stapo-repro report") if self.check else generated.write(files)
