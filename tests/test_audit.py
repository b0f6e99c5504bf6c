"""The audit by hand, and the page of flips with hostile text, read by a parser."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_eval.judge.audit import Flip, audit, flips
from stapo_eval.judge.page import render, sample_flips, visible
from stapo_results.benchmarks import Problem
from stapo_results.schema import Cell, CellRecord, Judgement, ProblemResult, Sample, Verdict


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
    # differences .25 and .5: SE .125, t(.975, 1) = 12.7062: half width 1.588
    assert a["high"] == pytest.approx(0.375 + 12.7062047 * 0.125)
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


HOSTILE = [
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% for %}",
    "\x00\x1b[31m\u202ereversed\u200b",
    "\ud800 alone",
    r"\href{javascript:alert(1)}{x} & < > \" '",
]


def _flip(i: int, text: str, *, rule: bool = False, response: str | None = None) -> Flip:
    verdict = Verdict(cell="c", problem_id=f"q{i}", sample_index=0, extracted=text, rule=rule,
                      reason="match" if rule else "mismatch", preset="ours", grader_version="v",
                      judge="incorrect" if rule else "correct", judge_model="j", judge_revision="r",
                      correct=not rule)  # fmt: skip
    judgement = Judgement(key=f"k{i}", benchmark="b", cell="c", problem_id=f"q{i}", sample_index=0, extracted=text,
                          judge_model="j", judge_revision="r", judge_mode="compass", engine="e", prompt_tokens=1,
                          status="answered", reply="B" if rule else "A", letter="B" if rule else "A")  # fmt: skip
    return Flip(judgement, verdict, text if response is None else response, samples=i + 1)


class _Reader(HTMLParser):
    """Tags, attributes and text of a page; fails on an end tag that does not close the last open one."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.text += " "
        self.attributes.update(name for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def _page(found: list[Flip], **more) -> tuple[str, _Reader]:
    problems = {("b", f"q{i}"): Problem(f"q{i}", f"problem {t}", t) for i, t in enumerate(HOSTILE)}
    html = render(found, problems, {"c": "b"}, title=HOSTILE[0], judge=HOSTILE[1], **more)
    html.encode()  # the file is UTF-8
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return html, reader


def test_hostile_text_is_text():
    html, reader = _page([_flip(i, t) for i, t in enumerate(HOSTILE)], note=HOSTILE[2])
    assert set(reader.tags) <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "section", "article",
                                "dl", "dt", "dd", "pre", "span"}  # fmt: skip
    assert reader.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class"}
    for text in HOSTILE:
        assert visible(text) in reader.text
    assert "49" not in reader.text
    for swallowed in ("\x00", "\x1b", "\u202e", "\u200b", "\ud800"):
        assert swallowed not in html
    assert "default-src 'none'" in html


def test_the_page_holds_both_verdicts_and_what_they_decide():
    _, reader = _page([_flip(0, "0.5"), _flip(1, "1/2", rule=True, response="x" * 2_000 + " so 1/2")])
    text = " ".join(reader.text.split())
    assert "differs from the rule on 2 questions, which decide 3 samples: 1 that the rule calls wrong and the judge " \
        "right, 2 the other way." in text  # fmt: skip
    assert "Rule incorrect (mismatch) Judge correct (reply: A)" in text
    assert "Rule correct (match) Judge incorrect (reply: B)" in text
    assert "the last 1500 of 2007 characters" in text
    assert "x" * 1_493 + " so 1/2" in text
    assert "x" * 1_494 not in text


def test_a_page_without_flips_says_so():
    _, reader = _page([])
    assert "There is no such question." in reader.text


def test_sampling_is_fixed_and_keeps_the_order():
    found = [_flip(i % 6, str(i)) for i in range(6)]
    some = sample_flips(found, 3)
    assert [f for f in found if f in some] == some
    assert sample_flips(found, 3) == some
    # what is drawn among all stays drawn among fewer
    fewer = [f for f in found if f in some or f is found[0]]
    assert sample_flips(fewer, 3) == some
    assert sample_flips(found, 3, seed=1) != some or sample_flips(found, 3, seed=2) != some


@given(st.text())
def test_visible_text_encodes_and_keeps_what_can_be_seen(text):
    shown = visible(text)
    shown.encode()
    assert all(c in shown for c in text if c.isalnum())


def test_flips_are_questions_with_the_samples_they_decide():
    letters = ["A", "A", "B", "A"]
    rules = [False, False, False, True]
    keys = ["k0", "k0", "k1", "k2"]
    samples = [Sample(cell="c", problem_id="q0", sample_index=i, seed=0, response=f"r{i}", finish_reason="stop",
                      prompt_tokens=1, response_tokens=1, logprob_sum=0.0, engine="e") for i in range(4)]  # fmt: skip
    verdicts = [_flip(0, "x", rule=r).verdict.model_copy(update={"sample_index": i}) for i, r in enumerate(rules)]
    judged = {
        i: _flip(0, "x").judgement.model_copy(update={"key": k, "letter": x})
        for i, (k, x) in enumerate(zip(keys, letters, strict=True))
    }
    (only,) = flips(samples, verdicts, judged)
    assert (only.samples, only.response, only.judgement.key) == (2, "r0", "k0")
