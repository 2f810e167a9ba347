"""A random two-layer Llama with a small tokenizer: every part of a real model folder, in milliseconds.

It knows nothing, so its only use is to run the machinery: check mode, tests, examples without a download.
"""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kifu.errors import ModelError
from kifu.models.atomic import build_folder
from kifu.models.folder import ORIGIN_FILE, ModelFolder, open_folder, write_json
from kifu.models.weights import Float32s, write_safetensors

VOCABULARY = 600
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS, POSITIONS = 64, 192, 2, 4, 2, 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_TEXT = """
the system tells the user what to do and the assistant answers with one tool call in every turn until the task is done
you are a helpful assistant in a room with a red key, a blue key, a green key, a yellow key, a box, a door and a drawer
look around, go to the door, open the box, take the blue key, use the key on the door, read the note, inspect the chest
answer the question with the number, add the two numbers, get the value of pens, calculate the product, then finish
{"tool": "get", "arguments": {"name": "pens"}} {"tool": "answer", "arguments": {"value": 12}} <tool_call> </tool_call>
error: there is no such tool; the command is not known; the door is closed; the box is empty; the key fits; well done
what is the capital of France? it was not there, she said that they will have been here, from this time on we can see
each agent plays one episode against its world, every action has a cost, each reward is paid once by a check of outcome
please try another command, first list which containers exist here, second pick something useful, third walk back home
north south east west left right forward inventory corridor bedroom kitchen garden silver golden wooden broken locked
import numpy as np; def main(self, value): return value; for index in range(10): print(result); if not found: raise
"""
"""Pairs that are frequent here become tokens."""


def tiny_llama(folder: Path, *, seed: int = 0) -> ModelFolder:
    """Make a random Llama in ``folder``, or describe the one that is there.

    Two layers, width 64, four heads on two key-value heads, 600 tokens, 2,048 positions, tied embeddings, ChatML. It
    loads in transformers. Equal seeds give equal digests.

    Args:
        folder: the model folder to create.
        seed: of the weights; the tokenizer is always the same.

    Raises:
        ModelError: the folder holds something else.
    """
    build_folder(folder, lambda part: _fill(part, seed), needed_bytes=2_000_000)
    made = open_folder(folder)
    if made.source != _source(seed):
        raise ModelError(f"{folder}: holds {made.source}, asked for {_source(seed)}. Choose another folder.")
    return made


def _source(seed: int) -> str:
    return f"kifu random tiny llama, seed {seed}"


def _fill(folder: Path, seed: int) -> None:
    shapes = _shapes()
    generator = np.random.Generator(np.random.PCG64(seed))

    def values(name: str) -> Float32s:
        shape = shapes[name]
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        scale = 0.1 if "embed" in name else 1.0 / np.sqrt(shape[1])
        return (generator.standard_normal(shape) * scale).astype(np.float32)

    write_safetensors(folder / "model.safetensors", shapes, values)
    _tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", _config())
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    write_json(folder / "tokenizer_config.json", _tokenizer_config())
    write_json(folder / ORIGIN_FILE, {"source": _source(seed), "licence": "Apache-2.0"})


def _shapes() -> dict[str, tuple[int, ...]]:
    narrow = HIDDEN // HEADS * KEY_VALUE_HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (narrow, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (narrow, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{at}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes | {"model.norm.weight": (HIDDEN,)}


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "chat_template": CHATML,
    }


def _tokenizer() -> Tokenizer:
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Counter(piece for piece, _ in splitter.pre_tokenize_str(_TEXT))
    merges = _learn_merges(words, VOCABULARY - len(SPECIAL) - len(letters))
    tokens = [*SPECIAL, *letters, *dict.fromkeys(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def _learn_merges(words: Counter[str], count: int) -> list[tuple[str, str]]:
    """Merge the most frequent adjacent pair until ``count`` tokens are new; ties go to the pair that sorts first."""
    pieces = {word: list(word) for word in words}
    merges: list[tuple[str, str]] = []
    made: set[str] = set()
    while len(made) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        made.add("".join(best))
        for parts in pieces.values():
            _merge(parts, best)
    return merges


def _merge(parts: list[str], pair: tuple[str, str]) -> None:
    at = 0
    while at < len(parts) - 1:
        if (parts[at], parts[at + 1]) == pair:
            parts[at : at + 2] = ["".join(pair)]
        at += 1
