"""Sampling log-probs out of vLLM for next to nothing.

vLLM cuts each step's log-probs into three arrays a request and makes ten lists a token of them: at 512 rows of half a billion parameters
that costs as much as the model itself. Where only the sampled token's was asked for, it is looked up in one list a step.
"""

from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsLists, LogprobsTensors


def capture_sampled_logprobs() -> None:
    """From now on, for every engine of this process; what asks for more gets it as before."""
    if LogprobsProcessor._update_sample_logprobs is _append:
        return
    _tolists.general, LogprobsTensors.tolists = LogprobsTensors.tolists, _tolists
    _append.general, LogprobsProcessor._update_sample_logprobs = LogprobsProcessor._update_sample_logprobs, _append


class _Step(LogprobsLists):
    """The log-probs of one step of the engine; `sampled` are the sampled tokens' of all rows."""

    sampled: list[float]

    def slice_request(self, row: int, positions: int) -> "LogprobsLists | tuple[_Step, int]":
        if positions != 1 or self.cu_num_generated_tokens is not None:
            return super().slice_request(row, positions)
        return self, row


def _tolists(tensors: LogprobsTensors, *cumulated) -> _Step:
    step = _Step(*_tolists.general(tensors, *cumulated))
    step.sampled = step.logprobs[:, 0].tolist()
    return step


def _append(processor: LogprobsProcessor, found: LogprobsLists | tuple[_Step, int]) -> None:
    """Append what a request was given of a step to its own log-probs."""
    at_one = type(found) is tuple
    if processor.num_logprobs == 0 and processor.tokenizer is None and hasattr(processor.logprobs, "start_indices"):
        processor.logprobs.logprobs.extend([found[0].sampled[found[1]]] if at_one else found.logprobs[:, 0].tolist())
    else:
        _append.general(processor, LogprobsLists.slice_request(*found, 1) if at_one else found)
