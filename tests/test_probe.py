"""`stapo-train probe`: its numbers against plain transformers in float64, its resume, and what it reads and refuses."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import eval_model
import numpy as np
import pytest
import torch

from stapo_repro.tokens.log import load
from stapo_results import store, terminal, token_log
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Run, Sample, Verdict
from stapo_training import by_hand, cli
from stapo_training.methods import Definition
from stapo_training.probe import encoding, responses
from stapo_training.probe.encoding import EncodedTokens, ModelFolder, find_model
from stapo_training.probe.run import ProbeOptions, probe
from stapo_training.probe.scoring import Scorer
from stapo_training.selection import own

TAU_P, Q = 0.004, 0.6137
SAMPLES = 16


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eval_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folder(model: Path) -> ModelFolder:
    return find_model(model)


def quiet(text: str) -> None:
    """Nowhere to print to."""


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def read(tmp_path: Path, lines: list[Any]) -> list[responses.Response]:
    return responses.read(write(tmp_path / "data.jsonl", lines))


def line(**more: Any) -> dict[str, Any]:
    return {"prompt": "one", "response": "two"} | more


LINES = [
    {
        "messages": [{"role": "user", "content": f"What is {i} + {i}?"}],
        "response": f"{k}: it is{'...' * i} \\boxed{{{i + k % 2}}}." + "!" * (7 * k),
        "correct": k % 2 == 0,
        "finish_reason": "length" if k == 3 else "stop",
    }
    for i in range(5)
    for k in range(4)
]


def options(model: Path, folder: Path, **more: Any) -> ProbeOptions:
    known = {"model": model, "data": folder / "data.jsonl", "out": folder / "out", "tau_p": TAU_P, "q": Q}
    return ProbeOptions(**(known | {"mini_batch": 8, "batch_tokens": 256} | more))


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe of LINES: 20 responses in mini-batches of 8, 8 and 4."""
    folder = tmp_path_factory.mktemp("probe")
    write(folder / "data.jsonl", LINES)
    probe(options(model, folder), say=quiet)
    return folder


def test_a_mask_of_ones_own_and_the_random_one_on_responses_that_exist(
    model: Path, finished: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("""
import math
from stapo_training.selection.selectors import Selection

def full(stats, *, tau_p, pool):
    rare_N = stats.response_N & (stats.advantage_N > 0) & (stats.logprob_N.double().exp() < tau_p)
    return Selection(stats.response_N & ~rare_N, rare_N, math.inf)
""")
    write(tmp_path / "data.jsonl", LINES)
    logs = {}
    for name in (f"{mine}:full", "silence_low_probability", "silence_random"):
        o = options(model, tmp_path, out=tmp_path / name.rpartition(":")[2], selector=name)
        probe(o, say=quiet)
        logs[name] = load(o.out)
    s2t, (full, ours, random) = load(finished / "out"), logs.values()
    for log in logs.values():  # which tokens are rare, and S2T's threshold, no mask changes
        assert np.array_equal(log.rows["rare"], s2t.rows["rare"])
        assert np.array_equal(log.rows["tau_h"], s2t.rows["tau_h"], equal_nan=True)
    assert np.array_equal(full.silenced, ours.silenced)
    assert full.silenced.sum() == s2t.rows["rare"].sum() > random.silenced.sum() > 0
    assert full.part_names == ("the mask would silence", "the mask would keep")
    assert full.record is not None
    assert full.record.revisions["selector"] == f"sha256:{store.sha256_file(mine)}"
    assert full.header.selector == "mine.py:full"
    with pytest.raises(BadInput, match="--selector"):
        probe(options(model, tmp_path, out=tmp_path / "none", selector="silence_all"), say=quiet)
    elsewhere = tmp_path / "elsewhere" / "mine.py"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(mine.read_bytes())
    again = options(model, tmp_path, out=tmp_path / "full", selector=f"{elsewhere}:full")
    probe(again, say=quiet)  # the same function: finished
    elsewhere.write_text(elsewhere.read_text() + "\n")
    own.load.cache_clear()
    with pytest.raises(BadInput, match="another run"):
        probe(again, say=quiet)


def test_a_probe_of_before_masks_had_a_name_is_finished(model: Path, finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished / "out", tmp_path / "out"))
    record = store.read_json(out / "run.json", Run)
    config = {k: v for k, v in record.config.items() if k != "selector"}
    store.write_json(out / "run.json", record.model_copy(update={"config": config}))
    said: list[str] = []
    probe(options(model, finished, out=out), say=said.append)
    assert "is finished" in said[0]


def test_one_chat_in_two_templates_is_two_prompts(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "2+2?"}], "response": "4", "reward": 1}
    lines = [chat, chat | {"chat_template_kwargs": {"enable_thinking": False}}]
    one, other = read(tmp_path, lines)
    assert one.prompt_id != other.prompt_id
    with pytest.raises(BadInput, match="two prompts"):
        read(tmp_path, [line | {"prompt_id": "p", "sample": i} for i, line in enumerate(lines)])
    with pytest.raises(BadInput, match="chat_template"):
        read(tmp_path, [chat | {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}])


def test_a_probe_without_a_right_and_a_wrong_response_to_one_prompt_says_so(model: Path, tmp_path: Path) -> None:
    write(tmp_path / "data.jsonl", [{**LINES[0], "correct": True}, {**LINES[1], "correct": True}])
    said: list[str] = []
    probe(options(model, tmp_path), say=said.append)
    assert "every advantage is 0" in said[0]


def test_a_cpu_scores_few_tokens_at_a_time_and_the_record_says_how_many(model: Path, tmp_path: Path) -> None:
    write(tmp_path / "data.jsonl", LINES[:4])
    probe(options(model, tmp_path, batch_tokens=0), say=quiet)
    assert store.read_json(tmp_path / "out" / "run.json", Run).config["batch_tokens"] == 1024


def by_float64(model: Path) -> list[dict[str, Any]]:
    """A row for each token of LINES, from the full logits of a float64 model, one sequence at a time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain = AutoModelForCausalLM.from_pretrained(model).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = []
    for i, line in enumerate(LINES):
        text = f"<|im_start|>{line['messages'][0]['content']}<|im_end|><|im_start|>"
        start = len(ids := tokenizer(text, add_special_tokens=False).input_ids)
        ids += tokenizer(line["response"], add_special_tokens=False).input_ids
        ids += [2] if line["finish_reason"] == "stop" else []
        with torch.no_grad():
            logp = plain(torch.tensor([ids])).logits[0].log_softmax(-1)
        chat = json.dumps(line["messages"], sort_keys=True)  # a prompt's id is made from it
        for at in range(start, len(ids)):
            here = logp[at - 1]
            found.append(
                {
                    "step": 1 + i // 8,
                    "mini_batch": 1,
                    "prompt_id": f"prompt-{hashlib.sha256(chat.encode()).hexdigest()[:12]}",
                    "sample": i % 4,
                    "position": at - start,
                    "token": ids[at],
                    "before": ids[max(0, at - 24) : at],
                    "after": ids[at + 1 : at + 9],
                    "advantage": 0.75**0.5 * (-1) ** i,  # two of four are right: +-1 / (unbiased std sqrt(4 / 3))
                    "logprob": float(here[ids[at]]),
                    "entropy": -float((here.exp() * here).sum()),
                    "collision": float(here.exp().square().sum()),
                    "top_tokens": here.topk(5).indices.tolist(),
                    "top_logprobs": here.topk(5).values.tolist(),
                    "ratio": 1.0,
                    "clipped": False,
                }
            )
    return found


TOLERANCE = {"advantage": 1e-5, "logprob": 1e-4, "entropy": 1e-5, "collision": 1e-4, "top_logprobs": 1e-4}


def test_the_log_says_what_plain_logits_in_float64_say(model: Path, finished: Path) -> None:
    """Rows, contexts and counts, worked out apart from the code under test; S2T's verdict by `by_hand`."""
    log = token_log.read(finished / "out")
    assert log is not None
    exact, norms = by_float64(model), log.histogram["norm_sum"].to_pylist()
    s2t = Definition(selector="silence_spurious", tau_p=TAU_P, q=Q)
    unused = dict.fromkeys(f.name for f in fields(by_hand.TokensByHand))
    for step in (1, 2, 3):
        batch = [t for t in exact if t["step"] == step]
        logprob, entropy, advantage = (np.array([t[k] for t in batch]) for k in ("logprob", "entropy", "advantage"))
        statistics = unused | {"logprob_N": torch.from_numpy(logprob), "entropy_N": entropy}
        kept, rare = by_hand.kept(s2t, by_hand.TokensByHand(**statistics), torch.from_numpy(advantage))
        expected = [t | {"rare": True, "silenced": not k} for t, k, c in zip(batch, kept, rare, strict=True) if c]
        expected.sort(key=lambda t: (t["prompt_id"], t["sample"], t["position"]))
        mine = [r for r in log.tokens.to_pylist() if r["step"] == step]
        assert len(mine) == len(expected) > 20
        for row, exactly in zip(mine, expected, strict=True):
            for name, value in exactly.items():
                close = TOLERANCE.get(name)
                assert row[name] == (value if close is None else pytest.approx(value, rel=close, abs=close)), name
            assert row["silenced"] == (row["entropy"] < row["tau_h"])
        counts = [c for c in log.histogram.to_pylist() if c["step"] == step]
        assert sum(c["tokens"] for c in counts) == len(batch)
        assert sum(c["tokens"] for c in counts if c["rare"]) == len(mine)
        assert sum(c["tokens"] for c in counts if c["silenced"]) == sum(r["silenced"] for r in mine)
    exact_norms = [abs(t["advantage"]) * math.sqrt(1 - 2 * math.exp(t["logprob"]) + t["collision"]) for t in exact]
    assert sum(norms) == pytest.approx(sum(exact_norms), rel=1e-4)


def test_the_record_says_where_it_comes_from_and_a_second_run_changes_nothing(model: Path, finished: Path) -> None:
    out = finished / "out"
    record = store.read_json(out / "run.json", Run)
    assert (record.kind, record.status, record.deterministic) == ("probe", "done", True)
    parts = {
        "model": model / "model.safetensors",
        "tokenizer": model / "tokenizer.json",
        "data": finished / "data.jsonl",
    }
    hashes = {name: f"sha256:{store.sha256_file(file)}" for name, file in parts.items()}
    assert record.revisions == hashes | {"settings": record.revisions["settings"]}
    assert (out / "token_log/tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    log = token_log.read(out)
    assert log is not None
    h = log.header
    assert (h.selector, h.mode, h.tau_p, h.q) == ("silence_spurious", "on", TAU_P, Q)
    before = files(out)
    probe(options(model, finished))
    assert files(out) == before


def test_other_settings_of_a_model_are_another_model(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "copy")
    same = find_model(copy).revisions
    assert same == find_model(model).revisions
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps(settings | {"another": 1}))
        assert find_model(copy).revisions["settings"] != same["settings"]


def test_a_mini_batch_without_a_token_is_refused_before_the_model_is_loaded(model: Path, tmp_path: Path) -> None:
    empty = line(response="", finish_reason="length", correct=False)
    write(tmp_path / "data.jsonl", [line(correct=True), empty])
    with pytest.raises(BadInput, match="mini-batch 2 has empty"):
        probe(options(model, tmp_path, mini_batch=1), say=quiet)
    assert not (tmp_path / "out").exists()


def files(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name[0] != "."}


def test_cut_off_between_mini_batches_it_goes_on_to_the_same_bytes(
    model: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill left the second mini-batch's counts without its rows."""
    shutil.copy(finished / "data.jsonl", tmp_path)
    mine = options(model, tmp_path)
    write_step = token_log.write

    def cut(folder: Path, step: int, *rest: Any) -> int:
        if step < 2:
            return write_step(folder, step, *rest)
        counts = token_log.to_bytes(token_log.HISTOGRAM, rest[1], rest[2])
        store.write_atomic(token_log.shard_files(folder, 2)[1], counts)
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(token_log, "write", cut)
        with pytest.raises(KeyboardInterrupt):
            probe(mine, say=quiet)
    assert store.read_json(mine.out / "run.json", Run).status == "interrupted"
    first = (mine.out / "token_log/00000001.parquet").stat().st_mtime_ns
    probe(mine, say=quiet)
    assert (mine.out / "token_log/00000001.parquet").stat().st_mtime_ns == first
    assert files(mine.out / "token_log") == files(finished / "out/token_log")
    record = store.read_json(mine.out / "run.json", Run)
    assert (record.status, [r.start for r in record.resumptions]) == ("done", ["8 of 20 responses"])


@pytest.mark.slow
def test_killed_and_started_again_it_ends_in_the_same_bytes(model: Path, tmp_path: Path, monkeypatch) -> None:
    """SIGKILL of the real command as soon as some mini-batches are on disk, twice."""
    write(tmp_path / "data.jsonl", [line | {"prompt_id": f"p{i}"} for i, line in enumerate(LINES * 20)])
    probe(options(model, tmp_path, mini_batch=1), say=quiet)
    args = ["--model", model, "--data", tmp_path / "data.jsonl", "--out", tmp_path / "killed", "--mini-batch", 1]
    args += ["--tau-p", TAU_P, "--q", Q, "--batch-tokens", 256]
    command = [sys.executable, "-m", "stapo_training.cli", "probe", *map(str, args)]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    log = tmp_path / "killed/token_log"
    for least in (3, 150):
        child = subprocess.Popen(command)
        while child.poll() is None and len(list(log.glob("*.parquet"))) < least:
            time.sleep(0.002)
        child.kill()
        assert child.wait() == -9
    subprocess.run(command, check=True)
    assert files(log) == files(tmp_path / "out/token_log")
    assert len(store.read_json(tmp_path / "killed/run.json", Run).resumptions) == 2


def test_other_options_other_data_and_a_foreign_folder_are_refused(model: Path, finished: Path, tmp_path: Path) -> None:
    before = files(finished / "out")
    write(tmp_path / "data.jsonl", LINES[:8])
    (tmp_path / "out/token_log").mkdir(parents=True)
    for given_, found in (
        (options(model, finished, q=0.5), "q: 0.6137 there, 0.5 now"),
        (options(model, tmp_path, out=finished / "out"), "revision data: "),
        (options(model, tmp_path), "token_log"),
    ):
        with pytest.raises(BadInput) as caught:
            probe(given_)
        assert str(caught.value.found).startswith(found)
        assert ";" not in str(caught.value.found)
    assert files(finished / "out") == before


def test_full_mode_the_bound_on_rows_and_the_drivers_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(terminal.PROGRESS, str(tmp_path / "progress.json"))
    write(tmp_path / "data.jsonl", LINES[:8])
    probe(options(model, tmp_path, mode="full"), say=quiet)
    whole = token_log.read(tmp_path / "out")
    probe(options(model, tmp_path, mode="full", most_rows=50, out=tmp_path / "few"), say=quiet)
    few = token_log.read(tmp_path / "few")
    assert whole is not None
    assert few is not None
    tokens = sum(whole.histogram["tokens"].to_pylist())
    assert terminal.read_progress(tmp_path / "progress.json") == {"stage": "probe", "done": 8, "total": 8, "values": {}}
    assert (whole.tokens.num_rows, whole.header.left_out) == (tokens, 0)
    assert (few.tokens.num_rows, few.header.left_out) == (50, tokens - 50)
    assert few.histogram.equals(whole.histogram)
    rows = {json.dumps(r) for r in whole.tokens.to_pylist()}
    assert all(json.dumps(r) in rows for r in few.tokens.to_pylist())


# the model


def _rows(vocabulary: int, lengths: list[tuple[int, int]]) -> list[EncodedTokens]:
    draw = np.random.default_rng(0)
    return [EncodedTokens(*(draw.integers(0, vocabulary, n, dtype=np.int32) for n in pair)) for pair in lengths]


def test_the_batch_around_a_response_changes_nothing_but_rounding(model: Path) -> None:
    folder = find_model(model)
    rows = _rows(folder.vocabulary, [(5, n) for n in (1, 30, 2, 77, 14, 140, 3)])
    scorer = Scorer(folder, dtype="fp32", device="cpu")
    alone = scorer.score(rows, batch_tokens=1)
    for tokens in (100, 300, 100_000):
        together = scorer.score(rows, batch_tokens=tokens)
        for name in ("logprob_T", "entropy_T", "collision_T", "top_logprob_TK"):
            torch.testing.assert_close(getattr(together, name), getattr(alone, name), rtol=0, atol=2e-5)
    rough = Scorer(folder, dtype="bf16", device="cpu").score(rows, batch_tokens=300)
    assert 1e-4 < (rough.logprob_T - alone.logprob_T).abs().mean() < 0.3


def test_a_model_that_caps_its_logits_is_refused(tmp_path: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = Gemma2Config(**sizes, vocab_size=300, num_key_value_heads=1, head_dim=16, initializer_range=2.0)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(BadInput) as caught:
        Scorer(ModelFolder(tmp_path, 300, 64, None), dtype="fp32", device="cpu").check(_rows(300, [(8, 8)])[0])
    assert caught.value.found == "Gemma2ForCausalLM"


def changed(model: Path, out: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, out)
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_weights_that_lack_a_tensor_are_refused_not_drawn(model: Path, tmp_path: Path) -> None:
    lacking = changed(model, tmp_path / "model", lambda t: t.pop("model.layers.0.mlp.up_proj.weight"))
    with pytest.raises(BadInput) as caught:
        Scorer(find_model(lacking), dtype="fp32", device="cpu")
    assert "model.layers.0.mlp.up_proj.weight" in str(caught.value.found)
    file = lacking / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadInput):
        Scorer(find_model(lacking), dtype="fp32", device="cpu")


def test_weights_that_are_not_finite_fail_by_name(model: Path, tmp_path: Path) -> None:
    broken = changed(model, tmp_path / "model", lambda t: t["model.norm.weight"].fill_(float("inf")))
    write(tmp_path / "data.jsonl", LINES[:4])
    with pytest.raises(RunFailed):
        probe(options(broken, tmp_path), say=quiet)
    assert store.read_json(tmp_path / "out/run.json", Run).status == "failed"


# an evaluation


@pytest.fixture(scope="module")
def evaluated(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real evaluation of the tiny model: 2 benchmarks x 6 problems x 16 samples of 2 tokens, temperature 1."""
    from stapo_eval.options import RunOptions
    from stapo_eval.run import run as evaluate

    root = tmp_path_factory.mktemp("evaluation")
    eval_model.benchmarks(root / "data")
    evaluate(
        RunOptions(
            model=str(model),
            benchmarks="sums,longer-sums",
            data_dir=str(root / "data"),
            settings="t1.0",
            n=SAMPLES,
            max_tokens=2,
            threads=1,
            out=str(root / "run"),
        )
    )
    return root


def test_an_evaluation_end_to_end(model: Path, evaluated: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """The probe's log-probabilities are those that the engine drew with, wherever the text gives the same tokens."""
    from stapo_eval.export import export

    out, run = tmp_path / "out", evaluated / "run"
    (data,) = export(run, "responses", tmp_path)
    args = ["--model", model, "--data", data, "--out", out, "--mode", "full"]
    monkeypatch.setattr("sys.argv", ["stapo-train", "probe", *map(str, args)])
    assert cli.main() == 0
    assert f"next: stapo-repro tokens {out}" in capsys.readouterr().out
    log = token_log.read(out)
    assert log is not None
    sums: dict[tuple[str, int], list[float]] = {}
    advantage = {}
    for r in log.tokens.to_pylist():
        key = (r["prompt_id"], r["sample"])
        sums.setdefault(key, []).append(r["logprob"])
        advantage[key] = r["advantage"]
    right = {(v.problem_id, v.sample_index): v.correct for v in store.read(run / "verdicts.jsonl", Verdict)}
    compared = 0
    for s in store.read(run / "samples.jsonl", Sample):
        key = (f"{s.cell.split('/')[-3]}/t1.0/{s.problem_id}", s.sample_index)
        if key not in sums:  # two special tokens, which leave no text
            continue
        reward = np.array([1.0 if right[s.problem_id, i] else -1.0 for i in range(SAMPLES)])
        expected = (reward[s.sample_index] - reward.mean()) / (reward.std(ddof=1) + 1e-6)
        assert advantage[key] == pytest.approx(expected, rel=1e-5)
        if s.finish_reason == "length" and "\ufffd" not in s.response and len(sums[key]) == s.response_tokens:
            compared += 1
            assert s.logprob_sum == pytest.approx(sum(sums[key]), abs=1e-4)
    assert len({round(a, 3) for a in advantage.values()}) > 2
    assert compared >= 10


# advantages


def test_rewards_by_hand_a_group_of_one_and_equal_rewards(tmp_path: Path) -> None:
    """(0, 1, 5): mean 2, unbiased std sqrt(7). Three times 0.1 has a mean that is not 0.1 in floating point."""
    given_ = [("a", 0), ("b", 0.1), ("a", 1), ("c", 3.5), ("b", 0.1), ("a", 5), ("b", 0.1)]
    found = [r.advantage for r in read(tmp_path, [line(prompt=p, reward=x) for p, x in given_])]
    a = [x / math.sqrt(7) for x in (-2, -1, 3)]
    assert found == pytest.approx([a[0], 0.0, a[1], 0.0, 0.0, a[2], 0.0], rel=1e-5)
    assert found[1] == found[3] == found[4] == found[6] == 0.0
    both = [line(advantage=-0.25, reward=3, correct=True), line(advantage=7, reward=1, correct=False)]
    assert [r.advantage for r in read(tmp_path, both)] == [-0.25, 7.0]


def test_groups_of_samples_pass_as_in_a_training(tmp_path: Path) -> None:
    """Samples 0 and 1 of each prompt, then 2 and 3; two rewards a and b differ by +-1/sqrt(2) of their spread."""
    lines = [line(prompt=p, reward=x) for p, x in zip("ababaa", (0, 1, 1, 0, 1, 1), strict=True)]
    rows = responses.read(write(tmp_path / "data.jsonl", lines), group=2)
    assert [(r.prompt, r.sample) for r in rows] == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("a", 3)]
    half = math.sqrt(0.5)
    assert [r.advantage for r in rows] == pytest.approx([-half, half, half, -half, 0, 0], rel=1e-5)


# forms


def test_groups_and_samples_of_plain_lines(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "q"}]
    lines = [
        line(prompt_id=7, correct=True),
        {"messages": chat, "response": "x", "correct": False},
        line(prompt_id=7, correct=False, finish_reason="length", more="ignored"),
        {"messages": chat, "response_tokens": [5, 6], "correct": True, "sample": 9},
    ]
    rows = read(tmp_path, lines)
    assert [(r.prompt_id, r.sample, r.stopped, r.tokens) for r in rows[::2]] == [
        ("7", 0, True, None),
        ("7", 1, False, None),
    ]
    assert rows[1].prompt_id == rows[3].prompt_id != "7"
    assert [(r.sample, r.tokens) for r in rows[1::2]] == [(0, None), (9, [5, 6])]
    assert [r.prompt for r in rows[:2]] == ["one", chat]


# ids


def test_the_end_of_turn_stands_behind_what_ended(tmp_path: Path, folder: ModelFolder) -> None:
    finish = ["stop", "length", None]
    lines = [line(correct=True, response="ab", finish_reason=f) for f in finish]
    lines += [line(correct=True, response="ab<|im_end|>"), line(correct=True, response_tokens=[9, 8])]
    rows = read(tmp_path, lines)
    ab = folder.tokenizer("ab").input_ids
    found = [x.response.tolist() for x in encoding.encode(rows, folder)]
    assert found == [[*ab, 2], ab, [*ab, 2], [*ab, 2], [9, 8]]


def test_a_prompt_is_text_as_it_stands_or_a_chat_in_its_template(tmp_path: Path, folder: ModelFolder) -> None:
    lines = [
        {"prompt": "<|im_start|>hi<|im_end|><|im_start|>", "response": "x", "correct": True},
        {"messages": [{"role": "user", "content": "hi"}], "response": "x", "correct": True},
        {"prompt": "hi", "response": "x", "correct": True},
    ]
    hi = folder.tokenizer("hi").input_ids
    found = [x.prompt.tolist() for x in encoding.encode(read(tmp_path, lines), folder)]
    assert found == [[1, *hi, 2, 1], [1, *hi, 2, 1], hi]


# bad input

LONE = '{"prompt": "p", "response": "\\ud800", "correct": true}'
BAD_LINES: dict[str, tuple[list[Any], str, str]] = {  # lines, where the error stands, what it names
    "no JSON": ([line(correct=True), "{"], ":2", ""),
    "empty": ([], "", ""),
    "two prompts": ([line(messages=[{"role": "user", "content": "x"}])], ":1", "one of prompt"),
    "not finite": ([line(reward=1), line(reward=math.nan)], ":2", "reward: "),
    "lone surrogate": ([LONE], ":1", "response: "),
    "sample beyond the log": ([line(sample=32768, correct=True)], ":1", "sample 32,768"),
    "nothing known": ([line()], ":1", "advantage, reward or correct"),
    "mixed": ([line(correct=True), line(advantage=1)], ":2", "otherwise at"),
    "twice": ([line(sample=3, correct=True)] * 2, ":2", "first at "),
    "two prompts, one id": (
        [line(prompt_id="p", correct=True), line(prompt_id="p", prompt="other", correct=True)], ":2", "another prompt"
    ),
    "empty prompt": ([line(prompt="", correct=True)], ":1", ""),
    "foreign id": ([line(response_tokens=[1, 283], correct=True)], ":1", "id 283"),
    "huge id": ([line(response_tokens=[10**12], correct=True)], ":1", "id 1000000000000"),
    "too long": ([line(correct=True), line(correct=True, response="x" * 509)], ":2", "3 + 510 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LINES)
def test_each_bad_line_is_named_before_the_model_is_loaded(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, at, found = BAD_LINES[name]
    data = write(tmp_path / "data.jsonl", lines)
    monkeypatch.setattr("stapo_training.probe.scoring.Scorer", None)
    with pytest.raises(BadInput) as caught:
        probe(ProbeOptions(model=model, data=data, out=tmp_path / "out"))
    assert str(caught.value).startswith(f"{data}{at}")
    assert found in str(caught.value.found)
    assert not (tmp_path / "out").exists()


def _config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def _remote(folder: Path) -> None:
    """A model whose code would have to be run: it must not be."""
    (folder / "evil.py").write_text("raise SystemExit('was run')")
    auto = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    _config(folder, model_type="evil", auto_map=auto, architectures=["M"])


BAD_MODELS = {
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
    "pickled weights": (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "no model.safetensors"),
    "own code": (_remote, "Error"),
    "foreign tokenizer": (lambda f: _config(f, vocab_size=100), "283 tokens, 100 logits"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "Error"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_each_bad_model_folder_is_named(name: str, model: Path, tmp_path: Path) -> None:
    change, expected = BAD_MODELS[name]
    shutil.copytree(model, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(BadInput) as caught:
        find_model(tmp_path / "model")
    assert expected in str(caught.value.found)
    assert caught.value.next_step


def test_a_model_without_template_or_end_is_told_so(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").unlink(missing_ok=True)
    settings = tmp_path / "model/tokenizer_config.json"
    known = json.loads(settings.read_text())
    settings.write_text(json.dumps({k: v for k, v in known.items() if k not in ("chat_template", "eos_token")}))
    bare = find_model(tmp_path / "model")
    chat = read(tmp_path, [{"messages": [{"role": "user", "content": "x"}], "response": "y", "correct": True}])
    for rows, said in ((chat, "eos_token"), ([replace(chat[0], stopped=False)], "chat_template.jinja")):
        with pytest.raises(BadInput) as caught:
            encoding.encode(rows, bare)
        assert said in caught.value.next_step


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--tau-p", "0"), ("--q", "1.5"), ("--mini-batch", "0"), ("--data", "DIR"), ("--model", "none")],
)
def test_bad_options_end_with_exit_code_2(
    flag: str, value: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    data = write(tmp_path / "data.jsonl", [line(correct=True)])
    given_ = {"--model": str(model), "--data": str(data), "--out": str(tmp_path / "out")}
    given_ |= {flag: value.replace("DIR", str(tmp_path))}
    monkeypatch.setattr("sys.argv", ["stapo-train", "probe", *(x for pair in given_.items() for x in pair)])
    assert cli.main() == 2
    assert capsys.readouterr().err.startswith(f"error: {flag}")
    assert not (tmp_path / "out").exists()
