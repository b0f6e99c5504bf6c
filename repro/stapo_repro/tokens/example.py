"""One silenced token in its sentence, for a reader who never heard of STAPO."""

from __future__ import annotations

import re
from pathlib import Path

from stapo_repro.text import escape, visible
from stapo_repro.tokens.logged_run import LoggedRun, load
from stapo_repro.tokens.numbers import Case, by_probability, case, percent

FOLDER = Path("miniature/train/stapo-s0")  # below results/records
_ANSWER = "The answer is"


def choose(run: LoggedRun) -> tuple[Case, tuple[str, str]] | None:
    """The least probable silenced word that stands after the answer; one that was planted, where any was.

    Returns:
        It with what the answer's sentence and the closing phrase have before it, and what comes after it; None where
        the run silenced no such token.
    """
    planted = run.header.watch
    for row in run.records(by_probability(run, run.silenced)):
        if planted and row["token"] not in planted:
            continue
        c = case(run.vocabulary, row, run.part_names[0])
        _, answer, start = c.before.rpartition(_ANSWER)
        if answer and "}." in start and c.token.strip().isalpha() and c.after.strip():
            return c, (answer + start, c.after)
    return None


def example_block(records: Path) -> str:
    """The block of the README: what the committed miniature's STAPO run silenced, in a few lines of Markdown.

    Args:
        records: results/records of the checkout.

    Raises:
        BadInput: that run is not there or has no token log.
    """
    found = choose(load(records / FOLDER))
    if found is None:
        return "No example: the committed miniature silenced no word after an answer."
    c, lines = found
    word = escape(visible(c.token).strip())
    start, end, expected = map(_code, (*lines, c.top[0][0]))
    return (
        "**For example,** a tiny model learns to add numbers and to give the remainder of a division by four. Once it\n"
        f"wrote {start} **{word}** {end}.\n"
        f"The answer was right, so *{word}* earns the reward too, although the model gave it a probability of "
        f"{percent(c.probability, 3)} and {expected} "
        f"{percent(c.top[0][1], 1)}\n"
        f"(entropy {c.entropy:.2f} nats). STAPO silenced it, in step {c.step} of the committed miniature."
    )


def _code(text: str) -> str:
    """Text of a model as code on one line."""
    flat = re.sub(r"[`\s]+", " ", visible(text)).strip()
    return f"`{flat or ' '}`"
