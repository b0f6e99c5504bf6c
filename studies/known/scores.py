"""Published scores recomputed: the record of a source, and its tables."""

from __future__ import annotations

from collections import Counter

from stapo_results.schema import Part, Record


class KnownFile(Part):
    """One published score, recomputed from its responses. Scores are fractions.

    Attributes:
        blob: git's hash of the file.
        one_text: problems whose responses, two or more, are one text.
        by_rule: the score by the source's rule; undecided: responses that it leaves to algebra (wrong in `by_rule`);
            contradicted: responses on which it is not the published verdict; to_the_digit: whether it is `published`.
        joined: problems that are ours, by their text: the rest is of them alone.
        theirs: by the published verdicts; scores: by each of our presets; se: of "ours", clustered by problem.
        accepted: cause -> responses that ours alone calls right; refused: that the source alone does.
    """

    path: str
    blob: str
    model: str
    benchmark: str
    problems: int
    repeats: int
    one_text: int
    published: float
    published_se: float | None
    by_rule: float
    to_the_digit: bool
    undecided: int
    contradicted: int
    joined: int
    theirs: float | None
    scores: dict[str, float | None]
    se: float | None
    accepted: dict[str, int]
    refused: dict[str, int]


class KnownScores(Record):
    """A source's published scores; `lacking` counts its files that were not there to be read."""

    source: str
    repository: str
    commit: str
    rule: str
    grader: str
    lacking: int
    code_commit: str
    code_dirty: str
    packages: dict[str, str]
    files: list[KnownFile]


def _percent(x: float) -> str:
    return f"{100 * x:.1f}"


def _mean(files: list[KnownFile], preset: str) -> str:
    """The mean over files whose problems are ours; "theirs" by the published verdicts."""
    values = [f.theirs if preset == "theirs" else f.scores.get(preset) for f in files]
    known = [v for v in values if v is not None]
    return _percent(sum(known) / len(known)) if known else "not run"


def _span(values: list[float]) -> str:
    return f"{100 * min(values):+.1f} to {100 * max(values):+.1f}" if values else "–"


def scores(found: KnownScores) -> list[list[str]]:
    """A row of text a benchmark, after a head: how many scores, how many of them the source's rule gives to the digit.

    Then how many problems of a file are ours, and of these alone the mean scores in percent, by the source's verdicts
    and by our presets; the least and the largest difference of a score; the responses that one side alone calls right.
    """
    presets = list(found.files[0].scores)
    head = ["benchmark", "scores", "to the digit", "joined", "source", *presets]
    rows = [[*head, "ours - source", "ours alone", "source alone"]]
    for benchmark in sorted({f.benchmark for f in found.files}):
        of = [f for f in found.files if f.benchmark == benchmark]
        gaps = [f.scores["ours"] - f.theirs for f in of if f.theirs is not None and f.scores["ours"] is not None]
        rows.append([
            benchmark, f"{len(of)}", f"{sum(f.to_the_digit for f in of)}",
            ", ".join(sorted({f"{f.joined} of {f.problems}" for f in of})), _mean(of, "theirs"),
            *(_mean(of, preset) for preset in presets), _span(gaps),
            f"{sum(sum(f.accepted.values()) for f in of)}", f"{sum(sum(f.refused.values()) for f in of)}",
        ])  # fmt: skip
    return rows


def causes(found: KnownScores) -> list[list[str]]:
    """A row a cause, after a head: how many responses ours alone, and the source alone, calls right."""
    accepted: Counter[str] = sum((Counter(f.accepted) for f in found.files), Counter())
    refused: Counter[str] = sum((Counter(f.refused) for f in found.files), Counter())
    names = sorted({*accepted, *refused})
    return [["cause", "ours alone", "source alone"]] + [
        [name, f"{accepted[name]}", f"{refused[name]}"] for name in names
    ]


def notes(found: KnownScores) -> list[str]:
    """What the tables do not show, as sentences."""
    n = sum(f.problems * f.repeats for f in found.files)
    undecided, contradicted = (sum(getattr(f, name) for f in found.files) for name in ("undecided", "contradicted"))
    same = [f.published for f in found.files if f.to_the_digit]
    not_zero = f", of which {len(same) - same.count(0.0)} are not 0" if 0.0 in same else ""
    lines = [
        f"{len(found.files)} published scores of {found.repository} at {found.commit[:8]}, {n:,} responses; "
        f"{len(same)} come out to the digit by its rule{not_zero}."
    ]
    if found.lacking:
        lines.append(f"{found.lacking} files were not in the clone that was read.")
    if undecided:
        lines.append(
            f"The rule leaves {undecided:,} responses to the source's algebra, which is not rebuilt here; where it "
            f"decides, {contradicted} of its verdicts differ from the published ones."
        )
    repeated = [f for f in found.files if f.repeats > 1]
    if repeated:
        one, problems = sum(f.one_text for f in repeated), sum(f.problems for f in repeated)
        theirs, ours = (
            100 * max((getattr(f, name) or 0.0 for f in repeated), default=0.0) for name in ("published_se", "se")
        )
        end = "So the published standard errors are none. They" if one == problems else "The published standard errors"
        lines.append(
            f"In {one:,} of {problems:,} problems all repeats are one text. {end} reach {theirs:.2g} points; clustered "
            f"by problem they reach {ours:.1f}."
        )
    return lines
