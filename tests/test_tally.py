"""What is shown while a run generates: counts, speed, accuracy so far, time left."""

from __future__ import annotations

import pytest

from stapo_eval import display as module
from stapo_eval.display import StageDisplay, accuracy, cells_line, table
from stapo_eval.grading.rules import Options
from stapo_eval.tally import CellTally, Tally
from stapo_results.schema import Sample


def _sample(problem: str, index: int, response: str, tokens: int, *, cell: str = "c", reason: str = "stop") -> Sample:
    return Sample(
        cell=cell, problem_id=problem, sample_index=index, seed=0, response=response, finish_reason=reason,  # type: ignore[arg-type]
        prompt_tokens=3, response_tokens=tokens, logprob_sum=None, engine="hf",
    )  # fmt: skip


def _cells(total: int = 8) -> dict[str, CellTally]:
    golds = {"p": ("4", Options()), "q": ("x+1", Options())}
    return {"c": CellTally("sums", "t1.0", total, dict(golds)), "d": CellTally("sums", "t0.7", total, dict(golds))}


def test_accuracy_so_far_is_clustered_and_leaves_algebra_open() -> None:
    tally = Tally(_cells(), [_sample("p", 0, r"\boxed{4}", 10)])
    tally.add([_sample("p", 1, r"\boxed{5}", 20), _sample("p", 2, "no box", 30), _sample("p", 3, r"\boxed{4.0}", 40)])
    tally.add([_sample("q", 0, r"\boxed{x+1}", 50), _sample("q", 1, r"\boxed{1+x}", 50)])
    c = tally.cells["c"]
    a = c.accuracy()
    assert a is not None
    # p: 2 of 4 right, q: the one that is decided is right
    assert a.mean == pytest.approx((0.5 + 1.0) / 2)
    assert (a.problems, c.open) == (2, 1)
    assert tally.cells["d"].accuracy() is None


def test_speed_counts_what_this_process_made_and_time_left_what_is_missing() -> None:
    tally = Tally(_cells(4), [_sample("p", 0, "", 100)])
    assert tally.left(10.0) is None
    tally.add([_sample("p", 1, "", 200), _sample("p", 2, "", 300)])
    assert (tally.done, tally.total) == (3, 8)
    assert tally.speed(10.0) == 50.0
    # c: 1 missing of mean 200; d: 4 missing, no length of its own, so the mean of all: 200
    assert tally.left(10.0) == pytest.approx((200 + 4 * 200) / 50)
    cells = tally.cells_at(10.0)
    assert [c.left for c in cells] == [pytest.approx(4.0), pytest.approx(16.0)]
    assert cells[0].speed == 50.0


def test_failed_samples_are_shown_and_are_not_wrong() -> None:
    tally = Tally(_cells(2), [])
    tally.add([_sample("p", 0, "", 0, reason="error"), _sample("p", 1, r"\boxed{4}", 5)])
    (cell, other) = tally.cells_at(1.0)
    assert (cell.done, cell.errors) == (2, 1)
    assert cell.accuracy is not None
    assert cell.accuracy.mean == 1.0
    assert cells_line([cell]) == "sums t1.0 2/2 100.0 (3 to 100) 1 FAILED"  # one problem: the exact bound
    assert accuracy(other) == "?"


def test_without_a_terminal_one_plain_line_a_minute(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    tally = Tally(_cells(100), [])
    with StageDisplay("model") as display:
        display.start("generate", 0, tally.total)
        for i in range(100):
            now[0] += 2.0
            tally.add([_sample("p", i, r"\boxed{4}", 10)])
            display.cells(tally)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + 3  # 200 seconds
    assert "0 of 200" in lines[0]
    assert lines[1].startswith("model: generate 30/200, 5 tokens/s, 5 min 40 s left")
    assert "sums t1.0 30/100 100.0" in lines[1]


def test_a_terminal_gets_every_cell_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr(module.Display, "is_live", True)
    drawn: list[float] = []
    monkeypatch.setattr(module.Display, "show", lambda self, line, share, above: drawn.append(share))
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    tally = Tally(_cells(100), [])
    display = StageDisplay("model")
    display.start("generate", 0, tally.total)
    for i in range(50):
        now[0] += 0.1
        tally.add([_sample("p", i, r"\boxed{4}", 10)])
        display.cells(tally)
    assert 4 <= len(drawn) <= 6
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(tally.cells_at(5.0)))
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["sums", "t1.0", "50/100", "100", "100.0"] in [r[:5] for r in rows]
