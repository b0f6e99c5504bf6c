"""Kinds and sums by hand, power, a continuation whose end is known, a kill, and the planted truth of the records."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from stapo_repro.tokens.log import load, marked
from stapo_results import provenance
from stapo_results.errors import BadInput
from stapo_results.store import read, write_json
from studies import command
from studies.worth import page
from studies.worth.bins import bins
from studies.worth.measure import Measurement, answered, drawn, kinds, measure
from studies.worth.record import KINDS, WORTH, TokenWorth


def token(kind: str = "silenced", problem: str = "p0", right: tuple[int, int] = (0, 0), **more) -> TokenWorth:
    given = {"sample": 0, "position": 0, "probability": 0.001, "entropy": 1.0, "advantage": 1.0, "of": 4}
    ends = {"right_with": right[0], "right_without": right[1], "cut_with": 0, "cut_without": 0}
    return TokenWorth.model_validate({"schema_version": 1, "prompt_id": problem, "kind": kind, **given, **ends, **more})


def test_kinds_of_a_log() -> None:
    nan = math.nan
    rows = {
        "advantage": np.array([1.0, 1.0, 1.0, 1.0, -1.0, 1.0]),
        "rare": np.array([True, True, False, False, True, False]),
        "silenced": np.array([True, False, False, False, False, False]),
        "entropy": np.array([0.5, 2.0, 0.5, 2.0, 0.5, 0.5]),
        "tau_h": np.array([1.0, 1.0, 1.0, 1.0, 1.0, nan]),  # the last mini-batch has no rare token
        "open": np.ones(6, bool),
    }
    assert {k: i.tolist() for k, i in kinds(rows).items()} == dict(zip(KINDS, ([0], [1], [2], [3]), strict=True))
    assert kinds(rows | {"open": np.arange(6) > 0})["silenced"].tolist() == []  # it stands in the box, or after it
    found = drawn(rows, dict.fromkeys(KINDS, 5), seed=0)
    assert found == [(0, KINDS[0]), (1, KINDS[1]), (2, KINDS[2]), (3, KINDS[3])]
    assert drawn(rows, dict.fromkeys(KINDS, 5) | {KINDS[2]: 0}, seed=0) == [*found[:2], found[3]]


def test_where_the_answer_begins() -> None:
    class Letters:
        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    assert answered(Letters(), [*map(ord, "ab\\boxed{1} \\boxed{2}")]) == len("ab\\boxe")
    assert answered(Letters(), [*map(ord, "abc")]) == 3


def test_responses_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as e:
        measure(Measurement(tmp_path, tmp_path / "responses.jsonl", tmp_path, tmp_path, tmp_path / "out"))
    assert e.value.found == tmp_path / "responses.jsonl"


def test_worth_by_hand() -> None:
    low = [token(right=(1, 3), problem="a", entropy=0.5), token(right=(2, 2), problem="b", entropy=0.5)]
    tokens = [*low, token("kept", "b", (4, 2), entropy=2.0), token("kept", "a", (4, 2), entropy=2.0)]
    sums = page.sums_of(tokens)
    assert page.worth(sums, "silenced").mean == pytest.approx(-0.25)  # (-2/4 + 0) / 2
    assert page.worth(sums, "silenced", "kept").mean == pytest.approx(-0.75)
    assert page.worth(sums, "rare, low entropy", "rare, high entropy").mean == pytest.approx(-0.75)


def test_worth_at_equal_value_by_hand() -> None:
    tokens = [token(right=(2, 1), of=2), token(right=(2, 2), of=2), token("kept", right=(0, 1), of=2)]
    # each with half its weight in stratum 0: 1 - 1 and 0 - 1; stratum 1: (1 - 0) / 2 and, whole, 1 - 1; 0 - 0
    assert page.at_equal_value(tokens, "silenced", "kept").mean == pytest.approx((1 * 1 + 2 * (0.5 / 1.5)) / 3)
    assert not page.at_equal_value(tokens[:2], "silenced", "kept").known
    tokens = [token(right=(1, 0), of=2), token("kept", right=(0, 0), of=2)]  # no token reaches stratum 1
    assert page.at_equal_value(tokens, "silenced", "kept").mean == pytest.approx(0.5)


def test_a_draw_without_a_stratum_counts_at_equal_value(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[np.ndarray] = []
    monkeypatch.setattr(page, "interval", lambda drawn, clusters: values.append(drawn))
    tokens = [  # stratum 1 has two problems of ten
        token(kind, f"p{i}", (gained, 2 * (i < 2)), of=2)
        for i in range(10)
        for kind, gained in (("silenced", 1), ("kept", 2))
    ]
    page.at_equal_value(tokens, "silenced", "kept")
    assert np.isfinite(values[0]).all()


def test_silenced_tokens_of_lower_probability_are_a_group() -> None:
    tokens = [token(probability=0.00009), token(probability=0.0001), token("kept", probability=0.00009)]
    found = page.groups(tokens)
    assert [list(found[f"seen afterwards: silenced, p < {p}"]) for p in ("0.0001", "0.0005")] == [[1, 0, 0], [1, 1, 0]]


def test_rare_tokens_with_the_weights_of_the_log_by_hand() -> None:
    """Two silenced tokens stand for three each, the kept one for two; below 1 nat a silenced one alone."""
    tokens = [token(right=(0, 2), problem="a", entropy=0.5), token(right=(4, 0), problem="b", entropy=1.0),
              token("kept", "c", (0, 4), entropy=3.0)]  # fmt: skip
    found = page.weighted([*tokens, token("ordinary, low entropy")], {"silenced": 6, "kept": 2}, 1.0)
    assert found.mean == pytest.approx(-0.5 - (3 * 1 - 2 * 1) / 5)


def test_verdicts_after_holm() -> None:
    """Three problems: silenced tokens differ in all, kept ones in one; one ordinary token has no interval."""
    tokens = [token(right=(0, n), problem=p) for p, n in (("a", 4), ("b", 3), ("c", 4))]
    tokens += [token("kept", p, (n, 0)) for p, n in (("a", 0), ("b", 0), ("c", 4))]
    tokens += [token("ordinary, low entropy", "a", (0, 4))]
    sums = page.sums_of(tokens)
    p = page.two_sided(page.draws(sums, "kept"))  # 8 of 27 draws leave out "c"
    assert p == pytest.approx(2 * 8 / 27, abs=0.03)
    names = [("silenced", ""), ("kept", ""), ("ordinary, low entropy", ""), ("silenced", "ordinary, low entropy"),
             ("ordinary, high entropy", "")]  # fmt: skip
    claims = [page.WorthClaim(id=a + b, claim="", first=a, second=b, below=True) for a, b in names]
    found = page.judged(claims, sums)
    assert [verdict for *_, verdict in found] == ["holds", "undecided", "undecided", "undecided", "not run"]
    assert found[0][1] == pytest.approx(5 * page.two_sided(page.draws(sums, "silenced")))
    assert [v for *_, v in page.judged(claims, None)] == ["not run"] * 5


def test_power_falls_with_tokens_and_continuations() -> None:
    # 2 x 0.4 x 0.6 / 4 + 0.04 = 0.16; 1.5 x 0.16 / 300 = 0.0008; (2.4977 + 0.8416) x 0.02828
    assert page.detectable([300], 4) == pytest.approx(0.0945, abs=1e-4)
    assert page.detectable([300, 300], 4) == pytest.approx(0.0945 * math.sqrt(2), abs=1e-4)
    assert page.detectable([1200], 4) == pytest.approx(page.detectable([300], 4) / 2)


@pytest.mark.parametrize("world", ["paper", "costly"])
def test_the_instrument_finds_what_was_planted(world: str) -> None:
    """A word of care is worth a right answer; in `costly` a filler costs something in the working of longer
    problems."""
    tokens = list(read(page.RECORDS / world / WORTH, TokenWorth))
    sums = page.sums_of(tokens)
    assert page.worth(sums, "planted: useful").low > 0.4
    if world == "paper":
        return
    longer = [t for t in tokens if t.planted == "spurious" and "hard" in t.prompt_id]
    assert page.worth(page.sums_of(longer), "planted: spurious").high < 0


def test_fillers_of_paper_are_worth_nothing() -> None:
    tokens = list(read(page.RECORDS / "paper" / WORTH, TokenWorth))
    assert sum(t.planted == "spurious" for t in tokens) > 200
    assert abs(page.worth(page.sums_of(tokens), "planted: spurious").mean) < 0.01


def test_the_study_makes_a_page_and_a_map_of_each_measurement() -> None:
    files: dict[Path, bytes] = {}
    page.add(files)
    maps = {f"worth_{name}.svg" for name in ("paper", "costly", "qwen2.5-coder-0.5b")}
    assert {p.name for p in files} == {"worth.md", "README.md", *maps}


def test_bins_by_hand() -> None:
    tokens = [token(right=(1, 3), problem="a", probability=0.001, entropy=0.3),
              token(right=(4, 2), problem="b", probability=0.0019, entropy=0.4),
              token("kept", "b", (4, 0), probability=0.001, entropy=2.0)]  # fmt: skip
    found = {(b.rate, b.entropy): b for b in bins(tokens) if b.tokens}
    assert {k: (b.tokens, b.worth.mean) for k, b in found.items()} == {
        ("0.0005 to 0.002", "0.1 to 0.5"): (2, 0.0),  # (-2/4 + 2/4) / 2
        ("0.0005 to 0.002", "above 2"): (1, 1.0),
    }
    low = found["0.0005 to 0.002", "0.1 to 0.5"].worth
    assert (low.low, low.high) == (-0.5, 0.5)  # problem "a" twice, or "b" twice


def test_the_page_has_the_best_and_worst_tokens_in_their_context() -> None:
    """Four tokens of the log with Q - V of 1/2, 1/2, 0 and -1/4, of which the second has the lower probability."""
    log = load(command.RECORDS / "real" / "probe-05b-reach")
    rows = log.records(np.arange(4))
    right, probability = ((3, 1), (2, 0), (1, 1), (0, 1)), (0.001, 0.0005, 0.001, 0.001)
    tokens = [
        token(problem=row["prompt_id"], right=r, probability=p, **{name: row[name] for name in ("sample", "position")})
        for row, r, p in zip(rows, right, probability, strict=True)
    ]
    lines = page.extremes([*tokens, token(problem="elsewhere", right=(0, 4))], log)
    shown = [line.split(" | ") for line in lines if line.endswith(" of 4 |")]
    ends = [tuple(int(cell[0]) for cell in line[-2:]) for line in shown]
    assert ends == [(2, 0), (3, 1), (0, 1), (1, 1)]
    words = [f"<b>{marked(log.vocabulary.one(rows[i]['token']))}</b>" for i in (1, 0, 3, 2)]
    assert [word in line[0] for word, line in zip(words, shown, strict=True)] == [True] * 4
    assert page.extremes([token(problem="elsewhere")], log) == []


def test_kinds_that_are_not_named_are_not_measured() -> None:
    asked = Measurement(*[Path()] * 5, each=3, ordinary=2, kinds=("kept", KINDS[3]))
    assert asked.most == dict(zip(KINDS, (0, 3, 0, 2), strict=True))


def test_a_measurement_of_another_size_judges_no_claim(tmp_path: Path) -> None:
    design = {"silenced": 9, "kept": 9, "ordinary": 4, "continuations": 2}
    given = {"each": 9, "ordinary": 4, "of": 2, "seed": 0, "max_tokens": 512}
    for changed, same in (
        ({}, True),
        ({"each": 10}, False),
        ({"ordinary": 0}, False),
        ({"of": 3}, False),
        ({"seed": 1}, False),
        ({"max_tokens": 1024}, False),
        ({"anywhere": True}, False),
    ):
        run = provenance.new_run("probe", given | changed, seeds={}, deterministic=True)
        write_json(tmp_path / "run.json", run.model_copy(update={"status": "done"}))
        assert page.as_designed(design, tmp_path) == same
    assert not page.as_designed(design, tmp_path / "none")
