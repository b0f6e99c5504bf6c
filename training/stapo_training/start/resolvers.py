"""The functions that the configuration files call: `${name:arguments}`, resolved by OmegaConf."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.provenance import fast_bf16, usable_cores
from stapo_results.schema import SETTINGS
from stapo_results.sizes import MINI, is_miniature_size


def per_rank(n: int, *ranks: int) -> int:
    """`${per_rank:N,GPUS,NODES}`: a rank's part of N sequences, at least one."""
    return max(1, int(n) // math.prod(int(r) for r in ranks))


def product(*factors: int) -> int:
    """`${product:RANKS,NODES}`"""
    return math.prod(int(f) for f in factors)


def portion(n: int, share: float) -> int:
    """`${portion:N,SHARE}`: a share of N tokens, rounded."""
    return round(int(n) * float(share))


def of_size(key: str, *, _root_: Any) -> Any:
    """`${of_size:KEY}`: KEY from the row of the run's size in the hardware's table `by_size`.

    Raises:
        BadInput: the table has no row for this size.
    """
    size, table = _root_.run.size, _root_.by_size
    if is_miniature_size(size):  # one architecture in three worlds
        size = MINI
    row = size.replace(".", "-")  # Hydra takes no key with a dot from the command line
    if size not in table and row not in table:
        raise BadInput(
            "this hardware has no settings for this size",
            found=size,
            expected=" | ".join(table),
            next_step=f"choose another hardware, or add a row to its table: +by_size.{row}='{{tokens: 16384, "
            "tensor_parallel: 1, offload: false, on_host: false}'",
        )
    return table[size if size in table else row][key]


def cpu_slots(ranks: int, units: int, nodes: int) -> int:
    """Ray's CPU slots that veRL 0.9.1 takes of a node with `ranks` ranks; with fewer it waits for ever.

    3 a rank (ResourcePoolManager.max_colocate_count), one for each of TransferQueue's storage units, which go round the
    nodes, and one for its controller. Servers, agent loops and rewards hold none and need none that is free (Ray 2.60).
    """
    return 3 * ranks + math.ceil(units / nodes) + 1


def ray_cpus(*, _root_: Any) -> int | None:
    """`${ray_cpus:}`: slots, not cores, of a Ray of the run's own; None where it joins a cluster, which has its own."""
    if _root_.ray_kwargs.ray_init.get("address"):
        return None
    units = int(_root_.transfer_queue.backend.SimpleStorage.num_data_storage_units)
    return max(usable_cores(), cpu_slots(int(_root_.trainer.n_gpus_per_node), units, 1))


def optimizer_threads(*, _root_: Any) -> int:
    """`${optimizer_threads:}`: a rank's part of the cores where AdamW runs on the host; else Ray's own 1."""
    on_host = _root_.actor_rollout_ref.actor.fsdp_config.offload_policy
    return max(1, usable_cores() // int(_root_.trainer.n_gpus_per_node)) if on_host else 1


def planted_ids(kind: str) -> Any:
    """`${planted_ids:KIND}`: the token ids of the miniature's planted words, KIND of "spurious" and "useful"."""
    from omegaconf import OmegaConf

    from stapo_training.miniature.tokenizer import pieces
    from stapo_training.miniature.worlds import PLANTED

    ids_of = {piece: i for i, (piece, _) in enumerate(pieces())}
    return OmegaConf.create([ids_of[word] for word in PLANTED[kind]])


def validation(key: str, *, _root_: Any) -> float:
    """`${validation:KEY}`: "temperature" or "top_p" of the run's first validation setting.

    Raises:
        BadInput: `run.validation_settings` is no list of different settings.
    """
    settings = _root_.run.validation_settings
    names = [] if isinstance(settings, str) else list(settings or ())
    if not names or len({*names} & {*SETTINGS}) < len(names):
        raise BadInput(
            "run.validation_settings is no list of different settings",
            found=settings,
            expected=f"one or more of {', '.join(SETTINGS)}",
            next_step=f"run.validation_settings=[{','.join(SETTINGS)}]",
        )
    return SETTINGS[names[0]][("temperature", "top_p").index(key)]


def cpu_dtype(width: str = "long", *, _root_: Any) -> str:
    """`${cpu_dtype:}`: float32 or bfloat16, as `run.cpu_dtype` says or this processor is fast at; `${cpu_dtype:short}`:
    fp32 or bf16.

    Raises:
        BadInput: run.cpu_dtype is none of them.
    """
    asked, known = _root_.run.cpu_dtype, {"float32": "fp32", "bfloat16": "bf16"}
    dtype = {"auto": "bfloat16" if fast_bf16() else "float32"}.get(asked, asked)
    if dtype not in known:
        expected = " | ".join(("auto", *known))
        raise BadInput("unknown run.cpu_dtype", found=asked, expected=expected, next_step="run.cpu_dtype=auto")
    return dtype if width == "long" else known[dtype]


def fetched(model: str) -> str:
    """`${fetched:MODEL}`: where `stapo-train fetch MODEL` puts a model."""
    return str(store.cache_folder() / model / "model")


def cpu_threads(processes: int, *, _root_: Any) -> int:
    """`${cpu_threads:PROCESSES}`: torch's threads of each of so many processes, as `run.cpu_threads` says or from this
    machine's cores.

    Raises:
        BadInput: run.cpu_threads is no number from 1 on.
    """
    asked = _root_.run.cpu_threads
    if asked == "auto":
        return max(1, usable_cores() // int(processes))
    if type(asked) is not int or asked < 1:
        expected = "auto, or a number from 1 on"
        raise BadInput("unknown run.cpu_threads", found=asked, expected=expected, next_step="run.cpu_threads=auto")
    return asked


def validates(*, _root_: Any) -> bool:
    """`${validates:}`: whether trainer.test_freq asks for validations; the one before the training is one of them."""
    return int(_root_.trainer.test_freq) > 0


def package(name: str) -> str:
    """`${package:NAME}`: the folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise BadInput(f"the package {name} is not installed", next_step="pip install -e '.[train]' (README.md, Start)")
    return spec.submodule_search_locations[0]


def own_error(error: BaseException | None) -> BadInput | None:
    """The BadInput that one of these functions raised, out of the exceptions OmegaConf wraps around it."""
    while error is not None and not isinstance(error, BadInput):
        error = error.__cause__ or error.__context__
    return error


def register() -> None:
    """Make the functions known to OmegaConf; again does no harm."""
    from omegaconf import OmegaConf

    of_numbers = (per_rank, product, portion)
    of_machine = (ray_cpus, optimizer_threads, cpu_dtype, cpu_threads, fetched, package)
    for function in (*of_numbers, *of_machine, of_size, planted_ids, validation, validates):
        OmegaConf.register_new_resolver(function.__name__, function, replace=True)
