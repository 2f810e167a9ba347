"""Members of a group that sample at different temperatures: what is recorded, trained and rebuilt."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.errors import ExperimentError
from kifu.monitor import read_metrics
from kifu.records import Origin, Purpose, Trajectory
from kifu.records.reader import RunReader
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded
from kifu.training.inspection.audit import audit
from kifu.training.inspection.evaluate import Evaluation, evaluate
from kifu.training.run import train

Load = Callable[..., Loaded]

TEMPERATURES = (0.25, 1.0, 4.0)
GROUPS = ("update.group_size=4",)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, load: Load) -> Path:
    """Two steps of four groups of four: the fourth member begins the list again."""
    out = tmp_path_factory.mktemp("temperatures") / "run"
    train(load(*GROUPS, f"policy.decoding.temperature={[*TEMPERATURES]}"), out=out, quiet=True)
    return out


def temperatures(record: Trajectory) -> set[float | None]:
    """Of every sampled token."""
    spans = [span for tape in record.tapes for span in tape.spans if span.origin is Origin.POLICY]
    return {span.sampling.temperature for span in spans if span.sampling is not None}


def test_members_take_the_temperatures_in_turn_and_evaluations_none(run: Path) -> None:
    """As recorded with every span."""
    records = list(RunReader(run).trajectories())

    trained = [item for item in records if item.key.purpose is Purpose.TRAIN]
    assert len(trained) == 32
    assert all(temperatures(item) == {TEMPERATURES[item.key.member % 3]} for item in trained)
    judged = [item for item in records if item.key.purpose is Purpose.EVALUATION]
    assert judged
    assert all(temperatures(item) == {None} for item in judged)


def test_every_row_is_learned_under_the_distribution_it_was_sampled_from(run: Path) -> None:
    """The trainer's logprobs before the update are the sampler's, so every ratio on the policy is 1."""
    errors = [row["ratio_error"] for row in read_metrics(run / "metrics.jsonl") if row["trained_tokens"]]

    assert errors
    assert max(errors) < 1e-5


def test_a_cold_member_is_surer_of_what_it_does_than_a_hot_one(run: Path) -> None:
    """First acts of the first step, all in one state under the first weights: dividing logits by less spreads them."""
    first = [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN and item.key.step == 0]
    mean = {at: [_entropy(item) for item in first if item.key.member == at] for at in range(3)}

    assert max(mean[0]) < min(mean[1])
    assert max(mean[1]) < min(mean[2])


def _entropy(record: Trajectory) -> float:
    found = record.turns[0].estimate("entropy")
    assert found is not None
    return found


def test_audit_and_replay_rebuild_the_run(run: Path) -> None:
    """Logprobs are computed again from the kept weights, at each member's own temperature."""
    report = audit(run, replay=True)

    assert report.problems == ()
    assert report.max_logprob_error is not None
    assert report.max_logprob_error < 1e-5


def test_a_sampled_evaluation_takes_the_first(run: Path) -> None:
    """So that its success does not depend on the number of tries."""
    evaluate(run, Evaluation(tasks=1, tries=3, decoding="sampled"))
    kept = RunReader(run / "evaluations" / "0001").trajectories()
    assert [temperatures(item) for item in kept] == [{TEMPERATURES[0]}] * 3


def test_the_list_stands_in_the_protocol(load: Load) -> None:
    prepared = prepare(load(*GROUPS, "policy.decoding.temperature=[0.5, 2.0]"))

    assert prepared.protocol.tables["policy"]["decoding"]["temperature"] == [0.5, 2.0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[0.5]", "policy.decoding.temperature: .*at least 2"),
        ("[1.0, 0.0]", r"policy.decoding.temperature.1: found 0.0, expected more than 0"),
        ("0.0", "policy.decoding.temperature: found 0.0, expected more than 0"),
        ("[0.2, 0.4, 0.6, 0.8, 1.0]", "lists 5,.*update.group_size is 4; raise it to 5"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(load: Load, value: str, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        prepare(load(*GROUPS, f"policy.decoding.temperature={value}"))
