"""The folders of commits: one per append, and what takes the place of one of which rows were removed.

`<number>` is a commit as it was appended, `<number>.<generation>` what is left of it: a folder, or an empty file
where nothing is. The highest generation counts. It becomes visible at once, as an append does; the folder before it
goes when nobody can read it any more (`leftovers`). So a reader sees a commit whole or what is left of it, never both,
and a process that is killed in between has lost and doubled nothing. A number stays taken for ever: a writer that was
thought dead and appends it then has lost to the higher generation.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_ATTEMPT_PREFIX = ".attempt-"
_NAME = re.compile(r"([0-9]+)(?:\.([0-9]+))?")
_NUMBER_WIDTH = 12
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def commit_folder(owner: Path, number: int) -> Path:
    """Return the folder into which a commit is appended."""
    return owner / f"{number:0{_NUMBER_WIDTH}d}"


def new_attempt(owner: Path) -> Path:
    """Return a hidden folder that does not exist yet."""
    return owner / f"{_ATTEMPT_PREFIX}{uuid.uuid4().hex}"


def numbers(owner: Path) -> list[int]:
    """Return the numbers that are taken, ascending."""
    return sorted({number for number, _, _ in _entries(owner)})


def current_folders(owner: Path) -> list[Path]:
    """Return the folders that hold the rows of an owner's commits, by number."""
    newest = _newest(owner)
    return [newest[number] for number in sorted(newest) if newest[number].is_dir()]


def publish(attempt: Path, target: Path) -> bool:
    """Rename an attempt to its place; False where that, or a later generation, was taken first.

    A rename onto a folder that is not empty, or onto a file, fails. The target is never made beforehand: onto an
    empty folder every rename succeeds.
    """
    try:
        attempt.rename(target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    if _newest(target.parent)[_number(target)] == target:
        return True
    remove(target)
    return False


def next_generation(folder: Path) -> Path:
    """Return the place of what is left of a commit."""
    number, _, generation = folder.name.partition(".")
    return folder.with_name(f"{number}.{int(generation or 0) + 1}")


def empty(folder: Path) -> None:
    """Remove all rows of a commit at once; their files stay for jobs that have begun to read them."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(next_generation(folder), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def remove(folder: Path) -> None:
    """Remove a folder: all of it at once for whoever looks, so that nobody takes a part for the whole."""
    hidden = new_attempt(folder.parent)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def leftovers(owner: Path, *, idle_s: float) -> list[Path]:
    """Return the folders that nobody reads or writes any more: hidden ones, and those with a later generation.

    Parameters
    ----------
    idle_s
        Seconds since a hidden folder changed, or since the later generation came: a job may still read the earlier.
    """
    hidden = [path for path in _hidden(owner) if _idle_seconds(path) >= idle_s]
    newest = _newest(owner)
    earlier = [path for number, _, path in _entries(owner) if path != newest[number]]
    return hidden + [path for path in earlier if _idle_seconds(newest[_number(path)]) >= idle_s]


def _hidden(owner: Path) -> list[Path]:
    with os.scandir(owner) as entries:
        return [Path(entry.path) for entry in entries if entry.name.startswith(_ATTEMPT_PREFIX)]


def _idle_seconds(path: Path) -> float:
    changed = [0.0]
    for each in (path, *path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            changed.append(each.stat().st_mtime)
    return time.time() - max(changed)


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _newest(owner: Path) -> dict[int, Path]:
    return {number: path for number, _, path in sorted(_entries(owner))}


def _entries(owner: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield number, generation and path of all that has the name of a commit."""
    with contextlib.suppress(FileNotFoundError), os.scandir(owner) as entries:
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                yield int(match[1]), int(match[2] or 0), Path(entry.path)
