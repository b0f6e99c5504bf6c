"""The record of `stapo-repro gpu-check`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stapo_results.schema import Record


class CheckedStep(BaseModel):
    """One step of `stapo-repro gpu-check`.

    Attributes:
        paths, level: of records from before 2026-11-24, which named what a step covers.
        values: what was measured, by name with its unit.
        error: the first line of what went wrong, and of a step that was left out, why.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    paths: list[str] = []
    level: Literal["ran"] = "ran"
    outcome: Literal["passed", "failed", "left_out"]
    seconds: float
    values: dict[str, float | str] = {}
    error: str = ""


class MachineCheck(Record):
    """What `stapo-repro gpu-check` found on one machine, with which code."""

    command: str
    device: Literal["cpu", "gpu"]
    at: str
    code_commit: str
    code_dirty: str
    packages: dict[str, str]
    hardware: dict[str, Any]
    walked: list[CheckedStep]
