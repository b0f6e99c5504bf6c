"""What `stapo-train probe` reads: forms of lines, advantages, ids, and the message of each bad input."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import eval_model
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_results.errors import BadInput
from stapo_training import cli
from stapo_training.miniature.tokenizer import build_tokenizer
from stapo_training.probe import encoding, responses
from stapo_training.probe.encoding import ModelFolder
from stapo_training.probe.options import Options
from stapo_training.probe.run import probe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eval_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folder(model: Path) -> ModelFolder:
    return encoding.find_model(model)


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def read(tmp_path: Path, lines: list[Any]) -> list[responses.Response]:
    return responses.read(write(tmp_path / "data.jsonl", lines)).rows


def line(**more: Any) -> dict[str, Any]:
    return {"prompt": "one", "response": "two"} | more


# advantages


def test_the_papers_advantages_of_eight_responses(tmp_path: Path) -> None:
    """Appendix of the paper: G = 8, of which 1 to 7 are right."""
    lines = [line(prompt=f"p{right}", correct=k < right) for right in range(9) for k in range(8)]
    rows = read(tmp_path, lines)
    of = {right: [r.advantage for r in rows[8 * right : 8 * right + 8]] for right in range(9)}
    assert [round(of[right][0], 2) for right in range(1, 8)] == [2.47, 1.62, 1.21, 0.94, 0.72, 0.54, 0.35]
    assert [round(of[right][7], 2) for right in range(1, 8)] == [-0.35, -0.54, -0.72, -0.94, -1.21, -1.62, -2.47]
    assert of[0] == of[8] == [0.0] * 8


def test_rewards_by_hand_a_group_of_one_and_equal_rewards(tmp_path: Path) -> None:
    """(0, 1, 5): mean 2, unbiased std sqrt(7). Three times 0.1 has a mean that is not 0.1 in floating point."""
    given_ = [("a", 0), ("b", 0.1), ("a", 1), ("c", 3.5), ("b", 0.1), ("a", 5), ("b", 0.1)]
    found = [r.advantage for r in read(tmp_path, [line(prompt=p, reward=x) for p, x in given_])]
    a = [x / math.sqrt(7) for x in (-2, -1, 3)]
    assert found == pytest.approx([a[0], 0.0, a[1], 0.0, 0.0, a[2], 0.0], rel=1e-5)
    assert found[1] == found[3] == found[4] == found[6] == 0.0


def test_given_advantages_are_taken(tmp_path: Path) -> None:
    both = [line(advantage=-0.25, reward=3, correct=True), line(advantage=7, reward=1, correct=False)]
    assert [r.advantage for r in read(tmp_path, both)] == [-0.25, 7.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), min_size=1, max_size=24), st.randoms())
def test_advantages_do_not_depend_on_the_order_and_sum_to_nothing(rewards: list[tuple[int, int]], random: Any) -> None:
    def rows(pairs: list[tuple[int, int]]) -> list[responses.Response]:
        found = [responses.Response("", str(p), 0, "", "", r) for p, r in pairs]
        responses.set_advantages(found)
        return found

    shuffled = random.sample(rewards, len(rewards))
    by_pair = {(r.prompt_id, r.reward): r.advantage for r in rows(rewards)}
    for r in rows(shuffled):
        assert r.advantage == pytest.approx(by_pair[r.prompt_id, r.reward], abs=1e-9)
        same = [x.advantage for x in rows(rewards) if x.prompt_id == r.prompt_id]
        assert sum(same) == pytest.approx(0.0, abs=1e-9)
        assert not any(same) or sum(a * a for a in same) / (len(same) - 1) == pytest.approx(1.0, rel=1e-4)


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


def test_verls_dump_is_grouped_by_step_and_input(tmp_path: Path) -> None:
    lines = [
        {"input": i, "output": f"o{k}", "gts": "1", "score": s, "step": step, "uid": f"u_{k}_0"}
        for step, i, k, s in [(1, "a", 0, 1.0), (1, "b", 0, -1.0), (1, "a", 1, -1.0), (2, "a", 0, 1.0)]
    ]
    rows = read(tmp_path, lines)
    assert [round(r.advantage, 4) for r in rows] == [0.7071, 0.0, -0.7071, 0.0]
    assert rows[0].prompt_id == rows[2].prompt_id
    assert len({r.prompt_id for r in rows}) == 3
    assert [(r.sample, r.text) for r in rows] == [(0, "o0"), (0, "o0"), (1, "o1"), (0, "o0")]
    assert all(r.stripped for r in rows)


@pytest.mark.slow
def test_verl_writes_the_keys_that_are_read(tmp_path: Path) -> None:
    """The installed veRL's own writer."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    PPOTrainer._write_generations(["in"] * 2, ["x", "y"], ["g"] * 2, [1.0, 0.0], {}, str(tmp_path), 3)
    rows = responses.read(tmp_path / "3.jsonl").rows
    assert [(r.prompt, r.text, round(r.advantage, 4)) for r in rows] == [("in", "x", 0.7071), ("in", "y", -0.7071)]


# ids


def test_the_end_of_turn_stands_behind_what_ended(tmp_path: Path, folder: ModelFolder) -> None:
    finish = ["stop", "length", None]
    lines = [line(correct=True, response="ab", finish_reason=f) for f in finish]
    lines += [line(correct=True, response="ab<|im_end|>"), line(correct=True, response_tokens=[9, 8])]
    rows = read(tmp_path, lines)
    ab = folder.tokenizer("ab").input_ids
    found = [x.response.tolist() for x in encoding.encode(rows, folder)[0]]
    assert found == [[*ab, 2], ab, [*ab, 2], [*ab, 2], [9, 8]]


def test_a_prompt_is_text_as_it_stands_or_a_chat_in_its_template(tmp_path: Path, folder: ModelFolder) -> None:
    lines = [
        {"prompt": "<|im_start|>hi<|im_end|><|im_start|>", "response": "x", "correct": True},
        {"messages": [{"role": "user", "content": "hi"}], "response": "x", "correct": True},
        {"prompt": "hi", "response": "x", "correct": True},
    ]
    hi = folder.tokenizer("hi").input_ids
    found = [x.prompt.tolist() for x in encoding.encode(read(tmp_path, lines), folder)[0]]
    assert found == [[1, *hi, 2, 1], [1, *hi, 2, 1], hi]


@pytest.mark.parametrize("message", ["What is 12 + 7?", "line\nuser\nassistant\n", "  spaces  ", "é ∑"])
def test_the_special_tokens_of_a_dumped_prompt_are_put_back(message: str) -> None:
    """With a template like Qwen's, whose roles stay in the text when the special tokens are taken out."""
    tokenizer = build_tokenizer()
    folder = ModelFolder(Path(), len(tokenizer), None, tokenizer)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(chat, add_special_tokens=False).input_ids
    dumped = tokenizer.decode(ids, skip_special_tokens=True)
    assert dumped == f"user\n{message}\nassistant\n"
    row = responses.Response("", "p", 0, dumped, "1", 1.0, stripped=True)
    (found,), notes = encoding.encode([row], folder)
    assert (found.prompt.tolist(), notes) == (ids, [])


# bad input

LONE = '{"prompt": "p", "response": "\\ud800", "correct": true}'
BAD_LINES: dict[str, tuple[list[Any], str, str]] = {  # lines, where the error stands, what it names
    "no JSON": ([line(correct=True), "{"], ":2", ""),
    "empty": ([], "", ""),
    "two prompts": ([line(messages=[{"role": "user", "content": "x"}])], ":1", "one of prompt"),
    "not finite": ([line(reward=1), line(reward=math.nan)], ":2", "reward: "),
    "lone surrogate": ([LONE], ":1", "half a character at 0"),
    "sample beyond the log": ([line(sample=32768, correct=True)], ":1", "sample 32,768"),
    "no score": ([{"input": "a", "output": "b"}], ":1", "score: "),
    "nothing known": ([line()], ":1", "advantage, reward or correct"),
    "mixed": ([line(correct=True), line(advantage=1)], ":2", "otherwise at"),
    "twice": ([line(sample=3, correct=True)] * 2, ":2", "first at "),
    "two prompts, one id": (
        [line(prompt_id="p", correct=True), line(prompt_id="p", prompt="other", correct=True)], ":2", "another prompt"
    ),
    "empty prompt": ([line(prompt="", correct=True)], ":1", ""),
    "foreign id": ([line(response_tokens=[1, 283], correct=True)], ":1", "id 283"),
    "huge id": ([line(response_tokens=[10**12], correct=True)], ":1", "id 2147483647"),
    "too long": ([line(correct=True), line(correct=True, response="x" * 509)], ":2", "3 + 510 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LINES)
def test_each_bad_line_is_named_before_the_model_is_loaded(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, at, found = BAD_LINES[name]
    data = write(tmp_path / "data.jsonl", lines)
    monkeypatch.setattr("stapo_training.probe.run.Scorer", None)
    with pytest.raises(BadInput) as caught:
        probe(Options(model=model, data=data, out=tmp_path / "out"))
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
        encoding.find_model(tmp_path / "model")
    assert expected in str(caught.value.found)
    assert caught.value.next_step


def test_a_model_without_template_or_end_is_told_so(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").unlink(missing_ok=True)
    settings = tmp_path / "model/tokenizer_config.json"
    known = json.loads(settings.read_text())
    settings.write_text(json.dumps({k: v for k, v in known.items() if k not in ("chat_template", "eos_token")}))
    bare = encoding.find_model(tmp_path / "model")
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
