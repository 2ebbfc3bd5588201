"""One optimizer step of the learner on n processes, a GPU each, beside the same on one.

One record per model, `scaling`: tokens a second and MFU of n processes that learn from n times as many sequences, and from as many.
`./assay bench scaling` takes every GPU of this machine, two at least; without Django: `python -m benchmarks.scaling`. `--tiny` runs two
processes on a CPU and keeps nothing.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks import learner
from benchmarks.learner import TINY, Measured, Shape, Size
from benchmarks.record import publish, record


def main(arguments: list[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.scaling")
    parser.add_argument("--processes", type=int, metavar="N", help="learner processes; as many as there are GPUs without it")
    parser.add_argument("--tiny", action="store_true", help="a small model on the processor; nothing is kept")
    asked = parser.parse_args(arguments)
    if asked.tiny:
        for found in measure(TINY, asked.processes or 2):
            print(json.dumps(found))
        return
    gpus = gpus_here()
    processes = asked.processes or gpus
    if processes < 2 or processes > gpus:
        here = f"{processes} processes need as many GPUs and two at least, torch finds {gpus}"
        sys.exit(f"assay: bench scaling measures updates on several GPUs: {here}; nothing was measured, no record was written")
    for found in measure(Size(), processes):
        publish(found)


def gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


def measure(size: Size, processes: int) -> Iterator[dict]:
    """Target: 0.9 of n times the tokens a second of one."""
    for shape in size.shapes:
        yield scaling(shape, size, processes)


def scaling(shape: Shape, size: Size, processes: int) -> dict:
    count, length = size.uniform[0]
    one, many = [length] * count, [length] * count * processes
    found = {
        "one": figures(shape, size, 1, one),
        "as_many_tokens_each": figures(shape, size, processes, many),
        "as_many_tokens_in_all": figures(shape, size, processes, one),
    }
    settings = {
        **learner.about(shape, size),
        "processes": processes,
        "sequences": f"{count} x {length} a process",
        "activation_checkpointing": False,
        "peer": "the same on one GPU, times the processes",
        "target": "0.9 of the peer",
    }
    rate, peer = found["as_many_tokens_each"]["tokens_per_s"], processes * found["one"]["tokens_per_s"]
    return record("scaling", rate, peer, "tokens/s", settings, found)


def figures(shape: Shape, size: Size, processes: int, lengths: list[int]) -> dict:
    """Tokens a second of all processes, the largest peak of one, and MFU of each."""
    # Each in a process of its own, one alone too: what a measurement leaves on a card would count against the next.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.scaling", "runner.learning.trainer"])
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(processes, context) as apart:
            asked = [(rank, processes, Path(folder) / "meeting", shape, size, lengths) for rank in range(processes)]
            found, parts = zip(*[task.result() for task in [apart.submit(part, *one) for one in asked]], strict=True)
    peaks = [measured.peak_bytes for measured in found if measured.peak_bytes is not None]
    rates = Measured(found[0].seconds, max(peaks, default=None)).of(sum(lengths))
    seconds = round(statistics.median(found[0].seconds), 4)
    mfu = round(learner.share_of_peak(shape, lengths, rates) / processes, 4)
    return {**rates, "seconds": seconds, "mfu": mfu, "gpu_ms": parts[0]}


def part(rank: int, processes: int, meeting: Path, shape: Shape, size: Size, lengths: list[int]) -> tuple[Measured, dict[str, float]]:
    """What process `rank` measures of the steps that all make together, and where its GPU's time goes in one."""
    import torch
    from torch.distributed import FileStore, destroy_process_group

    from runner.learning.ranks import Ranks

    if learner.place() == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    sequences = learner.sequences_of(lengths, shape.vocabulary)
    if processes == 1:
        return measured(lambda: learner.ours(shape, size, sequences, False), size)
    ranks = Ranks(FileStore(str(meeting), processes), rank, processes, learner.place())
    try:
        return measured(lambda: learner.ours(shape, size, sequences, False, ranks), size)
    finally:
        destroy_process_group()


def measured(side, size: Size) -> tuple[Measured, dict[str, float]]:
    return learner.steps_of(side(), size.repetitions), learner.breakdown(side())


if __name__ == "__main__":
    main(sys.argv[1:])
