"""The audit of the paper's own table, departure by departure, and what is written of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from made_up_table import changed, check, made_up, write

from stapo_repro import cli
from stapo_repro.audit import claim_checks
from stapo_repro.audit.findings import Audit, Finding
from stapo_repro.audit.render import page_block, to_json, to_text
from stapo_repro.audit.run import audit, load_and_audit
from stapo_repro.audit.schema import AuditTable

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def paper() -> Audit:
    return load_and_audit()


def finding(a: Audit, name: str, where: str) -> Finding:
    (found,) = [f for f in check(a, name).findings if f.where.startswith(where)]
    return found


# The paper's table. Each number was derived by hand or by another script before this code was written.


def test_grim_finds_seven_of_144(paper):
    c = check(paper, "grim")
    assert (c.numbers["cells"], c.numbers["possible"]) == (144, 137)
    assert [(f.kind, f.where) for f in c.findings] == [
        ("impossible", "Qwen3-8B T=0.7, JustRL, Minerva"),
        ("impossible", "Qwen3-14B T=1.0, 20-Entropy, Olympiad"),
        ("impossible", "Qwen3-14B T=1.0, STAPO, AMC23"),
        ("only by truncation", "Qwen3-8B T=0.7, GRPO, Olympiad"),
        ("only by truncation", "Qwen3-8B T=0.7, 20-Entropy, AIME25"),
        ("only by truncation", "Qwen3-8B T=0.7, STAPO, AIME25"),
        ("only by rounding up", "Qwen3-1.7B T=0.7, JustRL, AIME25"),
    ]


@pytest.mark.parametrize(
    ("where", "printed", "below", "above"),
    [
        ("Qwen3-14B T=1.0, STAPO, AMC23", "89.63", "89.61", "89.69"),
        ("Qwen3-8B T=0.7, JustRL, Minerva", "51.03", "51.01", "51.10"),
        ("Qwen3-14B T=1.0, 20-Entropy, Olympiad", "61.30", "61.28", "61.31"),
    ],
)
def test_impossible_cells_and_their_neighbours(paper, where, printed, below, above):
    f = finding(paper, "grim", where)
    assert (f.numbers["printed"], f.numbers["below"], f.numbers["above"]) == (printed, below, above)


@pytest.mark.parametrize(
    ("where", "k", "n", "exact"),
    [
        ("Qwen3-8B T=0.7, 20-Entropy, AIME25", 263, 960, 27.39583333),
        ("Qwen3-8B T=0.7, STAPO, AIME25", 282, 960, 29.375),
        ("Qwen3-8B T=0.7, GRPO, Olympiad", 1573, 2696, 58.34569733),
        ("Qwen3-1.7B T=0.7, JustRL, AIME25", 89, 960, 9.27083333),
    ],
)
def test_cells_that_directed_rounding_explains(paper, where, k, n, exact):
    f = finding(paper, "grim", where)
    assert (f.numbers["k"], f.numbers["n"], f.numbers["exact"]) == (k, n, exact)
    # a tie may fall by binary floating point: 29.375 alone is one
    assert any("tie" in r for r in f.reasons) == (exact == 29.375)


def test_row_counts_tried(paper):
    fitting = check(paper, "row-counts").numbers["fitting"]
    assert fitting == {
        "aime24/30": 24, "aime25/30": 21, "amc23/40": 23, "amc23/83": 10, "math500/500": 24, "minerva/272": 23,
        "olympiadbench/674": 22, "olympiadbench/675": 3, "olympiadbench/581": 1,
    }  # fmt: skip
    rows = {(r[0], r[1]): r for r in check(paper, "row-counts").grid.rows}
    assert rows["Olympiad", "674"][-1] == "yes"
    assert rows["Olympiad", "675"][-1] == ""


def test_aime25_has_too_many_multiples_of_a_sixtieth(paper):
    (f,) = check(paper, "granularity").findings
    assert f.where == "AIME25"
    assert (f.numbers["1/60"]["hits"], f.numbers["1/60"]["expected"], f.numbers["1/60"]["cells"]) == (13, 1.5, 24)
    assert (f.numbers["1/30"]["hits"], f.numbers["1/30"]["expected"]) == (8, 0.75)
    # binomial tail of 13 or more of 24 at 1/16: its first term is C(24, 13) 15^11 / 16^24 = 2.7e-10
    assert f.numbers["1/60"]["p"] == pytest.approx(2.9e-10, rel=0.1)
    # the smallest of 21: five numbers of samples that divide 32, in three columns, and two that divide 4, in three
    assert f.numbers["1/60"]["p_holm"] == pytest.approx(21 * f.numbers["1/60"]["p"], rel=0.01)


def test_averages(paper):
    c = check(paper, "averages")
    assert (c.numbers["averages"], c.numbers["agree"]) == (24, 23)
    (f,) = c.findings
    assert f.where == "Qwen3-14B T=1.0, STAPO, Avg"
    assert (f.numbers["printed"], f.numbers["mean_of_cells"], f.numbers["nearest"]) == ("67.76", 67.76666667, "67.77")
    assert f.numbers["replaced"] == {"amc23": "89.61"}
    assert f.numbers["roundings"] == ["truncation"]
    assert f.numbers["more_digits_explain_it"] is True


def test_marks(paper):
    c = check(paper, "marks")
    assert (c.numbers["marks"], c.numbers["right"], c.findings) == (42, 42, [])
    assert c.numbers["comparisons"] == 36
    assert c.numbers["highest"]["stapo"] == 32
    assert c.numbers["highest_avg"]["stapo"] == 6


def test_gains_over_the_strongest_of_each_scale(paper):
    numbers = check(paper, "gains").numbers
    relative = {g: round(n["relative_percent"], 2) for g, n in numbers.items()}
    assert relative == {
        "qwen3-1.7b/t1.0": 18.49, "qwen3-1.7b/t0.7": 5.79, "qwen3-8b/t1.0": 5.78, "qwen3-8b/t0.7": 3.76,
        "qwen3-14b/t1.0": 10.20, "qwen3-14b/t0.7": 1.63,
    }  # fmt: skip
    last = numbers["qwen3-14b/t0.7"]
    assert (last["baseline"], last["points"]) == ("justrl", 1.09)


def test_the_one_gain_within_noise_is_found(paper):
    c = check(paper, "gains")
    (f,) = c.findings
    assert (f.kind, f.where) == ("within noise", "Qwen3-14B T=0.7")
    assert f.numbers == c.numbers["qwen3-14b/t0.7"]
    # 1.09 lies below 1.96 standard errors of sampling, the next smallest gain (2.01) does not
    assert 1.09 < 1.96 * f.numbers["se_sampling"] < 2.01
    assert all(0.6 < n["se_sampling"] < 0.8 and 2.5 < n["se_unpaired"] < 3.5 for n in c.numbers.values())
    assert (round(f.numbers["se_sampling"], 1), round(f.numbers["se_unpaired"], 1)) == (0.7, 3.3)
    verdicts = [n["verdict"] for n in c.numbers.values()]
    assert verdicts == ["beyond both", *["beyond sampling"] * 4, "within both"]


def test_claims_and_their_readings(paper):
    numbers = check(paper, "claims").numbers
    outcome = {name: n["outcome"] for name, n in numbers.items()}
    assert outcome == {
        "main-t1.0-v1": "another version", "main-t1.0-v2": "another version", "main-t0.7-v2": "another version",
        "main-t1.0-v4": "reading found", "main-t0.7-v4": "reading found",
        "scale-1.7b-t1.0-v4": "agrees", "scale-8b-t1.0-v4": "agrees", "scale-14b-t1.0-v4": "agrees",
    }  # fmt: skip
    first, second = numbers["main-t1.0-v4"], numbers["main-t0.7-v4"]
    names = ("relative to the strongest", "points over the strongest", "relative, all pairs")
    assert [round(first[n], 2) for n in names] == [11.49, 5.12, 15.98]
    assert [round(second[n], 2) for n in names] == [3.73, 1.76, 8.15]


def test_versions_and_examples(paper):
    found = check(paper, "claims").findings
    versions = [f.numbers["values"] for f in found if f.kind == "versions"]
    assert versions == [{"v1": "7.13", "v2": "7.13", "v4": "11.49"}, {"v2": "3.69", "v4": "3.73"}]
    (limit,) = [f for f in found if f.kind == "limit"]
    assert (limit.numbers["not_below"], limit.numbers["values"]) == (["0.2433"], 20)
    assert any("20 of 20 are those of groups of 8" in s for s in check(paper, "claims").summary)


def test_advantages_of_groups_of_eight():
    known = [f"{a:.2f}" for a in claim_checks.advantages(8, unbiased=True)]
    assert known == ["2.47", "1.62", "1.21", "0.94", "0.72", "0.54", "0.35"]
    assert f"{claim_checks.advantages(8, unbiased=False)[0]:.2f}" == "2.65"  # 1.75 / sqrt(0.4375)


def test_every_departure_names_an_innocent_reason_and_nobody(paper):
    findings = [f for c in paper.checks for f in c.findings]
    assert len(findings) > 10
    assert all(f.reasons and f.fact for f in findings)
    assert not re.search(r"fraud|fabricat|manipulat|cheat|dishonest|suspicio|mislead", to_text(paper), re.IGNORECASE)


# What is written.


def test_text_and_page_say_what_json_says(paper):
    flat, block = " ".join(to_text(paper).split()), page_block(paper)
    for c in json.loads(to_json(paper))["checks"]:
        assert c["title"] in flat
        assert f"### {c['title']}" in block
        for line in (*c["summary"], *(f["fact"] for f in c["findings"])):
            assert " ".join(line.split()) in flat


def test_the_committed_page_is_what_the_audit_gives(paper):
    assert f"<!-- generated:audit -->\n{page_block(paper)}" in (ROOT / "docs" / "statistics.md").read_text()


def test_the_hash_is_of_the_inputs():
    tables = (made_up(), made_up(), changed("rows", 0, "values", "exam", value="36.00"))
    same, again, other = (audit(AuditTable.model_validate(d)).inputs_sha256 for d in tables)
    assert same == again != other


def test_names_of_a_file_are_text():
    data = made_up()
    data["labels"] = {"A": "a name of many words", "new": "<b>*new*</b>|[x](y)"}
    block = page_block(audit(AuditTable.model_validate(data)))
    assert "<b>" not in block
    assert r"&lt;b>\*new\*&lt;/b>\|\[x\](y)" in block


def test_command(tmp_path, capsys):
    def command(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as e:
            cli.main(["audit", *args])
        return e.value.code, *capsys.readouterr()

    code, out, _ = command()
    assert code == 0
    assert "137 of 144" in out
    data = changed("rows", 3, "best", value=["quiz", "exam", "mean"])
    code, out, _ = command("--table", str(write(tmp_path / "t.json", data)), "--format", "json")
    assert code == 0
    assert [f["kind"] for c in json.loads(out)["checks"] for f in c["findings"]].count("mark") == 1
    code, out, err = command("--table", str(write(tmp_path / "b.json", changed("proposed", value=3))))
    assert (code, out) == (2, "")
    assert "b.json" in err
    assert "proposed" in err


def test_the_pages_example_is_a_table_and_the_page_says_what_it_finds():
    text = (ROOT / "docs" / "statistics.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    a = audit(AuditTable.model_validate(json.loads(example)))
    kinds = [(f.kind, f.where, f.numbers.get("below"), f.numbers.get("above")) for f in check(a, "grim").findings]
    assert kinds == [("impossible", "small model, Ours, Quiz", "45.00", "46.25")]
