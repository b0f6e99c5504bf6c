"""The token log's files, rows and counts: literal numbers, invariance to how a step is spread, damage, bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stapo_results import token_log
from stapo_results.errors import BadInput, RecordError, RunFailed
from stapo_results.token_log import LogHeader
from stapo_training.token_log import rows as token_rows
from stapo_training.token_log import writer as token_log_writer
from stapo_training.token_log.rows import MiniBatch
from stapo_training.token_log.writer import write_step

HEADER = LogHeader(mode="on", selector="silence_spurious", tau_p=0.002, q=0.75, vocabulary=100, watch=(7,))


def two_sequences() -> MiniBatch:
    """Prompts (1, 2) and (3,), responses (4, 5, 6) with A = 2 and (7, 8) with A = -1; the last token is not its own."""
    p = np.log(np.array([0.5, 0.001, 0.25, 0.001, 0.5]))
    return MiniBatch(
        step=3,
        number=2,
        prompt_id_B=["b", "a"],
        sample_B=[0, 5],
        ids=np.array([1, 2, 4, 5, 6, 3, 7, 8]),
        end_B=np.array([5, 8]),
        response_B=np.array([3, 2]),
        response_N=np.array([True, True, True, True, False]),
        advantage_N=np.array([2.0, 2.0, 2.0, -1.0, -1.0], "float32"),
        logprob_N=p.astype("float32"),
        entropy_N=np.array([0.7, 0.1, 0.3, 0.1, 0.1], "float32"),
        logprob_now_N=np.log([0.9, 0.001, 0.25, 0.001, 0.5]).astype("float32"),  # the norm is the current policy's
        ratio_N=np.array([1.0, 1.5, 1.0, 0.5, 1.0], "float32"),
        clipped_N=np.array([False, True, False, False, False]),
        collision_N=np.array([0.82, 0.9, 0.4, 0.9, 0.5], "float32"),
        rare_N=np.array([False, True, False, False, False]),
        silenced_N=np.array([False, True, False, False, False]),
        top_id_NK=np.array([[4, 9], [8, 5], [6, 1], [0, 0], [0, 0]]),
        top_logprob_NK=np.zeros((5, 2), "float32"),
        tau_h=0.2,
        old_logprob_N=p.astype("float32"),
        sampler_logprob_N=np.array([-0.7, -6.9, -1.0, -6.9, -0.7], "float32"),
        mismatched_N=np.array([False, False, True, False, False]),
    )


def test_a_log_names_the_file_of_a_mask_without_its_folder() -> None:
    of_a_file = {**HEADER.model_dump(), "selector": "/home/me/run/mine.py:rarest"}
    assert LogHeader.model_validate(of_a_file).selector == "mine.py:rarest"


def test_rows_have_the_tokens_place_and_context() -> None:
    found = token_rows.rows(two_sequences(), np.array([False, True, False, True, False]))
    assert found["prompt_id"] == ["b", "a"]
    assert (found["sample"], found["position"].tolist(), found["token"].tolist()) == ([0, 5], [1, 0], [5, 7])
    assert [x.tolist() for x in found["before"]] == [[1, 2, 4], [3]]
    assert [x.tolist() for x in found["after"]] == [[6], [8]]
    assert [x.tolist() for x in found["top_tokens"]] == [[8, 5], [0, 0]]
    assert found["silenced"].tolist() == [True, False]
    assert found["sampler_logprob"].tolist() == [np.float32(-6.9)] * 2
    assert (found["step"].tolist(), found["mini_batch"].tolist(), found["tau_h"]) == ([3, 3], [2, 2], [0.2, 0.2])


def test_context_ends_at_the_sequence_and_after_its_limits() -> None:
    m = two_sequences()
    long = replace(
        m,
        ids=np.arange(100),
        end_B=np.array([60, 100]),
        response_B=np.array([40, 10]),
        **{n: np.resize(v, (50, *v.shape[1:])) for n, v in vars(m).items() if n.endswith(("_N", "_NK"))},
    )
    chosen = np.zeros(50, bool)
    chosen[[0, 39, 40]] = True
    found = token_rows.rows(long, chosen)
    assert found["token"].tolist() == [20, 59, 90]
    assert [x.tolist() for x in found["before"]] == [list(range(20)), list(range(35, 59)), list(range(66, 90))]
    assert [x.tolist() for x in found["after"]] == [list(range(21, 29)), [], list(range(91, 99))]


def test_counts_are_by_sign_flags_and_bins_with_the_sum_of_gradient_norms() -> None:
    found = token_rows.counts(two_sequences())
    names = ("sign", "rare", "below", "silenced", "mismatched", "rises", "tokens", "norm_sum")
    # clipped: no gradient. The token with A < 0: |0.5 x -1| sqrt(1 - 2 x 0.001 + 0.9). log p + H: log 0.5 + 0.7 = 0.007
    # falls; log 0.25 + 0.3, and the two with log 0.001, rise. The fifth is not a response token.
    assert sorted(zip(*(found[k].tolist() for k in names), strict=True)) == [
        (-1, False, True, False, False, True, 1, pytest.approx(0.5 * math.sqrt(1.898), rel=1e-6)),
        (1, False, False, False, False, False, 1, pytest.approx(2 * math.sqrt(1 - 1.8 + 0.82), rel=1e-4)),
        (1, False, False, False, True, True, 1, pytest.approx(2 * math.sqrt(1 - 0.5 + 0.4), rel=1e-6)),
        (1, True, True, True, False, True, 1, 0.0),
    ]
    likely = (found["sign"] == 1) & ~found["rare"]
    # p = 0.25: log10 = -0.60, H = 0.3; p = 0.5: log10 = -0.30, H = 0.7
    assert sorted(token_log.LOG10_P_EDGES[found["log10_p"][likely]]) == [-0.75, -0.5]
    assert sorted(token_log.ENTROPY_EDGES[found["entropy"][likely]]) == [0.25, 0.625]


def test_what_lies_beyond_the_edges_is_in_the_outer_bins() -> None:
    log10_p, entropy = token_log.bins(
        np.array([-40.0, -11.9, -0.2, 0.0]) * math.log(10), np.array([20, 12.5, 0.125, 0])
    )
    assert token_log.LOG10_P_EDGES[log10_p].tolist() == [-12.0, -12.0, -0.25, -0.25]
    assert token_log.ENTROPY_EDGES[entropy].tolist() == [12.375, 12.375, 0.125, 0.0]


def test_parts_of_two_ranks_give_the_rows_and_counts_of_one() -> None:
    m = two_sequences()
    names = [name for name in vars(m) if name.endswith(("_N", "_NK"))]
    one = {"ids": m.ids[:5], "end_B": m.end_B[:1], "response_B": m.response_B[:1]}
    first = replace(m, prompt_id_B=["b"], sample_B=[0], **one, **{n: getattr(m, n)[:3] for n in names})
    one = {"ids": m.ids[5:], "end_B": m.end_B[1:] - 5, "response_B": m.response_B[1:]}
    second = replace(m, prompt_id_B=["a"], sample_B=[5], **one, **{n: getattr(m, n)[3:] for n in names})
    whole = token_log.to_bytes(
        token_log.TOKENS, token_rows.joined_rows([token_rows.rows(m, m.response_N)], 9)[0], HEADER
    )
    for parts in ((first, second), (second, first)):
        rows, left_out = token_rows.joined_rows([token_rows.rows(p, p.response_N) for p in parts], 9)
        assert left_out == 0
        assert token_log.to_bytes(token_log.TOKENS, rows, HEADER) == whole
        counts = token_rows.joined_counts([token_rows.counts(p) for p in parts])
        alone = token_rows.joined_counts([token_rows.counts(m)])
        assert {k: v.tolist() for k, v in counts.items()} == {k: pytest.approx(v.tolist()) for k, v in alone.items()}
    assert rows["prompt_id"] == ["a", "b", "b", "b"]


def test_modes_choose_rows_and_a_bound_thins_them_before_they_are_made() -> None:
    m = two_sequences()
    assert token_rows.logged(m, "on", (), 9).rows["token"].tolist() == [5]  # the rare one
    assert token_rows.logged(m, "on", (4, 7), 9).rows["token"].tolist() == [4, 5]  # 7 stands where A < 0
    found = token_rows.logged(m, "full", (), 2)
    assert (found.rows["token"].tolist(), found.left_out) == ([4, 6], 2)
    assert found.counts["tokens"].sum() == 4


def test_below_is_compared_as_the_selector_compares() -> None:
    """A threshold between two neighbouring float32 numbers: the lower one is below it, and is silenced."""
    low, high = np.float32(0.5), np.nextafter(np.float32(0.5), np.float32(1))
    tau_h = float(low) + 0.25 * (float(high) - float(low))
    m = replace(two_sequences(), entropy_N=np.array([0.7, low, high, 0.1, 0.1], "float32"), tau_h=tau_h)
    counts = token_rows.counts(m)
    assert counts["below"][counts["rare"]].tolist() == [True]
    assert counts["below"][(counts["sign"] == 1) & ~counts["rare"]].tolist() == [False, False]


def test_tokens_of_a_diverged_policy_are_counted_apart() -> None:
    m = two_sequences()
    broken = replace(m, logprob_N=np.array([np.nan, -7, -1, -7, -1]), entropy_N=np.array([0.7, 0.1, np.inf, 0.1, 0.1]))
    found = token_rows.logged(broken, "full", (), 9)
    assert (found.rows["token"].tolist(), found.not_finite, found.counts["tokens"].sum()) == ([5, 7], 2, 2)
    assert np.isfinite(found.counts["norm_sum"]).all()


def test_a_dual_clip_leaves_no_gradient_beyond_it() -> None:
    a, r = np.array([-1.0, -1.0, -1.0, 1.0]), np.array([11.0, 9.0, 0.7, 11.0])
    assert token_rows.clipped(a, r, 0.2, 0.28, 10).tolist() == [True, False, True, True]
    assert token_rows.clipped(a, r, 0.2, 0.28).tolist() == [False, False, True, True]


def part(step: int = 3, most: int = 9) -> token_rows.LogPart:
    return token_rows.logged(replace(two_sequences(), step=step), "full", (), most)


def put(run: Path, step: int, largest_gib: float = math.inf, **before: int) -> int:
    folder = run / "token_log"
    return write_step(folder, step, [part(step)], HEADER, most_rows=9, largest_gib=largest_gib, **before)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert token_log.read(tmp_path) is None
    for step in (1, 2):
        put(tmp_path, step)
    log = token_log.read(tmp_path)
    assert log is not None
    assert log.header == HEADER
    assert log.tokens["step"].to_pylist() == [1] * 4 + [2] * 4
    assert log.tokens["token"].to_pylist()[:4] == [7, 4, 5, 6]
    assert log.tokens["before"].to_pylist()[2] == [1, 2, 4]
    assert log.histogram["tokens"].to_numpy().sum() == 8


def test_a_full_log_becomes_the_record_of_a_log_that_is_not(tmp_path: Path) -> None:
    for mode in ("on", "full"):
        part = token_rows.logged(two_sequences(), mode, [6, 7], 10)
        header = HEADER.model_copy(update={"mode": mode, "watch": (6, 7)})
        write_step(tmp_path / mode / token_log.FOLDER, 3, [part], header, most_rows=10)
    assert token_log.read(tmp_path / "full").tokens.num_rows == 4  # pyright: ignore[reportOptionalMemberAccess]
    assert token_log.join(tmp_path / "full") == token_log.join(tmp_path / "on")


def test_a_log_beyond_its_size_goes_on_with_counts(tmp_path: Path) -> None:
    most = len(token_log.to_bytes(token_log.TOKENS, token_rows.joined_rows([part().rows], 9)[0], HEADER)) / 2**30
    for step in (1, 2):
        put(tmp_path, step, most)
    log = token_log.read(tmp_path)
    assert log is not None
    assert (set(log.tokens["step"].to_pylist()), log.header.left_out) == ({1}, 4)
    assert set(log.histogram["step"].to_pylist()) == {1, 2}
    # a resumed run makes step 2 again, and ends in the same bytes: its own old file is not counted
    before = {p.name: p.read_bytes() for p in (tmp_path / "token_log").glob("*.parquet")}
    put(tmp_path, 2, most)
    assert {p.name: p.read_bytes() for p in (tmp_path / "token_log").glob("*.parquet")} == before


def test_the_bytes_of_a_log_are_carried_on_and_not_asked_of_the_disk(tmp_path: Path) -> None:
    total = put(tmp_path, 2, before=put(tmp_path, 1))
    assert total == sum(f.stat().st_size for f in (tmp_path / "token_log").rglob("*.parquet"))
    put(tmp_path, 3, 1.0, before=2**30)
    log = token_log.read(tmp_path)
    assert log is not None
    assert set(log.tokens["step"].to_pylist()) == {1, 2}


def test_a_failed_write_reaches_the_training(tmp_path: Path) -> None:
    (tmp_path / "token_log").write_text("a file where the folder should be")
    with pytest.raises(RunFailed) as caught:
        put(tmp_path, 1)
    assert str(tmp_path / "token_log") in str(caught.value)


def test_steps_after_a_checkpoint_are_discarded(tmp_path: Path) -> None:
    folder = tmp_path / "token_log"
    for step in (1, 2, 3):
        rows, counts = part(step).rows, part(step).counts
        token_log.write(folder, step, rows, counts, HEADER)
    (folder / ".00000001.parquet.77.tmp").write_bytes(b"half")
    token_log_writer.discard_after(folder, 1)
    assert not list(folder.rglob(".*.tmp"))
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.parquet")) == [
        "00000001.parquet",
        "histogram/00000001.parquet",
    ]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    for step in (1, 2):
        rows, counts = part(step).rows, part(step).counts
        token_log.write(tmp_path / "token_log", step, rows, counts, HEADER)
    return tmp_path


def test_a_last_step_whose_rows_were_not_written_is_left_out(written: Path) -> None:
    (written / "token_log/00000002.parquet").unlink()
    log = token_log.read(written)
    assert log is not None
    assert set(log.histogram["step"].to_pylist()) == set(log.tokens["step"].to_pylist()) == {1}


@pytest.mark.parametrize("gone", ["00000001.parquet", "histogram/00000001.parquet", "histogram/00000002.parquet"])
def test_a_missing_file_is_named(written: Path, gone: str) -> None:
    (written / "token_log" / gone).unlink()
    with pytest.raises(RecordError) as caught:
        token_log.read(written)
    assert Path(gone).name in str(caught.value.found)


def test_a_step_without_either_file_is_named(written: Path) -> None:
    token_log.write(written / "token_log", 4, part(4).rows, part(4).counts, HEADER)
    with pytest.raises(RecordError) as caught:
        token_log.read(written)
    assert caught.value.found == "no counts of step 3"


def test_a_step_that_stands_in_two_files_is_not_counted_twice(written: Path) -> None:
    for file in (written / "token_log").rglob("00000002.parquet"):
        file.with_name("00000003.parquet").write_bytes(file.read_bytes())
    with pytest.raises(RecordError, match="two files") as caught:
        token_log.read(written)
    assert caught.value.found == "step 2"


def test_no_flipped_bit_is_read_as_a_number(written: Path) -> None:
    file = written / "token_log/00000002.parquet"
    data = file.read_bytes()
    whole = token_log.read(written)
    assert whole is not None
    pages = pq.ParquetFile(file).metadata.row_group(0)
    ends = [(c.dictionary_page_offset or c.data_page_offset) + c.total_compressed_size
            for c in map(pages.column, range(pages.num_columns))]  # fmt: skip
    for at in range(4, max(ends), 7):
        file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        try:
            found = token_log.read(written)
        except RecordError:
            continue
        assert found is not None
        assert found.tokens.equals(whole.tokens), at


def _truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def _of_another_version(file: Path) -> None:
    other = {b"stapo_token_log": b'{"schema_version":1}'}
    pq.write_table(pq.read_table(file).replace_schema_metadata(other), file)


def _with_another_column(file: Path) -> None:
    pq.write_table(pq.read_table(file).set_column(0, "step", pa.array([2.0] * 4)), file)


def _with_other_settings(file: Path) -> None:
    token_log.write(file.parent, 2, part(2).rows, part(2).counts, HEADER.model_copy(update={"tau_p": 0.02}))


@pytest.mark.parametrize("damage", [_truncated, _of_another_version, _with_another_column, _with_other_settings])
def test_a_damaged_or_foreign_file_is_refused_by_name(written: Path, damage: Callable[[Path], None]) -> None:
    file = written / "token_log/00000002.parquet"
    damage(file)
    with pytest.raises(RecordError, match=r"00000002\.parquet") as caught:
        token_log.read(written)
    versions = (caught.value.found, caught.value.expected)
    assert (versions == (1, 2)) == (damage is _of_another_version)  # whole: nothing is to be deleted


def test_a_mini_batch_without_rare_tokens_has_no_threshold(tmp_path: Path) -> None:
    m = replace(two_sequences(), tau_h=None, rare_N=np.zeros(5, bool))
    counts = token_rows.counts(m)
    assert not counts["below"].any()
    token_log.write(tmp_path / "token_log", 1, token_rows.rows(m, m.response_N), counts, HEADER)
    log = token_log.read(tmp_path)
    assert log is not None
    assert log.tokens["tau_h"].null_count == 4


@pytest.mark.parametrize("given", [{"mode": "some"}, {"most_row": 3}])
def test_settings_that_cannot_be_are_refused_by_key(given: dict) -> None:
    plain = {"mode": "on", "folder": "runs/a/token_log"}
    assert token_log_writer.token_log_from(plain, "runs/a").folder == "runs/a/token_log"
    with pytest.raises(BadInput, match=rf"token_log\.{next(iter(given))}"):
        token_log_writer.token_log_from(plain | given, "runs/a")
