"""What the table is made of. Numbers are in percent or points, with up to eight decimals; `text` prints them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["run", "not run", "incomplete", "paper"]
Reading = Literal["above both", "between", "below both"]


@dataclass(frozen=True)
class AgainstPaper:
    """Our value beside the paper's printed one.

    Attributes:
        points: ours minus the paper's, in percentage points.
        within: the paper's value lies in our 95 % interval; None where samples or problems are missing or other ones.
    """

    points: float
    within: bool | None


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
        p: of `test`; `p_sign_flip` of the sign flip in any case. A sign flip of the problems' differences speaks about
            the two models; the t test with the standard errors over problems and seeds about the two methods.
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
class Gain:
    """STAPO's printed value minus a baseline's, in percentage points, with bounds from the design.

    Attributes:
        points: exact difference of the two printed values.
        se_sampling, se_unpaired: standard errors (see `statistics.Bounds`).
        mde_sampling, mde_unpaired: minimal detectable differences at 80 % power and a two-sided 5 %.
        reading: where the size of the gain lies beside those two.
    """

    size: str
    setting: str
    benchmark: str
    baseline: str
    points: float
    se_sampling: float
    se_unpaired: float
    mde_sampling: float
    mde_unpaired: float
    reading: Reading


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
