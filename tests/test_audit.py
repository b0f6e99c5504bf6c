"""The audit of a judged cell by hand."""

from __future__ import annotations

from stapo_eval.scores import audit
from stapo_results.schema import Cell, CellRecord, ProblemResult


def _record(problems: list[tuple[str, str, str]]) -> CellRecord:
    """A cell of (verdicts, judged, rule) a problem."""
    return CellRecord(
        cell=Cell(method="m", size="s", train_seed=0, step=1, benchmark="b", setting="t1.0"),
        n=len(problems[0][0]), temperature=1.0, top_p=1.0, max_tokens=10, scored_by="rule+judge",
        problems=[
            ProblemResult(problem_id=f"q{i}", verdicts=v, judged=j, rule=r) for i, (v, j, r) in enumerate(problems)
        ],
        benchmark_rows=len(problems), benchmark_sha256="0", finish_reasons={}, no_answer=0, mean_response_tokens=1.0,
        engine="e", deterministic=True, run_id="r", code_commit="c", code_dirty="", revisions={}, miniature=False,
    )  # fmt: skip


def test_audit_of_rule_negatives_by_hand():
    # rule: 2/4 and 0/4 of two problems, .25; the judge takes up 1 and 2 of the wrong ones: .625
    a = audit(_record([("1110", "..ci", "1100"), ("1100", "ccxi", "0000")]))
    assert a["asked"] == 6
    assert a["confusion"] == {
        "rule_correct": {"correct": 0, "incorrect": 0, "invalid": 0, "not_asked": 2},
        "rule_incorrect": {"correct": 3, "incorrect": 2, "invalid": 1, "not_asked": 0},
    }
    assert (a["flips_to_correct"], a["flips_to_incorrect"], a["flip_rate"]) == (3, 0, 0.5)
    assert (a["rule_accuracy"], a["difference"]) == (0.25, 0.375)
    # differences .25 and .5: SE .125, t(.975, 1) = 12.7062: half width 1.588, beyond what a difference can be
    assert (a["low"], a["high"]) == (-1.0, 1.0)
    assert (a["bootstrap_low"], a["bootstrap_high"]) == (0.25, 0.5)


def test_audit_of_the_scope_all_counts_both_directions():
    a = audit(_record([("0101", "icic", "1100"), ("1001", "cixc", "1110")]))
    # rule 1100 1110 against judge icic cixc: right kept 2, right lost 3 (i, i, x), wrong taken up 2, wrong kept 1
    assert a["confusion"]["rule_correct"] == {"correct": 2, "incorrect": 2, "invalid": 1, "not_asked": 0}
    assert a["confusion"]["rule_incorrect"] == {"correct": 2, "incorrect": 1, "invalid": 0, "not_asked": 0}
    assert (a["flips_to_correct"], a["flips_to_incorrect"], a["flip_rate"]) == (2, 3, 0.625)
    assert (a["rule_accuracy"], a["difference"]) == (0.625, -0.125)


def test_a_judge_that_moved_nothing_has_no_interval_and_one_not_asked_no_numbers():
    a = audit(_record([("1000", ".iii", "1000"), ("1100", "..xi", "1100")]))
    assert (a["difference"], a["low"], a["bootstrap_high"], a["flip_rate"]) == (0.0, None, None, 0.0)
    a = audit(_record([("1000", "", ""), ("1100", "", "")]))
    assert (a["asked"], a["rule_accuracy"], a["difference"], a["flip_rate"]) == (0, None, None, None)


def test_missing_samples_are_in_no_row_and_leave_no_difference_where_a_problem_has_none_left():
    a = audit(_record([("1-", "c.", "0-"), ("11", "..", "11")]))
    assert sum(sum(row.values()) for row in a["confusion"].values()) == 3
    # over what is there, as the score itself: problem 0 moves from 0 to 1
    assert a["difference"] == 0.5
    assert audit(_record([("--", "..", "--"), ("11", "c.", "01")]))["difference"] is None
