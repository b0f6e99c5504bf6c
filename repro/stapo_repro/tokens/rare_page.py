"""The rare tokens of the small model's trainings, on its page: how many there are, and each in its sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stapo_repro import labels
from stapo_repro.records.reading import TrainingRun
from stapo_repro.tables.render.markdown import escape, grid, model_text
from stapo_repro.tokens.logged_run import LoggedRun, load, marked
from stapo_repro.tokens.numbers import case
from stapo_results import token_log

_HEAD = ("Run", "Steps", "Response tokens", "With A > 0", "Rare", "Of them S2T's", "Mini-batches with two or more")
_CASES = 24
_AROUND = 40  # characters on each side


def page_block(runs: Sequence[TrainingRun]) -> str:
    """A line a run; then the rare tokens of the first run, in the order of the training.

    Raises:
        RecordError: a token log that is damaged.
    """
    if not runs:
        return "Not run."
    # STAPO's own tokens first, else those that it would silence of JustRL
    order = sorted(runs, key=lambda r: (r.method != "stapo", r.method != "justrl", r.method, r.seed))
    names = [f"{labels.method_label(r.method)}, seed {r.seed}" for r in order]
    logs = [load(r.folder) if (r.folder / token_log.FOLDER).is_dir() else None for r in order]
    nothing = ["no token log", *[""] * (len(_HEAD) - 2)]
    rows = [[escape(n), *(_counts(log) if log else nothing)] for n, log in zip(names, logs, strict=True)]
    lines = grid(_HEAD, rows)
    for name, log in [(n, log) for n, log in zip(names, logs, strict=True) if log][:1]:
        lines += ["", f"The rare tokens of {name}, the first {_CASES} at most:", "", *_cases(log)]
    return "\n".join(lines)


def _counts(log: LoggedRun) -> list[str]:
    tokens, positive = log.counts["tokens"], log.counts["sign"] > 0
    rare, below = log.counts["rare"].astype(bool) & positive, log.counts["below"].astype(bool)
    batches: dict[tuple[int, int], int] = {}
    for step, batch, n in zip(log.counts["step"].tolist(), log.counts["mini_batch"].tolist(),
                              np.where(rare, tokens, 0).tolist(), strict=True):  # fmt: skip
        batches[step, batch] = batches.get((step, batch), 0) + n
    several = sum(n > 1 for n in batches.values())
    numbers = (tokens.sum(), tokens[positive].sum(), tokens[rare].sum(), tokens[rare & below].sum())
    steps = len({step for step, _ in batches})
    return [f"{steps}", *(f"{int(n):,}" for n in numbers), f"{several} of {len(batches)}"]


def _cases(log: LoggedRun) -> list[str]:
    index = log.rows["rare"].nonzero()[0][:_CASES]
    rows = []
    for i, row in zip(index.tolist(), log.records(index), strict=True):
        one = case(log.vocabulary, row, log.part_names[0 if log.silenced[i] else 1])
        top = f"{marked(one.top[0][0])} ({one.top[0][1]:.2f})" if one.top else ""
        # the prompt's last line is no part of the response
        before = one.before.rpartition("assistant\n")[2][-_AROUND:]
        text = f"{model_text(before)}<b>{model_text(marked(one.token))}</b>{model_text(one.after[:_AROUND])}"
        rows.append([text, str(one.step), f"{one.probability:.1e}", f"{one.entropy:.2f}", model_text(top), one.part])
    return grid(("Response, <b>the token</b>", "Step", "p", "Entropy (nats)", "Most likely", ""), rows)
