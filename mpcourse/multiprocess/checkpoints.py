"""State that survives a killed rank and a full disk: one file per rank and step.

Page `distributed_data_parallel`.

Every rank writes what it has: under data parallelism the whole model, in a pipeline its stages. A
file is written beside its place and renamed when it is complete, so a file that is there is whole.
A run goes on from the last step that *all* ranks have saved. With several hosts the folder has to
be one that all of them see.
"""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from mpcourse.multiprocess.rank import Rank

KEEP = 2  # no rank is more than one step ahead of another, so the last common one is among these


class Checkpoints:
    """The checkpoints of one rank.

    Args:
        folder: Where to; made if it is missing. None saves nothing.
        rank: Whose.
        every: A save after every so many steps, 1 or more.
    """

    def __init__(self, folder: str | Path | None, rank: Rank, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"a checkpoint is saved every 1 or more steps; got {every}")
        self._folder = Path(folder) if folder else None
        self._rank, self._every = rank, every

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save the state after `step` steps, if it is its turn.

        Raises:
            OSError: There is no room, for example. What was saved before is untouched.
        """
        if self._folder is None or step % self._every:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        data = io.BytesIO()
        torch.save({"step": step, **state}, data)
        path = self._path(step)
        part = path.with_suffix(".part")
        try:
            with open(part, "wb") as file:
                file.write(data.getvalue())
                self._rank.at("checkpoint", step)
                file.flush()
                os.fsync(file.fileno())  # a full disk may say so only now
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            error.add_note(f"rank {self._rank.rank} could not save step {step} to {path}")
            raise
        for old in self._steps()[:-KEEP]:
            self._path(old).unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """The state of the last step that all ranks have saved; None if there is none.

        All ranks have to call it. A file that brings more than data is refused: the folder may be
        one that others can write to.
        """
        steps: list[list[int]] = [[] for _ in range(self._rank.world_size)]
        distributed.all_gather_object(steps, self._steps())
        common = set.intersection(*map(set, steps))
        if not common:
            return None
        path = self._path(max(common))
        return torch.load(path, map_location=self._rank.device, weights_only=True)

    def _path(self, step: int) -> Path:
        return self._folder / f"rank{self._rank.rank}-step{step:06d}.pt"

    def _steps(self) -> list[int]:
        """The steps of which this rank has a file, from the oldest."""
        if self._folder is None or not self._folder.is_dir():
            return []
        pattern = re.compile(rf"rank{self._rank.rank}-step(\d+)\.pt")
        found = (pattern.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)
