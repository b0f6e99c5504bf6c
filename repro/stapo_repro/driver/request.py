"""What is asked of the paper's cells: a command line's values, checked, and what an output folder keeps of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stapo_repro import labels
from stapo_repro.driver.chain import console_script, parse_seeds
from stapo_repro.planner.facts import MACHINES, load
from stapo_results.errors import BadInput
from stapo_results.schema import Record

HARDWARE = tuple(MACHINES)
QUICK_STEPS = 2


class Parameters(Record):
    """What an output folder of the paper's cells holds of every cell alike. Written once; later calls must agree.

    Paths are part of it: a command that changed would be run anew, and a training takes days.
    """

    kind: str = "cells"
    quick: bool
    steps: int
    hardware: str
    ray_address: str
    data_dir: str
    source: str
    judge: str
    judge_revision: str
    keep_checkpoints: int
    programs: list[str]


@dataclass(frozen=True)
class Request:
    """Cells of the paper to run, as the command line asks for them."""

    cells: tuple[tuple[str, str], ...]
    seeds: tuple[int, ...]
    steps: int
    quick: bool
    hardware: str
    ray_address: str
    data_dir: Path | None
    source: str
    judge: str
    judge_revision: str
    keep_checkpoints: int
    train_env: Path | None
    eval_env: Path | None
    out: Path

    @property
    def models(self) -> list[tuple[str, str, int]]:
        """(method, size, training seed); the base model has no training seed and stands once."""
        return [(m, s, n) for m, s in self.cells for n in ((0,) if m == labels.BASE else self.seeds)]

    @property
    def trains(self) -> bool:
        return any(m != labels.BASE for m, _ in self.cells)

    @property
    def gpus(self) -> int:
        return MACHINES[self.hardware].gpus

    def programs(self) -> tuple[str, str, str]:
        """stapo-train, stapo-eval, stapo-repro. Raises: BadInput where one is not installed."""
        return (
            console_script("stapo-train", self.train_env) if self.trains else "",
            console_script("stapo-eval", self.eval_env),
            console_script("stapo-repro"),
        )

    def parameters(self) -> Parameters:
        """See `Parameters`."""
        _, evaluate, repro = self.programs()
        return Parameters(
            quick=self.quick,
            steps=self.steps,
            hardware=self.hardware,
            ray_address=self.ray_address,
            data_dir=str(self.data_dir.resolve()) if self.data_dir else "",
            source=self.source,
            judge=self.judge,
            judge_revision=self.judge_revision,
            keep_checkpoints=self.keep_checkpoints,
            programs=[console_script("stapo-train", self.train_env), evaluate, repro],
        )


def request(
    cells: tuple[tuple[str, str], ...],
    *,
    out: Path,
    seeds: str = "0",
    steps: int | None = None,
    quick: bool = False,
    hardware: str = "8gpu",
    ray_address: str = "",
    data_dir: Path | None = None,
    source: str = "",
    judge: str | None = None,
    judge_revision: str = "",
    keep_checkpoints: int = 0,
    train_env: Path | None = None,
    eval_env: Path | None = None,
) -> Request:
    """The request from the command line's values, checked; None and "" take the default.

    Raises:
        BadInput: a value that cannot be.
    """
    if hardware not in HARDWARE:
        base = next((s for m, s in cells if m == labels.BASE), "")
        model = load().models[base].id if base else "DIR"
        raise BadInput(
            "the paper's models need GPUs",
            found=f"--hardware {hardware}",
            expected=" | ".join(HARDWARE),
            next_step=f"stapo-repro run {'/'.join(cells[0])} --hardware 8gpu --dry-run; without a GPU: stapo-repro run "
            f"stapo/mini, or tox -e eval-cpu -- --model {model} for a model's evaluation alone",
        )
    count = steps if steps is not None else QUICK_STEPS if quick else load().settings.steps.value
    for name, value, least in (("--steps", count, 1), ("--keep-checkpoints", keep_checkpoints, 0)):
        if value < least:
            raise BadInput(
                f"{name} is at least {least}", found=value, expected=f">= {least}", next_step=f"{name} {least}"
            )
    return Request(
        cells=cells,
        seeds=parse_seeds(seeds),
        steps=count,
        quick=quick,
        hardware=hardware,
        ray_address=ray_address or ("auto" if MACHINES[hardware].gpus > 8 else ""),
        data_dir=data_dir,
        source=source,
        judge=load().judge.model if judge is None else judge,
        judge_revision=judge_revision,
        keep_checkpoints=keep_checkpoints,
        train_env=train_env,
        eval_env=eval_env,
        out=out,
    )
