"""The rare tokens of the small model's trainings, on its page: how many there are, and each in its sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.text import escape, grid, model_text
from stapo_repro.tokens.logged_run import LoggedRun, batch_keys, load, marked
from stapo_repro.tokens.numbers import by_step, case, quadrants
from stapo_results import token_log

_HEAD = ("Run", "Steps", "Response tokens", "With A > 0", "Rare", "Of them S2T's", "Mini-batches with two or more")
_CASES = 24
_AROUND = 40  # characters on each side


def page_block(runs: Sequence[TrainingRun]) -> str:
    """A line a run; then the rare tokens of the first run, in the order of the training.

    Raises:
        RecordError: a token log that is damaged.
        RunFailed: one that contradicts itself or the run's metrics.
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
    steps, rare_C = by_step(log), log.counts["rare"]
    _, in_batch = np.unique(batch_keys(log.counts)[rare_C], return_inverse=True)
    several = int((np.bincount(in_batch, log.counts["tokens"][rare_C]) > 1).sum())
    tokens, rare, region = (sum(getattr(s, name) for s in steps) for name in ("tokens", "rare", "region"))
    numbers = (tokens, sum(q.tokens for q in quadrants(log)), rare, region)
    return [f"{len(steps)}", *(f"{n:,}" for n in numbers), f"{several} of {sum(s.mini_batches for s in steps)}"]


def _cases(log: LoggedRun) -> list[str]:
    index = log.rows["rare"].nonzero()[0][:_CASES]
    rows = []
    for i, row in zip(index.tolist(), log.records(index), strict=True):
        one = case(log.vocabulary, row, log.part_names[0 if log.silenced[i] else 1])
        top = f"{marked(one.top[0][0])} ({one.top[0][1]:.2f})" if one.top else ""
        # `position` ids of the response come before the token, the rest of the log's context is the prompt's
        own = log.vocabulary.several(row["before"][max(0, len(row["before"]) - one.position) :])
        text = f"{model_text(own[-_AROUND:])}<b>{model_text(marked(one.token))}</b>{model_text(one.after[:_AROUND])}"
        rows.append([text, str(one.step), f"{one.probability:.1e}", f"{one.entropy:.2f}", model_text(top), one.part])
    return grid(("Response, <b>the token</b>", "Step", "p", "Entropy (nats)", "Most likely", ""), rows)
