"""What each way of selecting costs, against JustRL's update in the same run (`tox -e bench`, part training).

One rollout step of a model large enough that arithmetic decides: sampling, old log-probabilities, four optimizer steps.
Each way of selecting makes the same four steps from the same weights, JustRL's among them, one after the other in each
repeat. A ratio is that of the fastest repeats, since whatever else the machine does only adds; its spread is that of
the ratios within a repeat.

What a correction costs is decided by how many candidates there are and how far the threshold moves between
mini-batches. The share of candidates is set by tau_p: moving tau_p is the same as shifting every log-probability by a
constant. The drift is that of the optimizer's steps, whose learning rate is part of the plan; its effect is printed.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stapo_results import provenance, store
from stapo_results.schema import Bench, BenchRow, Run
from stapo_results.seeds import derive_seed
from stapo_training.token_log.writer import TokenLogConfig

GOALS = {"old": (1.02, None), "speculative": (1.08, 1.03)}
"""(update, whole step) a way of selecting may cost as a multiple of JustRL's."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the step. The defaults are a Qwen3 of 25 million parameters and 10 minutes on two cores."""

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
class Timing:
    """One way of selecting in one repeat.

    update: seconds; written: until the token log is on disk too. redone: of each mini-batch, the share of its
    tokens that were run again. candidates: share of all response tokens. drift: the largest distance of a guessed
    threshold from the true one, nats. moved: veRL's ppo_kl of the last mini-batch, mean of log pi_old - log pi,
    without its sign.
    """

    update: float
    written: float = 0.0
    redone: list[float] = field(default_factory=list)
    candidates: float = 0.0
    drift: float = 0.0
    moved: float = 0.0


def make_model(plan: Plan, folder: Path) -> Any:
    """A randomly initialised Qwen3 whose next-token distributions differ in entropy as a trained model's do."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from stapo_training.miniature.tokenizer import build_tokenizer

    torch.manual_seed(plan.seed)
    config = Qwen3Config(
        vocab_size=plan.vocabulary,
        hidden_size=plan.hidden,
        intermediate_size=3 * plan.hidden,
        num_hidden_layers=plan.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=plan.hidden // 8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():  # logits of a few nats' spread; as initialised they are all but equal
        model.model.norm.weight.mul_(torch.linspace(1.0, 12.0, plan.hidden))
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return model


def sample(plan: Plan, model: Any) -> tuple[list[dict[str, Any]], float]:
    """The step's sequences with alternating advantages, and the seconds that sampling them took."""
    import torch

    from stapo_results.generation import generate

    g = torch.Generator().manual_seed(plan.seed)
    prompts = torch.randint(10, plan.vocabulary, (plan.prompts, plan.prompt_tokens), generator=g)
    rows = prompts.repeat_interleave(plan.responses, 0)
    began = time.perf_counter()
    made = generate(
        model,
        rows.tolist(),
        [derive_seed("bench", plan.seed, i) for i in range(len(rows))],
        max_new_tokens=plan.response_tokens,
        temperature=1.0,
        top_p=1.0,
        stop_token_ids=(),
        pad_token_id=0,
    )
    seconds = time.perf_counter() - began
    sequences = []
    for i, (row, one) in enumerate(zip(rows, made, strict=True)):
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
    """veRL's worker with the step's data; makes the same four optimizer steps as often as it is asked."""

    def __init__(self, plan: Plan, folder: Path, sequences: list[dict[str, Any]], checkpointing: bool):
        import torch

        from stapo_training.run.configuration import compose
        from stapo_training.verl_ext import local

        config = compose(
            [
                f"run.base={folder}",
                "run.out=unused",
                "method=justrl",
                f"actor_rollout_ref.model.enable_gradient_checkpointing={str(checkpointing).lower()}",
                f"actor_rollout_ref.actor.optim.lr={plan.learning_rate}",
                "actor_rollout_ref.actor.optim.lr_warmup_steps=-1",
            ]
        )
        self.plan, self.local, self.torch, self.actor = plan, local, torch, config.actor_rollout_ref.actor
        self.worker = local.build(config)
        engine = self.worker.engine.engine_config
        engine.use_dynamic_bsz = False
        for name in ("micro_batch_size_per_gpu", "infer_micro_batch_size_per_gpu"):
            setattr(engine, name, plan.micro_batch)
        size = len(sequences) // plan.mini_batches
        self.settings = {"mini_batch_size": size, "global_batch_size": size, "use_remove_padding": False}
        began = time.perf_counter()
        old = local.old_policy(self.worker, local.batch([s | {"old_log_probs": s["advantages"]} for s in sequences]))
        self.old_seconds = time.perf_counter() - began
        pairs = zip(sequences, old[0].unbind(), old[1].unbind(), strict=True)
        self.sequences = [s | {"old_log_probs": p, "entropy": h} for s, p, h in pairs]
        with torch.no_grad():
            self.weights = [p.detach().clone() for p in self.worker.engine.module.parameters()]

    def tau_p(self, share: float) -> float:
        """The tau_p below which that share of all response tokens are candidates under the old policy."""
        logp = self.torch.cat([s["old_log_probs"] for s in self.sequences if s["advantages"][0] > 0])
        count = max(2, round(share * len(self.sequences) * self.plan.response_tokens))
        return float(logp.sort().values[count].exp())

    def run(self, selector: dict[str, Any], log: TokenLogConfig | None = None) -> Timing:
        """The four steps with a selector, and with a token log where one is given."""
        from stapo_training.methods import SelectorConfig

        worker, torch = self.worker, self.torch
        with torch.no_grad():
            for p, w in zip(worker.engine.module.parameters(), self.weights, strict=True):
                p.copy_(w)
        worker.engine.optimizer.state.clear()
        worker.engine.selector = SelectorConfig(**selector)
        worker.log_tokens(log or TokenLogConfig.model_validate({"mode": "off", "folder": ""}), self.actor)
        data = self.local.batch(self.sequences, **self.settings)
        began = time.perf_counter()
        output = worker.train_mini_batch(data)
        timing = Timing(time.perf_counter() - began)
        worker.flush_log()
        timing.written = time.perf_counter() - began
        logged = self.local.metrics(output)
        kl = logged["actor/ppo_kl"]
        timing.moved = abs(float(kl[-1] if isinstance(kl, list) else kl))
        timing.redone = [float(x) for x in logged.get("selector/redone_share", [])]
        if "selector/candidate_tokens" in logged:
            timing.candidates = sum(logged["selector/candidate_tokens"]) / sum(logged["selector/tokens"])
            timing.drift = max(logged.get("selector/guess_error", [0.0]))
        return timing


def ways(plan: Plan, tau_p: dict[float, float]) -> dict[str, tuple[float | None, dict[str, Any]]]:
    """name -> (share of candidates, selector) of everything that is timed."""
    s2t = {"name": "silence_spurious", "q": 0.75, "log_entropy": False}
    middle = plan.shares[len(plan.shares) // 2]
    fixed = s2t | {"tau_p": tau_p[middle]}
    made: dict[str, tuple[float | None, dict[str, Any]]] = {
        "justrl": (None, {"name": "keep_all"}),
        "old": (middle, fixed | {"policy": "old"}),
        "micro": (middle, fixed | {"scope": "micro_batch"}),
        "two_pass": (middle, fixed | {"form": "two_pass"}),
        "speculative + current entropy": (middle, fixed | {"log_entropy": True}),
    }
    for share in plan.shares:
        made[f"speculative {share:.2%}"] = (share, s2t | {"tau_p": tau_p[share]})
    return made


def prepare_process() -> None:
    """Make this process the only rank of a CPU training, with OMP_NUM_THREADS threads (2 by default)."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    import stapo_training.verl_ext.platform  # noqa: F401  # veRL asks for its platform when it is first imported


def run(out: Path, plan: Plan, say: Callable[[str], None] = print) -> Bench:
    """Measure, print a table, write the record to `out`."""
    import torch

    prepare_process()
    began = time.perf_counter()
    record = provenance.new_run(
        "bench", {"part": "training", **asdict(plan)}, seeds={"run": plan.seed}, deterministic=False
    )
    rows: list[BenchRow] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        model = make_model(plan, base / "model")
        size = sum(p.numel() for p in model.parameters())
        say(f"{size / 1e6:.1f} million parameters, {torch.get_num_threads()} threads")
        sequences, sampling = sample(plan, model)
        del model
        for checkpointing in plan.checkpointing:
            step = Step(plan, base, sequences, checkpointing)
            timed = ways(plan, {s: step.tau_p(s) for s in plan.shares})
            step.run({"name": "keep_all"})  # allocations and caches
            times: dict[str, list[Timing]] = {name: [] for name in timed}
            for repeat in range(plan.repeats):
                for name, (_, selector) in timed.items():
                    times[name].append(step.run(selector))
                    where = f"repeat {repeat + 1}/{plan.repeats}, checkpointing {checkpointing}"
                    say(f"{where}, {name}: {times[name][-1].update:.2f} s")
            rest = sampling + step.old_seconds
            for name, own in times.items():
                ratios = [t.update / j.update for t, j in zip(own, times["justrl"], strict=True)]
                fastest, baseline = min(t.update for t in own), min(j.update for j in times["justrl"])
                redone = [x for t in own for x in t.redone]
                rows.append(
                    BenchRow(
                        name=name,
                        labels={"checkpointing": str(checkpointing).lower()},
                        seconds=fastest,
                        ratio=fastest / baseline,
                        ratio_low=min(ratios),
                        ratio_high=max(ratios),
                        values={
                            "step_ratio": (rest + fastest) / (rest + baseline),
                            "candidate_share": own[0].candidates,
                            "threshold_drift": own[0].drift,
                            "ppo_kl": own[0].moved,
                            "redone_share": sum(redone) / len(redone) if redone else 0.0,
                            "sampling_seconds": sampling,
                            "old_log_prob_seconds": step.old_seconds,
                        },
                    )
                )
    done = provenance.close_run(record, out / "run.json", "done", time.perf_counter() - began)
    labels = {"million_parameters": f"{size / 1e6:.1f}", "threads": str(torch.get_num_threads())}
    bench = Bench(run_id=done.run_id, part="training", baseline="justrl", labels=labels, rows=rows)
    store.write_json(out / "bench.json", bench)
    say(table(bench))
    return bench


def _goal(row: BenchRow) -> str:
    """What a row's ratios were meant to stay under; "" where nothing was said, or they did."""
    update, step = GOALS.get(row.name.split()[0], (None, None))
    over = [
        f"{what} {goal}"
        for what, goal, found in (("update", update, row.ratio), ("step", step, row.values["step_ratio"]))
        if goal is not None and found > goal
    ]
    return f"over its goal ({', '.join(over)})" if over else ""


def table(bench: Bench) -> str:
    """The measured ratios as text, with what was aimed at."""
    head = f"{'way of selecting':32} {'ckpt':5} {'update':>8}  {'ratio (spread)':24} {'step':>6} "
    head += f"{'cand.':>7} {'redone':>7} {'drift':>8}"
    lines = [head, "-" * len(head)]
    for r in bench.rows:
        v = r.values
        lines.append(
            f"{r.name:32} {r.labels['checkpointing']:5} {r.seconds:7.2f}s  "
            f"{r.ratio:.3f} ({r.ratio_low:.3f} to {r.ratio_high:.3f})   {v['step_ratio']:6.3f} "
            f"{v['candidate_share']:7.3%} {v['redone_share']:7.3%} {v['threshold_drift']:8.1e}  {_goal(r)}".rstrip()
        )
    return "\n".join(lines)


def page_block(folder: Path) -> str:
    """The record as the documentation shows it; "not run" where there is none."""
    if not (folder / "bench.json").exists():
        return "Not run: `tox -e bench` measures it."
    bench, run = store.read_json(folder / "bench.json", Bench), store.read_json(folder / "run.json", Run)
    plan = run.config
    head = ["way of selecting", "gradient checkpointing", "update / JustRL's (spread)", "step / JustRL's"]
    head += ["candidates", "run again", "guess off by, nats", ""]
    rows = [
        [
            r.name,
            "yes" if r.labels["checkpointing"] == "true" else "no",
            f"{r.ratio:.3f} ({r.ratio_low:.3f} to {r.ratio_high:.3f})",
            f"{r.values['step_ratio']:.3f}",
            f"{r.values['candidate_share']:.2%}",
            f"{r.values['redone_share']:.2%}",
            f"{r.values['threshold_drift']:.1e}",
            _goal(r),
        ]
        for r in bench.rows
    ]
    lines = [" | ".join(r) for r in [head, ["---"] * len(head), *rows]]
    about = (
        f"{plan['prompts'] * plan['responses']} sequences of {plan['response_tokens']} tokens, {plan['mini_batches']} "
        f"updates, {plan['repeats']} repeats, a Qwen3 of {bench.labels['million_parameters']} million parameters, "
        f"{bench.labels['threads']} threads of {run.hardware['cpu']}; ratios of the fastest repeats, spread of those "
        f"within a repeat. "
        f"Record: `results/records/bench/training`, commit {run.code_commit[:7]}, {run.started[:10]}."
    )
    return about + "\n\n" + "\n".join(f"| {line} |" for line in lines)
