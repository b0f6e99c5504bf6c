"""From a command line to a training run: compose, check, record, hand over to veRL."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from stapo_results import provenance, store
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from stapo_training import reward
from stapo_training.artifacts import weights
from stapo_training.run.configuration import absolute, compose, last_choices
from stapo_training.run.folder import RunFolder, first_line
from stapo_training.run.preflight import dry_run as dry
from stapo_training.run.preflight.checks import Facts, Report, examine, examine_settings, validate
from stapo_training.run.watch import loggers, status
from stapo_training.run.watch.alarms import alarms_from


def run(overrides: list[str], *, dry_run: bool = False, config_only: bool = False) -> int:
    """`stapo-train run`: train, or go on with an interrupted training, or say that it is finished."""
    from omegaconf import OmegaConf, open_dict

    if not any(o.startswith("hardware=") and o != "hardware=cpu" for o in last_choices(overrides)):
        # One machine: Ray's servers listen on loopback only. The variable's name is Ray's, and Ray reads it when it is
        # imported, which composing does.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    config = compose(overrides)
    if config_only:
        print(OmegaConf.to_yaml(config))
        report = examine_settings(config)
        _check_watching(config, report)
        report.refuse()
        validate(config, ask_worker=False)
        return 0
    _check_base(config)
    weights.pin(config, download=False)
    if config.trainer.device == "cpu":
        # veRL chooses its platform when it is first asked for; composing has imported veRL's package already, so the
        # module that VERL_USE_EXTERNAL_MODULES names to every other process is imported here by hand
        os.environ |= {k: str(v) for k, v in config.ray_kwargs.ray_init.runtime_env.env_vars.items()}
        importlib.import_module(os.environ["VERL_USE_EXTERNAL_MODULES"])
        # idle workers that Ray would start in advance cost seconds of both cores and are never used
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    report = examine(config)
    _check_watching(config, report)
    if dry_run:
        report.command = resume_command(overrides)
        return dry.show(config, overrides, report, compose=compose, same_run=_check_same_run)
    report.refuse()
    weights.pin(config, download=True)
    facts = replace(report.facts, model=Path(config.actor_rollout_ref.model.path))
    facts.out.mkdir(parents=True, exist_ok=True)
    new, record_file = _new_record(config, facts), facts.out / "run.json"
    try:
        with FileLock(facts.out / ".lock", timeout=0):
            previous = store.read_json(record_file, Run) if record_file.exists() else None
            if previous is not None:
                _refuse_other(previous, new, facts.out)
                if previous.status == "done":
                    print(f"{facts.out}: this run is finished ({config.run.steps} steps)")
                    return 0
            # a GPU run asks a worker's process first; without a GPU the run itself says the same as early
            validate(config, ask_worker=config.trainer.device != "cpu")
            from stapo_training.verl_ext import run as verl_run

            folder = RunFolder(facts.out, deterministic=bool(config.run.deterministic))
            folder.discard_incomplete_checkpoints()
            checkpoint = folder.last_checkpoint()
            with open_dict(config):
                config.trainer.resume_mode = "resume_path" if checkpoint else "disable"
                config.trainer.resume_from_path = str(checkpoint) if checkpoint else None
                config.run.out = str(facts.out)
                config.run.command = resume_command(overrides)
                config.trainer.default_local_dir = str(folder.checkpoints)
                if checkpoint:
                    config.trainer.val_before_train = False  # step 0 is in the metrics already
            record = (
                new
                if previous is None
                else previous.model_copy(
                    update={
                        "status": "running",
                        "notes": [
                            *previous.notes,
                            f"resumed {provenance.now()} from {checkpoint.name if checkpoint else 'the start'}",
                        ],
                    }
                )
            )
            store.write_json(record_file, record)
            attempt = sum("resumed" in note for note in record.notes)
            for name, place in loggers.locations(facts.out, attempt).items():
                os.environ.setdefault(name, place)
            return _train(config, record, folder, verl_run.train)
    except Timeout:
        raise BadInput(
            f"another run writes to {facts.out}", next_step="wait for it, or choose another run.out"
        ) from None


def _check_base(config: Any) -> None:
    """Raises BadInput where a path is made of run.base and run.base is not given."""
    paths = [config.actor_rollout_ref.model.path, config.data.train_files, config.data.val_files]
    if config.run.base is None and any(str(p).startswith("None/") for p in paths):
        raise BadInput(
            "values are missing",
            found="run.base",
            expected="the folder of a base model and its data",
            next_step="stapo-train base --out DIR, then run.base=DIR",
        )


def _check_watching(config: Any, report: Report) -> None:
    """What is asked of alarms, loggers and the reward."""
    report.attempt(alarms_from, config.alarms)
    report.attempt(loggers.check, config.trainer.logger)
    report.attempt(reward.verifier_from, config)


def resume_command(overrides: list[str]) -> str:
    """The command line that goes on with a run, with absolute folders and without what is named like a secret."""
    return shlex.join(provenance.redact_command(["stapo-train", "run", *map(absolute, overrides)]))


def _train(config: Any, record: Run, folder: RunFolder, train: Any) -> int:
    run = config.run
    began, state, reason = time.perf_counter(), "failed", ""
    try:
        train(config)
        state = "finished"
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, and what Ray makes of a SIGTERM before the first step
        state = "interrupted"
        print(f"to go on: {run.command}", file=sys.stderr)
        raise KeyboardInterrupt from None
    except Exception as e:
        reason = first_line(e)
        raise
    finally:
        seconds = (record.wall_seconds or 0.0) + time.perf_counter() - began
        provenance.close_run(record, folder.path / "run.json", "done" if state == "finished" else state, seconds)
        # the trainer has written to the folder through an object of its own
        status.write(
            RunFolder(folder.path),
            status.title(run.method, run.size, run.seed),
            state,
            run.steps,
            run.command,
            reason=reason,
        )
    print(f"finished: {folder.path}")
    return 0


_MAY_CHANGE = ("alarms.", "run.silenced_share_reference:", "trainer.logger:", "run.card:", "run.check_memory:")


def _refuse_other(previous: Run, new: Run, out: Path) -> None:
    """A folder holds one run: another configuration, other data or other weights need another folder.

    What decides no number (alarms, loggers, what preflight looks at) may change.
    """
    differing = [
        *(d for d in _differences(previous.config, new.config) if not d.startswith(_MAY_CHANGE)),
        *(
            f"{k}: {previous.revisions.get(k)} / {new.revisions.get(k)}"
            for k in sorted(previous.revisions.keys() | new.revisions.keys())
            if previous.revisions.get(k) != new.revisions.get(k)
        ),
    ]
    if differing:
        differing.sort(key=lambda d: not d.startswith("run."))  # what was typed before what follows from it
        raise BadInput(
            f"{out} holds a run of another configuration",
            found="; ".join(differing[:5]),
            expected="the same values (there / now)",
            next_step="choose another run.out=, or delete the folder",
        )


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        return [
            d for k in sorted(a.keys() | b.keys()) for d in _differences(a.get(k), b.get(k), f"{path}.{k}".lstrip("."))
        ]
    return [] if a == b else [f"{path}: {a} / {b}"]


def _weights_revision(model: Path) -> str:
    files = sorted(model.glob("*.safetensors"))
    return " ".join(store.sha256_file(f) for f in files) if files else str(model)


def _new_record(config: Any, facts: Facts) -> Run:
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True)
    revisions = {"model": _weights_revision(facts.model)} | {p.name: store.sha256_file(p) for p in facts.files}
    seeds = {"run": int(config.run.seed)}
    deterministic = bool(config.run.deterministic)
    return provenance.new_run("train", plain, seeds=seeds, deterministic=deterministic, revisions=revisions)


def _check_same_run(config: Any, facts: Facts) -> None:
    """Raises BadInput when the folder holds another run than this configuration's."""
    file = facts.out / "run.json"
    if file.exists():
        _refuse_other(store.read_json(file, Run), _new_record(config, facts), facts.out)
