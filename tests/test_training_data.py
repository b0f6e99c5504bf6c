"""stapo-train data: wrappers, copies, conflicts; damaged and hostile sources; the hub; the folder; contamination.

The last two tests, marker data, take the real files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_files import jsonl, parquet

from stapo_results import benchmarks, store
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from stapo_training import cli
from stapo_training import prepare as prepare_module
from stapo_training.data import contamination, source
from stapo_training.data.options import DataOptions
from stapo_training.data.rows import DataRecord, content_sha256, plain_gold

PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
LONG = (
    "Let $a_n$ be the sequence of positive integers that are neither squares nor cubes " + "and grow without end " * 3
)


def prepare(given: str, benchmark_dir: Path, out: Path, **more: Any) -> Any:
    return prepare_module.prepare(DataOptions(benchmark_dir, out, given, **more))


def flat(problem: object, answer: object = "1", **more: object) -> dict:
    return {"problem": problem, "answer": answer, **more}


def hub(content: object, gold: object = "1", index: str = "u") -> dict:
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": content}],
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"index": index},
    }


def read(path: Path) -> list[source.SourceRow]:
    return list(source.read(source.find(str(path))))


# ---- wrapper, copies, conflicts, language


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PREFIX + "\nTwo lines.\n\nThe second. " + SUFFIX + "\n", "Two lines.\n\nThe second."),
        (" What is 2+2?\n", "What is 2+2?"),
        ("What is 2+2?" + BOXED, "What is 2+2?"),
    ],
)
def test_what_stands_around_a_problem_is_taken_off(text: str, problem: str) -> None:
    assert source.unwrap(text, "x:1") == problem


@pytest.mark.parametrize(
    "text",
    [
        PREFIX + "What is 2+2?",
        "What is 2+2?" + SUFFIX,
        PREFIX + PREFIX + "What is 2+2?" + SUFFIX + SUFFIX,
        PREFIX + " " + SUFFIX,
        BOXED,
        r"What is 2+2? Let's think step by step and output the final answer within \boxed{}.",
        "What is 2+2?" + BOXED.rstrip("."),
    ],
)
def test_half_a_wrapper_or_an_empty_one_is_an_error_that_names_the_row(tmp_path: Path, text: str) -> None:
    path = parquet(tmp_path / "half.parquet", [hub(PREFIX + "Fine?" + SUFFIX), hub(text)])
    with pytest.raises(BadInput, match=r"half\.parquet, row 2: "):
        source.distinct(read(path))


def test_copies_merge_in_order_of_first_occurrence(tmp_path: Path) -> None:
    rows = [hub(PREFIX + p + SUFFIX) for p in ("b?", "a?", "b?", "cafe\u0301", " a?", "caf\u00e9", "b  ?", "b?")]
    found = source.distinct(read(parquet(tmp_path / "x.parquet", rows)))
    assert [(p.problem, p.row, p.copies) for p in found] == [
        ("b?", 1, 3), ("a?", 2, 2), ("cafe\u0301", 4, 2), ("b  ?", 7, 1)]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "conflicting"),
    [
        ([flat("x?", "1/2"), flat("x?", "1/2")], False),
        ([flat("x?", "1/2"), flat("x?", "$1 / 2$")], False),
        ([flat("x?", "12"), flat("x?", "-12")], True),
        ([flat("x?", "64", conflicting_answers=["6"])], True),  # of a copy that was merged before
    ],
)
def test_golds_conflict_when_their_normal_forms_differ(tmp_path: Path, rows: list[dict], conflicting: bool) -> None:
    (prompt,) = source.distinct(read(jsonl(tmp_path / "x.jsonl", rows)))
    assert (prompt.conflicting, prompt.gold) == (conflicting, rows[0]["answer"])


@pytest.mark.parametrize(
    ("gold", "plain"),
    [
        ("$7$", "7"),
        (r"\boxed{9}", "9"),
        (r"$$\boxed{ \frac{1}{2} }.$$", r"\frac{1}{2}"),
        (r"\(3\)", "3"),
        (r"\$18.90", r"\$18.90"),  # dollars, no mathematics
        ("10.0", "10"),
        ("-1,234,000", "-1234000"),
        ("2.50", "2.50"),
        ("12.00", "12.00"),
        ("0,125", "0,125"),  # no thousands
        ("5 p.m.", "5 p.m."),
        ("1,2,3,...", "1,2,3,..."),
        ("3.5.", "3.5"),
        ("[1,2]", "[1,2]"),  # an interval
        (7, "7"),
        (7.0, None),
        (None, None),
        (["0"], None),
        ('["5/6"]', None),
        ("$$", None),
        (r"\frac{1}{2", None),
        (r"\left\{1\right.", None),  # veRL counts escaped braces too
        (r"\boxed{1} or \boxed{2}", None),
    ],
)
def test_a_gold_is_what_the_box_of_a_right_response_holds(gold: object, plain: str | None) -> None:
    from stapo_training.reward import compute_score

    assert plain_gold(gold) == plain
    if plain is not None:
        assert compute_score("d", f"So \\boxed{{{plain}}}.", plain)["score"] == 1.0


@given(st.text(alphabet="1,.0$ a{}\\p[]m", max_size=9))
def test_a_plain_gold_is_plain(gold: str) -> None:
    plain = plain_gold(gold)
    assert plain is None or plain_gold(plain) == plain


def test_a_row_whose_gold_no_response_can_equal_is_named(tmp_path: Path) -> None:
    rows = [flat("x?"), flat("y?", '["5/6"]')]
    with pytest.raises(BadInput, match=r"x\.jsonl:2: a gold") as e:
        read(jsonl(tmp_path / "x.jsonl", rows))
    assert e.value.found == '["5/6"]'
    (merged,) = source.distinct(read(jsonl(tmp_path / "y.jsonl", [flat("x?", "$1,000$"), flat("x?", "1000.0")])))
    assert merged.golds == {"1000": 1}


def test_a_problem_id_depends_on_the_text_alone() -> None:
    # printf 'What is 2+2?' | sha256sum
    assert source.Prompt("What  is\n2+2?", 7, "x").problem_id == "problem-52cb6b5e4a03"


@pytest.mark.parametrize(
    ("text", "cjk"), [("Soit $x$ un réel, α ≤ β…", False), ("求 $x$", True), ("x（1）、", False), ("\uf900", True)]
)
def test_the_language_rule_is_ideographs(text: str, cjk: bool) -> None:
    assert source.has_cjk(text) is cjk


# ---- damaged and hostile files


@pytest.mark.parametrize(
    ("second", "field"),
    [
        ('{"question": "x?"}', "problem"),
        ('{"problem": "x?"}', "answer"),
        ('{"problem": "x?", "answer": 1}', "answer"),
        ('{"problem": "x?\\ud800", "answer": "1"}', "problem"),
        ('{"problem": "x?", "answer": "1", "conflicting_answers": "2"}', "conflicting_answers"),
        ('{"problem": "x?", "answer": "1", "id": "a"}', "an id"),
        ('{"problem": "x?", "answ', ""),
        ('["x?", "1"]', ""),
        (json.dumps(hub("  ")), "prompt.0.content"),
        (json.dumps({**hub("x?"), "prompt": []}), "prompt"),
        (json.dumps({**hub("x?"), "prompt": [{"role": "system", "content": "x?"}]}), "prompt.0.role"),
        (json.dumps({**hub("x?"), "prompt": hub("x?")["prompt"] * 2}), "prompt"),
        (json.dumps({**hub("x?"), "reward_model": None}), "reward_model.ground_truth"),
        (json.dumps(hub("x?", None)), "reward_model.ground_truth"),
    ],
)
def test_a_damaged_row_and_its_field_are_named(tmp_path: Path, second: str, field: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"problem": "fine?", "answer": "1", "id": "a"}\n' + second + "\n")
    with pytest.raises(BadInput) as e:
        source.distinct(read(path))
    assert f"{path}:2{field and ': '}{field} " in e.value.what


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    cut = parquet(tmp_path / "cut.parquet", [hub("x?")])
    cut.write_bytes(cut.read_bytes()[:-10])
    (tmp_path / "empty.jsonl").write_text("")
    flipped = tmp_path / "flipped.parquet"
    pq.write_table(pa.Table.from_pylist([hub(f"Problem {i}?") for i in range(500)]), flipped, compression="zstd")
    flipped.write_bytes((data := flipped.read_bytes())[:300] + bytes(600) + data[900:])  # a page of zeros
    for path in (cut, flipped, parquet(tmp_path / "other.parquet", [{"question": "x?"}]), tmp_path / "empty.jsonl"):
        with pytest.raises(BadInput, match=path.name):
            read(path)
    for missing in ("nothing.jsonl", "./no/folder", "word"):
        with pytest.raises(BadInput) as e:
            source.find(missing)
        assert e.value.found == missing


# ---- the hub


def _offline(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    return subprocess.run([sys.executable, *argv], env=environment, capture_output=True, text=True)


def test_a_hub_that_does_not_answer_is_bad_input(tmp_path: Path) -> None:
    code = "from stapo_training.data.source import *; find(DAPO)"
    done = _offline(tmp_path, "-c", code)
    assert "BadInput: the dataset BytedTsinghua-SIA/DAPO-Math-17k" in done.stderr
    assert "--source FILE" in done.stderr


def test_a_cached_dataset_is_read_offline_and_its_commit_recorded(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "hub" / "datasets--me--prompts"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    folder = repo / "snapshots" / commit / "data"
    folder.mkdir(parents=True)
    parquet(folder / "prompts.parquet", [hub("x?")])
    code = f"""from stapo_training.data.source import *
for revision in (None, "{commit}"):
    s = find("me/prompts", revision)
    print(s.revision, next(read(s)).prompt)"""
    assert _offline(tmp_path, "-c", code).stdout == f"{commit} x?\n" * 2
    parquet(folder / "more.parquet", [hub("y?")])
    assert "is not one file" in _offline(tmp_path, "-c", code).stderr


# ---- a benchmark folder and a source


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark of our own in AIME24's place: `SOURCE` has one problem of it whole, one by its beginning."""
    file = jsonl(
        tmp_path / "toy.jsonl",
        [
            {"id": "t0", "problem": r"What is $\left(1+1\right)$?", "answer": "2"},
            {"id": "t1", "problem": LONG + " Find $a_5$.", "answer": "7"},
            {"id": "t2", "problem": "What is $1 + 10$?", "answer": "11"},
        ],
    )
    benchmarks.write_registry(tmp_path / "registry.yaml", {"toy": benchmarks.registry_entry(file, "toy", title="Toy")})
    loaded = {"aime24": benchmarks.load("toy", tmp_path)}
    monkeypatch.setattr(prepare_module, "_benchmarks", lambda folder: loaded)
    return tmp_path


SOURCE = [
    flat("What is $(1 + 1)$?", "2", id="a"),
    flat("Name a prime.", "2", id="b"),
    flat("Name  a\nprime.", "3", id="c"),
    flat("求和 $3+4$", "7", id="d"),
    flat(LONG + " Find $a_6$.", "10", id="e"),
    flat("What is $2+3$?", "5", id="f"),
    flat("What is $2+3$? ", "5", id="g"),
]


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
    one = benchmarks.Benchmark("b", spec, (problem,), source="", golds_sha256="")
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
    record = prepare(str(jsonl(tmp_path / "set.jsonl", SOURCE)), toy, out)
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
        "data_source": "aime24",
        "prompt": [{"role": "user", "content": LONG + " Find $a_5$." + BOXED}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"split": "val", "index": 1, "problem_id": "t1"},
    }
    (conflict,) = [json.loads(x) for x in (out / "conflicts.jsonl").read_text().splitlines()]
    assert conflict["golds"] == [{"gold": "2", "row": 2}, {"gold": "3", "row": 3}]
    assert conflict["problem"] == "Name a prime."
    report = json.loads((out / "contamination.json").read_text())["benchmarks"]["aime24"]
    assert (report["contaminated"], report["whole"], report["prefix"]) == (2, 1, 1)
    assert [(m["problem_id"], m["kind"], m["rows"][0]["source_id"]) for m in report["matches"]] == [
        ("t0", "whole", "a"), ("t1", "prefix", "e")]  # fmt: skip
    run = store.read_json(out / "run.json", Run)
    assert (run.kind, run.status, run.revisions["set.jsonl"]) == ("data", "done", record.source.sha256)
    assert store.read_json(out / "data.json", DataRecord) == record


def test_contaminated_prompts_and_other_languages_are_left_out_when_asked(tmp_path: Path, toy: Path) -> None:
    given = jsonl(tmp_path / "set.jsonl", SOURCE)
    record = prepare(str(given), toy, tmp_path / "out", exclude_contaminated=True, language="en")
    assert problems(tmp_path / "out") == ["What is $2+3$?"]
    assert (record.counts["language_dropped"], record.counts["contaminated_dropped"]) == (1, 2)
    assert record.contamination == {"aime24": 2}
    with pytest.raises(BadInput, match="no prompt is left"):
        prepare(str(jsonl(tmp_path / "one.jsonl", SOURCE[:1])), toy, tmp_path / "none", exclude_contaminated=True)
    assert not (tmp_path / "none" / "data.json").exists()


def test_listed_problems_alone_are_taken_in_the_sources_order(tmp_path: Path, toy: Path) -> None:
    given, listed = str(jsonl(tmp_path / "set.jsonl", SOURCE)), tmp_path / "problems.txt"
    ids = [source.Prompt(text, 0, "").problem_id for text in ("What is $2+3$?", "求和 $3+4$")]
    listed.write_text("\n".join(ids) + "\n")
    record = prepare(given, toy, tmp_path / "out", problems=listed)
    assert problems(tmp_path / "out") == ["求和 $3+4$", "What is $2+3$?"]
    assert record.counts["not_listed"] == 2
    listed.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(ids[::-1]).encode())  # another order and editor, the same list
    assert prepare(given, toy, tmp_path / "out", problems=listed) == record
    conflicting = source.Prompt("Name a prime.", 0, "").problem_id
    for content, found in (
        (f"{ids[0]}\nproblem-0\n".encode(), "1 of 2, the first: problem-0"),
        (conflicting.encode(), f"1 of 1, the first: {conflicting}"),
        (b"\n", "lists no problems"),
        (b"\xff\xfe", "decode"),
    ):
        listed.write_bytes(content)
        with pytest.raises(BadInput, match=found):
            prepare(given, toy, tmp_path / "other", problems=listed)
    assert not (tmp_path / "other" / "run.json").exists()  # another list may follow
    with pytest.raises(BadInput, match="No such file"):
        prepare(given, toy, tmp_path / "other", problems=tmp_path / "none.txt")


def test_form_and_writer_of_the_source_do_not_change_the_content(tmp_path: Path, toy: Path) -> None:
    wrapped = [hub(PREFIX + r["problem"] + SUFFIX, r["answer"]) for r in SOURCE] * 3
    records = [
        prepare(str(path), toy, tmp_path / path.stem)
        for path in (jsonl(tmp_path / "a.jsonl", SOURCE), jsonl(tmp_path / "b.jsonl", wrapped),
                     parquet(tmp_path / "c.parquet", wrapped), parquet(tmp_path / "d.parquet", SOURCE))
    ]  # fmt: skip
    assert {r.train.content_sha256 for r in records} == {records[0].train.content_sha256}
    assert [r.source.rows for r in records] == [7, 21, 21, 7]
    again = prepare(str(tmp_path / "a" / "train.parquet"), toy, tmp_path / "again")
    assert again.train == records[0].train


def test_a_folder_of_other_options_or_with_other_files_is_refused(tmp_path: Path, toy: Path) -> None:
    given, out = jsonl(tmp_path / "set.jsonl", SOURCE), tmp_path / "out"
    prepare(str(given), toy, out)
    with pytest.raises(BadInput) as e:
        prepare(str(given), toy, out, language="en")
    assert e.value.found == "language: 'all' there, 'en' now"
    with pytest.raises(BadInput) as e:
        prepare(str(jsonl(given, SOURCE[:-1])), toy, out)
    assert "revision set.jsonl" in str(e.value.found)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(BadInput, match=r"thesis\.tex"):
        prepare(str(given), toy, tmp_path / "other")


def test_a_folder_that_is_not_whole_any_more_is_made_again(tmp_path: Path, toy: Path) -> None:
    given, out = str(jsonl(tmp_path / "set.jsonl", SOURCE)), tmp_path / "out"
    record = prepare(given, toy, out)
    (out / "train.parquet").write_bytes((out / "train.parquet").read_bytes()[:100])
    assert prepare(given, toy, out) == record
    assert len(problems(out)) == record.train.prompts


def test_other_texts_of_a_benchmark_are_another_preparation(tmp_path: Path, toy: Path, monkeypatch, capsys) -> None:
    given, out = str(jsonl(tmp_path / "set.jsonl", SOURCE)), tmp_path / "out"
    prepare(given, toy, out)
    file = toy / "toy.jsonl"
    file.write_text(file.read_text().replace("1 + 10", "1 + 11"))
    changed = {"aime24": benchmarks.load("toy", toy)}
    monkeypatch.setattr(prepare_module, "_benchmarks", lambda folder: changed)
    with pytest.raises(BadInput, match="texts of aime24"):
        prepare(given, toy, out)
    prepare(given, toy, tmp_path / "other")
    assert "1 problem texts differ" in capsys.readouterr().out


@pytest.mark.parametrize(("more", "said"), [
    ({"draw": 9}, "nothing is sampled"), ({"revision": "main"}, "no revision"), ({"levels": (8, 9)}, "such a level"),
])  # fmt: skip
def test_options_that_nothing_reads_are_refused(tmp_path: Path, toy: Path, more: dict, said: str) -> None:
    given = jsonl(tmp_path / "set.jsonl", [flat("What is $1+1$?", "2", level="Level 1")])
    with pytest.raises(BadInput, match=said):
        prepare(str(given), toy, tmp_path / "out", **more)


def test_missing_benchmarks_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"aime24\.jsonl, aime25\.jsonl, amc23\.jsonl"):
        prepare(str(jsonl(tmp_path / "set.jsonl", SOURCE)), tmp_path, tmp_path / "out")


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
    argv = f"--source={shared}/dapo_math_17k.jsonl --benchmarks={shared}/benchmarks --out={out} --exclude-contaminated"
    monkeypatch.setattr(sys, "argv", ["stapo-train", "data", *argv.split()])
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
