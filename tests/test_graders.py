"""`stapo-repro graders`: the planted causes of `planted_run`, counted by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import planted_run
import pytest

from stapo_repro.calibration import beside, graders, regrade
from stapo_repro.cli import main
from stapo_repro.collect import collect
from stapo_results import store
from stapo_results.errors import RecordError

OTHER, CELL = "lighteval 9.9", "external/tiny-lm/s0/base/toy/t0.7/e0"
# another grader calls four responses right: r0's third, a 2 that is 1; one of five without a box; and two of ours' 27
YES = [f"{CELL}/{x}" for x in ("r0/2", "j0/0", "l0/3", "g0/0")]


def run(*flags: object) -> int:
    with pytest.raises(SystemExit) as e:
        main(["graders", *map(str, flags)])
    return int(e.value.code or 0)


def write(folder: Path) -> Path:
    """responses.jsonl of a run, without grading it."""
    target = folder / "graders" / "responses.jsonl"
    graders.write_responses(beside.own_cells([folder]), regrade.Means(), target)
    return target


def say(folder: Path) -> Path:
    """What another grader says of responses.jsonl."""
    ids = [json.loads(x)["id"] for x in write(folder).read_text().splitlines()]
    lines = [json.dumps({"id": i, "grader": OTHER, "rule": i in YES, "seconds": 1}) for i in ids]
    (folder / "other.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "other.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = planted_run.build(tmp_path_factory.mktemp("graders") / "world")
    assert run(made, "--verdicts", say(made)) == 0
    return made


def test_a_file_for_other_graders(folder: Path) -> None:
    second = json.loads((folder / "graders" / "responses.jsonl").read_text().splitlines()[1])
    assert second == {"id": f"{CELL}/g0/1", "answer": "100000", "response": "\\boxed{10^5}"}


def test_every_response_on_which_two_differ(folder: Path) -> None:
    found = store.read_json(folder / "graders" / "graders.json", graders.GraderRecord)
    (toy,) = found.cells
    # of 11 problems x 4: g and l are three each, r0 and r1 hold 2 and 1, the judge adds j's three
    assert toy.right == {"ours": 27, "math-verify": 27, "justrl": 15, "strict": 27, OTHER: 4, "with the judge": 39}
    assert (toy.responses, toy.missing, toy.without_answer, toy.run_id) == (44, 0, 12, "abc123")
    # all call r's other four answers wrong, and l0's last one right
    assert len(toy.cases) == 44 - 4 - 1
    by = {(c.problem_id, c.sample_index): c for c in toy.cases}
    yes = {key: [n for n, said in by[key].says.items() if said] for key in (("r0", 2), ("j0", 0), ("g0", 0))}
    assert yes == {("r0", 2): [OTHER], ("j0", 0): [OTHER, "with the judge"],
                   ("g0", 0): ["ours", "math-verify", "strict", OTHER, "with the judge"]}  # fmt: skip
    assert (by["r0", 2].answer, by["r0", 2].ending, by["j0", 0].answer) == ("2", "\\boxed{2}", None)
    assert by["l0", 0].ending == (planted_run.LONG + "\\boxed{7}")[-60:]
    assert "math-verify" in found.packages
    table = "\n".join(graders.to_markdown(found))
    assert "| justrl | 15 | 0 | 0 | 12 |" in table
    assert f"| {OTHER} | 4 | 1 | 1 | 25 |" in table
    assert "| with the judge | 39 | 0 | 12 | 0 |" in table


def test_the_record_holds_no_problem_and_no_gold(folder: Path) -> None:
    text = (folder / "graders" / "graders.json").read_text()
    assert "10^5" in text
    assert "100000" not in text
    assert "Problem" not in text


def test_the_record_is_collected_and_shown(folder: Path, tmp_path: Path) -> None:
    record = store.read_json(folder / "graders" / "graders.json", graders.GraderRecord)
    # a response's end is a model's text: it ends no cell of a table
    hostile = record.cells[0].cases[1].model_copy(update={"ending": "a|b<script>"})
    cell = record.cells[0].model_copy(update={"cases": [hostile]})
    world = tmp_path / "world"
    file = planted_run.build(world) / "graders" / "graders.json"
    store.write_json(file, record.model_copy(update={"cells": [cell]}))
    (file.parent / "responses.jsonl").write_text("{}\n")
    # what a stage made before it was made anew stays behind
    store.write_json(world / "set-aside" / "graders.json", {})
    written = collect(world, tmp_path / "records")
    assert tmp_path / "records" / "run" / "graders" / "graders.json" in written
    assert not list((tmp_path / "records").rglob("responses.jsonl"))
    block = graders.page_block([tmp_path / "records"])
    assert "44 responses; in 12 of them `ours` finds no answer." in block
    verdicts = f"ours, math-verify, strict, with the judge | justrl, {OTHER} |"
    assert f"| g0, 1, t0.7 | 10^5 | a\\|b&lt;script> | {verdicts}" in block
    assert "(all of them)" in block
    assert graders.page_block([tmp_path / "none"]) == "Not run."


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda lines: lines[1:], f"1 without a verdict, such as {CELL}/g0/0"),
        (lambda lines: [*lines, lines[0].replace("g0/0", "g9/0")], f"1 unknown, such as {CELL}/g9/0"),
        (lambda lines: [*lines, lines[0].replace("true", "false")], f"found: {CELL}/g0/0"),
        (lambda lines: [line.replace(OTHER, "math-verify") for line in lines], "found: verdicts of math-verify"),
        (lambda lines: [], "found: no line"),
    ],
)
def test_verdicts_on_other_responses_are_refused(tmp_path: Path, change, found: str, capsys) -> None:
    folder = planted_run.build(tmp_path)
    file = say(folder)
    file.write_text("".join(f"{line}\n" for line in change(file.read_text().splitlines())))
    assert run(folder, "--verdicts", file) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert found in said
    assert "next:" in said
    assert not (folder / "graders" / "graders.json").exists()


def test_a_run_without_responses_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = planted_run.build(tmp_path)
    (folder / "samples.jsonl").unlink()
    assert run(folder) == 2
    assert "samples.jsonl" in capsys.readouterr().err
    assert not (folder / "graders").exists()


def test_missing_responses_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    folder = planted_run.build(tmp_path)
    samples = folder / "samples.jsonl"
    kept = samples.read_text().splitlines(keepends=True)[5:]
    samples.write_text("".join(kept))
    cells, target = beside.own_cells([folder]), folder / "graders" / "responses.jsonl"
    places = graders.write_responses(cells, regrade.Means(), target)
    monkeypatch.setattr(graders, "grade", lambda source, preset: [{"rule": False, "extracted": None}] * len(places))
    other = cells[0].record.model_copy(update={"cell": cells[0].record.cell.model_copy(update={"eval_seed": 1})})
    found = graders.side_by_side([*cells, replace(cells[0], record=other)], places, target, {})
    # 5 of 44, and a second cell of which nothing is there
    assert [(c.responses, c.missing) for c in found.cells] == [(39, 5), (0, 44)]
    assert graders.to_markdown(found)[0] == "39 responses (49 more are missing); in 39 of them `ours` finds no answer."
    samples.write_text("")
    assert run(folder) == 2
    assert "nothing to grade" in capsys.readouterr().err


def test_one_verdict_twice_is_no_second_one(tmp_path: Path) -> None:
    line = json.dumps({"id": "a", "grader": OTHER, "rule": True}) + "\n"
    (tmp_path / "v.jsonl").write_text(line * 2)
    assert graders.read_verdicts([tmp_path / "v.jsonl"], {"a"}) == {OTHER: {"a": True}}
    (tmp_path / "w.jsonl").write_text(line.replace("true", "false"))
    with pytest.raises(RecordError, match="two verdicts"):
        graders.read_verdicts([tmp_path / "v.jsonl", tmp_path / "w.jsonl"], {"a"})
