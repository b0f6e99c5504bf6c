"""What the table is made of. Numbers are in percent or percentage points, with at most eight decimals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stapo_repro.tables.gains import Gain

Status = Literal["run", "not run", "incomplete", "paper"]


@dataclass(frozen=True)
class AgainstPaper:
    """Our value beside the paper's printed one.

    Attributes:
        points: ours minus the paper's, in percentage points.
        within: the paper's value lies in our 95 % interval; None where that is not judged, and `why` says why.
    """

    points: float
    within: bool | None
    why: str = ""


@dataclass(frozen=True)
class Value:
    """One value of the table, in percent. `shown` is the printed text (two decimals, half to even).

    `se` is sqrt(se_problems^2 + se_seeds^2); with one training seed `se_seeds` is None and `se` is over problems alone.
    `se_sampling` is the part of `se_problems` that more samples would remove. `paper` is None for the miniature, for
    methods that the paper does not print, and where nothing was run.
    """

    status: Status
    shown: str = ""
    mean: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    se_problems: float | None = None
    se_seeds: float | None = None
    se_sampling: float | None = None
    bootstrap_low: float | None = None
    bootstrap_high: float | None = None
    problems: int = 0
    rows: int = 0
    samples: int = 0
    fewest_samples: int = 0
    missing: int = 0
    best: bool = False
    seeds: dict[str, float] = field(default_factory=dict)
    paper: AgainstPaper | None = None
    records: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.status == "run" and self.missing == 0 and self.problems == self.rows


@dataclass(frozen=True)
class MethodRow:
    """One method: benchmark (and "avg") -> setting -> value."""

    method: str
    label: str
    source: Literal["ours", "paper"]
    values: dict[str, dict[str, Value]]


@dataclass(frozen=True)
class Difference:
    """`method` minus `against` in percentage points, paired by problem; or why there is none.

    Attributes:
        benchmark: or "avg", the unweighted mean over the section's benchmarks.
        p: of `test` (see `differences.Comparison`); `p_sign_flip` of the sign flip in any case.
        family: the tests over which `p_holm` is adjusted.
        seeds: training seeds over which it is paired too; empty with one.
        missing: samples that one of the two lacks; the difference is then over those present.
    """

    method: str
    against: str
    benchmark: str
    setting: str
    status: Literal["run", "not run", "other problems"]
    points: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    test: str = ""
    p: float | None = None
    p_holm: float | None = None
    p_sign_flip: float | None = None
    family: str = ""
    problems: int = 0
    missing: int = 0
    seeds: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """One block of the table."""

    id: str
    title: str
    miniature: bool
    size: str
    benchmarks: list[str]
    rows: list[MethodRow]
    differences: list[Difference]
    footnotes: list[str]


@dataclass(frozen=True)
class Table:
    """Everything that the written formats show.

    `synthetic`: a record was made up for a test. `families` says of each family of tests how many there are; `gains`
    are the paper's own.
    """

    schema_version: int
    inputs_sha256: str
    synthetic: bool
    paper: str
    records: list[dict[str, str]]
    sections: list[Section]
    families: dict[str, int]
    gains: list[Gain]
