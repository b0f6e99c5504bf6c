"""stapo-train data: wrappers, copies, conflicts, languages; damaged and hostile sources; the hub."""

from __future__ import annotations

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
    with pytest.raises(BadInput, match=r"half\.parquet, row 2: not a problem in DAPO's whole wrapper"):
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
    ("second", "said"),
    [
        ('{"problem": "x?"}\n', r"answer is not text"),
        ('{"problem": "x?", "answer": 1}\n', r"answer is not text or is empty"),
        ('{"problem": "x?\\ud800", "answer": "1"}\n', r"problem is not valid Unicode"),
        ('{"problem": "x?", "answer": "1", "conflicting_answers": "2"}\n', r"conflicting_answers is not a list"),
        ('{"problem": "x?", "answer": "1", "id": "a"}\n', r"an id stands on two problems"),
        ('{"problem": "x?", "answ', r"is not a JSON line"),
        ('["x?", "1"]\n', r"is not an object"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, second: str, said: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"problem": "fine?", "answer": "1", "id": "a"}\n' + second)
    with pytest.raises(BadInput) as e:
        source.distinct(read(path))
    assert f"{path}:2" in str(e.value)
    assert said in str(e.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (hub("  "), "the prompt is not text or is empty"),
        ({**hub("x?"), "prompt": []}, "the prompt is not one user message"),
        ({**hub("x?"), "reward_model": None}, "reward_model is not an object"),
        (hub("x?", None), "reward_model.ground_truth is not text or is empty"),
    ],
)
def test_a_damaged_row_of_the_hubs_form_is_named(tmp_path: Path, row: dict, said: str) -> None:
    path = parquet(tmp_path / "set.parquet", [hub("fine?"), hub("fine too?"), row])
    with pytest.raises(BadInput) as e:
        read(path)
    assert f"{path}, row 3: " in str(e.value)
    assert said in str(e.value)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    cut = parquet(tmp_path / "cut.parquet", [hub("x?")])
    cut.write_bytes(cut.read_bytes()[:-10])
    other = parquet(tmp_path / "other.parquet", [{"question": "x?"}])
    (tmp_path / "empty.jsonl").write_text("")
    for path, said in ((cut, "is not a Parquet file"), (other, "not the columns of a prompt set"),
                       (tmp_path / "empty.jsonl", "holds no row")):  # fmt: skip
        with pytest.raises(BadInput, match=said) as e:
            read(path)
        assert path.name in str(e.value)
    for missing in ("nothing.jsonl", "./no/folder", "word"):
        with pytest.raises(BadInput, match="the source is not there"):
            source.find(missing)


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
    assert "BadInput: the dataset BytedTsinghua-SIA/DAPO-Math-17k could not be loaded from the hub" in done.stderr
    assert "download the file and give --source FILE" in done.stderr


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
