"""`stapo-repro calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from stapo_results.errors import BadInput


@dataclass(frozen=True)
class Calibrate:
    """Hold the harness against known numbers: our scores of a public checkpoint beside its published ones, with
    intervals that count both sides' noise and a verdict; and take a gap apart, one cause at a time."""

    model: tyro.conf.Positional[str] = ""
    """A public checkpoint, as hbx/JustRL-DeepSeek-1.5B or JustRL-DeepSeek-1.5B; an unknown one lists those that are
    known. Without --from: its published results alone. Without a model: --causes and --against alone."""
    runs: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="RUN ...")] = ()
    """Folders of finished evaluations of it, or of their records."""
    causes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Change one cause at a time on the same responses: other graders, without the judge, shorter limits, fewer
    samples. Takes run folders that still hold their responses."""
    against: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN2 ...")] = ()
    """Other evaluations: their differences to --from, and the settings in which the records differ."""
    limits: tuple[int, ...] = ()
    """Further length limits in tokens for --causes. Those of the published results are always tried."""
    samples: tuple[int, ...] = ()
    """Further numbers of samples a problem for --causes; likewise."""
    data_dir: Path | None = None
    """Folder with the benchmarks, for --causes. Default: that of the run, else $STAPO_DATA_DIR, else the hub."""
    tokenizer: Path | None = None
    """Folder with the model's tokenizer.json, for shorter limits. Default: the model's folder of the run."""
    eval_env: Path | None = None
    """Folder of the environment whose stapo-eval grades for --causes. Default: this one."""
    margin: float = 5.0
    """Points within which the whole interval has to lie for "agrees"."""
    out: Path | None = None
    """Folder for calibration.md and calibration.json."""

    def run(self) -> int:
        from stapo_repro.calibration import page
        from stapo_results import runs
        from stapo_results.store import write_atomic

        self._check()
        if self.out:
            runs.check_folder(self.out, "--out")
        found = self._found()
        page.to_terminal(found)
        if self.out:
            write_atomic(self.out / "calibration.md", page.to_markdown(found))
            write_atomic(self.out / "calibration.json", page.to_json(found))
            print(f"written: {self.out / 'calibration.md'}, {self.out / 'calibration.json'}")
        return 0

    def _check(self) -> None:
        """Raises: BadInput for options that ask for nothing or need --from."""
        if (self.causes or self.against) and not self.runs:
            raise BadInput("--causes and --against take a run apart", found="no --from", expected="--from RUN",
                           next_step="stapo-repro calibrate --from RUN --causes")  # fmt: skip
        if self.runs and not (self.model or self.causes or self.against):
            raise BadInput("nothing to hold these runs against", found="no MODEL, --causes or --against",
                           expected="one of them",
                           next_step="stapo-repro calibrate MODEL --from RUN")  # fmt: skip
        if len(set(self.against)) < len(self.against):
            raise BadInput("--against names a run twice", found=" ".join(map(str, self.against)), expected="each once",
                           next_step="leave one out")  # fmt: skip
        if self.margin <= 0 or min((*self.limits, *self.samples, 1)) < 1:
            raise BadInput("--margin, --limits and --samples are above zero", next_step="correct the number")

    def _found(self):
        from stapo_repro.calibration import beside, causes, published, regrade, two_runs
        from stapo_repro.calibration.page import Calibration

        known = published.rows_of(self.model) if self.model or not self.runs else []
        cells = beside.own_cells(self.runs, self.model) if self.runs else []
        changes, pairs, alone = [], [], []
        if self.causes:
            means = regrade.Means(self.data_dir, self.tokenizer, self.eval_env)
            changes = causes.changes(cells, means, known, self.limits, self.samples, self.margin)
        if self.against:
            others = {str(r): beside.own_cells([r], self.model) for r in self.against}
            pairs, alone = two_runs.pairs(cells, others, self.margin)
        used = {p.source for p in known}
        sources = [s for s in published.load().sets if s.name in used]
        return Calibration(self.model, self.margin, beside.table(known, cells, self.margin), changes, pairs, sources,
                           [*alone, *beside.notes(cells, self.model)])  # fmt: skip
