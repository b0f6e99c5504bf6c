"""The figures of a token log: S2T's region, words that are not mathematics, every mask of planted words."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_records as synthetic
import token_logs as logs
from synthetic_log import Token, with_thresholds, write

pytest.importorskip("matplotlib")
pytest.importorskip("wordcloud")
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from stapo_repro import paper
from stapo_repro.figures import groups, tokens
from stapo_repro.figures.paper import draw
from stapo_repro.read import load_training_runs
from stapo_repro.tokens.log import load

SILENCED = logs.row()
FREQUENT = logs.row(logprob=-0.01, entropy=0.3, rare=False, silenced=False, position=7)


@pytest.mark.parametrize(("q", "tau"), [(0.0, -math.inf), (1.0, math.inf)])
def test_where_every_rare_token_is_below_the_threshold_the_region_is_outlined(tmp_path: Path, q: float, tau: float):
    log = load(logs.write(tmp_path, [logs.row(tau_h=tau, silenced=q == 1)], q=q))
    outlined = [p for p in tokens.density(log).figure.findobj(Rectangle) if p.get_gid() == "region"]
    assert len(outlined) == int(q == 1)


def test_words_that_look_like_mathematics_are_words_and_too_few_make_no_cloud(tmp_path: Path):
    counts = {"$x^2$": 9, "$\\nothing{$": 8, "\\$": 7, "_a": 6, "a\x00b": 5, "中": 4, "\u202e": 3}
    log = load(logs.write(tmp_path, [SILENCED]))
    figure = tokens.clouds(log, {"silenced": counts, "kept": {}}).figure
    assert [t.get_text() for t in figure.axes[1].get_yticklabels()] == [
        *("$x^2$", "$\\nothing{$", "\\$", "_a", "a⟨U+0000⟩b", "⟨U+4E2D⟩", "⟨U+202E⟩"),
    ]
    figure.draw_without_rendering()  # "$\\nothing{$" read as mathematics would raise
    figure = tokens.clouds(log, {"silenced": dict.fromkeys("3456", 1), "kept": {}}).figure
    assert not any(axes.images for axes in figure.axes)
    texts = [t.get_text() for t in figure.findobj(Text)]
    assert texts.count("no such token") == 2, "nothing is kept: neither a cloud nor bars"


def test_the_figure_of_planted_words_marks_every_mask(tmp_path: Path):
    for method, selector in (("justrl", "keep_all"), ("stapo", "silence_spurious")):
        synthetic.training_run(tmp_path, method, steps=1)
        planted = with_thresholds([Token(str(i), junk=i < 2, entropy=0.1 * i) for i in range(4)], 0.75)
        own = planted if method == "stapo" else [replace(t, silenced=False) for t in planted]
        write(tmp_path / f"{method}-s0", own, selector=selector)
    (found,) = draw(groups.Experiment.from_records([], load_training_runs([tmp_path]), paper.load()), ["planted"])
    # heading, JustRL (silences none), STAPO; heading, four masks; heading, four masks
    marks = sorted(int(k) for k in re.findall(r'id="planted-(\d+)"', found.files["svg"].decode()))
    assert marks == sorted([2, 4, 5, 6, 7, 9, 10, 11, 12] * 2)
