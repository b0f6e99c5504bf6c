"""What a run writes: the size of its checkpoints against the free disk."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stapo_results.errors import BadInput
from stapo_training.run.preflight.memory import GIB, MASTER, MOMENTS

LOGS_GIB = 1.0  # metrics and what veRL and Ray log


@dataclass(frozen=True)
class Checkpoints:
    """Size of one in GiB, how many the run makes in all, how many are on disk at the end, and the free GiB.

    `logs`: GiB that metrics, logs and the token log may take.

    `whole`: GiB at most. An old checkpoint goes when the new one is complete, so for a moment there is one more.
    """

    each: float
    made: int
    kept: int
    free: float
    logs: float = LOGS_GIB

    @property
    def whole(self) -> float:
        return min(self.made, self.kept + 1) * self.each + self.logs

    @property
    def fitting(self) -> int:
        """How many the free disk holds."""
        return max(0, int((self.free - self.logs) / self.each)) if self.each else self.made


def plan_checkpoints(
    parameters: int,
    contents: Collection[str],
    steps: int,
    every: int,
    keep: int | None,
    free: float,
    token_log: float = 0.0,
) -> Checkpoints:
    """The checkpoints of a run, as veRL writes them.

    Args:
        parameters: of the model.
        contents: `actor.checkpoint.save_contents`: model and optimizer are fp32 (4 and 8 bytes a parameter);
            hf_model is written from the same fp32 weights.
        steps, every: run.steps and trainer.save_freq (0 or less: none); the last step is always saved.
        keep: trainer.max_actor_ckpt_to_keep; None keeps all.
        free: GiB.
        token_log: GiB at most.
    """
    size = sum({"model": MASTER, "optimizer": MOMENTS, "hf_model": MASTER}.get(c, 0) for c in contents)
    made = -(-steps // every) if every > 0 else 0
    return Checkpoints(size * parameters / GIB, made, min(made, keep) if keep else made, free, LOGS_GIB + token_log)


def check_disk(c: Checkpoints, where: object) -> None:
    """Two checkpoints must fit: a new one is written before an old one is deleted, and a killed save leaves a part.

    Raises:
        BadInput: with the arithmetic.
    """
    need = 2 * c.each + c.logs
    if c.free < need:
        raise BadInput(
            f"too little disk is free for {where}",
            found=f"{c.free:.2f} GiB",
            expected=f"at least {need:.2f} GiB: two checkpoints of {c.each:.2f} GiB and {c.logs:g} GiB of logs",
            next_step="free some space or choose another run.out",
        )
