"""Which finished episodes are suspect. Every match is recorded; only an enforced one keeps an episode from the loss."""

import numpy as np

from runner.contract.run_config import Filters
from runner.rollouts.types import Sample


def gibberish(sample: Sample, vocabulary: int, config: Filters) -> bool:
    """A rare token (high id) was sampled at less than chance: log-prob < −ln(vocabulary) − offset."""
    drawn = ~np.isnan(sample.logprobs)
    floor = -np.log(vocabulary) - config.gibberish_offset
    return bool((drawn & (sample.token_ids > config.gibberish_token_id) & (np.nan_to_num(sample.logprobs) < floor)).any())


def repetition(sample: Sample, config: Filters) -> bool:
    """`repetition_window` sampled tokens in a row were near certain; tokens of other authors do not break a streak."""
    drawn = sample.logprobs[~np.isnan(sample.logprobs)]
    certain = np.concatenate([[False], drawn > np.log(config.repetition_probability), [False]])
    edges = np.flatnonzero(certain[1:] != certain[:-1])
    streaks = edges[1::2] - edges[::2]
    return bool((streaks >= config.repetition_window).any())


def matched_filters(sample: Sample, advantage: float | None, vocabulary: int, config: Filters) -> list[str]:
    """Names of all filters that are on and match, in their fixed order."""
    found = {
        "gibberish": lambda: gibberish(sample, vocabulary, config),
        "repetition": lambda: repetition(sample, config),
        "zero_advantage": lambda: advantage == 0.0,
    }
    return [name for name, matches in found.items() if getattr(config, name) != "off" and matches()]


def enforced_filter(matches: list[str], config: Filters) -> str | None:
    """The first match that keeps the episode out of the loss."""
    return next((name for name in matches if getattr(config, name) == "enforce"), None)
