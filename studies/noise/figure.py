"""The dose-response, and the useful words of every training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stapo_repro.figures.style import Sketch, handle, legend, mark, method_style, name_of, nothing, save, sheet, style
from stapo_repro.read import TrainingRun
from stapo_repro.text import number_shown
from stapo_results.statistics import Number

_OFTEN = 0.5  # useful words a response
_APART, _ASIDE = 1.045, 1.015  # factors of a ratio: arms beside each other, seeds beside their mean


class Dose(NamedTuple):
    """One ratio: its share of coins, and arm -> measure -> mean with its interval."""

    noise: str
    ratio: float
    of: Mapping[str, Mapping[str, Number]]


def dose_response(doses: Sequence[Dose], arms: Sequence[str], titles: Mapping[str, str]) -> Sketch:
    """A panel a measure of `titles`, a mark an arm and ratio."""
    from matplotlib.ticker import NullLocator

    with style():
        figure = sheet(2.7)
        panels = figure.subplots(1, len(titles))
        for axes, (measure, title) in zip(panels, titles.items(), strict=True):
            for i, arm in enumerate(arms):
                at = [d.ratio * _APART ** (i - 1) for d in doses]
                found = [d.of[arm][measure] for d in doses]
                for x, d, n in zip(at, doses, found, strict=True):
                    if n.known:  # hollow: other seeds and steps
                        name = f"{measure} {arm} {d.ratio:g}"
                        axes.plot(
                            [x * _ASIDE] * len(n.seeds), n.seeds, ".", color=method_style(arm).colour, markersize=3
                        )
                        mark(axes, n, x, method_style(arm), name, upright=True, hollow=not float(d.noise))
            if not any(n[measure].known for d in doses for n in d.of.values()):
                nothing(axes)
                continue
            axes.set_xscale("log")
            axes.set_xticks([d.ratio for d in doses], [f"{d.ratio:g}\n{float(d.noise):.0%} coins" for d in doses])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set(title=title, xlabel="times as likely to be rewarded with a useful word")
            axes.set_ylim(0, 104)
        legend(figure, [handle(arm, line=False) for arm in arms])
        least = min(doses, key=lambda d: d.ratio)
        first = next(iter(titles))
        texts = [f"{name} {number_shown(least.of[arm][first], 1)}"
                 for name, arm in (("S2T", "stapo"), ("random mask", "stapo-random"), ("no mask", "justrl"))
                 if least.of[arm][first].known]  # fmt: skip
        return save(Sketch(
            "noise_dose", "Which masks learn a rare useful word, by how much it helps", figure,
            "World costly. A coin in a share of the rewards makes a useful word less telling. Means over seeds with "
            "95 % t intervals, over the validations from step 20 to the last at temperature 1; useful words over the "
            "last quarter of the steps. Small: each seed. Intervals are cut at the axes. Hollow: without coins, "
            "the testbed's trainings of 40 steps and other seeds. 60 steps do not tell a lost word from a late one.",
            finding=f"At {least.ratio:g}, longer problems (%): {', '.join(texts)}" if texts else "",
        ))  # fmt: skip


def useful_words(runs: Sequence[TrainingRun], names: Mapping[str, str], noise: str) -> Sketch:
    """A line a training: useful words per 100 responses, by step.

    Args:
        runs: finished trainings of the judged seeds.
        names: arm -> the method label of its runs.
    """
    with style():
        figure = sheet(2.5)
        panels = figure.subplots(1, len(names), sharex=True, sharey=True)
        learnt = {}
        for axes, (arm, name) in zip(panels, names.items(), strict=True):
            how, last = method_style(arm), []
            for run in (r for r in runs if r.method == name):
                rates = run.series("useful_rate")
                axes.plot([*rates], [100 * v for v in rates.values()], color=how.colour, linewidth=0.9)
                last.append(rates[max(rates)])
            learnt[arm] = f"{name_of(arm)} {sum(v > _OFTEN for v in last)} of {len(last)}"
            axes.set(title=name_of(arm), xlabel="training step")
            if not last:
                nothing(axes)
        panels[0].set(ylabel="useful words per 100 responses", ylim=(0, None))
        return save(Sketch(
            "noise_useful", f"Rare useful words while {float(noise):.0%} of the rewards are a coin", figure,
            "World costly. A line a training. The arms of a seed share base, prompts and coins. Of the rare tokens "
            "of right responses the random mask silences as large a share as S2T.",
            finding=f"More than {100 * _OFTEN:.0f} at the last step: {', '.join(learnt.values())}" if runs else "",
        ))  # fmt: skip
