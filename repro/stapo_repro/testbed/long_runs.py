"""The long trainings one by one, those that judge no claim among them, as a table."""

from __future__ import annotations

from stapo_repro import labels
from stapo_repro.records.reading import TrainingRun
from stapo_repro.tables import shown
from stapo_repro.tables.render import grid
from stapo_repro.testbed.build import Testbed
from stapo_repro.testbed.evidence import run_values
from stapo_repro.testbed.plan import RATES, judges, method_and_rate

_HEAD = ("Learning rate", "Method", "Seed", "Judges", "Entropy (nats), second quarter", "last quarter",
         "Spurious / 100, second quarter", "last quarter", "Validation (%), best", "last", "Reward, last quarter",
         "Collapse at step")  # fmt: skip
_NOTE = (
    "Means over the second quarter of the steps and over the last. Accuracy in validation: the best, and that after "
    "the last step. Collapse as defined below; - where there is none. What does not judge ran before the claims on its "
    "learning rate were written, or its learning rate has none."
)


def block(t: Testbed) -> str:
    """A row a finished training, by learning rate, method and seed."""
    runs = [r for r in t.evidence["long"].runs if r.status == "done"] if t.evidence else []
    order = list(RATES)
    runs.sort(key=lambda r: (order.index(method_and_rate(r.method)[1]), r.method, r.seed))
    claimed = {arm for j in t.claims if j.claim.part == "long" for arm in (j.claim.first, j.claim.second)}
    rows = [_row(r, judges(r.seed) and r.method in claimed) for r in runs] or [["not run"] * len(_HEAD)]
    return "\n".join([*grid(_HEAD, rows, 3), "", f"<sub>{_NOTE}</sub>"])


def _row(run: TrainingRun, counts: bool) -> list[str]:
    method, rate = method_and_rate(run.method)
    found, last = run_values(run.steps), run.steps[-1].step
    accuracies = [s.values["accuracy"] for s in run.steps if "accuracy" in s.values]
    row = [f"{float(RATES[rate]):g}", labels.method_label(method), str(run.seed), "yes" if counts else "no"]
    for name, factor, digits in (("entropy", 1.0, 2), ("spurious", 100.0, 0)):
        late, growth = found.get(f"{name}_late"), found.get(f"{name}_growth")
        both = (None, None) if late is None or growth is None else (late - growth, late)
        row += ["not logged" if x is None else shown(factor * x, digits) for x in both]
    row += [shown(100 * x, 1) for x in (max(accuracies), accuracies[-1])] if accuracies else ["not logged"] * 2
    reward, collapse = found.get("reward_late"), found.get("collapse_step")
    row.append("not logged" if reward is None else shown(reward, 2))
    row.append("not logged" if collapse is None else "-" if collapse > last else f"{collapse:.0f}")
    return row
