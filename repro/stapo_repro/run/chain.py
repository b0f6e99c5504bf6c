"""The stages of a run in their order, each the exact command of a wing; and the run itself.

All experiments are one chain: inputs, trainings, exports, evaluations, tables, figures, and of the miniature the tokens
of STAPO. What differs is where weights, data and benchmarks come from (`origins`). A study asks for models of its own,
and makes its pages itself.
"""

from __future__ import annotations

import json
import shlex
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from stapo_repro import labels
from stapo_repro.run import checks
from stapo_repro.run.cells import CellRequest, Model
from stapo_repro.run.cost import MACHINES
from stapo_repro.run.origins import stage_of
from stapo_repro.run.request import choices
from stapo_repro.run.stages import Stage, execute, read_states
from stapo_repro.text import grid
from stapo_results.sizes import MINI, is_miniature_size
from stapo_results.terminal import duration


def main(r: CellRequest) -> int:
    """The command `stapo-repro run`; raises as `run`."""
    seconds = run(r)
    if seconds is not None:
        file = r.out / "tables" / "main_table.json"
        if file.exists():
            show(_scores(json.loads(file.read_text(encoding="utf-8"))["rows"]))
        show_end(
            r, seconds, shlex.join(["stapo-repro", "collect", f"{r.out}", "--out", f"results/records/{r.out.name}"])
        )
    return 0


def run(r: CellRequest) -> float | None:
    """Run what the request lacks in its folder; a dry run prints it, makes every check, and
    starts and writes nothing.

    Returns:
        The seconds of this call; None for a dry run.

    Raises:
        BadInput: the machine, an environment, the disk or the folder is not sufficient; nothing was started.
        RunFailed: a stage failed; the same command resumes.
    """
    began, stages, costs = time.monotonic(), make_stages(r), r.origin.costs(r)
    if r.dry_run:
        checks.show_plan(r, stages, costs)
    made = checks.make_checks(r, stages, costs)
    if r.dry_run:
        checks.show_checks(made)
    made.refuse()
    if r.dry_run:
        return None
    expected = {name: 3600 * c.hours for name, c in costs.items() if c.hours is not None}
    jobs, cards, _ = checks.sharing(r)
    execute(r.out, checks.new_record(r), stages, jobs=jobs, cards=cards, expected=expected)
    return time.monotonic() - began


def script(r: CellRequest, folder: str) -> str:
    """The commands of all stages as a shell script that writes below `folder`."""
    words = ([Path(s.command[0]).name, *s.command[1:]] for s in make_stages(r))
    return "\n".join(shlex.join(w).replace(f"{r.out}", folder) for w in words) + "\n"


def make_stages(r: CellRequest) -> list[Stage]:
    """All stages; each needs only earlier ones."""
    inputs = r.origin.inputs(r)
    trainings = [_training(r, m, inputs) for m in r.trained]
    evaluated = [m for m in r.models if m.evaluated]
    exports = [_export(r, m) for m in evaluated if not m.is_base]
    evaluations = [_evaluation(r, m, inputs) for m in evaluated]
    made = [*trainings, *exports, *evaluations]
    if r.model_by_model:
        place = {m.name: i for i, m in enumerate(r.models)}
        made.sort(key=lambda s: place[s.name.partition("/")[2]])
    folders = dict.fromkeys(str(r.out / s.kind) for s in (*evaluations, *trainings))
    records = [s.name for s in (*trainings, *evaluations)]
    if r.pages:
        made += [_page(r, what, records, what, "--records", *folders) for what in ("tables", "figures")]
    if r.experiment == "miniature":
        stapo = [m.name for m in r.trained if m.method == "stapo"]
        made += [_page(r, f"tokens/{name}", [f"train/{name}"], "tokens", f"{r.out / 'train' / name}") for name in stapo]
    return [*inputs, *made]


def _page(r: CellRequest, name: str, needs: Sequence[str], *words: str) -> Stage:
    """A page of records: it takes seconds, so it is made at every call."""
    folder = r.out / name
    return Stage(name, (r.programs[2], *words, "--out", f"{folder}"), folder, (folder,), tuple(needs), always=True)


def _training(r: CellRequest, m: Model, inputs: Sequence[Stage]) -> Stage:
    folder, mini, every = r.out / "train" / m.name, is_miniature_size(m.size), m.validation_every
    before = None if every is None else str(every > 0).lower()
    # the overlay of 64 GPUs names a cluster already, the others have no such key
    address = f"{'' if r.on_cpu or MACHINES[r.hardware].gpus > 8 else '+'}ray_kwargs.ray_init.address"
    given = r.origin.training(r, m)
    chosen = {
        "size": MINI if mini else m.size,
        "hardware": r.hardware,
        "task": "mini-add" if mini else None,
        "run.size": m.size if mini and m.size != MINI else None,
        "run.seed": m.seed,
        "run.steps": r.steps,
        **{key: value for key, value in given.items() if key.startswith("run.")},
        "run.out": folder,
        **given,
        "trainer.val_before_train": before,
        "trainer.test_freq": every if every != 0 else -1,
        "trainer.max_actor_ckpt_to_keep": r.keep_checkpoints or None,
        address: r.ray_address or None,
    }
    words = [f"{key}={value}" for key, value in chosen.items() if value is not None]
    command = (r.programs[0], "run", *(m.choices or choices(m.method)), *words)
    return stage_of(r, f"train/{m.name}", command, folder, r.origin.needed(m, "train", inputs), "metrics.jsonl")


def _export(r: CellRequest, m: Model) -> Stage:
    folder, source = r.out / "models" / m.name, r.out / "train" / m.name
    source = source if r.on_cpu else source / "checkpoints" / f"global_step_{r.steps}"
    command = (r.programs[0], "export", "--checkpoint", f"{source}", "--out", f"{folder}", *r.origin.dtype)
    # the folder appears in one step; the evaluation compares its weights with the hash in stapo.json
    return Stage(f"export/{m.name}", command, folder, (folder / "stapo.json",), (f"train/{m.name}",))


def _evaluation(r: CellRequest, m: Model, inputs: Sequence[Stage]) -> Stage:
    """A model at both settings."""
    model = [] if m.is_base else ["--model", f"{r.out / 'models' / m.name}"]
    folder, needs = r.out / "eval" / m.name, [] if m.is_base else [f"export/{m.name}"]
    command = [r.programs[1], "run", *model, *r.origin.evaluation(r, m), "--out", f"{folder}"]
    needs += r.origin.needed(m, "eval", inputs)
    return stage_of(r, f"eval/{m.name}", command, folder, needs, "cells")


def show(page: str) -> None:
    """Print Markdown."""
    Console().print(Markdown(page))


def show_end(r: CellRequest, wall_seconds: float, collecting: str = "") -> None:
    """Print the closing words of a finished run; `wall_seconds` are this call's, `collecting` the command for that."""
    seconds = sum(s.seconds for s in read_states(r.out).values())
    print(f"This call {duration(wall_seconds)}, all stages {duration(seconds)}. Pages, records and logs: {r.out}")
    if collecting:
        print(f"To commit: {collecting}, then stapo-train configs and tox -e tables")


def _scores(rows: list[dict[str, Any]]) -> str:
    """The scores of a main_table.json that come from records: a line a model, both settings in a cell."""
    texts = defaultdict[tuple[str, str], dict[str, list[str]]](dict)
    for r in rows:
        if r["source"] == "ours" and r["status"] != "not run":
            both_settings = texts[r["size"], r["method"]].setdefault(r["benchmark"], [])
            both_settings.append(r["shown"] or r["status"])
    columns = dict.fromkeys(benchmark for cells in texts.values() for benchmark in cells)
    sizes = {size for size, _ in texts}
    lines = []
    for (size, method), cells in texts.items():
        name = labels.method_label(method)
        name += f", {labels.size_label(size)}" if len(sizes) > 1 else ""
        lines.append([name, *(" / ".join(cells.get(b, ())) for b in columns)])
    head = ["Method", *map(labels.benchmark_label, columns)]
    return "\n".join([*grid(head, lines), "", "Accuracy in percent at T=1.0 / T=0.7."])
