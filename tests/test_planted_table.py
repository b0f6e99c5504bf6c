"""The table, the page and the figure of planted words, from records in a folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_records as synthetic
from synthetic_log import Others, Token, with_thresholds, write

from stapo_repro.pages import outputs
from stapo_repro.read import load_training_runs
from stapo_repro.tokens import planted_page
from stapo_results.errors import RecordError

TOKENS = with_thresholds(
    [
        Token("a", junk=True, entropy=0.1),
        Token("b", entropy=0.2),
        Token("b", entropy=0.3),
        Token("a", junk=True, entropy=0.4),
        Token("a", junk=True, rare=False, entropy=0.05),
        Token("c", junk=True, entropy=0.9, step=2),
    ],
    0.75,
)
OTHERS = [Others(correct=14), Others(correct=80, step=2)]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """JustRL and STAPO with logs, 20-Entropy with frequent silenced tokens, GRPO without a log."""
    root = tmp_path / "records"
    for method in ("grpo", "justrl", "stapo", "entropy20"):
        synthetic.training_run(root, method, steps=2)
    write(root / "stapo-s0", TOKENS, OTHERS)
    none = [replace(t, silenced=False) for t in TOKENS]
    write(root / "justrl-s0", none, OTHERS, selector="keep_all")
    write(root / "entropy20-s0", none, [replace(o, silenced=10) for o in OTHERS], selector="top_entropy")
    return root


def table(records: Path) -> str:
    files: dict[Path, bytes] = {}
    outputs.planted_tables(files, [records], Path("x"))
    return files[Path("x/planted.md")].decode()


def test_rows_of_the_table(records):
    text = table(records)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[2] == (
        "| 20-Entropy, seed 0 | all but the top entropies | 20 | 0.00 % †<br><sub>0.00 to 84.19; 0 of 20</sub> "
        "| 0.00 %<br><sub>0.00 to 84.19; 0 of 4</sub> | 0.00 %<br><sub>0 of 3</sub> | 4.00 % (60.00 %) |"
    )  # 1 - sqrt(0.025) = 0.8419: two mini-batches, two prompts
    assert rows[3] == "| JustRL, seed 0 | none | 0 | n/a | 0 of 4 | 0 of 3 | 4.00 % (60.00 %) |"
    assert rows[4].startswith("| STAPO, seed 0 | S2T | 3 | 33.33 %<br><sub>0.00 to 100.00; 1 of 3</sub> | 25.00 %")
    assert any(r.startswith("| random | 3 | 50.00 %<br>") and "1.5 of 3" in r for r in rows)
    assert any(r.startswith("| S2T minus random | -16.67<br>") for r in rows)
    for said in ("† over mini-batches", "SYNTHETIC RECORDS", "### Base model: step 1 of JustRL, seed 0"):
        assert said in text
    assert "GRPO" not in text


def test_without_a_log_or_planted_words_the_table_says_so(tmp_path):
    synthetic.training_run(tmp_path, "stapo", steps=2)
    assert "not run: `stapo-repro miniature`, then `stapo-repro collect`" in table(tmp_path)
    write(tmp_path / "stapo-s0", TOKENS, watch=())  # a log of a real model
    assert "not run" in table(tmp_path)


def test_runs_of_two_base_models_are_refused(records):
    write(records / "stapo-s0", TOKENS, OTHERS, watch=(4, 6, 7))
    with pytest.raises(RecordError, match=r"stapo-s0: 3 ids, 4 to 7[\s\S]*2 ids, 4 to 5"):
        table(records)


def test_the_words_come_from_the_logs_tokenizer_and_stay_text(records):
    from tokenizers import Tokenizer, models

    words = {f"w{i}": i for i in range(16) if i not in (4, 5)} | {"<b>|`": 4, "*hmm": 5}
    file = records / "entropy20-s0" / "token_log" / "tokenizer.json"
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(file))
    assert "Planted: &lt;b>\\|\\`, \\*hmm." in table(records)
    file.write_text("{")
    with pytest.raises(RecordError, match=r"tokenizer\.json: not a tokenizer"):
        planted_page.section(load_training_runs([records]), "x")


def test_the_figure_marks_every_mask_and_is_absent_without_a_log(records, tmp_path):
    pytest.importorskip("matplotlib")

    def drawn(root: Path):
        return outputs.draw([], load_training_runs([root]), ["planted"])

    (found,) = drawn(records)
    assert found.title == "What the masks silence of the planted words (miniature), SYNTHETIC RECORDS"
    # heading, 20-Entropy, JustRL (silences none), STAPO; heading, four masks; heading, four masks
    marks = sorted(int(k) for k in re.findall(r'id="planted-(\d+)"', found.files["svg"].decode()))
    assert marks == sorted([1, 3, 5, 6, 7, 8, 10, 11, 12, 13] * 2)
    assert "over mini-batches" in found.caption
    synthetic.training_run(tmp_path / "bare", "stapo", steps=2)
    assert drawn(tmp_path / "bare") == []
