"""The records that pass between the wings: one pydantic model a kind of line.

A line that does not validate is an error with its file and line (see `store`); unknown fields are refused, so a
misspelt name cannot lose a number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

# name -> (temperature, top_p): the paper's two decoding configurations (Section "Settings")
SETTINGS: dict[str, tuple[float, float]] = {"t1.0": (1.0, 1.0), "t0.7": (0.7, 0.9)}
MAX_TOKENS = 20_480  # of its responses there

Reason = Literal["match", "mismatch", "no_answer", "timeout", "wall_timeout", "memory", "error"]
JudgeVerdict = Literal["correct", "incorrect", "invalid", "not_asked"]
JudgeMode = Literal["compass", "justrl-exact"]
Letter = Literal["A", "B", "C", ""]
Preset = Literal["ours", "math-verify", "justrl", "strict"]
ReplyForm = Literal["letter", "marked", "stray", ""]
FinishReason = Literal["stop", "length", "error"]


class Part(BaseModel):
    """A part of a record."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Record(Part):
    """A line of its own, or a file."""

    schema_version: Literal[1] = 1


class Cell(Part):
    """One cell of the results: what was trained, how far, and how it was evaluated."""

    method: str
    size: str
    train_seed: int
    step: int | Literal["base"]
    benchmark: str
    setting: str
    eval_seed: int = 0

    @property
    def id(self) -> str:
        step = "base" if self.step == "base" else f"step{self.step}"
        trained = f"{self.method}/{self.size}/s{self.train_seed}/{step}"
        return f"{trained}/{self.benchmark}/{self.setting}/e{self.eval_seed}"

    @property
    def slug(self) -> str:
        """The id as a file name."""
        return re.sub(r"[^A-Za-z0-9.\-]+", "_", self.id)

    @property
    def model(self) -> tuple[str, str, int, int | str]:
        """(method, size, train_seed, step): the trained model that was evaluated."""
        return self.method, self.size, self.train_seed, self.step


class Labels(Record):
    """What `stapo.json` says beside exported weights: where a model comes from."""

    method: str
    size: str
    train_seed: int
    step: int | Literal["base"]
    parent_run: str = ""
    weights_sha256: str = ""


class Sample(Record):
    """One response. It holds no time, so that the file is a pure function of model, seed and engine."""

    cell: str
    problem_id: str
    sample_index: Annotated[int, Field(ge=0)]
    seed: int
    response: str
    finish_reason: FinishReason
    prompt_tokens: Annotated[int, Field(ge=0)]
    response_tokens: Annotated[int, Field(ge=0)]
    logprob_sum: float | None
    engine: str
    error: str = ""


class Judgement(Record):
    """What a judge replied to one question, on record as it came: what is here is not asked again.

    Attributes:
        key: hash of all that the question is made of (see `stapo_eval.judge.asking`).
        cell, sample_index: the sample whose response was shown, in the place of all with the same answer.
        prompt_sha256: of the prompt's text with its placeholders; "" in records that are older than this field.
        shortened: only the response's end was shown.
        reply: the judge's text; letter: "" where the reply has none of its letters, or there is no reply.
        form: how the letter came: alone, marked (a box alone; a box or brackets after "Final Judgment:"), or stray
            among other words or in a reply that was cut off; "" for no letter.
        status: "too_long" was not asked, since not even an empty response would fit; an "error" is asked again.
    """

    key: str
    benchmark: str
    cell: str
    problem_id: str
    sample_index: Annotated[int, Field(ge=0)]
    extracted: str | None
    judge_model: str
    judge_revision: str
    judge_mode: JudgeMode
    prompt_sha256: str = ""
    shortened: bool = False
    engine: str
    prompt_tokens: Annotated[int, Field(ge=0)]
    status: Literal["answered", "too_long", "error"]
    reply: str
    letter: Letter
    form: ReplyForm = ""
    error: str = ""


class Verdict(Record):
    """What grader and judge said of one sample. A pure function of samples and judgements."""

    cell: str
    problem_id: str
    sample_index: Annotated[int, Field(ge=0)]
    extracted: str | None
    rule: bool
    reason: Reason
    preset: str
    grader_version: str
    judge: JudgeVerdict
    judge_model: str
    judge_revision: str
    correct: bool


class Resumption(Part):
    """A run that went on after an interruption: when, from where, with which code and on what.

    `packages` has those of another version than the run's, "" for one that is not there; `hardware` is empty where it
    is the run's.
    """

    at: str
    start: str
    code_commit: str
    code_dirty: str
    packages: dict[str, str] = {}
    hardware: dict[str, Any] = {}


class ContextLimit(Part):
    """Where a model's positions allow shorter responses than were asked for.

    Attributes:
        context: the model's positions, in tokens.
        asked: tokens of the longest response that was asked for.
        problems: how many problems it concerns; least, most: tokens that are left for their responses.
        benchmarks: of these problems; empty in older records.
    """

    context: int
    asked: int
    problems: int
    least: int
    most: int
    benchmarks: list[str] = []


Sha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class Cut(Part):
    """What the record of a run leaves out of the run folder (`stapo-repro collect`).

    Attributes:
        kept: the names that metrics.jsonl keeps, where the run logged them.
        metrics: how many values metrics.jsonl left out, by the part of their names before "/".
        config: SHA-256 of the whole configuration, as a file of whole/ would have it.
        config_from: `config` has what pages read, and where it differs from whole/config-SHA.json of this SHA-256.
        tokenizer: SHA-256 of the token log's tokenizer, which is whole/tokenizer-SHA.json.
        planted_steps: how many later steps planted.json left out.
    """

    kept: list[str] = []
    metrics: dict[str, Annotated[int, Field(ge=1)]] = {}
    config: Sha256 = ""
    config_from: Sha256 = ""
    tokenizer: Sha256 = ""
    planted_steps: Annotated[int, Field(ge=0)] = 0

    def left_out(self, metric: str) -> bool:
        """Whether this metric's values were left out, if the run logged it."""
        return metric not in self.kept and metric.partition("/")[0] in self.metrics


class Run(Record):
    """One command that was run: what, with what, on what.

    `wall_seconds` is the sum over all attempts but those that were killed, as are an evaluation's `judging_seconds`.
    Its `generating_seconds` and, of these, `engine_seconds`, in which its engine worked, count killed attempts to half
    a minute.
    `options_refused` names options of a request (seed, top_k, ...) that its endpoint did not take, so that the
    endpoint's own defaults counted. `notes` are for people; nothing decides by them. `cut` says what a committed record
    leaves out. A `synthetic` run was made up for a test.
    """

    run_id: str
    kind: Literal["base", "fetch", "data", "train", "eval", "repro", "bench", "theory", "probe"]
    status: Literal["running", "done", "failed", "interrupted"]
    command: list[str]
    config: dict[str, Any]
    code_commit: str
    code_dirty: str
    packages: dict[str, str]
    revisions: dict[str, str]
    hardware: dict[str, Any]
    seeds: dict[str, int]
    deterministic: bool
    started: str
    wall_seconds: float | None = None
    parent_run: str = ""
    engine_seconds: float | None = None
    generating_seconds: float | None = None
    judging_seconds: float | None = None
    context_limit: ContextLimit | None = None
    options_refused: list[str] = []
    resumptions: list[Resumption] = []
    notes: list[str] = []
    cut: Cut | None = None
    synthetic: bool = False


class StepMetrics(Record):
    """One training step. `values` holds what is a function of the run; times are in another file.

    `attempt` counts how often a step was made anew with another result (a resumed run on a GPU).
    """

    step: Annotated[int, Field(ge=0)]
    attempt: int = 0
    values: dict[str, float]


def last_attempts(lines: Iterable[StepMetrics]) -> list[StepMetrics]:
    """The steps of a run as it stands, in order, of lines as they were written: of a step that was made anew the last
    attempt, and of those behind it what was made since."""
    standing: dict[int, StepMetrics] = {}
    for line in lines:
        if line.step in standing and line.attempt > standing[line.step].attempt:
            standing = {step: m for step, m in standing.items() if step < line.step}
        standing[line.step] = line
    return [standing[step] for step in sorted(standing)]


class ProblemResult(Part):
    """All samples of one problem in compact form.

    `verdicts` is one character a sample in order of sample_index: 1 correct, 0 wrong, - missing.
    `judged` (same length) says what the judge said: c, i, x (invalid), . (not asked). `rule` (same length) is what
    `verdicts` would be by the rule alone; it is "" where no judge was asked.
    """

    problem_id: str
    verdicts: Annotated[str, Field(pattern=r"^[01\-]+$")]
    judged: Annotated[str, Field(pattern=r"^[cix.]*$")] = ""
    rule: Annotated[str, Field(pattern=r"^[01\-]*$")] = ""


class VerdictLengths(Part):
    """The responses of one verdict: how many, how many of them were truncated, and how long they are.

    `tokens`: quantiles p5, p25, p50, p75, p95 and the max of their lengths (linear interpolation); empty without a
    response.
    """

    responses: Annotated[int, Field(ge=0)]
    truncated: Annotated[int, Field(ge=0)]
    tokens: dict[str, float] = {}


class CellRecord(Record):
    """A finished cell as it is committed: verdicts by problem, with the provenance that the table needs.

    Holds no time, so that a cell made twice from the same samples gives the same bytes; `run_id` names the run
    record that holds the rest. `grader` (preset and versions) and `judge` (model, revision, scope, mode) are "" in
    records that are older than these fields, and `judge` also where none was asked. `by_verdict` is empty in records
    that are older than it; the samples that an engine failed on are in neither of its two entries.
    `identical_problems` counts problems whose responses, two or more, are one text (None in older records), and
    `identical_by_chance` how many of these their log-probabilities explain. `top_k` -1 and `min_p` 0 are off.
    `chat` has what went with the paper's prompt: a `system` message, arguments of the chat `template`.
    `options_refused`: those of the run that the setting switches off, so that an endpoint's own defaults counted;
    `context_limit` is the run's, where it concerns the benchmark. Both are empty in older records.
    `synthetic` records are made up for tests.
    """

    cell: Cell
    n: Annotated[int, Field(ge=1)]
    temperature: float
    top_p: float
    top_k: int = -1
    min_p: float = 0.0
    chat: dict[str, Any] = {}
    max_tokens: int
    scored_by: Literal["rule", "rule+judge"]
    judge_note: str = ""
    grader: str = ""
    judge: str = ""
    problems: list[ProblemResult]
    benchmark_rows: int
    benchmark_sha256: str
    variant: str = ""
    text_variants: int = 0
    finish_reasons: dict[FinishReason, Annotated[int, Field(ge=0)]]
    no_answer: Annotated[int, Field(ge=0)]
    mean_response_tokens: float
    by_verdict: dict[Literal["correct", "incorrect"], VerdictLengths] = {}
    identical_problems: int | None = None
    identical_by_chance: float = 0.0
    context_limit: ContextLimit | None = None
    options_refused: list[str] = []
    engine: str
    deterministic: bool
    run_id: str
    code_commit: str
    code_dirty: str
    revisions: dict[str, str]
    miniature: bool
    synthetic: bool = False

    @model_validator(mode="after")
    def _lengths(self) -> CellRecord:
        for p in self.problems:
            for name, letters in (("verdicts", p.verdicts), ("judge letters", p.judged), ("verdicts by rule", p.rule)):
                if letters and len(letters) != self.n:
                    raise ValueError(f"{p.problem_id}: {len(letters)} {name}, but n = {self.n}")
        ids = [p.problem_id for p in self.problems]
        if len(set(ids)) != len(ids):
            raise ValueError("a problem stands twice")
        letters = Counter("".join(p.verdicts for p in self.problems))
        counts = {"correct": letters["1"], "incorrect": letters["0"]}
        lengths_of = {verdict: lengths.responses for verdict, lengths in self.by_verdict.items()}
        if lengths_of and lengths_of != counts:
            raise ValueError(f"by_verdict counts {lengths_of}, but the verdicts say {counts}")
        return self


JUDGED = {"c": "correct", "i": "incorrect", "x": "invalid", ".": "not_asked"}
"""Letters of `ProblemResult.judged`."""
