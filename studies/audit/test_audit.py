"""The audit of the paper's table: rounding and GRIM by counting, its findings by hand, faults that are put in."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stapo_repro import paper
from stapo_results.store import read_json
from studies.audit import checks, page
from studies.audit.__main__ import audit
from studies.command import run


@given(st.integers(1, 200), st.integers(0, 10_000))
def test_the_kind_is_what_counting_all_answers_finds(n, m):
    every = [Fraction(checks.WHOLE * k, n) for k in range(n + 1)]
    found = {how for how in checks.ROUNDINGS for x in every if checks.ROUNDINGS[how](x) == m}
    kinds = {"half up": "possible", "half even": "possible", "truncation": "only by truncation"}
    expected = next((kinds.get(how, "only by rounding up") for how in checks.ROUNDINGS if how in found), "impossible")
    assert checks.kind_of(m, n) == expected


def test_a_tie_rounds_as_its_kind_says():
    found = {how: checks.ROUNDINGS[how](Fraction("5312.5")) for how in checks.ROUNDINGS}
    assert found == {"half even": 5312, "half up": 5313, "truncation": 5312, "ceiling": 5313}


# The paper's table. Each number was derived by hand or by another script before this code was written.


@pytest.fixture(scope="module")
def table() -> paper.PaperTable:
    return paper.load()


@pytest.fixture(scope="module")
def claims() -> checks.PaperClaims:
    return read_json(page.CLAIMS, checks.PaperClaims)


def test_grim_finds_seven_of_144(table):
    counts, found = checks.check_grim(table).grids
    assert [row[:3] + row[-1:] for row in found[1:]] == [
        ["Qwen3-8B T=0.7, JustRL, Minerva", "51.03", "impossible", "51.0110, 51.1029"],
        ["Qwen3-14B T=1.0, 20-Entropy, Olympiad", "61.30", "impossible", "61.2760, 61.3131"],
        ["Qwen3-14B T=1.0, STAPO, AMC23", "89.63", "impossible", "89.6094, 89.6875"],
        ["Qwen3-8B T=0.7, GRPO, Olympiad", "58.34", "only by truncation", "58.3086, 58.3457"],  # 1,573 / 2,696
        ["Qwen3-8B T=0.7, 20-Entropy, AIME25", "27.39", "only by truncation", "27.2917, 27.3958"],  # 263 / 960
        ["Qwen3-8B T=0.7, STAPO, AIME25", "29.37", "only by truncation", "29.2708, 29.3750"],  # 282 / 960, a tie
        ["Qwen3-1.7B T=0.7, JustRL, AIME25", "9.28", "only by rounding up", "9.2708, 9.3750"],  # 89 / 960
    ]
    assert [(r[0], r[1], r[3], r[5]) for r in counts[1:]] == [
        ("AIME24", "30", "24 of 24", "yes"), ("AIME25", "30", "21 of 24", "yes"), ("AMC23", "40", "23 of 24", "yes"),
        ("AMC23", "83", "10 of 24", ""), ("MATH500", "500", "24 of 24", "yes"), ("Minerva", "272", "23 of 24", "yes"),
        ("Olympiad", "674", "22 of 24", "yes"), ("Olympiad", "675", "3 of 24", ""), ("Olympiad", "581", "1 of 24", ""),
    ]  # fmt: skip


def test_aime25_has_too_many_multiples_of_a_sixtieth(table):
    found = checks.check_granularity(table)
    # binomial tail of 13 or more of 24 at 1/16: its first term is C(24, 13) 15^11 / 16^24 = 2.7e-10; 21 comparisons:
    # five numbers of samples that divide 32, in three columns, and two that divide 4, in three
    assert ["AIME25", "1/60", "13 of 24", "1.5", "6e-09", "coarse steps"] in found.grids[0]
    assert {r[0] for r in found.grids[0][1:]} == {"AIME25"}
    assert found.grids[1] == [
        ["column", "multiples of", "Qwen3-1.7B", "Qwen3-8B", "Qwen3-14B", "T=1.0", "T=0.7"],
        ["AIME24", "1/60", "0 of 8", "1 of 8", "0 of 8", "1 of 12", "0 of 12"],
        ["AIME25", "1/60", "7 of 8", "1 of 8", "5 of 8", "8 of 12", "5 of 12"],
    ]
    assert "21 comparisons" in found.summary


def test_averages_and_marks(table):
    ((_, (where, printed, _, mean, explained)),) = checks.check_averages(table).grids
    assert (where, printed, mean) == ("Qwen3-14B T=1.0, STAPO, Avg", "67.76", "67.7667")
    assert explained.startswith("truncation; cells with more digits; 89.61 for 89.63 at AMC23")
    marks, wrong = checks.check_marks(table).grids
    assert len(wrong) == 1
    assert marks[1:] == [["GRPO", "2", "0"], ["20-Entropy", "0", "0"], ["JustRL", "2", "0"], ["STAPO", "32", "6"]]


def test_claims_and_their_readings(table, claims):
    # 1.7B at T=1.0: 36.85 over JustRL's 31.10 is 18.49 %, 5.75 points; over GRPO's 29.92, 20-Entropy's 29.60 and
    # JustRL's 23.16, 24.49 and 18.49 %, mean 22.05; 6.93, 7.25 and 5.75 points, mean 6.64
    rows = {r[0]: r[1:] for r in checks.check_claims(table, claims).grids[0][1:]}
    first = "relative, strongest"
    assert rows == {
        "main-t1.0-v1": ["7.13", "11.49", "5.12", "15.98", "7.06", "another version", ""],
        "main-t1.0-v2": ["7.13", "11.49", "5.12", "15.98", "7.06", "another version", ""],
        "main-t0.7-v2": ["3.69", "3.73", "1.76", "8.15", "3.77", "another version", ""],
        "main-t1.0-v4": ["11.49", "11.49", "5.12", "15.98", "7.06", "reading found", first],
        "main-t0.7-v4": ["3.73", "3.73", "1.76", "8.15", "3.77", "reading found", first],
        "scale-1.7b-t1.0-v4": ["18.49", "18.49", "5.75", "22.05", "6.64", "agrees", first],
        "scale-8b-t1.0-v4": ["5.78", "5.78", "3.33", "11.47", "6.10", "agrees", first],
        "scale-14b-t1.0-v4": ["10.20", "10.20", "6.27", "14.42", "8.43", "agrees", first],
    }
    wrong = claims.gains[-1]._replace(reading="points, each")
    assert checks.judge(table, wrong)[2] == "differs"


def test_statements_without_a_number_against_the_table(table):
    # 11.4879 and 3.7267 %, 5.1167 and 1.7567 points; Minerva at 1.7B: 33.73 - 28.40 and 34.83 - 26.10; JustRL 14B:
    # 66.71 - 55.74
    said = dict(checks.check_statements(table).grids[0][1:])
    first, second = list(said)[:2]
    assert re.findall(r"[\d.]+", said[first].partition("T=1.0")[2]) == ["32", "11.49", "34", "5.12"]
    assert re.findall(r"\d+ of \d+", said[second]) == ["32 of 36", "6 of 6"]
    furthest = said[second].index("8.73 points at Qwen3-1.7B T=0.7, GRPO")
    assert furthest < said[second].index("5.33 points at Qwen3-1.7B T=1.0, GRPO, Minerva")
    assert said["gains in percent without AIME24"] == "8.91 and 2.78"
    assert said["gains in percent without AIME25"] == "10.34 and 2.83"
    last = said["average at T=0.7 less that at T=1.0, Qwen3-14B"]
    assert last == "GRPO -0.96, 20-Entropy +3.76, JustRL +10.97, STAPO +0.04"


def test_printed_probabilities_come_from_logits_in_bf16(claims):
    # 51.90, 31.48, 11.58, 3.32, 0.58 %: ln of the ratios -0.49996, -1.5000, -2.7494, -4.4940 (0.575 to 0.585: -4.5028
    # to -4.4854); 0.01 of 99.95 is 0.005 to 0.015, 1.1 nats wide, and tells nothing
    bounds = checks.log_ratios("51.90 31.48 11.58 3.32 0.58")
    assert [b[0] < x < b[1] for b, x in zip(bounds, (-0.5, -1.5, -2.75, -4.5), strict=True)] == [True] * 4
    assert bounds[3] == pytest.approx((-4.502800, -4.485366), abs=1e-6)
    found = checks.check_precision(claims)
    assert found.grids[0][1] == ["51.90 31.48 11.58 3.32 0.58", "-0.5, -1.5, -2.75, -4.5", "1.10"]
    assert found.grids[0][8] == ["99.95 0.01 0.01 0.00 0.00", "", "0.00"]
    assert found.summary.startswith("53 of 53 log ratios")
    assert "2e-57" in found.summary
    other = claims.model_copy(update={"printed": {checks.TOP_FIVE: ["51.90 29.00 11.58 3.32 0.58"]}})
    assert checks.check_precision(other).summary.startswith("3 of 4 log ratios")  # 29.00: -0.582


def test_facts_of_the_claims_follow_from_what_is_printed(claims):
    facts = {f.where.partition(" (")[0]: f.fact for f in claims.facts}
    probabilities, advantages = (claims.printed[k] for k in ("probabilities in percent", "advantages"))
    over = [v for v in probabilities if float(v) >= 0.2]
    assert (len(probabilities), over) == (20, ["0.2433"])
    assert facts["Probability of the tokens shown as spurious, against the threshold tau_p"].startswith("19 of 20")
    known = []  # (1 - mean) / std of right answers among 8 rewards of +1 and -1, unbiased and biased
    for factor in (8 / 7, 1):
        means = [(2 * right - 8) / 8 for right in range(1, 8)]
        known.append([f"{(1 - m) / math.sqrt((1 - m * m) * factor):.2f}" for m in means])
    assert known[0] == ["2.47", "1.62", "1.21", "0.94", "0.72", "0.54", "0.35"]
    assert [sum(a in k for a in advantages) for k in known] == [20, 0]
    for claim in (c for c in claims.gains if c.id.startswith("main")):
        assert f" {claim.value} %" in facts[f"Gain of STAPO's average, three sizes, T={claim.id[6:9]}"]


def test_hyperparameters_are_the_values_that_the_configurations_decided():
    rows = yaml.safe_load((paper.checkout() / "training/stapo_training/decided.yaml").read_text())
    decided = {r["key"]: r for r in rows if "key" in r and "given" not in r}
    printed = json.loads((paper.folder() / "hyperparameters.json").read_text())["values"]
    shared = [v for v in printed if v.get("key")]
    assert len(shared) > 20
    for v in shared:
        assert (v["value"], v["basis"]) == (decided[v["key"]]["value"], decided[v["key"]]["basis"]), v["id"]


def changed(row: int, best: list[str] | None = None, **values: str) -> paper.PaperTable:
    """The paper's table with other values in a row (0: Qwen3-1.7B, GRPO, T=1.0)."""
    data = json.loads((paper.folder() / "main_table.json").read_text())
    data["rows"][row]["values"] |= values
    data["rows"][row]["best"] = data["rows"][row]["best"] if best is None else best
    return paper.PaperTable.model_validate(data)


ROW = "Qwen3-1.7B T=1.0, GRPO"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"aime24": "7.62"}, (f"{ROW}, AIME24", "impossible")),  # k / 960: 7.604 and 7.708; the mean stays 29.92
        ({"avg": "29.95"}, (f"{ROW}, Avg", "average")),  # 179.53 / 6 = 29.9217
        ({"best": ["minerva", "aime24"]}, ("Qwen3-1.7B T=1.0, AIME24", "mark")),
    ],
)
def test_each_fault_gives_its_finding_and_no_other(table, more, expected):
    def found(of: paper.PaperTable) -> set[tuple[str, str]]:
        grids = [grid for check in checks.OF_TABLE for grid in check(of).grids if grid[0][0] == "where"]
        kinds = [(row[0], *(t for t in row if t in checks.REASONS)) for grid in grids for row in grid[1:]]
        return set(kinds)

    assert found(changed(0, **more)) - found(table) == {expected}


def test_steps_finer_than_the_digits_say_nothing(table):
    # 500 x 40 answers: steps of 0.005 %; every value is a multiple, and none tells how many samples there were
    fine = table.model_copy(update={"samples_per_problem": table.samples_per_problem | {"math500": 40}})
    assert ["MATH500", "500", "40", "24 of 24", "24.0", "yes"] in checks.check_grim(fine).grids[0]
    assert "19 comparisons" in checks.check_granularity(fine).summary


def test_the_command_reads_another_table(tmp_path, capsys):
    file = tmp_path / "v2.json"
    file.write_text((paper.folder() / "main_table.json").read_text().replace("20v4", "20v2 <b>"))
    with pytest.raises(SystemExit) as e:
        run(audit, "studies.audit", "tables", ["--table", str(file)])
    assert (e.value.code, "137 of 144" in capsys.readouterr().out) == (0, True)
    assert "<b>" not in page.text(file)
    file.write_text(file.read_text().replace('"7.60"', "7.6", 1))
    with pytest.raises(SystemExit) as e:
        run(audit, "studies.audit", "tables", ["--table", str(file)])
    assert (e.value.code, "rows.0.values.aime24" in capsys.readouterr().err) == (2, True)
