"""Continuations with a token and without it: how often each answers rightly.

Q is the chance of a right answer when the model goes on after prefix and token, V when it goes on after the prefix.
Raising the token's logit alone changes the expected reward by p (Q - V); a gradient step moves the other logits too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from stapo_eval.decoding import Decoding
from stapo_eval.engines import EngineOptions, Request, make_engine
from stapo_eval.models import find_model
from stapo_results import provenance, runs, store, terminal, token_log
from stapo_results.benchmarks import load as load_benchmark
from stapo_results.errors import BadInput, RunFailed
from stapo_results.seeds import derive_seed
from stapo_results.stop_tokens import stop_token_ids
from stapo_training.miniature.worlds import PLANTED
from stapo_training.probe import encoding, responses
from stapo_training.reward import compute_score
from studies.worth.record import KINDS, WORTH, Kind, TokenWorth

_WORLDS = 1000  # fewer words than this has a vocabulary of the testbed's worlds alone


class Place(NamedTuple):
    """A token to measure: its row, the ids of the prompt and of the response before it, and itself."""

    row: dict[str, Any]
    kind: Kind
    prompt: list[int]
    before: list[int]
    gold: str


@dataclass(frozen=True)
class Measurement:
    """What is measured: of the log of `probe` (mode full) over `data`, up to `each` rare tokens of a kind and
    `ordinary` of the two others (0: `each`), each with `of` continuations of as many tokens as leave the response at
    most `max_tokens`. anywhere: behind the answer too. kinds: all, or these alone."""

    model: Path
    data: Path
    probe: Path
    data_dir: Path
    out: Path
    each: int = 150
    of: int = 8
    max_tokens: int = 512
    seed: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    engine: Literal["hf", "vllm"] = "hf"
    vllm: tuple[str, ...] = ()
    anywhere: bool = False
    ordinary: int = 0
    kinds: tuple[Kind, ...] = ()

    @property
    def most(self) -> dict[Kind, int]:
        """How many tokens of each kind."""
        ordinary = self.ordinary or self.each
        most: dict[Kind, int] = {k: ordinary if k.startswith("ordinary") else self.each for k in KINDS}
        return {k: n if k in (self.kinds or KINDS) else 0 for k, n in most.items()}


def answered(tokenizer: Any, response: Sequence[int]) -> int:
    """How many tokens of a response stand before its first box is begun: what follows it hardly changes the answer."""
    ids, low, high = [*map(int, response)], 0, len(response)
    if "\\boxed" not in tokenizer.decode(ids):
        return high
    while low < high:  # the shortest beginning that holds the word
        middle = (low + high) // 2
        low, high = (low, middle) if "\\boxed" in tokenizer.decode(ids[:middle]) else (middle + 1, high)
    return max(0, low - 1)


def kinds(rows: Mapping[str, np.ndarray]) -> dict[Kind, np.ndarray]:
    """Kind -> the indices of a log's rows with A > 0 that stand before the answer (`open`). A mini-batch without a rare
    token has no threshold, and gives none."""
    positive, rare, gone = (
        (rows["advantage"] > 0) & rows["open"],
        rows["rare"].astype(bool),
        rows["silenced"].astype(bool),
    )
    low = rows["entropy"] < rows["tau_h"]  # false of NaN
    high = rows["entropy"] >= rows["tau_h"]
    masks = (rare & gone, rare & ~gone, ~rare & low, ~rare & high)
    return {kind: np.flatnonzero(positive & mask) for kind, mask in zip(KINDS, masks, strict=True)}


def drawn(rows: Mapping[str, np.ndarray], most: Mapping[Kind, int], seed: int) -> list[tuple[int, Kind]]:
    """Up to so many row indices of a kind, each row of a kind with the same chance."""
    rng = np.random.default_rng(derive_seed(seed, "worth"))
    return [
        (int(of[k]), kind) for kind, of in kinds(rows).items() for k in sorted(rng.permutation(len(of))[: most[kind]])
    ]


def places(asked: Measurement, model: encoding.ModelFolder) -> list[Place]:
    """The tokens to measure, with what stands before them.

    Raises:
        BadInput: the log lacks tokens, or the responses are not those that it was made of.
    """
    log = token_log.read(asked.probe)
    if log is None or log.header.mode != "full":
        raise BadInput(f"{asked.probe} has no log of every token", next_step="stapo-train probe --mode full ...")
    table = log.tokens
    columns = ("advantage", "rare", "silenced", "entropy", "tau_h")
    rows = {name: table[name].to_numpy() for name in columns}
    given = responses.read(asked.data)
    encoded = dict(zip(((r.prompt_id, r.sample) for r in given), encoding.encode(given, model), strict=True))
    response_of = list(zip(table["prompt_id"].to_pylist(), table["sample"].to_pylist(), strict=True))
    right = {w for w, advantage in zip(response_of, rows["advantage"], strict=True) if advantage > 0}
    ends = {w: answered(model.tokenizer, encoded[w].response.tolist()) for w in right if w in encoded}
    position = table["position"].to_numpy()
    rows["open"] = (position < np.array([ends.get(w, 0) for w in response_of])) | asked.anywhere
    rows["open"] &= position < asked.max_tokens - 1  # a token at least may follow
    golds: dict[str, str] = {}
    for benchmark in sorted({r.prompt_id.split("/")[0] for r in given}):
        golds |= {f"{benchmark}/{p.id}": str(p.answer) for p in load_benchmark(benchmark, asked.data_dir).problems}
    found = []
    for index, kind in drawn(rows, asked.most, asked.seed):
        (row,) = table.slice(index, 1).to_pylist()
        tokens = encoded.get((row["prompt_id"], row["sample"]))
        if tokens is None or tokens.response[row["position"]] != row["token"]:
            where = f"{row['prompt_id']}, sample {row['sample']}, token {row['position']}"
            raise BadInput(f"{asked.data}: not the responses of {asked.probe}", found=where,
                           next_step="name the file that was probed")  # fmt: skip
        benchmark, _, problem = row["prompt_id"].split("/")
        before = tokens.response[: row["position"]].tolist()
        found.append(Place(row, kind, tokens.prompt.tolist(), before, golds[f"{benchmark}/{problem}"]))
    return found


def measure(asked: Measurement) -> list[TokenWorth]:
    """Measure what `asked.out` lacks; each token is on disk as soon as its continuations have ended.

    Raises:
        BadInput: as `places`, no such file of responses, or another measurement in `out`.
    """
    import torch

    if not asked.data.is_file():
        raise BadInput("--data is no file", found=asked.data, next_step="stapo-eval export --to responses writes it")
    model = encoding.find_model(asked.model)
    config = {k: str(v) if isinstance(v, Path) else v for k, v in vars(asked).items()}
    revisions = model.revisions | {"data": store.sha256_file(asked.data)}
    exact = asked.engine == "hf" and not torch.cuda.is_available()
    run = provenance.new_run("probe", config, seeds={"worth": asked.seed}, deterministic=exact, revisions=revisions)
    earlier = {"engine": "hf", "vllm": [], "ordinary": 0, "kinds": []}  # what no option said
    with runs.opened(asked.out, run, may_differ={"model", "data", "probe", "data_dir", "out"}.__contains__,
                     older=lambda c: {**earlier, **c}, foreign=[WORTH]) as folder:  # fmt: skip
        chosen, path = places(asked, model), asked.out / WORTH
        store.repair(path, TokenWorth)
        done = {_key(t): t for t in store.read(path, TokenWorth)} if path.exists() else {}
        missing = [p for p in chosen if _key_of(p) not in done]
        with folder.working(f"{len(done)} of {len(chosen)} tokens", resume="the same command makes the others"):
            if missing:
                done |= {_key(t): t for t in _continued(asked, model, missing, path)}
            ordered = [done[_key_of(p)] for p in chosen]
            store.write_atomic(path, "".join(store.to_line(t) + "\n" for t in ordered))
    return ordered


def _key(t: TokenWorth) -> tuple[str, int, int]:
    return t.prompt_id, t.sample, t.position


def _key_of(p: Place) -> tuple[str, int, int]:
    return p.row["prompt_id"], p.row["sample"], p.row["position"]


def _continued(
    asked: Measurement, model: encoding.ModelFolder, missing: Sequence[Place], path: Path
) -> list[TokenWorth]:
    from transformers import GenerationConfig

    right, cut = (np.zeros((len(missing), 2), np.int64) for _ in range(2))  # with the token, without
    left = np.full(len(missing), 2 * asked.of)
    requests, found = [], []
    longest = max(len(p.prompt) for p in missing) + asked.max_tokens
    there = (model.path / "generation_config.json").is_file()
    ends = GenerationConfig.from_pretrained(model.path).eos_token_id if there else None
    stop = stop_token_ids(model.tokenizer, ends)
    options = EngineOptions(max_model_len=longest, vllm=asked.vllm)

    def ended(number: int, side: int, text: str, stopped: bool) -> None:
        place = missing[number]
        whole = model.tokenizer.decode(_head(place, side), skip_special_tokens=True) + text
        right[number, side] += bool(stopped and compute_score("", whole, place.gold)["acc"])
        cut[number, side] += not stopped
        left[number] -= 1

    with closing(make_engine(asked.engine, find_model(str(asked.model)), dtype=asked.dtype, options=options)) as engine:
        for number, place in enumerate(missing):
            for side in (0, 1):
                head = _head(place, side)
                for i in range(asked.of):
                    if side == 0 and place.row["token"] in stop:  # nothing follows the token that ends a response
                        ended(number, side, "", stopped=True)
                        continue
                    seed = derive_seed(asked.seed, "worth", *map(str, _key_of(place)), side, i)
                    decoding = Decoding(1.0, 1.0, asked.max_tokens - len(head))
                    requests.append(Request(f"{side}", f"{number} {i}", number, seed, (*place.prompt, *head), decoding))
        with store.Journal(path) as journal, terminal.Display() as display:
            for responses_of_step in engine.stream(requests, {}):
                made, errors = [], [f.error for f in responses_of_step if f.error]
                for f in (f for f in responses_of_step if not f.error):
                    number = f.request.sample_index
                    ended(number, int(f.request.cell), f.text, f.finish_reason == "stop")
                    if not left[number]:
                        made.append(_worth(missing[number], asked.of, right[number], cut[number], model.tokenizer))
                journal.append(made)
                found += made
                if errors:
                    raise RunFailed(
                        "a continuation failed", found=errors[0], next_step="the same command makes the rest"
                    )
                display.show(f"{len(found)} of {len(missing)} tokens", len(found) / len(missing))
    return found


def _head(place: Place, side: int) -> list[int]:
    """What a continuation follows: the response up to the token, with it (side 0) or without it."""
    return [*place.before, place.row["token"]] if side == 0 else place.before


def _worth(place: Place, of: int, right: np.ndarray, cut: np.ndarray, tokenizer: Any) -> TokenWorth:
    word = tokenizer.decode([place.row["token"]]).strip()
    known = PLANTED if tokenizer.vocab_size < _WORLDS else {}
    planted: Any = next((name for name, words in known.items() if word in {w.strip() for w in words}), "")
    return TokenWorth(
        schema_version=1, kind=place.kind, planted=planted, probability=math.exp(place.row["logprob"]), of=of,
        right_with=int(right[0]), right_without=int(right[1]), cut_with=int(cut[0]), cut_without=int(cut[1]),
        **{name: place.row[name] for name in ("prompt_id", "sample", "position", "entropy", "advantage")},
    )  # fmt: skip
