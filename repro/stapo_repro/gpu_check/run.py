"""Runs the steps one after the other, whatever comes of them, and leaves one page and one record."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from stapo_repro.collect import without_paths
from stapo_repro.driver.processes import watched
from stapo_repro.driver.readiness import check_system
from stapo_repro.driver.run import interrupt_once
from stapo_repro.gpu_check.shell import Shell
from stapo_repro.gpu_check.steps import CHECK, GPU_ONLY, Setting, Step
from stapo_repro.text import grid
from stapo_results import runs, store
from stapo_results.errors import BadInput, StapoError
from stapo_results.provenance import nvidia_smi
from stapo_results.terminal import duration
from stapo_results.walks import Walked, Walks, new_walks

RECORD, PAGE = "check.json", "check.md"


def check(out: Path, cpu: bool, steps: Sequence[Step] = CHECK) -> int:
    """Run the check; returns 0 when every step passed, else 1.

    Raises:
        BadInput: no GPU is here, or the folder holds something.
    """
    check_system()
    if not cpu and not nvidia_smi("name"):
        raise BadInput(
            "this needs an NVIDIA GPU", found="nvidia-smi lists none", next_step="stapo-repro gpu-check --cpu"
        )
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty", expected="a new folder: the check is short, and is made anew each time",
                       next_step=f"--out {out}-2, or remove it")  # fmt: skip
    out = out.resolve()
    card = "" if cpu else os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    setting, walked = Setting(out, Shell(out, card), cpu), list[Walked]()
    with runs.one_writer(out, "--out"), interrupt_once(), watched(setting.shell.mark):
        for step in steps:
            walked.append(_walk(step, setting, {w.name for w in walked if w.outcome == "passed"}))
            record = new_walks("tox -e gpu-check" + (" -- --cpu" if cpu else ""), "cpu" if cpu else "gpu", walked)
            store.write_json(out / RECORD, record)  # after each step: what ends the check ends the rest of it only
            store.write_atomic(out / PAGE, page(record, steps))
    print(f"\n{(out / PAGE).read_text()}\npage:   {out / PAGE}\nrecord: {out / RECORD}")
    return 0 if all(w.outcome == "passed" for w in walked) else 1


def _walk(step: Step, setting: Setting, passed: set[str]) -> Walked:
    paths = [p for p in step.paths if not (setting.cpu and p in GPU_ONLY)]
    if lacking := [n for n in step.needs if n not in passed]:
        print(f"{step.title}: left out, it needs {', '.join(lacking)}", flush=True)
        return Walked(name=step.name, paths=paths, outcome="left_out", seconds=0.0, error=f"needs {', '.join(lacking)}")
    print(f"{step.title} ...", flush=True)
    began, error, values = time.perf_counter(), "", {}
    with setting.shell.measured():
        try:
            values = step.work(setting)
        except StapoError as e:
            print(e, flush=True)  # with the end of the log, which has this machine's folders and stays here
            error = without_paths(": ".join([e.what, *str(e.found or "").splitlines()[:1]]))
        except Exception as e:  # noqa: BLE001  # a step that breaks has failed, and the next one is walked all the same
            traceback.print_exc()
            error = type(e).__name__
    seconds = time.perf_counter() - began
    print(f"  {'FAILED' if error else 'passed'} after {duration(seconds)}", flush=True)
    return Walked(name=step.name, paths=paths, outcome="failed" if error else "passed", seconds=round(seconds, 1),
                  values=values | dict(setting.shell.peak), error=error)  # fmt: skip


def page(record: Walks, steps: Sequence[Step]) -> str:
    """What passed and what did not, times and memory, and every number."""
    titles = {s.name: s.title for s in steps}
    hardware = record.hardware
    cores = f"{hardware['cores']} cores of {hardware['cpu']}"
    place = ", ".join(hardware["gpus"]) if record.device == "gpu" else cores
    counts = [sum(w.outcome == o for w in record.walked) for o in ("passed", "failed", "left_out")]
    rows = [
        [titles[w.name], {"passed": "passed", "failed": "FAILED", "left_out": "left out"}[w.outcome],
         f"{w.seconds:.0f}", *(f"{w.values[k]:.1f}" if k in w.values else "" for k in ("gpu_gib", "host_gib"))]
        for w in record.walked
    ]  # fmt: skip
    lines = [
        f"# The suite on this machine: {counts[0]} steps passed, {counts[1]} failed, {counts[2]} left out",
        "",
        f"`{record.command}` on {place}, {record.at}, code {record.code_commit[:12]}"
        f"{' with changes' if record.code_dirty else ''}. "
        + ("Without a GPU: the same commands on a CPU." if record.device == "cpu" else ""),
        "",
        *grid(["Step", "", "Seconds", "GPU GiB", "Host GiB"], rows),
        "",
    ]
    sides = {w.name: w.values for w in record.walked if w.name in ("speculative", "two-pass") and w.values}
    if len(sides) == 2:
        names = [n for n in sides["speculative"] if n in sides["two-pass"] and not n.endswith("_gib")]
        rows = [[n.replace("_", " "), *(_shown(sides[s][n]) for s in ("speculative", "two-pass"))] for n in names]
        lines += [*grid(["Selection", "in one pass", "in two passes"], rows), ""]
    for w in record.walked:
        if w.name not in sides and (own := {k: v for k, v in w.values.items() if not k.endswith("_gib")}):
            said = "; ".join(f"{k.replace('_', ' ')} {_shown(v)}" for k, v in own.items())
            lines += [f"**{titles[w.name]}**: {said}", ""]
        if w.error:
            lines += [f"**{titles[w.name]}**: {w.error.replace('|', ' ')}. What its commands said: `logs/`.", ""]
    return "\n".join(lines)


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
