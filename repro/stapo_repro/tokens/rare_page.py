"""The rare tokens of the small model's trainings, on its page: how many there are, and each in its sentence."""

from __future__ import annotations

from collections.abc import Sequence

from stapo_repro import labels
from stapo_repro.records.reading import TrainingRun
from stapo_repro.tables.render.markdown import escape, grid
from stapo_repro.tokens.logged_run import LoggedRun, load, marked
from stapo_repro.tokens.numbers import case
from stapo_results import token_log

_CASES = 24
_AROUND = 40  # characters on each side


def page_block(runs: Sequence[TrainingRun]) -> str:
    """A line a run; then the rare tokens of the first run, in the order of the training.

    Raises:
        RecordError: a token log that is damaged.
    """
    logs = [(r, load(r.folder)) for r in runs if (r.folder / token_log.FOLDER).is_dir()]
    if not logs:
        return "Not run."
    head = (
        "Run",
        "Steps",
        "Response tokens",
        "With A > 0",
        "Rare",
        "Of them S2T's",
        "Mini-batches with 2 rare tokens or more",
    )
    lines = grid(head, [[escape(f"{labels.method_label(r.method)}, seed {r.seed}"), *_counts(log)] for r, log in logs])
    run, log = logs[0]
    title = f"The rare tokens of {labels.method_label(run.method)}, seed {run.seed}"
    return "\n".join([*lines, "", f"{title}, the first {_CASES} at most:", "", *_cases(log)])


def _counts(log: LoggedRun) -> list[str]:
    tokens, sign = log.counts["tokens"], log.counts["sign"]
    rare = log.counts["rare"].astype(bool) & (sign > 0)
    numbers = (len(set(log.counts["step"].tolist())), tokens.sum(), tokens[sign > 0].sum(), tokens[rare].sum(),
               tokens[rare & log.counts["below"].astype(bool)].sum())  # fmt: skip
    batches: dict[tuple[int, int], int] = {}
    for step, batch, n in zip(*(log.counts[k][rare].tolist() for k in ("step", "mini_batch", "tokens")), strict=True):
        batches[step, batch] = batches.get((step, batch), 0) + n
    return [f"{int(n):,}" for n in (*numbers, sum(n > 1 for n in batches.values()))]


def _cases(log: LoggedRun) -> list[str]:
    index = log.rows["rare"].nonzero()[0][:_CASES]
    rows = []
    for i, row in zip(index.tolist(), log.records(index), strict=True):
        one = case(log.vocabulary, row, log.part_names[0 if log.silenced[i] else 1])
        top = f"{marked(one.top[0][0])} ({one.top[0][1]:.2f})" if one.top else ""
        # the prompt's last line is no part of the response
        before = one.before.rpartition("assistant\n")[2][-_AROUND:]
        text = f"{escape(before)}<b>{escape(one.token)}</b>{escape(one.after[:_AROUND])}"
        rows.append([text, str(one.step), f"{one.probability:.1e}", f"{one.entropy:.2f}", escape(top), one.part])
    return grid(("Response, <b>the token</b>", "Step", "p", "Entropy (nats)", "Most likely", ""), rows)
