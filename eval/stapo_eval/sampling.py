"""The samples of an evaluation: which are asked for, which are on record, and getting the rest from an engine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

from stapo_eval.decoding import prompt
from stapo_eval.display import Display
from stapo_eval.engines import Engine, Finished, Key, Request
from stapo_eval.grading.rules import Options
from stapo_eval.plan import Plan
from stapo_eval.tally import CellTally, Tally
from stapo_results import provenance, store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Run, Sample, Timing
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


_CONTEXT = "the model has {:,} positions; "


def context_note(requests: Sequence[Request], context: int) -> str:
    """What to say where prompt and longest response together exceed the model's positions; "" where none does."""
    rooms = {(r.cell, r.problem_id): context - len(r.prompt) for r in requests
             if len(r.prompt) < context < len(r.prompt) + r.decoding.max_tokens}  # fmt: skip
    if not rooms:
        return ""
    least, most = min(rooms.values()), max(rooms.values())
    problems = len({(cell.split("/")[-3], problem) for cell, problem in rooms})
    return _CONTEXT.format(context) + (
        f"responses to {problems} problems could have at most {f'{least:,} to ' if least < most else ''}{most:,} "
        f"of the {requests[0].decoding.max_tokens:,} tokens"
    )


def context_notes(run: Run) -> list[str]:
    """The notes of a run record that `context_note` wrote: they belong beside the scores."""
    start = _CONTEXT.split("{")[0]
    return [n for n in dict.fromkeys(run.notes) if n.startswith(start) and " could have at most " in n]


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


def drop_errors(plan: Plan) -> int:
    """Take the samples on which an engine failed off the record, so that they are made again; how many there were.

    They are kept in samples.failed.jsonl.
    """
    failed = {key: s for key, s in load_samples(plan).items() if s.finish_reason == "error"}
    if failed:
        path = plan.out / "samples.jsonl"
        store.append(path.with_name("samples.failed.jsonl"), failed.values())
        kept = (s for key, s in load_samples(plan).items() if key not in failed)
        store.write_atomic(path, "".join(store.to_line(s) + "\n" for s in kept))
        # a run that is stopped from here on is not done, whatever its record said
        (plan.out / "summary.json").unlink(missing_ok=True)
    return len(failed)


def _tally(plan: Plan, samples: dict[Key, Sample]) -> Tally:
    cells = {}
    for cell, benchmark, _ in plan.cells():
        problems = plan.problems(benchmark)
        golds = {p.id: (p.answer, Options(benchmark.spec.unordered, p.tolerance, p.unit)) for p in problems}
        total = len(problems) * plan.samples_of(benchmark)
        cells[cell.id] = CellTally(benchmark.name, cell.setting, total, golds)
    return Tally(cells, samples.values())


def _sample(f: Finished, engine: Engine) -> Sample:
    r = f.request
    return Sample(
        cell=r.cell,
        problem_id=r.problem_id,
        sample_index=r.sample_index,
        seed=r.seed,
        response=f.text,
        finish_reason=f.finish_reason,
        prompt_tokens=len(r.prompt) if f.prompt_tokens is None else f.prompt_tokens,
        response_tokens=f.response_tokens,
        logprob_sum=f.logprob_sum,
        engine=engine.name,
        error=f.error,
    )


def _timing(f: Finished, created: str, share: float) -> Timing:
    r = f.request
    return Timing(cell=r.cell, problem_id=r.problem_id, sample_index=r.sample_index, kind="sample", created=created,
                  seconds=round(f.seconds, 6), elapsed=share)  # fmt: skip


def generate(
    plan: Plan, engine: Engine, requests: Sequence[Request], samples: dict[Key, Sample], display: Display
) -> None:
    """Draw what `samples` lacks, put it there, and on record as it comes.

    Raises:
        RunFailed: the disk may not hold the samples, or the engine left requests unanswered.
    """
    _check_disk(plan, len(requests) - len(samples), engine.context)
    tally = _tally(plan, samples)
    display.start("generate", len(samples), len(requests))
    last = time.perf_counter()
    lengths = {key: s.response_tokens for key, s in samples.items()}
    with (
        store.Journal(plan.out / "samples.jsonl") as recorded,
        store.Journal(plan.out / "timings.jsonl") as times,
    ):
        for piece in engine.stream(requests, lengths):
            fresh = [_sample(f, engine) for f in piece]
            recorded.append(fresh)
            created, now = provenance.now(), time.perf_counter()
            share, last = round((now - last) / len(piece), 6), now
            times.append(_timing(f, created, share) for f in piece)
            samples.update({(s.cell, s.problem_id, s.sample_index): s for s in fresh})
            tally.add(fresh)
            display.cells(tally)
    if len(samples) != len(requests):
        raise RunFailed("the engine left requests unanswered", found=f"{len(samples)} of {len(requests)} samples")


def put_in_order(plan: Plan, samples: dict[Key, Sample]) -> None:
    """Rewrite the samples in the order of the verdicts file, in one step, if they stand in another.

    A deterministic engine's samples do not depend on when they were made, and neither may their file: replicas
    finish in any order, and a killed run continues where it can.
    """
    keys = plan.keys()
    if list(samples) != keys:
        store.write_atomic(plan.out / "samples.jsonl", "".join(store.to_line(samples[k]) + "\n" for k in keys))
