"""The rare tokens of a run on a page: counts against those of the planted table, cases in their order."""

from __future__ import annotations

import dataclasses

from stapo_repro.paper import checkout
from stapo_repro.read import TrainingRun
from stapo_repro.text import model_text
from stapo_repro.tokens import rare_page
from stapo_results.sizes import SMALL

LOG = checkout() / "results" / "records" / "miniature" / "train" / "stapo-s0"
RUN = TrainingRun("stapo", SMALL, 0, "train/stapo-s0", "done", [], folder=LOG)


def test_counts_and_cases_of_a_log():
    other = dataclasses.replace(RUN, method="grpo", folder=LOG.parent)
    lines = rare_page.page_block([other, RUN]).splitlines()
    assert lines.pop(3).startswith("| GRPO, seed 0 | no token log |")
    # docs/tokens.md: 284 silenced, 342 rare planted tokens, which are 81.24 % of the rare
    name, steps, tokens, positive, rare, silenced, several = (c.strip() for c in lines[2].strip("| ").split(" | "))
    assert (name, steps, silenced) == ("STAPO, seed 0", "30", "284")
    assert int(rare) == round(342 / 0.8124) == 421
    assert round(100 * 344 / int(positive.replace(",", "")), 2) == 1.26  # the base rate of planted tokens
    assert int(tokens.replace(",", "")) > int(positive.replace(",", ""))
    assert several == "53 of 120"  # four mini-batches a step
    cases = [line for line in lines if "<b>" in line][1:]
    assert len(cases) == 24
    assert {c.rpartition(" | ")[2].strip(" |") for c in cases} == {"silenced", "kept"}
    found = [int(c.split(" | ")[1]) for c in cases]
    assert found == sorted(found)


def test_without_runs_it_is_not_run():
    assert rare_page.page_block([]) == "Not run."


def test_a_models_text_is_no_markup():
    assert model_text("a_b $x$ ~c~ &lt; <b>|\u202e\n") == r"a\_b \$x\$ \~c\~ &amp;lt; &lt;b>\|⟨U+202E⟩ "
