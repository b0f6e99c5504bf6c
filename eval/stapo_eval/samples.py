"""The samples of an evaluation: which are asked for, and which are on record."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from stapo_eval.decoding import NEUTRAL, encode_chat, prompt
from stapo_eval.engines.base import Engine, Finished, Key, Request, key_of, load_tokenizer
from stapo_eval.plan import EvaluationPlan
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import ContextLimit, Sample
from stapo_results.seeds import derive_seed


def requests_of(plan: EvaluationPlan, engine: Engine) -> list[Request]:
    """Every sample of a run as a request, in the order of the verdicts file."""
    prompts: dict[tuple[str, str], tuple[int, ...]] = {}
    requests = []
    for cell, benchmark, decoding, problems, n in plan.cells:
        for p in problems:
            if (name := (benchmark.name, p.id)) not in prompts:  # once for all settings
                prompts[name] = tuple(engine.encode(prompt(p.problem)))
            for i in range(n):
                seed = derive_seed(plan.options.eval_seed, benchmark.name, p.id, cell.setting, i)
                requests.append(Request(cell.id, p.id, i, seed, prompts[name], decoding))
    return requests


def longest(plan: EvaluationPlan) -> int:
    """Tokens of the longest prompt and the longest response together."""
    tokenizer = load_tokenizer(plan.model)
    texts = {prompt(p.problem) for c in plan.cells for p in c.problems}
    return max(len(encode_chat(tokenizer, text, plan.options.chat)) for text in texts) + plan.options.max_tokens


def context_limit(plan: EvaluationPlan, prompts: Mapping[Key, int], context: int) -> ContextLimit | None:
    """Where prompt and longest response together exceed the model's positions; None where none does.

    Args:
        prompts: tokens of each sample's prompt.
    """
    asked, benchmark_of = plan.options.max_tokens, {c.cell.id: c.benchmark.name for c in plan.cells}
    left = {
        (benchmark_of[cell], problem): context - tokens  # the settings of a problem share its prompt
        for (cell, problem, _), tokens in prompts.items()
        if tokens < context < tokens + asked
    }
    if not left:
        return None
    least, most = min(left.values()), max(left.values())
    names = sorted({name for name, _ in left})
    return ContextLimit(context=context, asked=asked, problems=len(left), least=least, most=most, benchmarks=names)


def context_note(limit: ContextLimit) -> str:
    """What a reader must know of it."""
    least = f"{limit.least:,} to " if limit.least < limit.most else ""
    return (
        f"the model has {limit.context:,} positions; responses to {limit.problems} problems could have at most "
        f"{least}{limit.most:,} of the {limit.asked:,} tokens"
    )


def refused_notes(options: Collection[str]) -> list[str]:
    """The alarm of an endpoint that does not take what a setting switches off; none where it takes all of it."""
    refused = ", ".join(x for x in options if x in NEUTRAL)
    return [f"ALARM: the endpoint does not take {refused}: its own defaults may change the samples"] if refused else []


def check_refused(plan: EvaluationPlan, options: Collection[str]) -> None:
    """Raises BadInput where a setting needs an option of a request that the endpoint does not take."""
    for x in {*options} & {"top_k", "min_p"}:
        if needed := sorted({c.cell.setting for c in plan.cells if getattr(c.decoding, x) != NEUTRAL[x]}):
            raise BadInput(f"the endpoint does not take {x}", found=", ".join(needed), next_step="other --settings")


def load_samples(plan: EvaluationPlan, *, fixed: bool = False) -> dict[Key, Sample]:
    """The samples on record; lines that are no record are taken out of the file and reported.

    Args:
        fixed: the samples cannot be made again, so that only a half-written last line is taken out.

    Raises:
        BadInput: for a sample that is there twice, belongs to another run or, where they are fixed, is damaged.
    """
    path = plan.out / "samples.jsonl"
    store.repair(path, None if fixed else Sample)
    wanted, samples = set(plan.keys()), {}
    for s in store.read(path, Sample) if path.exists() else ():
        key = key_of(s)
        if key in samples or key not in wanted:
            raise BadInput(
                f"{path}: {'duplicate sample' if key in samples else 'a sample of another run'}",
                found=f"{s.cell} {s.problem_id} sample {s.sample_index}",
                next_step="give another --out",
            )
        samples[key] = s
    return samples


def drop_errors(plan: EvaluationPlan, samples: dict[Key, Sample]) -> int:
    """Take the samples on which an engine failed off the record, so that they are made again; how many there were.

    They are kept in samples.failed.jsonl.
    """
    failed = [key for key, s in samples.items() if s.finish_reason == "error"]
    if failed:
        store.append(plan.out / "samples.failed.jsonl", [samples.pop(key) for key in failed])
        rewrite(plan, samples.values())
        # a run that is stopped from here on is not done, whatever its record said
        for name in ("summary.json", "summary.md"):
            (plan.out / name).unlink(missing_ok=True)
    return len(failed)


def rewrite(plan: EvaluationPlan, samples: Iterable[Sample]) -> None:
    """Make these the samples on record, in one step."""
    store.write_atomic(plan.out / "samples.jsonl", "".join(store.to_line(s) + "\n" for s in samples))


def sample_of(f: Finished, engine: Engine) -> Sample:
    """The record of a finished request."""
    r = f.request
    return Sample(
        cell=r.cell,
        problem_id=r.problem_id,
        sample_index=r.sample_index,
        seed=r.seed,
        response=f.text,
        finish_reason=f.finish_reason,
        prompt_tokens=f.prompt_tokens,
        response_tokens=f.response_tokens,
        logprob_sum=f.logprob_sum,
        engine=engine.name,
        error=f.error,
    )
