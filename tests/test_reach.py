"""`stapo-train data --within-reach`: what is kept, its record, resuming, and what it refuses; levels and validation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from row_files import jsonl, parquet

from stapo_results import benchmarks, store
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from stapo_training import prepare as prepare_module
from stapo_training.data import source
from stapo_training.data.options import DataOptions
from stapo_training.data.source import Prompt
from stapo_training.reach import Asked, Reach, ReachSample

NAMES = ("data.json", "reach.json", "samples.jsonl", "contamination.json", "conflicts.jsonl")


def prepare(given: str, benchmark_dir: Path, out: Path, **more: Any) -> Any:
    return prepare_module.prepare(DataOptions(benchmark_dir, out, given, **more))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark of our own in AIME24's place."""
    rows = [{"id": f"t{i}", "problem": f"What is {i} and {i}?", "answer": str(2 * i)} for i in range(10)]
    entry = benchmarks.registry_entry(jsonl(tmp_path / "toy.jsonl", rows), "toy", title="Toy")
    benchmarks.write_registry(tmp_path / "registry.yaml", {"toy": entry})
    loaded = {"aime24": benchmarks.load("toy", tmp_path)}
    monkeypatch.setattr(prepare_module, "_benchmarks", lambda folder: loaded)


def made(base: Path, out: Path, **numbers: int) -> dict[str, int]:
    asked = {"within_reach": str(base / "model"), "draw": 12, "samples": 4, "max_tokens": 48, **numbers}
    record = prepare(str(base / "data" / "train.parquet"), out, out, **asked)
    assert record is not None
    return record.counts


def ids(out: Path) -> list[str]:
    return [row["extra_info"]["problem_id"] for row in pq.read_table(out / "train.parquet").to_pylist()]


def test_kept_are_the_prompts_with_right_and_wrong_samples(skilled_base: Path, tmp_path: Path) -> None:
    counts = made(skilled_base, tmp_path / "out")
    found = store.read_json(tmp_path / "out" / "reach.json", Reach)
    samples = list(store.read(tmp_path / "out" / "samples.jsonl", ReachSample))
    assert (len(found.rights), len(samples), counts["not_drawn"]) == (12, 48, counts["distinct"] - 12)
    for problem, right in found.rights.items():
        assert sum(s.right for s in samples if s.problem_id == problem) == right
    kept = {p for p, n in found.rights.items() if 0 < n < 4}
    assert (set(ids(tmp_path / "out")), 0 < len(kept) < 12) == (kept, True)
    dropped = counts["never_right_dropped"] + counts["always_right_dropped"]
    assert (dropped, len({s.seed for s in samples})) == (12 - len(kept), 48)
    run = store.read_json(tmp_path / "out" / "run.json", Run)
    assert (run.revisions["model"], run.seeds) == (found.model, {"within_reach": 0})


def test_a_problem_whose_gold_no_response_gives_is_never_right(skilled_base: Path, tmp_path: Path) -> None:
    prompts = source.distinct(source.read(source.find(str(skilled_base / "data" / "train.parquet"))))[:3]
    given = jsonl(tmp_path / "source.jsonl", [{"problem": p.problem, "answer": "777777"} for p in prompts])
    asked = {"within_reach": str(skilled_base / "model"), "draw": 3, "samples": 2, "max_tokens": 48}
    with pytest.raises(BadInput, match="no prompt is left") as e:
        prepare(str(given), tmp_path, tmp_path / "out", **asked)
    counts: Any = e.value.found
    assert (counts["never_right_dropped"], counts["always_right_dropped"]) == (3, 0)


@pytest.mark.parametrize("exclude", [True, False])
def test_the_contamination_report_is_of_what_is_kept_or_of_what_was_left_out(
    skilled_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exclude: bool
) -> None:
    """The benchmark is the source itself, or without some of it: each prompt is one of its problems."""
    prompts = source.distinct(source.read(source.find(str(skilled_base / "data" / "train.parquet"))))
    own = [{"id": p.problem_id, "problem": p.problem, "answer": "1"} for p in prompts[5 if exclude else 0 :]]
    entry = benchmarks.registry_entry(jsonl(tmp_path / "own.jsonl", own), "own", title="Own")
    benchmarks.write_registry(tmp_path / "registry.yaml", {"own": entry})
    monkeypatch.setattr(prepare_module, "_benchmarks", lambda folder: {"aime24": benchmarks.load("own", tmp_path)})
    asked = {"within_reach": str(skilled_base / "model"), "draw": 12, "samples": 4, "max_tokens": 48}
    record = prepare(str(skilled_base / "data" / "train.parquet"), tmp_path, tmp_path / "out", **asked,
                     exclude_contaminated=exclude)  # fmt: skip
    report = json.loads((tmp_path / "out" / "contamination.json").read_text())["benchmarks"]["aime24"]
    kept = len(ids(tmp_path / "out"))
    expected = len(prompts) - 5 if exclude else kept
    assert (record.counts["contaminated"], report["contaminated"], 0 < kept < 12) == (expected, expected, True)


def test_the_draw_is_the_same_of_every_order_of_the_source() -> None:
    prompts = [Prompt(f"What is {i} and {i}?", i, f"{i}") for i in range(100)]
    drawn, again, other = (
        [p.source_id for p in Asked("model", 10, 4, 48, seed).drawn(of)]
        for seed, of in ((0, prompts), (0, prompts[::-1]), (1, prompts))
    )
    assert (len(drawn), drawn) == (10, again)
    assert drawn != other


def test_a_run_that_was_killed_makes_what_is_missing_and_ends_in_the_same_bytes(
    skilled_base: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    made(skilled_base, whole)
    shutil.copytree(whole, killed)
    for name in ("data.json", "reach.json", "train.parquet", "val.parquet"):
        (killed / name).unlink()
    run = store.read_json(whole / "run.json", Run)
    store.write_json(killed / "run.json", run.model_copy(update={"status": "running"}))
    lines = (whole / "samples.jsonl").read_text().splitlines(keepends=True)
    (killed / "samples.jsonl").write_text("".join(lines[40:10:-1]) + lines[5][:30])
    made(skilled_base, killed)
    for name in NAMES:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    assert ids(killed) == ids(whole)
    assert [r.start for r in store.read_json(killed / "run.json", Run).resumptions] == ["31 samples"]
    # what is recorded is not made again: an edited line stays
    (killed / "data.json").unlink()
    store.write_json(killed / "run.json", run.model_copy(update={"status": "running"}))
    edited = json.loads(lines[7]) | {"tokens": 47_000}
    (killed / "samples.jsonl").write_text("".join(lines[:7]) + json.dumps(edited) + "\n")
    made(skilled_base, killed)
    assert [s.tokens for s in store.read(killed / "samples.jsonl", ReachSample)].count(47_000) == 1


def test_another_draw_in_the_same_folder_is_refused(skilled_base: Path, tmp_path: Path) -> None:
    made(skilled_base, tmp_path / "out", draw=2)
    with pytest.raises(BadInput, match="another run") as e:
        made(skilled_base, tmp_path / "out", draw=3)
    assert e.value.found == "within_reach.draw: 2 there, 3 now"


def test_a_command_without_the_flag_leaves_the_samples_to_their_own(skilled_base: Path, tmp_path: Path) -> None:
    made(skilled_base, tmp_path / "out", draw=2)
    run = store.read_json(tmp_path / "out" / "run.json", Run).model_copy(update={"status": "interrupted"})
    store.write_json(tmp_path / "out" / "run.json", run)
    with pytest.raises(BadInput, match="another run"):
        prepare(str(skilled_base / "data" / "train.parquet"), tmp_path, tmp_path / "out")
    assert store.read_json(tmp_path / "out" / "run.json", Run) == run


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("what", ["longer than the model can see", "no chat_template"])
def test_what_the_model_cannot_take_is_refused_before_it_is_loaded(
    what: str, dry_run: bool, skilled_base: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(skilled_base / "model", model)
    if "template" in what:
        (model / "chat_template.jinja").unlink()
    (model / "model.safetensors").write_bytes(b"damaged")
    asked = {"within_reach": str(model), "draw": 2, "max_tokens": 100_000 if "longer" in what else 48}
    with pytest.raises(BadInput, match=what):
        prepare(str(skilled_base / "data" / "train.parquet"), tmp_path, tmp_path / "out", **asked, dry_run=dry_run)
    assert not (tmp_path / "out" / "run.json").exists()


@pytest.mark.parametrize("number", ["draw", "samples", "max_tokens"])
def test_numbers_that_decide_nothing_are_refused_by_flag(number: str, skilled_base: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"--{number.replace('_', '-')}"):
        made(skilled_base, tmp_path / "out", **{number: 0})
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_how_much_and_writes_nothing(skilled_base: Path, tmp_path: Path, capsys) -> None:
    model, given = str(skilled_base / "model"), str(skilled_base / "data" / "train.parquet")
    assert prepare(given, tmp_path, tmp_path / "out", within_reach=model, draw=10, dry_run=True) is None
    assert "40 samples of at most 512 tokens, about 15,360 tokens" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_levels_and_golds_of_math_are_read_from_its_columns(tmp_path: Path) -> None:
    rows = [
        {
            "problem": f"Problem {i}",
            "level": level,
            "type": "Algebra",
            "solution": rf"So \boxed{{1}} or $\boxed{{{i}}}$.",
        }
        for i, level in enumerate(["Level 1", "Level 5", "Level ?", "Level 3"])
    ]
    given = str(parquet(tmp_path / "math.parquet", rows))
    assert [(r.golds, r.level) for r in source.read(source.find(given))] == [
        (("0",), "1"), (("1",), "5"), (("2",), ""), (("3",), "3")]  # fmt: skip
    record = prepare(given, tmp_path, tmp_path / "out", levels=(1, 3))
    assert record is not None
    assert (record.train.prompts, record.counts["level_dropped"]) == (2, 2)


def test_the_validation_is_a_part_of_a_benchmark(tmp_path: Path) -> None:
    given = str(jsonl(tmp_path / "set.jsonl", [{"problem": "1+1", "answer": "2"}]))
    record = prepare(given, tmp_path, tmp_path / "out", validation="aime24:4")
    assert record is not None
    rows = pq.read_table(tmp_path / "out" / "val.parquet").to_pylist()
    assert [r["extra_info"]["problem_id"] for r in rows] == ["t0", "t2", "t5", "t7"]
    for wrong in ("amc24", "aime24:11", "aime24:x", "aime24:0"):
        with pytest.raises(BadInput) as e:
            prepare(given, tmp_path, tmp_path / "no", validation=wrong)
        assert e.value.found == wrong
