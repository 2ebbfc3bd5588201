"""Assay's own sample of repair tasks: two small simulation codes, their checks, and the factory that derives the tasks from a defect catalogue."""

from pathlib import Path

BANK = Path(__file__).resolve().parent
