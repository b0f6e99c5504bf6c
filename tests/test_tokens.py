"""`stapo-repro tokens`: counts and norms worked out by hand, the comparison with the metrics, odd logs, hostile
text, the command."""

from __future__ import annotations

import json
import math
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import token_logs as logs

pytest.importorskip("matplotlib")
pytest.importorskip("wordcloud")
from stapo_repro import cli
from stapo_repro.paper import checkout
from stapo_repro.report import analyse
from stapo_repro.text import small_percent
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import load, marked
from stapo_results import token_log
from stapo_results.errors import RecordError, RunFailed
from stapo_results.provenance import new_run
from stapo_results.store import write_json

# p = e^-7 = 0.00091 is rare, e^-6 = 0.0025 is not; of two entropies the one below 0.5 is silenced
SILENCED = logs.row()
KEPT = logs.row(entropy=2.0, silenced=False, token=logs.ids("8")[0], position=6)
FREQUENT = logs.row(logprob=-0.01, entropy=0.3, rare=False, silenced=False, position=7)
WRONG = logs.row(advantage=-1.0, rare=False, silenced=False, position=8)
TRAINED = checkout() / "results" / "records" / "miniature" / "train" / "stapo-s0"


def command(*args: str | Path) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["tokens", *map(str, args)])
    return int(end.value.code or 0)


def test_quadrants_by_hand(tmp_path: Path):
    # |A| sqrt(1 - 2 p + collision): with A = 1, p -> 0 and a collision of 0.44, 1.2; twice that with A = 2
    tiny = {"logprob": -40.0, "collision": 0.44}
    rows = [
        logs.row(**tiny),
        logs.row(**tiny, advantage=2.0, position=6),
        logs.row(**tiny, position=7, mini_batch=2),
        logs.row(**tiny, position=8, entropy=0.9, silenced=False),
        logs.row(**tiny, position=9, clipped=True, entropy=0.9, silenced=False),
        WRONG,
        FREQUENT,
        FREQUENT | {"mini_batch": 3},  # without a rare token: neither high nor low entropy
    ]
    none, frequent, kept, silenced = numbers.quadrants(load(logs.write(tmp_path, rows)))
    assert (none.tokens, none.share, none.norm.known) == (0, 0, False)
    assert (frequent.tokens, frequent.share) == (1, 1 / 6)
    assert (kept.rare, kept.below, kept.tokens) == (True, False, 2)
    assert kept.norm.mean == pytest.approx(0.6)  # one of the two is clipped
    assert not kept.norm.has_interval  # one mini-batch
    # mini-batch 1: sum 3.6 of 2 tokens; mini-batch 2: 1.2 of 1. Mean 1.6; residuals 0.4 and -0.4;
    # se = sqrt(2 / 1 x 0.32) / 3 = 0.26667; t(1 degree of freedom) = 12.7062
    assert silenced.tokens == 3
    assert silenced.norm.mean == pytest.approx(1.6)
    assert silenced.norm.high == pytest.approx(1.6 + 12.7062 * 0.8 / 3, rel=1e-5)


def test_the_share_of_rising_tokens_is_exact_in_either_mode(tmp_path: Path):
    falls = logs.row(logprob=-0.01, entropy=0.05, rare=False, silenced=False)  # log p + H = 0.04
    more = [falls, falls, falls | {"logprob": -0.06}]
    for mode in ("full", "on"):
        rows, counted = ([*more, SILENCED], []) if mode == "full" else ([SILENCED], more)
        found = numbers.quadrants(load(logs.write(tmp_path / mode, rows, counted, mode=mode)))
        assert [q.entropy_rises for q in found] == [None, pytest.approx(1 / 3), None, 1.0]


def test_silenced_tokens_equal_the_metrics(tmp_path: Path):
    rows = [SILENCED, KEPT, logs.row(mini_batch=2), logs.row(step=2), logs.row(step=3, silenced=False), WRONG]
    run = logs.write(tmp_path, rows)
    # step 1: the mean 1 over two mini-batches is two tokens; step 3 silences none; the last attempt counts
    logs.metrics(run, {1: 7.0, 2: 1.0, 3: 0.0})
    logs.metrics(run, {1: 1.0, 2: 1.0, 3: 0.0}, attempt=1)
    names = ("step", "mini_batches", "tokens", "rare", "region", "silenced", "in_rows", "metric")
    rows = ((1, 2, 4, 3, 2, 2, 2, 2), (2, 1, 1, 1, 1, 1, 1, 1), (3, 1, 1, 1, 1, 0, 0, 0))
    assert numbers.by_step(load(run)) == [dict(zip(names, row, strict=True)) for row in rows]
    logs.metrics(run, {1: 1.25}, attempt=2)  # two and a half tokens
    with pytest.raises(RunFailed, match="step 1"):
        numbers.by_step(load(run))


def test_a_difference_is_an_error_that_names_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = logs.write(tmp_path, [SILENCED, logs.row(step=2)])
    logs.metrics(run, {2: 3.0})
    assert command(run) == 1
    said = capsys.readouterr().err
    assert all(x in said for x in ("step 2", "1 in the log", "3 in the metrics"))
    assert not (run / "tokens").exists()


@pytest.mark.parametrize("lost", [1, 3])
def test_a_finished_trainings_log_has_its_first_and_last_step(tmp_path: Path, lost: int):
    run = logs.write(tmp_path, [logs.row(step=step) for step in (1, 2, 3) if step != lost])
    logs.metrics(run, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0})
    record = new_run("train", {}, seeds={}, deterministic=True)
    write_json(run / "run.json", record)
    load(run)
    write_json(run / "run.json", record.model_copy(update={"status": "done"}))
    with pytest.raises(RecordError, match="lacks steps") as caught:
        load(run)
    assert caught.value.found == f"none of step {lost}"


def test_rows_that_lack_a_silenced_token_are_an_error_unless_left_out(tmp_path: Path):
    with pytest.raises(RunFailed, match="step 1"):
        numbers.by_step(load(logs.write(tmp_path / "a", [SILENCED], [logs.row(position=9)])))
    log = load(logs.write(tmp_path / "b", [SILENCED], [logs.row(position=9)], left_out=1))
    assert [(c["silenced"], c["in_rows"], c["metric"]) for c in numbers.by_step(log)] == [(2, 1, None)]


def test_the_thresholds_of_the_mini_batches(tmp_path: Path):
    rows = [SILENCED, logs.row(mini_batch=2, tau_h=0.7), logs.row(mini_batch=3, tau_h=1.5), logs.row(step=2)]
    rows.append(logs.row(step=3, tau_h=None, rare=False, silenced=False))
    assert numbers.threshold(load(logs.write(tmp_path, rows))) == (0.5, 0.6, 1.5)


def test_a_method_that_silences_nothing_shows_what_s2t_would(tmp_path: Path):
    rows = [r | {"silenced": False} for r in (SILENCED, KEPT, FREQUENT)]
    log = load(logs.write(tmp_path, rows, selector="keep_all"))
    assert numbers.words(log) == {"S2T would silence": {"7": 1}, "S2T would keep": {"8": 1}}


def test_a_mask_over_rare_tokens_is_shown_whatever_its_name(tmp_path: Path):
    """The other of two rare tokens is silenced than S2T would; a mask that also silences a frequent token is none."""
    other = [logs.row(silenced=False), logs.row(entropy=2.0, token=logs.ids("8")[0], position=6)]
    log = load(logs.write(tmp_path / "mine", other, selector="mine.py:f"))
    assert numbers.words(log) == {"silenced": {"8": 1}, "kept": {"7": 1}}
    more = [*other, logs.row(logprob=-0.01, entropy=0.3, rare=False, position=7)]
    log = load(logs.write(tmp_path / "more", more, selector="mine.py:f"))
    assert numbers.words(log) == {"S2T would silence": {"7": 1}, "S2T would keep": {"8": 1}}


def test_ranking_is_by_count_then_text(tmp_path: Path):
    tokens = [logs.ids(c)[0] for c in "993311 "]
    found = numbers.words(load(logs.write(tmp_path, [logs.row(token=t, position=i) for i, t in enumerate(tokens)])))
    assert list(found["silenced"].items()) == [("1", 2), ("3", 2), ("9", 2), (" ", 1)]
    assert found["kept"] == {}


def test_cases_begin_with_the_least_likely_silenced_ones(tmp_path: Path):
    rows = [logs.row(logprob=-7.0 - i / 10, position=i) for i in range(4)]
    rows += [KEPT | {"logprob": -8.0 - i, "position": 10 + i} for i in range(3)]
    log = load(logs.write(tmp_path, rows))
    assert [c["position"] for c in numbers.cases(log, 3)] == [3, 2, 12]
    assert [c["part"] for c in numbers.cases(log, 6)] == ["silenced"] * 4 + ["kept"] * 2
    assert [c["position"] for c in numbers.cases(log, 100)] == [3, 2, 1, 0, 12, 11, 10]
    one = numbers.cases(log, 1)[0]
    assert (one["before"], one["after"]) == ("What is 12 + 30?", "\n\n4")
    assert one["probability"] == pytest.approx(math.exp(-7.3))
    assert one["top"][0] == ("3", pytest.approx(math.exp(-0.1)))


@pytest.mark.parametrize("rows", [[], [WRONG | {"tau_h": None}]])
def test_logs_without_rare_tokens_give_a_page(tmp_path: Path, rows: list[dict]):
    files, _ = analyse(load(logs.write(tmp_path, rows)))
    value = json.loads(files["tokens.json"])
    assert (value["cases"], value["threshold"]) == ([], None)


@pytest.mark.parametrize(("q", "tau"), [(0.0, -math.inf), (1.0, math.inf)])
def test_thresholds_that_are_infinite(tmp_path: Path, q: float, tau: float):
    rows = [logs.row(tau_h=tau, silenced=q == 1, position=i, step=1 + i) for i in range(3)]
    log = load(logs.write(tmp_path, rows, q=q))
    assert numbers.threshold(log) is None
    assert [c["region"] for c in numbers.by_step(log)] == [int(q == 1)] * 3
    assert numbers.cases(log, 1)[0]["tau_h"] is None


@pytest.mark.slow
def test_the_command_writes_the_same_bytes_again_and_the_page_loads_nothing(tmp_path: Path):
    rows = [SILENCED, KEPT, logs.row(mini_batch=2), logs.row(step=2)]
    files, _ = analyse(load(logs.write(tmp_path, rows, [FREQUENT, WRONG], mode="on")))
    assert command(tmp_path) == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "tokens").iterdir()} == files
    pictures = {name.removesuffix(".svg") for name in files if name.endswith(".svg")}
    html = files["index.html"].decode()
    assert set(re.findall(r'<figure id="f-(\w+)">', html)) == pictures
    assert not re.search(r"<script|<link|url\(|@import", html)
    assert not re.findall(r' src="(?!data:image/svg)', html)


def test_bad_folders_are_refused(tmp_path: Path):
    assert command(tmp_path) == 2
    run = logs.write(tmp_path / "run", [SILENCED])
    assert command(run, "--top", "-1") == 2
    tokenizer = run / token_log.FOLDER / token_log.TOKENIZER
    tokenizer.write_text('{"version": "1.0"}')
    with pytest.raises(RecordError, match=r"tokenizer\.json"):
        load(run)
    tokenizer.unlink()
    with pytest.raises(RecordError, match="tokenizer"):
        load(run)


def test_the_example_on_the_front_page_is_in_the_committed_log():
    log = load(checkout() / "results/records/real/train/stapo-s0")
    found = [numbers.case(log.vocabulary, row, "") for row in log.records(np.flatnonzero(log.silenced))]
    (one,) = [c for c in found if c["step"] == 10 and c["token"] == "/p"]
    text = (checkout() / "README.md").read_text(encoding="utf-8")
    (top, p), entropy = one["top"][0], one["entropy"]
    said = (
        small_percent(one["probability"]),
        f"*{top.strip()}* {small_percent(p, 2)}",
        f"{entropy:.2f} nats",
    )
    assert [x for x in said if x not in text] == []
    ((before, after),) = re.findall(r"`(.+)` \*\*/p\*\* `(.+)`", text)
    assert one["before"].endswith(before)
    assert one["after"].startswith(after)


HOSTILE = "</script><script>alert(1)</script></pre><img src=x onerror=alert(1)>"
UNSEEN = "\u202eright\u200b\x00\x1b[31m"


def test_a_page_of_one_mini_batch_shows_no_interval(tmp_path: Path):
    files, _ = analyse(load(logs.write(tmp_path / "run", [SILENCED])))
    cells = re.findall(r"<td>([^<]*)</td>", files["index.html"].decode())
    assert cells
    assert not [c for c in cells if "nan" in c]


def test_the_page_has_no_element_of_the_model(tmp_path: Path):
    around = logs.ids(f"{HOSTILE} `code` | $x$ <!-- & &amp; {UNSEEN}")
    rows = [logs.row(token=t, position=i, prompt_id=HOSTILE, before=around, after=around, top_tokens=around[i : i + 5])
            for i, t in enumerate(sorted(set(around)))]  # fmt: skip
    files, _ = analyse(load(logs.write(tmp_path / "run", rows)), top=len(rows))
    html = files["index.html"].decode()
    assert not re.search(r"<(script|base|iframe|[^>]*\son\w+=|[^>]*\sstyle=|img src=(?!\"data:image/svg))", html)
    assert HOSTILE in unescape(html)
    assert "⟨U+202E⟩right⟨U+200B⟩⟨U+0000⟩⟨U+001B⟩[31m" in html
    assert not set(html) & set("\u202e\u200b\x00\x1b")


def test_tokens_of_white_space_bytes_and_no_vocabulary_are_seen(tmp_path: Path):
    words = load(logs.write(tmp_path, [logs.row()])).vocabulary
    assert words.one(logs.tokenizer().token_to_id("<0xE4>")) == "\ufffd"
    assert (words.one(99_999), words.one(-1)) == ("⟨id 99999⟩", "⟨id -1⟩")
    assert (words.several([99_999, *logs.ids("7")]), words.several(logs.ids("中"))) == ("⟨id 99999⟩7", "中")
    assert marked("") == "(empty)"
    assert marked("a\u00a0b\u3000\tc \n") == "a⟨U+00A0⟩b⟨U+3000⟩⇥c␣⏎"
