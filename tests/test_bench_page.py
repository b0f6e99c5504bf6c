"""The page's block of what was measured: numbers of the records, and "not run" where there is none."""

from __future__ import annotations

from pathlib import Path

from stapo_repro.pages.bench import page_block
from stapo_results import provenance
from stapo_results.schema import Bench, BenchRow
from stapo_results.store import write_json


def _row(name: str, seconds: float, ratio: float, low: float, high: float, labels: dict | None = None, **values: float):
    return BenchRow(
        name=name, labels=labels or {}, seconds=seconds, ratio=ratio, ratio_low=low, ratio_high=high, values=values
    )


def _write(
    folder: Path, part: str, rows: list[BenchRow], labels: dict[str, str], baseline: str = "the baseline"
) -> None:
    run = provenance.new_run("bench", {"repeats": 3}, seeds={}, deterministic=False)
    hardware = {"cpu": "a processor", "cores": 2, "memory_gib": 1, "gpus": []}
    write_json(folder / part / "run.json", run.model_copy(update={"hardware": hardware, "code_commit": "c" * 40}))
    bench = Bench(run_id=run.run_id, part=part, baseline=baseline, labels=labels, rows=rows)
    write_json(folder / part / "bench.json", bench)


def test_nothing_measured(tmp_path: Path) -> None:
    text = page_block(tmp_path)
    assert [x for x in text.splitlines() if x] == [
        "**Grading**: not run.", "**Generation**: not run.", "**Summary**: not run.", "**Engines**: not run."
    ]  # fmt: skip


def test_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    same = {"responses": 1000.0, "agrees_with_stapo": 1.0, "agrees_with_label": 0.99}
    other = {"responses": 1000.0, "agrees_with_stapo": 0.5, "agrees_with_label": 0.25}
    rows = [_row("stapo-eval grade", 2.0, 0.1, 0.08, 0.125, **same), _row("serial", 20.0, 1.0, 1.0, 1.0, **other)]
    _write(tmp_path, "grading", rows, {"distinct": "1234", "golds": "six benchmarks", "repeats": "3"}, "serial")
    text = page_block(tmp_path)
    assert "1,000 made-up responses (1,234 distinct answers) to six benchmarks, the best of 3 repeats" in text
    assert "against serial ours was 8.0 to 12.5 times as fast within a repeat" in text
    assert "| serial | 20.00 | 10.0 | 50.00 % | 25.00 % |" in text
    assert "**Generation**: not run." in text
    assert text.endswith("Measured by `stapo-eval bench` on 2 cores of a processor, code cccccccccccc, 3 repeats.")


def test_engines_beside_generate_by_hand(tmp_path: Path) -> None:
    labels = {"responses": "128", "max_tokens": "64", "parameters": "134515008", "threads": "2", "gflops": "98.7"}
    rows = [_row("by hand", 10.0, 1.0, 1.0, 1.0, tokens_per_second=100.0, share=0.25),
            _row("engine hf", 12.5, 1.25, 1.1, 1.3, tokens_per_second=80.0, share=0.2)]  # fmt: skip
    _write(tmp_path, "engines", rows, labels)
    text = page_block(tmp_path)
    assert "128 responses of at most 64 tokens from a model of 134,515,008 parameters, 2 threads" in text
    assert "| engine hf | 80 | 1.25 (1.10 to 1.30) | 20 % |" in text
