"""The model and the data of a run: whether they are there and whole, and what veRL would make of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from huggingface_hub import constants, try_to_load_from_cache

from stapo_results import store
from stapo_results.errors import BadInput, message_of
from stapo_results.schema import Labels
from stapo_results.shapes import FAMILIES, KNOWN, Shape, missing_files, shape_from
from stapo_results.sizes import MINI, REAL, is_miniature_size
from stapo_training import reward
from stapo_training.artifacts.weights import check_tensors, is_hub_id, shapes_of
from stapo_training.data.rows import RECORD, DataRecord, is_set_as_mathematics, parquet_content_sha256, plain_gold
from stapo_training.start.settings import ATTENTION, OURS, attention_of

_COLUMNS = {"data_source", "reward_model", "extra_info"}  # and data.prompt_key
_WIDEST_HEAD = 256


def how_to_make(config: Any, path: Path | None = None) -> str:
    """The command that makes a run's missing file, or its missing model (no path)."""
    of_data = config.run.data is not None and path is not None and path.is_relative_to(config.run.data)
    if path is None and config.run.size in REAL:
        return f"stapo-train fetch {config.run.size}"
    if not is_miniature_size(config.run.size) or of_data:
        return "stapo-train data --source ID|FILE --benchmarks DIR --out DIR, then run.data=DIR"
    base, world = config.run.base or "DIR", config.run.size.removeprefix(MINI).removeprefix("-")
    return f"stapo-train base{f' --world {world}' if world else ''} --out {base}, then run.base={base}"


def check_base(config: Any) -> None:
    paths = [config.actor_rollout_ref.model.path, config.data.train_files, config.data.val_files]
    if config.run.data is not None and not any(f"{config.run.data}/" in f"{p}/" for p in paths):
        raise BadInput(
            "the run does not read run.data",
            found=f"run.data={config.run.data}, size={config.run.size}, data.train_files={config.data.train_files}",
            expected="a size or data.train_files that takes it",
            next_step="size=qwen3-1.7b or another real one, or leave run.data out",
        )
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
        if constants.HF_HUB_OFFLINE and not cached(model, revision):
            commit = f" --revision {revision}" if revision else ""
            raise BadInput(
                "the model is not in the cache, and the hub is switched off",
                found=f"HF_HUB_OFFLINE is set, no {model} in {constants.HF_HUB_CACHE}",
                expected="a cached model, or a hub that may be asked",
                next_step=f"HF_HUB_OFFLINE=0 hf download {model}{commit}   (on every node, or into a shared HF_HOME)",
            )
        _check_named(config.run.size, model)
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
    _check_named(config.run.size, model)
    return model


def _check_named(size: str, model: str) -> None:
    """Raises BadInput where a run's size says a model that we know, and its model is another one: by the id of the hub,
    or by the shape in a folder. Records and table would call it by that size. Some sizes are of folders alone."""
    file = Path(__file__).parents[1] / "configs" / "size" / f"{size}.yaml"
    named = yaml.safe_load(file.read_text())["actor_rollout_ref"]["model"]["path"] if file.exists() else ""
    made = size in REAL or is_miniature_size(size)  # by `fetch` or `base`, from weights that no id of the hub names
    if model == named or not (named in KNOWN or (made and is_hub_id(model))):
        return
    facts = None if is_hub_id(model) else find_config(model)
    other = [f"{k} {facts.get(k)}" for k, v in KNOWN[named].items() if facts.get(k) != v] if facts else []
    other += ["(no folder here)"] * (made and is_hub_id(model))
    if is_hub_id(model) or other:
        raise BadInput(f"this model is not the one of size {size}", found=f"{model} {', '.join(other[:3])}".strip(),
                       expected=f"{'its folder' if made else named}, or a size of its own: records call it by its size",
                       next_step="run.size=NAME +by_size.NAME='{...}' (docs/training.md, Another model)")  # fmt: skip


def cached(model: str, revision: str | None = None) -> str | None:
    """The path of a hub model's config.json in the cache."""
    path = try_to_load_from_cache(model, "config.json", revision=revision) if is_hub_id(model) else None
    return path if isinstance(path, str) else None


def find_config(model: str) -> dict[str, Any] | None:
    """config.json of a local model folder, of a hub model in the cache, or the facts that come with this suite.

    Raises:
        BadInput: when it is no JSON object.
    """
    file = str(Path(model) / "config.json") if (Path(model) / "config.json").exists() else cached(model)
    if file is None:
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


def check_weights(model: str) -> None:
    """Raises BadInput where the files of a local model lack a tensor that its config.json describes. veRL hides what
    transformers would say."""
    files = sorted(Path(model).glob("*.safetensors"))
    if not files or (find_config(model) or {}).get("model_type") not in FAMILIES:  # other files may have other names
        return
    found = shapes_of(files)
    found |= {f"model.{name}": shape for name, shape in found.items()}  # a model that was saved without its head
    check_tensors(Path(model), found, "take the model's folder again, weights and config.json together", more=True)


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


def reads_boxes(config: Any) -> bool:
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
