"""`stapo-repro label`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from stapo_results.errors import BadInput


@dataclass(frozen=True)
class Label:
    """A sheet of rare tokens for readers who do not know the mask; with --readings what two of them say.

    docs/tokens.md has the criteria.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders with token_log/, from which the tokens are drawn: probes, or training runs."""
    out: Path = Path("runs/labels")
    """Folder of sheet.jsonl, key.jsonl and drawn.json."""
    each: int = 200
    """Tokens of each kind: those that S2T silences, and those that it keeps."""
    seed: int = 0
    samples: Path | None = None
    """samples.jsonl of the evaluation that was probed: with --data-dir the sheet shows problems and whole responses."""
    data_dir: Path | None = None
    """Folder with that evaluation's benchmarks."""
    readings: tuple[Path, ...] = ()
    """Two files of labels: nothing is drawn; OUT/labels.json holds both labels of every token."""

    def run(self) -> int:
        from stapo_repro.tokens import labelling
        from stapo_repro.tokens.logged_run import load
        from stapo_results import store

        if self.readings:
            return self._score()
        if not self.runs or self.each < 1:
            raise BadInput("there is nothing to draw from", found=f"{len(self.runs)} folders, --each {self.each}",
                           expected="folders with a token log, and a number of tokens",
                           next_step="stapo-repro label PROBE --out DIR")  # fmt: skip
        if (self.samples is None) != (self.data_dir is None):
            raise BadInput("whole responses stand below their problems", found="one of --samples and --data-dir",
                           expected="both, of one evaluation, or neither",
                           next_step="--samples EVAL/samples.jsonl --data-dir BENCHMARKS")  # fmt: skip
        if (self.out / labelling.KEY).exists():
            raise BadInput(f"{self.out} holds a sheet already", found=self.out / labelling.KEY,
                           expected="a new folder: readings belong to one sheet", next_step="--out NEW")  # fmt: skip
        texts = labelling.texts_of(self.samples) if self.samples else None
        problems = labelling.problems_of(texts, self.data_dir) if texts and self.data_dir else None
        sheet, key, drawn = labelling.draw([load(r) for r in self.runs], self.each, self.seed, texts, problems)
        for name, lines in ((labelling.SHEET, sheet), (labelling.KEY, key)):
            store.write_atomic(self.out / name, "".join(f"{line.model_dump_json()}\n" for line in lines))
        store.write_json(self.out / labelling.DRAWN, drawn)
        of = ", ".join(f"{n} of {drawn.there[part]} {part}" for part, n in drawn.drawn.items())
        print(f"{of}; readers get {self.out / labelling.SHEET} alone")
        return 0

    def _score(self) -> int:
        from stapo_repro.tokens import labelling, readings
        from stapo_results import store

        if len(self.readings) != 2:
            raise BadInput("agreement is that of two readings", found=f"{len(self.readings)} files", expected="two",
                           next_step="--readings A.jsonl B.jsonl")  # fmt: skip
        sheet = list(store.read(self.out / labelling.SHEET, labelling.Shown))
        key = list(store.read(self.out / labelling.KEY, labelling.Hidden))
        drawn = store.read_json(self.out / labelling.DRAWN, labelling.Drawn)
        first, second = (readings.read_labels(f, sheet) for f in self.readings)
        of_sheet, *hashes = map(store.sha256_file, (self.out / labelling.SHEET, *self.readings))
        tokens = readings.joined(sheet, key, first, second)
        record = readings.LabelRecord(drawn=drawn, sheet=of_sheet, readings=(hashes[0], hashes[1]), tokens=tokens)
        store.write_json(self.out / readings.FILE, record)
        print("\n".join(readings.to_markdown(readings.score(tokens))))
        return 0
