"""One silenced token in its sentence, for a reader who never heard of STAPO."""

from __future__ import annotations

import re
from pathlib import Path

from stapo_repro.tables.render.markdown import escape
from stapo_repro.templating import visible
from stapo_repro.tokens.logged_run import LoggedRun, load
from stapo_repro.tokens.numbers import Case, by_probability, case, percent

FOLDER = Path("miniature/train/stapo-s0")  # below results/records


def choose(run: LoggedRun) -> tuple[Case, tuple[str, str, str]] | None:
    """The least probable silenced word that stands between a sum and its equals sign, in a second line or later.

    Returns:
        It with the line above, and its own line up to it and after it; None where the run silenced no such token.
    """
    for row in run.records(by_probability(run, run.silenced)):
        c = case(run.vocabulary, row, run.part_names[0])
        *_, above, start = ["", *c.before.split("\n")]
        end = c.after.split("\n")[0]
        if c.token.strip().isalpha() and start.strip() and end.startswith("=") and "=" in above:
            return c, (above, start, end)
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
        return "No example: the committed miniature silenced no word in a sum."
    c, lines = found
    word = escape(visible(c.token).strip())
    above, start, end, expected = map(_code, (*lines, c.top[0][0]))
    return (
        "**For example,** a tiny model learns to add, one column of digits a line (digit + digit + carry = result).\n"
        f"In an answer it wrote {above}, then {start} **{word}** {end}. The answer was right, so *{word}* earns the\n"
        f"reward too, although the model gave it a probability of {percent(c.probability, 3)} and {expected} "
        f"{percent(c.top[0][1], 1)}\n"
        f"(entropy {c.entropy:.2f} nats). STAPO silenced it, in step {c.step} of the committed miniature."
    )


def _code(text: str) -> str:
    """Text of a model as code on one line."""
    flat = re.sub(r"[`\s]+", " ", visible(text)).strip()
    return f"`{flat or ' '}`"
