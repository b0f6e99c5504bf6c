"""stapo-train data: the prepared folder, contamination, what reads it; the real files (marker data)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prompt_sets import BOXED, LONG, PREFIX, SUFFIX, flat, hub, jsonl, parquet

from stapo_results import benchmarks, store
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from stapo_training import cli
from stapo_training.data import contamination, source
from stapo_training.data.prepare import prepare
from stapo_training.data.rows import DataRecord, content_sha256


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A benchmark folder of our own: one problem that stands in `SOURCE` whole, one by its beginning, one not."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    jsonl(
        folder / "toy.jsonl",
        [
            {"id": "t0", "problem": r"What is $\left(1+1\right)$?", "answer": "2"},
            {"id": "t1", "problem": LONG + " Find $a_5$.", "answer": "7"},
            {"id": "t2", "problem": "What is $1 + 10$?", "answer": "11"},
        ],
    )
    entry = benchmarks.registry_entry(folder / "toy.jsonl", "toy", title="Toy")
    benchmarks.write_registry(folder / "registry.yaml", {"toy": entry})
    return folder


SOURCE = [
    flat("What is $(1 + 1)$?", "2", id="a"),
    flat("Name a prime.", "2", id="b"),
    flat("Name  a\nprime.", "3", id="c"),
    flat("求和 $3+4$", "7", id="d"),
    flat(LONG + " Find $a_6$.", "10", id="e"),
    flat("What is $2+3$?", "5", id="f"),
    flat("What is $2+3$? ", "5", id="g"),
]


def prepared(given: Path, toy: Path, out: Path, **options) -> DataRecord:
    return prepare(str(given), toy, out, validation="toy", names=["toy"], **options)


def problems(out: Path) -> list[str]:
    rows = pq.read_table(out / "train.parquet").to_pylist()
    return [r["prompt"][0]["content"].removesuffix(BOXED) for r in rows]


# ---- contamination


def test_the_key_of_a_text_by_hand() -> None:
    assert contamination.key(r"If $\displaystyle\dfrac{1}{2}+\left(\tfrac{3}{4}\right)\leftarrow$ É 数 X") == (
        "if1234leftarrowx"
    )
    assert contamination.key(r"\frac12") == "frac12"


@pytest.mark.parametrize(
    ("training", "benchmark", "kind"),
    [
        ("A" * 119 + "!", "a" * 119, "whole"),
        ("a" * 120 + "b", "a" * 120 + "c", "prefix"),
        ("a" * 120, "a" * 120 + "c", "prefix"),
        ("a" * 119, "a" * 120, None),
        ("a" * 119 + "b", "a" * 119 + "c", None),
        ("数学", "？", None),  # both keys are empty
    ],
)
def test_when_a_benchmark_problem_counts(training: str, benchmark: str, kind: str | None) -> None:
    spec = benchmarks.registry()["aime24"]
    problem = benchmarks.Problem(id="p", problem=benchmark, answer="1")
    one = benchmarks.Benchmark("b", spec, (problem,), benchmarks.Identity(1, "", "", ()), "")
    prompt = source.Prompt(training, 5, "s")
    reports = contamination.find([prompt], {"b": one})
    row = {"problem_id": prompt.problem_id, "row": 5, "source_id": "s", "kind": kind}
    assert reports["b"]["matches"] == ([{"problem_id": "p", "kind": kind, "rows": [row]}] if kind else [])
    assert contamination.matched_ids(reports) == ({prompt.problem_id} if kind else set())


# ---- the folder


def test_the_content_hash_is_that_of_canonical_rows() -> None:
    # printf '{"a":1,"b":"é"}\n{"a":2,"b":""}\n' | sha256sum
    assert (
        content_sha256([{"b": "é", "a": 1}, {"a": 2, "b": ""}])
        == "5996566d3c1f2fe58390c993322f1b4d1e699d4dbc448824697ee57ed106d862"
    )


def test_a_prepared_folder(tmp_path: Path, toy: Path) -> None:
    out = tmp_path / "out"
    record = prepared(jsonl(tmp_path / "set.jsonl", SOURCE), toy, out)
    assert record.counts == {
        "distinct": 5, "copies_dropped": 2, "conflicts_dropped": 1, "language_dropped": 0, "contaminated": 2,
        "contaminated_dropped": 0}  # fmt: skip
    assert problems(out) == ["What is $(1 + 1)$?", "求和 $3+4$", SOURCE[4]["problem"], "What is $2+3$?"]
    assert pq.read_table(out / "train.parquet").to_pylist()[3] == {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "What is $2+3$?" + BOXED}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"split": "train", "index": 3, "problem_id": source.Prompt("What is $2+3$?", 0, "").problem_id},
    }
    assert pq.read_table(out / "val.parquet").to_pylist()[1] == {
        "data_source": "toy",
        "prompt": [{"role": "user", "content": LONG + " Find $a_5$." + BOXED}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"split": "val", "index": 1, "problem_id": "t1"},
    }
    (conflict,) = [json.loads(x) for x in (out / "conflicts.jsonl").read_text().splitlines()]
    assert conflict["golds"] == [{"gold": "2", "row": 2}, {"gold": "3", "row": 3}]
    assert conflict["problem"] == "Name a prime."
    report = json.loads((out / "contamination.json").read_text())["benchmarks"]["toy"]
    assert (report["contaminated"], report["whole"], report["prefix"]) == (2, 1, 1)
    assert [(m["problem_id"], m["kind"], m["rows"][0]["source_id"]) for m in report["matches"]] == [
        ("t0", "whole", "a"), ("t1", "prefix", "e")]  # fmt: skip
    run = store.read_json(out / "run.json", Run)
    assert (run.kind, run.status, run.revisions["set.jsonl"]) == ("data", "done", record.source.sha256)
    assert store.read_json(out / "data.json", DataRecord) == record


def test_contaminated_prompts_and_other_languages_are_left_out_when_asked(tmp_path: Path, toy: Path) -> None:
    given = jsonl(tmp_path / "set.jsonl", SOURCE)
    record = prepared(given, toy, tmp_path / "out", exclude_contaminated=True, language="en")
    assert problems(tmp_path / "out") == ["What is $2+3$?"]
    assert (record.counts["language_dropped"], record.counts["contaminated_dropped"]) == (1, 2)
    assert record.contamination == {"toy": 2}
    with pytest.raises(BadInput, match="no prompt is left"):
        prepared(jsonl(tmp_path / "one.jsonl", SOURCE[:1]), toy, tmp_path / "none", exclude_contaminated=True)
    assert not (tmp_path / "none").exists()


def test_form_and_writer_of_the_source_do_not_change_the_content(tmp_path: Path, toy: Path) -> None:
    wrapped = [hub(PREFIX + r["problem"] + SUFFIX, r["answer"]) for r in SOURCE] * 3
    records = [
        prepared(path, toy, tmp_path / path.stem)
        for path in (jsonl(tmp_path / "a.jsonl", SOURCE), jsonl(tmp_path / "b.jsonl", wrapped),
                     parquet(tmp_path / "c.parquet", wrapped), parquet(tmp_path / "d.parquet", SOURCE))
    ]  # fmt: skip
    assert {r.train.content_sha256 for r in records} == {records[0].train.content_sha256}
    assert [r.source.rows for r in records] == [7, 21, 21, 7]
    again = prepared(tmp_path / "a" / "train.parquet", toy, tmp_path / "again")
    assert again.train == records[0].train


def test_a_folder_of_other_options_or_with_other_files_is_refused(tmp_path: Path, toy: Path) -> None:
    given, out = jsonl(tmp_path / "set.jsonl", SOURCE), tmp_path / "out"
    prepared(given, toy, out)
    with pytest.raises(BadInput) as e:
        prepared(given, toy, out, language="en")
    assert e.value.found == "language: 'all' there, 'en' now"
    with pytest.raises(BadInput) as e:
        prepared(jsonl(given, SOURCE[:-1]), toy, out)
    assert "revision set.jsonl" in str(e.value.found)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(BadInput, match=r"thesis\.tex"):
        prepared(given, toy, tmp_path / "other")


def test_missing_benchmarks_are_refused_by_name(tmp_path: Path, toy: Path) -> None:
    with pytest.raises(BadInput, match=r"aime24\.jsonl, aime25\.jsonl, amc23\.jsonl"):
        prepare(str(jsonl(tmp_path / "set.jsonl", SOURCE)), toy, tmp_path / "out")


# ---- the real files


def _shared() -> Path:
    beside = Path(__file__).resolve().parents[2] / "shared"
    path = Path(os.environ.get("STAPO_SHARED") or beside) / "data"
    if not (path / "dapo_math_17k.jsonl").exists() or not (path / "benchmarks" / "aime24.jsonl").exists():
        pytest.skip("data/dapo_math_17k.jsonl and data/benchmarks are not here (STAPO_SHARED)")
    return path


@pytest.mark.data
def test_the_contamination_of_dapo_math_17k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, out = _shared(), tmp_path / "out"
    argv = [
        "--source",
        f"{shared / 'dapo_math_17k.jsonl'}",
        "--benchmarks",
        f"{shared / 'benchmarks'}",
        "--out",
        f"{out}",
    ]
    monkeypatch.setattr(sys, "argv", ["stapo-train", "data", *argv, "--exclude-contaminated"])
    assert cli.main() == 0
    record = store.read_json(out / "data.json", DataRecord)
    assert record.contamination == {
        "aime24": 0, "aime25": 0, "amc23": 20, "math500": 12, "minerva": 0, "olympiadbench": 38}  # fmt: skip
    report = json.loads((out / "contamination.json").read_text())
    assert report["benchmarks"]["amc23"]["whole"] == 8
    assert (record.source.rows, record.counts["distinct"], record.counts["conflicts_dropped"]) == (17255, 17188, 12)
    assert (record.counts["contaminated_dropped"], record.train.prompts) == (82, 17094)
    # what was excluded is gone: the training file, prepared again, is clean
    again = prepare(str(out / "train.parquet"), shared / "benchmarks", tmp_path / "again")
    assert set(again.contamination.values()) == {0}
    val = pq.read_table(out / "val.parquet").to_pylist()
    assert (len(val), val[0]["data_source"], val[0]["reward_model"]["ground_truth"]) == (30, "aime24", "204")


@pytest.mark.data
def test_the_language_rule_agrees_with_the_files_own_labels() -> None:
    rows = benchmarks.read_jsonl(_shared() / "dapo_math_17k.jsonl")
    assert [r["id"] for r in rows if source.has_cjk(r["problem"]) != (r["language"] == "zh")] == []
