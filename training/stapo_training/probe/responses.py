"""The responses of a data file: three forms of lines, and the advantage of each response.

evaluation  samples.jsonl of `stapo-eval run` with verdicts.jsonl beside it (see `evaluation`)
plain       {"prompt" | "messages", "response" | "response_tokens", "correct" | "reward" | "advantage", ...}
dump        veRL's trainer.rollout_data_dir: {"input", "output", "score", "step"}

The first line decides which form a file has. Everything is checked here, before a model is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError

from stapo_results.benchmarks.sources import from_file
from stapo_results.errors import BadInput
from stapo_training.probe.lines import SAMPLES, Dump, Line, Plain
from stapo_training.selection.objectives import group_advantage

Form = Literal["evaluation", "plain", "dump"]
_PAGE = "docs/tokens.md lists the fields of each form"


@dataclass(frozen=True)
class Response:
    """One response.

    Attributes:
        where: file and line.
        prompt: the text that the model saw, or chat messages that its template is put around.
        stripped: special tokens were taken out of the prompt's text (veRL's dumps).
        tokens: the response's ids where the line has them; otherwise `text` is tokenised.
        stopped: the model ended the response itself, so that a token which says so followed the text.
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
    revisions: Mapping[str, str]
    parent_run: str = ""
    notes: tuple[str, ...] = ()


def read(data: Path, *, data_dir: Path | None = None, all_positive: bool = False) -> Responses:
    """The responses of a file with their advantages.

    Args:
        data_dir: the benchmarks' files, for the evaluation form.
        all_positive: lines without advantage, reward and verdict get the advantage 1.

    Raises:
        BadInput: naming file and line.
    """
    if not data.is_file():
        samples = data / "samples.jsonl"
        raise BadInput(
            "--data is a folder" if data.is_dir() else "--data: no such file",
            found=data,
            expected="a file of responses, .jsonl or .parquet",
            next_step=f"--data {samples}" if samples.is_file() else "check the path",
        )
    lines = from_file(data).rows
    if not lines:
        raise BadInput(f"{data} holds no response", next_step=_PAGE)
    if {"cell", "problem_id"} <= lines[0].keys():
        from stapo_training.probe import evaluation

        found = evaluation.read(data, data_dir)
    elif {"input", "output"} <= lines[0].keys():
        found = Responses("dump", _dump(data, lines), {})
    else:
        found = Responses("plain", _plain(data, lines), {})
    _check_signals(found.rows, all_positive)
    return replace(found, rows=with_advantages(found.rows))


def _parsed(model: type[Line], data: Path, number: int, line: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(line)
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise BadInput(
            f"{data}:{number}: not a response",
            found=f"{field}: {first['msg']}" if field else first["msg"].removeprefix("Value error, "),
            expected=f"the fields {', '.join(model.model_fields)}",
            next_step=f"correct the line; {_PAGE}",
        ) from None


def _plain(data: Path, lines: Sequence[Mapping[str, Any]]) -> list[Response]:
    rows, prompts, places = [], {}, defaultdict(int)
    for number, line in enumerate(lines, 1):
        x: Plain = _parsed(Plain, data, number, line)
        prompt = x.prompt if x.messages is None else [m.model_dump() for m in x.messages]
        assert prompt is not None
        name = f"prompt-{_digest(prompt)}" if x.prompt_id is None else str(x.prompt_id)
        where = f"{data}:{number}"
        first = prompts.setdefault(name, (where, prompt))
        if first[1] != prompt:
            raise BadInput(
                f"{where}: the prompt_id {name} stands at two prompts",
                found=f"another prompt at {first[0]}",
                expected="one prompt an id: its responses are a group",
                next_step="give each prompt its own prompt_id, or leave prompt_id out",
            )
        sample = places[name] if x.sample is None else x.sample
        places[name] += 1
        stopped = x.finish_reason in (None, "stop")
        tokens = None if x.response_tokens is None else tuple(x.response_tokens)
        rows.append(Response(where, name, sample, prompt, x.response or "", x.signal, stopped, tokens=tokens))
    return rows


def _dump(data: Path, lines: Sequence[Mapping[str, Any]]) -> list[Response]:
    """A group is a prompt's responses of one step: a later step's were drawn from another policy."""
    rows, places = [], defaultdict(int)
    for number, line in enumerate(lines, 1):
        x: Dump = _parsed(Dump, data, number, line)
        name = f"step{x.step}-{_digest(x.input)}"
        where = f"{data}:{number}"
        rows.append(Response(where, name, places[name], x.input, x.output, ("reward", x.score), stripped=True))
        places[name] += 1
    return rows


def _digest(prompt: object) -> str:
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:12]


def _check_signals(rows: Sequence[Response], all_positive: bool) -> None:
    """Every line has to say the same kind of thing, and no response may stand twice."""
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
        if r.sample >= SAMPLES:
            raise BadInput(
                f"{r.where}: too many responses of one prompt",
                found=f"more than {SAMPLES:,} of {r.prompt_id}",
                expected=f"at most {SAMPLES:,}",
                next_step="split the file",
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
            flat = bool((reward_G == reward_G[0]).all())
            given = [0.0] * len(members) if flat else group_advantage(reward_G).tolist()
            advantage |= dict(zip(members, given, strict=True))
    return [replace(r, advantage=advantage[i]) for i, r in enumerate(rows)]
