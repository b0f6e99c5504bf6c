"""The statements that are checked (statements.yaml), and the tally of their cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources

import torch
import yaml

from stapo_results.schema import TheoryRow


@dataclass(frozen=True)
class Statement:
    """A claim in the project's words; statements.yaml says what each field is."""

    key: str
    place: str
    reading: str
    claim: str
    measure: str
    tolerance: float = 1e-9
    needs: str = ""


def _load() -> dict[str, Statement]:
    text = resources.files("stapo_training.theory").joinpath("statements.yaml").read_text(encoding="utf-8")
    return {key: Statement(key, **entry) for key, entry in yaml.safe_load(text).items()}


STATEMENTS = _load()


@dataclass
class Tally:
    """What the cases of one statement came to: how many, how many failed, the worst of them."""

    statement: Statement
    cases: int = 0
    failures: int = 0
    largest: float = 0.0
    where: str = ""
    numbers: dict[str, float] = field(default_factory=dict)

    def add(
        self, violation_N: torch.Tensor, where: Callable[[int], str], numbers_N: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Count N violations (0 or less: none); `numbers_N` are kept of the worst one.

        Raises:
            ValueError: for a violation that is not a number, which would count as none.
        """
        if violation_N.numel() == 0:
            return
        if violation_N.isnan().any():
            raise ValueError(f"{self.statement.key}: not a number, {where(int(violation_N.isnan().nonzero()[0]))}")
        self.cases += violation_N.numel()
        self.failures += int((violation_N > self.statement.tolerance).sum())
        row = int(violation_N.argmax())
        if float(violation_N[row]) > self.largest:
            self.largest, self.where = float(violation_N[row]), where(row)
            self.numbers = {k: float(v[row]) for k, v in (numbers_N or {}).items()}

    def row(self) -> TheoryRow:
        """The record's row; numbers to four digits, a violation to two (below that it is rounding)."""
        s = self.statement
        return TheoryRow(
            statement=s.key,
            place=s.place,
            reading=s.reading,
            claim=s.claim,
            measure=s.measure,
            tolerance=s.tolerance,
            cases=self.cases,
            failures=self.failures,
            largest=float(f"{self.largest:.2g}"),
            where=self.where,
            numbers={k: float(f"{v:.4g}") for k, v in self.numbers.items()},
            verdict="not run" if not self.cases else "fails" if self.failures else "holds",
            needs=s.needs,
        )
