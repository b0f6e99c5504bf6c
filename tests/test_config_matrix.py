"""Every method on every size and machine: it composes, veRL accepts it, and the documentation says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stapo_results.errors import BadInput
from stapo_training import pages as config_docs
from stapo_training.methods import definition_of, methods
from stapo_training.pages import compose, place
from stapo_training.start import configuration, resolvers
from stapo_training.start.inputs import find_shape
from stapo_training.start.settings import check_sizes

ROOT = Path(__file__).resolve().parents[1]
METHODS, SIZES, MACHINES = (configuration.choices(g) for g in ("method", "size", "hardware"))


def test_the_methods_sizes_and_machines_of_the_suite() -> None:
    assert set(METHODS) == set(methods())  # the registry's
    assert SIZES == ["mini", "qwen2.5-coder-0.5b", "qwen3-1.7b", "qwen3-8b", "qwen3-14b"]
    assert MACHINES == ["1gpu", "8gpu", "64gpu", "cpu", "cpu-2nodes", "cpu-vllm"]


@pytest.mark.parametrize("method", METHODS)
def test_an_overlay_has_the_numbers_of_the_registry(method: str) -> None:
    entry = methods()[method]
    assert definition_of(compose([f"method={method}"])) == entry.definition
    named = entry.definition.model_dump(exclude_defaults=True)
    assert set(named) - {"loss"} <= set(entry.sources)  # every number but JustRL's has its source


@pytest.mark.parametrize("override", ["actor.policy_loss.loss_mode=geo_mean", "selector.policy=old"])
def test_what_cannot_be_worked_out_by_hand_is_refused(override: str) -> None:
    with pytest.raises(BadInput):
        definition_of(compose(["method=stapo", f"actor_rollout_ref.{override}"]))


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
        assert row == expected
    expected = definition_of(compose(["method=stapo", *there]))
    for size, machine in config_docs.made_for():
        config = compose(["method=stapo", *place(size, machine)])
        accepted_by_verl(config)
        assert definition_of(config) == expected


def test_the_methods_table_counts_the_records_as_they_are() -> None:
    page = ROOT / "results" / "tables" / "methods.md"
    assert config_docs.methods_page(ROOT / "results" / "records") == page.read_text(), "stapo-train configs writes it"


@pytest.mark.slow
def test_the_generated_pages_are_what_the_configurations_give() -> None:
    stale = [p.name for p, text in config_docs.render(ROOT / "results").items() if p.read_bytes() != text]
    assert stale == [], "stapo-train configs writes them"


def test_a_decided_value_that_the_configuration_does_not_hold_is_refused() -> None:
    row = config_docs.Decided(
        what="tau_p", key="actor_rollout_ref.selector.tau_p", value=0.003, basis="stated", source="table"
    )
    with pytest.raises(BadInput) as e:
        config_docs.defaults_table([row])
    assert ("0.002" in str(e.value.found), e.value.expected) == (True, "0.003")


def test_a_size_that_the_machine_does_not_know_is_refused() -> None:
    with pytest.raises(BadInput) as e:
        compose([*place("mini", "8gpu"), "run.size=huge-0.5b"])
    assert (e.value.found, "+by_size.huge-0-5b=" in e.value.next_step) == ("huge-0.5b", True)
    row = "{tokens: 9000, tensor_parallel: 4, offload: false, on_host: false}"
    config = compose([*place("mini", "8gpu"), "run.size=huge-0.5b", f"+by_size.huge-0-5b={row}"])
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 9000


def test_of_two_choices_the_last_counts() -> None:
    config = configuration.compose([*config_docs.FOLDERS, *config_docs.PAPER_PLACE, "method=grpo", "hardware=64gpu"])
    assert (config.trainer.nnodes, config.run.method, config.ray_kwargs.ray_init.address) == (8, "grpo", "auto")


LABELS = {
    "": "stapo",
    "q=0.25": "stapo-q0.25",
    "q=1.0": "stapo-q1.0",
    "among=right": "stapo-right",
    "policy=old": "stapo-old",
    "tau_p=2e-3 q=0.75": "stapo",
    "tau_p=2e-4 q=0.5": "stapo-tau0.0002-q0.5",
}


def test_a_key_of_an_earlier_version_is_refused_by_its_name(tmp_path: Path) -> None:
    key, overlay = "actor_rollout_ref.selector.form", tmp_path / "mine.yaml"
    overlay.write_text("actor_rollout_ref:\n  selector:\n    form: two_pass\n")
    for given in ([f"{key}=speculative"], [f"+{key}=two_pass"], [f"method={overlay}"]):
        with pytest.raises(BadInput) as caught:
            compose([*config_docs.FOLDERS, *config_docs.PAPER_PLACE, *given])
        assert str(caught.value).startswith(key)
        assert "leave it out" in str(caught.value.next_step)


@pytest.mark.parametrize(("overrides", "label"), LABELS.items())
def test_runs_of_different_selectors_never_share_a_label(overrides: str, label: str) -> None:
    chosen = [f"actor_rollout_ref.selector.{o}" for o in overrides.split()]
    assert compose(chosen).run.method == label
    assert compose([*chosen, "run.method=mine"]).trainer.experiment_name == "mine-qwen3-1.7b-s0"


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
def test_slots_and_threads_by_the_machines_cores(cores: int, machine: str, slots, threads, monkeypatch) -> None:
    monkeypatch.setattr(resolvers, "usable_cores", lambda: cores)
    ray = configuration.compose([*config_docs.FOLDERS, *place("qwen3-8b", machine)]).ray_kwargs.ray_init
    assert (ray.num_cpus, ray.runtime_env.env_vars.get("OMP_NUM_THREADS")) == (slots, threads)


def test_arithmetic_of_the_configuration() -> None:
    # 3 a rank, a controller, and a node's part of the storage units (veRL's own: 8); with 4 slots hardware=1gpu waits
    # for ever, with 5 it trains (tried)
    slots = [resolvers.cpu_slots(*given) for given in ((1, 8, 1), (8, 8, 1), (1, 1, 1), (8, 2, 1), (8, 8, 8))]
    assert slots == [12, 33, 5, 27, 26]
    assert [resolvers.per_rank(64, *ranks) for ranks in ((2,), (8, 8), (8, 16))] == [32, 1, 1]  # never none
    assert [resolvers.portion(n, 0.2) for n in (15360, 128)] == [3072, 26]


def test_the_largest_tensor_fits_the_bucket_of_the_transfer() -> None:
    """14B's embedding in fp32: 3.11 GB."""
    a = compose(place("qwen3-14b", "8gpu")).actor_rollout_ref
    shape = find_shape(a.model.path)
    assert 4 * shape.vocab * shape.hidden <= a.rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20
