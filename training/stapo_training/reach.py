"""Which prompts a model can learn from: an offline difficulty filter.

A prompt whose responses are all right, or all wrong, has no advantage and moves nothing. So a model samples each of a
draw of prompts a few times, as in its first training step, and those stay of which some samples are right and some are
wrong. What it leaves in the folder of `stapo-train data`:

    samples.jsonl   a line a sample (`Sample`); what is there is not made again
    reach.json      of each drawn prompt how many samples were right (`Reach`)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from stapo_results import provenance, store, terminal
from stapo_results.checks import Checks
from stapo_results.errors import BadInput
from stapo_results.memory import return_memory
from stapo_results.runs import OpenRun
from stapo_results.schema import Record
from stapo_results.seeds import derive_seed
from stapo_results.sizes import REAL
from stapo_training.data.rows import verl_rows
from stapo_training.data.source import Prompt
from stapo_training.probe.encoding import ModelFolder, find_model
from stapo_training.start.estimate import CPU_LENGTH, forward_tokens
from stapo_training.start.inputs import find_shape
from stapo_training.start.resolvers import fetched

SAMPLES, RECORD = "samples.jsonl", "reach.json"
ROWS = 64
"""Responses at a time."""


class ReachSample(Record):
    """One response: its seed, whether the reward is that of a right one, how it ended, and its tokens."""

    problem_id: str
    sample: int
    seed: int
    right: bool
    finish_reason: Literal["stop", "length"]
    tokens: int


class Reach(Record):
    """reach.json. model: the hashes of its weights. rights: of `samples` of each drawn prompt, in the order drawn."""

    model: str
    dtype: str
    decoding: dict[str, float | int]
    seed: int
    samples: int
    reward: str
    rights: dict[str, int]


@dataclass(frozen=True)
class Asked:
    """What is drawn and sampled: `draw` prompts, `samples` responses to each, of at most `max_tokens` tokens."""

    model: str
    draw: int
    samples: int
    max_tokens: int
    seed: int

    @cached_property
    def folder(self) -> ModelFolder:
        """The model, by its folder or by the name under which `stapo-train fetch` keeps it.

        Raises:
            BadInput: it is not whole, or a number is out of range.
        """
        for flag, least in {"draw": 1, "samples": 2, "max-tokens": 1}.items():
            if (value := getattr(self, flag.replace("-", "_"))) < least:
                expected = f"{least} or more"
                raise BadInput(f"--{flag} is too small", found=value, expected=expected, next_step=f"raise --{flag}")
        known = self.model in REAL and not Path(self.model).exists()
        return find_model(Path(fetched(self.model) if known else self.model), flag="--within-reach")

    @cached_property
    def place(self) -> tuple[str, str]:
        """Device and dtype: on a CPU the dtype in which it is faster."""
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        return device, "bfloat16" if device == "cuda" or provenance.fast_bf16() else "float32"

    @property
    def config(self) -> dict[str, Any]:
        """What decides the samples, for the run's record; the model is known by its hashes."""
        import torch

        device, dtype = self.place
        numbers = {"draw": self.draw, "samples": self.samples, "max_tokens": self.max_tokens}
        return numbers | {"device": device, "dtype": dtype, "threads": torch.get_num_threads()}

    def drawn(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts that are sampled: the same of every order of the source."""
        return sorted(prompts, key=lambda p: derive_seed(self.seed, "within reach", p.problem_id))[: self.draw]

    def encoded(self, prompts: Sequence[Prompt]) -> dict[str, list[int]]:
        """The ids of each drawn prompt, as a chat up to the model's turn.

        Raises:
            BadInput: the model has no chat template, or fewer positions than a prompt and its response.
        """
        encoded: dict[str, list[int]] = {}
        for p in self.drawn(prompts):
            (row,) = verl_rows([(p.problem, p.gold, p.problem_id)], data_source="", split="train")
            encoded[p.problem_id] = self.folder.prompt(row["prompt"], p.problem_id, {})
        longest, positions = max(map(len, encoded.values())), self.folder.positions
        if positions and longest + self.max_tokens > positions:
            raise BadInput("prompt and response are longer than the model can see",
                           found=f"{longest:,} + {self.max_tokens:,} tokens",
                           expected=f"at most {positions:,} (max_position_embeddings in config.json)",
                           next_step="a smaller --max-tokens")  # fmt: skip
        return encoded

    def plan(self, prompts: Sequence[Prompt]) -> str:
        """How much is sampled, and how long it takes by this machine's time for a linear layer. Raises as `encoded`."""
        self.encoded(prompts)
        samples, tokens = len(self.drawn(prompts)) * self.samples, int(CPU_LENGTH * self.max_tokens)
        work = f"{samples} samples of at most {self.max_tokens} tokens, about {samples * tokens:,} tokens"
        device, dtype = self.place
        if device != "cpu":
            return f"{work}; the time of a GPU is not known"
        if (shape := Checks().attempt("shape", find_shape, str(self.folder.path))) is None:
            return f"{work}; the time of this model family is not known"
        a_second = forward_tokens(shape, dtype)
        hours = terminal.duration(samples * tokens / a_second)
        return f"{work}: {hours} at {a_second:.0f} a second ({dtype}; the lengths and what else runs decide)"

    def rights(self, prompts: Sequence[Prompt], folder: OpenRun) -> dict[str, int]:
        """How many samples of each drawn prompt are right; those that the folder lacks are made first.

        Raises:
            BadInput: the model cannot be loaded, or as `encoded`.
        """
        drawn, path = self.drawn(prompts), folder.path / SAMPLES
        store.repair(path, ReachSample)
        done = {(s.problem_id, s.sample): s for s in store.read(path, ReachSample)} if path.exists() else {}
        if missing := [(p, i) for p in drawn for i in range(self.samples) if (p.problem_id, i) not in done]:
            done |= self._sampled(missing, self.encoded(prompts), folder, len(done))
        lines = [done[p.problem_id, i] for p in drawn for i in range(self.samples)]
        store.write_atomic(path, "".join(store.to_line(s) + "\n" for s in lines))
        rights = {p.problem_id: sum(done[p.problem_id, i].right for i in range(self.samples)) for p in drawn}
        reach = Reach(
            model=self.folder.revisions["model"],
            dtype=self.place[1],
            decoding={"temperature": 1.0, "top_p": 1.0, "max_tokens": self.max_tokens},
            seed=self.seed,
            samples=self.samples,
            reward="strict_box",
            rights=rights,
        )
        store.write_json(folder.path / RECORD, reach)
        return rights

    def _sampled(
        self, missing: Sequence[tuple[Prompt, int]], encoded: Mapping[str, list[int]], folder: OpenRun, done: int
    ) -> dict[tuple[str, int], ReachSample]:
        """The missing samples, each on disk as soon as it has ended."""
        from stapo_results.generation import Drawing, Sampler
        from stapo_results.stop_tokens import stop_token_ids
        from stapo_training.reward import compute_score

        device, dtype = self.place
        if device == "cpu":
            return_memory()  # of a layer's weights, when they are packed
        tokenizer, model = self.folder.tokenizer, self.folder.load(dtype, device)
        stops = stop_token_ids(tokenizer, model.generation_config.eos_token_id)
        sampler = Sampler(model, ROWS, stops, packed_alone=True)
        folder.save(deterministic=sampler.exact)
        asked: dict[Hashable, tuple[Prompt, int, int]] = {}
        for p, i in missing:
            seed = derive_seed(self.seed, "within reach", p.problem_id, i)
            sampler.add((p.problem_id, i), encoded[p.problem_id], seed, Drawing(), self.max_tokens)
            asked[p.problem_id, i] = p, i, seed
        sampled, total = dict[tuple[str, int], ReachSample](), done + len(missing)
        with closing(sampler), store.Journal(folder.path / SAMPLES) as journal, terminal.Display() as display:
            for ended in sampler.all_ended():
                made = []
                for key, response in ended:
                    p, i, seed = asked[key]
                    text = tokenizer.decode(response.token_ids, skip_special_tokens=True)
                    right = bool(compute_score("", text, p.gold)["acc"])
                    how = {"finish_reason": response.finish_reason, "tokens": len(response.token_ids)}
                    made.append(ReachSample(problem_id=p.problem_id, sample=i, seed=seed, right=right, **how))
                journal.append(made)
                sampled |= {(s.problem_id, s.sample): s for s in made}
                terminal.report_progress("data", done + len(sampled), total)
                display.show(f"{done + len(sampled):,} of {total:,} samples", (done + len(sampled)) / total)
        return sampled
