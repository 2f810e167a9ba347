"""Invariants of an episode and the three treatments of a cut."""

import numpy as np
import pytest

from kifu.credit import Bootstrap, Episode, Exclude, Terminal, gae, treat_cut
from kifu.errors import ArgumentError


def cut(final_value: float | None = 0.4) -> Episode:
    return Episode(
        rewards_K=np.array([0.0, 0.0]), values_K=np.array([0.2, 0.5]), terminated=False, final_value=final_value
    )


def test_bootstrap_keeps_the_value_of_the_state_where_it_was_cut() -> None:
    treated = treat_cut(cut(), Bootstrap())
    assert treated is not None
    np.testing.assert_allclose(gae(treated, gamma=0.5, lam=0.0), [0.5 * 0.5 - 0.2, 0.5 * 0.4 - 0.5])


def test_terminal_makes_the_future_worth_nothing() -> None:
    treated = treat_cut(cut(None), Terminal())
    assert treated is not None
    np.testing.assert_allclose(gae(treated, gamma=0.5, lam=0.0), [0.5 * 0.5 - 0.2, -0.5])


def test_exclude_leaves_nothing_to_train_on() -> None:
    assert treat_cut(cut(), Exclude()) is None


@pytest.mark.parametrize("treatment", [Bootstrap(), Exclude(), Terminal()])
def test_an_episode_that_terminated_needs_no_treatment(treatment: Bootstrap | Exclude | Terminal) -> None:
    done = Episode(rewards_K=np.array([1.0]), terminated=True)
    assert treat_cut(done, treatment) is done


def test_bootstrap_without_a_value_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Record V\(h_T\)"):
        treat_cut(cut(None), Bootstrap())


def test_values_of_another_length_are_refused() -> None:
    with pytest.raises(ArgumentError, match="2 values for 1 turns"):
        Episode(rewards_K=np.array([1.0]), values_K=np.array([0.0, 0.0]), terminated=True)


def test_a_final_value_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match="nobody computed it"):
        cut(float("nan"))


def test_the_numbers_of_an_episode_cannot_be_changed() -> None:
    source = np.array([1.0, 2.0])
    kept = Episode(rewards_K=source, terminated=True)
    source[0] = 9.0
    assert kept.rewards_K[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        kept.rewards_K[0] = 3.0
