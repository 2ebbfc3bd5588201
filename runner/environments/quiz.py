"""The bundled science quiz."""

from runner.environments.choice import ChoiceEnvironment


class QuizEnvironment(ChoiceEnvironment):
    """Its questions carry no instruction: the warm start teaches that a question with options is answered by a letter."""
