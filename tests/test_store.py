"""The foundation: records survive kills and refuse what they do not know; seeds, run ids and errors are stable."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_results import provenance, store
from stapo_results.errors import BadInput, RecordError, RunFailed
from stapo_results.schema import Cell, StepMetrics
from stapo_results.seeds import derive_seed


def metrics(step: int) -> StepMetrics:
    return StepMetrics(step=step, values={"reward": step / 4})


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    store.append(path, [metrics(1), metrics(2)])
    store.append(path, [metrics(3)])
    assert list(store.read(path, StepMetrics)) == [metrics(1), metrics(2), metrics(3)]
    assert path.read_text().splitlines()[0] == '{"schema_version":1,"step":1,"attempt":0,"values":{"reward":0.25}}'


@given(st.integers(0, 200))
def test_a_file_cut_anywhere_is_repaired_to_its_whole_lines(tmp_path_factory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "m.jsonl"
    store.append(path, [metrics(i) for i in range(1, 5)])
    data = path.read_bytes()
    path.write_bytes(data[: min(cut, len(data))])
    whole = data[: min(cut, len(data))].count(b"\n")
    store.repair(path)
    assert [m.step for m in store.read(path, StepMetrics)] == list(range(1, whole + 1))
    damaged = path.with_name("m.jsonl.damaged")
    kept = damaged.read_bytes().removesuffix(b"\n") if damaged.exists() else b""
    assert path.read_bytes() + kept == data[:cut]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"schema_version":2,"step":1,"values":{}}\n', "another schema version"),
        ('{"schema_ver', "12 bytes"),
        ('{"schema_version":1,"step":1,"values":{},"rewrd":1}\n', "rewrd: "),
        ("not json\n", "the record: "),
        ('{"schema_version":1,"step":1,"values":{"a":1e999}}\n', "values.a: "),
        ('{"schema_version":1,"step":1,"values":{"\udcff":1.0}}\n', "the record: "),
    ],
)
def test_a_line_that_is_not_a_record_is_refused_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "m.jsonl"
    with pytest.raises(RecordError, match="no such file"):
        next(store.read(path, StepMetrics))
    store.append(path, [metrics(1)])
    with open(path, "ab") as f:
        f.write(line.encode(errors="surrogateescape"))
    records = store.read(path, StepMetrics)
    assert next(records) == metrics(1)
    with pytest.raises(RecordError) as e:
        next(records)
    assert e.value.what.startswith(f"{path}:2: ")
    assert said in str(e.value)


def test_damaged_lines_are_set_aside_and_nothing_else(tmp_path: Path, capsys) -> None:
    path = tmp_path / "m.jsonl"
    good = [store.to_line(metrics(i)) + "\n" for i in range(3)]
    path.write_text(good[0] + "{broken\n" + good[1] + '{"step":"x"}\n' + good[2] + '{"half')
    store.repair(path, StepMetrics)
    assert path.read_text() == "".join(good)
    assert (tmp_path / "m.jsonl.damaged").read_text() == '{"half\n{broken\n{"step":"x"}\n'
    assert "(2, 4)" in capsys.readouterr().err
    store.repair(tmp_path / "none", StepMetrics)
    other = '{"schema_version":2,"step":1,"values":{}}\nbroken\n'
    path.write_text(other)
    store.repair(path, StepMetrics)
    assert path.read_text() == other


def test_kill_9_while_appending_loses_at_most_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    code = (
        "from stapo_results import store\nfrom stapo_results.schema import StepMetrics\n"
        f"i = 0\nwhile True:\n    i += 1\n    store.append({str(path)!r}, [StepMetrics(step=i, values={{'x': 0.5}})])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    while not path.exists() or path.stat().st_size < 20_000:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    store.repair(path)
    steps = [m.step for m in store.read(path, StepMetrics)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 200


def test_an_atomic_write_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    store.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range"):
        store.write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_seeds_are_the_same_everywhere_and_differ_by_every_part() -> None:
    parts = [0, "aime24", "aime24-0001", "t1.0", 3]
    assert derive_seed(*parts) == 3586129805170440335
    changed = [derive_seed(*(p if i != j else (f"{p}x" if isinstance(p, str) else p + 1) for i, p in enumerate(parts)))
               for j in range(len(parts))]  # fmt: skip
    assert len({derive_seed(*parts), *changed}) == 6
    assert derive_seed(1) != derive_seed("1")
    assert derive_seed("a", "b") != derive_seed("ab")


def test_a_run_id_depends_on_what_is_run_and_not_on_where() -> None:
    args = ({"lr": 0.1, "out": "/a/b"}, {"run": 0}, {"data": "abc"}, ("commit", ""))
    here = provenance.run_id("train", *args)
    assert provenance.run_id("train", {"lr": 0.1, "out": "/c"}, *args[1:]) == here
    others = ({"lr": 0.2, "out": "/a/b"}, {"run": 1}, {"data": "abd"}, ("commit", "dirty"))
    assert here not in {provenance.run_id("train", *args[:i], other, *args[i + 1 :]) for i, other in enumerate(others)}


@pytest.mark.parametrize("name", ["api_key", "WANDB_API_KEY", "HF_TOKEN", "token", "db_password", "client-secret",
                                  "Authorization", "apikey", "key", "hf_tokens", "accessToken"])  # fmt: skip
def test_a_value_under_a_secrets_name_is_in_no_record(name: str) -> None:
    config = {"env": {name: "s3cret"}, "list": [{name: b"s3cret"}, {name: ["s3cret"]}, {name: {"value": "s3cret"}}]}
    command = ["x", f"--{name}", "s3cret", f"++a.{name}=s3cret", f"env={{A:1,{name}:s3cret,B:2}}", "n=3"]
    made = provenance.new_run("train", config, seeds={}, deterministic=True)
    assert "s3cret" not in json.dumps([made.config, provenance.redact_command(command)])
    assert provenance.redact_command(command)[-2:] == [f"env={{A:1,{name}:(redacted),B:2}}", "n=3"]


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("Authorization: Bearer S", "Authorization: (redacted)"),
        ("--header=Authorization: Bearer S", "--header=Authorization: (redacted)"),
        ('{"api_key": "S, S", "n": 1}', '{"api_key": (redacted), "n": 1}'),
        ("extra={'token': 'S', 'n': 1}", "extra={'token': (redacted), 'n': 1}"),
        ("env={api_key:S S,B:2}", "env={api_key:(redacted),B:2}"),
        ("--url=https://user:S@host/v1", "--url=https://(redacted)@host/v1"),
        ("https://host/v1?api_key=S&n=2", "https://host/v1?api_key=(redacted)&n=2"),
        ("a.password=S, S", "a.password=(redacted)"),
    ],
)
def test_a_secret_within_an_argument_is_hidden_whole(argument: str, shown: str) -> None:
    assert provenance.redact_command(["x", argument]) == ["x", shown]


def test_what_only_sounds_like_a_secret_is_recorded() -> None:
    config = {"key_variable": "MY_KEY", "prompt_key": "prompt", "tokenization_sanity_check_mode": "strict",
              "max_tokens": 5, "tokenizer": "t", "token": False, "token_ids": ["a"], "eos_token": "</s>",
              "teacher_key": "t", "api_key": 31337, "key": ""}  # fmt: skip
    command = ["x", "--key-variable", "MY_KEY", "data.prompt_key=prompt", "--max-tokens", "5", "f={image_key: a, b: 2}",
               "--url=https://host/v1?n=2"]  # fmt: skip
    assert provenance.redact(config) == config
    assert provenance.redact_command(command) == command


def test_new_files_of_any_kind_make_a_checkout_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    who = ("-c", "user.name=n", "-c", "user.email=e")
    for words in (("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    found = [provenance.code_version.__wrapped__()[1]]
    (tmp_path / "é.txt").write_text("text")
    found.append(provenance.code_version.__wrapped__()[1])
    (tmp_path / "runs").symlink_to(tmp_path.parent)
    found.append(provenance.code_version.__wrapped__()[1])
    assert (found[0], len(set(found))) == ("", 3)


def test_what_differs_is_the_same_however_git_shows_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    (tmp_path / "a.py").write_text("1")
    who = ("-c", "user.name=n", "-c", "user.email=e")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    (tmp_path / "a.py").unlink()
    gone = provenance.code_version.__wrapped__()
    (tmp_path / "a.py").write_text("")
    assert provenance.code_version.__wrapped__() != gone
    (tmp_path / "a.py").write_text("2")
    plain = provenance.code_version.__wrapped__(), provenance.installed()
    for i, (key, value) in enumerate({"diff.external": "true", "diff.noprefix": "true", "color.ui": "always"}.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{i}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{i}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "3")
    assert (provenance.code_version.__wrapped__(), provenance.installed()) == plain
    assert "" not in plain[0]
    # a package in a folder of this checkout is not of it
    (tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(provenance, "_ROOT", tmp_path / "site-packages")
    assert provenance.code_version.__wrapped__()[0].startswith("package ")


def test_a_number_that_json_has_not_is_a_text_of_the_record(tmp_path: Path) -> None:
    made = provenance.new_run("train", {"clip": float("inf"), "list": [float("nan")]}, seeds={}, deterministic=True)
    store.write_json(tmp_path / "run.json", made)
    kept = store.read_json(tmp_path / "run.json", type(made))
    assert kept.config == made.config == {"clip": "inf", "list": ["nan"]}


def test_a_full_disk_is_named_by_the_file_that_was_written() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), store.Journal("/dev/full") as journal:
        journal.append([StepMetrics(step=1, values={})])


def test_a_checkout_of_another_user_is_named_by_its_commit(tmp_path: Path) -> None:
    """git refuses it by default; GIT_TEST_ASSUME_DIFFERENT_OWNER makes it another user's."""
    code = "from stapo_results.provenance import code_version; print(code_version()[0])"
    found = [
        subprocess.run([sys.executable, "-c", code], env=os.environ | more, capture_output=True, text=True, check=True)
        for more in ({}, {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"})
    ]
    assert found[0].stdout == found[1].stdout
    assert re.fullmatch(r"[0-9a-f]{40}\n", found[1].stdout)


@pytest.mark.parametrize(("error", "code"), [(BadInput, 2), (RecordError, 2), (RunFailed, 1)])
def test_errors_travel_between_processes_and_end_with_the_next_command(error: type, code: int) -> None:
    e = error("it failed", found=3, expected=4, next_step="try 4")
    copy = pickle.loads(pickle.dumps(e))
    assert type(copy) is error
    assert str(copy) == "it failed\n  found:    3\n  expected: 4\n  next:     try 4"
    assert copy.exit_code == code


def test_a_cell_has_a_path_and_a_file_name() -> None:
    cell = Cell(method="stapo", size="mini", train_seed=0, step=40, benchmark="mini-add", setting="t1.0")
    assert cell.id == "stapo/mini/s0/step40/mini-add/t1.0/e0"
    assert cell.slug == "stapo_mini_s0_step40_mini-add_t1.0_e0"


def test_sweep_leaves_what_another_writer_may_be_writing(tmp_path: Path) -> None:
    kept = [tmp_path / "other/.x.tmp", tmp_path / "other/deep/.x.tmp", tmp_path / ".y.tmp/file"]
    stale = [tmp_path / ".x.tmp", tmp_path / "mine/.x.tmp"]
    for path in (*kept, *stale, tmp_path / ".lock", tmp_path / "other/.lock"):
        store.write_atomic(path, "half")
    store.sweep(tmp_path)
    assert [p.exists() for p in kept] == [True, True, True]
    assert [p.exists() for p in stale] == [False, False]
