"""One rank of the worker test: run by test_worker.py as a process (RANK, WORLD_SIZE, MASTER_*), prints JSON lines.

Builds veRL's training worker with our engine, without Ray, feeds it one mini-batch of sixteen sequences in many ways,
and compares each gradient, element by element, with the same mini-batch worked out here: a plain transformers model,
numpy's quantile, the objective written out. No optimizer step is made, so that all cases start from the same weights.
"""

import json
import os
import sys

import numpy as np
import torch

TAU_P, Q, SHARE, SEED, CLIP = 0.0025, 0.6, 0.2, 5, (0.2, 0.28)
SELECTORS = (
    "silence_spurious",
    "silence_low_probability",
    "silence_high_entropy",
    "silence_random",
    "top_entropy",
    "keep_all",
)
MICRO = "micro_batch_size_per_gpu"
WATCHED = (7, 11, 40)
SPLITS = {
    "micro 1": {"micro_batch_size_per_gpu": 1, "use_dynamic_bsz": False},
    "micro 4": {"micro_batch_size_per_gpu": 4, "use_dynamic_bsz": False},
    "dynamic": {"use_dynamic_bsz": True, "max_token_len_per_gpu": 48},
}


def sequences() -> list[dict[str, torch.Tensor]]:
    """Sixteen sequences of different lengths, half of them with a positive advantage; the old policy's statistics are
    off by enough that its threshold puts tokens on the wrong side."""
    g, noise = torch.Generator().manual_seed(7), torch.Generator().manual_seed(8)
    made = []
    for i in range(16):
        prompt, response = 4 + i % 3, 5 + (3 * i) % 7
        ids = torch.randint(5, 60, (prompt + response,), generator=g)
        made.append(
            {
                "number": torch.tensor([i]),
                "prompts": ids[:prompt],
                "responses": ids[prompt:],
                "input_ids": ids,
                "position_ids": torch.arange(prompt + response),
                "response_mask": torch.ones(response, dtype=torch.long),
                "advantages": torch.full((response,), [1.62, -0.54, 0.35, -1.21][i % 4]),
                "old_log_probs": -6.1 + 0.25 * torch.randn(response, generator=g),
                "rollout_log_probs": -6.1 + 0.25 * torch.randn(response, generator=noise),
                "ref_log_prob": -6.0 + 0.25 * torch.randn(response, generator=g),
                "entropy": 5.82 + 0.03 * torch.randn(response, generator=g),
            }
        )
    return made


class ByHand:
    """The mini-batch under a plain transformers model at one temperature."""

    def __init__(self, model_path: str, batch: list[dict[str, torch.Tensor]], temperature: float):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model_path).float()
        logps, entropies, collisions, tops = [], [], [], []
        for s in batch:
            start = len(s["prompts"]) - 1
            logits = self.model(s["input_ids"][None]).logits[0, start:-1] / temperature
            logp = torch.log_softmax(logits, -1)
            logps.append(logp[torch.arange(len(s["responses"])), s["responses"]])
            entropies.append(-(logp.exp() * logp).sum(-1).detach().double().numpy())
            collisions.append(logp.detach().double().exp().square().sum(-1).numpy())
            tops.append(logp.detach().topk(5))
        self.logp, self.entropy = torch.cat(logps), np.concatenate(entropies)
        self.collision = np.concatenate(collisions)
        self.top_id = torch.cat([t.indices for t in tops]).numpy()
        self.top_logp = torch.cat([t.values for t in tops]).numpy()
        self.number = np.concatenate([np.full(len(s["responses"]), int(s["number"])) for s in batch])
        self.position = np.concatenate([np.arange(len(s["responses"])) for s in batch])
        self.token = torch.cat([s["responses"] for s in batch]).numpy()
        self.context = [
            (s["input_ids"][: len(s["prompts"]) + i].tolist(), s["responses"][i + 1 :].tolist())
            for s in batch
            for i in range(len(s["responses"]))
        ]
        self.advantage = torch.cat([s["advantages"] for s in batch])
        self.old = torch.cat([s["old_log_probs"] for s in batch])
        self.sampler = torch.cat([s["rollout_log_probs"] for s in batch]).numpy()
        self.reference = torch.cat([s["ref_log_prob"] for s in batch])
        self.old_entropy = torch.cat([s["entropy"] for s in batch]).double().numpy()
        self.key = np.concatenate([_keys(s) for s in batch])

    def mask(self, name: str, policy: str, response: np.ndarray, q: float) -> tuple[np.ndarray, np.ndarray]:
        """(kept, candidates) among the response tokens, in numpy."""
        logp = (self.logp.detach() if policy == "current" else self.old).double().numpy()
        h = self.entropy if policy == "current" else self.old_entropy
        c = response & (self.advantage.numpy() > 0) & (np.exp(logp) < TAU_P)
        if name == "keep_all":
            return response, np.zeros(len(h), bool)
        if name == "top_entropy":
            ranked = np.sort(h[response])[::-1]
            return response & (h >= ranked[int(np.ceil(SHARE * len(ranked))) - 1]), response
        if not c.any():
            return response, c
        silenced = {
            "silence_spurious": lambda: h < (np.inf if q == 1 else np.quantile(h[c], q)),
            "silence_low_probability": lambda: c,
            "silence_high_entropy": lambda: h > np.quantile(h[c], 1 - q),
            "silence_random": lambda: self.key < np.sort(self.key[c])[int(q * c.sum())],
        }[name]()
        return response & ~(c & silenced), c

    def gradient(
        self, keep: np.ndarray, loss_mode: str, kl: float, advantage: torch.Tensor | None = None
    ) -> tuple[float, torch.Tensor]:
        keep_N = torch.from_numpy(keep)
        advantage = self.advantage if advantage is None else advantage
        ratio = (self.logp - self.old).exp()
        clipped = ratio.clamp(1 - CLIP[0], 1 + CLIP[1])
        surrogate = torch.minimum(ratio * advantage, clipped * advantage)
        if loss_mode == "cispo":
            surrogate = clipped.detach() * advantage * self.logp
        d = self.reference - self.logp
        loss = ((kl * (d.exp() - d - 1) - surrogate) * keep_N).sum() / keep_N.sum()
        parameters = list(self.model.parameters())
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        return loss.item(), torch.cat([g.flatten() for g in gradients])

    def log_problems(self, found: dict, counted: dict, policy: str, keep: np.ndarray, q: float, mode: str) -> list[str]:
        """What a token log says otherwise than the calculation by hand."""
        current, old = self.logp.detach().numpy(), self.old.numpy()
        logp, h = (current, self.entropy) if policy == "current" else (old, self.old_entropy)
        a = self.advantage.numpy()
        rare = (a > 0) & (np.exp(logp.astype(float)) < TAU_P)
        at = np.flatnonzero(np.ones(len(a)) if mode == "full" else rare | ((a > 0) & np.isin(self.token, WATCHED)))
        at = at[np.lexsort((self.position[at], self.number[at]))]
        ratio = np.exp(current - old)
        below = h < np.quantile(h[rare], q)
        mismatch = np.where(a > 0, np.abs(old - self.sampler), -1)
        mismatched = mismatch >= np.sort(mismatch)[-int((rare & below).sum())]
        clipped = ((a > 0) & (ratio > 1 + CLIP[1])) | ((a < 0) & (ratio < 1 - CLIP[0]))
        expected = {
            "sample": self.number, "prompt_id": np.array([f"p{n:02d}" for n in self.number]), "position": self.position,
            "token": self.token, "advantage": a, "logprob": logp, "entropy": h, "ratio": ratio, "clipped": clipped,
            "collision": self.collision, "rare": rare, "silenced": ~keep, "mismatched": mismatched,
            "old_logprob": old, "sampler_logprob": self.sampler, "top_tokens": self.top_id,
            "top_logprobs": self.top_logp, "tau_h": np.full(len(a), np.quantile(h[rare], q)),
        }  # fmt: skip
        wrong = []
        for name, values in expected.items():
            if len(found[name]) != len(at):
                return [f"{name}: {len(found[name])} rows, {len(at)} by hand"]
            got, want = np.array(list(found[name])), values[at]
            same = np.allclose(got, want, rtol=2e-5, atol=2e-6) if want.dtype.kind == "f" else np.array_equal(got, want)
            wrong += [] if same else [f"{name}: {got[:4]} and not {want[:4]}"]
        for name, part in (("before", 0), ("after", 1)):
            got = [list(x) for x in found[name]]
            wrong += (
                []
                if got == [self.context[i][part][-24:] if part == 0 else self.context[i][part][:8] for i in at]
                else [name]
            )
        factor = 1 - 2 * np.exp(current.astype(float)) + self.collision
        norm = np.where(clipped, 0, np.abs(ratio * a)) * np.sqrt(factor)
        for sign in (-1, 1):
            for flags in np.ndindex(2, 2, 2, 2):
                here, there = np.sign(a) == sign, counted["sign"] == sign
                of_hand = {"rare": rare, "below": below, "silenced": ~keep, "mismatched": mismatched}
                for (name, values), value in zip(of_hand.items(), flags, strict=True):
                    here = here & (values == bool(value))
                    there = there & (counted[name] == bool(value))
                if counted["tokens"][there].sum() != here.sum():
                    wrong.append(f"{sign} {flags}: {counted['tokens'][there].sum()} counted, {here.sum()} by hand")
                if not np.isclose(counted["norm_sum"][there].sum(), norm[here].sum(), rtol=1e-4):
                    wrong.append(
                        f"{sign} {flags}: norms {counted['norm_sum'][there].sum()}, {norm[here].sum()} by hand"
                    )
        return wrong


def _keys(s: dict[str, torch.Tensor]) -> np.ndarray:
    """token_keys with Python's integers."""
    wrap = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & wrap
        x = (x ^ x >> 27) * 0x94D049BB133111EB & wrap
        return x ^ x >> 31

    content = sum(mix(mix(int(t) + 1) + i & wrap) for i, t in enumerate(s["input_ids"])) & wrap
    start = mix(content + mix(SEED + 1) & wrap)
    return np.array([(mix(start + i & wrap) >> 11) / 2**53 for i in range(len(s["responses"]))])


def step(w, batch: list[dict[str, torch.Tensor]], rank: int, ranks: int, **settings) -> dict:
    """One mini-batch; the gradient that the optimizer would have been given, instead of its step."""
    from verl.utils import tensordict_utils as tu

    from stapo_training.verl_ext import in_process

    mine = batch[rank * len(batch) // ranks : (rank + 1) * len(batch) // ranks]
    sizes = {"global_batch_size": len(batch), "mini_batch_size": len(batch), "use_remove_padding": False}
    data = in_process.batch(mine, **sizes | settings)
    names = [int(s["number"]) for s in mine]
    tu.assign_non_tensor_stack(data, "session_id", names)
    tu.assign_non_tensor_stack(data, "extra_info", [{"problem_id": f"p{n:02d}"} for n in names])
    gradient = []

    def instead_of_a_step() -> float:
        parameters = list(w.engine.module.parameters())
        gradient.append(torch.cat([p.grad.full_tensor().flatten() for p in parameters]))
        return 0.0

    w.engine.optimizer_step = instead_of_a_step
    metrics = in_process.metrics(w.train_mini_batch(data))
    found = {k.removeprefix("selector/"): float(v[0]) for k, v in metrics.items() if k.startswith("selector/")}
    pg_loss = metrics["actor/pg_loss"]
    return found | {
        "loss": float(metrics["loss"][0]),
        "pg_loss": float(pg_loss[0] if isinstance(pg_loss, list) else pg_loss),
        "gradient": gradient[0],
        "gradients": gradient,
    }


def main() -> None:
    model_path = sys.argv[1]
    torch.set_num_threads(1)
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    import torch.distributed as dist
    from verl.workers.engine.utils import prepare_micro_batches

    import stapo_training.verl_ext.platform  # noqa: F401
    from stapo_training.methods import AdvantageConfig, SelectorConfig
    from stapo_training.run.configuration import compose
    from stapo_training.token_log import rows as token_rows
    from stapo_training.token_log.writer import TokenLogConfig
    from stapo_training.verl_ext import in_process

    batch = sequences()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    base = [f"run.base={os.path.dirname(model_path)}", "run.out=unused"]
    w = in_process.build(compose(base))
    hands = {t: ByHand(model_path, batch, t) for t in (1.0, 0.7)}

    def case(
        name: str, selector: dict, batch: list = batch, w=w, kl=0.0, loss_mode="vanilla", log="off", **settings
    ) -> None:
        chosen = SelectorConfig(**{"tau_p": TAU_P, "q": Q, "share": SHARE, "seed": SEED} | selector)
        w.engine.selector, engine = chosen, w.engine.engine_config
        engine.infer_micro_batch_size_per_gpu, engine.infer_max_token_len_per_gpu = 4, 48
        on = TokenLogConfig.model_validate({"mode": log, "folder": "unused", "watch": WATCHED})
        engine_log, w.engine.token_log, w.engine.clip = w.engine.token_log, None if log == "off" else on, (*CLIP, 1e9)
        found = step(w, batch, rank, ranks, **settings)
        w.engine.token_log = engine_log
        hand = hands[settings.get("temperature", 1.0)]
        in_order = sorted(batch, key=lambda s: int(s["number"]))
        response = torch.cat([s["response_mask"] for s in in_order]).bool().numpy()
        parts = [np.ones(len(response), bool)]
        if chosen.scope == "micro_batch":
            bounds = np.cumsum([0, *(len(s["responses"]) for s in in_order)])
            steps = range(0, len(batch), settings[MICRO])
            at = np.arange(len(response))
            parts = [(at >= bounds[i]) & (at < bounds[i + settings[MICRO]]) for i in steps]
        if chosen.scope == "response":
            parts = [hand.number == i for i in range(len(batch))]
        masks = [hand.mask(chosen.name, chosen.policy, response & part, chosen.q) for part in parts]
        keep, candidates = (np.any(m, axis=0) for m in zip(*masks, strict=True))
        loss, gradient = hand.gradient(keep, loss_mode, kl)
        difference = found.pop("gradient") - gradient
        del found["gradients"]
        if log != "off":
            parts = [[]] * ranks
            dist.all_gather_object(parts, w.engine.logged)
            rows, _ = token_rows.joined_rows([p.rows for of_rank in parts for p in of_rank], 10**6)
            counted = token_rows.joined_counts([p.counts for of_rank in parts for p in of_rank])
            found["log"] = hand.log_problems(rows, counted, chosen.policy, keep, chosen.q, log)
        if rank == 0:
            tokens = int(response.sum())
            expected = {"loss": loss, "kept": int(keep.sum()), "candidates": int(candidates.sum()), "tokens": tokens}
            relative = float(difference.norm() / gradient.norm())
            print(json.dumps({"case": name, "relative": relative, "hand": expected, **found}), flush=True)

    def isolated(name: str, advantage: AdvantageConfig, by_hand: list[torch.Tensor], **settings) -> None:
        """One case an update: advantages reweighted, or split into two updates."""
        w.engine.selector, w.advantage = SelectorConfig.model_validate({"name": "keep_all"}), advantage
        found, keep = step(w, batch, rank, ranks, **settings), np.ones(len(hands[1.0].advantage), bool)
        w.advantage = AdvantageConfig()
        hand = [hands[1.0].gradient(keep, "vanilla", 0.0, a)[1] for a in by_hand]
        relative = [float((f - h).norm() / h.norm()) for f, h in zip(found["gradients"], hand, strict=True)]
        if rank == 0:
            print(json.dumps({"case": name, "relatives": relative}), flush=True)

    a, p = hands[1.0].advantage, hands[1.0].old.exp()
    for split, settings in SPLITS.items():
        isolated(f"AR, {split}", AdvantageConfig(reweight=0.3), [a * (0.3 * p + 0.7)], **settings)
        rare = p < 0.0022
        assert 0.2 < float(rare.float().mean()) < 0.8
        isolated(f"Lopti, {split}", AdvantageConfig(isolate=0.0022), [a * rare, a * ~rare], **settings)
    for name in SELECTORS:
        for form in ("two_pass", "speculative"):
            for split, settings in SPLITS.items():
                case(f"{name}, {form}, {split}", {"name": name, "form": form}, **settings)
        case(f"{name}, reversed", {"name": name}, batch=batch[::-1], **SPLITS["micro 4"])
        case(f"{name}, old", {"name": name, "policy": "old"}, **SPLITS["micro 4"])
    # the old policy's pass over dynamic micro-batches, which permute the rows: both come back in the rows' own order
    mine = batch[rank * len(batch) // ranks : (rank + 1) * len(batch) // ranks]
    data = in_process.batch(mine, use_remove_padding=False, global_batch_size=len(batch), **SPLITS["dynamic"])
    order = [i for part in prepare_micro_batches(data.copy(), w.engine.get_data_parallel_group())[1] for i in part]
    own = ByHand(model_path, mine, 1.0)
    logprob, entropy = (x.values().double().cpu().numpy() for x in in_process.old_policy(w, data))
    lengths = [len(s["responses"]) for s in mine]
    rows = np.split(own.entropy, np.cumsum(lengths)[:-1])
    permuted = np.concatenate([rows[i] for i in order])
    if rank == 0:
        far = {"logprob": own.logp.detach().double().numpy(), "entropy": own.entropy, "permuted": permuted}
        found = {"logprob": logprob, "entropy": entropy, "permuted": entropy}
        far = {name: float(np.abs(found[name] - values).max()) for name, values in far.items()}
        print(json.dumps({"case": "old policy, dynamic", "order": order, **far}), flush=True)
    plain = {"name": "silence_spurious"}
    case("S2T, packed", plain, use_remove_padding=True, **SPLITS["dynamic"])
    case("S2T, packed two_pass", plain | {"form": "two_pass"}, use_remove_padding=True, **SPLITS["micro 4"])
    for form in ("two_pass", "speculative"):
        case(f"S2T, {form} at 0.7", plain | {"form": form}, temperature=0.7, **SPLITS["micro 4"])
    case("S2T, response", plain | {"scope": "response"}, **SPLITS["dynamic"])
    without = [{k: v for k, v in s.items() if k != "entropy"} for s in batch]
    case("S2T, no old statistics", plain, batch=without, **SPLITS["micro 4"])
    for name in ("top_entropy", "silence_spurious"):
        case(f"{name}, micro_batch", {"name": name, "scope": "micro_batch"}, **SPLITS["micro 4"])
    case("S2T, micro_batch, q = 1", plain | {"scope": "micro_batch", "q": 1.0}, **SPLITS["micro 1"])
    # rows that veRL fills up with, and responses that it rejects, have an empty response_mask; loss_mask may not know
    rejected = [
        s | {"response_mask": s["response_mask"] * int(i % 5 != 2), "loss_mask": s["response_mask"]}
        for i, s in enumerate(batch)
    ]
    for form in ("two_pass", "speculative"):
        case(f"S2T, {form}, rejected rows", plain | {"form": form}, batch=rejected, **SPLITS["micro 4"])
    case("keep_all, rejected rows", {"name": "keep_all"}, batch=rejected, **SPLITS["micro 4"])
    for name in SELECTORS:
        case(f"log, {name}", {"name": name}, log="on", **SPLITS["micro 4"])
    case("log, S2T old", plain | {"policy": "old"}, log="on", **SPLITS["micro 4"])
    case("log, S2T two_pass", plain | {"form": "two_pass"}, log="on", **SPLITS["micro 1"])
    case("log, S2T micro_batch", plain | {"scope": "micro_batch"}, log="on", **SPLITS["micro 4"])
    case("log, S2T packed at 0.7", plain, log="on", use_remove_padding=True, temperature=0.7, **SPLITS["dynamic"])
    case("log, S2T full, reversed", plain, log="full", batch=batch[::-1], **SPLITS["micro 4"])
    actor = "actor_rollout_ref.actor"
    kl = ["use_kl_loss=true", "kl_loss_type=low_var_kl", "kl_loss_coef=0.3"]
    checkpointing = "actor_rollout_ref.model.enable_gradient_checkpointing=true"
    other = in_process.build(compose([*base, *(f"{actor}.{k}" for k in kl), checkpointing]))
    case("S2T, KL and checkpointing", plain, w=other, kl=0.3, **SPLITS["micro 4"])
    attention = "actor_rollout_ref.model.override_config.attn_implementation=stapo_varlen"
    varlen = in_process.build(compose([*base, attention, checkpointing]))
    for name in ("keep_all", "silence_spurious"):
        for split, settings in SPLITS.items():
            case(f"varlen, {name}, {split}", {"name": name}, w=varlen, use_remove_padding=True, **settings)
    case("varlen, S2T two_pass", plain | {"form": "two_pass"}, w=varlen, use_remove_padding=True, **SPLITS["dynamic"])
    case("varlen, padded", plain, w=varlen, **SPLITS["micro 4"])
    cispo = in_process.build(compose([*base, f"{actor}.policy_loss.loss_mode=cispo"]))
    case("S2T, cispo", plain, w=cispo, loss_mode="cispo", **SPLITS["micro 4"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
