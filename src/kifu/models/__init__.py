"""Model folders: where they come from and what names them. No torch."""

from kifu.models.folder import Digests, ModelFolder, digests, open_folder
from kifu.models.progress import Progress
from kifu.models.resolve import cache_root, pull
from kifu.models.tiny import tiny_llama

__all__ = ["Digests", "ModelFolder", "Progress", "cache_root", "digests", "open_folder", "pull", "tiny_llama"]
