"""From a document to a run that may be queued: parse, preflight, resolve. Nothing is written here."""

from dataclasses import dataclass, field

from controlplane.accounts.roles import require
from controlplane.banks.models import BankVersion
from controlplane.runs import forecast, preflight
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.parse import FieldError, InvalidDocument, parse
from runner.contract.presets import find
from runner.contract.run_config import RunConfig


@dataclass(frozen=True)
class Checked:
    """A document after every instant check. `config` is resolved and present exactly when there are no errors."""

    document: dict
    config: RunConfig | None = None
    errors: list[FieldError] = field(default_factory=list)
    warnings: list[FieldError] = field(default_factory=list)
    bank_version: BankVersion | None = None
    forecast: dict | None = None

    @property
    def canonical(self) -> bytes:
        """The bytes that are stored, hashed and executed."""
        return canonical_bytes(self.config)

    @property
    def hash(self) -> str:
        return digest(self.canonical)


def check_launch(user, team, document: dict, with_forecast: bool = False) -> Checked:
    """Parse, check against the team's banks, models and machines, and resolve.

    Collects every error instead of stopping at the first. The forecast is made on request, also for a document that only the
    preflight refused, because a too large run is best understood by its size. Raises PermissionDenied for outsiders.
    """
    require(user, team, "run.read")
    try:
        config = parse(document)
    except InvalidDocument as error:
        return Checked(document, errors=error.errors)
    found = preflight.instant(config, team)
    rail = forecast.forecast(config, team, found.facts) if with_forecast and found.facts else None
    resolved = None if found.errors else resolve(config, found)
    return Checked(document, resolved, found.errors, found.warnings, found.bank_version, rail)


def resolve(config: RunConfig, found: preflight.Findings) -> RunConfig:
    """Pin what may change under the run's feet: bank digest, model revision, preset version. The seed is in the document."""
    pinned = config.model_dump(mode="json")
    pinned["environment"]["version"] = found.bank_version.digest
    pinned["model"]["source"]["revision"] = found.facts.revision
    if config.preset and "@" not in config.preset:
        pinned["preset"] = find(config.preset).label
    return parse(pinned)
