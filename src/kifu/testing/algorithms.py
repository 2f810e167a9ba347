"""Conformance of a method: its gradient depends on its data alone, and what carries no signal moves nothing.

The checks know no method's name. They make up trajectories with every fact a method may ask for, take its credit and
its objective as the loop does, pack real rows, and differentiate a tabular policy in float64.

Axes: ``N`` occurrences of sampled tokens, ``K`` turns.
"""

import json
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields, replace
from math import nan

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from kifu.algorithms import Algorithm, options_of, surrogate_of
from kifu.batching import Cost, Doubles, PackedBatch, Row, pack_rows
from kifu.credit.reading import RewardRules
from kifu.credit.selection import DuplicateInformative, TopSpread
from kifu.errors import ArgumentError, KifuError
from kifu.objectives import Loss, Objective, PolicyObjective, Terms, merge_stats
from kifu.records import Purpose, RolloutKey, as_floats, as_ints
from kifu.testing.pupil import Pupil
from kifu.testing.trial_records import records_of
from kifu.testing.trials import (
    Shape,
    Tabular,
    Trial,
    credited,
    gradient,
    make_groups,
    rows_of,
    summed_loss,
    terms_of,
)
from kifu.training.update.assemble import assemble
from kifu.training.update.borrowed import Scored
from kifu.training.update.crediting import CreditedUpdate

TOLERANCE = 1e-9
"""Largest norm of a difference, relative to the norm: sums in another order, nothing else."""
ROUNDED = 1e-6
"""Behaviour log-probabilities are float32 on record."""
_SHARED = Cost(keys_per_token=float("inf"))


class AlgorithmCheckError(KifuError, AssertionError):
    """A method breaks its contract."""


def check_algorithm(algorithm: Algorithm, *, seed: int = 0) -> list[str]:
    """Run every check; return what was found, one line each.

    Checked: it is a frozen value without hidden state, and training goes on from a checkpoint bit for bit; padding and
    masked tokens, poisoned with nan, change nothing; the order of a group's members, the split into micro-batches and
    the split over data-parallel ranks leave the gradient as it is; a group in which nothing differs gives zero or is
    left out, never nan, and a batch of such groups moves no weight, no moment and no decay; a member that
    infrastructure failed changes no row; the ratio is 1 on the policy that sampled.

    A batch in which nothing differs earns nothing either, so that this is asked of methods that compare no attempts as
    well. Where the objective has parts that read no advantage, a critic or an entropy bonus, these go on teaching and
    their step carries moments and decay with it: then the surrogate alone moves nothing, nor do surrogate and critic
    where the critic is right already. Demonstrations are learned whatever they earn.

    Args:
        algorithm: the method, with whatever options.
        seed: of the made-up trajectories.

    Raises:
        AlgorithmCheckError: what was found, what was expected.
    """
    bench = _Bench(algorithm, seed)
    return [
        check_value(bench),
        check_checkpoint(bench),
        check_padding(bench),
        check_order(bench),
        check_splits(bench),
        check_silence(bench),
        check_absent(bench),
        check_first_ratio(bench),
    ]


def trial_gradient(algorithm: Algorithm, *, seed: int = 0, shape: Shape | None = None, fresh: bool = False) -> Doubles:
    """Gradient of a made-up update under a tabular policy; two methods that are the same there give the same.

    Args:
        algorithm: the method.
        seed: of the update and the policy.
        shape: of the update.
        fresh: whether the policy is the one that sampled, instead of one that has moved on.
    """
    policy = Tabular.draw(seed)
    behaviour = policy if fresh else policy.moved(seed + 1, by=0.3)
    groups = make_groups(seed, policy=behaviour, reference=policy.moved(seed + 2, by=0.5), shape=shape)
    rows = rows_of(groups, credited(groups, algorithm), behaviour=policy if fresh else None)
    return gradient(pack_rows(rows, max_nodes=1 << 20, layout="rows"), algorithm.objective(), policy)


class _Bench:
    """A method with an update of made-up trajectories that were sampled under a policy two steps older."""

    def __init__(self, algorithm: Algorithm, seed: int) -> None:
        self.algorithm = algorithm
        self.policy = Tabular.draw(seed)
        self.behaviour = self.policy.moved(seed + 1, by=0.3)
        self.reference = self.policy.moved(seed + 2, by=0.5)
        self.groups = self.make(seed)
        self.update = self.credit(self.groups)
        self.rows = rows_of(self.groups, self.update)
        self.objective = algorithm.objective()
        self.whole = self.gradient(self.rows)
        self.expect(bool(np.isfinite(self.whole).all()), "a finite gradient", "nan or infinity")
        self.expect(
            _norm(self.whole) > 0,
            "a gradient from groups in which rewards, states and facts differ",
            f"none; {len(self.rows)} rows are trained, denominators {self.update.denominators}",
        )

    def make(self, seed: int, shape: Shape | None = None) -> list[list[Trial]]:
        return make_groups(seed, policy=self.behaviour, reference=self.reference, shape=shape)

    def credit(self, groups: Sequence[Sequence[Trial]]) -> CreditedUpdate:
        return credited(groups, self.algorithm)

    def gradient(self, rows: Sequence[Row], *, max_nodes: int = 1 << 20) -> Doubles:
        batches = pack_rows(rows, max_nodes=max_nodes, layout="rows")
        return gradient(batches, self.objective, self.policy)

    def expect(self, holds: bool, expected: str, found: object) -> None:
        if not holds:
            raise AlgorithmCheckError(f"{type(self.algorithm).__name__}: expected {expected}; found {found}")

    def same(self, found: Doubles, what: str, *, wanted: Doubles | None = None, tolerance: float = TOLERANCE) -> float:
        wanted = self.whole if wanted is None else wanted
        self.expect(bool(np.isfinite(found).all()), f"a finite gradient with {what}", "nan or infinity")
        distance = _norm(found - wanted) / _norm(wanted)
        self.expect(distance <= tolerance, f"the same gradient with {what}", f"another one, distance {distance:.2e}")
        return distance


def check_value(bench: _Bench) -> str:
    """A frozen value: nothing is left behind by credit, and the options that are written down make it again."""
    algorithm = bench.algorithm
    for item in fields(algorithm):  # type: ignore[arg-type]
        try:
            setattr(algorithm, item.name, getattr(algorithm, item.name))
        except (FrozenInstanceError, AttributeError):
            continue
        bench.expect(False, f"a frozen dataclass, so that option `{item.name}` cannot change", "it was set")
    options = options_of(algorithm)
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as problem:
        bench.expect(False, "options that JSON can hold, because the protocol and every checkpoint do", problem)
    bench.expect(type(algorithm)(**options) == algorithm, "the value again from its options", "another value")
    bench.credit(bench.make(99))
    again = rows_of(bench.groups, bench.credit(bench.groups))
    bench.expect(
        all(_equal(one, other) for one, other in zip(bench.rows, again, strict=True)),
        "the same credit after another update was credited in between",
        "other numbers: credit keeps something between calls",
    )
    return f"a frozen value of {len(options)} options; credit keeps nothing"


def check_checkpoint(bench: _Bench) -> str:
    """Options, weights and the optimizer's state are all there is: training that goes on from them goes on alike."""
    kind: TypeAdapter[Algorithm] = TypeAdapter(type(bench.algorithm))
    again = kind.validate_json(json.dumps(options_of(bench.algorithm)), strict=True)
    first, later = bench.rows, bench.make(11)
    pupil = Pupil(bench.policy)
    pupil.step(first, bench.objective)
    resumed = Pupil.loaded(pupil.saved())
    for one, algorithm in ((pupil, bench.algorithm), (resumed, again)):
        objective = algorithm.objective()
        for groups in (later, bench.groups):
            one.step(rows_of(groups, credited(groups, algorithm)), objective)
    bench.expect(
        pupil.matches(resumed.saved()),
        "the same weights and moments, bit for bit, from a checkpoint of options, weights and optimizer two steps on",
        "others: credit or loss keeps something that no checkpoint holds",
    )
    return "options, weights and optimizer are the whole state: a checkpoint goes on bit for bit"


def check_padding(bench: _Bench) -> str:
    """Occurrences of weight 0 may hold nan, and a turn of weight 0 counts as little as one that is not there."""
    batches = pack_rows(bench.rows, max_nodes=1 << 20, layout="rows")
    poisoned = gradient(batches, _Poisoned(bench.objective), bench.policy)
    bench.same(poisoned, "padding that holds nan", tolerance=1e-12)
    clean, odd = (summed_loss(batches, loss, bench.policy) for loss in (bench.objective, _Poisoned(bench.objective)))
    bench.expect(
        abs(odd - clean) <= 1e-12 * max(1.0, abs(clean)), f"a loss of {clean} with padding that holds nan", odd
    )
    masked, absent = zip(*(_without_last_turn(row) for row in bench.rows), strict=True)
    expected = bench.gradient(absent)
    if _norm(expected) == 0:
        return "padding changes nothing; no gradient is left without the last turns"
    found = gradient(pack_rows(masked, max_nodes=1 << 20, layout="rows"), _Poisoned(bench.objective), bench.policy)
    bench.same(found, "masked turns that hold nan, as without them", wanted=expected, tolerance=1e-12)
    return "padding and masked turns change nothing, whatever they hold"


class _Poisoned:
    """An objective that sees nan at every occurrence of weight 0, and some more of these in every segment."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    @property
    def needs_entropy(self) -> bool:
        return self._objective.needs_entropy

    def __call__(self, terms: Terms) -> Loss:
        kept_N = terms.weight_N != 0
        turn_N, sequence_N = (
            torch.cat([found_N, found_N.unique(), (found_N.max() + 1)[None]])
            for found_N in (terms.turn_N, terms.sequence_N)
        )
        count = max(turn_N.numel(), sequence_N.numel())
        more = count - kept_N.numel()

        def widened(values_N: Tensor) -> Tensor:
            return torch.cat([torch.where(kept_N, values_N, nan), torch.full((more,), nan, dtype=values_N.dtype)])

        return self._objective(
            replace(
                terms,
                logp_N=widened(terms.logp_N),
                behaviour_logp_N=widened(terms.behaviour_logp_N),
                advantage_N=widened(terms.advantage_N),
                weight_N=torch.cat([terms.weight_N, torch.zeros(more, dtype=terms.weight_N.dtype)]),
                turn_N=_filled(turn_N, count),
                sequence_N=_filled(sequence_N, count),
                entropy_N=None if terms.entropy_N is None else widened(terms.entropy_N),
                reference_logp_N=None if terms.reference_logp_N is None else widened(terms.reference_logp_N),
                pair_N=None if terms.pair_N is None else _filled(terms.pair_N, count),
            )
        )


def check_order(bench: _Bench) -> str:
    """A group is a set: the order of its members means nothing."""
    random = np.random.default_rng(7)
    mixed = [[group[int(at)] for at in random.permutation(len(group))] for group in bench.groups]
    worst = bench.same(bench.gradient(rows_of(mixed, bench.credit(mixed))), "the members of every group in other order")
    if not isinstance(bench.algorithm.plan.selection, DuplicateInformative | TopSpread):  # a draw, or a tie
        turned = [*mixed[1:], mixed[0]]
        worst = max(worst, bench.same(bench.gradient(rows_of(turned, bench.credit(turned))), "groups in other order"))
    return f"members in any order give one gradient, largest relative difference {worst:.1e}"


def check_splits(bench: _Bench) -> str:
    """Micro-batches and ranks add up: every denominator is that of the whole update."""
    longest = max(int(row.token_ids.size) for row in bench.rows)
    longest *= 1 if bench.rows[0].pair is None else 2  # both sides of a pair stand in one micro-batch
    packings: dict[str, list[PackedBatch]] = {
        f"{layout}, at most {limit} nodes": pack_rows(bench.rows, max_nodes=limit, layout=layout, cost=_SHARED)
        for layout in ("tree", "rows")
        for limit in (longest, 3 * longest, 1 << 20)
    }
    for ranks in (2, 3):
        packings[f"{ranks} ranks"] = [
            batch
            for rank in range(ranks)
            for batch in pack_rows(_of_rank(bench.rows, rank, ranks), max_nodes=2 * longest, layout="rows")
        ]
    worst = max(
        bench.same(gradient(batches, bench.objective, bench.policy), what) for what, batches in packings.items()
    )
    return f"{len(packings)} splits give one gradient, largest relative difference {worst:.1e}"


def _of_rank(rows: Sequence[Row], rank: int, ranks: int) -> list[Row]:
    """Rows of one rank; a pair goes to one."""
    return [row for at, row in enumerate(rows) if (at if row.pair is None else row.pair) % ranks == rank]


def check_silence(bench: _Bench) -> str:
    """Groups in which nothing differs: zero or left out, and then nothing moves at all."""
    learns_anyway = bench.algorithm.plan.demonstrations
    quiet = bench.make(5, Shape(constant=0.0))
    update = bench.credit(quiet)
    advantages = [one.advantages_N for group in update.groups for one in group.members]
    bench.expect(
        learns_anyway or not any(bool(found.any()) for found in advantages),
        "advantages of 0, or None, from groups in which no reward, value or fact differs",
        next((found.tolist() for found in advantages if found.any()), None),
    )
    for reward in (-1.0, 1.0):
        try:
            equal = bench.credit(bench.make(6, Shape(constant=reward)))
        except ArgumentError:
            continue  # a method may refuse rewards below 0
        found = [one.advantages_N for group in equal.groups for one in group.members]
        bench.expect(all(bool(np.isfinite(one).all()) for one in found), f"no nan when all earn {reward}", found)
        if bench.algorithm.plan.needs_group and _is_per_trajectory(bench.update):
            bench.expect(
                not any(bool(one.any()) for one in found), f"advantages of 0, or None, when all earn {reward}", found
            )
    if learns_anyway:
        return "demonstrations are learned whatever they earn"
    return _check_stillness(bench, rows_of(quiet, update))


def _check_stillness(bench: _Bench, rows: Sequence[Row]) -> str:
    """After a real step, so that there are moments: a silent batch changes neither weights nor optimizer.

    This holds of the whole objective of a method that compares members, and of one without parts beside the surrogate.
    Where a method needs no group and has parts that read no advantage (a critic's regression, an entropy bonus, a
    penalty against the reference), it holds of the surrogate alone, and of surrogate and critic where the critic is
    right already.
    """
    objective, said = bench.objective, "groups in which nothing differs give no advantage and "
    beside = [] if bench.algorithm.plan.needs_group else _parts_beside(objective)
    if not beside:
        _expect_still(bench, rows, objective)
        return said + "move no weight, no moment, no decay"
    assert isinstance(objective, PolicyObjective)
    _expect_still(bench, rows, replace(objective, value=None, entropy=None, kl=None))
    _expect_still(bench, rows, replace(objective, entropy=None, kl=None), right=True)
    pupil = Pupil(bench.policy)
    bench.expect(pupil.step(rows, objective), f"a step for {' and '.join(beside)}", "none was applied")
    return (
        f"{said}no gradient of the surrogate; left to teach: {' and '.join(beside)}, whose step carries moments and "
        "decay; where the critic is right and nothing else is added, nothing moves"
    )


def _parts_beside(objective: Objective) -> list[str]:
    """Parts of an objective that teach without an advantage, by name."""
    if not isinstance(objective, PolicyObjective):
        return []
    parts = {"the critic": objective.value, "the entropy bonus": objective.entropy, "the reference": objective.kl}
    return [name for name, part in parts.items() if part is not None]


def _expect_still(bench: _Bench, rows: Sequence[Row], objective: Objective, *, right: bool = False) -> None:
    """No step on silent rows.

    Args:
        bench: the method.
        rows: in which nothing differs and nothing is earned.
        objective: the parts of the method's own that are looked at.
        right: whether the critic says of them what they are worth, which is 0.
    """
    pupil = Pupil(bench.policy)
    bench.expect(
        pupil.step(bench.rows, bench.objective), "a step on groups that differ to be applied", "it was refused"
    )
    if right:
        pupil.forget_values()
    before = pupil.saved()
    applied = pupil.step(rows, objective)
    bench.expect(not applied, "no step on groups in which nothing differs", "one was applied")
    bench.expect(
        pupil.matches(before), "weights and moments as they were after groups in which nothing differs", "they moved"
    )


def check_absent(bench: _Bench) -> str:
    """From records to rows: a member that infrastructure failed is in no statistic of its group."""
    plan = bench.algorithm.plan
    purpose = Purpose.DEMONSTRATION if plan.demonstrations else Purpose.TRAIN
    tokens = (1, 1) if plan.token_values == "needed" else Shape().tokens  # the only turns whose values are on record
    groups = bench.make(3, Shape(branches=False, tokens=tokens))
    trials = {
        RolloutKey(seed=0, step=0, group=at, member=2 * member, purpose=purpose).id: trial
        for at, group in enumerate(groups)
        for member, trial in enumerate(group)
    }
    scored = Scored(
        reference={name: as_floats(trial.reference_N) for name, trial in trials.items() if plan.needs_reference},
        model={name: trial.episode.model_score or 0.0 for name, trial in trials.items()},
    )
    try:
        clean, disturbed = (
            assemble(
                records_of(groups, purpose=purpose, with_failures=failures),
                algorithm=bench.algorithm,
                rules=RewardRules(gamma=0.9),
                version=0,
                max_age=0,
                scored=scored,
            )
            for failures in (False, True)
        )
    except ArgumentError as lacking:
        return f"not checked from records, which do not hold every fact it asks for: {lacking}"
    bench.expect(bool(clean.rows), "rows from records of groups that differ", clean.why)
    bench.expect(
        clean.denominators == disturbed.denominators
        and len(clean.rows) == len(disturbed.rows)
        and all(_equal(one, other) for one, other in zip(clean.rows, disturbed.rows, strict=True)),
        "the same rows with a member that infrastructure failed in every group",
        f"denominators {disturbed.denominators} instead of {clean.denominators}, {len(disturbed.rows)} rows instead of "
        f"{len(clean.rows)}, or other numbers in them",
    )
    return "a member that infrastructure failed changes no row"


def check_first_ratio(bench: _Bench) -> str:
    """On the policy that sampled, every ratio is 1 and no bound holds."""
    rows = rows_of(bench.groups, bench.update, behaviour=bench.policy)
    batches = pack_rows(rows, max_nodes=1 << 20, layout="rows")
    logits_VV, values_V = torch.tensor(bench.policy.logits_VV), torch.tensor(bench.policy.values_V)
    stats = merge_stats(
        {
            name: float(value)
            for name, value in bench.objective(
                terms_of(batch, logits_VV, values_V, needs_entropy=bench.objective.needs_entropy)
            ).stats.items()
        }
        for batch in batches
    )
    if "ratio_sum" not in stats:
        bench.expect(
            surrogate_of(bench.objective) is None, "`ratio_sum` and `tokens` among the statistics", list(stats)
        )
        return "takes no ratio"
    ratio = stats["ratio_sum"] / max(stats["tokens"], 1)
    bench.expect(abs(ratio - 1) <= ROUNDED, "a ratio of 1 on the policy that sampled", ratio)
    clipped = stats.get("clipped_tokens", 0.0)
    bench.expect(clipped == 0, "no bound to hold at ratio 1", f"{clipped:.0f} tokens at one")
    return "the ratio is 1 on the policy that sampled"


def _equal(one: Row, other: Row) -> bool:
    return (
        one.trajectory == other.trajectory
        and np.array_equal(one.advantages, other.advantages)
        and np.array_equal(one.weights, other.weights)
        and (one.value_targets is None) == (other.value_targets is None)
        and (
            one.value_targets is None
            or other.value_targets is None
            or np.array_equal(one.value_targets, other.value_targets)
        )
    )


def _is_per_trajectory(update: CreditedUpdate) -> bool:
    """Whether every trajectory got one advantage for all its tokens."""
    found = [one.advantages_N for group in update.groups for one in group.members if one.advantages_N.size]
    return all(bool((one == one[0]).all()) for one in found)


def _without_last_turn(row: Row) -> tuple[Row, Row]:
    """The row with its last turn masked, and with its last turn's tokens not trained at all."""
    last_N = row.turns == row.turns.max()
    masked = replace(row, weights=np.where(last_N, 0.0, row.weights))
    kept = np.flatnonzero(~last_N)
    absent = replace(
        row,
        positions=as_ints(row.positions[kept]),
        behaviour_logprobs=as_floats(row.behaviour_logprobs[kept]),
        temperatures=as_floats(row.temperatures[kept]),
        supports=tuple(row.supports[int(at)] for at in kept),
        advantages=row.advantages[kept],
        weights=row.weights[kept],
        turns=as_ints(row.turns[kept]),
        reference_logprobs=None if row.reference_logprobs is None else as_floats(row.reference_logprobs[kept]),
    )
    return masked, absent


def _filled(values_N: Tensor, count: int) -> Tensor:
    return torch.cat([values_N, torch.zeros(count - values_N.numel(), dtype=values_N.dtype)])


def _norm(values: Doubles) -> float:
    return float(np.linalg.norm(values))
