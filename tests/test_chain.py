"""The whole chain with stand-ins for the other two wings: table, figures, summary, judged claims."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from stapo_repro import cli
from stapo_repro.driver.request import console_script, cpu_run, named_or_counted, parse_seeds
from stapo_repro.driver.run import main as driver_main
from stapo_repro.driver.testbed_request import of_testbed
from stapo_results.errors import BadInput

# Stands in for the two other wings: writes small synthetic outputs where the real commands would.
WINGS = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import synthetic_records as synthetic
    import token_logs
    command, arguments = sys.argv[1], sys.argv[2:]
    named = dict(a.split("=") for a in arguments if "=" in a)
    after = lambda name: Path(arguments[arguments.index(name) + 1])
    if command == "base":
        for name in ("model", "data", "benchmarks"):
            (after("--out") / name).mkdir(parents=True)
            (after("--out") / name / "file").write_text(name)
    elif command == "run" and named:
        out = Path(named["run.out"])
        method = named.get("run.method", named["method"])
        rates = {"useful_rate": 0.5, "spurious_rate": 0.1 + 0.1 * int(named["run.seed"]) * (method == "stapo")}
        synthetic.training_run(out.parent, method, int(named["run.seed"]), int(named["run.steps"]), more=rates)
        (out / "checkpoints").mkdir()
        token_logs.write(out, [token_logs.row(step=k) for k in range(1, int(named["run.steps"]) + 1)])
    elif command == "export":
        after("--out").mkdir(parents=True)
        (after("--out") / "weights").write_text("w")
    else:
        out = after("--out")
        method, _, seed = out.name.rpartition("-s")
        method, seed = method or out.name, int(seed) if method else 0
        right = {"base": "1000", "justrl": "1100"}.get(method, "1110")
        for name in ("samples.jsonl", "verdicts.jsonl"):
            out.mkdir(parents=True, exist_ok=True)
            (out / name).touch()
        for benchmark in after("--benchmarks").name.split(","):
            for setting in ("t1.0", "t0.7"):
                verdicts = [right, right[1:] + "0"] * 8
                synthetic.cell(out.parent, method, benchmark, setting, verdicts, seed=seed, folder=out.name)
    """
)


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """The other wings' commands replaced by ones that write made-up records at once."""
    wings = tmp_path / "wings.py"
    wings.write_text(WINGS)
    script = tmp_path / "wing"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={Path(__file__).parent}:$PYTHONPATH exec {sys.executable} {wings} "$@"\n')
    script.chmod(0o755)
    real = console_script
    monkeypatch.setattr(
        "stapo_repro.driver.request.console_script", lambda n, _=None: real(n) if n == "stapo-repro" else str(script)
    )
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_whole_chain_with_stand_ins_ends_with_table_figures_and_summary(tmp_path, capsys):
    out = tmp_path / "run"
    assert driver_main(cpu_run(out, quick=True)) == 0
    text = capsys.readouterr().out
    # problem means alternate .75 .5 (STAPO) and .25 0 (base): 62.5 against 12.5, every difference .5
    assert "62.50 (62.50)" in text
    assert "peak memory" in text
    made = ("tables/main_table.md", "figures/miniature_training_curves.svg", "tokens/stapo-s0/index.html")
    for name in (*made, "stages.jsonl"):
        assert (out / name).stat().st_size > 0
    ledger = (out / "stages.jsonl").read_bytes()
    assert driver_main(cpu_run(out, quick=True)) == 0
    assert (out / "stages.jsonl").read_bytes() == ledger
    assert capsys.readouterr().out.count("finished before") == 11


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_whole_testbed_with_stand_ins_judges_the_claims_and_takes_further_seeds(tmp_path, capsys):
    out, asked = tmp_path / "run", {"worlds": "paper", "arms": "justrl,stapo", "steps": 40}
    assert driver_main(of_testbed(out, seeds="0,1", **asked)) == 0
    text = capsys.readouterr().out
    assert "not distinguishable 3   s2t-lowers-the-spurious" in text
    assert "not run             4a  s2t-beats-the-full-mask" in text
    for name in ("tables/testbed.md", "tables/testbed.json", "figures/testbed_rates.svg"):
        assert (out / name).stat().st_size > 0
    assert not (out / "tables" / "main_table.md").exists()
    # another seed goes into the same folder; what is there is not made again, but the page is
    assert driver_main(of_testbed(out, seeds="0,1,2", **asked)) == 0
    text = capsys.readouterr().out
    assert text.count("finished before") == 2 + 4 * 3
    assert "of 2 seeds" not in (out / "tables" / "testbed.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_a_method_of_ones_own_ends_with_where_it_stands(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text("run: {method: mine}")
    assert driver_main(of_testbed(tmp_path / "run", method=str(file), worlds="paper", seeds="0,1", steps=40)) == 0
    text = capsys.readouterr().out
    assert "mine beside the committed arms" in text
    assert "stapo-repro collect" not in text


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0", (0,)),
        ("3", (3,)),
        ("0,2", (0, 2)),
        ("4,1", (4, 1)),
        ("1,,", None),
        ("1,1", None),
        ("-1", None),
    ],
)
def test_seeds_are_named(text: str, seeds: tuple[int, ...] | None) -> None:
    if seeds is None:
        with pytest.raises(BadInput):
            parse_seeds(text)
    else:
        assert parse_seeds(text) == seeds


@pytest.mark.parametrize(("named", "count", "seeds"), [
    (None, None, None), ("3", None, "3"), (None, 3, "0,1,2"), (None, 1, "0"), (None, 0, BadInput), ("3", 3, BadInput),
])  # fmt: skip
def test_seeds_are_named_or_counted(named: str | None, count: int | None, seeds: str | None) -> None:
    if seeds is BadInput:
        with pytest.raises(BadInput):
            named_or_counted(named, count)
    else:
        assert named_or_counted(named, count) == seeds


@pytest.mark.parametrize(("given", "trained"), [(("--seeds", "3"), [3]), (("--seed-count", "3"), [0, 1, 2])])
@pytest.mark.parametrize("command", [
    "plan stapo/qwen3-8b --records .",
    pytest.param("run stapo/mini --dry-run", marks=pytest.mark.slow),
    pytest.param("testbed --worlds paper --arms stapo --dry-run", marks=pytest.mark.slow),
])  # fmt: skip
def test_every_command_takes_seeds_by_name_or_count(command, given, trained, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main([*command.split(), *given])
    shown = re.findall(r"(?m)train/stapo\S*-s(\d+):|^stapo/qwen3-8b(?: s(\d))? +training", capsys.readouterr().out)
    assert [int(a or b or 0) for a, b in shown] == trained
