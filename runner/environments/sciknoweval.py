"""SciKnowEval's multiple-choice questions, after the published taskset.

Prompt: the row's instruction as system message; question, blank line and `L. text` lines as user message. One turn. Reward 1.0 if
the extracted letter equals the key, else 0.0.
"""

from runner.environments.choice import ChoiceEnvironment


class SciKnowEvalEnvironment(ChoiceEnvironment):
    """Two-option and four-option rows; only the labels of the row count."""
