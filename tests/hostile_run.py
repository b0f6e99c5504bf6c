"""A run folder whose responses, answers and names try to break the page that shows them."""

from __future__ import annotations

from pathlib import Path

import synthetic_records as synthetic

from stapo_results import store
from stapo_results.schema import CellRecord, ProblemResult, Run, Sample, Verdict

LONG = "a" * 1_000_000
# what a hit would do is seen from outside: the page's title changes, or an element with this id is there
HIT = "document.title='HIT'"
RESPONSES = [
    f"<script>{HIT}</script>",
    f"</pre></details></main></body></html><script>{HIT}</script>",
    f'<svg onload="{HIT}"><script>{HIT}</script></svg>',
    f'<img src=x onerror="{HIT}" id=hit>',
    f'[a](javascript:{HIT}) <a href="javascript:{HIT}" id=hit>click</a>',
    f"</style><style>*{{display:none}}</style><script>{HIT}</script>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>' id=hit></iframe>",
    "\n<base href=//evil.example><meta http-equiv=refresh content=0>",
    "broken UTF-8 was \ufffd\ufffd here",
    "a\u202etxt.exe\u202c and \u2066isolated\u2069 \u200fright to left \u05d0\u05d1\u05d2",
    "zero\u200bwidth \x00 nul \x1b[31mred \x85 next line \u2028 separator \r alone",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}${7*7}",
    "<!-- " + "&lt;&amp;&#0;" * 50 + " ]]> --><![CDATA[",
    "\u0301" * 500,
    LONG,
    "line\n" * 5000,
    "",
]
PROBLEM = '<img src=x onerror="' + HIT + '">\u202e'


def build(folder: Path) -> Path:
    """One cell of one sample a problem; even problems are right. Returns the run folder."""
    run = folder / "run"
    ids = [PROBLEM, *(f"p{i}" for i in range(1, len(RESPONSES)))]
    letters = ["10"[i % 2] for i in range(len(RESPONSES))]
    problems = [ProblemResult(problem_id=p, verdicts=v) for p, v in zip(ids, letters, strict=True)]
    path = synthetic.cell(
        run, "stapo", "mini-add", "t1.0", letters, problems=problems, judge_note=f"<script>{HIT}</script>",
        engine=f"synthetic <b onclick=\"{HIT}\">",
    )  # fmt: skip
    where = path.parents[1]
    cell = store.read_json(path, CellRecord).cell.id
    store.append(where / "samples.jsonl", [sample(cell, p, r) for p, r in zip(ids, RESPONSES, strict=True)])
    store.append(where / "verdicts.jsonl", [verdict(cell, p, v == "1") for p, v in zip(ids, letters, strict=True)])
    store.write_json(where / "run.json", _run(where))
    return run


def sample(cell: str, problem: str, response: str) -> Sample:
    return Sample(
        cell=cell, problem_id=problem, sample_index=0, seed=1, response=response, finish_reason="stop",
        prompt_tokens=1, response_tokens=2, logprob_sum=None, engine="synthetic",
    )  # fmt: skip


def verdict(cell: str, problem: str, right: bool) -> Verdict:
    return Verdict(
        cell=cell, problem_id=problem, sample_index=0, extracted=f"<script>{HIT}</script>\u202e", rule=right,
        reason="match" if right else "mismatch", preset="ours", grader_version="g", judge="not_asked", judge_model="",
        judge_revision="", correct=right,
    )  # fmt: skip


def _run(where: Path) -> Run:
    return Run(
        run_id="abc", kind="eval", status="done",
        command=["stapo-eval", "run", "--out", str(where), "--data-dir", "/home/somebody/secret/data"],
        config={"method": "stapo", "size": "mini", "train_seed": 0}, code_commit="c" * 40, code_dirty="",
        packages={"x": f"<script>{HIT}</script>"}, revisions={}, hardware={"cores": 2, "gpus": []}, seeds={"eval": 0},
        deterministic=True, started="2026-01-02T03:04:05+00:00", wall_seconds=3.0,
    )  # fmt: skip
