"""What a response to be scored is, and its advantage among the responses to the same prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from stapo_results.errors import BadInput
from stapo_training.selection.objectives import group_advantage

MOST_SAMPLES = 2**15
"""Responses of one prompt: the token log's column `sample` is an int16."""

Form = Literal["evaluation", "plain", "dump"]


@dataclass(frozen=True)
class Response:
    """One response.

    Attributes:
        where: file and line.
        prompt: the text that the model saw, or chat messages that its template is put around.
        stripped: special tokens were taken out of the prompt's text (veRL's dumps).
        tokens: the response's ids where the line has them; otherwise `text` is tokenised.
        stopped: the model ended the response itself, so that an end-of-turn token followed the text.
        signal: what the advantage is made from: (advantage | reward | correct | none, number).
        counted: tokens of prompt and response as an evaluation recorded them.
    """

    where: str
    prompt_id: str
    sample: int
    prompt: str | list[dict[str, str]]
    text: str
    signal: tuple[str, float]
    stopped: bool = True
    stripped: bool = False
    tokens: tuple[int, ...] | None = None
    counted: tuple[int, int] | None = None
    advantage: float = 0.0


@dataclass(frozen=True)
class Responses:
    """The responses of a file in its order; `revisions`, `parent_run` and `notes` are for the run's record."""

    form: Form
    rows: list[Response]
    revisions: dict[str, str]
    parent_run: str = ""
    notes: tuple[str, ...] = ()


def check_signals(rows: Sequence[Response], all_positive: bool) -> None:
    """Raises BadInput unless all lines say the same kind of thing and each sample of a prompt stands once."""
    kind = rows[0].signal[0]
    seen: dict[tuple[str, int], str] = {}
    for r in rows:
        if r.signal[0] != kind:
            raise BadInput(
                f"{r.where}: lines of one file differ in what their advantage is made from",
                found=f"{r.signal[0]}, and {kind} at {rows[0].where}",
                expected="advantage, reward or correct, the same one on every line",
                next_step="complete the lines, or split the file",
            )
        if (first := seen.setdefault((r.prompt_id, r.sample), r.where)) != r.where:
            raise BadInput(
                f"{r.where}: sample {r.sample} of {r.prompt_id} stands twice",
                found=f"also at {first}",
                expected="each sample of a prompt once",
                next_step="leave out one of the lines, or the field sample",
            )
        if r.sample >= MOST_SAMPLES:
            raise BadInput(
                f"{r.where}: the sample's number is too large",
                found=f"sample {r.sample:,} of {r.prompt_id}",
                expected=f"0 to {MOST_SAMPLES - 1:,}",
                next_step="split the file, or leave out the field sample",
            )
    if kind == "none" and not all_positive:
        raise BadInput(
            f"{rows[0].where}: nothing says how good the response is",
            found="no advantage, reward or correct",
            expected="one of them: S2T looks at tokens of responses with a positive advantage",
            next_step="add one, or give --all-positive: every response then has the advantage 1",
        )
    if kind != "none" and all_positive:
        raise BadInput(
            "--all-positive is for responses of which nothing is known",
            found=f"{kind} at {rows[0].where}",
            expected="lines without advantage, reward and correct",
            next_step="leave out --all-positive",
        )


def with_advantages(rows: Sequence[Response]) -> list[Response]:
    """The same rows with their advantages, from the rewards of each prompt's responses as GRPO does.

    A prompt with one response, or whose rewards are all equal, tells nothing: 0.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for i, r in enumerate(rows):
        groups[r.prompt_id].append(i)
    advantage = {i: r.signal[1] for i, r in enumerate(rows)}
    for members in groups.values():
        if rows[members[0]].signal[0] in ("reward", "correct"):
            reward_G = torch.tensor([rows[i].signal[1] for i in members], dtype=torch.float64)
            # rounding in the mean of equal rewards, divided by 1e-6, would be an advantage
            equal = bool((reward_G == reward_G[0]).all())
            values = [0.0] * len(members) if equal else group_advantage(reward_G).tolist()
            advantage |= dict(zip(members, values, strict=True))
    return [replace(r, advantage=advantage[i]) for i, r in enumerate(rows)]
