"""Running untrusted actions: the log of their effects."""

from kifu.sandbox.effects import EFFECTS, EffectFile, EffectHead, EffectLog, ForwardKey, Pending, Phase
from kifu.sandbox.effects_check import EffectReport, check_effects

__all__ = [
    "EFFECTS",
    "EffectFile",
    "EffectHead",
    "EffectLog",
    "EffectReport",
    "ForwardKey",
    "Pending",
    "Phase",
    "check_effects",
]
