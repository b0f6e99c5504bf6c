"""`stapo-eval run`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path

from stapo_eval.options import RunOptions
from stapo_results import provenance
from stapo_results.errors import BadInput


@dataclass(frozen=True)
class RunCommand(RunOptions):
    """Sample, grade and judge: avg@N of one model over benchmarks and decoding settings.

    The same command again goes on where it was stopped, or returns at once if it had finished.
    """

    resume: bool = True
    """Go on with an unfinished run folder; --no-resume refuses one."""

    def __call__(self) -> int:
        from stapo_eval.run import run

        if not self.resume and self.out and (Path(self.out) / "run.json").exists():
            raise BadInput(f"{self.out} already holds a run", next_step="leave out --no-resume, or give another --out")
        options = RunOptions(**{f.name: getattr(self, f.name) for f in fields(RunOptions)})
        run(options, command=shlex.join(provenance.command_line()))
        return 0
