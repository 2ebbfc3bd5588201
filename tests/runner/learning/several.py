"""Several ranks of one learner as processes of their own, on gloo or with a GPU each."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from runner.learning.ranks import Ranks

GONE = "gone"
# One process imports torch and transformers; every rank is its fork.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.runner.learning.several", "runner.learning.learner"])


def on_ranks(size: int, meeting: Path, scenario: Callable, *arguments, device: str = "cpu") -> list[Any]:
    """What `scenario(ranks, *arguments)` returns on each of `size` ranks, GONE for one that ended; `meeting` is a file that is not there yet."""
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_rank, args=(theirs, str(meeting), rank, size, device, scenario, arguments), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        return _answers(pipes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _answers(pipes: list) -> list[Any]:
    found, pending = {}, list(pipes)
    while pending:
        for pipe in wait(pending):
            pending.remove(pipe)
            try:
                failed, found[pipe] = pipe.recv()
            except EOFError:
                failed, found[pipe] = False, GONE
            assert not failed, found[pipe]
    return [found[pipe] for pipe in pipes]


def _rank(pipe, meeting: str, rank: int, size: int, device: str, scenario: Callable, arguments: tuple) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    try:
        answer = False, scenario(Ranks(FileStore(meeting, size), rank, size, device), *arguments)
    except BaseException:
        answer = True, traceback.format_exc()
    pipe.send(answer)
    # Until all have answered: whoever leaves first would break the others' connections.
    pipe.poll(None)
