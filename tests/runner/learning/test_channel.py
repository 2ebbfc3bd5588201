"""Weights sent by one broadcast: what arrives is what was sent, and nobody waits for a peer that is gone."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from runner.learning import channel as channels
from runner.learning.channel import Channel, Header, open_store, pieces

HOST = "127.0.0.1"


def headers_of(tensors):
    return [Header.of(name, tensor) for name, tensor in tensors.items()]


def joined(size):
    """A sender and its receivers, each made in a thread as they wait for each other."""
    store = open_store(HOST)
    with ThreadPoolExecutor(size) as pool:
        sender = pool.submit(Channel, store, 0, size, "cpu")
        receivers = [pool.submit(Channel.join, (HOST, store.port), rank, size, "cpu") for rank in range(1, size)]
        return sender.result(), [receiver.result() for receiver in receivers]


def sent(sender, receivers, version, tensors):
    """What each receiver got: (version, tensors by name), and the bytes that the sender counted."""
    with ThreadPoolExecutor(len(receivers)) as pool:
        waiting = [pool.submit(lambda one: (lambda version, arriving: (version, dict(arriving)))(*one.receive()), one) for one in receivers]
        size = sender.send(version, headers_of(tensors), iter(tensors.values()))
        return [one.result() for one in waiting], size


@pytest.mark.parametrize("piece", [1, 64, 2**28])
def test_every_receiver_gets_the_same_tensors_bit_for_bit(monkeypatch, piece):
    monkeypatch.setattr(channels, "PIECE_BYTES", piece)
    torch.manual_seed(0)
    tensors = {
        "embed": torch.randn(11, 4),
        "norm": torch.randn(4),
        "low": torch.randn(3, 5).bfloat16(),
        "turned": torch.randn(4, 6).t(),
        "last": torch.randn(2, 2, 2),
    }
    sender, receivers = joined(3)
    for version in (4, 5):
        found, size = sent(sender, receivers, version, tensors)
        assert size == sum(tensor.nbytes for tensor in tensors.values())
        for told, arrived in found:
            assert told == version and list(arrived) == list(tensors)
            for name, tensor in tensors.items():
                assert arrived[name].dtype is tensor.dtype and torch.equal(arrived[name], tensor)
        tensors = {name: tensor + 1 for name, tensor in tensors.items()}


def test_pieces_keep_the_order_one_dtype_and_their_size(monkeypatch):
    monkeypatch.setattr(channels, "PIECE_BYTES", 40)
    made = headers_of({"a": torch.zeros(5), "b": torch.zeros(5), "c": torch.zeros(1), "d": torch.zeros(1).bfloat16(), "e": torch.zeros(30)})
    assert [[header.name for header in piece] for piece in pieces(made)] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert list(pieces([])) == []


KILLED = """
import os, sys
from runner.learning.channel import Channel
channel = Channel.join(("127.0.0.1", int(sys.argv[1])), 1, 2, "cpu")
version, tensors = channel.receive()
os._exit(9)
"""


def test_a_receiver_that_is_gone_ends_the_send_with_an_error(monkeypatch):
    monkeypatch.setattr(channels, "PIECE_BYTES", 4)
    store = open_store(HOST)
    receiver = subprocess.Popen([sys.executable, "-c", KILLED, str(store.port)])
    tensors = {str(number): torch.zeros(2**20) for number in range(20)}
    with pytest.raises(RuntimeError):
        Channel(store, 0, 2, "cpu").send(1, headers_of(tensors), iter(tensors.values()))
    assert receiver.wait(60) == 9


def test_who_does_not_come_is_missed(monkeypatch):
    monkeypatch.setattr(channels, "PATIENCE", timedelta(seconds=1))
    with pytest.raises(RuntimeError):
        Channel(open_store(HOST), 0, 2, "cpu")
