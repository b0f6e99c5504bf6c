"""The audit of a made-up table: each fault gives its finding and no other; claims; broken files."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_table import changed, check, made_up, write

from stapo_repro.audit import grim, table_checks
from stapo_repro.audit.findings import Check
from stapo_repro.audit.run import audit, load_and_audit, load_table
from stapo_repro.audit.schema import AuditTable
from stapo_results.errors import BadInput


def audited(data: dict):
    return audit(AuditTable.model_validate(data))


def test_noise_by_hand():
    # p = 50 %, 25 problems x 4: variances 2500/100 and 2500/25 a model; two models: sqrt(50) and sqrt(200)
    columns = [{"id": "a", "rows": [25], "samples": 4}, {"id": "m", "mean_of": ["a"]}]
    rows = [{"group": "g", "method": x, "values": {"a": "50.00", "m": "50.00"}} for x in ("new", "old")]
    table = AuditTable.model_validate({**made_up(), "columns": columns, "rows": rows})
    tried = grim.chosen(grim.row_counts(table))
    noise = table_checks.noise_of(table.rows[0], table.rows[1], table.means[0], tried)
    assert noise is not None
    assert (100 * noise.sampling, 100 * noise.unpaired) == pytest.approx((50**0.5, 200**0.5))


GRIM = ("grim", "impossible")
MEAN = ("averages", "average")


@pytest.mark.parametrize(
    ("row", "change", "expected"),
    [
        (0, {}, []),
        (1, {"quiz": "46.20"}, [(*GRIM, "A, new, quiz"), (*MEAN, "A, new, mean")]),  # no k / 80
        (2, {"exam": "61.00", "mean": "57.38"}, [(*GRIM, "B, old, exam")]),  # no k / 50; of 53.75 and 61.00: 57.375
        (3, {"mean": "58.48"}, [(*MEAN, "B, new, mean")]),
    ],
)
def test_each_fault_gives_its_finding_and_no_other(row, change, expected):
    data = made_up()
    data["rows"][row]["values"] |= change
    a = audited(data)
    # noise aside, within which small benchmarks always are
    assert [(c.id, f.kind, f.where) for c in a.checks for f in c.findings if f.kind != "within noise"] == expected


def test_a_mark_beside_the_highest_value_is_found():
    (f,) = check(audited(changed("rows", 3, "best", value=["quiz", "exam", "mean"])), "marks").findings
    assert (f.kind, f.where) == ("mark", "B, exam")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"quiz": "46.20"}, True),
        ({"quiz": "46.20", "mean": "44.90"}, False),
        ({"mean": "44.75"}, False),  # the mean with 47.50, which follows 46.25: possible
    ],
)
def test_the_replaced_cell_is_named_only_where_it_explains(values, named):
    data = made_up()
    data["rows"][1]["values"] |= values
    (f,) = check(audited(data), "averages").findings
    assert ("46.25 instead of 46.20 at quiz" in f.fact) == named


def column_of(values: list[str], rows: int, samples: int) -> dict:
    return {
        "schema_version": 1, "source": "s", "columns": [{"id": "a", "rows": [rows], "samples": samples}],
        "rows": [{"group": "g", "method": f"m{i}", "values": {"a": v}} for i, v in enumerate(values)],
    }  # fmt: skip


def test_steps_finer_than_the_digits_say_nothing():
    # 500 x 40 answers: steps of 0.005; every value is a multiple, and none tells how many samples there were
    a = audited(column_of([f"{i}.00" for i in range(30)], 500, 40))
    assert check(a, "grim").findings == []
    assert check(a, "granularity").summary == ["Not checked: no column has steps that its digits show."]
    assert check(a, "row-counts").grid.rows[0][4] == "30.0"


def test_too_few_samples_are_seen():
    # 30 values of a benchmark of 10 problems x 8 that are all multiples of 1/10
    few = column_of([f"{10 * (i % 10)}.0" for i in range(30)], 10, 8)
    (f,) = check(audited(few), "granularity").findings
    assert "30 are multiples of 1/10 (3.8 by chance" in f.fact
    # and 30 that go through all multiples of 1/80 are not
    spread = column_of([f"{100 * ((i * 3) % 80) / 80:.2f}" for i in range(30)], 10, 8)
    assert check(audited(spread), "granularity").findings == []


def test_a_table_without_anything_to_check_says_so():
    a = audited({"schema_version": 1, "source": "bare", "columns": [{"id": "a"}],
                 "rows": [{"group": "g", "method": "m", "values": {"a": "7.6"}}]})  # fmt: skip
    assert [f for c in a.checks for f in c.findings] == []
    assert all(c.summary[0].startswith("Not checked") for c in a.checks)


# Claims about a table of one's own.


def _claim(**more) -> dict:
    quantity = {"kind": "gain", "method": "new", "column": "mean", "groups": ["A", "B"]}
    return {"id": "c", "version": "1", "place": "p", "about": "a gain", "value": "3.00",
            "quantity": {**quantity, **more}}  # fmt: skip


def judged(tmp_path: Path, *claims: dict, table: dict | None = None) -> Check:
    write(tmp_path / "t.json", table or made_up())
    write(tmp_path / "c.json", {"schema_version": 1, "source": "made up", "claims": list(claims)})
    return check(load_and_audit(tmp_path / "t.json", tmp_path / "c.json"), "claims")


def outcomes(c: Check) -> list[str]:
    return [r[-1] for r in c.grid.rows]


def test_claims_by_hand(tmp_path):
    # points: 44.12 - 39.62 = 4.50 and 58.38 - 56.88 = 1.50, mean 3.00; relative: 11.358 % and 2.637 %, mean 6.998 %
    c = judged(tmp_path, {**_claim(measure="points", over="strongest")}, {**_claim(), "id": "d", "value": "7.00"},
               {**_claim(measure="relative", over="each"), "id": "e"})  # fmt: skip
    assert outcomes(c) == ["agrees", "reading found", "differs"]
    assert [f.kind for f in c.findings] == ["claim: reading found", "claim: differs"]
    assert "relative to the strongest or relative, all pairs" in c.findings[0].fact


def test_a_claim_of_another_version_is_not_said_to_differ(tmp_path):
    for version, outcome in (("1", "another version"), ("2", "differs")):
        claim = {**_claim(), "version": version, "value": "9.99"}
        c = judged(tmp_path, claim, table=changed("version", value="2"))
        assert outcomes(c) == [outcome]
        assert [f.kind for f in c.findings] == (["claim: differs"] if version == "2" else [])


@pytest.mark.parametrize(
    ("change", "found"),
    [({"column": "avg"}, "avg"), ({"groups": ["A", "C"]}, "C"), ({"baselines": ["older"]}, "older")],
)
def test_claims_about_what_the_table_lacks_are_refused(tmp_path, change, found):
    with pytest.raises(BadInput) as e:
        judged(tmp_path, _claim(**change))
    assert e.value.found == found


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (changed("rows", 0, "values", "quiz", value=41.25), "rows.0.values.quiz"),
        (changed("rows", 0, "values", "quiz", value="141.25"), "rows.0.values.quiz"),
        (changed("rows", 0, "values", "quiz", value="٤١.25"), "rows.0.values.quiz"),
        (changed("rows", 0, "values", "other", value="41.25"), "unknown columns: other"),
        (changed("rows", 1, "method", value="old"), "A / old"),
        (changed("columns", 0, "samples", value=None), "columns.0"),
        (changed("columns", 0, "mean_of", value=["exam"]), "columns.0"),
        (changed("rows", 0, value={"group": "A", "method": "x", "values": {}, "best": ["quiz"]}), "no value: quiz"),
        (changed("columns", 2, "mean_of", value=["quiz", "nil"]), "nil"),
        (changed("proposed", value="newest"), "newest"),
        (changed("schema_version", value=2), "schema version"),
        (changed("source", value="\x1b[31mred"), "source"),
        ('{"a": ', "JSON"),
    ],
)
def test_broken_tables_are_refused_with_file_and_key(tmp_path, data, named):
    path = write(tmp_path / "t.json", data)
    with pytest.raises(BadInput) as e:
        load_table(path)
    assert named in str(e.value)
    assert str(path) in str(e.value)
