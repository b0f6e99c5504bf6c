"""A training run's folder: its record, its metrics, its checkpoints; what a resumed run may believe.

run.json                      schema.Run
metrics.jsonl, timings.jsonl  schema.StepMetrics: what the run decided, what the machine decided
checkpoints/global_step_N/    veRL's checkpoint; complete when COMPLETE.json stands in it
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from stapo_results import progress, store
from stapo_results.errors import RunFailed
from stapo_results.schema import StepMetrics

_COMPLETE = "COMPLETE.json"


class RunFolder:
    """Reads and writes one run's folder.

    Args:
        path: the folder; made when it does not exist.
        deterministic: a step that is made again must give the same metrics; otherwise it counts as a new attempt.
    """

    def __init__(self, path: Path, deterministic: bool = True):
        self.path, self.deterministic = path, deterministic
        self.metrics_file, self.timings_file = path / "metrics.jsonl", path / "timings.jsonl"
        self.checkpoints = path / "checkpoints"
        path.mkdir(parents=True, exist_ok=True)
        store.repair(self.metrics_file)
        store.repair(self.timings_file)
        self._logged: dict[int, StepMetrics] = {}
        if self.metrics_file.exists():
            self._logged = {m.step: m for m in store.read(self.metrics_file, StepMetrics)}

    def log_step(self, step: int, values: dict[str, float], times: dict[str, float]) -> None:
        """Append a step. One that an interrupted run had already logged is compared, not written twice.

        Raises:
            RunFailed: in a deterministic run, when the step made again differs.
        """
        record = StepMetrics(step=step, values=values)
        before = self._logged.get(step)
        if before is None or before.values != values:
            if before is not None and self.deterministic:
                differing = sorted(
                    k for k in values.keys() | before.values.keys() if values.get(k) != before.values.get(k)
                )
                raise RunFailed(
                    f"step {step} was made again after an interruption and came out differently",
                    found={k: values.get(k) for k in differing[:3]},
                    expected={k: before.values.get(k) for k in differing[:3]},
                    next_step="the machine, the thread count or the code changed: start the run in a new folder",
                )
            if before is not None:
                record = record.model_copy(update={"attempt": before.attempt + 1})
            store.append(self.metrics_file, [record])
            self._logged[step] = record
        if times:
            store.append(self.timings_file, [StepMetrics(step=step, attempt=record.attempt, values=times)])

    def report(self, step: int, total: int, values: dict[str, float], seconds: float) -> None:
        """One line for the log and the driver's progress display."""
        shown = {k: values[k] for k in ("reward", "entropy", "silenced_share", "accuracy") if k in values}
        progress.report("train", step, total, **shown)
        text = "  ".join(f"{k} {v:.2%}" if k.endswith("share") else f"{k} {v:.3f}" for k, v in shown.items())
        print(f"step {step}/{total}  {text}  {seconds:.1f} s", flush=True)

    def complete_checkpoint(self, step: int) -> None:
        """Mark the checkpoint of `step` as whole: from now on a resumed run may start from it."""
        folder = self.checkpoints / f"global_step_{step}"
        files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
        files.pop(_COMPLETE, None)
        store.write_atomic(folder / _COMPLETE, json.dumps({"step": step, "bytes": files}, indent=1) + "\n")

    def last_checkpoint(self) -> Path | None:
        """The newest whole checkpoint, or None."""
        whole = []
        for marker in self.checkpoints.glob(f"global_step_*/{_COMPLETE}"):
            facts = json.loads(marker.read_text())
            sizes = {
                name: (marker.parent / name).stat().st_size if (marker.parent / name).exists() else -1
                for name in facts["bytes"]
            }
            if sizes == facts["bytes"]:
                whole.append((facts["step"], marker.parent))
            else:
                print(f"{marker.parent} is damaged (a file changed its size or is gone): it is not used")
        return max(whole)[1] if whole else None

    def discard_incomplete_checkpoints(self) -> None:
        """Delete what an interrupted save left behind, so that veRL cannot take it for a checkpoint."""
        for folder in self.checkpoints.glob("global_step_*"):
            if not (folder / _COMPLETE).exists():
                shutil.rmtree(folder)
        (self.checkpoints / "latest_checkpointed_iteration.txt").unlink(missing_ok=True)
