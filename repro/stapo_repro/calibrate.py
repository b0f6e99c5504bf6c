"""Our scores of a public checkpoint beside its published ones (results/paper/calibration.json), each with a verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stapo_repro import paper
from stapo_repro.labels import PAPER_BENCHMARKS, SYNTHETIC, benchmark_label
from stapo_repro.read import Loaded, load_cells
from stapo_repro.statistics import against_printed
from stapo_repro.text import escape, grid, p_shown, percent, shown, signed
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS
from stapo_results.statistics import holm, parse_verdicts

Row = dict[str, Any]
MARGIN, LEVEL = 5.0, 0.05  # points, for "agrees"; of p after Holm


@cache
def load() -> dict[str, Any]:
    """results/paper/calibration.json.

    aliases: one source's name of a checkpoint -> another's. checkpoints: by the driver's name for them, hub id and
    config.json (basis "stated": read on the hub; "inferred": its family's). sets: each a source's results, with its
    setting (None: not stated; the prompt "ours" is our harness's wording), n samples a problem by benchmark where
    stated, and rows of a checkpoint's values by benchmark, [score] or [score, SD over seeds], in percent.
    """
    return json.loads((paper.folder() / "calibration.json").read_bytes())


def _key(name: str) -> str:
    """The one key of a checkpoint: without its organization, in lower case, its aliases taken together."""
    key = name.rsplit("/", 1)[-1].lower()
    return {k.lower(): v.lower() for k, v in load()["aliases"].items()}.get(key, key)


def published(model: str) -> list[Row]:
    """Every published number of a checkpoint, by benchmark in the paper's order.

    `published` and `sd` (over seeds) are in percent, `n` is samples a problem, `settings` what its source states
    of the evaluation. None is not stated.

    Raises:
        BadInput: no source has it; names those that are known.
    """
    rows = [(s, r) for s in load()["sets"] for r in s["rows"]]
    mine = [(s, r["values"]) for s, r in rows if _key(r["model"]) == _key(model)]
    if not mine:
        raise BadInput("no published result of this model is on record", found=model or "no name",
                       expected=", ".join(sorted({r["model"] for _, r in rows}, key=str.lower)),
                       next_step="stapo-repro calibrate JustRL-DeepSeek-1.5B")  # fmt: skip
    return [
        {"benchmark": b, "source": s["name"], "published": values[b][0], "sd": (*values[b], None)[1],
         "n": s["n"].get(b), "settings": s["setting"]}
        for b in PAPER_BENCHMARKS for s, values in mine if b in values
    ]  # fmt: skip


def points_of(model: str) -> dict[str, tuple[str, int]]:
    """Source -> (setting, most tokens), of every fully stated decoding at which this checkpoint was published, as
    `stapo-eval run` is told of it; raises as `published`."""
    found = {}
    for row in published(model):
        t, top_p, limit = (row["settings"][k] for k in ("temperature", "top_p", "max_tokens"))
        if None not in (t, top_p, limit):
            named = (name for name, decoding in SETTINGS.items() if decoding == (t, top_p))
            found[row["source"]] = next(named, f"t{t:g}-p{top_p:g}"), limit
    return found


def own_cells(runs: Sequence[Path], model: str) -> list[Loaded]:
    """The cells below these folders whose size label is `model`.

    Raises:
        BadInput: none; names the labels that are there.
    """
    cells = load_cells(runs)
    mine = [c for c in cells if _key(c.record.cell.size) == _key(model)]
    if runs and not mine:
        raise BadInput("the folders hold no evaluation of the model", expected=f"cells of size {model}",
                       found=", ".join(sorted({c.record.cell.size for c in cells})) or "no cells/*.json",
                       next_step="name the --out of a finished stapo-eval run")  # fmt: skip
    return mine


def compare(theirs: Sequence[Row], cells: Sequence[Loaded]) -> list[Row]:
    """Every published number beside every cell of its benchmark; without a cell "not run".

    Scores in percent; `points` is ours minus published, with `se` and the 95 % interval `low` to `high` in points; None
    is undefined. `p_holm` is over all rows.
    """
    of = {b: [c for c in cells if c.record.cell.benchmark == b] for b in PAPER_BENCHMARKS}
    rows: list[Row] = [
        p | (_beside(p, c) if c else {"verdict": "not run"}) for p in theirs for c in of[p["benchmark"]] or [None]
    ]
    tested = [r for r in rows if r.get("p") is not None]
    for row, p in zip(tested, holm([r["p"] for r in tested]), strict=True):
        within = -MARGIN <= row["low"] <= 0 <= row["high"] <= MARGIN
        row |= {"p_holm": p, "verdict": "differs" if p < LEVEL else "agrees" if within else "cannot tell"}
    return rows


def _beside(theirs: Row, cell: Loaded) -> Row:
    r, sd, spec = cell.record, theirs["sd"], registry()[cell.record.cell.benchmark]
    scores, missing = [parse_verdicts(q.verdicts) for q in r.problems], sum(q.verdicts.count("-") for q in r.problems)
    found = against_printed(scores, theirs["published"] / 100, theirs["n"] or 0, sd and sd / 100)
    obstacles = {
        f"{missing} samples missing": missing,
        "one sample a problem has no spread": r.n < 2,
        f"other problems: {r.variant}": r.variant,
        f"other problems: {len(r.problems)} of {spec.rows}": len(r.problems) != spec.rows,
        "other gold answers": r.benchmark_sha256 != spec.golds_sha256,
        "their samples a problem are not stated": not theirs["n"],
        "the noise cannot be estimated": math.isnan(found.low),
    }
    why = next((text for text, holds in obstacles.items() if holds), "")
    se, low, high, p = (math.nan,) * 4 if why else (found.se, found.low, found.high, found.p)
    return {
        "record": cell.path, "at": r.cell.setting + (f", seed {r.cell.eval_seed}" if r.cell.eval_seed else ""),
        "ours": percent(math.fsum(map(math.fsum, scores)) / (r.n * len(scores))), "our_n": r.n,
        "points": percent(found.mean), "se": percent(se), "low": percent(low), "high": percent(high),
        "p": None if why else p, "verdict": "cannot tell", "why": why,
    }  # fmt: skip


def calibration(model: str, runs: Sequence[Path]) -> dict[str, Any]:
    """All that the command shows and writes; raises as `published` and `own_cells`."""
    cells = own_cells(runs, model)
    rows = compare(published(model), cells)
    notes = [f"agrees: the 95 % interval holds 0 and lies within {MARGIN:g} points of it"]
    for s in (s for s in load()["sets"] if s["name"] in {r["source"] for r in rows}):
        stated = "; ".join(f"{k} {'not stated' if v is None else v}" for k, v in s["setting"].items())
        notes.append(f"{s['name']} ({s['kind']}): {stated}; github.com/{s['source']['repository']}")
    for r in (c.record for c in cells):
        judge = r.judge if r.scored_by == "rule+judge" else "none"
        notes.append(f"ours at {r.cell.setting}: max_tokens {r.max_tokens}; grader {r.grader}; judge {judge}")
    notes = list(dict.fromkeys(notes))
    if any(c.record.synthetic for c in cells):
        notes.append(SYNTHETIC)
    return {"schema_version": 3, "model": model, "margin": MARGIN, "rows": rows, "notes": notes}


def to_markdown(found: dict[str, Any]) -> str:
    """One table of what `calibration` found, with its notes; its difference is ours minus published."""
    lines = []
    for r in found["rows"]:
        spread = "" if r["sd"] is None else f" ± {r['sd']}"
        run, ends = "ours" in r, "" if r.get("low") is None else f" [{signed(r['low'])}, {signed(r['high'])}]"
        lines.append([
            benchmark_label(r["benchmark"]), r.get("at", ""), r["source"],
            f"{shown(r['ours'])} ({r['our_n']})" if run else "",
            f"{r['published']}{spread} ({r['n'] or '?'})",
            f"{signed(r['points'])}{ends}" if run else "", p_shown(r.get("p_holm")),
            r["verdict"] + (f" ({r['why']})" if r.get("why") else ""),
        ])  # fmt: skip
    head = ("Benchmark", "At", "Source", "Ours (N)", "Published (N)", "Difference", "p (Holm)", "Verdict")
    table, notes = [[escape(x) for x in line] for line in lines], [f"- {escape(x)}" for x in found["notes"]]
    return "\n".join([f"# Calibration of {escape(found['model'])}", "", *grid(head, table, 3), "", *notes, ""])
