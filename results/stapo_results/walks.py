"""How far the suite's paths have been walked: a record of each session of tests, and of each check of a machine.

docs/verified.md is made of them; `stapo_repro/pages/paths.yaml` names the paths.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stapo_results import provenance
from stapo_results.schema import Record

FOLDER = "verified"
"""Of the records."""


class Walked(BaseModel):
    """One test or one step of a check, and the paths that it walks.

    Attributes:
        level: "ran", or only "composed": the configuration was made and validated.
        values: what was measured, by name with its unit.
        error: the first line of what went wrong, and of a step that was left out, why.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    paths: list[str]
    level: Literal["ran", "composed"] = "ran"
    outcome: Literal["passed", "failed", "left_out"]
    seconds: float
    values: dict[str, float | str] = {}
    error: str = ""


class Walks(Record):
    """What one command walked, on which machine, with which code."""

    command: str
    device: Literal["cpu", "gpu"]
    at: str
    code_commit: str
    code_dirty: str
    packages: dict[str, str]
    hardware: dict[str, Any]
    walked: list[Walked]


def new_walks(command: str, device: Literal["cpu", "gpu"], walked: list[Walked]) -> Walks:
    """The record of `walked`, here and now."""
    commit, dirty = provenance.code_version()
    return Walks(
        command=command,
        device=device,
        at=provenance.now(),
        code_commit=commit,
        code_dirty=dirty,
        packages=provenance.package_versions(),
        hardware=provenance.hardware(),
        walked=walked,
    )
