"""The HTML pages: of what the records say (`stapo-repro report`), and of a token log (`stapo-repro tokens`).

Neither has a script, and both open from disk without a network. The page of records has the table, what is wrong,
responses, runs, and links to figures and records relative to it; the page of a token log has all in it. A model's text
is hostile: the template escapes it, `visible` writes out what is not seen, and the page's policy allows no script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markdown_it import MarkdownIt
from markupsafe import Markup

from stapo_repro import labels, paper
from stapo_repro.figures import tokens as figures
from stapo_repro.figures.style import save, style
from stapo_repro.read import APART, Loaded, below, check_found, check_roots, load_cells
from stapo_repro.table.build import build
from stapo_repro.table.write import to_markdown
from stapo_repro.text import number_shown, shown, small_percent, visible
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import LoggedRun, marked
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import CellRecord, Run, Sample, Verdict
from stapo_results.statistics import Number, parse_verdicts, problem_means
from stapo_results.store import read, read_json, write_atomic

Key = tuple[str, str, int]  # cell, problem, sample
Responses = dict[str, list[tuple[Sample, Verdict]]]  # by cell

MISMATCH = (
    "S2T's tokens",
    "Of them with the largest mismatch of all tokens, A > 0",
    "Of them with the largest mismatch of the rare tokens",
    "Rank correlation with entropy",
    "Rank correlation with probability",
    "Mismatch of the rare tokens, nats: median (largest)",
)
_MOST_WORDS = 500  # different tokens a part in tokens.json; the page's bars have fewer
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_PROSE = MarkdownIt("commonmark", {"html": False}).enable("table")


@cache
def _template(name: str) -> Template:
    """A page's template: values are visible and escaped, and a name that is not there is an error."""
    environment = Environment(
        loader=PackageLoader("stapo_repro", "templates"),
        autoescape=True,
        finalize=lambda x: visible(x) if type(x) is str else x,  # a text that is no markup yet
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def write(records: Sequence[Path], runs: Sequence[Path], out: Path | None = None, most: int = 600) -> Path:
    """Make the page; the same bytes each time.

    Args:
        records: folders with records; without any those of `runs`, or else the committed ones.
        runs: run folders whose single responses are shown.
        out: the file; by default report.html beside the figures: in the first folder named, or else in results.
        most: responses in all.

    Raises:
        BadInput: a folder that does not exist, or a negative number of responses.
        RecordError: a broken record, or one that contradicts another or its responses.
    """
    if most < 0:
        raise BadInput("--responses must be at least 0", found=most, expected="0 or more", next_step="--responses 600")
    named = list(records) or list(runs)
    home = named[0] if named else paper.checkout() / "results"
    page = out or home / "report.html"
    roots, skip = (named, ()) if named else ([home / "records"], APART)
    cells = load_cells(roots, skip)
    check_found(named)
    table = build(cells, paper.load())
    listed = _runs(roots, skip, page)
    responses = _responses(runs, cells, most)
    # as in the table; a cell that is not in it comes last
    place = {path: n for n, path in enumerate(path for r in table.rows for path in r.score.records)}
    cells.sort(key=lambda c: (place.get(c.path, len(place)), c.record.cell.id))
    views = [_cell(c, listed, responses, page) for c in cells]
    # every text of a record in the table is escaped against HTML by `text.escape`
    forms = _MARKDOWN.render(to_markdown(table).partition("\n")[2])
    text = _template("report.html.jinja").render(
        findings="" if named else _findings(home.parent / "docs" / "findings.md", page),
        table=Markup(visible(forms)),
        synthetic=table.synthetic,
        faults=_faults(cells, listed),
        figures=[(_address(f, page), f.stem.replace("_", " ")) for f in _pictures(home / "figures")],
        models=[(name, [v for v in views if v["model"] == name]) for name in dict.fromkeys(v["model"] for v in views)],
        shown=f"{sum(map(len, responses.values())):,}",
        runs=listed,
    )
    write_atomic(page, text)
    return page


def _findings(file: Path, page: Path) -> Markup:
    """The page of findings below its title, one level of headings lower, its links relative to `page`."""
    tokens = _PROSE.parse(file.read_text(encoding="utf-8").partition("\n")[2])
    for token in (t for outer in tokens for t in (outer, *(outer.children or ()))):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{int(token.tag[1]) + 1}"
        elif token.type == "link_open" and "://" not in str(token.attrs["href"]):
            name, mark, place = str(token.attrs["href"]).partition("#")
            token.attrs["href"] = _address(file.parent / name, page) + mark + place
    return Markup(_PROSE.renderer.render(tokens, _PROSE.options, {}))


def _address(file: Path, page: Path) -> str:
    return quote(Path(os.path.relpath(file.resolve(), page.parent.resolve())).as_posix())


def _pictures(folder: Path) -> Iterable[Path]:
    """Every picture once, of two forms the SVG."""
    return dict(sorted((f.stem, f) for kind in ("png", "svg") for f in folder.glob(f"*.{kind}"))).values()


def _faults(cells: Sequence[Loaded], runs: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the records themselves."""
    known, lines = {run["id"] for run in runs}, []
    for c in cells:
        r = c.record
        missing = sum(p.verdicts.count("-") for p in r.problems)
        if missing:
            lines.append(f"{r.cell.id}: {missing} of {r.n * len(r.problems)} samples are missing")
        if r.run_id not in known:
            lines.append(f"{r.cell.id}: its run {r.run_id} has no record here")
    lines += [f"{run['title']}: {run['status']}" for run in runs if run["status"] != "done"]
    return lines + [f"{run['title']}: made by code with uncommitted changes" for run in runs if run["dirty"]]


def _runs(roots: Sequence[Path], skip: Sequence[str], page: Path) -> list[dict[str, Any]]:
    """Every run record below the roots, in the order of its path."""
    runs = []
    for root in roots:
        for path in below(root, "run.json", skip):
            run = read_json(path, Run)
            title = f"{run.kind}: {path.relative_to(root).parent.as_posix()}"
            runs.append({"id": run.run_id, "title": title, "status": run.status, "dirty": run.code_dirty,
                         "address": _address(path, page)})  # fmt: skip
    return runs


def _cell(c: Loaded, runs: list[dict[str, Any]], responses: Responses, page: Path) -> dict[str, Any]:
    """A cell as the page shows it."""
    r, cell = c.record, c.record.cell
    means = problem_means([parse_verdicts(p.verdicts) for p in r.problems]).tolist()
    step = "" if cell.step == "base" else f", seed {cell.train_seed}, step {cell.step}"
    step += f", evaluation seed {cell.eval_seed}" * bool(cell.eval_seed)
    lines = zip(r.problems, means, strict=True)
    return {
        "model": f"{labels.method_label(cell.method)}, {labels.size_label(cell.size)}",
        "title": f"{labels.benchmark_label(cell.benchmark)} at {cell.setting}{step}",
        "mean": shown(100 * sum(means) / len(means)),
        "address": _address(c.file, page),
        "run": next((run["address"] for run in runs if run["id"] == r.run_id), ""),
        "lines": [f"{p.problem_id:<24} {shown(100 * m):>6}  {p.verdicts}" for p, m in lines],
        "responses": responses.get(cell.id, ()),
    }


def choose(records: Sequence[CellRecord], most: int) -> dict[Key, str]:
    """The samples to show -> the letter that the record has for each; no response is read.

    Of each cell sample 0 of its problems in their order, then sample 1; the cells take turns until there are `most`.
    """
    queues = [
        [((r.cell.id, p.problem_id, i), p.verdicts[i]) for i in range(r.n) for p in r.problems if p.verdicts[i] != "-"]
        for r in records
    ]
    return dict(islice((x for turn in zip_longest(*queues) for x in turn if x is not None), most))


def _key(line: Sample | Verdict) -> Key:
    return line.cell, line.problem_id, line.sample_index


def _responses(folders: Sequence[Path], cells: Sequence[Loaded], most: int) -> Responses:
    """Responses of those cells that one of the run folders made, each compared with the cell's record."""
    check_roots(folders)
    held: dict[str, Path] = {}
    for folder in (p.parent for f in folders for p in below(f, "samples.jsonl")):
        for path in sorted(folder.glob("cells/*.json")):
            held.setdefault(read_json(path, CellRecord).cell.id, folder)
    wanted = choose([c.record for c in cells if c.record.cell.id in held], most)
    out: Responses = defaultdict(list)
    for folder in dict.fromkeys(held[cell] for cell, _, _ in wanted):
        samples = {k: s for s in read(folder / "samples.jsonl", Sample) if (k := _key(s)) in wanted}
        verdicts = {k: v for v in read(folder / "verdicts.jsonl", Verdict) if (k := _key(v)) in wanted}
        for key in (k for k in wanted if held[k[0]] == folder):
            sample, verdict = samples.get(key), verdicts.get(key)
            if sample is None or verdict is None or verdict.correct != (wanted[key] == "1"):
                raise RecordError(
                    f"{folder / 'verdicts.jsonl'}: it disagrees with the record about {key[1]}, sample {key[2]}",
                    found=f"correct {verdict.correct}" if sample and verdict else "no response or no verdict",
                    expected=f"{wanted[key]!r}, as the record of {key[0]} has it",
                    next_step="name with --records and --runs what belongs together",
                )
            out[key[0]].append((sample, verdict))
    return out


def _fields(n: Number) -> dict[str, float | str | None]:
    """What a file of numbers holds of one; null for what is not defined."""
    ends = {name: None if math.isnan(x) else x for name, x in (("mean", n.mean), ("low", n.low), ("high", n.high))}
    return {**ends, "part": n.part, "whole": n.whole, "over": n.over}


def analyse(run: LoggedRun, top: int = 30) -> tuple[dict[str, bytes], list[str]]:
    """The files by name, the same bytes each time, and what the command prints.

    Args:
        top: how many cases are shown.

    Raises:
        RunFailed: the log contradicts the run's metrics (`numbers.by_step`).
    """
    counts, quadrants, cases = numbers.by_step(run), numbers.quadrants(run), numbers.cases(run, top)
    with style():
        drawn = [save(sketch, ("svg", "png")) for sketch in figures.sketches(run)]
    spread, disagreement, compared = numbers.threshold(run), numbers.mismatch(run), _compared(run, counts)
    of_log = {
        "schema_version": 6,
        "run_id": run.record.run_id if run.record is not None else None,
        "inputs": dict(sorted(run.inputs.items())),
        "facts": run.header.model_dump(mode="json"),
        "comparison": compared,
        "threshold": dict(zip(("low", "median", "high"), spread, strict=True)) if spread else None,
        "taxonomy": [{**vars(q), "norm": _fields(q.norm)} for q in quadrants],
        "silenced": counts,
        "mismatch": disagreement and {name: _fields(number) for name, number in disagreement.items()},
        "ranked": {
            part: {"tokens": sum(w.values()), "counts": dict(list(w.items())[:_MOST_WORDS])}
            for part, w in numbers.words(run).items()
        },
        "cases": cases,
    }
    sheet = resources.files("stapo_repro").joinpath("templates", "tokens.css").read_text(encoding="utf-8")
    allowed = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    page = _template("tokens.html.jinja").render(
        title=run.heading("Tokens"),
        compared=compared,
        run=run,
        done=sum(c["silenced" if run.masks_rare else "region"] for c in counts),
        counts=counts,
        pictures={d.name: (d, base64.b64encode(d.files["svg"]).decode()) for d in drawn},
        quadrants=quadrants,
        mismatch=list(zip(MISMATCH, mismatch_cells(disagreement), strict=True)) if disagreement else [],
        cases=cases,
        marked=marked,
        percent=small_percent,
        style=Markup(sheet),
        policy=f"default-src 'none'; style-src 'sha256-{allowed}'; img-src data:; base-uri 'none'; form-action 'none'",
    )
    texts = {
        "index.html": page,
        "tokens.json": json.dumps(of_log, ensure_ascii=False, indent=1, allow_nan=False) + "\n",
    }
    files = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    return files | {f"{d.name}.{kind}": data for d in drawn for kind, data in d.files.items()}, [compared]


def _compared(run: LoggedRun, counts: Sequence[Mapping[str, Any]]) -> str:
    """The comparison of log and metrics, which `by_step` has made."""
    left_out, compared = run.header.left_out, sum(c["metric"] is not None for c in counts)
    text = f"silenced: {sum(c['silenced'] for c in counts):,} in the log"
    text += f", equal to the metrics in {compared} of {len(counts)} steps" if compared else "; no metrics beside it"
    return text + (f"; {left_out:,} rows left out at the log's bound" if left_out else "")


def mismatch_cells(m: Mapping[str, Number]) -> list[str]:
    """A run's texts, in the order of MISMATCH."""
    share = {name: number_shown(m[name], 1, 100, " %") for name in m}
    least = f", at least {share['rare_least']}" if m["rare_least"].mean else ""
    return [
        f"{m['correct'].whole:,.0f}",
        f"{share['correct']}; by chance {share['correct_chance']}",
        f"{share['rare']}; by chance {share['rare_chance']}{least}",
        number_shown(m["entropy"], 2),
        number_shown(m["probability"], 2),
        f"{m['median'].mean:.1e} ({m['largest'].mean:.1e})",
    ]
