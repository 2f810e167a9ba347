"""Sampling the negatives of a step: one turn each, by the present policy, in states that experts on record were in."""

from collections.abc import Sequence
from dataclasses import replace

from kifu.credit import RefreshedPairs
from kifu.envs import SnapshotKind
from kifu.errors import ExperimentError
from kifu.records import Group, Trajectory
from kifu.records.blobs import BlobStore
from kifu.records.reader import RunReader
from kifu.rollout import Branchable, Departure, Setting
from kifu.training.collection.bench import Bench
from kifu.training.collection.concurrently import all_of
from kifu.training.experiment.stages import Stage
from kifu.training.experiment.stored import StoredGroups
from kifu.training.update.refreshed_negatives import Dealt, deal, on_record, rule_of, with_rollouts

CHOSEN_BY = "expert state"


class Refresher:
    """Samples what a step lacks; what earlier steps of the round sampled is kept, or read from the record.

    Args:
        bench: samples, and holds the record.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._found: dict[tuple[int, int], Sequence[Trajectory]] = {}

    async def groups(self, stage: Stage, stored: StoredGroups, *, step: int) -> list[Group]:
        """The groups of a step."""
        dealt = deal(stage, stored, step=step)
        wanted = {item.sampled_at for item in dealt if item.sampled_at is not None}
        earlier = {place for place in wanted if place[0] < step} - set(self._found)
        if earlier:
            self._found |= on_record(RunReader(self._bench.folder.root).trajectories(), earlier)
        fresh = {item.sampled_at: item for item in dealt if item.sampled_at in wanted and item.sampled_at[0] == step}
        sampled = await all_of([self._sample(stage, item, group=group) for (_, group), item in fresh.items()])
        self._found |= dict(zip(fresh, sampled, strict=True))
        return with_rollouts(dealt, self._found)

    async def _sample(self, stage: Stage, item: Dealt, *, group: int) -> list[Trajectory]:
        rule, bench = rule_of(stage), self._bench
        assert item.turn is not None
        assert item.sampled_at is not None
        task = bench.prepared.task_of(item.expert)
        if task is None:
            raise ExperimentError(
                f"update.data.runs: the environment no longer makes task `{item.expert.task.id}` of {item.expert.id} "
                "from its seed, so no action can be sampled in its states"
            )
        departure = Departure(parent=item.expert, turn=item.turn, chosen_by=CHOSEN_BY, is_lent=True)
        step, _ = item.sampled_at
        states = BlobStore(bench.folder.blobs)
        setting = refreshing_setting(bench.collector.setting, rule, turn=item.turn, states=states)
        collector = replace(bench.collector, setting=setting, temperatures=())
        return await collector.branches(
            step, group=group, task=task, departures=[departure] * rule.samples, have=bench.recorded(step)
        )


def refreshing_setting(setting: Setting, rule: RefreshedPairs, *, turn: int, states: BlobStore) -> Setting:
    """The setting of the run with the method's sampling, for one turn; its state is reached by actions and checked."""
    top_p = None if rule.top_p == 1.0 else rule.top_p
    return replace(
        setting,
        sampling=replace(setting.sampling, temperature=rule.temperature, top_p=top_p, top_k=None, min_p=None),
        max_new_tokens=min(rule.max_tokens, setting.max_new_tokens),
        limits=replace(setting.limits, turns=turn + 1),
        branchable=Branchable(states=states, snapshot=SnapshotKind.REPLAY),
        records_value=False,
    )
