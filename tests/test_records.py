"""Broken, duplicated, contradictory and cut records: refused or reported by file and line, no number changes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic_records as synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stapo_repro import paper
from stapo_repro.collect import laid_over
from stapo_repro.read import check_found, load_cells, load_training_runs
from stapo_repro.table.build import Table
from stapo_repro.table.build import build as build_table
from stapo_repro.table.write import to_markdown
from stapo_repro.text import rounded
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Cut, Run, StepMetrics
from stapo_results.store import append, find_whole, read_json, write_json


def record(root: Path, verdicts: tuple[str, ...] = ("10", "11"), method: str = "stapo", **changed) -> Path:
    return synthetic.cell(root, method, "mini-add", "t1.0", list(verdicts), **changed)


@pytest.mark.parametrize(("old", "new", "field"), [
    ('"verdicts": "11"', '"verdicts": "1x"', "problems.1.verdicts"),
    ('"train_seed": 0,', "", "cell.train_seed"),
])  # fmt: skip
def test_broken_field_is_refused_by_file_and_name(tmp_path, old, new, field):
    path = record(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(RecordError, match=field) as e:
        load_cells([tmp_path])
    assert str(e.value).startswith(f"{path}: ")


@pytest.mark.parametrize(("changed", "said"), [
    ({"top_p": 0.9}, "top-p, top-k and min-p of t1.0"),
    ({"top_k": 20}, "top-p, top-k and min-p of t1.0"),
    ({"by_verdict": {"correct": {"responses": 3, "truncated": 1}, "incorrect": {"responses": 1, "truncated": 0}}},
     "truncated against those that met the limit"),
    ({"problems": [{"problem_id": "q0", "verdicts": "10", "judged": ".c"}], "rows": 2, "finish_reasons": {"stop": 2}},
     "judged verdicts of q0"),
    ({"miniature": False}, "size mini"),
    ({"rows": 1}, "more problems"),
    ({"finish_reasons": {"stop": 3}}, "finished responses"),
])  # fmt: skip
def test_record_that_contradicts_itself_is_refused(tmp_path, changed, said):
    path = record(tmp_path, **changed)
    with pytest.raises(RecordError, match=said) as e:
        load_cells([tmp_path])
    assert str(path) in e.value.what


def test_one_label_is_one_model(tmp_path: Path) -> None:
    """Of what an endpoint serves the weights are not known."""
    weights = ["c0ffee weights sha256:aa", "weights sha256:aa", "stapo as an endpoint serves it", "weights sha256:bb"]
    benchmarks = ["mini-add", "mini-add-hard", "mini-mul", "mini-sub"]
    for benchmark, revision in zip(benchmarks, weights, strict=True):
        load_cells([tmp_path])
        synthetic.cell(tmp_path, "stapo", benchmark, "t1.0", ["1"], folder=benchmark, revisions={"model": revision})
    with pytest.raises(RecordError, match="is two models"):
        load_cells([tmp_path])


def test_records_behind_a_link_count_once(tmp_path: Path) -> None:
    record(tmp_path / "scratch")
    (root := tmp_path / "records").mkdir()
    (root / "stapo-s0").symlink_to(tmp_path / "scratch" / "stapo-s0")
    (root / "stapo-s0" / "back").symlink_to(root)
    (root / "a-link").symlink_to(root / "stapo-s0")  # in order before what it leads to
    assert [c.path.split("/")[0] for c in load_cells([root])] == ["a-link"]
    (root / "own").mkdir()
    record(root / "own", seed=1)
    (root / "a-second").symlink_to(root / "own" / "stapo-s1")
    assert [c.path.split("/")[0] for c in load_cells([root])] == ["a-link", "own"]


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(top: Path, onerror: Callable[[OSError], None], **_: object) -> None:
        onerror(PermissionError(13, "denied", str(top)))

    monkeypatch.setattr(os, "walk", denied)
    with pytest.raises(BadInput, match="cannot be read"):
        load_cells([tmp_path])


def test_every_folder_named_has_records(tmp_path: Path) -> None:
    record(tmp_path / "eval")
    synthetic.training_run(tmp_path / "train", "stapo")
    (empty := tmp_path / "empty").mkdir()
    check_found([tmp_path / "eval", tmp_path / "train"], evaluated=True)  # as the driver names them
    for roots in ([tmp_path / "eval", empty], [tmp_path / "train"]):
        with pytest.raises(BadInput, match="no records") as e:
            check_found(roots, evaluated=True)
        assert e.value.found == str(roots[-1])
    check_found([tmp_path / "train"])


def test_a_copy_of_a_training_counts_once(tmp_path: Path, capsys) -> None:
    synthetic.training_run(tmp_path, "stapo")
    shutil.copytree(tmp_path / "stapo-s0", tmp_path / "copy")
    assert len(load_training_runs([tmp_path])) == 1
    assert "counted once" in capsys.readouterr().err


# the judge said: correct, incorrect, invalid, nothing, nothing; the rule: no, yes, yes, no, yes
@pytest.mark.parametrize(("by", "follows"), [("rule+judge", "10001"), ("rule", "01101")])
@pytest.mark.parametrize("verdicts", ["10001", "01101"])
def test_verdicts_that_do_not_follow_from_rule_and_judge_are_refused(tmp_path, by, follows, verdicts):
    path = record(tmp_path, (verdicts,), scored_by=by)
    data = json.loads(path.read_text())
    data["problems"][0] |= {"rule": "01101", "judged": "cix.."}
    path.write_text(json.dumps(data))
    if verdicts == follows:
        assert len(load_cells([tmp_path])) == 1
    else:
        with pytest.raises(RecordError, match="verdicts of q0"):
            load_cells([tmp_path])


def test_same_record_twice_counts_once_and_a_contradiction_is_refused_by_both_files(tmp_path, capsys):
    first, second = record(tmp_path / "a"), record(tmp_path / "b")
    assert len(load_cells([tmp_path])) == 1
    assert f"{first} and {second}" in capsys.readouterr().err
    record(tmp_path / "b", ("10", "01"), run_id="another")
    with pytest.raises(RecordError) as e:
        load_cells([tmp_path])
    assert e.value.found == f"other problems in {first} and {second}"


def row_of(t: Table, method: str) -> str:
    return next(line for line in to_markdown(t, toys=True).splitlines() if line.startswith(f"| {method} |"))


def test_a_column_of_several_engines_says_so_by_cell_and_has_no_best(tmp_path):
    for method, verdicts, engine in (("base", "00", "vllm"), ("stapo", "11", "vllm"), ("justrl", "1-", "hf")):
        record(tmp_path, (verdicts, "11"), method, engine=engine)
    for method, engine in (("base", "hf"), ("stapo", "vllm")):
        synthetic.cell(tmp_path, method, "mini-add-hard", "t1.0", ["10", "11"], engine=engine)
        synthetic.cell(tmp_path, method, "mini-add-hard", "t0.7", ["10", "11"], engine=engine)
    t = build_table(load_cells([tmp_path]), paper.load())
    assert not any(row.best for row in t.rows if row.benchmark == "mini-add")  # JustRL's, which lacks a sample
    assert ["by hf" in row_of(t, m) for m in ("JustRL", "Base model", "STAPO")] == [True, True, False]
    (notes,) = (s.footnotes for s in t.sections if s.id == "miniature")
    assert [n for n in notes if "SAMPLED" in n] == [
        "NOT SAMPLED ALIKE on mini-add at t1.0: hf: JustRL; vllm: Base model, STAPO.",
        "NOT SAMPLED ALIKE on mini-add-hard at t0.7, mini-add-hard at t1.0: hf: Base model; vllm: STAPO.",
    ]


def test_methods_sampled_by_different_engines_are_not_compared(tmp_path):
    # a version is no other engine; hf and vLLM gave other accuracies on AMC23 (results/tables/real.md)
    record(tmp_path, engine="vllm 0.24.0 compiled")
    record(tmp_path, ("10", "00"), "base", engine="vllm 0.32.0 eager")
    record(tmp_path, ("11", "00"), "grpo", engine="hf")
    t = build_table(load_cells([tmp_path]), paper.load())
    found = {
        (d.method, d.against): d for d in t.differences["miniature"] if (d.benchmark, d.setting) == ("mini-add", "t1.0")
    }
    assert found["stapo", "base"].number.mean == 50
    assert {found[pair].status for pair in (("grpo", "base"), ("stapo", "grpo"))} == {"other engine"}
    (notes,) = (s.footnotes for s in t.sections if s.id == "miniature")
    assert not any(row.best for row in t.rows if row.benchmark == "mini-add")
    assert "NOT SAMPLED ALIKE on mini-add at t1.0: hf: GRPO; vllm: Base model, STAPO." in notes
    assert "<sub>by hf</sub>" in row_of(t, "GRPO")
    record(tmp_path, seed=1, engine="hf")
    with pytest.raises(RecordError, match="different engines"):
        build_table(load_cells([tmp_path]), paper.load())


def test_other_gold_answers_are_refused_between_seeds_and_not_compared_between_methods(tmp_path):
    record(tmp_path)
    record(tmp_path, ("10", "00"), "base", benchmark_sha256="1" * 64)
    found = build_table(load_cells([tmp_path]), paper.load()).differences["miniature"]
    d = next(d for d in found if (d.method, d.against, d.benchmark, d.setting) == ("stapo", "base", "mini-add", "t1.0"))
    assert (d.status, d.number.known) == ("other problems", False)
    record(tmp_path, seed=1, benchmark_sha256="1" * 64)
    with pytest.raises(RecordError, match="different gold answers"):
        build_table(load_cells([tmp_path]), paper.load())


def step(number: int, attempt: int = 0, reward: float = 0.5, **more: float) -> StepMetrics:
    return StepMetrics(step=number, attempt=attempt, values={"reward": reward, **more})


def training(root: Path, *lines: StepMetrics, cut: Cut | None = None) -> Path:
    """A training with these lines alone."""
    file = synthetic.training_run(root, "stapo", steps=1) / "metrics.jsonl"
    run = read_json(file.with_name("run.json"), Run)
    write_json(file.with_name("run.json"), run.model_copy(update={"cut": cut}))
    file.unlink()
    append(file, lines)
    return file


def test_a_finished_training_that_lacks_steps_is_refused(tmp_path):
    file = training(tmp_path, step(1), step(2), step(4))
    made = read_json(file.with_name("run.json"), Run)
    config = {"run": made.config["run"] | {"steps": 4}}
    finished = made.model_copy(update={"config": config, "synthetic": False})
    write_json(file.with_name("run.json"), finished.model_copy(update={"status": "interrupted"}))
    assert len(load_training_runs([tmp_path])) == 1
    write_json(file.with_name("run.json"), finished)
    with pytest.raises(RecordError, match="1 of 4 are not there, the first is step 3"):
        load_training_runs([tmp_path])


def test_the_last_attempt_at_a_step_counts_and_a_line_that_stands_twice_once(tmp_path, capsys):
    file = training(tmp_path, step(1), step(2), step(3), step(2, 1, 0.25), step(3, 1), step(2, 2, 0.75), step(3, 1))
    (run,) = load_training_runs([tmp_path])
    assert run.series("reward") == {1: 0.5, 2: 0.75, 3: 0.5}
    assert f"{file}, line 7\n" in capsys.readouterr().err


@pytest.mark.parametrize(("lines", "at", "before", "found"), [
    ([step(1), step(2), step(2, 0, 0.75)], 3, 2, "reward"),
    ([step(1, entropy=1.0), step(1)], 2, 1, "entropy"),
    ([step(1), step(1, 2, 0.75), step(2), step(1, 1, 0.25)], 4, 2, "attempt 1 here, 2 before it"),
    ([step(1), step(1, 1, 0.75), step(1)], 3, 2, "attempt 0 here, 1 before it"),  # line 1 again, after a later attempt
])  # fmt: skip
def test_a_step_that_contradicts_itself_is_refused_by_both_lines(tmp_path, lines, at, before, found):
    file = training(tmp_path, *lines)
    with pytest.raises(RecordError, match=found) as e:
        load_training_runs([tmp_path])
    assert f"{file}:{at}: " in e.value.what
    assert f"{file}:{before}" in e.value.what


def test_a_value_that_was_left_out_is_told_from_one_that_was_never_logged(tmp_path):
    cut = Cut(kept=["reward", "actor/kl_loss"], metrics={"actor": 3})
    training(tmp_path, step(1), cut=cut)
    (run,) = load_training_runs([tmp_path])
    assert (run.series("reward"), run.series("actor/kl_loss"), run.series("entropy")) == ({1: 0.5}, {}, {})
    with pytest.raises(RecordError, match="actor/pg_loss was left out"):
        run.series("actor/pg_loss")
    # a line with more than the run's record says that it keeps
    file = training(tmp_path, step(1, entropy=0.1), cut=cut)
    with pytest.raises(RecordError, match="entropy") as e:
        load_training_runs([tmp_path])
    assert str(file) in e.value.what


def test_of_every_committed_training_the_whole_configuration_can_be_rebuilt():
    rebuilt = 0
    for path in sorted((Path(__file__).parents[1] / "results" / "records").rglob("run.json")):
        run = read_json(path, Run)
        if run.kind != "train":
            continue
        assert run.cut is not None
        if run.cut.config:  # else it is whole
            whole = json.loads(find_whole(path.parent, "config", run.cut.config_from).read_bytes())
            text = json.dumps(laid_over(whole, run.config), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
            assert hashlib.sha256(text.encode()).hexdigest() == run.cut.config, path
            rebuilt += 1
    assert rebuilt > 100


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_byte_is_refused_or_changes_no_value_silently(tmp_path, data):
    """Whatever byte becomes whatever other: refused by file, or the same values, or another stamp."""

    def read() -> tuple[str, list]:
        table = build_table(load_cells([tmp_path]), paper.load())
        return table.inputs_sha256, [rounded(r.score.percent.mean) for r in table.rows]

    path = record(tmp_path, ("10", "11", "00"))
    whole, (stamp, before) = path.read_bytes(), read()
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    refusal, new_stamp, after = str(path), stamp, before
    try:
        new_stamp, after = read()
    except BadInput as e:
        refusal = str(e)
    assert str(path) in refusal
    assert after == before or new_stamp != stamp
