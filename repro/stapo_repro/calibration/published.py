"""Published results of public checkpoints (results/paper/calibration.json): numbers, sources, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stapo_repro.labels import PAPER_BENCHMARKS
from stapo_repro.paper import transcribed
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS, JudgeMode
from stapo_results.shapes import Shape, shape_from

Percent = Annotated[float, Field(ge=0, le=100)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Strict):
    """Where the numbers were read; `commit` None where none is on record."""

    repository: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None
    places: list[str]


class Setting(_Strict):
    """How a source evaluated; None is not stated. `judge_mode`: how its judge is asked, as `stapo-eval` names it.
    `prompt`: "ours" is the wording of our harness."""

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    grader: str | None
    judge: str | None
    judge_mode: JudgeMode | Literal["none"] | None
    prompt: Literal["ours", "other"] | None


class Row(_Strict):
    """One checkpoint: benchmark -> (score,) or (score, standard deviation over seeds), in percent."""

    model: str
    organization: str = ""
    values: dict[str, Annotated[list[Percent], Field(min_length=1, max_length=2)]]


class Set(_Strict):
    """One source's results.

    Attributes:
        n: samples a problem, by benchmark; one without an entry is not stated.
        problems: whether the source's copies of the benchmarks are those of our registry.
        other_golds: benchmarks that the source graded against other gold answers.
    """

    name: str
    source: Source
    kind: Literal["evaluation", "validation while training", "peak of a training"]
    spread: Literal["standard deviation over seeds", "not printed"]
    problems: Literal["registered copies", "not printed"]
    setting: Setting
    n: dict[str, Annotated[int, Field(ge=1)]]
    other_golds: list[str] = []
    rows: list[Row]

    @model_validator(mode="after")
    def _spreads(self) -> Set:
        values = 1 if self.spread == "not printed" else 2
        for row in self.rows:
            if not set(row.values) <= set(PAPER_BENCHMARKS):
                raise ValueError(f"{row.model}: benchmarks are {', '.join(PAPER_BENCHMARKS)}")
            if any(len(v) != values for v in row.values.values()):
                raise ValueError(f"{row.model}: {values} numbers a benchmark, since the spread is {self.spread}")
        if len({r.model for r in self.rows}) != len(self.rows):
            raise ValueError(f"{self.name}: a model stands twice")
        return self


class Checkpoint(_Strict):
    """A checkpoint that the driver evaluates: hub id, and what its cost is planned with.

    `basis`: an "inferred" config is that of the model's family, not read on the hub. No commit is pinned; the run's
    record has the one that was fetched.
    """

    id: str
    basis: Literal["stated", "inferred"]
    config: dict[str, Any]

    @property
    def shape(self) -> Shape:
        return shape_from(self.config, self.id)


class Calibration(_Strict):
    """The file.

    Attributes:
        aliases: a name that one source gives a checkpoint -> the name that another one gives it.
        checkpoints: by the name that `stapo-repro run calibration/NAME` knows them by.
    """

    schema_version: Literal[1]
    source: str
    aliases: dict[str, str]
    checkpoints: dict[str, Checkpoint]
    sets: list[Set]


@dataclass(frozen=True)
class Published:
    """One printed number with all that is known of it; `value` and `sd` (over seeds) in percent."""

    source: str
    kind: str
    model: str
    benchmark: str
    value: float
    sd: float | None
    n: int | None
    problems: str
    other_golds: bool
    setting: Setting


def load() -> Calibration:
    """The transcribed results; raises as `paper.transcribed`."""
    return transcribed("calibration.json", Calibration)


def plain(name: str, aliases: Mapping[str, str]) -> str:
    """The one key of a checkpoint: without its organization, in lower case, its aliases taken together."""
    same = {k.lower(): v.lower() for k, v in aliases.items()}
    key = name.rsplit("/", 1)[-1].lower()
    return same.get(key, key)


def rows_of(model: str) -> list[Published]:
    """Every published number of a checkpoint, by benchmark in the paper's order and then by source.

    Raises:
        BadInput: no source has it; names those that are known.
    """
    known = load()
    key = plain(model, known.aliases)
    found = [
        Published(s.name, s.kind, row.model, benchmark, row.values[benchmark][0],
                  row.values[benchmark][1] if len(row.values[benchmark]) > 1 else None, s.n.get(benchmark),
                  s.problems, benchmark in s.other_golds, s.setting)
        for benchmark in PAPER_BENCHMARKS
        for s in known.sets
        for row in s.rows
        if benchmark in row.values and plain(row.model, known.aliases) == key
    ]  # fmt: skip
    if not found:
        names = {plain(r.model, known.aliases): r.model for s in known.sets for r in s.rows}
        raise BadInput(
            "no published result of this model is on record",
            found=model or "no name",
            expected=", ".join(sorted(names.values(), key=str.lower)),
            next_step="stapo-repro calibrate JustRL-DeepSeek-1.5B   (results/paper/calibration.json holds the numbers)",
        )
    return found


@dataclass(frozen=True)
class Point:
    """A source's way of evaluating, as `stapo-eval run` is told of it."""

    source: str
    setting: str
    max_tokens: int


def points_of(model: str) -> list[Point]:
    """Every fully stated decoding at which this checkpoint was published."""
    found = {}
    for p in rows_of(model):
        s = p.setting
        if s.temperature is not None and s.top_p is not None and s.max_tokens is not None:
            asked = (s.temperature, s.top_p)
            name = next((k for k, v in SETTINGS.items() if v == asked), f"t{s.temperature:g}-p{s.top_p:g}")
            found[p.source] = Point(p.source, name, s.max_tokens)
    return list(found.values())
