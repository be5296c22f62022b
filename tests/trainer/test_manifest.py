"""A checkpoint proves itself: 200 ways to spoil the newest one are all seen, and the one before it is taken."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import manifest


def make(root: Path, step: int, seed: int = 0) -> Path:
    """A checkpoint of four files of random bytes."""
    final = manifest.step_folder(root, step)
    tmp = final.with_name(final.name + ".tmp")
    tmp.mkdir(parents=True)
    source = random.Random(step * 1000 + seed)
    for name in ("__0_0.distcp", "__1_0.distcp", "__2_0.distcp", ".metadata"):
        (tmp / name).write_bytes(source.randbytes(source.randint(500, 3000)))
    manifest.commit(tmp, final, {"step": step})
    return final


def data_file(folder: Path, source: random.Random) -> Path:
    return folder / source.choice(["__0_0.distcp", "__1_0.distcp", "__2_0.distcp", ".metadata"])


def flip_bit(folder: Path, source: random.Random) -> None:
    path = data_file(folder, source)
    data = bytearray(path.read_bytes())
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def flip_bit_of_the_manifest(folder: Path, source: random.Random) -> None:
    path = folder / source.choice([manifest.MANIFEST, manifest.MARKER])
    data = bytearray(path.read_bytes())
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def truncate(folder: Path, source: random.Random) -> None:
    path = folder / source.choice(["__0_0.distcp", ".metadata", manifest.MANIFEST, manifest.MARKER])
    os.truncate(path, source.randrange(path.stat().st_size))


def lose_file(folder: Path, source: random.Random) -> None:
    names = ["__1_0.distcp", ".metadata", manifest.MANIFEST, manifest.MARKER]
    (folder / source.choice(names)).unlink()


def stale_file(folder: Path, source: random.Random) -> None:
    older = folder.with_name("step_00000010")
    path = data_file(folder, source)
    shutil.copy(older / path.name, path)


def foreign_file(folder: Path, source: random.Random) -> None:
    (folder / f"__{source.randint(3, 99)}_0.distcp").write_bytes(b"left over")


def manifest_of_another(folder: Path, source: random.Random) -> None:
    older = folder.with_name("step_00000010")
    for name in source.choice([[manifest.MANIFEST], [manifest.MARKER], [manifest.MANIFEST, manifest.MARKER]]):
        shutil.copy(older / name, folder / name)


def another_checkpoint_under_this_name(folder: Path, source: random.Random) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("step_00000010"), folder)


def half_written(folder: Path, source: random.Random) -> None:
    # As a crash between rename and marker leaves it, with the writes that were still on their way.
    (folder / manifest.MARKER).unlink()
    if source.random() < 0.5:
        os.truncate(data_file(folder, source), 10)


SPOILERS: list[Callable[[Path, random.Random], None]] = [
    flip_bit, flip_bit, flip_bit_of_the_manifest, truncate, lose_file, stale_file, foreign_file,
    manifest_of_another, another_checkpoint_under_this_name, half_written,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda f: f.__name__)
def test_a_spoilt_checkpoint_is_always_seen_and_the_one_before_is_taken(
    tmp_path: Path, spoil: Callable[[Path, random.Random], None]
) -> None:
    for number in range(20):
        root = tmp_path / str(number)
        good, newest = make(root, 10, number), make(root, 20, number)
        assert manifest.newest_sound(root) == (newest, [])
        spoil(newest, random.Random(number))
        found, bad = manifest.newest_sound(root)
        assert found == good
        assert [folder for folder, _ in bad] == [newest] and bad[0][1]


def test_each_part_of_a_shared_check_reads_other_files_and_together_they_read_all(tmp_path: Path) -> None:
    folder = make(tmp_path, 10)
    flip_bit(folder, random.Random(1))
    faults = [manifest.fault_of(folder, part=part, parts=4) for part in range(4)]
    assert sum(fault is not None for fault in faults) == 1


def test_an_unfinished_folder_is_no_checkpoint(tmp_path: Path) -> None:
    make(tmp_path, 10)
    (tmp_path / "step_00000020.tmp").mkdir()
    assert [step for step, _ in manifest.folders_by_step(tmp_path)] == [10]


def test_retention_keeps_the_last_every_nth_pinned_protected_and_corrupt_ones(tmp_path: Path) -> None:
    folders = {step: make(tmp_path, step) for step in range(10, 110, 10)}
    manifest.pin_mark(folders[20]).touch()
    manifest.corrupt_note(folders[100], "spoilt")
    removed = manifest.prune(tmp_path, keep_last=2, keep_every=50, protected={folders[30]})
    assert sorted(step for step, _ in removed) == [10, 40, 60, 70]
    assert sorted(s for s, _ in manifest.folders_by_step(tmp_path)) == [20, 30, 50, 80, 90, 100]


def test_a_newer_fence_shuts_out_older_writers(tmp_path: Path) -> None:
    manifest.fence_take(tmp_path, "att_1:0")
    manifest.fence_take(tmp_path, "att_1:10")
    with pytest.raises(manifest.FenceLost):
        manifest.fence_check(tmp_path, "att_1:9")
    manifest.fence_check(tmp_path, "att_2:0")


def test_a_checkpoint_that_is_made_again_replaces_the_corrupt_one(tmp_path: Path) -> None:
    folder = make(tmp_path, 10)
    manifest.corrupt_note(folder, "spoilt")
    again = folder.with_name(folder.name + ".tmp")
    again.mkdir()
    (again / "a").write_bytes(b"a")
    manifest.commit(again, folder, {"step": 10})
    assert manifest.fault_of(folder) is None and not manifest.corrupt_mark(folder).exists()
    assert json.loads((folder / manifest.MANIFEST).read_text())["files"].keys() == {"a"}
