"""Every method on every size and machine: it composes, veRL accepts it, and the documentation says what it is."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stapo_repro.testbed.plan import ARMS, RATES
from stapo_results import generated
from stapo_results.errors import BadInput
from stapo_training import pages as config_docs
from stapo_training.pages import compose, place
from stapo_training.registry import definition_of, methods
from stapo_training.run import configuration, resolvers
from stapo_training.run.preflight import check_sizes, find_shape

ROOT = Path(__file__).resolve().parents[1]
METHODS, SIZES, MACHINES = (configuration.choices(g) for g in ("method", "size", "hardware"))


@pytest.fixture(scope="module", autouse=True)
def quick_composition() -> Iterator[None]:
    """A third of a composition's time is PyYAML's Python parser and the collector walking the ones kept before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
        gc.disable()
        yield
        gc.enable()


def test_the_methods_sizes_and_machines_of_the_suite() -> None:
    assert set(METHODS) == set(methods())  # the registry's
    assert len(METHODS) == 26
    assert SIZES == ["mini", "qwen3-1.7b", "qwen3-8b", "qwen3-14b", "smollm2-135m"]
    assert MACHINES == ["1gpu", "8gpu", "64gpu", "cpu", "cpu-2nodes", "cpu-vllm"]


@pytest.mark.parametrize("method", METHODS)
def test_an_overlay_has_the_numbers_of_the_registry(method: str) -> None:
    entry = methods()[method]
    assert definition_of(compose([f"method={method}"])) == entry.definition
    named = entry.definition.model_dump(exclude_defaults=True)
    assert set(named) - {"loss"} <= set(entry.sources)  # every number but JustRL's has its source


def accepted_by_verl(config: Any) -> None:
    """veRL's validation, the dataclasses its workers build, and what its workers assert once they hold GPUs."""
    from omegaconf import open_dict
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    from stapo_training.methods import selector_from
    from stapo_training.verl_ext import run as verl_run

    verl_run.validate(config)
    a = config.actor_rollout_ref
    selector_from(a.selector)
    get_policy_loss_fn(a.actor.policy_loss.loss_mode)
    get_reward_manager_cls(config.reward.reward_manager.name)
    for part in (a.rollout, a.actor, config.algorithm):
        omega_conf_to_dataclass(part)
    ref = a.ref.copy()
    with open_dict(ref):  # ActorRolloutRefWorker.init_model renames these
        ref.ppo_mini_batch_size = a.actor.ppo_mini_batch_size
        ref.ppo_micro_batch_size = ref.pop("log_prob_micro_batch_size")
        ref.ppo_micro_batch_size_per_gpu = ref.pop("log_prob_micro_batch_size_per_gpu")
        ref.use_dynamic_bsz = ref.pop("log_prob_use_dynamic_bsz")
        ref.ppo_max_token_len_per_gpu = ref.pop("log_prob_max_token_len_per_gpu")
    omega_conf_to_dataclass(ref)
    assert a.actor.use_dynamic_bsz == a.rollout.log_prob_use_dynamic_bsz
    check_sizes(config)


@pytest.mark.slow
def test_every_method_on_one_size_and_every_size_with_one_method_are_accepted() -> None:
    """And the tables' two assumptions: no method changes what a place decides, no place what a method is."""
    there = config_docs.PAPER_PLACE
    expected = config_docs.place_row(compose(there))
    for method in METHODS:
        config = compose([f"method={method}", *there])
        accepted_by_verl(config)
        assert config.run.method == method
        row = config_docs.place_row(config)
        if method == "stapo-per-response":  # its overlay has a form of its own
            row["`selector.form`"] = expected["`selector.form`"]
        assert row == expected
    # what differs from hardware=cpu in these two is made for the miniature
    places = [(s, m) for s, m in config_docs.made_for() if not (s.startswith("qwen3") and m.startswith("cpu-"))]
    expected = config_docs.method_row(compose(["method=stapo", *there]))
    for size, machine in places:
        config = compose(["method=stapo", *place(size, machine)])
        accepted_by_verl(config)
        assert config_docs.method_row(config) == expected


def test_the_methods_table_counts_the_records_as_they_are() -> None:
    page = ROOT / "docs" / "README.md"
    block = config_docs.methods_table(ROOT / "results" / "records")
    generated.renew(files := {}, page, "methods", block)
    assert files[page] == page.read_bytes(), "stapo-train configs writes it"


@pytest.mark.slow
def test_the_generated_pages_are_what_the_configurations_give() -> None:
    stale = [p.name for p, text in config_docs.render(ROOT / "docs").items() if p.read_bytes() != text]
    assert stale == [], "stapo-train configs writes them"


def test_a_decided_value_that_the_configuration_does_not_hold_is_refused() -> None:
    row = config_docs.Decided(
        what="tau_p", key="actor_rollout_ref.selector.tau_p", value=0.003, basis="stated", source="table"
    )
    with pytest.raises(BadInput) as e:
        config_docs.defaults_table([row])
    assert ("0.002" in str(e.value.found), e.value.expected) == (True, "0.003")


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ([], "stapo"),
        (["tau_p=2e-4"], "stapo-tau0.0002"),
        (["tau_p=2e-2"], "stapo-tau0.02"),
        (["tau_p=2e-3", "q=0.75"], "stapo"),
        (["q=0.25"], "stapo-q0.25"),
        (["q=1.0"], "stapo-q1.0"),
        (["tau_p=2e-4", "q=0.5"], "stapo-tau0.0002-q0.5"),
        (["scope=micro_batch"], "stapo-micro_batch"),
    ],
)
def test_runs_of_different_selectors_never_share_a_label(overrides: list[str], label: str) -> None:
    config = compose([*(f"actor_rollout_ref.selector.{o}" for o in overrides)])
    assert config.run.method == label
    assert config.trainer.experiment_name == f"{label}-qwen3-1.7b-s0"


@pytest.mark.parametrize(("rate", "lr"), RATES.items())
def test_the_testbeds_long_arms_have_the_learning_rate_of_their_name(rate: str, lr: str) -> None:
    config = compose([*ARMS[f"justrl{rate}"].choices, "size=mini", "hardware=cpu", "task=mini-add", "run.base=base"])
    assert (config.run.method, config.actor_rollout_ref.actor.optim.lr) == (f"justrl{rate}", float(lr))


def test_a_label_of_ones_own_stays() -> None:
    assert compose(["actor_rollout_ref.selector.q=0.5", "run.method=mine"]).run.method == "mine"


def test_what_leaves_the_mask_alone_leaves_the_label_alone() -> None:
    own = {"name": "silence_spurious", "policy": "current", "q": 0.75, "form": "speculative"}
    assert configuration.label("stapo", {**own, "form": "two_pass", "log_entropy": False}, own) == "stapo"
    assert configuration.label("stapo", {**own, "policy": "old"}, own) == "stapo-old"


@pytest.mark.parametrize(
    ("size", "machine", "tokens", "parallel", "offload", "host"),
    [
        ("qwen3-1.7b", "8gpu", 32768, 1, False, False),
        ("qwen3-8b", "8gpu", 32768, 1, True, False),
        ("qwen3-14b", "8gpu", 16384, 2, True, False),
        ("qwen3-14b", "64gpu", 32768, 2, False, False),
        ("qwen3-1.7b", "1gpu", 32768, 1, True, False),
        ("qwen3-8b", "1gpu", 32768, 1, False, True),
        ("qwen3-14b", "1gpu", 16384, 1, False, True),
    ],
)
def test_a_machines_table_is_read_by_size(size, machine, tokens, parallel, offload, host) -> None:
    a = compose(place(size, machine)).actor_rollout_ref
    fsdp = a.actor.fsdp_config
    assert a.actor.ppo_max_token_len_per_gpu == a.rollout.log_prob_max_token_len_per_gpu == tokens
    assert a.rollout.tensor_model_parallel_size == parallel
    assert (fsdp.param_offload, fsdp.optimizer_offload, fsdp.offload_policy) == (offload, offload, host)


def test_a_size_that_the_machine_does_not_know_is_refused() -> None:
    with pytest.raises(BadInput) as e:
        compose([*place("mini", "8gpu"), "run.size=huge"])
    assert (e.value.found, "+by_size.huge" in e.value.next_step) == ("huge", True)
    row = "{tokens: 9000, tensor_parallel: 4, offload: false, on_host: false}"
    config = compose([*place("mini", "8gpu"), "run.size=huge", f"+by_size.huge={row}"])
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 9000


def test_of_two_choices_the_last_counts() -> None:
    config = configuration.compose([*config_docs.FOLDERS, *config_docs.PAPER_PLACE, "method=grpo", "hardware=64gpu"])
    assert (config.trainer.nnodes, config.run.method, config.ray_kwargs.ray_init.address) == (8, "grpo", "auto")


@pytest.mark.parametrize(
    ("ranks", "units", "nodes", "slots"),
    [
        (1, 8, 1, 12),  # 3 + 8 + controller: veRL's own 8 storage units
        (8, 8, 1, 33),
        (1, 1, 1, 5),  # hardware=1gpu and cpu: with 4 a run waits for ever, with 5 it trains (tried)
        (8, 2, 1, 27),  # hardware=8gpu
        (8, 8, 8, 26),  # hardware=64gpu, a node: 24 + 1 + 1
    ],
)
def test_cpu_slots_of_a_node_by_hand(ranks: int, units: int, nodes: int, slots: int) -> None:
    assert resolvers.cpu_slots(ranks, units, nodes) == slots


@pytest.mark.parametrize(
    ("cores", "machine", "slots", "threads"),
    [
        (4, "1gpu", 5, 4),  # 8B: AdamW on the host
        (64, "1gpu", 64, 64),
        (2, "8gpu", 27, 1),  # AdamW on the cards: Ray's own 1
        (64, "64gpu", None, 1),  # the cluster's own
        (2, "cpu", 5, None),
    ],
)
def test_slots_and_threads_by_the_machines_cores(
    cores: int, machine: str, slots: int | None, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolvers, "usable_cores", lambda: cores)
    ray = configuration.compose([*config_docs.FOLDERS, *place("qwen3-8b", machine)]).ray_kwargs.ray_init
    assert (ray.num_cpus, ray.runtime_env.env_vars.get("OMP_NUM_THREADS")) == (slots, threads)


@pytest.mark.parametrize(("machine", "form"), [("1gpu", "speculative"), ("8gpu", "speculative"), ("64gpu", "two_pass")])
def test_sixty_four_ranks_take_two_passes(machine: str, form: str) -> None:
    assert compose(place("qwen3-8b", machine)).actor_rollout_ref.selector.form == form


@pytest.mark.parametrize("size", ["qwen3-1.7b", "qwen3-8b", "qwen3-14b"])
def test_the_largest_tensor_fits_the_bucket_of_the_transfer(size: str) -> None:
    """The embedding in fp32: 1.24, 2.49 and 3.11 GB."""
    a = compose(place(size, "8gpu")).actor_rollout_ref
    shape = find_shape(a.model.path)
    assert 4 * shape.vocab * shape.hidden <= a.rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20


def test_arithmetic_of_the_configuration() -> None:
    assert resolvers.per_rank(64, 2) == 32
    assert resolvers.per_rank(64, 8, 8) == 1
    assert resolvers.per_rank(64, 8, 16) == 1  # never none
    assert resolvers.portion(15360, 0.2) == 3072
    assert resolvers.portion(128, 0.2) == 26
