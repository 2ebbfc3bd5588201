"""Derives the tasks of the sample bank from the clean sources and the defect catalogues: `python -m runner.environments.repair_bank.factory`."""
