"""`stapo-train bench`: what each way of selecting costs, against JustRL's update in the same run.

One rollout step of a model large enough that arithmetic decides: each way of selecting makes the same four updates from
the same weights, JustRL's among them, one after the other in each repeat.

What a correction costs depends on how many candidates there are and how far the threshold moves between mini-batches.
The share of candidates is set by tau_p: moving tau_p is the same as shifting every log-probability by a constant. The
drift is that of the optimizer's steps, whose learning rate is one of the sizes; its effect is in the record.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stapo_results import benching
from stapo_results.schema import BenchRow
from stapo_results.seeds import derive_seed


@dataclass(frozen=True)
class Sizes:
    """Of the step. The defaults are a Qwen3 of 23 million parameters and 10 minutes on two cores."""

    hidden: int = 512
    layers: int = 6
    vocabulary: int = 8192
    prompts: int = 4
    responses: int = 8
    prompt_tokens: int = 32
    response_tokens: int = 320
    mini_batches: int = 4
    micro_batch: int = 4
    learning_rate: float = 1e-5
    shares: tuple[float, ...] = (1e-4, 1e-3, 5e-3)
    repeats: int = 5
    checkpointing: tuple[bool, ...] = (False, True)
    seed: int = 0


QUICK = Sizes(hidden=64, layers=2, vocabulary=512, response_tokens=24, checkpointing=(False,), repeats=1)
HEAD = (
    "way of selecting",
    "gradient checkpointing",
    "update / JustRL's (spread)",
    "step / JustRL's",
    "candidates",
    "run again",
    "guess off by, nats",
)


def bench(out: Path, repeats: int, *, quick: bool) -> None:
    """Measure, print the table, write run.json and bench.json to `out`. quick: small sizes, once."""
    sizes = QUICK if quick else replace(Sizes(), repeats=repeats)
    found = benching.record(out, "training", asdict(sizes), "justrl", lambda: _measure(sizes))
    cells = [
        [
            r.name,
            "yes" if r.labels["checkpointing"] == "true" else "no",
            benching.spread(r),
            f"{r.values['step_ratio']:.3f}",
            f"{r.values['candidate_share']:.2%}",
            f"{r.values['redone_share']:.2%}",
            f"{r.values['threshold_drift']:.1e}",
        ]
        for r in found.rows
    ]
    print(benching.text([list(HEAD), *cells]))


def _measure(sizes: Sizes) -> tuple[list[BenchRow], dict[str, str]]:
    """This process is the only rank of a CPU training, with OMP_NUM_THREADS threads (2 by default)."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    import stapo_training.verl_ext.platform  # noqa: F401  # veRL asks for its platform when it is first imported

    with tempfile.TemporaryDirectory() as folder:
        model = _model(sizes, Path(folder) / "model")
        labels = {
            "million_parameters": f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}",
            "threads": str(torch.get_num_threads()),
        }
        began = time.perf_counter()
        sequences = _sample(sizes, model)
        sampling_seconds = time.perf_counter() - began
        del model
        rows = [r for c in sizes.checkpointing for r in _rows(Step(sizes, folder, sequences, c), sampling_seconds)]
    return rows, labels


def _model(sizes: Sizes, folder: Path) -> Any:
    """A randomly initialised Qwen3 whose next-token distributions differ in entropy as a trained model's do."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from stapo_training.miniature.tokenizer import build_tokenizer

    torch.manual_seed(sizes.seed)
    config = Qwen3Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=3 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=sizes.hidden // 8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():  # logits of a few nats' spread; as initialised they are all but equal
        model.model.norm.weight.mul_(torch.linspace(1.0, 12.0, sizes.hidden))
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return model


def _sample(sizes: Sizes, model: Any) -> list[dict[str, Any]]:
    """The step's sequences with alternating advantages."""
    import torch

    from stapo_results.generation import generate

    g = torch.Generator().manual_seed(sizes.seed)
    prompts = torch.randint(10, sizes.vocabulary, (sizes.prompts, sizes.prompt_tokens), generator=g)
    rows = prompts.repeat_interleave(sizes.responses, 0)
    sampled = generate(
        model,
        rows.tolist(),
        [derive_seed("bench", sizes.seed, i) for i in range(len(rows))],
        max_new_tokens=sizes.response_tokens,
        temperature=1.0,
        top_p=1.0,
        stop_token_ids=(),
        pad_token_id=0,
    )
    found = []
    for i, (prompt, one) in enumerate(zip(rows, sampled, strict=True)):
        response = torch.tensor(one.token_ids)
        ids = torch.cat([prompt, response])
        found.append(
            {
                "prompts": prompt,
                "responses": response,
                "input_ids": ids,
                "position_ids": torch.arange(len(ids)),
                "response_mask": torch.ones_like(response),
                "advantages": torch.full((len(response),), 0.94 if i % 2 else -0.94),
            }
        )
    return found


class Step:
    """veRL's worker with the step's data: sampled sequences and the old policy's statistics."""

    def __init__(self, sizes: Sizes, folder: str, sequences: list[dict[str, Any]], checkpointing: bool):
        from stapo_training.run.configuration import compose
        from stapo_training.verl_ext import in_process

        config = compose(
            [
                f"run.base={folder}",
                "run.out=unused",
                "method=justrl",
                f"actor_rollout_ref.model.enable_gradient_checkpointing={str(checkpointing).lower()}",
                f"actor_rollout_ref.actor.optim.lr={sizes.learning_rate}",
                "actor_rollout_ref.actor.optim.lr_warmup_steps=-1",
            ]
        )
        self.sizes, self.checkpointing = sizes, checkpointing
        self.actor, self.in_process = config.actor_rollout_ref.actor, in_process
        self.worker = in_process.build(config)
        engine = self.worker.engine.engine_config
        engine.use_dynamic_bsz = False
        engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = sizes.micro_batch
        began = time.perf_counter()
        unscored = in_process.batch([s | {"old_log_probs": s["advantages"]} for s in sequences])
        old = in_process.old_policy(self.worker, unscored)
        self.old_seconds = time.perf_counter() - began
        pairs = zip(sequences, old[0].unbind(), old[1].unbind(), strict=True)
        self.sequences = [s | {"old_log_probs": p, "entropy": h} for s, p, h in pairs]
        self.weights = [p.detach().clone() for p in self.worker.engine.module.parameters()]

    def ways(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The name and the selector of everything that is timed; JustRL's first."""
        import torch

        logp = torch.cat([s["old_log_probs"] for s in self.sequences if s["advantages"][0] > 0]).sort().values
        tokens, shares = len(self.sequences) * self.sizes.response_tokens, self.sizes.shares
        tau_p = {share: float(logp[max(2, round(share * tokens))].exp()) for share in shares}
        s2t = {"name": "silence_spurious", "q": 0.75}
        fixed = s2t | {"tau_p": tau_p[shares[len(shares) // 2]]}
        yield "justrl", {"name": "keep_all"}
        yield "old", fixed | {"policy": "old"}
        yield "micro", fixed | {"scope": "micro_batch"}
        yield "two_pass", fixed | {"form": "two_pass"}
        for share in shares:
            yield f"speculative {share:.2%}", s2t | {"tau_p": tau_p[share]}

    def update(self, selector: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Seconds and metrics of the updates with a selector, without a token log, from the step's weights."""
        import torch

        from stapo_training.methods import SelectorConfig
        from stapo_training.token_log.writer import TokenLogConfig

        worker = self.worker
        with torch.no_grad():
            for p, w in zip(worker.engine.module.parameters(), self.weights, strict=True):
                p.copy_(w)
        worker.engine.optimizer.state.clear()
        worker.engine.selector = SelectorConfig(**selector)
        worker.log_tokens(TokenLogConfig.model_validate({"mode": "off", "folder": ""}), self.actor)
        size = len(self.sequences) // self.sizes.mini_batches
        settings = {"mini_batch_size": size, "global_batch_size": size, "use_remove_padding": False}
        data = self.in_process.batch(self.sequences, **settings)
        began = time.perf_counter()
        output = worker.train_mini_batch(data)
        return time.perf_counter() - began, self.in_process.metrics(output)


def _rows(step: Step, sampling_seconds: float) -> list[BenchRow]:
    """values: redone_share, of the tokens, were run again; threshold_drift, the largest distance of a guessed threshold
    from the true one in nats; ppo_kl, veRL's of the last mini-batch, without its sign."""
    ways = dict(step.ways())
    step.update(ways["justrl"])  # allocations and caches
    repeats = [{name: step.update(selector) for name, selector in ways.items()} for _ in range(step.sizes.repeats)]
    seconds = {name: [r[name][0] for r in repeats] for name in ways}
    rest, rows = sampling_seconds + step.old_seconds, []
    for name, own in seconds.items():
        logged = repeats[0][name][1]
        redone = [x for r in repeats for x in r[name][1].get("selector/redone_share", [])]
        kl, tokens = logged["actor/ppo_kl"], sum(logged.get("selector/tokens", []))
        values = {
            "step_ratio": (rest + min(own)) / (rest + min(seconds["justrl"])),
            "candidate_share": sum(logged.get("selector/candidate_tokens", [])) / tokens if tokens else 0.0,
            "threshold_drift": max(logged.get("selector/guess_error", [0.0])),
            "ppo_kl": abs(float(kl[-1] if isinstance(kl, list) else kl)),
            "redone_share": sum(redone) / len(redone) if redone else 0.0,
            "sampling_seconds": sampling_seconds,
            "old_log_prob_seconds": step.old_seconds,
        }
        labels = {"checkpointing": str(step.checkpointing).lower()}
        rows.append(benching.timed_row(name, own, seconds["justrl"], labels=labels, values=values))
    return rows
