"""Manual labels: a seeded sample of rare tokens as CSV, and the filled file read back.

A spurious token is judged by reading. The three categories are those of the paper's appendix; what is none of them is
not spurious.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stapo_repro.tokens.cases import KEY_COLUMNS, Case, case
from stapo_repro.tokens.material import Material, taken_rows
from stapo_repro.tokens.texts import marked, one_line
from stapo_results.errors import BadInput

NOT_SPURIOUS = "not_spurious"
CATEGORIES: dict[str, str] = {
    "uncommon_syntax": "uncommon syntax",
    "hallucination_or_math_error": "hallucination or math error",
    "formatting_error": "formatting error",
    NOT_SPURIOUS: "not spurious",
}
COLUMNS = ("id", "token_id", "context", "token", "top_5", "probability_percent", "entropy_nats", "category")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ID = re.compile(r"(\d{1,9}):(\d{1,9}):(\d{1,9}):(\d{1,9}):(.*)", re.DOTALL)


@dataclass(frozen=True)
class Labels:
    """Labels by quadrant: `below` (S2T's region, or the rest of the rare tokens) -> category -> count.

    by_id: a case's id -> its category. empty: lines without a category.
    """

    file: str
    counts: dict[bool, Counter[str]]
    by_id: dict[str, str]
    empty: int


def harmless(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: an apostrophe before what would begin one."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def sample(material: Material, n: int, seed: int) -> np.ndarray:
    """Row indices of n rare tokens in random order: half below tau_h, half not; where one lacks, more of the other.

    Within each half every token is equally likely, so that shares are estimated without bias for each.
    """
    rng = np.random.default_rng(seed)
    halves = [
        rng.permutation(np.flatnonzero(material.rows["rare"] & (material.below == side))) for side in (True, False)
    ]
    first = min(len(halves[0]), max(n - n // 2, n - len(halves[1])))
    return rng.permutation(np.concatenate([halves[0][:first], halves[1][: n - first]]))


def export(material: Material, n: int, seed: int) -> bytes:
    """The sample as CSV (UTF-8 with the mark that spreadsheets look for), `category` empty.

    Raises:
        BadInput: n is not positive, or there is no rare token.
    """
    if n < 1:
        raise BadInput("a sample needs a token", found=f"--labels-sample {n}", next_step="--labels-sample 200")
    if seed < 0:
        raise BadInput("a seed is a whole number from 0 on", found=f"--seed {seed}", next_step="--seed 0")
    chosen = sample(material, n, seed)
    if not len(chosen):
        raise BadInput(
            "there is nothing to label: the log has no rare token",
            expected=f"a token of a correct response with p < {material.facts.tau_p:g}",
            next_step="take more steps, or leave out --export-labels",
        )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)  # a prompt's name may hold a carriage return
    writer.writerow(COLUMNS)
    rows = {Case.key(row): row for row in reversed(taken_rows(material, chosen))}  # a prompt drawn twice is one id
    for row in reversed(rows.values()):
        one = case(material, row, "")
        cells = (
            one.id, str(one.token_id), f"{one_line(one.before)}⟦{marked(one.token)}⟧{one_line(one.after)}",
            marked(one.token), one.top_text, f"{100 * one.probability:.6g}", f"{one.entropy:.6g}", "",
        )  # fmt: skip
        writer.writerow(map(harmless, cells))
    return b"\xef\xbb\xbf" + out.getvalue().encode()


def read(material: Material, file: Path) -> Labels:
    """The labels in a file that `export` wrote and a person filled. Lines without a category are left out.

    Raises:
        BadInput: naming file and line: no such file or column, not UTF-8, an unknown category, an id that is not in
            this log or stands twice.
    """
    again = "label the file that --export-labels wrote for this log, and save it as CSV with commas, in UTF-8"
    lines = _lines(file, again)
    seen: dict[str, int] = {}
    chosen: dict[str, tuple[int, str, int]] = {}
    empty = 0
    for number, line in lines:
        key, category = line["id"].strip(), line["category"].strip()
        if key in seen:
            raise BadInput(
                f"{file}, line {number}: a token is labelled twice",
                found=f"{key}, also on line {seen[key]}",
                expected="each id once",
                next_step="delete one of the two lines",
            )
        seen[key] = number
        if category not in CATEGORIES and category:
            raise BadInput(
                f"{file}, line {number}: no such category",
                found=category,
                expected=" | ".join(CATEGORIES) + ", or nothing where it is not judged",
                next_step="correct the line",
            )
        try:
            token = int(line["token_id"].strip())
        except ValueError:
            raise BadInput(
                f"{file}, line {number}: token_id is no number", found=line["token_id"], next_step=again
            ) from None
        chosen[key] = (token, category, number)
        empty += not category
    places = _places(material, list(chosen))
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for key, (token, category, number) in chosen.items():
        row = places.get((key, token))
        if row is None:
            raise BadInput(
                f"{file}, line {number}: this token is not in the log",
                found=f"{key}, token {token}",
                expected="a rare token of this log and of the steps that --steps names",
                next_step=again,
            )
        if category:
            counts[bool(material.below[row])][category] += 1
    return Labels(file.name, counts, {k: c for k, (_, c, _) in chosen.items() if c}, empty)


def _lines(file: Path, again: str) -> list[tuple[int, dict[str, str]]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BadInput("no such file of labels", found=file, next_step="--export-labels FILE writes one") from None
    except UnicodeDecodeError as e:
        raise BadInput(f"{file}: not UTF-8", found=f"byte {e.start}: {e.reason}", next_step=again) from None
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="")
    needed = {"id", "token_id", "category"}
    try:
        if lacking := needed - set(reader.fieldnames or ()):
            raise BadInput(
                f"{file}, line 1: columns are missing",
                found=", ".join(reader.fieldnames or ()) or "an empty file",
                expected=", ".join(sorted(lacking)),
                next_step=again,
            )
        return [(reader.line_num, line) for line in reader]
    except csv.Error as e:
        raise BadInput(f"{file}, line {reader.line_num}: not CSV", found=e, next_step=again) from None


def _places(material: Material, keys: Sequence[str]) -> Mapping[tuple[str, int], int]:
    """The row of each rare token that the log has of these, by its id and its token."""
    asked = [m for k in keys if (m := _ID.fullmatch(k))]
    near = material.rows["rare"].copy()
    for group, column in enumerate(("step", "mini_batch", "sample", "position"), 1):
        near &= np.isin(material.rows[column], [int(m[group]) for m in asked])
    index = np.flatnonzero(near)
    columns = (*KEY_COLUMNS, "token")
    rows = zip(index.tolist(), taken_rows(material, index, columns), strict=True)
    return {(Case.key(row), row["token"]): i for i, row in rows}
