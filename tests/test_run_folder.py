"""A run's folder: alarms once, checkpoints whole or not, retention, and what a full disk leaves behind."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from stapo_results.errors import RunFailed, message_of
from stapo_training.folder.alarms import Alarm
from stapo_training.folder.training_folder import TrainingFolder


def save(folder: TrainingFolder, step: int, content: bytes = b"12345678") -> Path:
    path = folder.checkpoints / f"global_step_{step}"
    (path / "actor").mkdir(parents=True)
    (path / "actor" / "model.pt").write_bytes(content)
    (path / "data.pt").write_bytes(b"ab")
    return path


def test_only_a_marked_checkpoint_with_all_its_bytes_counts(tmp_path: Path, capsys) -> None:
    folder = TrainingFolder(tmp_path)
    for step in (2, 4, 10):
        save(folder, step)
    folder.complete_checkpoint(2)
    folder.complete_checkpoint(4)
    assert json.loads((tmp_path / "checkpoints/global_step_2/COMPLETE.json").read_text()) == {
        "step": 2,
        "bytes": {"actor/model.pt": 8, "data.pt": 2},
    }
    assert [(c.step, c.bytes) for c in folder.whole_checkpoints()] == [(2, 10), (4, 10)]
    (tmp_path / "checkpoints/global_step_4/actor/model.pt").write_bytes(b"123")
    assert folder.last_checkpoint() == tmp_path / "checkpoints" / "global_step_2"
    assert "global_step_4 is damaged" in capsys.readouterr().out
    # a copy that somebody keeps is none, another number and a mark that was cut off neither
    shutil.copytree(tmp_path / "checkpoints/global_step_2", tmp_path / "checkpoints/global_step_2.bak")
    shutil.copytree(tmp_path / "checkpoints/global_step_2", tmp_path / "checkpoints/global_step_900")
    shutil.copytree(tmp_path / "checkpoints/global_step_2", tmp_path / "checkpoints/global_step_02")
    for mark in ("", "{}", "null"):
        (tmp_path / "checkpoints/global_step_4/COMPLETE.json").write_text(mark)
        assert [c.step for c in folder.whole_checkpoints()] == [2]
    folder.keep_last(1)
    (tmp_path / "checkpoints/global_step_2.bak/COMPLETE.json").unlink()
    folder.take_over()
    assert (tmp_path / "checkpoints/global_step_2.bak").is_dir()


def test_the_room_for_checkpoints_is_that_of_the_disk_that_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, str(Path(path).resolve())))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    assert TrainingFolder(tmp_path / "run").disk_free == str(tmp_path / "run")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert TrainingFolder(tmp_path / "run").disk_free == str(tmp_path / "elsewhere")


def test_the_last_checkpoints_are_kept_by_number_not_by_name(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    for step in (8, 9, 10, 11):
        save(folder, step)
        if step < 11:
            folder.complete_checkpoint(step)
    folder.keep_last(2)
    assert sorted(p.name for p in folder.checkpoints.iterdir()) == ["global_step_10", "global_step_11", "global_step_9"]


def test_the_best_validated_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    """Step 20 and step 30 are equally good, step 35 was not validated."""
    folder = TrainingFolder(tmp_path)
    for step, accuracy in ((10, 0.25), (20, 0.5), (30, 0.5), (35, None), (40, 0.375)):
        folder.log_step(step, {} if accuracy is None else {"accuracy": accuracy}, {})
        save(folder, step)
        folder.complete_checkpoint(step)
        folder.keep_last(1, best=True)
    assert [c.step for c in folder.whole_checkpoints()] == [30, 40]
    assert TrainingFolder(tmp_path).best_checkpoint() == folder.whole_checkpoints()[0]
    folder.keep_last(1)
    assert [c.step for c in folder.whole_checkpoints()] == [40]


def test_a_timed_checkpoint_stays_until_the_next_one_and_crowds_out_no_planned_one(tmp_path: Path) -> None:
    folder, left = TrainingFolder(tmp_path), []
    for step in (7, 10, 13, 16, 20, 21):
        save(folder, step)
        folder.complete_checkpoint(step)
        folder.keep_last(2, every=10)
        left.append([c.step for c in folder.whole_checkpoints()])
    assert left == [[7], [10], [10, 13], [10, 16], [10, 20], [10, 20, 21]]
    folder.keep_last(None, every=10)
    assert [c.step for c in folder.whole_checkpoints()] == [10, 20, 21]


@pytest.mark.parametrize(
    ("error", "full"),
    [(OSError(errno.ENOSPC, "no space"), True), (OSError(errno.EIO, "i/o"), False), (RuntimeError("NCCL"), False)],
)
def test_a_failed_save_is_removed_and_an_earlier_one_stays(tmp_path: Path, error: Exception, full: bool) -> None:
    folder = TrainingFolder(tmp_path)
    save(folder, 2)
    folder.complete_checkpoint(2)
    save(folder, 4, b"123")
    failed = folder.save_failed(4, error)
    assert (isinstance(failed, RunFailed), failed.expected is not None) == (True, full)
    assert message_of(error) in str(failed.found)
    assert failed.next_step.endswith("global_step_2")
    assert [p.name for p in folder.checkpoints.iterdir()] == ["global_step_2"]


def test_a_first_save_that_was_larger_than_the_disk_asks_for_space(tmp_path: Path) -> None:
    """torch's writer names no errno; the file is sparse."""
    folder = TrainingFolder(tmp_path)
    with open(save(folder, 2) / "actor" / "model.pt", "r+b") as f:
        f.truncate(shutil.disk_usage(tmp_path).free + 2**34)
    assert folder.save_failed(2, RuntimeError("PytorchStreamWriter failed writing file")).expected is not None
    assert not list(folder.checkpoints.iterdir())


def test_reading_a_folder_leaves_it_as_it_is_until_its_writer_takes_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert TrainingFolder(out).steps == []
    assert not out.exists()
    TrainingFolder(out).log_step(1, {"reward": 0.5}, {})
    torn = (out / "metrics.jsonl").read_bytes() + b'{"step": 2, "val'
    (out / "metrics.jsonl").write_bytes(torn)
    save(TrainingFolder(out), 2)
    folder = TrainingFolder(out)
    assert ([s.step for s in folder.steps], (out / "metrics.jsonl").read_bytes()) == ([1], torn)
    folder.take_over()
    folder.log_step(2, {"reward": 0.25}, {})
    assert [s.step for s in TrainingFolder(out).steps] == [1, 2]
    assert not list(folder.checkpoints.iterdir())


def test_a_step_made_again_may_have_a_number_that_an_older_version_did_not_log(tmp_path: Path) -> None:
    TrainingFolder(tmp_path).log_step(1, {"reward": 0.5}, {})
    TrainingFolder(tmp_path).log_step(1, {"reward": 0.5, "new": 1.0}, {})
    with pytest.raises(RunFailed, match="reward"):
        TrainingFolder(tmp_path).log_step(1, {"reward": 0.25, "new": 1.0}, {})
    assert [s.values for s in TrainingFolder(tmp_path).steps] == [{"reward": 0.5}]


def test_steps_of_an_attempt_that_was_given_up_are_not_the_runs(tmp_path: Path) -> None:
    for step in range(1, 6):
        TrainingFolder(tmp_path).log_step(step, {"reward": float(step)}, {})
    again = TrainingFolder(tmp_path, deterministic=False)
    again.at = 2  # resumed
    assert [s.step for s in again.steps] == [1, 2]
    again.log_step(3, {"reward": 3.5}, {})
    assert [(s.step, s.values["reward"]) for s in TrainingFolder(tmp_path).steps] == [(1, 1.0), (2, 2.0), (3, 3.5)]
    again.log_step(4, {"reward": 4.0}, {})  # as it was
    assert [(s.step, s.attempt) for s in TrainingFolder(tmp_path).steps] == [(1, 0), (2, 0), (3, 1), (4, 1)]


def test_an_alarm_is_written_once_over_interruptions(tmp_path: Path) -> None:
    alarm = Alarm(step=3, kind="disk", line="little disk")
    TrainingFolder(tmp_path).log_alarms([alarm])
    again = TrainingFolder(tmp_path)
    again.log_alarms([alarm.model_copy(update={"line": "still little disk"}), Alarm(step=4, kind="disk", line="less")])
    assert [(a.step, a.line) for a in TrainingFolder(tmp_path).alarms] == [(3, "little disk"), (4, "less")]


def test_an_error_is_shown_whole_and_one_that_ray_carried_speaks_for_its_cause() -> None:
    class Carried(Exception):  # as Ray's: the text is a traceback, the cause an attribute
        cause = RunFailed("the policy has diverged", found=3)

    assert message_of(Carried("Traceback (most recent call last):\n ...")) == "the policy has diverged (3)"
    assert message_of(ValueError("one\ntwo")) == "ValueError: one\ntwo"
    assert message_of(ValueError("\n".join(map(str, range(20))))).split("\n") == [str(i) for i in range(5, 20)]
    assert message_of(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_checkpoint_without_every_rank_is_not_complete(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    actor = folder.checkpoints / "global_step_5" / "actor"
    actor.mkdir(parents=True)
    for name in ("model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt", "optim_world_size_2_rank_1.pt"):
        (actor / name).write_bytes(b"x")
    with pytest.raises(RunFailed, match="lacks parts of optim"):
        folder.complete_checkpoint(5)
    assert folder.last_checkpoint() is None
    (actor / "optim_world_size_2_rank_0.pt").write_bytes(b"x")
    folder.complete_checkpoint(5)
    assert folder.last_checkpoint() == folder.checkpoints / "global_step_5"
