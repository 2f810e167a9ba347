"""The tokenizer inside a GGUF file, as a `tokenizers.Tokenizer`."""

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kifu.errors import ModelError
from kifu.models.gguf import Gguf

_SPLITTERS = ("smollm",)
_CONTROL, _USER_DEFINED = 3, 4


def build_tokenizer(gguf: Gguf) -> Tokenizer:
    """Byte-level BPE with single digits and the file's special tokens.

    Raises:
        ModelError: another kind of tokenizer, or tables that contradict each other.
    """
    kind = gguf.get("tokenizer.ggml.model", str)
    splitter = gguf.get("tokenizer.ggml.pre", str)
    if kind != "gpt2" or splitter not in _SPLITTERS:
        raise ModelError(
            f"{gguf.path}: tokenizer `{kind}` with splitter `{splitter}`. "
            f"Built are: `gpt2` with {', '.join(_SPLITTERS)}. Take a folder with a tokenizer.json instead."
        )
    tokens = gguf.texts("tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not tokens or len(vocabulary) != len(tokens):
        raise ModelError(f"{gguf.path}: {len(tokens)} tokens, {len(vocabulary)} of them different; expected all")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(gguf, vocabulary)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = _kinds(gguf, len(tokens))
    for wanted in (_CONTROL, _USER_DEFINED):
        added = [
            AddedToken(token, special=wanted == _CONTROL, normalized=False)
            for token, found in zip(tokens, kinds, strict=True)
            if found == wanted and token
        ]
        (tokenizer.add_special_tokens if wanted == _CONTROL else tokenizer.add_tokens)(added)
    return tokenizer


def special_ids(gguf: Gguf, num_tokens: int) -> dict[str, int]:
    """The ids named by the file: ``bos``, ``eos``, ``unknown``, ``padding``, where present.

    Raises:
        ModelError: no end-of-text id, or an id outside the vocabulary.
    """
    found: dict[str, int] = {}
    for name in ("bos", "eos", "unknown", "padding"):
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in gguf.metadata and name != "eos":
            continue
        found[name] = gguf.get(key, int)
        if not 0 <= found[name] < num_tokens:
            raise ModelError(f"{gguf.path}: metadata `{key}` is {found[name]}, the vocabulary has {num_tokens} tokens")
    return found


def _merges(gguf: Gguf, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    merges = []
    for text in gguf.texts("tokenizer.ggml.merges"):
        left, _, right = text.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise ModelError(f"{gguf.path}: merge {text!r:.80} joins or makes a token outside the vocabulary")
        merges.append((left, right))
    return merges


def _kinds(gguf: Gguf, num_tokens: int) -> list[int]:
    found = gguf.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.size != num_tokens:
        raise ModelError(f"{gguf.path}: metadata `tokenizer.ggml.token_type` must hold one integer for each token")
    return [int(kind) for kind in found]
