"""The samples of an evaluation: which are asked for, which are on record, and getting the rest from an engine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping, Sequence

from stapo_eval.cost import timing
from stapo_eval.decoding import NEUTRAL, prompt
from stapo_eval.display import CellTally, StageDisplay, Tally
from stapo_eval.engines import Engine, Finished, Request
from stapo_eval.engines.requests import Key, key_of
from stapo_eval.plan import EvaluationPlan
from stapo_results import provenance, store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import ContextLimit, Sample
from stapo_results.seeds import derive_seed


def requests_of(plan: EvaluationPlan, engine: Engine) -> list[Request]:
    """Every sample of a run as a request, in the order of the verdicts file."""
    prompts = {
        (b.name, p.id): tuple(engine.encode(prompt(p.problem))) for b in plan.benchmarks for p in plan.problems(b)
    }
    requests = []
    for cell, benchmark, decoding in plan.cells():
        for p in plan.problems(benchmark):
            for i in range(plan.samples_of(benchmark)):
                seed = derive_seed(plan.options.eval_seed, benchmark.name, p.id, cell.setting, i)
                requests.append(Request(cell.id, p.id, i, seed, prompts[benchmark.name, p.id], decoding))
    return requests


def context_limit(prompts: Mapping[Key, int], max_tokens: int, context: int) -> ContextLimit | None:
    """Where prompt and longest response together exceed the model's positions; None where none does.

    Args:
        prompts: tokens of each sample's prompt.
    """
    # the settings of a problem share its prompt
    left = {
        (cell.split("/")[-3], problem): context - tokens
        for (cell, problem, _), tokens in prompts.items()
        if tokens < context < tokens + max_tokens
    }
    if not left:
        return None
    return ContextLimit(
        context=context,
        asked=max_tokens,
        problems=len(left),
        least=min(left.values()),
        most=max(left.values()),
    )


def context_note(limit: ContextLimit) -> str:
    """What a reader must know of it."""
    least = f"{limit.least:,} to " if limit.least < limit.most else ""
    return (
        f"the model has {limit.context:,} positions; responses to {limit.problems} problems could have at most "
        f"{least}{limit.most:,} of the {limit.asked:,} tokens"
    )


def refused_notes(options: Collection[str]) -> list[str]:
    """The alarm of an endpoint that does not take what a setting switches off; none where it takes all of it."""
    own = ", ".join(x for x in options if x in NEUTRAL)
    return [f"ALARM: the endpoint does not take {own}: its own defaults may change the samples"] if own else []


def load_samples(plan: EvaluationPlan) -> dict[Key, Sample]:
    """The samples on record; a half-written last line is cut off and reported.

    Raises:
        BadInput: for a sample that stands twice or belongs to another run.
    """
    path = plan.out / "samples.jsonl"
    store.repair(path)
    wanted, samples = set(plan.keys()), {}
    for s in store.read(path, Sample) if path.exists() else ():
        key = key_of(s)
        if key in samples or key not in wanted:
            raise BadInput(
                f"{path}: a sample {'stands twice' if key in samples else 'does not belong to this run'}",
                found=f"{s.cell} {s.problem_id} sample {s.sample_index}",
                next_step="give another --out",
            )
        samples[key] = s
    return samples


def drop_errors(plan: EvaluationPlan) -> int:
    """Take the samples on which an engine failed off the record, so that they are made again; how many there were.

    They are kept in samples.failed.jsonl.
    """
    samples = load_samples(plan)
    failed = [s for s in samples.values() if s.finish_reason == "error"]
    if failed:
        store.append(plan.out / "samples.failed.jsonl", failed)
        _rewrite(plan, [s for s in samples.values() if s.finish_reason != "error"])
        # a run that is stopped from here on is not done, whatever its record said
        (plan.out / "summary.json").unlink(missing_ok=True)
    return len(failed)


def put_in_order(plan: EvaluationPlan, samples: dict[Key, Sample]) -> None:
    """Rewrite the samples in the order of the verdicts file, in one step, if they stand in another.

    A deterministic engine's samples do not depend on when they were made, and neither may their file: replicas
    finish in any order, and a killed run continues where it can.
    """
    keys = plan.keys()
    if list(samples) != keys:
        _rewrite(plan, [samples[k] for k in keys])


def _rewrite(plan: EvaluationPlan, samples: Sequence[Sample]) -> None:
    store.write_atomic(plan.out / "samples.jsonl", "".join(store.to_line(s) + "\n" for s in samples))


def generate(
    plan: EvaluationPlan, engine: Engine, requests: Sequence[Request], samples: dict[Key, Sample], display: StageDisplay
) -> None:
    """Draw what `samples` lacks, put it there, and on record as it comes.

    Raises:
        RunFailed: the disk may not hold the samples, or the engine left requests unanswered.
    """
    _check_disk(plan, len(requests) - len(samples), engine.context)
    cells = {c.id: CellTally(f"{b.name} {c.setting}", plan.golds(b)) for c, b, _ in plan.cells()}
    tally = Tally(cells, len(requests), samples.values())
    display.start("generate", len(samples), len(requests))
    last = time.perf_counter()
    lengths = {key: s.response_tokens for key, s in samples.items()}
    with store.Journal(plan.out / "samples.jsonl") as recorded, store.Journal(plan.out / "timings.jsonl") as times:
        for piece in engine.stream(requests, lengths):
            fresh = [_sample(f, engine) for f in piece]
            recorded.append(fresh)
            created, now = provenance.now(), time.perf_counter()
            share, last = round((now - last) / len(piece), 6), now
            times.append(timing(s, "sample", created, f.seconds, share) for s, f in zip(fresh, piece, strict=True))
            samples.update({key_of(s): s for s in fresh})
            tally.add(fresh)
            display.generated(tally)
    if len(samples) != len(requests):
        raise RunFailed("the engine left requests unanswered", found=f"{len(samples)} of {len(requests)} samples")


def _check_disk(plan: EvaluationPlan, missing: int, context: int) -> None:
    """Refuse a run whose samples might not fit: 4 bytes a token and 600 a record, at their longest."""
    need = missing * (600 + 4 * min(plan.options.max_tokens, context))
    free = shutil.disk_usage(plan.out).free
    if need > free:
        raise RunFailed(
            f"{plan.out} may not have room for the samples",
            found=f"{free / 2**30:.2f} GiB free",
            expected=f"{need / 2**30:.2f} GiB for {missing} responses at their longest",
            next_step="give an --out on another disk, or a lower --max-tokens",
        )


def _sample(f: Finished, engine: Engine) -> Sample:
    r = f.request
    return Sample(
        cell=r.cell,
        problem_id=r.problem_id,
        sample_index=r.sample_index,
        seed=r.seed,
        response=f.text,
        finish_reason=f.finish_reason,
        prompt_tokens=f.prompt_length,
        response_tokens=f.response_tokens,
        logprob_sum=f.logprob_sum,
        engine=engine.name,
        error=f.error,
    )
