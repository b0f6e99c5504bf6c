"""The audit of a made-up table: each fault gives its finding and no other; claims; broken files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_table import changed, check, made_up, write

from stapo_repro.audit import gains, grim
from stapo_repro.audit.findings import Check
from stapo_repro.audit.render import to_text
from stapo_repro.audit.run import audit, load_and_audit, load_table
from stapo_repro.audit.schema import AuditTable
from stapo_results.errors import BadInput


def test_noise_by_hand():
    # p = 50 %, 25 problems x 4: variances 2500/100 and 2500/25 a model; two models: sqrt(50) and sqrt(200)
    columns = [{"id": "a", "rows": [25], "samples": 4}, {"id": "m", "mean_of": ["a"]}]
    rows = [{"group": "g", "method": x, "values": {"a": "50.00", "m": "50.00"}} for x in ("new", "old")]
    table = AuditTable.model_validate({**made_up(), "columns": columns, "rows": rows})
    tried = grim.chosen(grim.row_counts(table))
    noise = gains.noise_of(table.rows[0], table.rows[1], table.means[0], tried)
    assert noise is not None
    assert (noise.sampling, noise.unpaired) == pytest.approx((50**0.5, 200**0.5))


def departures(data: dict) -> list[tuple[str, str, str]]:
    """(check, kind, where) of all findings but those on noise, which small benchmarks always have."""
    a = audit(AuditTable.model_validate(data))
    return [(c.id, f.kind, f.where) for c in a.checks for f in c.findings if f.kind != "within noise"]


def test_a_table_without_faults_has_no_findings():
    assert departures(made_up()) == []


def test_each_fault_gives_its_finding_and_no_other():
    data = made_up()
    data["rows"][1]["values"]["quiz"] = "46.20"  # no k / 80; the mean of 46.20 and 42.00 is 44.10
    assert departures(data) == [("grim", "impossible", "A, new, quiz"), ("averages", "average", "A, new, mean")]
    data = made_up()
    data["rows"][2]["values"]["exam"] = "61.00"  # no k / 50
    data["rows"][2]["values"]["mean"] = "57.38"  # of 53.75 and 61.00: 57.375
    assert departures(data) == [("grim", "impossible", "B, old, exam")]
    data = made_up()
    data["rows"][3]["values"]["mean"] = "58.48"
    assert departures(data) == [("averages", "average", "B, new, mean")]
    data = made_up()
    data["rows"][3]["best"] = ["quiz", "exam", "mean"]
    assert departures(data) == [("marks", "mark", "B, exam")]


def test_the_replaced_cell_is_named_only_where_it_explains():
    data = made_up()
    data["rows"][1]["values"]["quiz"] = "46.20"
    (f,) = [f for c in audit(AuditTable.model_validate(data)).checks if c.id == "averages" for f in c.findings]
    assert f.numbers["replaced"] == {"quiz": "46.25"}
    data["rows"][1]["values"]["mean"] = "44.90"
    (f,) = [f for c in audit(AuditTable.model_validate(data)).checks if c.id == "averages" for f in c.findings]
    assert f.numbers["replaced"] == {}
    data["rows"][1]["values"] |= {
        "quiz": "46.25",
        "mean": "44.75",
    }  # the mean with 47.50, which follows 46.25: possible
    (f,) = [f for c in audit(AuditTable.model_validate(data)).checks if c.id == "averages" for f in c.findings]
    assert f.numbers["replaced"] == {}


def test_steps_finer_than_the_digits_say_nothing():
    # 500 x 40 answers: steps of 0.005; every value is a multiple, and none tells how many samples there were
    rows = [{"group": "g", "method": f"m{i}", "values": {"a": f"{i}.00"}} for i in range(30)]
    data = {"schema_version": 1, "source": "s", "columns": [{"id": "a", "rows": [500], "samples": 40}], "rows": rows}
    a = audit(AuditTable.model_validate(data))
    assert check(a, "grim").numbers["possible"] == 30
    assert check(a, "granularity").summary == ["Not checked: no column has steps that its digits show."]
    assert check(a, "row-counts").grid.rows[0][4] == "30.0"


def test_too_few_samples_are_seen():
    # 30 values of a benchmark of 10 problems x 8 that are all multiples of 1/10
    rows = [{"group": "g", "method": f"m{i}", "values": {"a": f"{10 * (i % 10)}.0"}} for i in range(30)]
    data = {"schema_version": 1, "source": "s", "columns": [{"id": "a", "rows": [10], "samples": 8}], "rows": rows}
    (f,) = check(audit(AuditTable.model_validate(data)), "granularity").findings
    assert f.numbers["1/10"]["hits"] == 30
    assert f.numbers["1/10"]["expected"] == 3.75
    # and 30 that go through all multiples of 1/80 are not
    for i, row in enumerate(rows):
        row["values"]["a"] = f"{100 * ((i * 3) % 80) / 80:.2f}"
    assert check(audit(AuditTable.model_validate(data)), "granularity").findings == []


def test_equal_best_values_share_the_mark_and_the_count():
    data = made_up()
    for row in data["rows"][2:]:
        row["values"]["exam"] = "60.00"
    data["rows"][3]["values"]["mean"] = "59.38"  # 59.375
    data["rows"][3]["best"] = ["quiz", "exam", "mean"]
    a = audit(AuditTable.model_validate(data))
    assert check(a, "marks").findings == []
    assert check(a, "marks").numbers["highest"] == {"old": 1, "new": 4}


def test_a_table_without_anything_to_check_says_so():
    data = {"schema_version": 1, "source": "bare", "columns": [{"id": "a"}],
            "rows": [{"group": "g", "method": "m", "values": {"a": "7.6"}}]}  # fmt: skip
    a = audit(AuditTable.model_validate(data))
    assert [f for c in a.checks for f in c.findings] == []
    assert all(c.summary[0].startswith("Not checked") for c in a.checks)


def test_a_relative_gain_over_zero_is_not_a_number():
    data = made_up()
    data["rows"][0]["values"] = {"quiz": "0.00", "exam": "0.00", "mean": "0.00"}
    a = audit(AuditTable.model_validate(data))
    assert check(a, "gains").numbers["A"]["relative_percent"] is None
    assert "n/a" in to_text(a)


# Claims about a table of one's own.


def _claim(**more) -> dict:
    quantity = {"kind": "gain", "method": "new", "column": "mean", "groups": ["A", "B"]}
    return {"id": "c", "version": "1", "place": "p", "about": "a gain", "value": "3.00",
            "quantity": {**quantity, **more}}  # fmt: skip


def judged(tmp_path: Path, *claims: dict) -> Check:
    write(tmp_path / "t.json", made_up())
    write(tmp_path / "c.json", {"schema_version": 1, "source": "made up", "claims": list(claims)})
    return check(load_and_audit(tmp_path / "t.json", tmp_path / "c.json"), "claims")


def test_claims_by_hand(tmp_path):
    # points: 44.12 - 39.62 = 4.50 and 58.38 - 56.88 = 1.50, mean 3.00; relative: 11.358 % and 2.637 %, mean 6.998 %
    c = judged(tmp_path, {**_claim(measure="points", over="strongest")}, {**_claim(), "id": "d", "value": "7.00"},
               {**_claim(measure="relative", over="each"), "id": "e"})  # fmt: skip
    assert {k: v["outcome"] for k, v in c.numbers.items()} == {"c": "agrees", "d": "reading found", "e": "differs"}
    assert [f.kind for f in c.findings] == ["claim: reading found", "claim: differs"]
    assert c.findings[0].numbers["fitting"] == ["relative to the strongest", "relative, all pairs"]


def test_claim_that_unrounded_values_could_give(tmp_path):
    # relative over A: 4.50 / 39.62 = 11.358 %; with values rounded to 0.01 between 11.332 and 11.384
    c = judged(tmp_path, {**_claim(groups=["A"], measure="relative", over="strongest"), "value": "11.34"},
               {**_claim(groups=["A"], measure="relative", over="strongest"), "id": "d", "value": "11.32"})  # fmt: skip
    assert {k: v["outcome"] for k, v in c.numbers.items()} == {"c": "agrees", "d": "differs"}


def test_a_claim_of_another_version_is_not_said_to_differ(tmp_path):
    write(tmp_path / "t.json", changed("version", value="2"))
    for version, outcome in (("1", "another version"), ("2", "differs")):
        claims = {"schema_version": 1, "source": "s", "claims": [{**_claim(), "version": version, "value": "9.99"}]}
        write(tmp_path / "c.json", claims)
        c = check(load_and_audit(tmp_path / "t.json", tmp_path / "c.json"), "claims")
        assert c.numbers["c"]["outcome"] == outcome
        assert [f.kind for f in c.findings] == (["claim: differs"] if version == "2" else [])


def test_a_value_at_the_limit_is_not_below_it(tmp_path):
    quantity = {"kind": "below", "values": ["0.19", "0.20", "0.21"], "limit": "0.2"}
    c = judged(tmp_path, {**_claim(), "quantity": quantity})
    assert c.findings[0].numbers["not_below"] == ["0.20", "0.21"]


def test_advantages_of_another_group_size_are_seen(tmp_path):
    # G = 4, unbiased, 1, 2, 3 right: 1.5, sqrt(3)/2 and 0.5
    quantity = {"kind": "advantages", "values": ["1.50", "0.87", "0.50"], "group_size": 4}
    assert judged(tmp_path, {**_claim(), "quantity": quantity}).findings == []
    c = judged(tmp_path, {**_claim(), "quantity": {**quantity, "group_size": 8}})
    assert [(f.kind, f.numbers["unbiased"]) for f in c.findings] == [("advantages", 0)]


@pytest.mark.parametrize(
    ("change", "found"),
    [({"column": "avg"}, "avg"), ({"groups": ["A", "C"]}, "C"), ({"baselines": ["older"]}, "older")],
)
def test_claims_about_what_the_table_lacks_are_refused(tmp_path, change, found):
    with pytest.raises(BadInput) as e:
        judged(tmp_path, _claim(**change))
    assert e.value.found == found


# Files.


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (changed("rows", 0, "values", "quiz", value=41.25), "rows.0.values.quiz"),
        (changed("rows", 0, "values", "quiz", value="141.25"), "rows.0.values.quiz"),
        (changed("rows", 0, "values", "quiz", value="٤١.25"), "rows.0.values.quiz"),
        (changed("rows", 0, "values", "other", value="41.25"), "unknown columns: other"),
        (changed("rows", 1, "method", value="old"), "A / old"),
        (changed("rows", 0, "source", value="x"), "rows.0.source"),
        (changed("columns", 0, "samples", value=None), "columns.0"),
        (changed("columns", 0, "rows", value=[0]), "columns.0.rows.0"),
        (changed("columns", 0, "mean_of", value=["exam"]), "columns.0"),
        (changed("rows", 0, value={"group": "A", "method": "x", "values": {}, "best": ["quiz"]}), "no value: quiz"),
        (changed("columns", 2, "mean_of", value=["quiz", "nil"]), "nil"),
        (changed("columns", 1, "id", value="quiz"), "quiz"),
        (changed("proposed", value="newest"), "newest"),
        (changed("schema_version", value=2), "schema version"),
        (changed("source", value="\x1b[31mred"), "source"),
        ('{"a": 1, "a": 2}', "schema version"),
        ('{"a": ', "JSON"),
    ],
)
def test_broken_tables_are_refused_with_file_and_key(tmp_path, data, named):
    path = write(tmp_path / "t.json", data)
    with pytest.raises(BadInput) as e:
        load_table(path)
    assert named in str(e.value)
    assert str(path) in str(e.value)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    text = json.dumps(made_up()).replace('"proposed": "new"', '"proposed": "old", "proposed": "new"')
    with pytest.raises(BadInput) as e:
        load_table(write(tmp_path / "t.json", text))
    assert "proposed" in e.value.what
