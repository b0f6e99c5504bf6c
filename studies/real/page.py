"""What the paper says of single tokens, held against a real model's own responses (`stapo-train probe`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stapo_repro.figures import curves, tokens
from stapo_repro.figures.style import Sketch, save, style
from stapo_repro.labels import RARE_TOKEN_MASKS, method_label, size_label
from stapo_repro.paper import checkout
from stapo_repro.read import ENGINES, JUDGE, TrainingRun, load_cells, load_training_runs
from stapo_repro.text import escape, grid, model_text, number_shown, shown, small_percent
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import LoggedRun, batch_keys, in_text, load, log_of, marked, run_label
from stapo_repro.tokens.shares import Sums
from stapo_results import generated, store, token_log
from stapo_results.schema import Run
from stapo_results.statistics import Number
from studies import command
from studies.real import accuracies, claims, engines, judge

WORDS = {"digits, $ and x": (r"\d+|\$+|x", "silenced"), "Let, This, So and Wait": ("Let|This|So|Wait", "kept")}
"""Words of the paper's clouds (Appendix "Word Cloud Visualization"): pattern of a whole token, and where they stand."""
_HEAD = ("The paper says", "Where", "Here", "It")
_NOT_RUN = "Not run: no record of a probe of a real model."
_COURSE = (("reward", 0, 2), ("token_entropy_mean", 0, 2), ("truncated_share", 1, 1), ("response_tokens", 0, 0))
"""Of a training: the field, whether it is in percent, digits."""


def verdict(difference: Number) -> str:
    """Of a difference that the paper says is above 0, by its 95 % interval."""
    if not difference.has_interval or difference.low <= 0 <= difference.high:
        return "undecided"
    return "holds" if difference.low > 0 else "does not hold"


def statements(run: LoggedRun) -> list[list[str]]:
    """A line for each statement: what, where, the numbers of this log, and whether it holds.

    Norms and words of rare tokens have intervals over prompts; what counts all tokens has none.
    """
    rare = run.rows["rare"]
    r, s2t = {name: column[rare].astype(np.float64) for name, column in run.rows.items()}, run.silenced[rare]
    _, prompt = np.unique(run.table["prompt_id"].to_numpy()[rare], return_inverse=True)
    norm = np.abs(r["advantage"]) * np.sqrt(np.maximum(0.0, 1 - 2 * np.exp(r["logprob"]) + r["collision"]))
    texts = [run.vocabulary.one(int(t)).strip() for t in r["token"]]
    columns = {"silenced": s2t, "kept": ~s2t, "norm silenced": norm * s2t, "norm kept": norm * ~s2t}
    for name, (pattern, _) in WORDS.items():
        such = np.array([bool(re.fullmatch(pattern, t)) for t in texts], bool)
        columns |= {f"{name} silenced": such & s2t, f"{name} kept": such & ~s2t}
    sums, counts, four = Sums(prompt, columns), numbers.by_step(run), numbers.quadrants(run)

    every, region = (sum(c[key] for c in counts) for key in ("tokens", "region"))
    said = f"{region:,} of {every:,} tokens, {small_percent(region / every)}"
    # the paper's is a statement on its trainings, after their warm-up
    out = [["Below 0.01 % of the tokens are silenced", "Figure 6", said, "base: no verdict"]]
    norms = [q.norm.mean if q.norm.known else 0.0 for q in four]
    high, low, rare_high, rare_low = (shown(x, 3) for x in norms)
    more = sums.difference(("norm silenced", "silenced"), ("norm kept", "kept"))
    said = f"{rare_low} against {rare_high}; of frequent tokens {high} and {low}; "
    said += f"rare ones, low minus high entropy {number_shown(more, 3, sign=True)}"
    largest = verdict(more) if norms[3] > max(norms[:2]) else "does not hold"
    out.append(["Rare tokens of low entropy have the largest gradient norm", "Figure 2c", said, largest])
    order = "holds" if norms[0] < norms[1] else "does not hold"
    said = f"{high} at high, {low} at low entropy"
    out.append(["Frequent tokens have smaller norms at high entropy", "Table 1", said, order])
    rises = [q.entropy_rises for q in four]
    arrows = all(x is not None and (x > 0.5) == q.rare for x, q in zip(rises, four, strict=True))
    said = ", ".join("no token" if x is None else f"{shown(100 * x, 1)} %" for x in rises)
    said = f"by the lemma's sign it rises at {said} of the four"
    most = "holds for most" if arrows else "does not hold"
    out.append(["Entropy falls at frequent tokens, rises at rare ones", "Table 1", said, most])
    for name, (_, where) in WORDS.items():
        of, other = (where, "kept") if where == "silenced" else (where, "silenced")
        d = sums.difference((f"{name} {of}", of), (f"{name} {other}", other))
        shares = [
            f"{number_shown(sums.share(f'{name} {part}', part), 1, 100, ' %')} of the {part}" for part in (of, other)
        ]
        said = f"{name} are a larger share of the {of} than of the {other}"
        out.append([said, "Figure 10", f"{shares[0]}, {shares[1]}", verdict(d)])
    return [[escape(text) for text in line] for line in out]


def section(run: LoggedRun, name: str, condition: str) -> list[str]:
    """A probe's part of the page: its condition, statements, tokens by advantage, words, cases."""
    lines = [f"## {name}", "", condition, "", *grid(_HEAD, statements(run), 3), ""]
    rare = run.rows["rare"]
    values, at = np.unique(np.round(run.rows["advantage"][rare], 2), return_inverse=True)
    counts = ((v, at == i) for i, v in enumerate(values))
    by = [[f"{v:.2f}", f"{of.sum():,}", f"{run.silenced[rare][of].sum():,}"] for v, of in counts]
    lines += [*grid(("Advantage in the group", "Rare tokens", "S2T's"), by), ""]
    for part, found in numbers.words(run).items():
        most = [f"{model_text(marked(t))} {n}" for t, n in list(found.items())[:25]]
        lines += [f"{part}, the most frequent of {len(found):,}: {', '.join(most)}.", ""]
    cases = [
        [in_text(c["before"][-60:], c["token"], c["after"][:20]), small_percent(c["probability"]), shown(c["entropy"]),
         " · ".join(f"{model_text(marked(t))} {small_percent(p, 2)}" for t, p in c["top"]), c["part"]]
        for c in numbers.cases(run, 12)
    ]  # fmt: skip
    return [*lines, *grid(("Token in its context", "p", "H (nats)", "Top 5", "S2T"), cases, 1), ""]


def trained(runs: Sequence[TrainingRun], records: Path) -> list[str]:
    """What each training was and did: a line a run, and every token that STAPO silenced."""
    rows = []
    for r in (r for r in runs if r.size == claims.SIZE):
        record = store.read_json(records / r.path / "run.json", Run)
        steps = [s.step for s in r.steps if s.step]
        parts = steps[:5], steps[-5:]
        ends = [
            " to ".join(shown(100**percented * claims.mean_of(r, name, part), digits) for part in parts)
            for name, percented, digits in _COURSE
        ]
        masked = ("silenced_share", "candidate_share") if r.method in RARE_TOKEN_MASKS else ("silenced_share",)
        shares = [small_percent(claims.mean_of(r, name, steps)) for name in masked] + [""] * (2 - len(masked))
        took = f"{shown((record.wall_seconds or 0.0) / 60, 1)}, {r.machine}"
        rows.append([method_label(r.method), f"{r.seed}", f"{r.last}", took, *ends, *shares])
    if not rows:
        return ["## Trainings", "", "Not run.", ""]
    head = (
        "Method",
        "Seed",
        "Steps",
        "Minutes",
        "Reward",
        "Entropy (nats)",
        "Cut (%)",
        "Tokens",
        "Silenced",
        "Candidates",
    )
    lines = [
        "## Trainings",
        "",
        "Means of the first five steps to means of the last five. Minutes: without attempts that were killed. "
        "Candidates: of masks over rare tokens. On a CPU the suite's own sampler writes the responses, on a GPU vLLM.",
        "",
    ]
    of_size = [r for r in runs if r.size == claims.SIZE]
    lines += [*grid(head, rows), "", *_after_warm_up(of_size), *rare_tokens(of_size)]
    lines += _below_justrl([r for r in of_size if r.seed == 0])
    for r in of_size:
        if r.method == "stapo" and (r.folder / token_log.FOLDER).is_dir():
            lines += silenced(load(r.folder), r)
    return lines


def _after_warm_up(runs: Sequence[TrainingRun]) -> list[str]:
    """What masks over rare tokens silence once the learning rate is whole: the paper's Figure 6 speaks of that."""
    ends, texts = (claims.WARM_UP, curves.WARM_UP), []
    for r in (r for r in runs if r.method in RARE_TOKEN_MASKS):
        shares = [curves.share_after([r], step) for step in ends]
        if any(shares):
            both = " and ".join(small_percent(share[0] / 100) if share else "not run" for share in shares)
            texts.append(f"{method_label(r.method)}, seed {r.seed}, {both}")
    said = f"Silenced, in the mean of the steps, after step {ends[0]}, where the warm-up of these runs ends, and after "
    said += f"step {ends[1]}, where the paper's does: "
    return [f"{said}{'; '.join(texts)}.", ""] if texts else []


def rare_tokens(runs: Sequence[TrainingRun]) -> list[str]:
    """How many tokens of each training are rare, a line a run, STAPO's and JustRL's first."""
    rows = []
    for run in sorted(runs, key=lambda r: (r.method != "stapo", r.method != "justrl", r.method, r.seed)):
        name, log = escape(run_label(run)), log_of(run)
        if log is None:
            rows.append([name, "no token log", *[""] * 5])
            continue
        rare = log.counts["rare"]
        _, batch = np.unique(batch_keys(log.counts)[rare], return_inverse=True)
        several = int((np.bincount(batch, log.counts["tokens"][rare]) > 1).sum())
        steps = numbers.by_step(log)
        sums = {part: sum(s[part] for s in steps) for part in ("tokens", "rare", "region", "mini_batches")}
        texts = [f"{n:,}" for n in (sums["tokens"], numbers.positive_tokens(log), sums["rare"], sums["region"])]
        rows.append([name, f"{len(steps)}", *texts, f"{several} of {sums['mini_batches']}"])
    head = (
        "Run",
        "Steps",
        "Response tokens",
        "With A > 0",
        "Of these rare",
        "Of them S2T's",
        "Mini-batches with two or more",
    )
    said = "Of whole trainings: rare tokens, those that S2T would silence, mini-batches with two rare ones or more."
    return [said, "", *(grid(head, rows) if rows else ["Not run."]), ""]


def _below_justrl(runs: Sequence[TrainingRun]) -> list[str]:
    """In how many late steps a method's entropy is below JustRL's, which met the same prompts."""
    entropy = {r.method: (r.series("token_entropy_mean"), r.machine) for r in runs}
    theirs, machine = entropy.pop("justrl", ({}, ""))
    late = [i for i in theirs if i > curves.WARM_UP]
    texts = [
        f"{method_label(m)}'s{f' (on the {where})' if where != machine else ''} in "
        f"{sum(of[i] < theirs[i] for i in late)} of {len(late)}"
        for m, (of, where) in entropy.items() if {*late} <= {*of}
    ]  # fmt: skip
    if not late or not texts:
        return []
    said = f"Seen afterwards: after step {curves.WARM_UP} entropy is below JustRL's of the same prompts, "
    return [f"{said}{', '.join(texts)} steps. Steps of one training are no sample: no interval.", ""]


def silenced(run: LoggedRun, training: TrainingRun) -> list[str]:
    """Every token that a training silenced, by step."""
    found = [numbers.case(run.vocabulary, row, "") for row in run.records(np.flatnonzero(run.rows["silenced"]))]
    rows = [
        [f"{c['step']}", in_text(c["before"][-60:], c["token"], c["after"][:20]), small_percent(c["probability"]),
         shown(c["entropy"]), shown(c["advantage"]),
         " · ".join(f"{model_text(marked(t))} {small_percent(p, 2)}" for t, p in c["top"])]
        for c in sorted(found, key=lambda c: (c["step"], c["prompt_id"], c["sample"], c["position"]))
    ]  # fmt: skip
    head = ("Step", "Token in its context", "p", "H (nats)", "A", "Top 5")
    every, steps = sum(c["tokens"] for c in numbers.by_step(run)), sum(s.step > 0 for s in training.steps)
    known = len(training.series("threshold"))
    entropies = np.array([c["entropy"] for c in found])
    quartiles = ", ".join(shown(float(q)) for q in np.quantile(entropies, (0.25, 0.5, 0.75)))
    bound = next(c.low for c in claims.load().claims if c.id == "threshold")
    return [
        f"## What STAPO silenced with seed {training.seed}: all {len(rows)} of {every:,} tokens",
        "",
        f"In the mean {len(rows) / steps:.1f} of a step's {every / steps:,.0f}. Their entropies have the quartiles "
        f"{quartiles} nats. {(entropies < bound).sum()} of them are below {bound:g} nats. The claim that nothing "
        f"silenced has a low entropy measures the threshold alone, which {known} of the {steps} steps have.",
        "",
        *grid(head, rows, 2),
        "",
    ]


def probes(records: Path) -> dict[str, tuple[LoggedRun, str]]:
    """Name -> log of each collected probe below a folder, and its condition in a sentence.

    The name is that of the model, which wrote and scored and from which a training began, and of the folder.
    """
    runs = {log.parent: store.read_json(log.parent / "run.json", Run) for log in records.rglob(token_log.FOLDER)}
    sizes = {r.revisions["model"]: r.config["run"]["size"] for r in runs.values() if r.kind == "train"}
    found = {}
    for folder, run in sorted(runs.items()):
        if run.kind == "probe":
            c = run.config
            as_many = "as the paper's runs have" if c["mini_batch"] == 512 else "where the paper's runs have 512"
            of = f"groups of {c['group']}" if c.get("group") else "all samples of a problem are a group"
            condition = (
                f"Mini-batches of {c['mini_batch']} responses, {as_many}; {of}; "
                f"tau_p {c['tau_p']}, q {c['q']}; weights in {c['dtype']}."
            )
            size = sizes.get(run.revisions["model"].removeprefix("sha256:"), Path(c["model"]).parent.name)
            found[f"{size_label(size)}'s responses ({folder.name})"] = load(folder), condition
    return found


def drawn(of: dict[str, LoggedRun]) -> list[Sketch]:
    """Figures 2b, 2c and 10 and cases of each probe."""
    with style():
        return [
            save(replace(s, name=f"real_{run.name}_{s.name}", title=f"{s.title.removesuffix(': a probe')}: {name}"))
            for name, run in of.items()
            for s in (*tokens.sketches(run), tokens.case_bars(run, {}))
        ]


def add(files: dict[Path, bytes], records: Path = command.RECORDS / "real") -> None:
    """Add results/tables/real.md, the findings' block and the figures of the committed probes."""
    of = probes(records)
    head = (
        "# A real model\n\nFirst its trainings and what was claimed of them, then engines and a judge, then the "
        "base model's own responses, of which `stapo-train probe` made the logs."
    )
    asked = [line for name, (run, how) in of.items() for line in section(run, name, how)] or [_NOT_RUN]
    folders = (records, records.parent / ENGINES, records.parent / JUDGE)
    roots, others, judged = ([folder] if folder.is_dir() else [] for folder in folders)
    cells, again, runs = load_cells(roots), load_cells(others), load_training_runs(roots)
    lines = [
        *claims.section(runs, [*cells, *again]),
        *accuracies.section([*cells, *again]),
        *trained(runs, records),
        *engines.section(cells, again),
        *judge.section(load_cells(judged)),
        *asked,
    ]
    files[command.TABLES / "real.md"] = "\n".join([head, "", *lines, ""]).encode()
    short = [
        line
        for name, (run, how) in of.items()
        for line in (f"**{name}** {how}", "", *grid(_HEAD, statements(run), 3), "")
    ]
    findings = checkout() / "docs" / "findings.md"
    generated.renew(files, findings, "accuracies", "\n".join(accuracies.table([*cells, *again])))
    generated.renew(files, findings, "real", "\n".join(short) or _NOT_RUN)
    command.add_figures(files, "real", drawn({name: run for name, (run, _) in of.items()}))
