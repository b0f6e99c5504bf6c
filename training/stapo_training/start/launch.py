"""From a command line to a training run: compose, check, open the folder, hand over to veRL."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from stapo_results import provenance, runs, store, throughput
from stapo_results.checks import Checks
from stapo_results.errors import BadInput, RunFailed, message_of
from stapo_results.schema import Run
from stapo_results.shapes import Shape
from stapo_results.sizes import is_miniature_size
from stapo_results.terminal import duration
from stapo_training.artifacts import weights
from stapo_training.folder import status
from stapo_training.folder.training_folder import TrainingFolder
from stapo_training.selection import own
from stapo_training.start import estimate
from stapo_training.start.configuration import check_overrides, compose, in_full, last_choices
from stapo_training.start.preflight import Preflight, examine
from stapo_training.start.resuming import rules, with_steps
from stapo_training.start.settings import check_settings

_SLOW_TO_HASH = 4 * 2**30  # bytes; a shared disk gives some 300 MB a second


def run(overrides: list[str], *, dry_run: bool = False, config_only: bool = False) -> int:
    """`stapo-train run`: train, or go on with an interrupted training, or say that it is finished.

    Raises:
        BadInput: every failed check, before anything expensive starts.
    """
    overrides = [in_full(o) for o in overrides]
    chosen = [o for o in last_choices(overrides) if o.startswith("hardware=")]
    if set(chosen) <= {"hardware=cpu", "hardware=cpu-vllm"}:
        # One machine: Ray's servers listen on loopback only. The variable's name is Ray's, and Ray reads it when it is
        # imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # as veRL does: a check may import Ray before it
    config = compose(overrides)
    check_overrides(config, overrides)
    if config_only:
        return _show_configuration(config)
    weights.pin(config, download=False)
    _prepare_cpu(config)
    plan, command = examine(config), resume_command(overrides)
    plan.checks.attempt("logits_form", choose_logits_form, config, plan.shape)
    if dry_run:
        return _dry_run(config, plan, command)
    plan.checks.refuse()
    unchecked = config.run.check_memory and not plan.memory
    lacking = "the card or the model is not known: memory is not checked (run.card=H100 plans with a card)"
    longer = f"{plan.longer} prompts are left out: longer than data.max_prompt_length={config.data.max_prompt_length}"
    for warning in filter(None, (plan.warning, unchecked and lacking, plan.longer and longer)):
        print(f"warning: {warning}", file=sys.stderr)
    weights.pin(config, download=True)
    return _open_and_train(config, command, plan)


def choose_logits_form(config: Any, shape: Shape | None) -> None:
    """Write the form into the configuration, since it decides last digits: a resumed run's is the one it began with."""
    from stapo_training.selection.logit_statistics import chosen_form  # torch: after the checks that need none

    a, record = config.actor_rollout_ref, Path(config.run.out) / runs.RECORD
    if a.logits_form == "auto" and record.is_file() and TrainingFolder(record.parent).begun:
        a.logits_form = store.read_json(record, Run).config.get("actor_rollout_ref", {}).get("logits_form", "eager")
    a.logits_form = chosen_form(a.logits_form, shape.vocab if shape else 0, config.trainer.device)


def _show_configuration(config: Any) -> int:
    from omegaconf import OmegaConf

    print(OmegaConf.to_yaml(config))
    check_settings(config).refuse()
    ask_verl(config)
    return 0


def _prepare_cpu(config: Any) -> None:
    """Without a GPU this process needs our platform too: veRL imports what VERL_USE_EXTERNAL_MODULES names, and chooses
    its platform when it is first asked for."""
    if config.trainer.device != "cpu":
        return
    given = config.ray_kwargs.ray_init.runtime_env.env_vars.items()
    # OpenMP's and the C library's are for Ray's workers: this process samples, and its daemons would inherit them
    os.environ |= {k: str(v) for k, v in given if not k.startswith(("OMP_", "GLIBC_"))}
    # Ray counts a CPU run's logical GPUs against this list, which hides real ones
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if "verl" in sys.modules:
        importlib.import_module(os.environ["VERL_USE_EXTERNAL_MODULES"])
    # idle workers that Ray would start in advance cost seconds of both cores and are never used
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")


def ask_verl(config: Any) -> None:
    """veRL's own validation, and whether it finds our trainer, agent loop and reward under the configured names.

    Raises:
        BadInput: when veRL refuses the configuration.
    """
    # veRL warns of every engine that is not installed; the one that is needed is asked for by name
    warnings.filterwarnings("ignore", message=".* engine is not available")
    try:
        from stapo_training.verl_ext import run as verl_run  # imports veRL: tens of seconds

        with redirect_stdout(sys.stderr):  # veRL prints notices
            verl_run.validate(config)
    except BadInput:
        raise
    except Exception as e:  # whatever veRL and a reward function raise
        cure = "correct the value it names; stapo-train run ... --config-only shows every key"
        raise BadInput("veRL refuses the configuration", found=message_of(e), next_step=cure) from e


def _dry_run(config: Any, found: Preflight, command: str) -> int:
    checks, out = found.checks, Path(config.run.out)
    if not check_settings(config).problems:  # veRL would only say the same again
        checks.attempt("veRL", ask_verl, config)
    if not checks.problems:
        record = new_record(config, found.files)
        checks.attempt("folder", lambda: runs.previous_of(out, record, "run.out", **rules(record, out)))
    show(config, found, command)
    checks.refuse()
    print("\nAll checks passed; nothing was started (--dry-run).")
    return 0


def show(config: Any, found: Preflight, command: str) -> None:
    """Print what would run, whether it fits, how long it takes, how to start it; "not known" where a check failed."""
    a, data, trainer, asked, need = config.actor_rollout_ref, config.data, config.trainer, config.run, found.memory
    prompts = f"{found.prompts} prompts" if found.prompts else "prompts not known"
    prompts += f" ({found.longer} longer ones left out)" if found.longer else ""
    updates = data.train_batch_size // a.actor.ppo_mini_batch_size
    card = found.card or "this machine"
    ranks = f"{trainer.nnodes} node(s) x {trainer.n_gpus_per_node} {trainer.device} rank(s)"
    time = Checks().attempt("time", _time, config, found)  # a selector that is refused is said below
    for title, *lines in (
        (
            "What runs",
            f"{asked.method} on {asked.size}, seed {asked.seed}, {asked.steps} steps, into {asked.out}",
            f"{ranks} in {a.actor.fsdp_config.dtype}, model {a.model.path}",
            f"{data.train_batch_size} prompts x {a.rollout.n} responses a step, {updates} update(s), {prompts}",
            f"selector {a.selector.name} ({a.selector.policy}, {a.selector.scope}), lr {a.actor.optim.lr}",
        ),
        ("Memory", need and f"about {need.gib:.1f} of {need.limit:.1f} GiB on {card} ({need.moment})"),
        ("Disk", found.disk),
        ("Cores", found.warning or "enough, or not known"),
        ("Time", time, _validations(config, found)),
        ("To start or resume it", command),
    ):
        known = [line or _not_known(config) for line in lines]
        print(f"\n{title}", *known, sep="\n  ")


def _not_known(config: Any) -> str:
    """Why a line of the plan is empty: a check failed, or no card is here."""
    plans = (
        "" if config.run.card or config.trainer.device == "cpu" else "; run.card=H100 plans for a GPU that is not here"
    )
    return f"not known: not checked, or an error below says why{plans}"


def _time(config: Any, found: Preflight) -> str | None:
    if config.trainer.device == "cpu" and is_miniature_size(config.run.size):
        return "stapo-repro run miniature --dry-run has the recorded times of CPUs"
    if config.trainer.device == "cpu" and found.shape:
        each = estimate.cpu_seconds(config, found.shape)
        line = f"about {duration(each)} a step, {duration(each * config.run.steps)} in all"
        return f"{line}, by a linear layer as fast as just now; what else runs and the lengths decide"
    if found.shape is None or found.card is None:
        return None
    step = estimate.step(config, found.shape, found.validation or throughput.VALIDATION)
    gpus = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    seconds = step.seconds(throughput.CARDS[found.card], gpus)
    line = f"about {duration(seconds)} a step, {duration(seconds * config.run.steps)} in all"
    return f"{line} (formula: {step.words(found.card, gpus)})"


def _validations(config: Any, found: Preflight) -> str:
    """How often a run validates, and how much: on a CPU it can take longer than the training."""
    count, settings = estimate.validations(config), len(config.run.validation_settings)
    if not count:
        return "no validation (trainer.test_freq)"
    if not found.validation:
        return f"{count} validations of problems that are not known yet"
    steps = found.validation * settings / (config.data.train_batch_size * config.actor_rollout_ref.rollout.n)
    each = f"{found.validation} samples at {settings} setting(s), which a training samples in {steps:.1f} steps"
    before = "before the training, " if config.trainer.val_before_train else ""
    when = f"{before}every {config.trainer.test_freq} steps and after the last"
    return f"{count} validations of {each}: {when}; trainer.test_freq=-1 leaves them out"


def resume_command(overrides: Sequence[str]) -> str:
    """The command line that resumes a run, with absolute folders and without what is named like a secret."""
    return shlex.join(provenance.redact_command(["stapo-train", "run", *map(in_full, overrides)]))


def new_record(config: Any, files: Sequence[Path]) -> Run:
    """The record of the run that a configuration asks for; weights and data files are hashed."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True)
    model = Path(config.actor_rollout_ref.model.path)
    weight_files = sorted(model.glob("*.safetensors"))
    if (size := sum(f.stat().st_size for f in weight_files)) > _SLOW_TO_HASH:
        print(f"hashing {status.size(size)} of weights", file=sys.stderr)
    revisions = {"model": " ".join(store.sha256_file(f) for f in weight_files) or str(model)}
    for p in dict.fromkeys(files):  # two may have one name
        revisions[p.name] = " ".join(filter(None, (revisions.get(p.name), store.sha256_file(p))))
    selector = plain["actor_rollout_ref"]["selector"]
    if own.is_own(selector["name"]):  # the run keeps a copy; which function it is, its hash says
        revisions["selector"] = store.sha256_file(own.file_of(selector["name"]))
        selector["name"] = own.kept_in(Path(config.run.out), selector["name"])
    seeds = {"run": int(config.run.seed)}
    return provenance.new_run(
        "train", plain, seeds=seeds, deterministic=bool(config.run.deterministic), revisions=revisions
    )


def _open_and_train(config: Any, command: str, found: Preflight) -> int:
    out, new = Path(config.run.out), new_record(config, found.files)
    with runs.opened(out, new, flag="run.out", **rules(new, out)) as open_run:
        longer = with_steps(open_run.record.config, int(config.run.steps))
        if open_run.finished and longer == open_run.record.config:
            print(f"{out}: this run is finished ({config.run.steps} steps)")
            return 0
        ask_verl(config)
        from stapo_training.verl_ext import run as verl_run

        _keep_selector(config)
        folder = TrainingFolder(out, deterministic=bool(config.run.deterministic))
        folder.take_over(anew=open_run.previous is None)
        checkpoint = folder.last_checkpoint()
        finished = checkpoint is not None and checkpoint.name == f"global_step_{config.run.steps}"
        _set_places(config, folder, checkpoint, command)
        if found.longer == 0:  # veRL would ask the tokenizer for every prompt once more
            config.data.filter_overlong_prompts = False
        start = checkpoint.name if checkpoint else "the start"
        with _status_at_end(config, out), open_run.working(start, resume=f"to resume: {command}", config=longer):
            for name, value in _places(out, open_run.record).items():
                os.environ.setdefault(name, value)
            try:
                if not finished or not any(s.step == config.run.steps for s in folder.steps):
                    verl_run.train(config)
            except SystemExit:  # what Ray makes of a SIGTERM before the first step
                raise KeyboardInterrupt from None
            refuse_early_end(out, int(config.run.steps))
    print(f"finished: {out}")
    return 0


def refuse_early_end(out: Path, steps: int) -> None:
    """Raises RunFailed where veRL has returned, and step `steps` is not on disk."""
    last = max((s.step for s in TrainingFolder(out).steps), default=0)
    if last != steps:
        raise RunFailed(
            "veRL ended the training before its last step",
            found=f"step {last}",
            expected=f"step {steps} (run.steps)",
            next_step="leave out what ends it earlier, such as trainer.val_only, in the same command",
        )


def _places(out: Path, record: Run) -> dict[str, str]:
    """Variables by which loggers write into the run's folder, and wandb into one run over all attempts. veRL's file
    logger empties its file when it opens it, so each attempt (0, 1, ...) of a run gets one of its own."""
    folders = {"TENSORBOARD_DIR": str(out / "tensorboard"), "TRACKIO_DIR": str(out / "trackio"), "WANDB_DIR": str(out)}
    # a run_id alone is that of every repetition too
    one = f"{record.run_id}-{''.join(filter(str.isdigit, record.started))}"
    folders |= {"SWANLAB_LOG_DIR": str(out / "swanlab"), "WANDB_RUN_ID": one, "WANDB_RESUME": "allow"}
    return folders | {"VERL_FILE_LOGGER_PATH": str(out / f"verl-metrics-{len(record.resumptions)}.jsonl")}


def _keep_selector(config: Any) -> None:
    """Train with the run's copy of a user-defined selector: the file may change during the run."""
    selector = config.actor_rollout_ref.selector
    if own.is_own(selector.name):
        kept = own.kept_in(Path(config.run.out), selector.name)
        store.write_atomic(own.file_of(kept), own.file_of(selector.name).read_bytes())
        try:
            own.load(kept)
        except ValueError as e:
            alone = "one file that reads no other beside it"
            raise BadInput("the run's copy of the selector does not load", found=message_of(e), expected=alone,
                           next_step="docs/mask.md") from None  # fmt: skip
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
        reason = message_of(e)
        raise
    finally:
        # the trainer has written to the folder through an object of its own
        status.write(TrainingFolder(out), config, state, reason=reason)
