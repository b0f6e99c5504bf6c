"""The registry and its loader: identity, variants, entries of a user's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from row_files import jsonl

from stapo_results import benchmarks
from stapo_results.errors import BadInput, meant

ROWS = {"aime24": 30, "aime25": 30, "amc23": 40, "math500": 500, "minerva": 272, "olympiadbench": 674}
N = {"aime24": 32, "aime25": 32, "amc23": 32, "math500": 4, "minerva": 4, "olympiadbench": 4}


def _real() -> Path:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "benchmarks"
    path = Path(os.environ.get("STAPO_DATA_DIR") or beside)
    if not (path / "aime24.jsonl").exists():
        pytest.skip("the six benchmark files are not here (STAPO_DATA_DIR)")
    return path


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    rows = [
        {"id": "a", "problem": "One  plus\none?", "answer": "2"},
        {"id": "b", "problem": "Roots of x^2 = 4?", "answer": ["2", "-2"]},
        {"id": "c", "problem": "Half of 3?", "answer": "$\\frac{3}{2}$"},
    ]
    jsonl(tmp_path / "toy.jsonl", rows)
    entry = benchmarks.registry_entry(tmp_path / "toy.jsonl", "toy", samples=5, answer_type="math", unordered=True)
    benchmarks.write_registry(tmp_path / "registry.yaml", {"toy": entry})
    return tmp_path


def test_the_packaged_registry_is_the_papers() -> None:
    specs = benchmarks.registry()
    assert {k: s.rows for k, s in specs.items()} == ROWS
    assert {k: s.samples for k, s in specs.items()} == N
    assert all(len(s.text_hashes.split()) == s.rows for s in specs.values())


def test_the_golds_hash_is_that_of_the_sorted_normal_forms() -> None:
    # printf '17\n204' | sha256sum
    expected = "0b8be3b9ffd5be736899a21e0e50478b671150db3934c8e13ca0aa60694a569e"
    assert benchmarks.golds_sha256(["$204$", r"\boxed{17}"]) == expected


@given(st.data())
def test_the_golds_hash_knows_the_multiset_and_nothing_else(data: st.DataObject) -> None:
    golds = data.draw(st.lists(st.text("0123456789abc+-", min_size=1, max_size=4), min_size=1, max_size=8))
    wraps = [r"\boxed{%s}", "$%s$", " %s ", "%s.", r"$\boxed{ %s }$"]
    copy = [data.draw(st.sampled_from(wraps)) % g for g in data.draw(st.permutations(golds))]
    assert benchmarks.golds_sha256(copy) == benchmarks.golds_sha256(golds)
    at = data.draw(st.integers(0, len(golds) - 1))
    changed = [*golds[:at], golds[at] + "7", *golds[at + 1 :]]
    assert benchmarks.golds_sha256(changed) != benchmarks.golds_sha256(golds)
    assert benchmarks.golds_sha256([*golds, golds[at]]) != benchmarks.golds_sha256(golds)


def test_a_copy_with_other_rows_or_golds_is_refused_with_both_values(toy: Path) -> None:
    whole = (toy / "toy.jsonl").read_text()
    (toy / "toy.jsonl").write_text(whole.replace('"answer": "2"', '"answer": "3"'))
    with pytest.raises(BadInput) as e:
        benchmarks.load("toy", toy)
    assert "sha256" in str(e.value.found)
    (toy / "toy.jsonl").write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(BadInput, match="toy") as e:
        benchmarks.load("toy", toy)
    assert ("rows 2" in str(e.value.found), "rows 3" in str(e.value.expected)) == (True, True)
    assert benchmarks.load("toy", toy, accept_variant=True).variant.startswith("rows 2 instead of 3; gold")


def test_golds_that_were_exchanged_are_refused(toy: Path) -> None:
    whole = (toy / "toy.jsonl").read_text()
    swapped = whole.replace('"answer": "2"', '"answer": "HALF"').replace('"$\\\\frac{3}{2}$"', '"2"')
    (toy / "toy.jsonl").write_text(swapped.replace('"HALF"', '"$\\\\frac{3}{2}$"'))
    with pytest.raises(BadInput) as e:
        benchmarks.load("toy", toy)
    assert str(e.value.found).startswith("problems with their answers (sha256)")


def test_a_changed_text_is_named_and_white_space_is_no_change(toy: Path) -> None:
    text = (toy / "toy.jsonl").read_text().replace("Half of 3?", "Half of three?").replace("One  plus", "One plus")
    (toy / "toy.jsonl").write_text(text)
    assert benchmarks.load("toy", toy).text_variants == ("c",)
    with pytest.raises(BadInput):
        benchmarks.load("toy", toy, strict=True)
    assert benchmarks.text_hash("caf\u00e9  is\nopen ") == benchmarks.text_hash("cafe\u0301 is open")


def test_a_copy_without_ids_gets_those_of_the_registry_in_any_order(toy: Path) -> None:
    rows = [json.loads(x) for x in (toy / "toy.jsonl").read_text().splitlines()]
    for r in rows:
        del r["id"]
    rows.reverse()
    rows[1]["problem"] = "Another text"
    jsonl(toy / "toy.jsonl", rows)
    b = benchmarks.load("toy", toy)
    assert [p.id for p in b.problems] == ["toy-0002", "toy-0001", "toy-0000"]
    assert b.text_variants == ("toy-0001",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "a", "problem": "x"}\n', "no answer"),
        ('{"id": "a", "problem": 3, "answer": "x"}\n', "row 1: no problem"),
        ('{"id": "a", "problem": "x", "answer": "48/2 = 24\\n#### 24"}\n', "row 1: the answer is a worked solution"),
        ('{"id": "a", "problem": "x", "answer": "1", "tolerance": true}\n', "no tolerance"),
        ('{"id": "a", "problem": "x", "answer": NaN}\n', "answer"),
        ('{"id": "a", "problem": "x", "answer": "1"}\n{"id": "a", "problem": "y", "answer": "1"}\n', "duplicate ids"),
    ],
)
def test_broken_files_are_named(toy: Path, content: str, message: str) -> None:
    (toy / "toy.jsonl").write_text(content)
    with pytest.raises(BadInput, match=r"toy\.jsonl") as e:
        benchmarks.load("toy", toy)
    assert message in str(e.value)


def test_a_directory_cannot_change_a_packaged_benchmark_and_a_broken_registry_is_named(toy: Path) -> None:
    raw = yaml.safe_load((toy / "registry.yaml").read_text())
    raw["benchmarks"]["aime24"] = raw["benchmarks"].pop("toy")
    (toy / "registry.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(BadInput) as e:
        benchmarks.registry(toy)
    assert e.value.found == "aime24"
    for data in (b"schema_version: 2\nbenchmarks: {}\n", b"a: [\n", b"a: \xff\n"):
        (toy / "registry.yaml").write_bytes(data)
        with pytest.raises(BadInput, match=r"registry\.yaml"):
            benchmarks.registry(toy)


@pytest.mark.data
@pytest.mark.parametrize("name", ROWS)
def test_the_real_files_load(name: str) -> None:
    b = benchmarks.load(name, _real())
    assert len(b.problems) == ROWS[name]
    assert b.problems[0].id == f"{name}-0000"


def test_case_and_hyphens_of_a_name_do_not_count_and_the_nearest_is_suggested(toy: Path) -> None:
    assert benchmarks.load("To-Y", toy).name == "toy"
    known = benchmarks.registry()
    assert [meant("benchmark", x, known, "") for x in ("AIME 25", "MATH-500")] == ["aime25", "math500"]
    with pytest.raises(BadInput) as e:
        benchmarks.load("MATH50", toy)
    assert e.value.found == "MATH50"
    assert e.value.next_step.startswith("math500")


@pytest.mark.parametrize("line", ["{", "[1]", '{"a": ' + "[" * 100_000])
def test_a_line_that_is_no_object_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"id": "a"}\n' + line)
    with pytest.raises(BadInput, match=r"own\.jsonl:2 is not a JSON object"):
        benchmarks.read_jsonl(tmp_path / "own.jsonl")
