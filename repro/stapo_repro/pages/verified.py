"""docs/verified.md: how far each path of the suite has been walked, from the records of those who walked it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from stapo_repro.text import grid
from stapo_results.errors import RecordError
from stapo_results.store import read_json
from stapo_results.walks import FOLDER, Walked, Walks

_LEVELS = ("ran on a GPU", "ran on a CPU", "composed and validated")
_NOT_YET = "not yet"


@dataclass(frozen=True)
class _Walk:
    file: Path
    record: Walks
    entry: Walked

    @property
    def level(self) -> int:
        return 2 if self.entry.level == "composed" else 0 if self.record.device == "gpu" else 1


def paths() -> dict[str, dict[str, str]]:
    """Group -> name of a path -> what it is."""
    return yaml.safe_load(Path(__file__).with_name("paths.yaml").read_text(encoding="utf-8"))


def load(folder: Path) -> list[_Walk]:
    """Every walked step of the folder's records.

    Raises:
        RecordError: a record that is broken, or names a path that there is none of.
    """
    known = {name for group in paths().values() for name in group}
    found = []
    for file in sorted(folder.glob("*.json")):
        record = read_json(file, Walks)
        for entry in record.walked:
            if unknown := set(entry.paths) - known:
                raise RecordError(f"{file} names unknown paths", found=", ".join(sorted(unknown)),
                                  expected="names of repro/stapo_repro/pages/paths.yaml",
                                  next_step="add the path there, or correct the record")  # fmt: skip
            found.append(_Walk(file, record, entry))
    return found


def page_block(folder: Path) -> str:
    """The page's tables. Of several walks of a path the farthest is shown, of equal ones the last; a failure hides
    none of them and is shown with them."""
    walks = load(folder)
    gpus = sorted({g for w in walks if w.record.device == "gpu" for g in w.record.hardware["gpus"]})
    lines = [f"GPUs that any path has run on: {', '.join(gpus) or 'none yet'}.", ""]
    for group, names in paths().items():
        rows = []
        for name, what in names.items():
            mine = [w for w in walks if name in w.entry.paths and w.entry.outcome != "left_out"]
            failed = [w for w in mine if w.entry.outcome == "failed"]
            passed = sorted((w for w in mine if w not in failed), key=lambda w: (-w.level, w.record.at))
            rows.append([what, *_row(passed[-1] if passed else None, failed)])
        lines += [f"**{group}**", "", *grid(["Path", "How far", "Command", "When", "Record"], rows), ""]
    return "\n".join(lines)


def _row(best: _Walk | None, failed: list[_Walk]) -> list[str]:
    far = [_LEVELS[best.level]] if best else [] if failed else [_NOT_YET]
    far += [f"FAILED: {w.entry.name}" for w in failed]
    shown = best or (failed[-1] if failed else None)
    if shown is None:
        return [*far, "", "", ""]
    code = shown.record.code_commit[:12] + ("+" if shown.record.code_dirty else "")
    link = f"[{shown.file.stem}](../results/records/{FOLDER}/{shown.file.name})"
    command = f"`{shown.record.command}`<br><sub>{shown.entry.name.rpartition('::')[2]}</sub>"
    return ["; ".join(far), command, f"{shown.record.at[:10]}, {code}", link]
