"""One rollout step on veRL's worker, whose updates can be made again and again from the same weights."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stapo_results.seeds import derive_seed
from stapo_training.token_log.writer import TokenLogConfig


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


@dataclass
class Update:
    """The four updates of a step, once.

    redone: of each mini-batch, the share of its tokens that were run again. candidates: share of all response tokens.
    drift: the largest distance of a guessed threshold from the true one, nats. moved: veRL's ppo_kl of the last
    mini-batch, mean of log pi_old - log pi, without its sign.
    """

    seconds: float
    moved: float
    redone: list[float] = field(default_factory=list)
    candidates: float = 0.0
    drift: float = 0.0


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


def _sample(sizes: Sizes, model: Any) -> tuple[list[dict[str, Any]], float]:
    """The step's sequences with alternating advantages, and the seconds that sampling them took."""
    import torch

    from stapo_results.generation import generate

    g = torch.Generator().manual_seed(sizes.seed)
    prompts = torch.randint(10, sizes.vocabulary, (sizes.prompts, sizes.prompt_tokens), generator=g)
    rows = prompts.repeat_interleave(sizes.responses, 0)
    began = time.perf_counter()
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
    seconds = time.perf_counter() - began
    sequences = []
    for i, (row, one) in enumerate(zip(rows, sampled, strict=True)):
        response = torch.tensor(one.token_ids)
        sequences.append(
            {
                "prompts": row,
                "responses": response,
                "input_ids": torch.cat([row, response]),
                "position_ids": torch.arange(len(row) + len(response)),
                "response_mask": torch.ones(len(response), dtype=torch.long),
                "advantages": torch.full((len(response),), 0.94 if i % 2 else -0.94),
            }
        )
    return sequences, seconds


class Step:
    """veRL's worker with the step's data: sampled sequences and the old policy's statistics."""

    def __init__(
        self, sizes: Sizes, folder: Path, sequences: list[dict[str, Any]], sampling_seconds: float, checkpointing: bool
    ):
        import torch

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
        self.sizes, self.checkpointing, self.sampling_seconds = sizes, checkpointing, sampling_seconds
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
        with torch.no_grad():
            self.weights = [p.detach().clone() for p in self.worker.engine.module.parameters()]

    def tau_p(self, share: float) -> float:
        """The tau_p below which that share of all response tokens are candidates under the old policy."""
        import torch

        logp = torch.cat([s["old_log_probs"] for s in self.sequences if s["advantages"][0] > 0])
        count = max(2, round(share * len(self.sequences) * self.sizes.response_tokens))
        return float(logp.sort().values[count].exp())

    def update(self, selector: dict[str, Any]) -> Update:
        """The four updates with a selector, without a token log, from the step's weights."""
        import torch

        from stapo_training.methods import SelectorConfig

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
        seconds = time.perf_counter() - began
        logged = self.in_process.metrics(output)
        kl = logged["actor/ppo_kl"]
        update = Update(seconds, abs(float(kl[-1] if isinstance(kl, list) else kl)))
        update.redone = [float(x) for x in logged.get("selector/redone_share", [])]
        if "selector/candidate_tokens" in logged:
            update.candidates = sum(logged["selector/candidate_tokens"]) / sum(logged["selector/tokens"])
            update.drift = max(logged.get("selector/guess_error", [0.0]))
        return update


@contextmanager
def prepared(sizes: Sizes) -> Iterator[tuple[Callable[[bool], Step], dict[str, str]]]:
    """This process as the only rank of a CPU training, with OMP_NUM_THREADS threads (2 by default).

    Yields:
        With checkpointing or without -> the step; and labels of the model and the machine.
    """
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    import stapo_training.verl_ext.platform  # noqa: F401  # veRL asks for its platform when it is first imported

    with tempfile.TemporaryDirectory() as folder:
        model = _model(sizes, Path(folder) / "model")
        size = sum(p.numel() for p in model.parameters())
        sequences, seconds = _sample(sizes, model)
        del model
        labels = {"million_parameters": f"{size / 1e6:.1f}", "threads": str(torch.get_num_threads())}
        yield lambda checkpointing: Step(sizes, Path(folder), sequences, seconds, checkpointing), labels
