"""A committed training's record with its whole configuration, as its run folder had it."""

from __future__ import annotations

import json
from pathlib import Path

from stapo_repro.collect import laid_over
from stapo_results.schema import Run
from stapo_results.store import find_whole, read_json

RECORDS = Path(__file__).parents[1] / "results" / "records"


def whole_record() -> Run:
    folder = RECORDS / "miniature" / "train" / "stapo-s0"
    run = read_json(folder / "run.json", Run)
    assert run.cut is not None
    whole = json.loads(find_whole(folder, "config", run.cut.config_from).read_bytes())
    return run.model_copy(update={"config": laid_over(whole, run.config), "cut": None})
