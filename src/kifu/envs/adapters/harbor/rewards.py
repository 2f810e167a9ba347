"""The two files in which a Harbor verifier leaves its reward, read as hostile text."""

import json
from collections.abc import Mapping
from math import isfinite

from kifu.errors import VerifierFailure

LIMIT_BYTES = 65536
_EXPECTED = 'expected a finite number from 0 to 1, or in reward.json an object of such numbers, e.g. {"reward": 1.0}'


def read_rewards(*, reward_json: bytes | None, reward_text: bytes | None) -> Mapping[str, float]:
    """Rewards by name; a single number is called ``reward``. ``reward.json`` counts before ``reward.txt``.

    Stricter than Harbor, which takes any finite number and true for 1: a number outside [0, 1] is a fault.

    Args:
        reward_json: content of the file, None where it is missing.
        reward_text: likewise.

    Raises:
        VerifierFailure: no file, an empty one, or something else in it. Never a reward of 0.
    """
    if reward_json is not None:
        return _of_json(_text(reward_json, "reward.json"))
    if reward_text is None:
        raise VerifierFailure("the verifier left neither reward.json nor reward.txt")
    text = _text(reward_text, "reward.txt").strip()
    try:
        number = float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        number = None
    return {"reward": _number(number, where="reward.txt", found=text)}


def _of_json(text: str) -> Mapping[str, float]:
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise VerifierFailure(f"reward.json: found {text[:60]!r}, {_EXPECTED}") from None
    if not isinstance(found, dict):
        return {"reward": _number(found, where="reward.json", found=text)}
    if not found:
        raise VerifierFailure(f"reward.json: found no reward, {_EXPECTED}")
    return {name: _number(value, where=f"reward.json, `{name[:40]}`", found=value) for name, value in found.items()}


def _text(data: bytes, name: str) -> str:
    if not data.strip() or len(data) > LIMIT_BYTES:
        raise VerifierFailure(f"{name}: {len(data):,} bytes, {_EXPECTED}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise VerifierFailure(f"{name}: is not UTF-8, {_EXPECTED}") from None


def _number(value: object, *, where: str, found: object) -> float:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    if not sound or not isinstance(value, int | float) or not isfinite(value):
        raise VerifierFailure(f"{where}: found {str(found)[:60]!r}, {_EXPECTED}")
    return float(value)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has one name twice")
    return made
