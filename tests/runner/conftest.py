import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Torch on one thread: the machine is shared, and bits must repeat."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory):
    from tests.runner.tiny_models import save_tiny

    return save_tiny(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    from tests.runner.tiny_models import save_tiny

    return save_tiny(tmp_path_factory.mktemp("llama"), "llama", tie_word_embeddings=False)
