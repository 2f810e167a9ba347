"""Model folders: where they come from and what names them. No torch."""

from kifu.models.folder import Digests, ModelFolder, digests
from kifu.models.pull import cache_root, pull
from kifu.models.tiny import tiny_llama

__all__ = ["Digests", "ModelFolder", "cache_root", "digests", "pull", "tiny_llama"]
