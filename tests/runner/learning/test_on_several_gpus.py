"""What only several GPUs do: ranks with one each, over NCCL. The same as on gloo, and from n GPUs to n/2 and 2 n."""

import pytest
import torch

from runner.learning.ranks import ALONE
from tests.runner.learning.several import on_ranks
from tests.runner.learning.test_learner import SFT_STEPS
from tests.runner.learning.test_ranks import KINDS, assert_alike, learn_on

DEVICE, GPUS = "cuda", torch.cuda.device_count()
# Kernels of a GPU sum in other orders for other lengths of rows; bfloat16 rounds at every layer besides.
TOLERANCE = {"full": 1e-3, "lora": 1e-3, "bfloat16": 0.1}

pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")


def learn(size, meeting, kind, folder, until, root=None, resume=None):
    asked = (KINDS[kind], folder, {}, until, root, resume, DEVICE)
    return learn_on(ALONE, *asked) if size == 1 else on_ranks(size, meeting, learn_on, *asked, device=DEVICE)[0]


@pytest.mark.parametrize("kind", TOLERANCE)
def test_two_gpus_learn_what_one_learns(tiny_qwen3, tmp_path, kind):
    alone, both = (learn(size, tmp_path / str(size), kind, tiny_qwen3, SFT_STEPS) for size in (1, 2))
    assert_alike(both, alone, TOLERANCE[kind])


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("readers", [1, 4])
def test_what_two_gpus_wrote_goes_on_with_half_and_with_twice_as_many(tiny_qwen3, tmp_path, kind, readers):
    if readers > GPUS:
        pytest.skip(f"needs {readers} GPUs")
    written = learn(2, tmp_path / "writers", kind, tiny_qwen3, SFT_STEPS - 1, tmp_path)["path"]
    unbroken = learn(2, tmp_path / "unbroken", kind, tiny_qwen3, SFT_STEPS, None, written)
    assert_alike(learn(readers, tmp_path / "readers", kind, tiny_qwen3, SFT_STEPS, None, written), unbroken, TOLERANCE[kind])
