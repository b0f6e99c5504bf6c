"""The command: `python -m studies.known`."""

from __future__ import annotations

import time
from typing import get_args

import tyro

from stapo_eval.grading.rules import Preset
from stapo_results.terminal import duration
from studies import command


def known(
    source: tyro.conf.Positional[str] = "",
    clone: str = "",
    data_dir: str = "",
    out: str = "results/records/known",
    presets: tuple[Preset, ...] = get_args(Preset),
    check: bool = False,
) -> int:
    """Recompute published scores from public responses: by the rule they were published by, and by each preset.

    Args:
        source: skythought, evalchemy, prime, or a YAML file of another (studies/known/known.yaml shows how); if empty,
            results/tables/known.md is written from the committed records.
        clone: Folder with a git clone of the source's repository; if empty, its commit is fetched from GitHub.
        data_dir: Directory with the benchmarks' files; if empty, $STAPO_DATA_DIR, else the hub.
        out: Folder for the record, SOURCE.json; it holds counts and hashes, and no response.
        presets: Rule graders to grade by, beside `ours`.
        check: Without a source: write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    from studies.known import page

    if not source:
        return command.write(page.add, check=check)
    from stapo_eval.show import print_table
    from studies.known import scores
    from studies.known.recompute import recompute

    began = time.perf_counter()
    found = recompute(source, clone, data_dir, out, presets)
    for title, rows in (("Scores in percent", scores.scores(found)), ("Why ours differs", scores.causes(found))):
        print_table(title, rows[0], rows[1:], text_columns=1)
    print(*scores.notes(found), sep="\n")
    print(f"{duration(time.perf_counter() - began)}; the record is in {out}")
    return 0


if __name__ == "__main__":
    command.run(known, "studies.known", "grade")
