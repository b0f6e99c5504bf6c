"""From samples to verdicts: the rule everywhere, and the judge where its scope asks it.

A pure function of samples and judgements, made anew each time. The judge is asked for what its records lack, and each
reply is on record before the next is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from stapo_eval.engines import make_engine
from stapo_eval.engines.base import Engine
from stapo_eval.grading.pool import Item, Outcome, grade
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import grader_version
from stapo_eval.judge import asking
from stapo_eval.judge.prompt import Question
from stapo_eval.judge.published import REVISIONS
from stapo_eval.models import ModelFiles
from stapo_eval.plan import EvaluationPlan
from stapo_eval.show import StageDisplay
from stapo_results import store
from stapo_results.runs import OpenRun
from stapo_results.schema import Judgement, Sample, Verdict

UNPUBLISHED = "the judge was asked in a prompt that is not a published one"
OTHER_JUDGE = "the judge is not the paper's, CompassVerifier-3B"
OTHER_RULE = "the judge was asked as JustRL's script asks, but after another rule than JustRL's"
STAND_IN = "the judge is a miniature stand-in: its verdicts are recorded and shown, the scores are the rule's alone"


def verdicts_of(
    plan: EvaluationPlan, samples: list[Sample], display: StageDisplay, folder: OpenRun
) -> tuple[list[Verdict], dict[int, Judgement]]:
    """(verdicts in the order of `samples`; index of a sample -> what the judge said of it).

    Leaves verdicts.jsonl and, with a judge, judgements.jsonl and its seconds in the folder's record.
    """
    graded = _grade(plan, samples, display)
    judged = _judge(plan, samples, graded, display, folder)
    version = grader_version()
    verdicts = []
    for i, (s, outcome) in enumerate(zip(samples, graded, strict=True)):
        judge = asking.verdict_by_judge(judged.get(i))
        verdicts.append(
            Verdict(
                **s.model_dump(include={"cell", "problem_id", "sample_index"}),
                extracted=outcome.extracted,
                rule=outcome.rule,
                reason=outcome.reason,
                preset=plan.options.preset,
                grader_version=version,
                judge=judge,
                judge_model=plan.judge.name if plan.judge else "",
                judge_revision=plan.judge.revision if plan.judge else "",
                correct=asking.scored(outcome.rule, judge) if plan.judge_counts else outcome.rule,
            )
        )
    store.write_atomic(plan.out / "verdicts.jsonl", "".join(store.to_line(v) + "\n" for v in verdicts))
    return verdicts, judged


def _grade(plan: EvaluationPlan, samples: Sequence[Sample], display: StageDisplay) -> list[Outcome]:
    preset = plan.options.preset
    golds = {c.cell.id: c.golds(preset) for c in plan.cells}
    outcomes = [Outcome(False, "error", 0.0)] * len(samples)
    answered = [i for i, s in enumerate(samples) if s.finish_reason != "error"]
    items = []
    for s in (samples[i] for i in answered):
        answer, options = golds[s.cell][s.problem_id]
        items.append(Item(answer, extract(s.response, answer, preset), options))
    display.start("grade", 0, len(set(items)))
    for i, outcome in zip(answered, grade(items, progress=display.update), strict=True):
        outcomes[i] = outcome
    return outcomes


def _judge_engine(plan: EvaluationPlan, judge: ModelFiles) -> Engine:
    kind, options = plan.options.judge_options()
    how = {name: plan.run.config[name] for name in ("threads", "dtype")}
    return make_engine(kind, judge, options=options, **how)


def meet_judge(plan: EvaluationPlan) -> None:
    """Ask a judge's addresses for one token: before hours of sampling. Raises: BadInput, one does not serve it."""
    if plan.judge is not None and plan.options.judge_options()[0] == "openai":
        _judge_engine(plan, plan.judge).close()


def _judge(
    plan: EvaluationPlan,
    samples: Sequence[Sample],
    graded: Sequence[Outcome],
    display: StageDisplay,
    folder: OpenRun,
) -> dict[int, Judgement]:
    """Index of a sample -> what the judge said of it. Asks for what is not on record."""
    if plan.judge is None or plan.prompt is None:
        return {}
    path = plan.out / "judgements.jsonl"
    judge = asking.Judge(plan.judge.name, plan.judge.revision, plan.prompt, plan.options.judge_mode)
    questions = _questions(plan, samples, graded)
    keys, first = asking.distinct([(samples[i], q) for i, q in questions], judge)
    known = {key: j for key, j in asking.recorded(path, judge).items() if key in first}
    answered = [j for j in known.values() if j.status == "answered"]
    display.start("judge", len(answered), len(first))
    check = asking.check_replies if plan.judge_counts else lambda judged, questions=0: None
    if len(answered) < len(first):
        check(answered, len(first))  # before a judge is loaded
        checked = len(answered)
        with closing(_judge_engine(plan, plan.judge)) as engine:
            try:
                for judgements in asking.ask(first, judge, engine, known):
                    store.append(path, judgements)
                    known |= {j.key: j for j in judgements}
                    answered += judgements
                    display.update(len(answered), len(first))
                    if len(answered) - checked >= asking.MOST_UNCLEAR * len(first):
                        check(answered, len(first))
                        checked = len(answered)
            finally:  # however it ends but by a kill
                folder.save(judging_seconds=round((folder.record.judging_seconds or 0.0) + engine.busy, 3))
    check(list(known.values()))
    return {i: known[key] for (i, _), key in zip(questions, keys, strict=True)}


def _questions(
    plan: EvaluationPlan, samples: Sequence[Sample], graded: Sequence[Outcome]
) -> list[tuple[int, Question]]:
    """(index of the sample, question) of everything that the scope asks about; the engine's failures are left out."""
    problems = {(c.cell.id, p.id): (c.benchmark.name, p) for c in plan.cells for p in c.problems}
    questions = []
    for i, (s, outcome) in enumerate(zip(samples, graded, strict=True)):
        if s.finish_reason != "error" and (plan.options.judge_scope == "all" or not outcome.rule):
            benchmark, p = problems[s.cell, s.problem_id]
            cut = s.finish_reason == "length"
            questions.append((i, Question(benchmark, p.id, p.problem, p.answer, s.response, outcome.extracted, cut)))
    return questions


def judge_note(plan: EvaluationPlan) -> str:
    """What is printed under every score of this judge, "" for nothing."""
    if plan.prompt is None:
        return ""
    if not plan.judge_counts:
        return STAND_IN
    papers = {name.rpartition("/")[2] for name in REVISIONS}
    remarks = {
        UNPUBLISHED: not plan.prompt.source,
        OTHER_JUDGE: plan.judge is not None and plan.judge.name.rpartition("/")[2] not in papers,
        OTHER_RULE: plan.options.judge_mode == "justrl-exact" and plan.options.preset != "justrl",
    }
    return "; ".join(note for note, so in remarks.items() if so)
