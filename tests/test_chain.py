"""The whole chain with stand-ins for the other two wings: table, figures, summary, judged claims."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from stapo_repro.driver.request import console_script, miniature, parse_seeds
from stapo_repro.driver.run import main as driver_main
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
        synthetic.training_run(out.parent, named["method"], int(named["run.seed"]), int(named["run.steps"]))
        (out / "checkpoints").mkdir()
        token_logs.write(out, [token_logs.row(step=k) for k in range(1, int(named["run.steps"]) + 1)])
    elif command == "export":
        after("--out").mkdir(parents=True)
        (after("--out") / "weights").write_text("w")
    else:
        out = after("--out")
        method, _, seed = out.name.rpartition("-s")
        method, seed = method or out.name, int(seed) if method else 0
        right = {"base": "1000", "justrl": "1100", "stapo": "1110"}[method]
        for name in ("samples.jsonl", "verdicts.jsonl"):
            out.mkdir(parents=True, exist_ok=True)
            (out / name).touch()
        for benchmark in ("mini-add", "mini-add-hard"):
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
    assert driver_main(miniature(out, quick=True)) == 0
    text = capsys.readouterr().out
    # problem means alternate .75 .5 (STAPO) and .25 0 (base): 62.5 against 12.5, every difference .5
    assert "62.50 (62.50)" in text
    assert "peak memory" in text
    made = ("tables/main_table.md", "figures/miniature_training_curves.png", "tokens/stapo-s0/index.html")
    for name in (*made, "stages.jsonl"):
        assert (out / name).stat().st_size > 0
    ledger = (out / "stages.jsonl").read_bytes()
    assert driver_main(miniature(out, quick=True)) == 0
    assert (out / "stages.jsonl").read_bytes() == ledger
    assert capsys.readouterr().out.count("finished before") == 11


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_whole_ablation_with_stand_ins_judges_the_claims(tmp_path, capsys):
    out = tmp_path / "run"
    assert driver_main(miniature(out, experiment="ablation", methods="justrl,stapo")) == 0
    text = capsys.readouterr().out
    # STAPO 62.5 and JustRL 37.5 for every seed, every problem 25 points apart
    assert "holds               stapo-beats-justrl-at-training-temperature" in text
    assert "not run             low-entropy-mask-beats-random-mask" in text
    assert "tables/ablation.md" in text.replace("\n", "")
    for name in ("tables/ablation.md", "tables/ablation.json", "figures/ablation_training_curves.png"):
        assert (out / name).stat().st_size > 0
    assert not (out / "tables" / "main_table.md").exists()
    assert "High-entropy mask seeds 0, 1, 2" in (out / "tables" / "ablation.md").read_text()
    # its trainings are read by the tables stage: another one is another table
    metrics = out / "train" / "stapo-s1" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"entropy":0.', '"entropy":1.'))
    assert driver_main(miniature(out, experiment="ablation", methods="justrl,stapo")) == 0
    text = capsys.readouterr().out
    assert "train/stapo-s1 is made again" in text


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0", (0,)),
        ("3", (0, 1, 2)),
        ("1", (0,)),
        ("0,2", (0, 2)),
        ("4,1", (4, 1)),
        ("100,", (100,)),
        ("1,,", None),
        ("-1", None),
    ],
)
def test_seeds_are_named_or_counted(text: str, seeds: tuple[int, ...] | None) -> None:
    if seeds is None:
        with pytest.raises(BadInput):
            parse_seeds(text)
    else:
        assert parse_seeds(text) == seeds
