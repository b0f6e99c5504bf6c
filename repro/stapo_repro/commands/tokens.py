"""`stapo-repro tokens`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Tokens:
    """The analysis of a token log: a page, figures and tables of the tokens that S2T silences, and labels for them."""

    run_folder: tyro.conf.Positional[Path]
    """A folder with token_log/: a training run, its collected record, or a probe."""
    out: Path | None = None
    """Where to write. Default: tokens/ in that folder."""
    labels: Path | None = None
    """A file of --export-labels with its column category filled in."""
    export_labels: Path | None = None
    """Write a random sample of rare tokens to this file, to be labelled by reading."""
    labels_sample: int = 200
    """How many tokens that sample holds: half below the entropy threshold, half not."""
    seed: int = 0
    """Which sample."""
    top: int = 30
    """How many single tokens are shown with their context."""
    steps: str = ""
    """Only these steps, as A:B, both ends inside; either may be left out."""

    def run(self) -> int:
        from stapo_repro.tokens import build, labelling, material
        from stapo_results.errors import BadInput
        from stapo_results.store import write_atomic

        if self.top < 0:
            raise BadInput("--top is a number of cases", found=self.top, expected="0 or more", next_step="--top 30")
        if self.export_labels is not None and self.export_labels.exists():
            raise BadInput(
                "the file for the sample is there already, and may hold labels",
                found=self.export_labels,
                next_step="name another file, or read its labels with --labels",
            )
        log = material.load(self.run_folder, self.steps)
        labels = None if self.labels is None else labelling.read(log, self.labels)
        analysis = build.build(log, labels, self.top)
        sample = None if self.export_labels is None else labelling.export(log, self.labels_sample, self.seed)
        out = self.out or self.run_folder / "tokens"
        for name, data in analysis.files.items():
            write_atomic(out / name, data)
        if self.export_labels is not None and sample is not None:
            write_atomic(self.export_labels, sample)
            print(f"sample to label: {self.export_labels}")
        print("\n".join(analysis.said))
        print(f"{len(analysis.files)} files in {out}; the page is {out / 'index.html'}")
        return 0
