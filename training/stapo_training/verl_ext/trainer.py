"""The trainer mode `stapo`: veRL's synchronous trainer with our worker, stable ids, a metrics record and safe saves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import OutOfMemoryError, RayActorError, RayError
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance

from stapo_results import token_log
from stapo_results.errors import RunFailed
from stapo_training.folder import alarms, interrupts, status, step_metrics
from stapo_training.folder.training_folder import COMPLETE, TrainingFolder
from stapo_training.token_log.writer import discard_after
from stapo_training.verl_ext import advantages, queue_start, rollout
from stapo_training.verl_ext.platform import settle
from stapo_training.verl_ext.step_tokens import stop_tokens, token_numbers
from stapo_training.verl_ext.waiting import OrderedReplayBuffer, wait_for_ranks
from stapo_training.verl_ext.worker import OLD_IS_CURRENT, STEP, StapoWorker

assert advantages  # imported because it registers

_POLL_SECONDS = 0.5  # a poll asks for every key of the step; a LocalRollout has stored all before the first
_FAILED = "failed_validation"


@register_trainer("stapo")
class StapoTrainer(PPOTrainerSync):
    """Synchronous training whose result is a function of configuration and seed.

    - prompts get stable ids (`step`-`row`) instead of uuid4
    - trajectories are used in the order of these ids
    - a step's metrics are on disk before its checkpoint counts, so that a resumed run has no gap
    - Ctrl-C, SIGTERM and alarms end it between two steps, with a checkpoint of the last one
    """

    def __init__(self, config: Any):
        # veRL chooses its buffer and its checks by this name; any other than "sync" means the asynchronous ones
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        if config.actor_rollout_ref.rollout.name == rollout.NAME:
            self._enable_hybrid_replicas = False  # veRL's own switch: its workers build no rollout
            trainer_base.LLMServerManager = rollout.LocalRollout  # veRL names its own class where it makes one
        self.folder = TrainingFolder(Path(config.run.out), deterministic=config.run.deterministic)
        self.stop = interrupts.StopRequest()
        self._limits = alarms.alarms_from(config.alarms)
        self._watch, self._resumed_at = alarms.Watch(), 0
        self._silenced_reference = alarms.silenced_reference(
            config.actor_rollout_ref.selector.name, config.run.silenced_share_reference
        )
        # veRL deletes old checkpoints before it writes a new one; here they go when the new one is complete
        self._keep, config.trainer.max_actor_ckpt_to_keep = config.trainer.get("max_actor_ckpt_to_keep"), None
        self._save_due, self._saved_at = False, time.monotonic()
        self._fetched = (0, 0)  # the step, and how many prompts it has taken from the data
        self._ended_at: int | None = None
        self._step_began = time.perf_counter()
        self._step_seconds: list[float] = []
        correction = config.algorithm.get("rollout_correction")
        self._old_policy = not (correction and correction.get("bypass_mode", False))

    def _build_replay_buffer(self) -> Any:
        buffer: Any = super()._build_replay_buffer()
        buffer.__class__ = OrderedReplayBuffer  # veRL names its own class where it makes one
        buffer.poll_interval = _POLL_SECONDS
        buffer.limit_s = float(self.config.run.rollout_limit_s)
        return buffer

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef, Role.RefPolicy):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(StapoWorker)

    def prepare_step(self) -> dict:
        with marked_timer("gen", self.timing_raw, color="red"):  # a LocalRollout samples here
            return super().prepare_step()

    def _fetch_one_gen_batch(self) -> Any:
        """veRL's, which may be called several times a step (data.gen_batch_size, dynamic sampling)."""
        batch = super()._fetch_one_gen_batch()
        step, first = self._fetched if self._fetched[0] == self.global_steps else (self.global_steps, 0)
        self._fetched = step, first + len(batch)
        groups, prompts = self.config.algorithm.get("filter_groups"), first + len(batch)
        dataset: Any = self.train_dataset if groups and groups.enable else None
        if dataset is not None and prompts > len(dataset) + self.config.data.train_batch_size:
            raise RunFailed(
                f"step {step}: too few prompts have both right and wrong responses to fill a batch",
                found=f"{prompts} prompts asked, all of the data and a batch",
                next_step=f"stapo-train export --checkpoint {self.config.run.out} takes what is trained; "
                "algorithm.filter_groups.enable=false needs another run.out",
            )
        tu.assign_non_tensor_stack(batch, "uid", [f"{step:08d}-{first + row:06d}" for row in range(len(batch))])
        return batch

    def on_train_begin(self) -> None:
        super().on_train_begin()
        self._stops = stop_tokens(self.tokenizer, self.config.actor_rollout_ref.model.path)
        self.folder.at = self._resumed_at = self.global_steps - 1
        discard_after(self.folder.path / token_log.FOLDER, self._resumed_at)
        self._remember()
        self._write_status()
        self.stop.catch(
            lambda: f"step {self.global_steps} is finished and saved first; once more stops at once, without it"
        )
        settle()
        self._step_began, self._saved_at = time.perf_counter(), time.monotonic()

    def _remember(self) -> None:
        """Show the alarms the steps of earlier attempts."""
        times = self.folder.times()
        for done in self.folder.steps:
            if done.step > 0:
                self._watch, _ = alarms.observe(
                    self._watch,
                    self._limits,
                    done.step,
                    done.values | times.get(done.step, {}),
                    resumed_at=self._resumed_at,
                    silenced_reference=self._silenced_reference,
                )

    def fit(self, agent_loop_manager: Any) -> None:
        """veRL's loop; Ctrl-C and SIGTERM end it between two steps."""
        buffer: Any = self.replay_buffer
        buffer.problems = getattr(agent_loop_manager, "problems", {})  # a LocalRollout lets nobody wait
        try:
            super().fit(agent_loop_manager)
        finally:
            self.stop.release()

    def on_step_begin(self) -> None:
        super().on_step_begin()
        if self._ended_at is not None:  # saved by _compute_metrics; since then the loggers have seen the step
            raise KeyboardInterrupt

    def _balance_batch(
        self, batch: Any, metrics: dict, logging_prefix: str = "global_seqlen", keep_minibatch: bool = True
    ) -> Any:
        """The batch filled up by veRL, and spread over the ranks within each mini-batch (`balanced_order`).

        veRL spreads the whole batch, whatever trainer.balance_batch says; its V1 trainer does not read that key.
        """
        place = {key: i for i, key in enumerate(batch.keys)}
        batch = super()._balance_batch(batch, {}, logging_prefix)
        # back to the order that it had; what was filled in goes to the end
        batch.reorder(sorted(range(len(batch.keys)), key=lambda i: place.get(batch.keys[i], len(place))))
        if self.config.trainer.balance_batch:
            lengths = [int(tag["seq_len"]) for tag in batch.tags]
            ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
            actor = self.config.actor_rollout_ref
            parts = balanced_order(lengths, ranks, actor.actor.ppo_mini_batch_size * actor.rollout.n)
            metrics.update(log_seqlen_unbalance(lengths, parts, prefix=logging_prefix))
            batch.reorder([i for part in parts for i in part])
        return batch

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        batch.extra_info |= {STEP: self.global_steps, OLD_IS_CURRENT: self._old_policy}
        return super()._update_actor(batch, metrics)

    def on_init_end(self) -> None:
        queue_start.wait()
        self._send_weights()

    def on_step_end(self) -> None:
        with marked_timer("update_weights", self.timing_raw, color="red"):
            self._send_weights()

    def _send_weights(self) -> None:
        """veRL's `update_weights` of colocated ranks, with a limit; a LocalRollout takes them from the first rank."""
        sampler, ranks, step = self.llm_server_manager, self.actor_rollout_wg, self.global_steps
        local = isinstance(sampler, rollout.LocalRollout)
        pending = ranks.full_weights() if local else ranks.update_weights(global_steps=step, mode="naive")
        sent = wait_for_ranks(pending, float(self.config.run.weight_transfer_limit_s), step)
        if local:
            sampler.load_weights(sent[0], step)

    def _validate(self) -> dict[str, float]:
        """veRL's pass, at val_kwargs, and one more for each further setting under names of its own."""
        loops: Any = self.agent_loop_manager
        metrics = super()._validate()
        for setting in self.config.run.validation_settings[1:]:
            loops.setting = setting
            validation = super()._validate()
            metrics[_FAILED] += validation.pop(_FAILED)
            metrics |= {k.replace("val-core/", f"val-{setting}/", 1): v for k, v in validation.items()}
        loops.setting = ""
        if self.global_steps == 0:
            values = step_metrics.accuracies(metrics) | {_FAILED: metrics[_FAILED]}
            self.folder.log_step(0, values, {})
            if fatal := self._raise_alarms(0, step_metrics.StepNumbers(values, {}, ())):
                raise stopped_by(fatal, None)
        return metrics

    def _dump_generations(  # type: ignore[override]  # veRL's callers name all of them
        self, *, dump_path: str, **rest: Any
    ) -> None:
        """veRL's, which would write the passes of a step over each other."""
        setting = self.agent_loop_manager.setting  # type: ignore[union-attr]
        super()._dump_generations(dump_path=str(Path(dump_path, setting)), **rest)

    def _val_metrics_update(  # type: ignore[override]  # called with the first four by position
        self,
        data_sources: list,
        sample_uids: list,
        reward_extra_infos_dict: dict,
        sample_turns: list,
        expected_acc_counts: dict[tuple[str, str], int],
    ) -> dict[str, float]:
        """The mean accuracy a data source, under veRL's name; a sample that failed counts as wrong, as veRL has it, and
        is counted.

        veRL adds best@n and maj@n by a bootstrap from an unseeded generator: 4 s a validation of the miniature, and
        another value every time. The harness computes both exactly.
        """
        correct, expected = Counter(), Counter()
        for (source, _), samples in expected_acc_counts.items():
            expected[source] += samples
        for source, acc in zip(data_sources, reward_extra_infos_dict["acc"], strict=True):
            correct[source] += is_right(acc)
        n = self.config.actor_rollout_ref.rollout.val_kwargs.n
        accuracy = {f"val-core/{s}/acc/mean@{n}": correct[s] / expected[s] for s in sorted(expected)}
        return accuracy | {_FAILED: float(expected.total() - len(data_sources))}

    def _save_checkpoint(self) -> None:
        self._save_due = True  # written by _compute_metrics, after the step's metrics

    def _compute_metrics(self, batch: Any, metrics: dict, timing_raw: dict, global_steps: int, epoch: int) -> None:
        log = self.config.actor_rollout_ref.token_log
        planted = {"spurious": log.watch, "useful": log.useful}
        measured = token_numbers(batch, self.config.data.max_response_length, self._stops, planted, self._old_policy)
        expected = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        measured["failed_rollouts"] = float(expected - sum(not tag.get("is_padding", False) for tag in batch.tags))
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        counts = (DAPO_FILTERED_REWARD_COUNTS_KEY,)  # a table for veRL's loggers, not a number
        numbers = step_metrics.split({k: v for k, v in metrics.items() if k not in counts} | measured)
        metrics |= numbers.values  # veRL's loggers get the short names too
        now = time.perf_counter()
        seconds, self._step_began = now - self._step_began, now
        self.folder.log_step(global_steps, numbers.values, numbers.times | {"seconds": seconds})
        self.folder.report(global_steps, self.total_training_steps, numbers.values, seconds)
        fatal = self._raise_alarms(global_steps, numbers)
        self._save(global_steps, fatal)
        self._step_seconds.append(seconds)
        self._write_status()
        if fatal:
            self.logger.log(data=metrics, step=global_steps)  # veRL's loop would do it after this call
            raise stopped_by(fatal, self.folder.last_checkpoint())

    def _raise_alarms(self, step: int, numbers: step_metrics.StepNumbers) -> list[alarms.Alarm]:
        """Log and print the alarms that begin with a step; returns those that end the run."""
        complete = self.folder.whole_checkpoints()
        self._watch, begun = alarms.observe(
            self._watch,
            self._limits,
            step,
            numbers.values | numbers.times,
            resumed_at=self._resumed_at,
            not_finite=numbers.not_finite,
            silenced_reference=self._silenced_reference,
            disk_free=self.folder.disk_free,
            checkpoint_bytes=complete[-1].bytes if complete else None,
        )
        self.folder.log_alarms(begun)
        for alarm in begun:
            print(f"ALARM at step {step}, {alarm.kind}: {alarm.line}", flush=True)
        return [a for a in begun if a.kind in self._limits.stop]

    def _save(self, step: int, fatal: list[alarms.Alarm]) -> None:
        """Write a checkpoint if one is due or somebody asked the run to stop; none of a step that may be broken."""
        minutes = self.config.run.save_minutes
        every = int(self.config.trainer.save_freq)
        late = minutes is not None and every > 0 and time.monotonic() - self._saved_at >= 60 * minutes
        due = self._save_due or bool(self.stop) or bool(fatal) or late
        self._save_due = False
        if not due or any(a.kind in alarms.UNSAVED for a in fatal):
            return
        try:  # a damaged one of this step is no whole one while it is written over
            (self.folder.checkpoints / f"global_step_{step}" / COMPLETE).unlink(missing_ok=True)
            super()._save_checkpoint()
            self.folder.complete_checkpoint(step)
        except (RayActorError, OutOfMemoryError, RunFailed):
            raise  # a process ended, or the error says what is wrong
        except (OSError, RuntimeError, RayError) as e:
            raise self.folder.save_failed(step, e) from e
        self._saved_at = time.monotonic()
        self.folder.keep_last(self._keep, every=max(1, every), best=bool(self.config.run.keep_best))
        if self.stop:
            self._ended_at = step

    def _write_status(self) -> None:
        status.write(
            self.folder,
            self.config,
            "running",
            step_seconds=self._step_seconds,
            alarms_on=self._watch.on,
        )


def balanced_order(lengths: Sequence[int], ranks: int, mini_batch: int) -> list[list[int]]:
    """The sequences of each rank, in the order in which it trains them.

    veRL gives each rank a contiguous part of the batch and takes mini-batch k from the k-th part of every rank's. Its
    own balancing spreads the whole batch, so that a prompt's responses land in different mini-batches. Here each
    mini-batch is spread by itself (equal numbers, balanced work): what is in it stays in it, and its gradient does not
    depend on which rank computes what.

    Args:
        lengths: tokens of every sequence, in the order of the batch; its mini-batches are `mini_batch` long.
    """
    of_rank: list[list[int]] = [[] for _ in range(ranks)]
    for first in range(0, len(lengths), mini_batch):
        work = calculate_workload(torch.tensor(lengths[first : first + mini_batch], dtype=torch.int64))
        parts: Any = get_seqlen_balanced_partitions(work.tolist(), k_partitions=ranks, equal_size=True)
        for rank, part in enumerate(parts):
            of_rank[rank] += [first + i for i in part]
    return of_rank


def is_right(acc: Any) -> bool:
    """The `acc` of a reward; of one that returns a number alone veRL takes the number, -1 where it is wrong."""
    return acc is not None and float(acc) > 0


def stopped_by(fatal: list[alarms.Alarm], checkpoint: Path | None) -> RunFailed:
    """The error that ends a run whose configuration stops at these alarms; `checkpoint` is its last one."""
    kinds, place = {a.kind for a in fatal}, checkpoint.name if checkpoint else "the start"
    runner = "; VLLM_USE_V2_MODEL_RUNNER=0 (docs/gpu.md) needs another run.out"
    return RunFailed(
        f"step {fatal[0].step} stopped the run by its alarm {fatal[0].kind}: {fatal[0].line}",
        next_step="read STATUS.md; the same command resumes from "
        + (f"{place}, since this step was not saved" if kinds & alarms.UNSAVED or not fatal[0].step else "this step")
        + ", with alarms.stop=[] past every alarm"
        + (runner if "rollout_broken" in kinds else ""),
    )
