"""What is shown while a run generates: counts, speed, accuracy so far, time left."""

from __future__ import annotations

import pytest

from stapo_eval import display as module
from stapo_eval.display import CellTally, StageDisplay, Tally
from stapo_eval.grading.rules import Options
from stapo_results.schema import Sample

GOLDS = {"p": ("4", Options()), "q": ("x+1", Options())}


def _sample(problem: str, index: int, response: str, tokens: int, reason: str = "stop") -> Sample:
    return Sample(
        cell="c", problem_id=problem, sample_index=index, seed=0, response=response, finish_reason=reason,  # type: ignore[arg-type]
        prompt_tokens=3, response_tokens=tokens, logprob_sum=None, engine="hf",
    )  # fmt: skip


def test_accuracy_so_far_leaves_algebra_and_failures_out() -> None:
    tally = Tally({"c": CellTally("sums t1.0", GOLDS)}, 8, [_sample("p", 0, r"\boxed{4}", 10)])
    assert str(tally) == ", in % so far by rule: sums t1.0 100.0"
    tally.add([_sample("p", 1, r"\boxed{5}", 20), _sample("p", 2, "no box", 30), _sample("p", 3, r"\boxed{4.0}", 40)])
    tally.add([_sample("q", 0, r"\boxed{1+x}", 50), _sample("p", 4, "", 0, "error")])
    # 2 of the 4 that are decided
    assert str(tally) == ", 1 FAILED, in % so far by rule: sums t1.0 50.0"
    assert (tally.done, tally.tokens) == (6, 140)  # the recorded one's tokens are not this process's


def test_without_a_terminal_one_plain_line_a_minute(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    tally = Tally({"c": CellTally("sums t1.0", GOLDS)}, 200, [])
    with StageDisplay("model") as display:
        display.start("generate", 0, tally.total)
        for i in range(100):
            now[0] += 2.0
            tally.add([_sample("p", i, r"\boxed{4}", 10)])
            display.generated(tally)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + 3  # 200 seconds
    assert "0 of 200" in lines[0]
    assert lines[1].startswith("model: generate 30/200, 5 min 40 s left, 5 tokens/s")
    assert "sums t1.0 100.0" in lines[1]
