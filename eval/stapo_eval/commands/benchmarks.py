"""`stapo-eval benchmarks`."""

from __future__ import annotations

from dataclasses import dataclass

from stapo_results.benchmarks import find_data_dir, load, registry
from stapo_results.errors import BadInput


@dataclass(frozen=True)
class BenchmarksCommand:
    """List the benchmarks, and check the copies of a data directory."""

    data_dir: str = ""
    """Directory with JSONL files (default: $STAPO_DATA_DIR)."""

    def __call__(self) -> int:
        data_dir = find_data_dir(self.data_dir)
        bad = 0
        for name, spec in registry(data_dir).items():
            where = spec.hub or spec.file
            state = ""
            if data_dir is not None:
                try:
                    b = load(name, data_dir)
                    state = f"ok, {len(b.identity.text_variants)} text variants"
                except BadInput as e:
                    absent = not (data_dir / (spec.file or f"{name}.jsonl")).exists()
                    bad += not absent
                    state = "no file here" if absent else f"REFUSED: {e.found}, expected {e.expected}"
            print(f"{name:<16}{spec.rows:>5} rows  N {spec.samples:<4}{spec.answer_type:<9}{where:<28}{state}".rstrip())
        return 2 if bad else 0
