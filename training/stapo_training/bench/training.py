"""What each way of selecting costs, against JustRL's update in the same run (`tox -e bench`, part training).

One rollout step of a model large enough that arithmetic decides (`step.Step`): each way of selecting makes the same
four updates from the same weights, JustRL's among them, one after the other in each repeat.

What a correction costs depends on how many candidates there are and how far the threshold moves between mini-batches.
The share of candidates is set by tau_p: moving tau_p is the same as shifting every log-probability by a constant. The
drift is that of the optimizer's steps, whose learning rate is one of the sizes; its effect is in the record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stapo_results import benching
from stapo_results.schema import Bench, BenchRow, Run
from stapo_training.bench.part import Measured, Part
from stapo_training.bench.step import Sizes, Step, Update, prepared

BASELINE = "justrl"
QUICK = Sizes(hidden=64, layers=2, vocabulary=512, response_tokens=24, checkpointing=(False,), repeats=1)


def ways(sizes: Sizes, tau_p: dict[float, float]) -> dict[str, dict[str, Any]]:
    """name -> the selector of everything that is timed. tau_p: by share of candidates."""
    s2t = {"name": "silence_spurious", "q": 0.75, "log_entropy": False}
    fixed = s2t | {"tau_p": tau_p[sizes.shares[len(sizes.shares) // 2]]}
    by_share = {f"speculative {share:.2%}": s2t | {"tau_p": tau_p[share]} for share in sizes.shares}
    return {
        BASELINE: {"name": "keep_all"},
        "old": fixed | {"policy": "old"},
        "micro": fixed | {"scope": "micro_batch"},
        "two_pass": fixed | {"form": "two_pass"},
        "speculative + current entropy": fixed | {"log_entropy": True},
        **by_share,
    }


def _row(name: str, own: list[Update], baseline: list[Update], step: Step) -> BenchRow:
    rest = step.sampling_seconds + step.old_seconds
    fastest, justrl = min(u.seconds for u in own), min(u.seconds for u in baseline)
    redone = [share for u in own for share in u.redone]
    return benching.timed_row(
        name,
        [u.seconds for u in own],
        [u.seconds for u in baseline],
        labels={"checkpointing": str(step.checkpointing).lower()},
        values={
            "step_ratio": (rest + fastest) / (rest + justrl),
            "candidate_share": own[0].candidates,
            "threshold_drift": own[0].drift,
            "ppo_kl": own[0].moved,
            "redone_share": sum(redone) / len(redone) if redone else 0.0,
            "sampling_seconds": step.sampling_seconds,
            "old_log_prob_seconds": step.old_seconds,
        },
    )


def _measure(sizes: Sizes) -> Measured:
    rows: list[BenchRow] = []
    with prepared(sizes) as (step_with, labels):
        for checkpointing in sizes.checkpointing:
            step = step_with(checkpointing)
            timed = ways(sizes, {s: step.tau_p(s) for s in sizes.shares})
            step.update(timed[BASELINE])  # allocations and caches
            updates: dict[str, list[Update]] = {name: [] for name in timed}
            for _ in range(sizes.repeats):
                for name, selector in timed.items():
                    updates[name].append(step.update(selector))
            rows += [_row(name, own, updates[BASELINE], step) for name, own in updates.items()]
    return rows, labels


def _about(bench: Bench, run: Run) -> str:
    c = run.config
    return (
        f"{c['prompts'] * c['responses']} sequences of {c['response_tokens']} tokens, {c['mini_batches']} "
        f"updates, {c['repeats']} repeats, a Qwen3 of {bench.labels['million_parameters']} million parameters, "
        f"{bench.labels['threads']} threads of {run.hardware['cpu']}; ratios of the fastest repeats, spread of those "
        f"within a repeat."
    )


PART = Part(
    name="training",
    baseline=BASELINE,
    columns={
        "way of selecting": lambda r: r.name,
        "gradient checkpointing": lambda r: "yes" if r.labels["checkpointing"] == "true" else "no",
        "update / JustRL's (spread)": benching.spread,
        "step / JustRL's": lambda r: f"{r.values['step_ratio']:.3f}",
        "candidates": lambda r: f"{r.values['candidate_share']:.2%}",
        "run again": lambda r: f"{r.values['redone_share']:.2%}",
        "guess off by, nats": lambda r: f"{r.values['threshold_drift']:.1e}",
    },
    sizes=lambda repeats, quick: QUICK if quick else replace(Sizes(), repeats=repeats),
    measure=_measure,
    about=_about,
)
