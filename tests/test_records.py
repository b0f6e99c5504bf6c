"""Broken, foreign, duplicated and contradictory records: refused or reported by file and line, no number changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic_records as synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stapo_repro import paper
from stapo_repro.read import load_cells, load_training_runs
from stapo_repro.table.build import build
from stapo_repro.testbed import claims, pages
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import StepMetrics
from stapo_results.store import append


def record(root: Path, verdicts: tuple[str, ...] = ("10", "11"), **changed) -> Path:
    return synthetic.cell(root, "stapo", "mini-add", "t1.0", list(verdicts), **changed)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"schema_version": 1', '"schema_version": 2', "another schema version"),
        ('"verdicts": "11"', '"verdicts": "1x"', "problems.1.verdicts"),
        ('"n": 2', '"n": "two"', "n: Input should be a valid integer"),
        ('"no_answer": 0', '"no_answer": 0,\n "no_anwser": 1', "no_anwser: Extra inputs"),
        ('"mean_response_tokens": 50.0', '"mean_response_tokens": NaN', "finite number"),
        ('"train_seed": 0,', "", "cell.train_seed: Field required"),
    ],
)
def test_broken_field_is_refused_by_file_and_name(tmp_path, old, new, said):
    path = record(tmp_path)
    edit(path, old, new)
    with pytest.raises(RecordError) as e:
        load_cells([tmp_path])
    assert str(e.value).startswith(f"{path}: ")
    assert said in str(e.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"temperature": 0.7, "top_p": 0.9}, "temperature and top-p of t1.0"),
        ({"top_p": 0.9}, "temperature and top-p of t1.0"),
        ({"miniature": False}, "a record of size mini"),
        ({"size": "qwen3-8b", "miniature": True}, "a record of size qwen3-8b"),
        ({"rows": 1}, "more problems than the benchmark holds"),
        ({"finish_reasons": {"stop": 3}}, "graded samples against finished responses"),
    ],
)
def test_record_that_contradicts_itself_is_refused(tmp_path, changed, said):
    path = record(tmp_path, **changed)
    with pytest.raises(RecordError) as e:
        load_cells([tmp_path])
    assert e.value.what == f"{path}: the record contradicts itself: {said}"


def judged(root: Path, by: str, verdicts: str, rule: str, letters: str) -> None:
    path = record(root, (verdicts,), scored_by=by)
    data = json.loads(path.read_text())
    data["problems"][0] |= {"rule": rule, "judged": letters}
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("by", "verdicts", "fits"),
    [
        # the judge said: correct, incorrect, invalid, nothing, nothing; the rule: no, yes, yes, no, yes
        ("rule+judge", "10001", True),
        ("rule", "01101", True),
        ("rule+judge", "01101", False),
        ("rule", "10001", False),
    ],
)
def test_verdicts_that_do_not_follow_from_rule_and_judge_are_refused(tmp_path, by, verdicts, fits):
    judged(tmp_path, by, verdicts, "01101", "cix..")
    if fits:
        assert len(load_cells([tmp_path])) == 1
    else:
        with pytest.raises(RecordError, match=f"verdicts of q0, scored by {by.replace('+', '.')}"):
            load_cells([tmp_path])


def test_same_record_twice_counts_once_and_both_files_are_named(tmp_path, capsys):
    first, second = record(tmp_path / "a"), record(tmp_path / "b")
    assert len(load_cells([tmp_path / "a", tmp_path / "b"])) == 1
    assert f"same record twice, counted once: {first} and {second}" in capsys.readouterr().err


def test_contradictory_records_are_refused_by_both_files(tmp_path):
    first, second = record(tmp_path / "a"), record(tmp_path / "b", ("10", "01"), run_id="another")
    with pytest.raises(RecordError, match="contradict each other") as e:
        load_cells([tmp_path])
    assert e.value.found == f"other problems in {first} and {second}"


def test_seeds_with_other_gold_answers_are_refused(tmp_path):
    record(tmp_path, seed=0)
    record(tmp_path, seed=1, benchmark_sha256="1" * 64)
    with pytest.raises(RecordError, match="hold different gold answers"):
        build(load_cells([tmp_path]), paper.load())


def test_methods_with_other_gold_answers_are_not_compared(tmp_path):
    record(tmp_path)
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10", "00"], benchmark_sha256="1" * 64)
    found = build(load_cells([tmp_path]), paper.load())
    d = next(
        d for d in found.differences["miniature"] if (d.method, d.benchmark, d.setting) == ("stapo", "mini-add", "t1.0")
    )
    assert (d.status, d.points) == ("other problems", None)
    assert "NOT THE SAME COPY of mini-add: 2 sets of gold answers." in found.sections[0].footnotes


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({"grader": "b"}, "NOT GRADED ALIKE: a; b."),
        ({"max_tokens": 64}, "NOT LIMITED ALIKE: 128 tokens; 64 tokens."),
        ({"judge": "y"}, "NOT JUDGED ALIKE: x; y."),
    ],
)
def test_records_that_were_made_otherwise_are_compared_and_named(tmp_path, changed, note):
    common = {"grader": "a", "judge": "x", "scored_by": "rule+judge"}
    record(tmp_path, **common)
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10", "00"], **{**common, **changed})
    assert note in build(load_cells([tmp_path]), paper.load()).sections[0].footnotes


# The steps of a training.


def step(number: int, attempt: int = 0, reward: float = 0.5, **more: float) -> StepMetrics:
    return StepMetrics(step=number, attempt=attempt, values={"reward": reward, **more})


def training(root: Path, *lines: StepMetrics) -> Path:
    """A training with these lines alone."""
    file = synthetic.training_run(root, "stapo", steps=1) / "metrics.jsonl"
    file.unlink()
    append(file, lines)
    return file


def rewards(root: Path) -> list[tuple[int, float]]:
    (run,) = load_training_runs([root])
    return [(m.step, m.values["reward"]) for m in run.steps]


def test_the_last_attempt_at_a_step_counts(tmp_path, capsys):
    training(tmp_path, step(1), step(2), step(3), step(2, 1, 0.25), step(3, 1), step(2, 2, 0.75))
    assert rewards(tmp_path) == [(1, 0.5), (2, 0.75), (3, 0.5)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("lines", "at", "before", "found"),
    [
        ([step(1), step(2), step(2, 0, 0.75)], 3, 2, "other values of reward"),
        ([step(1, entropy=1.0), step(1)], 2, 1, "other values of entropy"),
        ([step(1), step(1, 2, 0.75), step(2), step(1, 1, 0.25)], 4, 2, "attempt 1 here, 2 before it"),
        # as the first line, but a later attempt stands between them
        ([step(1), step(1, 1, 0.75), step(1)], 3, 2, "attempt 0 here, 1 before it"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused_by_both_lines(tmp_path, lines, at, before, found):
    file = training(tmp_path, *lines)
    with pytest.raises(RecordError) as e:
        load_training_runs([tmp_path])
    assert e.value.what == f"{file}:{at}: step {lines[at - 1].step} contradicts {file}:{before}"
    assert found in str(e.value.found)


def test_a_line_that_stands_twice_counts_once_and_is_reported(tmp_path, capsys):
    file = training(tmp_path, step(1), step(2), step(1), step(2))
    assert rewards(tmp_path) == [(1, 0.5), (2, 0.5)]
    assert capsys.readouterr().err == f"same line twice, counted once: {file}, line 3, 4\n"


def damaged(path: Path, data: st.DataObject, read: Callable[[], tuple[str, list]]) -> None:
    """Whatever byte becomes whatever other: refused by file, or the same values, or another stamp."""
    whole = path.read_bytes()
    stamp, before = read()
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    refusal = ""
    try:
        new_stamp, after = read()
    except BadInput as e:
        new_stamp, after, refusal = stamp, before, str(e)
    finally:
        path.write_bytes(whole)
    assert not refusal or str(path) in refusal
    assert after == before or new_stamp != stamp


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_byte_never_changes_a_curve_silently(tmp_path, data):
    def read() -> tuple[str, list]:
        (run,) = runs = load_training_runs([tmp_path])
        parts: dict = {"main": ([], runs), "pilot": ([], []), "long": ([], [])}
        return pages.Testbed(parts, claims.load()).inputs_sha256, run.steps

    damaged(training(tmp_path, step(1), step(2, 0, 0.25), step(2, 1, 0.75), step(3)), data, read)


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_byte_never_changes_a_number_silently(tmp_path, data):
    def read() -> tuple[str, list]:
        t = build(load_cells([tmp_path]), paper.load())
        means = [r.mean for r in t.rows if r.section == "miniature"]
        return t.inputs_sha256, means

    damaged(record(tmp_path, ("10", "11", "00")), data, read)
