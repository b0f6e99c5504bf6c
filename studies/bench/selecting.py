"""What each way of selecting costs, against JustRL's update in the same run.

One rollout step of a model large enough that arithmetic decides: each way of selecting makes the same updates from the
same weights, JustRL's among them, one after the other in each repeat.

The share of candidates is set by tau_p: moving tau_p is the same as shifting every log-probability by a constant.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stapo_results.seeds import derive_seed
from studies.bench import benching
from studies.bench.benching import Bench, BenchRow


@dataclass(frozen=True)
class Sizes:
    """Of the step. The defaults are a Qwen3 of 24.6 million parameters and 10 minutes on two cores."""

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
    share: float = 1e-3
    repeats: int = 5
    checkpointing: tuple[bool, ...] = (False, True)
    seed: int = 0


QUICK = Sizes(hidden=64, layers=2, vocabulary=512, response_tokens=24, checkpointing=(False,), repeats=1)


def bench(out: Path, repeats: int, *, quick: bool) -> Bench:
    """Measure, and write run.json and bench.json to `out`. quick: small sizes, once."""
    sizes = QUICK if quick else replace(Sizes(), repeats=repeats)
    return benching.record(out, "training", asdict(sizes), "justrl", lambda: _measure(sizes))


def become_the_only_rank() -> None:
    """This process is the only rank of a CPU training, with OMP_NUM_THREADS threads (2 by default).

    Before anything imports veRL.
    """
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    import stapo_training.verl_ext.platform  # noqa: F401  # veRL asks for its platform when it is first imported


def _measure(sizes: Sizes) -> tuple[list[BenchRow], dict[str, str]]:
    become_the_only_rank()
    import torch

    with tempfile.TemporaryDirectory() as folder:
        model = _model(sizes, Path(folder) / "model")
        parameters = f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}"
        began = time.perf_counter()
        sequences = _sample(sizes, model)
        sampling_seconds = time.perf_counter() - began
        del model
        rows = [r for c in sizes.checkpointing for r in _timed(sizes, folder, sequences, c, sampling_seconds)]
    return rows, {"million_parameters": parameters, "threads": str(torch.get_num_threads())}


def _model(sizes: Sizes, folder: Path) -> Any:
    """A randomly initialised Qwen3 whose next-token distributions differ in entropy as a trained model's do."""
    import torch

    from stapo_training.miniature.pretrain import Recipe, build_model
    from stapo_training.miniature.tokenizer import build_tokenizer

    width = {"hidden": sizes.hidden, "intermediate": 3 * sizes.hidden, "layers": sizes.layers, "heads": 8}
    recipe = Recipe(**width, head_dim=sizes.hidden // 8, positions=4096)
    model = build_model(recipe, sizes.vocabulary, sizes.seed, end_id=1, pad_id=0).eval()
    with torch.no_grad():  # logits of a few nats' spread; as initialised they are all but equal
        model.model.norm.weight.mul_(torch.linspace(1.0, 12.0, sizes.hidden))
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return model


def _sample(sizes: Sizes, model: Any) -> list[dict[str, Any]]:
    """The step's sequences with alternating advantages."""
    import torch

    from stapo_results.generation import Drawing, generate

    g = torch.Generator().manual_seed(sizes.seed)
    prompts = torch.randint(10, sizes.vocabulary, (sizes.prompts, sizes.prompt_tokens), generator=g)
    rows = prompts.repeat_interleave(sizes.responses, 0)
    seeds = [derive_seed("bench", sizes.seed, i) for i in range(len(rows))]
    limits: dict[str, Any] = {"max_new_tokens": sizes.response_tokens, "stop_token_ids": ()}
    sampled = generate(model, rows.tolist(), seeds, Drawing(), **limits)
    found = []
    for i, (prompt, one) in enumerate(zip(rows, sampled, strict=True)):
        response = torch.tensor(one.token_ids)
        ids, ones = torch.cat([prompt, response]), torch.ones(len(response))
        own = {"prompts": prompt, "responses": response, "input_ids": ids, "position_ids": torch.arange(len(ids))}
        found.append(own | {"response_mask": ones.long(), "advantages": ones * (0.94 if i % 2 else -0.94)})
    return found


def _ways(sizes: Sizes, sequences: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The name and the selector of everything that is timed; JustRL's first."""
    import torch

    logp = torch.cat([s["old_log_probs"] for s in sequences if s["advantages"][0] > 0]).sort().values
    tokens = len(sequences) * sizes.response_tokens
    tau_p = float(logp[max(2, round(sizes.share * tokens))].exp())
    s2t = {"name": "silence_spurious", "q": 0.75, "tau_p": tau_p}
    return {"justrl": {"name": "keep_all"}, "old": s2t | {"policy": "old"}, "current": s2t}


def _timed(
    sizes: Sizes, folder: str, sequences: list[dict[str, Any]], checkpointing: bool, sampling_seconds: float
) -> list[BenchRow]:
    """values: step_ratio of the whole step to JustRL's; candidate_share of the tokens."""
    from stapo_training.methods import SelectorConfig
    from stapo_training.start.configuration import compose
    from stapo_training.verl_ext import in_process
    from stapo_training.verl_ext.worker import OLD_IS_CURRENT

    optim = "actor_rollout_ref.actor.optim"
    own = [f"actor_rollout_ref.model.enable_gradient_checkpointing={str(checkpointing).lower()}"]
    own += [f"{optim}.lr={sizes.learning_rate}", f"{optim}.lr_warmup_steps=-1"]
    worker = in_process.build(compose([f"run.base={folder}", "run.out=unused", "method=justrl", *own]))
    engine = worker.engine.engine_config
    engine.use_dynamic_bsz = False
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = sizes.micro_batch
    began = time.perf_counter()
    old = in_process.old_policy(worker, in_process.batch([s | {"old_log_probs": s["advantages"]} for s in sequences]))
    old_seconds = time.perf_counter() - began
    pairs = zip(sequences, old[0].unbind(), old[1].unbind(), strict=True)
    sequences = [s | {"old_log_probs": p, "entropy": h} for s, p, h in pairs]
    weights = {name: w.clone() for name, w in worker.engine.module.state_dict().items()}  # as the ranks hold them

    def update(selector: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Seconds and metrics of the updates with a selector, without a token log, from the step's weights."""
        worker.engine.module.load_state_dict(weights)
        worker.engine.optimizer.state.clear()
        worker.engine.selector = SelectorConfig(**selector)
        size = len(sequences) // sizes.mini_batches
        settings = {"mini_batch_size": size, "global_batch_size": size, "use_remove_padding": False}
        data = in_process.batch(sequences, **settings, **{OLD_IS_CURRENT: True})
        began = time.perf_counter()
        output = worker.train_mini_batch(data)
        return time.perf_counter() - began, in_process.metrics(output)

    ways = _ways(sizes, sequences)
    update(ways["justrl"])  # allocations and caches
    repeats = [{name: update(selector) for name, selector in ways.items()} for _ in range(sizes.repeats)]
    seconds = {name: [r[name][0] for r in repeats] for name in ways}
    rest, rows = sampling_seconds + old_seconds, []
    for name, own in seconds.items():
        logged = repeats[0][name][1]
        tokens = sum(logged.get("selector/tokens", [1]))
        values = {
            "step_ratio": (rest + min(own)) / (rest + min(seconds["justrl"])),
            "candidate_share": sum(logged.get("selector/candidate_tokens", [0])) / tokens,
        }
        labels = {"checkpointing": str(checkpointing).lower()}
        rows.append(benching.timed_row(name, own, seconds["justrl"], labels=labels, values=values))
    return rows
