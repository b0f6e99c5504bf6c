"""The sheet that two readers get, and what they said of it: `python -m studies.labels.sheet draw | join`.

    DIR/sheet.jsonl   what a reader sees: id, problem, the response before the token, the token, the response after it
    DIR/key.json      a record without labels: what a reader must not see

The sheet has neither probabilities nor what else the model could have said: they would give the mask away.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import LoggedRun, load
from stapo_results import store, token_log
from stapo_results.errors import BadInput
from stapo_results.seeds import derive_seed
from stapo_results.token_log import TokenLog
from studies import command, masks
from studies.labels.readers import LABELS, LabelledToken, LabelRecord

SHEET, KEY = "sheet.jsonl", "key.json"
_PARTS = ("kept", "silenced")


def drawn_of(
    runs: list[tuple[LoggedRun, TokenLog]], each: int, problems: dict[str, str]
) -> tuple[list[dict], dict[str, Any]]:
    """Up to `each` of the rare tokens that S2T silences, or would silence, and of those that it keeps, mixed.

    Every token of a part has the same chance, whatever its run and response.

    Returns:
        Of each token a dictionary with the fields of sheet and key, and how many were drawn of how many.
    """
    rng = np.random.default_rng(derive_seed("labelling", 0))
    parts: dict[str, list[tuple[LoggedRun, int, dict[str, float]]]] = {part: [] for part in _PARTS}
    for run, log in runs:
        rows = np.flatnonzero(run.rows["advantage"] > 0)
        chances = masks.weights(masks.tokens_of(log), log.header.q)
        for i, row in enumerate(rows.tolist()):
            if run.rows["rare"][row]:
                by_mask = {name: float(chance[i]) for name, chance in chances.items()}
                parts[_PARTS[by_mask[masks.S2T] > 0]].append((run, row, by_mask))
    chosen = [(part, of[k]) for part, of in parts.items() for k in rng.permutation(len(of))[:each].tolist()]
    drawn, there = Counter(part for part, _ in chosen), {part: len(of) for part, of in parts.items()}
    tokens = []
    for number, k in enumerate(rng.permutation(len(chosen)).tolist(), 1):
        part, (run, row, by_mask) = chosen[k]
        one = numbers.case(run.vocabulary, run.records(np.array([row]))[0], part)
        place = {name: one[name] for name in ("step", "prompt_id", "sample", "position", "probability", "entropy")}
        text = {name: one[name] for name in ("before", "token", "after")}
        tokens.append({"id": f"{number:03d}", "problem": problems[one["prompt_id"]], "run": run.name, **place, **text,
                       "weight": there[part] / drawn[part], "masks": by_mask})  # fmt: skip
    logs = {run.name: run.inputs for run, _ in runs}
    return tokens, {"seed": 0, "each": each, "there": there, "drawn": dict(drawn), "logs": logs}


def draw(logs: Annotated[tuple[Path, ...], tyro.conf.Positional], problems: Path, out: Path, each: int = 150) -> None:
    """Draw the sheet and its key from token logs.

    Args:
        logs: Folders of trainings with their token logs.
        problems: The trainings' train.parquet.
        out: New folder.
        each: Tokens of each part.

    Raises:
        BadInput: a folder without a token log.
    """
    import pyarrow.parquet as pq

    asked = {r["extra_info"]["problem_id"]: r["prompt"][-1]["content"] for r in pq.read_table(problems).to_pylist()}
    runs = []
    for folder in logs:
        if (log := token_log.read(folder)) is None:
            raise BadInput(f"{folder} has no token log", next_step="name folders of trainings")
        runs.append((load(folder), log))
    tokens, drawn = drawn_of(runs, each, asked)
    seen = ("id", "problem", "before", "token", "after")
    text = "".join(json.dumps({name: t[name] for name in seen}, ensure_ascii=False) + "\n" for t in tokens)
    store.write_atomic(out / SHEET, text)
    key = {"drawn": drawn, "tokens": [{k: v for k, v in t.items() if k != "problem"} for t in tokens]}
    store.write_atomic(out / KEY, json.dumps(key, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(tokens)} tokens: {out / SHEET}")


def join(folder: tyro.conf.Positional[Path], readings: tuple[Path, Path], out: Path) -> None:
    """Join sheet, key and two readings to a record.

    Args:
        folder: Of `draw`.
        readings: Two files with a line a token, {"id": "017", "label": "harmful"}.
        out: The record, labels.json.

    Raises:
        BadInput: a reading that lacks a token, or has another label.
    """
    key, said = json.loads((folder / KEY).read_text(encoding="utf-8")), []
    for file in readings:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        found = {line["id"]: line["label"] for line in lines}
        wrong = [t["id"] for t in key["tokens"] if found.get(t["id"]) not in LABELS]
        if wrong or len(lines) != len(key["tokens"]):
            raise BadInput(f"{file}: not a reading of the sheet", found=f"{len(lines)} lines; no label of {wrong[:5]}",
                           expected=f"one of {', '.join(LABELS)} for each of {len(key['tokens'])} tokens")  # fmt: skip
        said.append(found)
    tokens = [LabelledToken(**t, labels=(said[0][t["id"]], said[1][t["id"]])) for t in key["tokens"]]
    first, second = map(store.sha256_file, readings)
    record = LabelRecord(
        schema_version=1, drawn=key["drawn"], sheet=store.sha256_file(folder / SHEET), readings=(first, second),
        tokens=tokens,
    )  # fmt: skip
    store.write_json(out, record)


if __name__ == "__main__":
    command.run({"draw": draw, "join": join}, "studies.labels.sheet", "tables")
