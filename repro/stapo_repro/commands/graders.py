"""`stapo-repro graders`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Graders:
    """The same responses under every grader: what each calls right, and each response on which two differ.

    OUT/responses.jsonl is for graders of other environments (docs/evaluation.md); --verdicts takes what they say.
    """

    run_folder: tyro.conf.Positional[Path]
    """Folder of a finished evaluation with its responses."""
    verdicts: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")] = ()
    """Verdicts of others on OUT/responses.jsonl: lines with id, grader and rule (true: right)."""
    data_dir: Path | None = None
    """Folder with the benchmarks. Default: that of the run, else $STAPO_DATA_DIR, else the hub."""
    out: Path | None = None
    """Folder of graders.json and responses.jsonl. Default: graders in the run's folder."""

    def run(self) -> int:
        from stapo_repro.calibration import beside, graders, regrade
        from stapo_results import runs, store

        out = self.out or self.run_folder / "graders"
        runs.check_folder(out, "--out")
        cells, source = beside.own_cells([self.run_folder]), out / graders.RESPONSES
        places = graders.write_responses(cells, regrade.Means(self.data_dir), source)
        found = graders.side_by_side(cells, places, source, graders.read_verdicts(self.verdicts, places))
        store.write_json(out / graders.FILE, found)
        print("\n".join(graders.to_markdown(found)))
        print(f"written: {out / graders.FILE} with every response on which two differ, {source}")
        return 0
