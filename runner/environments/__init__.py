"""Environments by the type of their settings. No torch, no simulator is imported before it is asked for."""

from runner.contract.run_config import Environment as EnvironmentSettings
from runner.environments.base import Environment
from runner.environments.quiz import QuizEnvironment
from runner.environments.sciknoweval import SciKnowEvalEnvironment

_BY_TYPE = {"quiz": QuizEnvironment, "sciknoweval": SciKnowEvalEnvironment}


def make_environment(settings: EnvironmentSettings) -> Environment:
    """A fresh environment for one episode."""
    return _BY_TYPE[settings.type]()
