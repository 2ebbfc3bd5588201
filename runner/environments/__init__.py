"""Environments by the type of their settings. No torch, no simulator, no container engine is imported before it is asked for."""

from typing import Any

from runner.contract.run_config import Environment as EnvironmentSettings
from runner.environments.base import Environment
from runner.environments.quiz import QuizEnvironment
from runner.environments.sciknoweval import SciKnowEvalEnvironment

_BY_TYPE = {"quiz": QuizEnvironment, "sciknoweval": SciKnowEvalEnvironment}


def make_environment(settings: EnvironmentSettings, site: Any = None) -> Environment:
    """A fresh environment for one episode. `site` is where container episodes run (environments.site), or the pool of simulators."""
    if settings.type == "harbor":
        from runner.environments.harbor import HarborEnvironment

        return HarborEnvironment(settings, site)
    if settings.type == "scienceworld":
        from runner.environments.scienceworld.environment import ScienceWorldEnvironment

        return ScienceWorldEnvironment(settings, site)
    return _BY_TYPE[settings.type]()
