"""The learner's weights on their way to a worker on another GPU: by one broadcast beside Ray's object store, as a run takes either.

One record per model, `weight_transfer`; beside both stands what the link carries when one gibibyte is broadcast alone.
`./assay bench weight_transfer` needs two GPUs; without Django: `python -m benchmarks.weight_transfer`. `--tiny` runs on a CPU and keeps
nothing.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import learner
from benchmarks.learner import TINY, Shape, Size
from benchmarks.record import publish, record
from benchmarks.scaling import gpus_here

LINK_BYTES = 2**30
REPETITIONS = 5


def main(arguments: list[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.weight_transfer")
    parser.add_argument("--tiny", action="store_true", help="a small model on the processor; nothing is kept")
    if parser.parse_args(arguments).tiny:
        for found in measure(TINY, gpus=0):
            print(json.dumps(found))
        return
    if (gpus := gpus_here()) < 2:
        sys.exit(f"assay: bench weight_transfer wants two GPUs, torch finds {gpus}; nothing was measured, no record was written")
    for found in measure(Size(), gpus=1):
        publish(found)


def measure(size: Size, gpus: int) -> Iterator[dict]:
    """`gpus` for each side."""
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    try:
        for shape in size.shapes:
            yield transfer(shape, size, gpus)
    finally:
        ray.shutdown()


def transfer(shape: Shape, size: Size, gpus: int) -> dict:
    import ray

    side = ray.remote(Side).options(num_cpus=1, num_gpus=gpus)
    sender, receiver = [side.remote(shape, size) for _ in range(2)]
    meeting = ray.get(sender.open.remote())
    ray.get([sender.join.remote(0, meeting), receiver.join.remote(1, meeting)])
    sent = ray.get(sender.bytes.remote())

    def broadcast() -> None:
        ray.get([sender.send.remote(), receiver.receive.remote()])

    def store() -> None:
        ray.get(receiver.load.remote(sender.weights.remote()))

    def link() -> None:
        ray.get([side.link.remote(LINK_BYTES if gpus else 2**20) for side in (sender, receiver)])

    seconds, arrived = {}, {}
    for name, way in {"broadcast": broadcast, "object_store": store}.items():
        ray.get(receiver.forget.remote())
        seconds[name] = timed(way)
        arrived[name] = len(set(ray.get([sender.checksum.remote(), receiver.checksum.remote()]))) == 1
    seconds["link"] = timed(link)
    for actor in (sender, receiver):
        ray.kill(actor)
    middle = {name: round(statistics.median(times), 4) for name, times in seconds.items()}
    also = {
        "seconds": {name: [round(one, 4) for one in times] for name, times in seconds.items()},
        "bytes": sent,
        "gb_per_s": {"broadcast": round(sent / middle["broadcast"] / 1e9, 2), "object_store": round(sent / middle["object_store"] / 1e9, 2)},
        "link_gb_per_s": round((LINK_BYTES if gpus else 2**20) / middle["link"] / 1e9, 2),
        "arrived": arrived,
    }
    settings = {**learner.about(shape, size), "repetitions": REPETITIONS, "peer": "Ray's object store, through host memory"}
    return record("weight_transfer", middle["broadcast"], middle["object_store"], "s a push", settings, also, lower_is_better=True)


def timed(way: Callable[[], None]) -> list[float]:
    """The first, which connects and allocates, is not counted."""
    way()
    seconds = []
    for _ in range(REPETITIONS):
        begun = time.perf_counter()
        way()
        seconds.append(time.perf_counter() - begun)
    return seconds


class Side:
    """Learner or worker: a model, and its end of the way."""

    def __init__(self, shape: Shape, size: Size):
        self.network = learner.random_model(shape, size, "sdpa").requires_grad_(False)

    def forget(self) -> None:
        """What is equal afterwards has arrived."""
        for parameter in self.network.parameters():
            parameter.zero_()

    def open(self) -> tuple[str, int]:
        import ray

        from runner.learning.channel import open_store

        self.store = open_store(ray.util.get_node_ip_address())
        return ray.util.get_node_ip_address(), self.store.port

    def join(self, rank: int, meeting: tuple[str, int]) -> None:
        from runner.learning.channel import Channel

        self.channel = Channel.join(meeting, 1, 2, learner.place()) if rank else Channel(self.store, 0, 2, learner.place())

    def send(self) -> None:
        from runner.learning.channel import Header

        tensors = dict(self.network.named_parameters())
        self.channel.send(1, [Header.of(name, tensor) for name, tensor in tensors.items()], tensors.values())
        wait_for_gpu()

    def receive(self) -> None:
        from runner.learning.weights import import_tensors

        import_tensors(self.network, self.channel.receive()[1])
        wait_for_gpu()

    def weights(self):
        from runner.learning.weights import export_weights

        return export_weights(self.network.requires_grad_(True), 1)

    def load(self, weights) -> None:
        from runner.learning.weights import import_weights

        import_weights(self.network, weights)
        wait_for_gpu()

    def link(self, size: int) -> None:
        """Broadcast that many bytes and nothing else."""
        import torch

        self.channel.group.broadcast(torch.zeros(size // 4, device=learner.place()), root=0).wait()
        wait_for_gpu()

    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.network.parameters())

    def checksum(self) -> float:
        return float(sum(parameter.detach().double().abs().sum() for parameter in self.network.parameters()))


def wait_for_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])
