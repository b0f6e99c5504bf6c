"""Published scores recomputed: others' public responses, graded by the rule they were published by and by ours.

A source is a public git repository at a commit, which fixes the bytes of all its files; `known.yaml` lists those that
come with the suite. No response is written anywhere.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field

from stapo_eval.grading.pool import Item, grade
from stapo_eval.grading.presets import extract, same_text
from stapo_eval.grading.rules import Options, Preset, grader_version
from stapo_results import provenance, store
from stapo_results.benchmarks import find_data_dir, load
from stapo_results.errors import BadInput, meant
from stapo_results.runs import check_folder
from stapo_results.statistics import clustered
from stapo_results.terminal import Display
from studies.known.scores import KnownFile, KnownScores

SOURCES = Path(__file__).with_name("known.yaml")
_TOLERANCE = 1e-4  # relative, of the rule `numbers`


class PublishedSource(BaseModel):
    """Where responses and their published scores are.

    Attributes:
        path: a pattern of the files' paths; its groups are `model` and, in the layout "lines", `benchmark`.
        layout: "lines": one JSON object a line and problem, the score in another file, `scores`. "tasks": one object
            whose `results` hold score and `examples` of each benchmark.
        scores: of the layout "lines": the path of the file with the score, in which \\g<NAME> are groups of `path`.
        score, error: names of the score and of its standard error; the first that is there counts.
        percent: scores are printed in percent; digits: after the decimal point.
        fields: the names, of which the first that is there counts, of problem, gold, responses, and of answers and
            verdicts: what the source found in each response, and whether it counted as right (optional).
        rule: how the source compares. "text": Hendrycks' normal form. "numbers": equal texts, or numbers that agree
            to 1e-4, also as a percentage; where neither decides, the source continues with algebra.
        benchmarks: the source's name of a benchmark -> ours.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    folder: str
    path: re.Pattern[str]
    layout: Literal["lines", "tasks"]
    scores: str = ""
    score: list[str]
    error: list[str] = []
    percent: bool = False
    digits: int
    fields: dict[Literal["problem", "gold", "responses", "answers", "verdicts"], list[str]]
    rule: Literal["text", "numbers"]
    benchmarks: dict[str, str]


def find_source(name: str) -> tuple[str, PublishedSource]:
    """(name, source): one that comes with the suite, or a YAML file with one of the same form.

    Raises:
        BadInput: no such source, or one that lacks a value.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else SOURCES
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise BadInput(
            f"{path} cannot be read", found=e, expected=f"a file like {SOURCES}", next_step="correct it"
        ) from None
    if path is SOURCES:
        name = meant("source", name, found, "or name a YAML file of yours")
        found = found[name]
    return (name if path is SOURCES else path.stem), store.parse(json.dumps(found).encode(), PublishedSource, str(path))


def _git(folder: Path, *arguments: str, network: bool = False) -> bytes:
    """Raises BadInput where git fails."""
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"} | ({} if network else {"GIT_NO_LAZY_FETCH": "1"})
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, env=environment, check=False)
    if done.returncode:
        raise BadInput("git cannot read the source", found=done.stderr.decode(errors="replace").strip()[-500:],
                       expected="a network, or a clone that has the commit",
                       next_step="--clone FOLDER names a clone that is there")  # fmt: skip
    return done.stdout


def fetch(source: PublishedSource, url: str = "") -> Path:
    """The source's folder at its commit, fetched once into the cache; raises BadInput where git fails."""
    folder = store.cache_folder() / "known" / source.repository.replace("/", "+")
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "--quiet")
    wanted = (url or f"https://github.com/{source.repository}", source.commit)
    try:
        _git(folder, "cat-file", "-e", source.commit)
    except BadInput:
        _git(folder, "fetch", "--quiet", "--depth=1", "--filter=blob:none", *wanted, network=True)
    _git(folder, "-c", f"remote.{wanted[0]}.promisor=true", "checkout", "--quiet", source.commit, "--", source.folder,
         network=True)  # fmt: skip
    return folder


@dataclass(frozen=True)
class Task:
    """One published score: a model on a benchmark. `rows` are as the source has them."""

    path: str
    model: str
    benchmark: str
    blob: str
    score: dict[str, Any]
    rows: list[dict[str, Any]]


def read_tasks(source: PublishedSource, clone: Path) -> tuple[list[Task], int]:
    """(the tasks in the order of their paths, how many files of responses the clone lacks).

    Raises:
        BadInput: git cannot read the commit, or no file is the source's.
    """
    listed = _git(clone, "ls-tree", "-r", "-z", source.commit, "--", source.folder).decode().split("\0")
    blobs = {path: meta.split()[2] for meta, _, path in (line.partition("\t") for line in listed) if meta}
    tasks, lacking = [], 0
    for path, blob in blobs.items():
        match = source.path.fullmatch(path)
        if match is None:
            continue
        try:
            content = _git(clone, "cat-file", "blob", blob)
        except BadInput:  # a clone without its largest files
            lacking += 1
            continue
        model = match["model"]
        if source.layout == "lines":
            score = json.loads(_git(clone, "cat-file", "blob", blobs[match.expand(source.scores)]))
            rows = [json.loads(line) for line in content.splitlines() if line.strip()]
            tasks.append(Task(path, model, match["benchmark"], blob, score, rows))
        else:
            results = json.loads(content)["results"].items()
            tasks += [Task(path, model, name, blob, of, of["examples"]) for name, of in results if "examples" in of]
    tasks = [task for task in tasks if task.benchmark in source.benchmarks]
    if not tasks:
        raise BadInput("the source has no file of responses", found=f"{lacking} files that the clone lacks",
                       expected=f"paths like {source.path.pattern}", next_step="--clone a whole clone")  # fmt: skip
    return tasks, lacking


def by_numbers(gold: str, answer: str) -> bool | None:
    """The rule `numbers`; None where neither texts nor numbers decide."""
    if gold.lower() == answer.lower():
        return True
    g, a = _number(gold), _number(answer)
    if g is None or a is None:
        return None
    return any(abs(a - x) <= _TOLERANCE * abs(x) for x in (g / 100, g, g * 100))


def _number(text: str) -> float | None:
    bare = text.replace(",", "").strip()
    try:
        return float(bare.removesuffix("%").removesuffix("\\")) / 100 if bare.endswith("%") else float(bare)
    except ValueError:
        return None


def _first(row: dict[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if name in row), None)


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class PublishedResponse:
    """One response. `theirs` is its published verdict, or that of the rule where none is published."""

    problem: str
    gold: str
    text: str
    answer: str
    by_rule: bool | None
    theirs: bool


def responses_of(source: PublishedSource, task: Task) -> list[list[PublishedResponse]]:
    """Of each problem its responses."""
    found = []
    for row in task.rows:
        problem, gold, texts, answers, verdicts = (
            _first(row, source.fields.get(name, ())) for name in ("problem", "gold", "responses", "answers", "verdicts")
        )
        texts, answers = _several(texts), [str(a) for a in _several(answers)]
        rules = [same_text(str(gold), a) if source.rule == "text" else by_numbers(str(gold), a) for a in answers]
        theirs = [bool(v) for v in _several(verdicts)] if verdicts is not None else [bool(r) for r in rules]
        found.append(
            [
                PublishedResponse(" ".join(str(problem).split()), str(gold), str(text), answer, by_rule, says)
                for text, answer, by_rule, says in zip(texts, answers, rules, theirs, strict=True)
            ]
        )
    return found


def _cause(item: Item, other_answer: bool, other_gold: bool, theirs: bool) -> str:
    """Why ours differs: what has to be theirs for ours to say the same."""
    if item.answer is None:
        return "no box"
    if other_answer == theirs:
        return "another answer is taken"
    return "another gold answer" if other_gold == theirs else "another comparison"


def _graded(items: list[Item], display: Display, what: str) -> list[bool]:
    def progress(done: int, total: int) -> None:
        display.show(lambda: f"{what}: {done} of {total} distinct answers", done / max(1, total))

    return [o.rule for o in grade(items, progress=progress)]


def known_scores(
    name: str, source: PublishedSource, clone: Path, data_dir: Path | None, presets: Sequence[Preset] = get_args(Preset)
) -> KnownScores:
    """Recompute a source's scores by its rule, and by each preset against our own gold answers.

    Problems are joined by their text; those that are not ours count in the recomputed score alone.

    Raises:
        BadInput: as `read_tasks` and `load`.
    """
    tasks, lacking = read_tasks(source, clone)
    ours: dict[str, dict[str, tuple[Any, Options]]] = {}
    for mine in sorted({source.benchmarks[task.benchmark] for task in tasks}):
        benchmark = load(mine, data_dir)
        ours[mine] = {
            " ".join(p.problem.split()): (p.answer, Options(benchmark.spec.unordered, p.tolerance, p.unit))
            for p in benchmark.problems
        }
    read = [(task, responses_of(source, task)) for task in tasks]
    flat = [
        (t, q, r, *ours[source.benchmarks[task.benchmark]][r.problem])
        for t, (task, problems) in enumerate(read) for q, problem in enumerate(problems) for r in problem
        if r.problem in ours[source.benchmarks[task.benchmark]]
    ]  # fmt: skip
    with Display() as display:
        items = {
            preset: [Item(gold, extract(r.text, gold, preset), replace(o, preset=preset)) for _, _, r, gold, o in flat]
            for preset in dict.fromkeys(("ours", *presets))
        }
        right = {preset: _graded(of, display, preset) for preset, of in items.items()}
        own = items["ours"]
        differ = [i for i, (_, _, r, *_) in enumerate(flat) if right["ours"][i] != r.theirs]
        others = [Item(flat[i][3], flat[i][2].answer, flat[i][4]) for i in differ]
        golds = [Item(flat[i][2].gold, own[i].answer, Options()) for i in differ]
        ends = _graded(others + golds, display, "why they differ")
    causes: dict[int, Counter[tuple[bool, str]]] = defaultdict(Counter)
    for k, i in enumerate(differ):
        cause = _cause(own[i], ends[k], ends[k + len(differ)], flat[i][2].theirs)
        causes[flat[i][0]][right["ours"][i], cause] += 1
    files = []
    for t, (task, problems) in enumerate(read):
        of = [i for i, row in enumerate(flat) if row[0] == t]
        files.append(_file(source, task, problems, [flat[i] for i in of],
                           {preset: [says[i] for i in of] for preset, says in right.items()}, causes[t]))  # fmt: skip
    commit, dirty = provenance.code_version()
    return KnownScores(
        source=name, repository=source.repository, commit=source.commit, rule=source.rule, lacking=lacking,
        grader=grader_version(), code_commit=commit, code_dirty=dirty, packages=provenance.package_versions(),
        files=files,
    )  # fmt: skip


def _file(
    source: PublishedSource, task: Task, problems: list[list[PublishedResponse]], joined: list[tuple[Any, ...]],
    right: dict[str, list[bool]], causes: Counter[tuple[bool, str]],
) -> KnownFile:  # fmt: skip
    scale = 100 if source.percent else 1
    rows = [r for problem in problems for r in problem]
    by_problem: dict[int, list[bool]] = defaultdict(list)
    for (_, q, *_), ours in zip(joined, right["ours"], strict=True):
        by_problem[q].append(ours)
    printed, error = _first(task.score, source.score), _first(task.score, source.error)
    by_rule = sum(bool(r.by_rule) for r in rows) / len(rows)
    return KnownFile(
        path=task.path, blob=task.blob, model=task.model, benchmark=source.benchmarks[task.benchmark],
        problems=len(problems), repeats=len(problems[0]),
        one_text=sum(len(p) > 1 and len({r.text for r in p}) == 1 for p in problems),
        published=printed / scale, published_se=None if error is None else error / scale,
        by_rule=by_rule, to_the_digit=abs(by_rule * scale - printed) < 0.5001 * 10**-source.digits,
        undecided=sum(r.by_rule is None for r in rows),
        contradicted=sum(r.by_rule not in (None, r.theirs) for r in rows),
        joined=len(by_problem), theirs=_mean([r.theirs for _, _, r, *_ in joined]),
        scores={preset: _mean(says) for preset, says in right.items()},
        se=clustered(list(by_problem.values())).se if len(by_problem) > 1 else None,
        accepted={why: n for (ours, why), n in causes.items() if ours},
        refused={why: n for (ours, why), n in causes.items() if not ours},
    )  # fmt: skip


def _mean(verdicts: Sequence[bool]) -> float | None:
    return sum(verdicts) / len(verdicts) if verdicts else None


def recompute(name: str, clone: str, data_dir: str, out: str, presets: Sequence[Preset]) -> KnownScores:
    """Recompute a source's scores and write the record; raises as its parts."""
    name, source = find_source(name)
    check_folder(out, "--out")
    found = known_scores(name, source, Path(clone) if clone else fetch(source), find_data_dir(data_dir), presets)
    store.write_json(Path(out) / f"{name}.json", found)
    return found
