"""`stapo-repro tokens`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Tokens:
    """The analysis of a token log: a page, figures and numbers of the tokens that S2T silences."""

    run_folder: tyro.conf.Positional[Path]
    """A folder with token_log/: a training run, its collected record, or a probe."""
    out: Path | None = None
    """Where to write. Default: tokens/ in that folder."""
    top: int = 30
    """How many single tokens are shown with their context."""

    def run(self) -> int:
        from stapo_repro.tokens import logged_run, page
        from stapo_results.errors import BadInput
        from stapo_results.store import write_atomic

        if self.top < 0:
            raise BadInput("--top is a number of cases", found=self.top, expected="0 or more", next_step="--top 30")
        files, messages = page.analyse(logged_run.load(self.run_folder), self.top)
        out = self.out or self.run_folder / "tokens"
        for name, data in files.items():
            write_atomic(out / name, data)
        print("\n".join(messages))
        print(f"{len(files)} files in {out}; the page is {out / 'index.html'}")
        return 0
