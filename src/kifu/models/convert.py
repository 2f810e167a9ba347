"""A GGUF file becomes a model folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kifu.errors import ModelError
from kifu.models.folder import write_json
from kifu.models.gguf import Gguf, open_gguf
from kifu.models.tokenizer import build_tokenizer, special_ids
from kifu.models.weights import Float32s, write_safetensors

ARCHITECTURES = ("llama",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """The sizes of a Llama as its GGUF metadata states them."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_width: int
    positions: int
    rope_base: float
    norm_epsilon: float


def convert_gguf(source: Path, folder: Path, *, report: Callable[[int, int], None] | None = None) -> None:
    """Write config, float32 weights and tokenizer of a GGUF file into an existing folder.

    Args:
        source: the GGUF file.
        folder: receives the files; written to, never cleared.
        report: told the bytes written and the bytes in all, after each tensor.

    Raises:
        ModelError: the file is damaged, or holds an architecture, tensor type or tokenizer that is not read.
    """
    gguf = open_gguf(source)
    shape = _llama_shape(gguf)
    tokenizer = build_tokenizer(gguf)
    num_tokens = len(gguf.texts("tokenizer.ggml.tokens"))
    ids = special_ids(gguf, num_tokens)
    plan = _tensor_plan(gguf, shape, num_tokens)
    total = sum(4 * int(np.prod(gguf.tensors[old].shape)) for old, _ in plan.values())
    done = 0

    def values(name: str) -> Float32s:
        nonlocal done
        old, heads = plan[name]
        found = gguf.read(old)
        done += found.nbytes
        if report is not None:
            report(done, total)
        return found if heads is None else _halves_apart(found, heads)

    shapes = {new: gguf.tensors[old].shape for new, (old, _) in plan.items()}
    write_safetensors(folder / "model.safetensors", shapes, values)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", _config(shape, num_tokens, ids, tied="lm_head.weight" not in plan))
    write_json(folder / "generation_config.json", _numbered(ids))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(gguf, shape, ids))


def _llama_shape(gguf: Gguf) -> LlamaShape:
    kind = gguf.get("general.architecture", str)
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"{gguf.path}: architecture `{kind}`. Converted are: {', '.join(ARCHITECTURES)}. "
            "Take a folder with safetensors weights instead."
        )
    if gguf.get("llama.rope.scaling.type", str, "none") != "none" or gguf.get("llama.expert_count", int, 0):
        raise ModelError(f"{gguf.path}: a llama with scaled positions or experts. Only the plain form is converted.")
    heads = _size(gguf, "llama.attention.head_count")
    hidden = _size(gguf, "llama.embedding_length")
    shape = LlamaShape(
        layers=_size(gguf, "llama.block_count"),
        hidden=hidden,
        intermediate=_size(gguf, "llama.feed_forward_length"),
        heads=heads,
        key_value_heads=_size(gguf, "llama.attention.head_count_kv", heads),
        head_width=_size(gguf, "llama.attention.key_length", hidden // heads),
        positions=_size(gguf, "llama.context_length"),
        rope_base=_shortest(gguf.get("llama.rope.freq_base", float, 10_000.0)),
        norm_epsilon=_shortest(gguf.get("llama.attention.layer_norm_rms_epsilon", float)),
    )
    rotated = _size(gguf, "llama.rope.dimension_count", shape.head_width)
    if heads % shape.key_value_heads or rotated != shape.head_width or rotated % 2:
        raise ModelError(
            f"{gguf.path}: {heads} heads on {shape.key_value_heads} key-value heads, {rotated} of {shape.head_width} "
            "dimensions rotated; expected a multiple, and all of an even number"
        )
    if not (0 < shape.rope_base < np.inf and 0 <= shape.norm_epsilon < 1):
        raise ModelError(f"{gguf.path}: rope base {shape.rope_base}, norm epsilon {shape.norm_epsilon}: out of range")
    return shape


def _size(gguf: Gguf, key: str, default: int | None = None) -> int:
    found = gguf.get(key, int, default)
    if not 1 <= found < 1 << 31:
        raise ModelError(f"{gguf.path}: metadata `{key}` is {found}, expected a size from 1 to {(1 << 31) - 1}")
    return found


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def _tensor_plan(gguf: Gguf, shape: LlamaShape, num_tokens: int) -> dict[str, tuple[str, int | None]]:
    """For each tensor to write, the tensor to read and the heads whose rows are to be set apart.

    Raises:
        ModelError: a tensor is missing, has another shape than the metadata says, or is not part of a plain Llama.
    """
    queries, keys = shape.heads * shape.head_width, shape.key_value_heads * shape.head_width
    hidden, wide = shape.hidden, shape.intermediate
    if shape.layers > len(gguf.tensors):
        raise ModelError(f"{gguf.path}: {shape.layers} layers but {len(gguf.tensors)} tensors; the file is incomplete")
    expected: dict[str, tuple[str, tuple[int, ...], int | None]] = {
        "token_embd.weight": ("model.embed_tokens.weight", (num_tokens, hidden), None)
    }
    for layer in range(shape.layers):
        old, new = f"blk.{layer}", f"model.layers.{layer}"
        expected |= {
            f"{old}.attn_norm.weight": (f"{new}.input_layernorm.weight", (hidden,), None),
            f"{old}.attn_q.weight": (f"{new}.self_attn.q_proj.weight", (queries, hidden), shape.heads),
            f"{old}.attn_k.weight": (f"{new}.self_attn.k_proj.weight", (keys, hidden), shape.key_value_heads),
            f"{old}.attn_v.weight": (f"{new}.self_attn.v_proj.weight", (keys, hidden), None),
            f"{old}.attn_output.weight": (f"{new}.self_attn.o_proj.weight", (hidden, queries), None),
            f"{old}.ffn_norm.weight": (f"{new}.post_attention_layernorm.weight", (hidden,), None),
            f"{old}.ffn_gate.weight": (f"{new}.mlp.gate_proj.weight", (wide, hidden), None),
            f"{old}.ffn_up.weight": (f"{new}.mlp.up_proj.weight", (wide, hidden), None),
            f"{old}.ffn_down.weight": (f"{new}.mlp.down_proj.weight", (hidden, wide), None),
        }
    expected["output_norm.weight"] = ("model.norm.weight", (hidden,), None)
    if "output.weight" in gguf.tensors:
        expected["output.weight"] = ("lm_head.weight", (num_tokens, hidden), None)
    missing, foreign = expected.keys() - gguf.tensors.keys(), gguf.tensors.keys() - expected.keys()
    if missing or foreign:
        raise ModelError(
            f"{gguf.path}: not a plain llama of {shape.layers} layers: {len(missing)} tensors missing "
            f"({', '.join(sorted(missing)[:3])}), {len(foreign)} unknown ({', '.join(sorted(foreign)[:3])})"
        )
    for old, (_, wanted, _) in expected.items():
        if gguf.tensors[old].shape != wanted:
            raise ModelError(f"{gguf.path}: tensor {old} has shape {gguf.tensors[old].shape}, expected {wanted}")
    return {new: (old, heads) for old, (new, _, heads) in expected.items()}


def _halves_apart(rows: Float32s, heads: int) -> Float32s:
    """Undo GGUF's row order of query and key projections.

    GGUF rotates neighbouring rows (0, 1), (2, 3), ...; transformers rotates row i with row i + width / 2.
    """
    paired = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)


def _numbered(ids: dict[str, int]) -> dict[str, object]:
    spelled = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    return {spelled[name]: index for name, index in ids.items() if name in spelled}


def _config(shape: LlamaShape, num_tokens: int, ids: dict[str, int], *, tied: bool) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": num_tokens,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.head_width,
        "max_position_embeddings": shape.positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base},
        "rms_norm_eps": shape.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        **_numbered(ids),
    }


def _tokenizer_config(gguf: Gguf, shape: LlamaShape, ids: dict[str, int]) -> dict[str, object]:
    tokens = gguf.texts("tokenizer.ggml.tokens")
    spelled = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.positions,
        "clean_up_tokenization_spaces": False,
        **{spelled[name]: tokens[index] for name, index in ids.items()},
    }
    if "tokenizer.chat_template" in gguf.metadata:
        config["chat_template"] = gguf.get("tokenizer.chat_template", str)
    return config
