"""From samples to verdicts: the rule everywhere, and the judge where its scope asks it.

A pure function of samples and judgements, made anew each time. The judge is asked for what its records lack, and each
reply is on record before the next is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from stapo_eval.cost import timing
from stapo_eval.display import StageDisplay
from stapo_eval.engines import Engine, Finished, make_engine
from stapo_eval.grading.pool import Item, Outcome, grade
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import grader_version
from stapo_eval.judge import asking
from stapo_eval.judge.prompt import Question
from stapo_eval.plan import EvaluationPlan
from stapo_results import provenance, store
from stapo_results.schema import Judgement, Sample, Verdict

UNPUBLISHED = "the judge was asked in a prompt that is not a published one"
OTHER_RULE = "the judge was asked as JustRL's script asks, but after another rule than JustRL's"
STAND_IN = "the judge is a miniature stand-in: its verdicts are recorded and shown, the scores are the rule's alone"


def verdicts_of(
    plan: EvaluationPlan, samples: list[Sample], engine: Engine | None, display: StageDisplay
) -> tuple[list[Verdict], dict[int, Judgement]]:
    """(verdicts in the order of `samples`; index of a sample -> what the judge said of it).

    Leaves verdicts.jsonl and, with a judge, judgements.jsonl.

    Args:
        engine: the evaluated model, where it is still loaded.
    """
    graded = _grade(plan, samples, display)
    judged = _judge(plan, samples, graded, engine, display)
    version, rule_only = grader_version(), plan.judge is None or plan.stand_in
    verdicts = []
    for i, (s, outcome) in enumerate(zip(samples, graded, strict=True)):
        judge = asking.verdict_by_judge(judged.get(i))
        verdicts.append(
            Verdict(
                cell=s.cell,
                problem_id=s.problem_id,
                sample_index=s.sample_index,
                extracted=outcome.extracted,
                rule=outcome.rule,
                reason=outcome.reason,
                preset=plan.options.preset,
                grader_version=version,
                judge=judge,
                judge_model=plan.judge.name if plan.judge else "",
                judge_revision=plan.judge.revision if plan.judge else "",
                correct=outcome.rule if rule_only else asking.scored(outcome.rule, judge),
            )
        )
    store.write_atomic(plan.out / "verdicts.jsonl", "".join(store.to_line(v) + "\n" for v in verdicts))
    created = provenance.now()
    store.append(
        plan.out / "timings.jsonl",
        (timing(s, "verdict", created, o.seconds) for s, o in zip(samples, graded, strict=True)),
    )
    return verdicts, judged


def _grade(plan: EvaluationPlan, samples: Sequence[Sample], display: StageDisplay) -> list[Outcome]:
    preset = plan.options.preset
    golds = {b.name: plan.golds(b, preset) for b in plan.benchmarks}
    benchmark_of = plan.benchmark_of()
    items, answered = [], []
    for i, s in enumerate(samples):
        if s.finish_reason != "error":
            answer, options = golds[benchmark_of[s.cell].name][s.problem_id]
            items.append(Item(answer, extract(s.response, answer, preset), options))
            answered.append(i)
    display.start("grade", 0, len(set(items)))
    outcomes = [Outcome(False, "error", 0.0)] * len(samples)
    for i, outcome in zip(answered, grade(items, progress=display.update), strict=True):
        outcomes[i] = outcome
    return outcomes


def _judge(
    plan: EvaluationPlan,
    samples: Sequence[Sample],
    graded: Sequence[Outcome],
    engine: Engine | None,
    display: StageDisplay,
) -> dict[int, Judgement]:
    """Index of a sample -> what the judge said of it. Asks for what is not on record."""
    if plan.judge is None or plan.prompt is None:
        return {}
    judge = asking.Judge(plan.judge.name, plan.judge.revision, plan.prompt, plan.options.judge_mode)
    questions = _questions(plan, samples, graded)
    keys, first = asking.distinct([(samples[i], q) for i, q in questions], judge)
    known = asking.recorded(plan.out / "judgements.jsonl", judge)
    missing = sum(key not in known for key in first)
    display.start("judge", len(first) - missing, len(first))
    check = (lambda known, questions=0: None) if plan.stand_in else asking.check_replies
    if missing:
        check([known[key] for key in first if key in known], len(first))  # before a judge is loaded
        speaker, new = _open_judge(plan, engine)
        try:
            asking.ask(first, judge, speaker, known, _recorder(plan, display, len(first), missing), check)
        finally:
            if new:
                speaker.close()
    check(known[key] for key in first)
    return {i: known[key] for (i, _), key in zip(questions, keys, strict=True)}


def _questions(
    plan: EvaluationPlan, samples: Sequence[Sample], graded: Sequence[Outcome]
) -> list[tuple[int, Question]]:
    """(index of the sample, question) of everything that the scope asks about; the engine's failures are left out."""
    problems = {(c.id, p.id): (b.name, p) for c, b, _ in plan.cells() for p in plan.problems(b)}
    questions = []
    for i, (s, outcome) in enumerate(zip(samples, graded, strict=True)):
        if s.finish_reason != "error" and (plan.options.judge_scope == "all" or not outcome.rule):
            benchmark, p = problems[s.cell, s.problem_id]
            cut = s.finish_reason == "length"
            questions.append((i, Question(benchmark, p.id, p.problem, p.answer, s.response, outcome.extracted, cut)))
    return questions


def _open_judge(plan: EvaluationPlan, engine: Engine | None) -> tuple[Engine, bool]:
    """(the judge's engine, whether it is a new one): a model that judges itself is not loaded twice."""
    assert plan.judge is not None
    if engine is not None and plan.judges_itself and not (plan.options.judge_engine or plan.options.judge_url):
        return engine, False
    kind, options = plan.options.judge_options()
    threads, dtype = plan.run.config["threads"], plan.options.dtype
    return make_engine(kind, plan.judge, threads=threads, dtype=dtype, options=options), True


def _recorder(
    plan: EvaluationPlan, display: StageDisplay, total: int, missing: int
) -> Callable[[list[Judgement], list[Finished]], None]:
    """What takes the judge's replies: on record, with their times, and on the display."""
    done, last = total - missing, time.perf_counter()

    def record(judgements: list[Judgement], finished: list[Finished]) -> None:
        nonlocal done, last
        store.append(plan.out / "judgements.jsonl", judgements)
        now, created = time.perf_counter(), provenance.now()
        share, last = (now - last) / len(judgements), now
        seconds = {f.request.problem_id: f.seconds for f in finished}
        replies = [j for j in judgements if j.status != "too_long"]  # which is no reply
        times = (timing(j, "judge", created, seconds.get(j.key, 0.0), share) for j in replies)
        store.append(plan.out / "timings.jsonl", times)
        done += len(judgements)
        display.update(done, total)

    return record


def judge_notes(plan: EvaluationPlan, judged: Mapping[int, Judgement]) -> list[str]:
    """What a reader must know of the questions that were not answered, where the judge's word counts."""
    return asking.judge_notes(judged.values()) if plan.judge is not None and not plan.stand_in else []


def judge_note(plan: EvaluationPlan) -> str:
    """What stands under every score of this judge, "" for nothing."""
    if plan.stand_in:
        return STAND_IN
    if plan.prompt and not plan.prompt.source:
        return UNPUBLISHED
    other_rule = plan.prompt and plan.options.judge_mode == "justrl-exact" and plan.options.preset != "justrl"
    return OTHER_RULE if other_rule else ""
