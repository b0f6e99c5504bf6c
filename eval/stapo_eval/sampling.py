"""The samples of an evaluation: which are asked for, which are on record, and getting the rest from an engine."""

from __future__ import annotations

import shutil
import time

from stapo_eval.decoding import prompt
from stapo_eval.display import Display
from stapo_eval.engines import Engine, Key, Request
from stapo_eval.plan import Plan
from stapo_results import provenance, store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Sample, Timing
from stapo_results.seeds import derive_seed


def requests_of(plan: Plan, engine: Engine) -> list[Request]:
    """Every sample of a run as a request, in the order of the verdicts file."""
    requests = []
    for benchmark in plan.benchmarks:
        prompts = {p.id: tuple(engine.encode(prompt(p.problem))) for p in plan.problems(benchmark)}
        for cell, _, decoding in (c for c in plan.cells() if c[1] is benchmark):
            for p in plan.problems(benchmark):
                for i in range(plan.samples_of(benchmark)):
                    seed = derive_seed(plan.options.eval_seed, benchmark.name, p.id, cell.setting, i)
                    requests.append(Request(cell.id, p.id, i, seed, prompts[p.id], decoding))
    return requests


def _check_disk(plan: Plan, missing: int, context: int) -> None:
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


def load_samples(plan: Plan) -> dict[Key, Sample]:
    """The samples on record; a half-written last line is cut off and reported.

    Raises:
        BadInput: for a sample that stands twice or belongs to another run.
    """
    path = plan.out / "samples.jsonl"
    store.repair(path)
    wanted, samples = set(plan.keys()), {}
    for s in store.read(path, Sample) if path.exists() else ():
        key = (s.cell, s.problem_id, s.sample_index)
        if key in samples or key not in wanted:
            raise BadInput(
                f"{path}: a sample {'stands twice' if key in samples else 'does not belong to this run'}",
                found=f"{s.cell} {s.problem_id} sample {s.sample_index}",
                next_step="give another --out",
            )
        samples[key] = s
    return samples


def generate(plan: Plan, engine: Engine, samples: dict[Key, Sample], display: Display) -> None:
    """Draw what `samples` lacks, put it there, and on record as it comes.

    Raises:
        RunFailed: the disk may not hold the samples, or the engine left requests unanswered.
    """
    requests = requests_of(plan, engine)
    total, tokens, began = len(requests), 0, time.perf_counter()
    last = began
    _check_disk(plan, total - len(samples), engine.context)
    display.start("generate", len(samples), total)
    done = frozenset(samples)
    for piece in engine.stream(requests, done):
        fresh = [
            Sample(
                cell=f.request.cell,
                problem_id=f.request.problem_id,
                sample_index=f.request.sample_index,
                seed=f.request.seed,
                response=f.text,
                finish_reason=f.finish_reason,
                prompt_tokens=len(f.request.prompt),
                response_tokens=f.response_tokens,
                logprob_sum=f.logprob_sum,
                engine=engine.name,
                error=f.error,
            )
            for f in piece
        ]
        store.append(plan.out / "samples.jsonl", fresh)
        created, now = provenance.now(), time.perf_counter()
        share, last = round((now - last) / len(piece), 6), now
        store.append(plan.out / "timings.jsonl", (
            Timing(cell=f.request.cell, problem_id=f.request.problem_id, sample_index=f.request.sample_index,
                   kind="sample", created=created, seconds=round(f.seconds, 6), elapsed=share) for f in piece
        ))  # fmt: skip
        samples.update({(s.cell, s.problem_id, s.sample_index): s for s in fresh})
        tokens += sum(f.response_tokens for f in piece)
        display.update(len(samples), total, tokens_per_second=tokens / (time.perf_counter() - began))
    if len(samples) != total:
        raise RunFailed("the engine left requests unanswered", found=f"{len(samples)} of {total} samples")
