"""env.toml: the one small file per environment that drives the compiler from sparse to dense task folders.

It stands at `envs/<env>/env.toml` and says what the source is, which checks grade which source tree, and where each file of the
environment goes. Everything a task adds comes from the task's own folder. Example:

    schema_version = 1
    name = "heat"

    [base]
    image = "assay-sandbox"             # @BASE_IMAGE@
    digest = ""                         # @BASE_DIGEST@

    [source]
    directory = "env/source"            # packed as a byte-stable tar; or `archive` with its `sha256`
    commit = "0123abc"

    [tokens]
    ROW_TIMEOUT = "20"

    [trees.2d]
    checks = ["heat-32", "heat-64"]
    tokens = { BUILD_VARIANTS_SH = "make serial" }

    [[files]]
    from = "env/harbor/agent.Dockerfile"
    to = ["environment/Dockerfile"]
    fill = true

    [[files]]
    from = "env/cases/{check}"
    to = ["environment/cases/{check}", "tests/cases/{check}"]
"""

import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
ENV_FILE = "env.toml"
SOURCE_TAR = "source.tar"
# Whose folder a rule's `from` starts in; without a prefix it is the environment's.
TASK_PREFIX, BANK_PREFIX = "task:", "bank:"


class InvalidEnvFile(ValueError):
    """env.toml was refused; the message names the file, the key, the value and the remedy."""


def _inside(path: str) -> str:
    """A relative POSIX path that stays below the folder it starts in."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path:
        raise ValueError(f"{path!r} must be a relative path with forward slashes and without '..'")
    return path


def _origin(path: str) -> str:
    _inside(path.removeprefix(TASK_PREFIX).removeprefix(BANK_PREFIX))
    return path


def _check_name(name: str) -> str:
    # It becomes part of paths.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) or ".." in name:
        raise ValueError(f"{name!r} is no name of a check; use letters, digits, dots, dashes, underscores")
    return name


RelativePath = Annotated[str, AfterValidator(_inside)]
Origin = Annotated[str, AfterValidator(_origin)]
TokenName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]


class EnvDocument(BaseModel):
    """Base of the parts of env.toml: a key that is not known is refused, because a misspelt one would be silently lost."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Base(EnvDocument):
    """The image that both Dockerfiles start from: tokens @BASE_IMAGE@ and @BASE_DIGEST@."""

    image: str = Field("assay-sandbox", min_length=1)
    digest: str = ""


class Source(EnvDocument):
    """The pinned clean source. Tokens @SOURCE_ARCHIVE@ (file name), @SOURCE_SHA256@, @SOURCE_COMMIT@ and @STRIP_SH@ come from it.

    A `directory` is packed into `source.tar` whose bytes depend on names, executable bits and contents alone. An `archive` is taken as it
    is, and `sha256` must be its hash. The packed file goes to every folder in `to`.
    """

    directory: RelativePath | None = None
    archive: RelativePath | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    commit: str = ""
    strip: list[RelativePath] = []
    to: list[RelativePath] = ["environment/source", "tests/source"]

    @model_validator(mode="after")
    def _one_source(self):
        if (self.directory is None) == (self.archive is None):
            raise ValueError("give exactly one of source.directory and source.archive")
        if self.archive and not self.sha256:
            raise ValueError("source.archive needs source.sha256, so that a changed archive is noticed")
        return self


class Tree(EnvDocument):
    """One graded build of the source: its checks, in grading order, and tokens that only its tasks get."""

    checks: list[Annotated[str, AfterValidator(_check_name)]] = Field(min_length=1)
    tokens: dict[TokenName, str] = {}


class FileRule(EnvDocument):
    """Copy one file or folder into the dense task.

    `from` starts in the environment's folder, in the task's (`task:menu.json`) or at the bank's root (`bank:shared/grade.py`). `{check}`
    in both `from` and `to` repeats the rule for each check of the task's tree. `fill` replaces @TOKEN@ in every file copied. `mode`
    overrides the executable bit. `optional` lets the source be absent. `categories` and `trees` limit the rule; empty means all.
    """

    origin: Origin = Field(alias="from")
    to: list[RelativePath] = Field(min_length=1)
    fill: bool = False
    executable: bool | None = None
    optional: bool = False
    categories: list[str] = []
    trees: list[str] = []

    @model_validator(mode="after")
    def _same_repetition(self):
        for target in self.to:
            if ("{check}" in target) != ("{check}" in self.origin):
                raise ValueError(f"files: from {self.origin!r} and to {target!r}: {{check}} must be in both or in neither")
        return self


class EnvFile(EnvDocument):
    """env.toml, whole."""

    schema_version: int = Field(1, ge=1, le=1)
    name: str = Field(pattern=rf"^{NAME.pattern}$")
    base: Base = Base()
    source: Source
    tokens: dict[TokenName, str] = {}
    trees: dict[str, Tree] = Field(min_length=1)
    files: list[FileRule] = Field(min_length=1)

    @model_validator(mode="after")
    def _known_trees(self):
        for rule in self.files:
            if unknown := set(rule.trees) - set(self.trees):
                raise ValueError(f"files: from {rule.origin!r}: trees {sorted(unknown)} are none of {sorted(self.trees)}")
        return self


def read_env_file(folder: Path) -> EnvFile:
    """The env.toml of the environment at `folder`. Raises InvalidEnvFile."""
    path = folder / ENV_FILE
    try:
        env = EnvFile.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise InvalidEnvFile(f"{path}: {error.strerror}; every environment of an authored bank needs one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidEnvFile(f"{path}: not TOML: {error}") from None
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
        raise InvalidEnvFile(f"{path}: {told}") from None
    if env.name != folder.name:
        raise InvalidEnvFile(f"{path}: name {env.name!r} differs from its folder {folder.name!r}; make them equal")
    return env
