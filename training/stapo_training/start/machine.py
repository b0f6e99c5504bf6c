"""What can be known to fail before a training starts anything expensive: one list of checks, all problems at once.

`settings.check_settings` needs the configuration alone; `examine` adds data, model and machine; veRL's own opinion is
`launch.ask_verl`. What Ray, vLLM or the driver say within the first minutes is left to them.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import constants, try_to_load_from_cache

from stapo_results import runs, store
from stapo_results.checks import Checks
from stapo_results.errors import BadInput, message_of
from stapo_results.provenance import nvidia_smi, usable_cores
from stapo_results.schema import Labels
from stapo_results.shapes import KNOWN, Shape, shape_from
from stapo_results.sizes import MINI, REAL, is_miniature_size
from stapo_results.throughput import CARDS, card_named
from stapo_training import reward
from stapo_training.artifacts.weights import is_hub_id, missing_files
from stapo_training.data.rows import RECORD, DataRecord, is_set_as_mathematics, parquet_content_sha256, plain_gold
from stapo_training.start import estimate
from stapo_training.start.estimate import GIB
from stapo_training.start.resolvers import run_slots
from stapo_training.start.settings import ATTENTION, OURS, attention_of, check_settings

_COLUMNS = {"data_source", "reward_model", "extra_info"}  # and data.prompt_key
_BUSY_GIB = 2.0  # a driver and a display hold less
_LOGS_GIB = 1.0  # metrics and what veRL and Ray log
_SESSION_GIB = 1.0  # what Ray keeps of a session in its own folder
_HUB = 2  # bytes a parameter of the hub's weights, bf16
_WIDEST_HEAD = 256


@dataclass(frozen=True)
class Node:
    """One machine.

    gpus: cards that a run may use; on a cluster's node without any, the number that `ray start` was told.
    cpus: cores of this machine; of a cluster's node its Ray's CPU slots.
    card, card_gib: the key of `throughput.CARDS` and the GiB of the smallest card. memory: GiB that are free.
    busy: the cards that another program uses.
    """

    host: str
    gpus: int
    cpus: int
    card: str | None = None
    card_gib: float | None = None
    memory: float = math.inf
    busy: Sequence[str] = ()


@dataclass
class Preflight:
    """What the checks found of a run; None is what a failed check would have given.

    prompts: of training, without those that are `longer` than data.max_prompt_length (None: no tokenizer could tell).
    validation: samples of one.
    """

    checks: Checks
    files: list[Path] = field(default_factory=list)
    prompts: int | None = 0
    longer: int | None = None
    validation: int = 0
    card: str | None = None
    shape: Shape | None = None
    memory: estimate.Need | None = None
    disk: str | None = None
    warning: str | None = None


def examine(config: Any) -> Preflight:
    """All checks on files, sizes and this machine (or the Ray cluster of ray_init.address); writes nothing.

    Raises:
        BadInput: run.base is needed and not given; everything else is collected in `checks`.
    """
    _check_base(config)
    a, found = config.actor_rollout_ref, Preflight(check_settings(config))
    checks = found.checks
    model = checks.attempt("model", check_model, config)
    tokenizer = model and checks.attempt("tokenizer", find_tokenizer, config)
    for kind in ("train_files", "val_files"):
        names, ids, lengths = config.data[kind], list[str | None](), list[int]()
        for path in map(Path, [names] if isinstance(names, str) else names):
            found.files.append(path)
            make, counted = how_to_make(config, path), None
            rows = checks.attempt(f"data.{kind}", check_data, kind, path, make, config.data.prompt_key)
            if rows and tokenizer:
                counted = checks.attempt(f"lengths of data.{kind}", check_lengths, config, kind, path, tokenizer)
            lengths += counted or [0] * len(rows or ())
            if rows and _reads_boxes(config):
                checks.attempt(f"golds of data.{kind}", check_golds, path, make)
            if rows is None and kind == "train_files":
                found.prompts = None
            ids += rows or []
        checks.attempt(f"ids of data.{kind}", check_ids, kind, ids)
        taken = [lengths[i] for i in rows_taken(config, kind, len(ids))]
        if kind == "val_files":
            found.validation = len(taken) * int(a.rollout.val_kwargs.n)
        elif found.prompts is not None:
            found.longer = sum(n > config.data.max_prompt_length for n in taken) if tokenizer else None
            found.prompts = len(taken) - (found.longer or 0)
    checks.attempt("prompts", _check_prompts, config, found)
    # a hub model that is not cached may still have known facts, so that its run is planned
    if model := model or (a.model.path if a.model.path in KNOWN else None):
        checks.attempt("the model's configuration", check_model_config, config, model)
        checks.attempt("the model's attention", check_model_attention, config, model)
        # without the check of memory a model of an unknown family is no hindrance
        found.shape = (checks if config.run.check_memory else Checks()).attempt("shape", find_shape, model)
    checks.attempt("environment", check_environment)
    card, host = _look_at_machine(config, found)
    if not found.shape:
        return found
    if config.run.check_memory and (card or config.trainer.device == "cpu"):
        found.memory = checks.attempt("memory", estimate.memory, config, found.shape, card, host, found.validation)
    each, fetched = checkpoint_gib(config, found.shape.parameters), 0.0
    if is_hub_id(str(a.model.path)) and not isinstance(_cached(a.model.path, config.run.model_revision), str):
        fetched = _HUB * found.shape.parameters / GIB
    found.disk = checks.attempt("disk", check_disk, config, each, fetched)
    return found


# model and data


def how_to_make(config: Any, path: Path | None = None) -> str:
    """The command that makes a run's missing file, or its missing model (no path)."""
    of_data = config.run.data is not None and path is not None and path.is_relative_to(config.run.data)
    if path is None and config.run.size in REAL:
        return f"stapo-train fetch {config.run.size}"
    if not is_miniature_size(config.run.size) or of_data:
        return "stapo-train data --source ID|FILE --benchmarks DIR --out DIR, then run.data=DIR"
    base, world = config.run.base or "DIR", config.run.size.removeprefix(MINI).removeprefix("-")
    return f"stapo-train base{f' --world {world}' if world else ''} --out {base}, then run.base={base}"


def _check_base(config: Any) -> None:
    paths = [config.actor_rollout_ref.model.path, config.data.train_files, config.data.val_files]
    if config.run.base is None and any(str(p).startswith("None/") for p in paths):
        expected = "the folder of a base model and its data"
        raise BadInput("values are missing", found="run.base", expected=expected, next_step=how_to_make(config))


def check_model(config: Any) -> str:
    """The configured model, when it is there and of the run's size.

    That is a local folder with configuration, tokenizer and all weights, or a hub id that is cached or may be fetched.

    Raises:
        BadInput: naming what is missing and how to get it.
    """
    model, revision = str(config.actor_rollout_ref.model.path), config.run.model_revision
    if is_hub_id(model):
        if constants.HF_HUB_OFFLINE and not isinstance(_cached(model, revision), str):
            commit = f" --revision {revision}" if revision else ""
            raise BadInput(
                "the model is not in the cache, and the hub is switched off",
                found=f"HF_HUB_OFFLINE is set, no {model} in {constants.HF_HUB_CACHE}",
                expected="a cached model, or a hub that may be asked",
                next_step=f"HF_HUB_OFFLINE=0 hf download {model}{commit}   (on every node, or into a shared HF_HOME)",
            )
        return model
    folder = Path(model)
    if lacking := missing_files(folder, tokenizer="tokenizer*.json"):
        named = "actor_rollout_ref.model.path=DIR or a hub id"
        raise BadInput(
            "the model is not there" if not folder.exists() else "the model is incomplete",
            found=f"no {', no '.join(lacking[:4])} in {folder}",
            expected="a Hugging Face model folder with all its weights",
            next_step=how_to_make(config) if is_miniature_size(config.run.size) or config.run.size in REAL else named,
        )
    label = folder / "stapo.json"  # three worlds have a base of one architecture
    size = store.read_json(label, Labels).size if label.exists() else config.run.size
    if size != config.run.size:
        what, cure = "the base model is of another size than the run", f"run.size={size}, or another model"
        raise BadInput(what, found=f"{label}: {size}", expected=f"run.size {config.run.size}", next_step=cure)
    return model


def _cached(model: str, revision: str | None = None) -> Any:
    """The path of a hub model's config.json in the cache; no string where it is not there."""
    return try_to_load_from_cache(model, "config.json", revision=revision) if is_hub_id(model) else None


def find_config(model: str) -> dict[str, Any] | None:
    """config.json of a local model folder, of a hub model in the cache, or the facts that come with this suite.

    Raises:
        BadInput: when it is no JSON object.
    """
    file = str(Path(model) / "config.json") if (Path(model) / "config.json").exists() else _cached(model)
    if not isinstance(file, str):
        return KNOWN.get(model)
    try:
        config, error = json.loads(Path(file).read_text(encoding="utf-8")), "no object"
    except json.JSONDecodeError as e:
        config, error = None, str(e)
    if not isinstance(config, dict):
        raise BadInput(f"{file} is not JSON of a model", found=error, next_step="take the model's folder again")
    return config


def find_shape(model: str) -> Shape:
    """The shape that a model's `find_config` says. Raises: BadInput: when there is none."""
    config = find_config(model)
    if config is None:
        expected = f"a local folder, a model in the hub's cache, or one of {', '.join(KNOWN)}"
        what = f"the size of {model} is not known before it is downloaded"
        raise BadInput(what, expected=expected, next_step=f"hf download {model}")
    return shape_from(config, model)


def _overridden(config: Any, model: str) -> dict[str, Any] | None:
    """`find_config` with the run's overrides, as veRL reads them."""
    overrides, facts = config.actor_rollout_ref.model.override_config, find_config(model)
    return facts and facts | dict(overrides.get("model_config", overrides))


def check_model_config(config: Any, model: str) -> None:
    """What veRL, or the rollout, would say of a model's config.json when all processes have started, or not at all.

    Raises:
        BadInput: code of its own; no single architecture; fewer positions than the longest sequence has.
    """
    facts = _overridden(config, model)
    if facts is None or find_config(model) is KNOWN.get(model):  # sizes alone: the model is not here yet
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if facts.get("auto_map") and facts.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise _own_code(model, "model")
    if len(architectures := facts.get("architectures") or []) != 1:
        raise BadInput(
            f"{model}: config.json names no single architecture",
            found=f"architectures: {architectures or 'none'}",
            expected="one class of transformers, such as Qwen2ForCausalLM",
            next_step='add "architectures": ["..."] to config.json, as the model\'s first publisher has it',
        )
    longest = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    if (positions := facts.get("max_position_embeddings")) is not None and positions < longest:
        cure = f"data.max_response_length={max(1, positions - int(config.data.max_prompt_length))}"
        scaling = (facts.get("rope_parameters") or {}) | (facts.get("rope_scaling") or {})
        # veRL holds a rollout to max_position_embeddings whatever the scaling
        if scaling.get("factor", 1.0) * scaling.get("original_max_position_embeddings", 0) >= longest:
            cure = f"+actor_rollout_ref.model.override_config.max_position_embeddings={longest}"
        raise BadInput(
            f"{model}: its context is shorter than a prompt with its response",
            found=f"max_position_embeddings {positions}",
            expected=f"at least {longest}: data.max_prompt_length + data.max_response_length",
            next_step=cure,
        )


def check_model_attention(config: Any, model: str) -> None:
    """What a model's config.json, with the run's overrides, asks of our attention; no check where it is not at hand.

    Raises:
        BadInput: for what the attention does not compute, or its kernel where there is a GPU.
    """
    a = config.actor_rollout_ref
    facts = _overridden(config, model) if attention_of(config) == OURS else None
    if facts is None:
        return
    other, wrong = "sdpa", []
    if a.model.use_remove_padding:  # padded rows go to sdpa
        head, hidden, heads = (facts.get(k) for k in ("head_dim", "hidden_size", "num_attention_heads"))
        if head is None and isinstance(hidden, int) and isinstance(heads, int):  # else `shape_from` refuses them
            head = hidden // max(1, heads)
        if config.trainer.device != "cpu" and isinstance(head, int) and (head % 8 or head > _WIDEST_HEAD):
            wrong.append(f"head_dim {head}")
        if facts.get("attention_dropout"):
            wrong.append(f"attention_dropout {facts['attention_dropout']}")
        if _slides(facts):
            wrong.append(f"sliding_window {facts.get('sliding_window')}")
    if facts.get("attn_logit_softcapping") is not None:
        wrong.append(f"attn_logit_softcapping {facts['attn_logit_softcapping']}")
        other = "flash_attention_2"  # transformers' sdpa leaves it out
    if wrong:
        raise BadInput(
            f"{model}: {OURS} does not compute this model's attention",
            found=", ".join(wrong),
            expected=f"heads of up to {_WIDEST_HEAD} in multiples of 8, no dropout, no sliding window, no soft cap",
            next_step=f"set {ATTENTION}={other}",
        )


def _slides(facts: Mapping[str, Any]) -> bool:
    """Whether a layer has a sliding window, by transformers' defaults: Qwen's are off unless switched on."""
    if facts.get("layer_types"):
        return "sliding_attention" in facts["layer_types"]
    on = facts.get("use_sliding_window", not str(facts.get("model_type")).startswith("qwen"))
    some = facts.get("max_window_layers", 0) < facts.get("num_hidden_layers", 1)  # the layers from there on
    return bool(on and some and facts.get("sliding_window"))


def rows_taken(config: Any, kind: str, total: int) -> Sequence[int]:
    """The rows of all files together that veRL keeps, before it counts their tokens."""
    most, shuffle = config.data.get(kind.replace("files", "max_samples"), -1), config.data.shuffle
    if not 0 < most < total:
        return range(total)
    generator = np.random.default_rng(config.data.seed)
    return generator.choice(total, size=most, replace=False).tolist() if shuffle else range(most)


def check_data(kind: str, path: Path, make: str, prompt_key: str = "prompt") -> list[str]:
    """The problem ids of a data file that is whole, one a row.

    A `data.json` of `stapo-train data` beside the file says its content hash, which must match.

    Args:
        kind: train_files or val_files, for the message.
        make: the command that makes such a file.

    Raises:
        BadInput: file missing, no Parquet, columns or ids missing, no rows, or content that differs from data.json.
    """

    def refuse(what: str, found: object, expected: str) -> NoReturn:
        raise BadInput(f"{path}: {what}", found=found, expected=expected, next_step=make)

    if not path.exists():
        refuse(f"data.{kind} is not there", "no file", "a Parquet file")
    try:
        with pq.ParquetFile(path) as table:
            names, rows = set(table.schema_arrow.names), table.metadata.num_rows
            columns = _COLUMNS | {prompt_key}
            if not rows or not names >= columns:
                what = "columns are missing" if rows else "it holds no row"
                refuse(what, f"{rows} rows of {', '.join(sorted(names))}", f"rows with {', '.join(sorted(columns))}")
            ids = table.read(["extra_info"]).column("extra_info").combine_chunks()
    except (pa.ArrowInvalid, OSError) as e:
        refuse("no Parquet file that can be read", message_of(e), "a Parquet file")
    known = pa.types.is_struct(ids.type) and ids.type.get_field_index("problem_id") >= 0
    if not known or ids.field("problem_id").null_count:
        found = f"{ids.field('problem_id').null_count} without" if known else f"extra_info: {ids.type}"
        refuse("a sample's seed is derived from extra_info.problem_id", found, "an id of its problem in every row")
    if (record := path.with_name(RECORD)).exists():
        prepared = store.read_json(record, DataRecord)
        hashes = {info.file: info.content_sha256 for info in (prepared.train, prepared.validation)}
        if path.name in hashes and (found := parquet_content_sha256(path)) != hashes[path.name]:
            raise BadInput(
                f"{path} is not what {record.name} beside it says",
                found=f"content {found[:16]}",
                expected=f"content {hashes[path.name][:16]}",
                next_step="prepare the data again in a new folder: one of the two files was changed",
            )
    return ids.field("problem_id").cast(pa.string()).to_pylist()


def check_ids(kind: str, ids: Sequence[str]) -> None:
    """Raises BadInput for an id that several rows have: their samples would have equal seeds."""
    if repeated := [i for i, n in Counter(ids).items() if n > 1]:
        raise BadInput(
            f"data.{kind}: several rows have one extra_info.problem_id, from which their samples' seeds are derived",
            found=f"{len(repeated)} such ids, {', '.join(repeated[:3])} among them",
            expected="an id of its own for every row of all files",
            next_step="stapo-train data makes one from each problem's text",
        )


def _reads_boxes(config: Any) -> bool:
    """Whether the reward compares the last box with the gold as it stands; veRL's other rules change both."""
    function = config.reward.custom_reward_function
    return function.path == reward.PATH and (function.reward_kwargs or {}).get("verifier") == "strict_box"


def check_golds(path: Path, make: str) -> None:
    """Raises BadInput for a gold that no box can equal (`plain_gold`), or that stands in a box or in dollars itself."""
    rows = pq.read_table(path, columns=["reward_model"]).column(0).to_pylist()
    golds = [row.get("ground_truth") if isinstance(row, dict) else None for row in rows]
    if wrong := [n for n, gold in enumerate(golds) if plain_gold(gold) is None or is_set_as_mathematics(gold)]:
        raise BadInput(
            f"{path}: golds that no response would equal",
            found=f"{len(wrong)} of {len(golds)}; row {wrong[0]}: {golds[wrong[0]]!r}"[:200],
            expected="reward_model.ground_truth as text, without a box, dollars or a list",
            next_step=make,
        )


def _own_code(path: str, part: str) -> BadInput:
    return BadInput(
        f"{path}: its {part} is code that comes with it",
        found="auto_map, which asks for trust_remote_code=true",
        expected=f"a {part} of transformers: foreign code is never run",
        next_step="another model" + (", or actor_rollout_ref.model.tokenizer_path=DIR" if part == "tokenizer" else ""),
    )


def find_tokenizer(config: Any) -> Any:
    """The run's tokenizer, with its chat template; None of a hub model that is not cached.

    Raises:
        BadInput: a local one that transformers cannot read; one that is code of its own.
    """
    from transformers import AutoTokenizer

    model = config.actor_rollout_ref.model
    path = str(model.get("tokenizer_path") or model.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # the library raises many kinds
        if "trust_remote_code" in str(e):
            raise _own_code(path, "tokenizer") from None
        if is_hub_id(path):
            return None
        raise BadInput(f"{path}: no tokenizer that can be read", found=str(e), next_step="take the folder again") from e
    tokenizer.chat_template = model.get("custom_chat_template") or tokenizer.chat_template
    return tokenizer


def check_lengths(config: Any, kind: str, path: Path, tokenizer: Any) -> list[int]:
    """Tokens of every prompt of a data file, by the model's chat template, as veRL counts them.

    veRL leaves longer prompts out, and counts one of which the template makes nothing as longer.

    Raises:
        BadInput: for such a row, and for a validation problem that would be left out.
    """
    lengths, limit = list[int](), config.data.max_prompt_length
    options = dict(config.data.get("apply_chat_template_kwargs") or {})
    key = config.data.prompt_key
    for row, prompt in enumerate(pq.read_table(path, columns=[key]).column(0).to_pylist()):
        try:
            ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False, **options)
            lengths.append(len(ids))
        except Exception as e:  # noqa: BLE001  templates and the library raise many kinds
            raise BadInput(
                f"{path}, row {row}: the model's chat template makes no prompt of it",
                found=f"{type(e).__name__}: {str(e).splitlines()[0]}" if str(e) else type(e).__name__,
                expected="a list of messages, and a chat template in the model's tokenizer",
                next_step=f"correct the column {key}, or set actor_rollout_ref.model.custom_chat_template",
            ) from None
    longer = sum(n > limit for n in lengths)
    if longer and kind == "val_files":
        raise BadInput(
            f"{path}: veRL would leave out validation problems",
            found=f"{longer} of {len(lengths)} are longer than data.max_prompt_length={limit}",
            expected="none",
            next_step=f"data.max_prompt_length={max(lengths)}",
        )
    return lengths


def _check_prompts(config: Any, found: Preflight) -> None:
    batch, prompts = config.data.train_batch_size, found.prompts
    if prompts is None:
        return
    if (steps := int(config.trainer.total_epochs) * (prompts // batch)) < int(config.run.steps) and prompts >= batch:
        raise BadInput(
            "trainer.total_epochs ends the training before its last step",
            found=f"{config.trainer.total_epochs} epochs of {prompts // batch} steps: {steps}",
            expected=f"{config.run.steps} steps (run.steps)",
            next_step="leave trainer.total_epochs out",
        )
    if prompts < batch:
        raise BadInput(
            "fewer prompts than one training batch",
            found=f"{prompts} ({found.longer or 0} more are longer than data.max_prompt_length)",
            expected=f"at least {batch}",
            next_step=f"more data, or data.train_batch_size={prompts} (and a mini-batch that divides it)",
        )


# the machine


def check_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Raises BadInput for variables of AMD's cards, which SLURM sets on NVIDIA's too: veRL's workers refuse them beside
    CUDA_VISIBLE_DEVICES, which Ray sets, after minutes."""
    if found := [name for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if environment.get(name)]:
        raise BadInput(
            "veRL's workers would end at their start",
            found=", ".join(f"{name}={environment[name]}" for name in found),
            expected="neither ROCR_VISIBLE_DEVICES nor HIP_VISIBLE_DEVICES",
            next_step=f"unset {' '.join(found)}   (on every node of a cluster before `ray start`)",
        )


def this_node(environment: Mapping[str, str] = os.environ) -> Node:
    """This machine, with the cards that CUDA_VISIBLE_DEVICES leaves; CUDA ignores what follows an unknown number."""
    rows = [[p.strip() for p in r.split(",")] for r in nvidia_smi("index,name,memory.total,memory.used").splitlines()]
    cards = {r[0]: r for r in rows if len(r) == 4 and r[2].isdigit() and r[3].isdigit()}  # others: shared or broken
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    names = list(cards) if chosen is None else [name.strip() for name in chosen.split(",")]
    if names and names[0].startswith(("GPU-", "MIG-")):  # nvidia-smi numbers its cards: UUIDs can only be counted
        names = list(cards)[: len(names)]
    used = [cards[name] for name in takewhile(cards.__contains__, names)]
    busy = [f"GPU {r[0]}: {int(r[3]) / 1024:.1f} GiB" for r in used if int(r[3]) / 1024 > _BUSY_GIB]
    smallest = min((int(r[2]) / 1024 for r in used), default=None)
    card = card_named(used[0][1]) if used else None
    memory = psutil.virtual_memory().available / GIB
    return Node(socket.gethostname(), len(used), usable_cores(), card, smallest, memory, busy)


def cluster_nodes(address: str) -> list[Node]:
    """The living nodes of a running Ray cluster, as Ray describes them.

    Raises:
        BadInput: no cluster answers at `address`.
    """
    import ray
    from ray._private.services import get_ray_address_from_environment  # no public one says what "auto" means
    from ray.exceptions import RayError

    known = address
    try:
        # of "auto": the variable's, a head on this machine, or the last one that `ray start` began or joined, even dead
        known = get_ray_address_from_environment(address, None)
        host, _, port = known.rpartition(":")
        if host and port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    # Ray raises ConnectionError where "auto" finds no cluster, RuntimeError or its own where the token is another
    except (OSError, ValueError, RuntimeError, RayError) as e:
        raise BadInput(
            "no Ray cluster answers",
            found=f"ray_kwargs.ray_init.address={address}, {known or 'none known'}: {message_of(e)}",
            expected="a running cluster",
            next_step="ray start --head   on the first node, ray start --address=HOST:6379   on the others; if it "
            "runs, give this shell the nodes' RAY_AUTH_MODE and token (docs/cluster.md)",
        ) from None
    try:
        return [_described(n["NodeManagerHostname"], n["Resources"]) for n in ray.nodes() if n["Alive"]]
    finally:
        ray.shutdown()


def _described(host: str, resources: Mapping[str, float]) -> Node:
    """A cluster's node by its resources, among them `accelerator_type:H100`."""
    kinds = [card_named(key) for key in resources if key.startswith("accelerator_type:")]
    card = next(filter(None, kinds), None)
    gib = CARDS[card].gib if card else None
    if "accelerator_type:A100-40G" in resources:
        gib = 39.5
    return Node(host, int(resources.get("GPU", 0)), int(resources.get("CPU", 0)), card, gib)


def _look_at_machine(config: Any, found: Preflight) -> tuple[float | None, float]:
    """Fills in card and warning; returns GiB of the smallest card, and free GiB of this machine (infinite where the
    run's machine is another)."""
    checks, address, planned = found.checks, config.ray_kwargs.ray_init.get("address"), config.run.card
    gpu = config.trainer.device != "cpu"
    if address:
        nodes = checks.attempt("cluster", cluster_nodes, address)
    else:  # without GPUs Ray is told how many ranks there are
        nodes = [this_node() if gpu else replace(this_node(), gpus=config.trainer.n_gpus_per_node)]
    used: list[Node] = []
    if nodes is not None:
        found.warning = checks.attempt("cores", check_cores, config, nodes)
        used = checks.attempt("GPUs", check_gpus, config, nodes) or []
    sizes = [n.card_gib for n in used if n.card_gib] if gpu else []
    if not sizes and gpu and planned is not None and checks.attempt("run.card", _check_card, planned):
        found.card = planned
        return CARDS[planned].gib, math.inf
    found.card = used[0].card if sizes else None
    return min(sizes, default=None), min((n.memory for n in used), default=math.inf)


def _check_card(name: str) -> str:
    if name not in CARDS:
        raise BadInput("unknown run.card", found=name, expected=" | ".join(CARDS), next_step="run.card=H100")
    return name


def check_gpus(config: Any, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that have a card (without GPUs: one of Ray's slots) for each of their ranks.

    Raises:
        BadInput: fewer nodes than asked, or a card that something else uses.
    """
    asked, each, gpu = config.trainer.nnodes, config.trainer.n_gpus_per_node, config.trainer.device != "cpu"
    used = [n for n in nodes if n.gpus >= each]
    if len(used) < asked:
        cure = "start on such machines or choose another hardware=; without a GPU: size=mini hardware=cpu"
        slots = f"ray start ... --num-gpus={each}   on each node: without GPUs a slot is a number"
        if not config.ray_kwargs.ray_init.get("address"):
            slots = "cpu.ranks=N for several ranks on this machine, hardware=cpu-2nodes for a cluster of two"
        raise BadInput(
            "too few GPUs" if gpu else "too few slots for the run's ranks",
            found=", ".join(f"{n.host}: {n.gpus}" for n in nodes) or "no node",
            expected=f"{asked} node(s) with {each} GPU(s) each",
            next_step=cure if gpu else slots,
        )
    busy = [f"{n.host} {card}" for n in used for card in n.busy]
    if busy and config.run.check_memory:
        # Ray gives cards away by number, without looking at who uses them
        raise BadInput(
            "another program uses a GPU",
            found="; ".join(busy[:4]),
            expected="every GPU that Ray may choose free",
            next_step="nvidia-smi names the process: end it, hide the card with CUDA_VISIBLE_DEVICES, or share it "
            "(run.check_memory=false, docs/gpu.md)",
        )
    return used


def check_cores(config: Any, nodes: Sequence[Node]) -> str | None:
    """A warning where this machine has fewer cores than the CPU slots that Ray is told: the run starts, and is slow.

    Raises:
        BadInput: Ray has fewer slots than veRL takes (`resolvers.cpu_slots`), which then waits for ever.
    """
    ray, ranks = config.ray_kwargs.ray_init, int(config.trainer.n_gpus_per_node)
    units = int(config.transfer_queue.backend.SimpleStorage.num_data_storage_units)
    needed, told, address = run_slots(config, len(nodes) or 1), ray.get("num_cpus"), ray.get("address")
    asked = int(config.trainer.nnodes) if address else 1  # without one there is no other node to ask
    slots = [n.cpus if told is None else int(told) for n in nodes]
    on_any = -(-units // (len(nodes) or 1))  # storage units are spread over all nodes, those without ranks too
    each = f"{needed} slots: 3 for each of {ranks} rank(s), {on_any} storage unit(s), a controller"
    if sum(s >= needed for s in slots) < asked or min(slots, default=0) < on_any:
        start = f"ray start ... --num-cpus={needed} on each node with ranks, {on_any} on another: a slot is a number"
        raise BadInput(
            "too few CPU slots: veRL would wait for ever",
            found=", ".join(f"{n.host}: {s}" for n, s in zip(nodes, slots, strict=True)) or "no node",
            expected=f"{asked} node(s) with {each}",
            next_step=start if address else f"ray_kwargs.ray_init.num_cpus={needed}",
        )
    if config.trainer.device == "cpu" or address or nodes[0].cpus >= needed:
        return None
    return f"{nodes[0].cpus} cores for {ranks} GPU(s), {needed - nodes[0].cpus} fewer than {each}: it will be slow"


def checkpoint_gib(config: Any, parameters: int) -> float:
    """GiB of a checkpoint, as veRL writes it: model and optimizer are fp32, hf_model is made of the same."""
    bytes_of = {"model": estimate.MASTER, "optimizer": estimate.MOMENTS, "hf_model": estimate.MASTER}
    return sum(bytes_of.get(c, 0) for c in config.actor_rollout_ref.actor.checkpoint.save_contents) * parameters / GIB


def check_disk(config: Any, each: float, fetched: float = 0.0) -> str:
    """What the disk has to hold, in a line; `each`: GiB of a checkpoint, `fetched`: of weights that are not cached yet.

    Raises:
        BadInput: no room for two: a new one is written before an old one is deleted, and a killed save leaves a part;
            or none for Ray's own files and the weights. Folders on one disk share its room.
    """
    out, every, keep = Path(config.run.out), int(config.trainer.save_freq), config.trainer.max_actor_ckpt_to_keep
    log = config.actor_rollout_ref.token_log
    logs = _LOGS_GIB + (0.0 if log.mode == "off" else log.largest_gib)
    needs = [(out, 2 * each + logs, f"two checkpoints of {each:.2f} GiB and {logs:g} GiB of logs")]
    if not config.ray_kwargs.ray_init.get("address"):  # else Ray runs already
        folder = config.ray_kwargs.ray_init.get("_temp_dir") or os.environ.get("RAY_TMPDIR", "/tmp")
        needs.append((Path(folder), _SESSION_GIB, "Ray's files (RAY_TMPDIR)"))
    if fetched:
        needs.append((Path(constants.HF_HUB_CACHE), fetched, f"{fetched:.2f} GiB of weights from the hub (HF_HOME)"))
    disks: dict[int, list[tuple[Path, float, str]]] = {}
    for need in needs:
        disks.setdefault(runs.nearest(need[0]).stat().st_dev, []).append(need)
    for on_it in disks.values():
        room, total = psutil.disk_usage(str(runs.nearest(on_it[0][0]))).free / GIB, sum(n[1] for n in on_it)
        if room < total:
            raise BadInput(
                f"too little disk is free for {on_it[0][0]}",
                found=f"{room:.2f} GiB",
                expected=f"at least {total:.2f} GiB: {'; '.join(n[2] for n in on_it)}",
                next_step="free some space, or choose another run.out, RAY_TMPDIR or HF_HOME",
            )
    free = psutil.disk_usage(str(runs.nearest(out))).free / GIB
    made = -(-int(config.run.steps) // every) if every > 0 else 0  # the last step is always saved
    # an old one goes when the new one is complete
    most = min(made, keep + 1 + bool(config.run.keep_best)) if keep else made
    most += bool(made and config.run.save_minutes)  # of the timed ones the newest stays
    scarce = "; NOT ENOUGH: trainer.max_actor_ckpt_to_keep=N keeps the newest N" if most * each + logs > free else ""
    timed = f" and one every {config.run.save_minutes} minutes" if config.run.save_minutes else ""
    whole = f"at most {most * each + logs:.1f} GiB; free {free:.1f} GiB{scarce}"
    return f"{made} checkpoints{timed}, each of {each:.2f} GiB, {whole}"
