"""The way of the weights from the learner to the workers, past the processors' memory: one broadcast, NCCL between GPUs, gloo without.

The learner's first process is rank 0 and sends; worker i is rank i + 1. Names, shapes and version go through the store where they meet,
the tensors follow in flat pieces. A peer that is gone ends the broadcast of the others with an error after PATIENCE, not with a hang.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(seconds=60)
PIECE_BYTES = 256 * 2**20

Meeting = tuple[str, int]
"""Host and port of the store, which lies with the learner's first process."""


@dataclass(frozen=True)
class Header:
    """A tensor that is on its way."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "Header":
        return cls(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    @property
    def elements(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        return self.elements * getattr(torch, self.dtype).itemsize


def open_store(host: str) -> dist.TCPStore:
    """Where sender and receivers meet: any free port of `host`, bound here and now."""
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)


class Channel:
    """Rank `rank` of `size`, rank 0 of which sends. `device` is cpu or cuda; on GPUs each rank needs one of its own.

    Raises torch's DistError, a RuntimeError, when a peer does not come or is gone; the channel is of no use then.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, device: str):
        self.store, self.rank, self.device = store, rank, torch.device(device)
        self.count = 0
        with _blocking_wait():
            make = dist.ProcessGroupNCCL if self.device.type == "cuda" else dist.ProcessGroupGloo
            self.group = make(dist.PrefixStore("weights", store), rank, size, PATIENCE)

    @classmethod
    def join(cls, meeting: Meeting, rank: int, size: int, device: str) -> "Channel":
        """Of a receiver."""
        return cls(dist.TCPStore(*meeting, is_master=False, timeout=PATIENCE), rank, size, device)

    def send(self, version: int, headers: list[Header], tensors: Iterable[Tensor]) -> int:
        """Give `tensors`, which `headers` describe one by one, to all receivers; the bytes sent to each."""
        told = json.dumps({"version": version, "headers": [asdict(header) for header in headers]})
        self.store.set(self._key(), told)
        tensors = iter(tensors)
        for piece in pieces(headers):
            flat = [next(tensors).detach().to(self.device).reshape(-1) for _ in piece]
            self._broadcast(torch.cat(flat) if len(flat) > 1 else flat[0].contiguous())
        return sum(header.nbytes for header in headers)

    def receive(self) -> tuple[int, Iterator[tuple[str, Tensor]]]:
        """The version, and the tensors by name as they come; all must be taken."""
        told = json.loads(self.store.get(self._key()))
        headers = [Header(one["name"], tuple(one["shape"]), one["dtype"]) for one in told["headers"]]
        return told["version"], self._arriving(headers)

    def close(self) -> None:
        """Let go of peers that may be gone; who is in the middle of a broadcast with this one gets an error."""
        self.group.abort()

    def _arriving(self, headers: list[Header]) -> Iterator[tuple[str, Tensor]]:
        for piece in pieces(headers):
            sizes = [header.elements for header in piece]
            flat = torch.empty(sum(sizes), dtype=getattr(torch, piece[0].dtype), device=self.device)
            self._broadcast(flat)
            for header, part in zip(piece, flat.split(sizes), strict=True):
                yield header.name, part.view(header.shape)

    def _key(self) -> str:
        self.count += 1
        return f"headers/{self.count}"

    def _broadcast(self, flat: Tensor) -> None:
        self.group.broadcast(flat, root=0).wait()


def pieces(headers: list[Header]) -> Iterator[list[Header]]:
    """`headers` in order, cut into pieces of one dtype and at most PIECE_BYTES, or of one tensor."""
    piece: list[Header] = []
    for header in headers:
        full = sum(one.nbytes for one in piece) + header.nbytes > PIECE_BYTES
        if piece and (full or piece[0].dtype != header.dtype):
            yield piece
            piece = []
        piece.append(header)
    if piece:
        yield piece


@contextmanager
def _blocking_wait() -> Iterator[None]:
    # Read when a group is made. Without it NCCL ends the whole process of whoever waits for a peer that is gone.
    name = "TORCH_NCCL_BLOCKING_WAIT"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})
