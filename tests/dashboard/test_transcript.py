"""Pieces of a tape: nothing lost, torn characters whole, logprobs of their own tokens."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kifu.dashboard import decoder_of, transcript
from kifu.dashboard.reading import RunView
from kifu.dashboard.tapes import chosen
from kifu.models import ModelFolder
from kifu.monitor import RunFolder
from kifu.records import (
    EnvironmentRef,
    Ints,
    Origin,
    Outcome,
    Provenance,
    RolloutKey,
    Sampling,
    Span,
    StopReason,
    Tape,
    TaskRef,
    Trajectory,
    as_floats,
    as_ints,
)
from kifu.render import load_tokenizer


def trajectory(*tapes: Tape) -> Trajectory:
    return Trajectory(
        key=RolloutKey(seed=0, step=0, group=0, member=0),
        task=TaskRef(id="t"),
        environment=EnvironmentRef(id="e", version="1", seed=0),
        provenance=Provenance(),
        tapes=tapes,
        turns=(),
        outcome=Outcome(reason=StopReason.NATURAL_END),
    )


def as_bytes(ids: Ints | Sequence[int]) -> str:
    """A tokenizer with one id a byte."""
    return bytes(int(token) for token in ids).decode("utf-8", "replace")


def sampled(ids: Sequence[int], logprobs: Sequence[float]) -> Span:
    return Span(
        origin=Origin.POLICY,
        turn=0,
        token_ids=as_ints(ids),
        logprobs=as_floats(logprobs),
        policy_version=0,
        sampling=Sampling(),
    )


def test_bytes_of_one_character_stand_in_one_piece_with_their_logprobs_added() -> None:
    ids = list("a€b".encode())
    found = transcript(trajectory(Tape(spans=(sampled(ids, [-1, -2, -3, -4, -5]),))), as_bytes)
    assert [(piece.text, piece.logprob) for piece in found.pieces] == [("a", -1), ("€", -9), ("b", -5)]


def test_a_character_torn_by_the_end_of_a_span_loses_no_token() -> None:
    ids = list("€".encode())
    spans = (sampled(ids[:2], [-1, -2]), Span(origin=Origin.FRAMEWORK, turn=0, token_ids=as_ints(ids[2:])))
    found = transcript(trajectory(Tape(spans=spans)), as_bytes)
    assert [token for piece in found.pieces for token in piece.token_ids] == ids
    assert [piece.origin for piece in found.pieces] == [Origin.POLICY, Origin.POLICY, Origin.FRAMEWORK]


def test_a_fork_shows_what_it_shares_and_where_it_leaves() -> None:
    first = Tape(spans=(Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints(list(b"abcd"))),))
    second = Tape(spans=(sampled(list(b"xy"), [-1, -2]),), parent=0, fork_at=2)
    found = transcript(trajectory(first, second), as_bytes, tape=1)
    assert "".join(piece.text for piece in found.pieces) == "abxy"
    assert found.forked_at == 2


def test_a_language_models_tokens_join_to_the_text_that_was_encoded(tiny_model: ModelFolder) -> None:
    tokenizer = load_tokenizer(tiny_model.path)
    text = "Türen öffnen: naïve 鍵 🔑 done"
    span = Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints(tokenizer.encode(text).tolist()))
    found = transcript(trajectory(Tape(spans=(span,))), tokenizer.decode)
    assert "".join(piece.text for piece in found.pieces) == text


def test_symbols_are_read_from_the_run_folder_alone(run: RunView, trap: Path, hostile: str) -> None:
    decode, why = decoder_of(RunFolder.open(trap))
    assert why is None
    assert decode([0, 2, 3]) == f"go wall {hostile}"
    assert decode([9]) == "?9"
    item = next(iter(run.trajectories.values()))
    assert transcript(item, decode, spaced=True).pieces[0].text == "wall "


def test_without_its_model_a_run_shows_numbers_and_says_why(trap: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    RunFolder.create(root, {**RunFolder.open(trap).facts(), "model": str(tmp_path / "gone")})
    decode, why = decoder_of(RunFolder.open(root))
    assert decode([4, 5]) == "4 5"
    assert why is not None
    assert "gone" in why


@pytest.mark.parametrize("count", [0, 1, 100])
def test_transcripts_are_chosen_once_each_and_no_more_than_asked(run: RunView, count: int) -> None:
    from_run = {item.id for item in run.trajectories.values()}
    from_report = [item.id for item in chosen(run, count)] if count else []
    assert len(from_report) == len(set(from_report)) == min(count, len(from_run))
