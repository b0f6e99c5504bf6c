"""Writing the token log of a training: settings, the bound on size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_results import store, token_log
from stapo_results.errors import BadInput, RunFailed
from stapo_training.methods import validated
from stapo_training.token_log.rows import LogPart, joined_counts, joined_rows


class TokenLogConfig(BaseModel):
    """`actor_rollout_ref.token_log` of the Hydra configuration.

    mode: `on` logs S2T's candidates (A > 0, p < tau_p) with all that is known of them and counts the other tokens,
        `full` logs every response token, `off` nothing.
    watch: ids that are logged wherever they occur in a response with A > 0; of planted words, the spurious ones.
    useful: ids of planted words that are worth keeping: named in the log's header and counted each step.
    most_rows: of a step. largest_gib: of the log; beyond it only counts are written. The files say how much.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["off", "on", "full"] = "on"
    folder: str
    watch: tuple[int, ...] = ()
    useful: tuple[int, ...] = ()
    most_rows: int = Field(50_000, ge=1)
    largest_gib: float = Field(2.0, gt=0)


def token_log_from(config: Mapping[str, Any], out: str) -> TokenLogConfig:
    """The validated token log of a configuration.

    Args:
        out: run.out, below which everything that reads the log looks for it.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    cure = "correct the override; docs/training.md explains the keys"
    log = validated(TokenLogConfig, config, "actor_rollout_ref.token_log", cure)
    if Path(log.folder) != Path(out) / token_log.FOLDER:
        raise BadInput(
            "actor_rollout_ref.token_log.folder is elsewhere",
            found=log.folder,
            expected=Path(out) / token_log.FOLDER,
            next_step="leave it out, and set run.out",
        )
    return log


def write_step(
    folder: Path,
    step: int,
    parts: Sequence[LogPart],
    header: token_log.LogHeader,
    *,
    most_rows: int,
    largest_gib: float = float("inf"),
    before: int | None = None,
) -> int:
    """Join the parts of a step and write them: 0.01 s in the miniature, 0.15 s for 2,048 responses of 1,000 tokens.

    Args:
        folder: the log's own, RUN/token_log.
        most_rows, largest_gib: as in `TokenLogConfig`.
        before: bytes of the earlier steps' files; None: they are asked.

    Returns:
        The bytes of the log up to this step, the next one's `before`.

    Raises:
        RunFailed: it could not be written.
    """
    rows, left_out = joined_rows([p.rows for p in parts], most_rows)
    left_out += sum(p.left_out for p in parts)
    if before is None:  # two files a step: thousands of calls late in a run
        before = sum(f.stat().st_size for f in _shards(folder) if int(f.stem) < step)
    if before >= largest_gib * 2**30:
        left_out += len(rows["step"])
        rows = {name: [] for name in rows}
    lost = {"left_out": left_out, "not_finite": sum(p.not_finite for p in parts)}
    counts = joined_counts([p.counts for p in parts])
    try:
        return before + token_log.write(folder, step, rows, counts, header.model_copy(update=lost))
    except OSError as e:
        raise RunFailed(
            f"the token log could not be written to {folder}",
            found=f"{type(e).__name__}: {e}",
            next_step="free some space and repeat the command: it resumes",
        ) from e


def _shards(folder: Path) -> list[Path]:
    return [*folder.glob("*.parquet"), *(folder / token_log.HISTOGRAMS).glob("*.parquet")]


def discard_after(folder: Path, step: int) -> None:
    """Delete the files of later steps, which a resumed run writes again, and half-written ones."""
    store.sweep(folder)
    for shard in _shards(folder):
        if int(shard.stem) > step:
            shard.unlink()
