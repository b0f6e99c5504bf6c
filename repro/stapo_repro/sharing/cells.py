"""The cell records of a bundle against themselves, against each other and against the verdicts beside them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from stapo_repro.ablation import build as ablation
from stapo_repro.records.consistency import Source, check_alone, check_pair
from stapo_results.errors import RecordError
from stapo_results.schema import CellRecord, Verdict

AGAIN = "get the file again from whoever made it, and compare its sha256 with theirs"


class Together:
    """The cells of a bundle as they come: each is checked alone, and with the one of the same id before it.

    The ablation's cells stand in a folder of their own and share ids with others, with which they need not agree.
    """

    def __init__(self) -> None:
        self._met: dict[tuple[bool, str], tuple[CellRecord, Source]] = {}

    @property
    def ids(self) -> list[str]:
        return sorted({i for _, i in self._met})

    def add(self, record: CellRecord, path: str, data: Callable[[], bytes]) -> None:
        """Take a record in.

        Args:
            path: within the bundle.
            data: gives the file's bytes.

        Raises:
            RecordError: with file and line, as `check_alone` and `check_pair`.
        """
        source = Source(path, data)
        check_alone(record, source)
        key = PurePosixPath(path).parts[0] == ablation.FOLDER, record.cell.id
        before, there = self._met.setdefault(key, (record, source))
        if before is not record:
            check_pair(before, there, record, source)


def check_verdicts(verdicts: Iterable[Verdict], name: str, cells: Iterable[CellRecord]) -> None:
    """The verdicts of a run are those that its cells say: each sample once, none missing.

    Args:
        verdicts: all lines of the file `name`, from its first on.

    Raises:
        RecordError: with file and line.
    """
    said = {c.cell.id: {p.problem_id: p.verdicts for p in c.problems} for c in cells}
    # cell -> problem -> by sample the line of its verdict, 0 for none
    lines = {c: {p: array("Q", bytes(8 * len(letters))) for p, letters in of.items()} for c, of in said.items()}
    for number, v in enumerate(verdicts, 1):
        letters = said.get(v.cell, {}).get(v.problem_id, "")
        letter = letters[v.sample_index : v.sample_index + 1]
        if letter not in ("-", "01"[v.correct]):  # "-": the engine failed, whatever the grader said of nothing
            raise _refused(f"{name}:{number} and the record of the cell {v.cell} contradict each other",
                           found=f"{v.problem_id} sample {v.sample_index}: {letter or 'not there'} in the cell",
                           expected="01"[v.correct])  # fmt: skip
        at = lines[v.cell][v.problem_id]
        if at[v.sample_index]:
            raise _refused(f"{name}:{number}: a verdict of the cell {v.cell} stands twice",
                           found=f"{v.problem_id} sample {v.sample_index}, first in line {at[v.sample_index]}",
                           expected="each sample once")  # fmt: skip
        at[v.sample_index] = number
    for cell, of in lines.items():
        missing = [(p, i) for p, at in of.items() for i, number in enumerate(at) if not number]
        if missing:
            problem, sample = missing[0]
            raise _refused(f"{name}: verdicts of the cell {cell} are missing",
                           found=f"{len(missing)} samples without one, such as {problem} sample {sample}",
                           expected="one of each sample")  # fmt: skip


def _refused(what: str, *, found: object, expected: object) -> RecordError:
    return RecordError(what, found=found, expected=expected, next_step=AGAIN)
