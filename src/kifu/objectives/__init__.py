"""What is minimized: per-token losses, ratios, KL estimators, sampling transforms, the optimizer."""

from kifu.objectives.contract import Loss, Objective, Terms, ValueTerms

__all__ = ["Loss", "Objective", "Terms", "ValueTerms"]
