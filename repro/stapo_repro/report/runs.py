"""Provenance: what every run below the records says of itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stapo_repro.collect import shorten
from stapo_repro.report.cells import link_to
from stapo_results.schema import ContextLimit, Resumption, Run
from stapo_results.store import read_json
from stapo_results.terminal import duration

_ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"]+/)+([^\s/'\"]*)")


def without_paths(text: str) -> str:
    """The text with every absolute path cut to its last part: a page is shown to others."""
    return _ABSOLUTE.sub(r"…/\1", text)


def _pairs(values: Mapping[str, object]) -> str:
    shown = {k: ", ".join(map(str, v)) or "none" if isinstance(v, list) else str(v) for k, v in values.items()}
    return ", ".join(f"{k} {v}" for k, v in shown.items())


def _title(run: Run) -> str:
    own = run.config.get("run")
    labels = own if isinstance(own, dict) else run.config
    seed = labels.get("seed", labels.get("train_seed"))
    parts = [labels.get("method"), labels.get("size"), None if seed is None else f"seed {seed}"]
    return " ".join(str(x) for x in (run.kind, *parts) if x is not None)


def _code(made: Run | Resumption) -> str:
    return made.code_commit + (f" with uncommitted changes ({made.code_dirty})" if made.code_dirty else "")


def _resumption(r: Resumption) -> str:
    """ "2026-01-01T00:00:00+00:00 from step 20, code 0123abc" """
    return r.at + (f" from {r.start}" if r.start else "") + f", code {_code(r)}"


def _context_limit(limit: ContextLimit | None) -> str:
    if limit is None:
        return ""
    left = f"{limit.least:,}" if limit.least == limit.most else f"{limit.least:,} to {limit.most:,}"
    return (
        f"the model's {limit.context:,} positions leave {left} tokens for responses to {limit.problems:,} problems, "
        f"where {limit.asked:,} were asked for"
    )


def _properties(run: Run) -> tuple[tuple[str, str], ...]:
    pairs = (
        ("run", run.run_id + (f", made by run {run.parent_run}" if run.parent_run else "")),
        ("started", run.started),
        ("wall time", "not recorded" if run.wall_seconds is None else duration(run.wall_seconds)),
        ("command", shlex.join(run.command)),
        ("code", _code(run)),
        ("resumed", "; ".join(map(_resumption, run.resumptions))),
        ("hardware", _pairs(run.hardware)),
        ("seeds", _pairs(run.seeds)),
        ("repeatable", "bit by bit" if run.deterministic else "not bit by bit"),
        ("revisions", _pairs(run.revisions)),
        ("packages", _pairs(run.packages)),
        ("context limit", _context_limit(run.context_limit)),
        ("notes", "; ".join(run.notes)),
    )
    return tuple((name, without_paths(value)) for name, value in pairs if value)


def load(roots: Sequence[Path], page_folder: Path, skip: Sequence[str] = (), prefix: str = "") -> list[dict[str, Any]]:
    """Every run record below the roots, in the order of its path; paths below a root are written from there.

    Args:
        prefix: of the runs' anchors, one a part of the page.

    Raises:
        RecordError: a broken record.
    """
    out: list[dict[str, Any]] = []
    for root in roots:
        for path in sorted(root.rglob("run.json")):
            where = path.relative_to(root)
            if where.parts[0] in skip:
                continue
            run = Run(**shorten(read_json(path, Run).model_dump(), str(root.resolve())))
            shown = {"id": run.run_id, "title": _title(run), "status": run.status, "properties": _properties(run)}
            # a run that was made twice has one id and two records
            place = {"anchor": f"{prefix}-run{len(out)}", "path": where.as_posix(), "link": link_to(path, page_folder)}
            out.append(shown | place)
    return out
