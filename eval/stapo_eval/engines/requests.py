"""What is asked of an engine and how each request ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stapo_eval.decoding import Decoding
from stapo_results.schema import FinishReason, Judgement, Sample, Timing, Verdict

Key = tuple[str, str, int]  # cell id, problem id, sample index


def key_of(record: Sample | Verdict | Timing | Judgement) -> Key:
    """Which sample a record is about."""
    return record.cell, record.problem_id, record.sample_index


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to draw. Requests with equal `cell` share their decoding; `prompt` is what `Engine.encode` gave."""

    cell: str
    problem_id: str
    sample_index: int
    seed: int
    prompt: tuple[int, ...]
    decoding: Decoding

    @property
    def key(self) -> Key:
        return self.cell, self.problem_id, self.sample_index


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's end.

    Attributes:
        seconds: from handing the request to the model to its end; in a fixed batch, its share of the batch's time.
        prompt_tokens: as the model's server counts them; None where they are the request's own.
    """

    request: Request
    text: str
    finish_reason: FinishReason
    response_tokens: int
    logprob_sum: float | None
    seconds: float
    error: str = ""
    prompt_tokens: int | None = None

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt) if self.prompt_tokens is None else self.prompt_tokens


def too_long(requests: Sequence[Request], context: int) -> tuple[list[Request], list[Finished]]:
    """(requests that fit, error ends of those whose prompt leaves no room for a token)."""
    fit, errors = [], []
    for r in requests:
        if len(r.prompt) < context:
            fit.append(r)
        else:
            message = f"the prompt has {len(r.prompt)} tokens, the model {context} positions"
            errors.append(Finished(r, "", "error", 0, None, 0.0, message))
    return fit, errors


def fixed_batches(requests: Sequence[Request], rows: Callable[[int, int], int]) -> list[list[Request]]:
    """Batches that depend on the cell's requests alone: longest prompts first, never across cells.

    Args:
        rows: the most rows of a batch by the tokens of its longest prompt and of a response.
    """
    of_cell: dict[str, list[Request]] = {}
    for r in requests:
        of_cell.setdefault(r.cell, []).append(r)
    batches: list[list[Request]] = []
    for mine in of_cell.values():
        mine.sort(key=lambda r: -len(r.prompt))  # stable
        at = 0
        while at < len(mine):
            take = max(1, rows(len(mine[at].prompt), mine[at].decoding.max_tokens))
            batches.append(mine[at : at + take])
            at += take
    return batches
