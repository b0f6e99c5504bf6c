"""The labelled sample on its page (docs/tokens.md): agreement, labels by mask, and cases in their sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stapo_repro.tables.render.markdown import escape, grid
from stapo_repro.tokens import labelling, planted, readings
from stapo_repro.tokens.readings import LABELS, LabelRecord
from stapo_results import store
from stapo_results.errors import RecordError

FOLDER = "labels"
"""Below results/records: sheet, key, both readings, and what `stapo-repro label --readings` made of them."""
RECORD, READINGS = "labels.json", ("reading-1.jsonl", "reading-2.jsonl")
CASES = 2  # of each label and part


def page_block(folder: Path) -> str:
    """What stands between the page's markers.

    Args:
        folder: such as results/records/labels.

    Raises:
        RecordError: a record that is broken, or readings that are not those of the record.
    """
    if not (folder / RECORD).exists():
        return "Not run."
    record = store.read_json(folder / RECORD, LabelRecord)
    files = [folder / name for name in READINGS]
    if (found := tuple(map(store.sha256_file, files))) != record.readings:
        raise RecordError(f"{folder / RECORD} was made of other readings", found=", ".join(h[:12] for h in found),
                          expected=", ".join(h[:12] for h in record.readings),
                          next_step=f"stapo-repro label --readings {files[0]} {files[1]} --out {folder}")  # fmt: skip
    sheet = list(store.read(folder / labelling.SHEET, labelling.Shown))
    key = {k.id: k for k in store.read(folder / labelling.KEY, labelling.Hidden)}
    first, second = (readings.read_labels(f, sheet) for f in files)
    there, drawn = record.drawn.there, record.drawn.drawn
    of = ", ".join(f"{drawn[part]} of {there[part]} {part}" for part in there)
    pairs = [[a, *(str(n) for n in by.values())] for a, by in record.table.items()]
    cases = [
        row
        for silenced in (True, False)
        for label in LABELS
        for row in _cases([s for s in sheet if (key[s.id].masks[planted.S2T] == 1.0) == silenced
                           and first[s.id] == second[s.id] == label], key, label, silenced=silenced)
    ]  # fmt: skip
    return "\n".join([
        f"Rare tokens read: {of}.", "", *readings.to_markdown(record), "",
        *grid(("First reader (tokens)", *(f"second: {x}" for x in LABELS)), pairs), "",
        "The first cases on the sheet that both readers labelled alike:", "",
        *grid(("Label", "S2T", "Response, <b>the token</b>", "Problem", "p", "Entropy (nats)"), cases),
    ])  # fmt: skip


def _cases(
    shown: Sequence[labelling.Shown], key: dict[str, labelling.Hidden], label: str, *, silenced: bool
) -> list[list[str]]:
    return [
        [label, "silences" if silenced else "keeps", f"{escape(s.before)}<b>{escape(s.token)}</b>{escape(s.after)}",
         escape(s.problem), f"{key[s.id].probability:.1e}", f"{key[s.id].entropy:.2f}"]
        for s in shown[:CASES]
    ]  # fmt: skip
