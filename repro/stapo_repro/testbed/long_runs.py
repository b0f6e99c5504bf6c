"""The long trainings one by one, those that judge no claim among them, as a table."""

from __future__ import annotations

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.testbed.build import Testbed
from stapo_repro.testbed.claims import judging
from stapo_repro.testbed.evidence import COLLAPSE, FOR_GOOD, collapse_step, run_values
from stapo_repro.testbed.plan import RATES, method_and_rate, rate_text
from stapo_repro.text import grid, shown

LEARNT = 0.9  # accuracy in validation: a training that has never reached it has nothing to lose
_HEAD = ("Learning rate", "Method", "Seed", "Judges", "Entropy (nats), second quarter", "last quarter",
         "Spurious / 100, second quarter", "last quarter", "Validation (%), best", "last", "Reward, last quarter",
         "Learnt by step", "Collapse at step")  # fmt: skip
_NOTE = (
    "Means over the second quarter of the steps and over the last. Accuracy in validation: the best, and that after "
    f"the last step; learnt: the first of at least {100 * LEARNT:g} %. Collapse: the first validation from which "
    f"accuracy stays more than {100 * COLLAPSE:g} points under its best before, to the end and for {FOR_GOOD} "
    "validations at least. "
    "What does not judge is exploratory: it was seen, at least in part, before the claims were written, or no claim "
    "names it."
)


def block(t: Testbed) -> str:
    """A row a finished training, by learning rate, method and seed."""
    runs = [r for r in t.evidence["long"].runs if r.status == "done"] if t.evidence else []
    order = list(RATES)
    runs.sort(key=lambda r: (order.index(method_and_rate(r.method)[1]), r.method, r.seed))
    claims = [j.claim for j in t.claims]
    rows = [_row(r, judging(claims, r.method, r.seed)) for r in runs] or [["not run"] * len(_HEAD)]
    return "\n".join([*grid(_HEAD, rows, 3), "", f"<sub>{_NOTE}</sub>"])


def _row(run: TrainingRun, judges: bool) -> list[str]:
    method, rate = method_and_rate(run.method)
    found = run_values(run.steps)
    validations = [(s.step, s.values["accuracy"]) for s in run.steps if "accuracy" in s.values]
    accuracies = [a for _, a in validations]
    row = [rate_text(rate), labels.method_label(method), str(run.seed), "yes" if judges else "no"]
    for name, factor, digits in (("entropy", 1.0, 2), ("spurious", 100.0, 0)):
        late, growth = found.get(f"{name}_late"), found.get(f"{name}_growth")
        both = (None, None) if late is None or growth is None else (late - growth, late)
        row += ["not logged" if x is None else shown(factor * x, digits) for x in both]
    row += [shown(100 * x, 1) for x in (max(accuracies), accuracies[-1])] if accuracies else ["not logged"] * 2
    reward = found.get("reward_late")
    row.append("not logged" if reward is None else shown(reward, 2))
    learnt = next((step for step, a in validations if a >= LEARNT), "never")
    collapse = collapse_step(validations)
    return [*row, str(learnt), "none" if collapse is None else str(collapse)]
