"""A sum over two ranks of one machine, through memory that both see.

Page `cut_inside_a_layer`: beside the sockets of gloo, the fastest link that two cores have.
"""

import socket
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

PATIENCE_S = 60.0  # for the other rank's addend


class SharedSum:
    """`total(tensor)` replaces a tensor by its sum over both ranks, as `all_reduce` does.

    Each rank writes its addend into a file that both have in memory, wakes the other one through a
    socket, and adds what the other has written. A flag in memory would do, too, but some processors
    (ARM) may show it to the other rank before the numbers.
    """

    def __init__(
        self, path: str | Path, group: ProcessGroup | None = None, *, numbers: int = 2**17
    ) -> None:
        """Both ranks call it at once.

        Args:
            path: Of the file, the same on both ranks; it is made if it is not there.
            group: Two ranks; None is all of them. Used here only.
            numbers: Of float32 that are written at once; more go in several pieces.

        Raises:
            ValueError: The group has not two ranks.
        """
        group = group or distributed.group.WORLD
        if group.size() != 2:
            raise ValueError(f"two ranks add through one file; this group has {group.size()}")
        self._rank, self._turn = group.rank(), 0
        file = torch.from_file(str(path), shared=True, size=2 * 2 * numbers)
        self._places = file.view(2, 2, numbers)  # turn, rank
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE_S)
        self._socket.bind(("127.0.0.1", 0))
        ports = torch.zeros(2, dtype=torch.int64)
        ports[self._rank] = self._socket.getsockname()[1]
        distributed.all_reduce(ports, group=group)
        self._socket.connect(("127.0.0.1", int(ports[1 - self._rank])))

    def __call__(self, tensor: Tensor, *_: Any, **__: Any) -> None:
        """Sum a contiguous tensor of float32; other arguments of `all_reduce` are not looked at.

        Raises:
            TypeError: The tensor has another dtype; nothing has been sent.
            TimeoutError: The other rank has not come within a minute.
        """
        if tensor.dtype != torch.float32:
            raise TypeError(f"the file holds float32; got {tensor.dtype}")
        for piece in tensor.view(-1).split(self._places.shape[-1]):
            self._turn ^= 1  # two take turns: the other rank may still read the last one
            places = self._places[self._turn, :, : len(piece)]
            places[self._rank] = piece
            self._socket.send(b"!")
            try:
                self._socket.recv(1)
            except TimeoutError as error:
                late = f"rank {1 - self._rank} has not come to the sum within {PATIENCE_S:g} s"
                raise TimeoutError(late) from error
            piece += places[1 - self._rank]

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()
