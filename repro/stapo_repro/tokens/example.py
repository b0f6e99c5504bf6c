"""One silenced token in its sentence, for a reader who never heard of STAPO."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stapo_repro.tables.render.markdown import escape
from stapo_repro.templating import visible
from stapo_repro.tokens.cases import Case, by_probability, case, percent
from stapo_repro.tokens.logged_run import LoggedRun, load

FOLDER = Path("miniature/train/stapo-s0")  # below results/records


@dataclass(frozen=True)
class _Sum:
    """The line of a worked sum that holds a token, up to it and after it, and the line above."""

    above: str
    start: str
    end: str

    @classmethod
    def of(cls, c: Case) -> _Sum:
        *_, above, start = ["", *c.before.split("\n")]
        return cls(above, start, c.after.split("\n")[0])


def choose(run: LoggedRun) -> tuple[Case, _Sum] | None:
    """The least probable silenced word that stands between a sum and its equals sign, in a second line or later.

    None where the run silenced no such token.
    """
    for row in run.records(by_probability(run, run.silenced)):
        found = case(run.vocabulary, row, run.part_names[0])
        lines = _Sum.of(found)
        if found.token.strip().isalpha() and lines.start.strip() and lines.end.startswith("=") and "=" in lines.above:
            return found, lines
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
    above, start, end, expected = map(_code, (lines.above, lines.start, lines.end, c.top[0][0]))
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
