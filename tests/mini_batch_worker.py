"""The process of test_worker.py: python mini_batch_worker.py RANKS prints a JSON object, case -> what was found.

Trains the mini-batch of `stapo-train check` in many ways, and compares each gradient, element by element, with
`selection.by_hand`. No optimizer step is made, so that all cases start from the same weights. Each rank is a fork of
the process, as those of `stapo-train check` are.
"""

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

S2T = {"name": "silence_spurious"}
WATCHED = (7, 11, 40)
CLIP = (0.2, 0.28)
HALF = {"micro_batch_size_per_gpu": 4, "use_dynamic_bsz": False}
ONE = {"micro_batch_size_per_gpu": 1, "use_dynamic_bsz": False}
DYNAMIC = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 48}


def log_problems(found: dict, counted: dict, h, keep: np.ndarray, policy: str, mode: str, q: float) -> list[str]:
    """What a token log says otherwise than the calculation by hand; test_token_log.py has contexts and bins."""
    from stapo_training.methods import SelectorConfig

    t = h.tokens
    current, old, a = t.logprob_N.detach().numpy(), t.old_N.numpy(), h.advantage_N.numpy()
    logp, entropy = (current, t.entropy_N) if policy == "current" else (old, h.old_entropy_N)
    s2t_keep, rare = h.masks(SelectorConfig(**S2T, q=q, policy=policy), np.ones(len(a), bool))
    sequence, token = t.sequence_N.numpy(), t.chosen_N.numpy()
    collision, top = np.square(np.exp(t.every_NV.double().numpy())).sum(1), t.every_NV.topk(5)
    at = np.flatnonzero(np.ones(len(a)) if mode == "full" else rare | ((a > 0) & np.isin(token, WATCHED)))
    ratio, tau_h = np.exp(current - old), np.quantile(entropy[rare], q)
    mismatch = np.where(a > 0, np.abs(old - t.rollout_N.numpy()), -1)
    mismatched = mismatch >= np.sort(mismatch)[-int((~s2t_keep).sum())]
    clipped = ((a > 0) & (ratio > 1 + CLIP[1])) | ((a < 0) & (ratio < 1 - CLIP[0]))
    expected = {
        "sample": sequence, "prompt_id": np.array([f"p{n:02d}" for n in sequence]), "token": token, "advantage": a,
        "position": np.concatenate([np.arange(n) for n in np.bincount(sequence)]), "logprob": logp, "entropy": entropy,
        "ratio": ratio, "clipped": clipped, "collision": collision, "rare": rare, "silenced": ~keep,
        "mismatched": mismatched, "old_logprob": old, "sampler_logprob": t.rollout_N.numpy(),
        "top_tokens": top.indices.numpy(), "top_logprobs": top.values.numpy(), "tau_h": np.full(len(a), tau_h),
    }  # fmt: skip
    wrong = []
    for name, values in expected.items():
        got, want = np.array(list(found[name])), values[at]
        if len(got) != len(want):
            return [f"{name}: {len(got)} rows, {len(want)} by hand"]
        same = np.allclose(got, want, rtol=2e-5, atol=2e-6) if want.dtype.kind == "f" else np.array_equal(got, want)
        wrong += [] if same else [f"{name}: {got[:4]} and not {want[:4]}"]
    factor = 1 - 2 * np.exp(current.astype(float)) + collision
    norm = np.where(clipped, 0, np.abs(ratio * a)) * np.sqrt(np.maximum(factor, 0))
    flags = {"rare": rare, "below": entropy < tau_h, "silenced": ~keep, "mismatched": mismatched, "sign": a > 0}
    for name, here in flags.items():
        there = counted[name] > 0
        tokens, norms = counted["tokens"][there].sum(), counted["norm_sum"][there].sum()
        if tokens != here.sum() or not np.isclose(norms, norm[here].sum(), rtol=1e-4, atol=1e-3):
            wrong.append(f"{name}: {tokens} counted, {here.sum()} by hand; {norms}, {norm[here].sum()}")
    return wrong if counted["tokens"].sum() == len(a) else [*wrong, f"{counted['tokens'].sum()} tokens counted"]


class Hand:
    """The mini-batch under a plain transformers model at one temperature."""

    def __init__(self, folder: Path, config, temperature: float):
        from stapo_training import by_hand
        from stapo_training.methods import Definition
        from stapo_training.verl_ext import exactness

        self.model, rows, self.tokens = exactness.rows_and_statistics(folder, 0, temperature)
        self.rows = exactness.with_advantages(config, rows, self.tokens)
        self.definition = Definition(tau_p=0.0025, q=0.6, share=0.2)
        self.advantage_N = by_hand.advantages(self.definition, self.tokens)
        self.old_entropy_N = torch.cat([r["entropy"] for r in rows]).double().numpy()

    def masks(self, selector, response_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(kept, candidates) among the response tokens."""
        from stapo_training import by_hand

        tokens = self.tokens
        if selector.policy == "old":
            tokens = replace(tokens, logprob_N=tokens.old_N, entropy_N=self.old_entropy_N)
        d = self.definition.model_copy(update={"selector": selector.name, "q": selector.q})
        d = d.model_copy(update={"scope": selector.scope, "among": selector.among})
        both = np.zeros((2, len(response_N)), bool)
        both[:, response_N] = by_hand.kept(d, tokens.take(response_N), self.advantage_N[response_N])
        return both[0], both[1]

    def gradient(self, keep_N: np.ndarray, **definition) -> tuple[float, np.ndarray]:
        """(loss, gradient) over the kept tokens."""
        from stapo_training import by_hand

        d = self.definition.model_copy(update=definition)
        (((loss, _),),) = by_hand.losses(d, self.tokens, self.advantage_N, torch.from_numpy(keep_N))
        gradients = torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)
        return loss.item(), torch.cat([g.flatten() for g in gradients]).numpy()


def cases(folder: Path) -> dict[str, dict]:
    import torch.distributed as dist

    from stapo_training.methods import SELECTORS, SelectorConfig
    from stapo_training.start.configuration import compose
    from stapo_training.token_log import rows as token_rows
    from stapo_training.token_log.writer import TokenLogConfig
    from stapo_training.verl_ext import exactness, in_process
    from stapo_training.verl_ext.worker import OLD_IS_CURRENT

    base = ["size=mini", "hardware=cpu", f"run.base={folder}", "run.out=unused"]
    config = compose(base)
    worker = in_process.build(config)
    ranks = dist.get_world_size()
    hands = {t: Hand(folder, config, t) for t in (1.0, 0.7)}
    rows, done = hands[1.0].rows, {}

    def case(name: str, selector: dict, rows=None, w=worker, log: str = "off", settings=HALF, **definition) -> None:
        temperature = definition.pop("temperature", 1.0)
        hand = hands[temperature]
        rows = hand.rows if rows is None else rows
        chosen = SelectorConfig(**{"tau_p": 0.0025, "q": 0.6, "share": 0.2} | selector)
        on = TokenLogConfig.model_validate({"mode": log, "folder": "unused", "watch": WATCHED})
        w.engine.selector, w.engine.token_log, w.engine.clip = chosen, None if log == "off" else on, (*CLIP, 1e9)
        found = exactness.step(w, rows, temperature=temperature, **settings)
        in_order = sorted(rows, key=lambda r: int(r["number"]))
        response_N = torch.cat([r["response_mask"] for r in in_order]).bool().numpy()
        judged = chosen.model_copy(update={"policy": "old"}) if settings.get(OLD_IS_CURRENT) else chosen
        keep, candidates = hand.masks(judged, response_N)
        loss, gradient = hand.gradient(keep, **definition)
        line = {k.removeprefix("selector/"): float(v[0]) for k, v in found["metrics"].items() if "selector/" in k}
        pg_loss = found["metrics"]["actor/pg_loss"]
        line["pg_loss"] = float(pg_loss[0] if isinstance(pg_loss, list) else pg_loss)
        line["loss"] = float(found["metrics"]["loss"][0])
        if log != "off":
            parts = [[]] * ranks
            dist.all_gather_object(parts, w.engine.now.logged)
            logged, _ = token_rows.joined_rows([p.rows for of_rank in parts for p in of_rank], 10**6)
            counted = token_rows.joined_counts([p.counts for of_rank in parts for p in of_rank])
            line["log"] = log_problems(logged, counted, hand, keep, chosen.policy, log, chosen.q)
        line["relative"] = float(np.linalg.norm(found["gradient"][0] - gradient) / np.linalg.norm(gradient))
        line["hand"] = {"loss": loss, "kept": int(keep.sum()), "candidates": int(candidates.sum())}
        line["hand"]["tokens"] = int(response_N.sum())
        done[name] = line

    packed = DYNAMIC | {"use_remove_padding": True}
    for split, settings in (("micro 1", ONE), ("dynamic", DYNAMIC), ("packed", packed)):
        case(f"S2T, {split}", S2T, settings=settings)
    case("S2T at 0.7", S2T, temperature=0.7)
    for name in SELECTORS:
        case(name, {"name": name})
        case(f"{name}, reversed", {"name": name}, rows=rows[::-1])
        case(f"{name}, old", {"name": name, "policy": "old"})
    # a step's first mini-batch: the trainer says that the old pass's statistics are the current policy's
    case("S2T, from the old pass", S2T, settings=HALF | {OLD_IS_CURRENT: True})
    case("S2T, response", S2T | {"scope": "response"}, settings=DYNAMIC)
    for name in ("silence_spurious", "silence_high_entropy"):
        case(f"{name}, right", {"name": name, "among": "right"})
    without = [{k: v for k, v in s.items() if k != "entropy"} for s in rows]
    case("S2T, no old statistics", S2T, rows=without)
    case("S2T, q = 1", S2T | {"q": 1.0}, settings=ONE)
    case("high entropy, q = 1", {"name": "silence_high_entropy", "q": 1.0}, settings=ONE)
    # rows that veRL fills up with, and responses that it rejects, have an empty response_mask; loss_mask may not know
    rejected = [
        r | {"response_mask": r["response_mask"] * int(i % 5 != 2), "loss_mask": r["response_mask"]}
        for i, r in enumerate(rows)
    ]
    for selector in (S2T, {"name": "keep_all"}):
        case(f"{selector}, rejected rows", selector, rows=rejected)
    for name in SELECTORS:
        case(f"log, {name}", {"name": name}, log="on")
    case("log, S2T old", S2T | {"policy": "old"}, log="on")
    case("log, S2T micro 1", S2T, log="on", settings=ONE)
    case("log, S2T packed at 0.7", S2T, log="on", temperature=0.7, settings=packed)
    case("log, S2T full, reversed", S2T, log="full", rows=rows[::-1])

    actor, checkpointing = "actor_rollout_ref.actor", "actor_rollout_ref.model.enable_gradient_checkpointing=true"
    kl = ["use_kl_loss=true", "kl_loss_type=low_var_kl", "kl_loss_coef=0.3"]
    other = in_process.build(compose([*base, *(f"{actor}.{k}" for k in kl), checkpointing]))
    case("S2T, KL and checkpointing", S2T, w=other, kl=0.3)
    attention = "actor_rollout_ref.model.override_config.attn_implementation=stapo_varlen"
    varlen = in_process.build(compose([*base, attention, checkpointing]))
    for selector in ({"name": "keep_all"}, S2T):
        case(f"varlen, {selector}", selector, w=varlen, settings=packed)
    case("varlen, padded", S2T, w=varlen)
    cispo = in_process.build(compose([*base, f"{actor}.policy_loss.loss_mode=cispo"]))
    case("S2T, cispo", S2T, w=cispo, loss="cispo")
    done["old policy, dynamic"] = old_pass(worker, hands[1.0], dist.get_rank(), ranks)
    dist.barrier()
    return done


def old_pass(worker, hand: Hand, rank: int, ranks: int) -> dict:
    """The old policy's pass over dynamic micro-batches, which permute the rows: both come back in the rows' order."""
    from verl.workers.engine.utils import prepare_micro_batches

    from stapo_training.verl_ext import in_process

    numbers = range(rank * len(hand.rows) // ranks, (rank + 1) * len(hand.rows) // ranks)
    mine = [hand.rows[i] for i in numbers]
    data = in_process.batch(mine, use_remove_padding=False, global_batch_size=len(hand.rows), **DYNAMIC)
    order = [i for part in prepare_micro_batches(data.copy(), worker.engine.get_data_parallel_group())[1] for i in part]
    logprob, entropy = (x.values().double().cpu().numpy() for x in in_process.old_policy(worker, data))
    at = np.isin(hand.tokens.sequence_N.numpy(), numbers)
    own = hand.tokens.take(at)
    rows = np.split(own.entropy_N, np.cumsum([len(r["responses"]) for r in mine])[:-1])
    permuted = np.concatenate([rows[i] for i in order])
    far = {
        "logprob": np.abs(logprob - own.logprob_N.detach().double().numpy()),
        "entropy": np.abs(entropy - own.entropy_N),
        "permuted": np.abs(entropy - permuted),
    }
    return {"order": order} | {k: float(v.max()) for k, v in far.items()}


if __name__ == "__main__":
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    from stapo_training.verl_ext import exactness

    with tempfile.TemporaryDirectory() as folder:
        exactness.forked(1, exactness.make_model, Path(folder))
        print(json.dumps(exactness.forked(int(sys.argv[1]), cases, Path(folder))))
