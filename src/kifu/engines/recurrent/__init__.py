"""A small recurrent actor-critic over a token vocabulary: same protocols and records as a language model."""

from kifu.engines.recurrent.engine import build
from kifu.engines.recurrent.model import ActorCritic
from kifu.engines.recurrent.options import Options, read_options
from kifu.engines.recurrent.sampler import RecurrentSampler
from kifu.engines.recurrent.trainer import RecurrentTrainer

__all__ = ["ActorCritic", "Options", "RecurrentSampler", "RecurrentTrainer", "build", "read_options"]
