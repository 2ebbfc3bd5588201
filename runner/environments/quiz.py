"""The bundled science quiz."""

from runner.environments.choice import ChoiceEnvironment
from runner.environments.extraction import whole_label


class QuizEnvironment(ChoiceEnvironment):
    """Its questions carry no instruction: the warm start teaches that a question with options is answered by its letter alone.

    A reply with anything beside the letter is not parsed: else a policy that first recalls the fact and then gives the letter earns the
    reward, and the letter's own log-probability (forced choice) says nothing about what it knows.
    """

    label_of = staticmethod(whole_label)
