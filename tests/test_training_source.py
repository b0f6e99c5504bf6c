"""stapo-train data: wrappers, copies, conflicts, languages; damaged and hostile sources; the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompt_sets import BOXED, PREFIX, SUFFIX, flat, hub, jsonl, parquet, read

from stapo_results.errors import BadInput
from stapo_training.data import source

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
    ("golds", "conflicting"),
    [(["1/2", "1/2"], False), (["1/2", "$1 / 2$"], False), (["12", "-12"], True), (["2", "2", "3"], True)],
)
def test_golds_conflict_when_their_normal_forms_differ(tmp_path: Path, golds: list[str], conflicting: bool) -> None:
    (prompt,) = source.distinct(read(jsonl(tmp_path / "x.jsonl", [flat("x?", g) for g in golds])))
    assert prompt.conflicting is conflicting
    assert prompt.gold == golds[0]


def test_golds_that_a_merged_copy_lists_as_conflicting_conflict(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "x.jsonl", [flat("x?", "64", conflicting_answers=["6"]), flat("y?", "1")])
    assert [p.conflicting for p in source.distinct(read(path))] == [True, False]


def test_a_problem_id_depends_on_the_text_alone() -> None:
    # printf 'What is 2+2?' | sha256sum
    assert source.Prompt("What  is\n2+2?", 7, "x").problem_id == "dapo-52cb6b5e4a03"


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
    for path in (cut, parquet(tmp_path / "other.parquet", [{"question": "x?"}]), tmp_path / "empty.jsonl"):
        with pytest.raises(BadInput, match=path.name):
            read(path)
    for missing in ("nothing.jsonl", "./no/folder", "word"):
        with pytest.raises(BadInput) as e:
            source.find(missing)
        assert e.value.found == missing


def test_a_parquet_file_with_a_flipped_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    pq.write_table(pa.Table.from_pylist([hub(f"Problem {i}?") for i in range(500)]), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[300:900] = bytes(600)
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"damaged after row 0"):
        read(path)


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
    code = "from stapo_training.data.source import *; s = find('me/prompts'); print(s.revision, next(read(s)).prompt)"
    assert _offline(tmp_path, "-c", code).stdout == f"{commit} x?\n"
    parquet(folder / "more.parquet", [hub("y?")])
    assert "is not one file" in _offline(tmp_path, "-c", code).stderr
