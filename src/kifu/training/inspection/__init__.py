"""Runs that are looked at and not gone on with: audit, replay, evaluation, export, explanation of what was trained."""
