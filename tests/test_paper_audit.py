"""The audit of the paper's own table, departure by departure, and what is written of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from made_up_table import changed, check, made_up, write

from stapo_repro import cli
from stapo_repro.audit import claim_checks, grim
from stapo_repro.audit.findings import Audit, page_block
from stapo_repro.audit.run import audit, load_and_audit, load_table
from stapo_repro.audit.schema import AuditTable

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def paper() -> Audit:
    return load_and_audit()


def facts(a: Audit, name: str) -> dict[tuple[str, str], str]:
    return {(f.kind, f.where): f.fact for f in check(a, name).findings}


# The paper's table. Each number was derived by hand or by another script before this code was written.


def test_grim_finds_seven_of_144(paper):
    expected = {
        ("impossible", "Qwen3-8B T=0.7, JustRL, Minerva"): ("51.03", "51.01 and 51.10"),
        ("impossible", "Qwen3-14B T=1.0, 20-Entropy, Olympiad"): ("61.30", "61.28 and 61.31"),
        ("impossible", "Qwen3-14B T=1.0, STAPO, AMC23"): ("89.63", "89.61 and 89.69"),
        ("only by truncation", "Qwen3-8B T=0.7, GRPO, Olympiad"): ("1,573 / 2,696 = 58.3457 %",),
        ("only by truncation", "Qwen3-8B T=0.7, 20-Entropy, AIME25"): ("263 / 960 = 27.3958 %",),
        ("only by truncation", "Qwen3-8B T=0.7, STAPO, AIME25"): ("282 / 960 = 29.3750 %",),
        ("only by rounding up", "Qwen3-1.7B T=0.7, JustRL, AIME25"): ("89 / 960 = 9.2708 %",),
    }
    found = facts(paper, "grim")
    assert list(found) == list(expected)
    assert all(part in found[key] for key, parts in expected.items() for part in parts)
    assert check(paper, "grim").summary[0].startswith("137 of 144 ")
    # 29.375 alone is a tie, which may fall by binary floating point
    tied = [f.where for f in check(paper, "grim").findings if any("tie" in r for r in f.reasons)]
    assert tied == ["Qwen3-8B T=0.7, STAPO, AIME25"]


def test_row_counts_tried(paper):
    assert [(r[0], r[1], r[3], r[5]) for r in check(paper, "row-counts").grid.rows] == [
        ("AIME24", "30", "24 of 24", "yes"), ("AIME25", "30", "21 of 24", "yes"), ("AMC23", "40", "23 of 24", "yes"),
        ("AMC23", "83", "10 of 24", ""), ("MATH500", "500", "24 of 24", "yes"), ("Minerva", "272", "23 of 24", "yes"),
        ("Olympiad", "674", "22 of 24", "yes"), ("Olympiad", "675", "3 of 24", ""), ("Olympiad", "581", "1 of 24", ""),
    ]  # fmt: skip


def test_aime25_has_too_many_multiples_of_a_sixtieth(paper):
    assert list(facts(paper, "granularity")) == [("coarse steps", "AIME25")]
    steps = {(s.stated.column.id, s.n): s for s in grim.coarse_steps(load_table(None))}
    # five numbers of samples that divide 32, in three columns, and two that divide 4, in three
    assert len(steps) == 21
    step = steps["aime25", 60]
    assert (step.hits, step.expected, step.stated.cells) == (13, 1.5, 24)
    # binomial tail of 13 or more of 24 at 1/16: its first term is C(24, 13) 15^11 / 16^24 = 2.7e-10
    assert step.p == pytest.approx(2.9e-10, rel=0.1)


def test_averages_marks_and_gains(paper):
    assert check(paper, "averages").summary[0].startswith("23 of 24 ")
    ((where, fact),) = facts(paper, "averages").items()
    assert where == ("average", "Qwen3-14B T=1.0, STAPO, Avg")
    for part in ("67.76 is printed", "67.7667, rounded 67.77", "truncation", "67.7617 and 67.7717", "89.61 instead of"):
        assert part in fact
    assert check(paper, "marks").findings == []
    assert "42 of 42" in check(paper, "marks").summary[0]
    assert "of 36: STAPO 32, GRPO 2, JustRL 2" in check(paper, "marks").summary[1]
    # 1.09 lies below 1.96 standard errors of sampling (0.7 points), the next smallest gain (2.01) does not
    assert [(r[2], r[3], r[6]) for r in check(paper, "gains").grid.rows] == [
        ("5.75", "18.49 %", "beyond both"), ("2.01", "5.79 %", "beyond sampling"),
        ("3.33", "5.78 %", "beyond sampling"), ("2.18", "3.76 %", "beyond sampling"),
        ("6.27", "10.20 %", "beyond sampling"), ("1.09", "1.63 %", "within both"),
    ]  # fmt: skip
    assert list(facts(paper, "gains")) == [("within noise", "Qwen3-14B T=0.7")]


def test_claims_and_their_readings(paper):
    rows = {r[0]: r[1:] for r in check(paper, "claims").grid.rows}
    assert {name: r[-1] for name, r in rows.items()} == {
        "main-t1.0-v1": "another version", "main-t1.0-v2": "another version", "main-t0.7-v2": "another version",
        "main-t1.0-v4": "reading found", "main-t0.7-v4": "reading found",
        "scale-1.7b-t1.0-v4": "agrees", "scale-8b-t1.0-v4": "agrees", "scale-14b-t1.0-v4": "agrees",
    }  # fmt: skip
    assert rows["main-t1.0-v4"][:4] == ["11.49", "11.49", "5.12", "15.98"]
    assert rows["main-t0.7-v4"][:4] == ["3.73", "3.73", "1.76", "8.15"]
    found = facts(paper, "claims")
    versions = [fact for (kind, _), fact in found.items() if kind == "versions"]
    assert ["v1 7.13 %, v2 7.13 %, v4 11.49 %" in versions[0], "v2 3.69 %, v4 3.73 %" in versions[1]] == [True, True]
    (limit,) = [fact for (kind, _), fact in found.items() if kind == "limit"]
    assert "0.2433" in limit
    assert any("20 of 20 are those of groups of 8" in s for s in check(paper, "claims").summary)


def test_advantages_of_groups_of_eight():
    known = [f"{a:.2f}" for a in claim_checks.advantages(8, unbiased=True)]
    assert known == ["2.47", "1.62", "1.21", "0.94", "0.72", "0.54", "0.35"]
    assert f"{claim_checks.advantages(8, unbiased=False)[0]:.2f}" == "2.65"  # 1.75 / sqrt(0.4375)


# What is written.


def test_the_committed_page_is_what_the_audit_gives(paper):
    assert f"<!-- generated:audit -->\n{page_block(paper)}" in (ROOT / "docs" / "statistics.md").read_text()


def test_names_of_a_file_are_text():
    data = made_up() | {"labels": {"A": "a name of many words", "new": "<b>*new*</b>|[x](y)"}}
    block = page_block(audit(AuditTable.model_validate(data)))
    assert "<b>" not in block
    assert r"&lt;b>\*new\*&lt;/b>\|\[x\](y)" in block


def test_command(tmp_path, capsys):
    def command(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as e:
            cli.main(["audit", *args])
        return e.value.code, *capsys.readouterr()

    code, out, _ = command()
    assert (code, "137 of 144" in out) == (0, True)
    code, out, err = command("--table", str(write(tmp_path / "b.json", changed("proposed", value=3))))
    assert (code, out) == (2, "")
    assert "b.json" in err
    assert "proposed" in err


def test_the_pages_example_is_a_table_and_the_page_says_what_it_finds():
    text = (ROOT / "docs" / "statistics.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    ((where, fact),) = facts(audit(AuditTable.model_validate(json.loads(example))), "grim").items()
    assert where == ("impossible", "small model, Ours, Quiz")
    assert "45.00 and 46.25" in fact
