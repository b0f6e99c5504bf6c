"""The page: what was timed on GPUs."""

from __future__ import annotations

from pathlib import Path

from stapo_repro.text import code_shown, grid
from stapo_results.schema import Run
from stapo_results.store import read_json
from studies import command
from studies.bench.benching import Bench


def add(files: dict[Path, bytes]) -> None:
    """Add the page of the committed records."""
    lines = ["# Timed on GPUs", "", "[What these do not show](../../docs/reproduction.md#what-has-run)."]
    for path in sorted((command.RECORDS / "bench").glob("*/*/bench.json")):
        found, run = read_json(path, Bench), read_json(path.with_name("run.json"), Run)
        on, versions = run.hardware, ("torch", "verl", "vllm", "transformers", "triton")
        lines += ["", f"## {on['gpus'][0].split(',')[0]}: {found.part}", ""]
        packages = ", ".join(f"{name} {run.packages[name]}" for name in versions)
        code = code_shown(run.code_commit, bool(run.code_dirty))
        lines += [f"Driver {on['driver']}, {packages}; {run.started}, code {code}. {' '.join(run.notes)}", ""]
        rows = [
            [" ".join([r.name, *r.labels.values()]), f"{r.seconds:.4g}", f"{r.ratio:.3f}",
             "; ".join(f"{name} {value:.5g}" for name, value in r.values.items())]
            for r in found.rows
        ]  # fmt: skip
        lines += [*grid(["", "seconds", f"to {found.baseline}", "beside it"], rows), ""]
        lines += [f"[Record](../records/{path.relative_to(command.RECORDS).as_posix()})"]
    files[command.TABLES / "gpu.md"] = "\n".join([*lines, ""]).encode()
