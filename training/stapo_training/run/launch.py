"""From a command line to a training run: compose, check, open the folder, hand over to veRL."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stapo_results import provenance, runs, store
from stapo_results.schema import SETTINGS, Run
from stapo_training.artifacts import weights
from stapo_training.run.configuration import absolute, compose, last_choices
from stapo_training.run.folder import TrainingFolder, first_line
from stapo_training.run.preflight import dry_run as dry
from stapo_training.run.preflight.checks import Preflight, check_settings, examine
from stapo_training.run.preflight.registration import validate
from stapo_training.run.watch import loggers, status
from stapo_training.selection import own

_MAY_DIFFER = (
    *("alarms.", "run.silenced_share_reference", "trainer.logger", "run.card", "run.check_memory"),
    *("run.weight_transfer_limit_s", "ray_kwargs.ray_init.num_cpus"),
    *("ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS", "transfer_queue.", "trainer.max_actor_ckpt_to_keep"),
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
    # removed; older runs' records name them
    *("actor_rollout_ref.selector.log_agreement", "actor_rollout_ref.rollout.engine_kwargs.stapo_cpu.group_timeout_s"),
)
"""What decides no number of a run: alarms, loggers, what preflight looks at, what follows from a machine's cores, how
many checkpoints are kept, how data and weights travel."""


def run(overrides: list[str], *, dry_run: bool = False, config_only: bool = False) -> int:
    """`stapo-train run`: train, or go on with an interrupted training, or say that it is finished.

    Raises:
        BadInput: everything that stands in the way, before anything expensive starts.
    """
    chosen = [o for o in last_choices(overrides) if o.startswith("hardware=")]
    if set(chosen) <= {"hardware=cpu", "hardware=cpu-vllm"}:
        # One machine: Ray's servers listen on loopback only. The variable's name is Ray's, and Ray reads it when it is
        # imported, which composing does.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    config = compose(overrides)
    if config_only:
        return _show_configuration(config)
    weights.pin(config, download=False)
    _prepare_cpu(config)
    found = examine(config)
    if dry_run:
        return _dry_run(config, overrides, found)
    found.checks.refuse()
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    weights.pin(config, download=True)
    return _open_and_train(config, resume_command(overrides), found.files)


def _show_configuration(config: Any) -> int:
    from omegaconf import OmegaConf

    print(OmegaConf.to_yaml(config))
    check_settings(config).refuse()
    validate(config, ask_worker=False)
    return 0


def _prepare_cpu(config: Any) -> None:
    """Without a GPU this process needs our platform too.

    veRL chooses its platform when it is first asked for; composing has imported veRL's package already, so the module
    that VERL_USE_EXTERNAL_MODULES names to every other process is imported here by hand.
    """
    if config.trainer.device != "cpu":
        return
    os.environ |= {k: str(v) for k, v in config.ray_kwargs.ray_init.runtime_env.env_vars.items()}
    # Ray counts a CPU run's logical GPUs against this list, which hides real ones
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    importlib.import_module(os.environ["VERL_USE_EXTERNAL_MODULES"])
    # idle workers that Ray would start in advance cost seconds of both cores and are never used
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")


def _dry_run(config: Any, overrides: Sequence[str], found: Preflight) -> int:
    checks, registered, out = found.checks, None, Path(config.run.out)
    if not check_settings(config).problems:  # veRL and a worker's process would only say the same again
        registered = checks.attempt("veRL", lambda: validate(config, ask_worker=True))
    if not checks.problems:
        record = new_record(config, found.files)
        checks.attempt("folder", lambda: runs.previous_of(out, record, "run.out", **RULES))
    dry.show(config, found, registered or {}, resume_command(overrides))
    checks.refuse()
    print("\nAll checks passed; nothing was started (--dry-run).")
    return 0


def resume_command(overrides: Sequence[str]) -> str:
    """The command line that goes on with a run, with absolute folders and without what is named like a secret."""
    return shlex.join(provenance.redact_command(["stapo-train", "run", *map(absolute, overrides)]))


def new_record(config: Any, files: Sequence[Path]) -> Run:
    """The record of the run that a configuration asks for; weights and data files are hashed."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True)
    model = Path(config.actor_rollout_ref.model.path)
    weight_files = sorted(model.glob("*.safetensors"))
    revisions = {"model": " ".join(store.sha256_file(f) for f in weight_files) or str(model)}
    revisions |= {p.name: store.sha256_file(p) for p in files}
    selector = plain["actor_rollout_ref"]["selector"]
    if own.is_own(selector["name"]):  # the run keeps a copy; which function it is, its hash says
        revisions["selector"] = store.sha256_file(own.file_of(selector["name"]))
        selector["name"] = own.kept_in(Path(config.run.out), selector["name"])
    seeds = {"run": int(config.run.seed)}
    return provenance.new_run(
        "train", plain, seeds=seeds, deterministic=bool(config.run.deterministic), revisions=revisions
    )


def may_differ(key: str) -> bool:
    """Whether a resumed run may have another value of this key."""
    return key.startswith(_MAY_DIFFER)


def foreign(name: str) -> bool:
    """Files of a training, which must not stand in a folder without a record; a log of one's own may."""
    return name in ("metrics.jsonl", "checkpoints")


def older(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an earlier run; without `run.validation_settings` it validated at its val_kwargs alone."""
    used = config["actor_rollout_ref"]["rollout"]["val_kwargs"]
    settings = [k for k, s in SETTINGS.items() if s[:2] == (used["temperature"], used["top_p"])]
    return {**config, "run": {"validation_settings": settings, **config["run"]}}


RULES: dict[str, Any] = {"may_differ": may_differ, "foreign": foreign, "older": older}
"""How a run's folder is compared with a command (`runs.previous_of`)."""


def _open_and_train(config: Any, command: str, files: Sequence[Path]) -> int:
    out = Path(config.run.out)
    with runs.opened(out, new_record(config, files), flag="run.out", **RULES) as open_run:
        if open_run.finished:
            print(f"{out}: this run is finished ({config.trainer.total_training_steps} steps)")
            return 0
        # a GPU run asks a worker's process first; without a GPU the run itself says the same as early
        validate(config, ask_worker=config.trainer.device != "cpu")
        from stapo_training.verl_ext import run as verl_run

        _keep_selector(config)
        folder = TrainingFolder(out, deterministic=bool(config.run.deterministic))
        folder.discard_incomplete_checkpoints()
        checkpoint = folder.last_checkpoint()
        _set_places(config, folder, checkpoint, command)
        start = checkpoint.name if checkpoint else "the start"
        with _status_at_end(config, out), open_run.working(start, resume=f"to go on: {command}"):
            for name, place in loggers.locations(out, len(open_run.record.resumptions)).items():
                os.environ.setdefault(name, place)
            try:
                verl_run.train(config)
            except SystemExit:  # what Ray makes of a SIGTERM before the first step
                raise KeyboardInterrupt from None
    print(f"finished: {out}")
    return 0


def _keep_selector(config: Any) -> None:
    """Train with the run's own copy of somebody's selector: the file may change while the run goes on."""
    selector = config.actor_rollout_ref.selector
    if own.is_own(selector.name):
        kept = own.kept_in(Path(config.run.out), selector.name)
        store.write_atomic(own.file_of(kept), own.file_of(selector.name).read_bytes())
        selector.name = kept


def _set_places(config: Any, folder: TrainingFolder, checkpoint: Path | None, command: str) -> None:
    from omegaconf import open_dict

    with open_dict(config):
        config.trainer.resume_mode = "resume_path" if checkpoint else "disable"
        config.trainer.resume_from_path = str(checkpoint) if checkpoint else None
        config.run.command = command
        config.trainer.default_local_dir = str(folder.checkpoints)
        if checkpoint:
            config.trainer.val_before_train = False  # step 0 is in the metrics already


@contextmanager
def _status_at_end(config: Any, out: Path) -> Iterator[None]:
    """STATUS.md says how the training ended, whatever ended it."""
    state, reason = "failed", ""
    try:
        yield
        state = "finished"
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    except Exception as e:
        reason = first_line(e)
        raise
    finally:
        # the trainer has written to the folder through an object of its own
        status.write(TrainingFolder(out), config, state, reason=reason)
