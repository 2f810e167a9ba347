"""Which slot a call gets and what it can reuse."""

from hypothesis import given
from hypothesis import strategies as st

from kifu.engines.hf.slots import Slot, SlotTable, common_prefix
from kifu.records import as_ints

IDS = st.lists(st.integers(0, 2), max_size=12)


def hold(table: SlotTable[str], context: str, ids: list[int], group: str = "") -> Slot[str]:
    """Feed a context completely."""
    slot = table.free()
    assert slot is not None
    table.occupy(slot, context=context, group=group, token_ids=as_ints(ids))
    slot.fed = len(ids)
    table.settle(slot, as_ints(ids))
    return slot


@given(first=IDS, second=IDS)
def test_common_prefix_counts_equal_leading_tokens(first: list[int], second: list[int]) -> None:
    """Counting one by one is the oracle."""
    wanted = 0
    while wanted < min(len(first), len(second)) and first[wanted] == second[wanted]:
        wanted += 1

    assert common_prefix(as_ints(first), as_ints(second)) == wanted


def test_a_context_continues_its_own_longest_slot() -> None:
    """Another context's longer match does not count."""
    table: SlotTable[str] = SlotTable(4)
    short, long = hold(table, "a", [1, 2]), hold(table, "a", [1, 2, 3, 4])
    hold(table, "b", [1, 2, 3, 4, 5])

    found = table.own("a", as_ints([1, 2, 3, 9]))

    assert found is not None
    assert found.slot is long
    assert found.length == 3
    assert short is not long


def test_released_contexts_are_taken_before_owned_ones_and_are_no_evictions() -> None:
    """Owned slots go last, the least recently used of them first."""
    table: SlotTable[str] = SlotTable(3)
    first, second, third = (hold(table, name, [1]) for name in "abc")
    table.release("b")

    assert table.free() is second
    assert table.evictions == 0
    table.occupy(second, context="d", group="", token_ids=as_ints([1]))
    assert table.free() is first
    assert table.evictions == 1
    assert third.context == "c"


def test_a_released_context_still_lends_its_prefix() -> None:
    """Late members of a group find the prompt."""
    table: SlotTable[str] = SlotTable(2)
    hold(table, "a", [1, 2, 3], "g")
    table.release("a")

    found, later = table.donors("g", as_ints([1, 2, 9]))

    assert found is not None
    assert (found.length, later) == (2, None)
    assert table.own("a", as_ints([1, 2, 3])) is None
    assert table.donors("", as_ints([1, 2])) == (None, None)


def test_busy_slots_are_never_taken() -> None:
    """With every slot in use there is none to give."""
    table: SlotTable[str] = SlotTable(1)
    slot = table.free()
    assert slot is not None
    table.occupy(slot, context="a", group="", token_ids=as_ints([1, 2]))

    assert table.free() is None
    assert table.own("a", as_ints([1, 2])) is None


def test_settling_forgets_what_was_not_fed() -> None:
    """Written but never forwarded tokens are not in the slot."""
    table: SlotTable[str] = SlotTable(1)
    slot = table.free()
    assert slot is not None
    table.occupy(slot, context="a", group="", token_ids=as_ints([1, 2]))
    slot.fed = 3
    slot.ends = {2: "after two", 4: "after four"}
    table.settle(slot, as_ints([1, 2, 3, 4]))

    assert slot.token_ids.tolist() == [1, 2, 3]
    assert slot.ends == {2: "after two"}


def test_the_only_idle_slot_is_taken_with_what_it_lends() -> None:
    """Nothing else is free, so what would be copied is continued in place; its context is evicted."""
    table: SlotTable[str] = SlotTable(2)
    lender, other = hold(table, "a", [1, 2, 3]), hold(table, "b", [4])
    other.busy = True

    assert table.free(lender) is lender
    assert lender.token_ids.tolist() == [1, 2, 3]
    assert lender.fed == 3
    assert lender.context is None
    assert table.evictions == 1


def test_what_nobody_owns_is_taken_before_what_somebody_does_even_where_it_lends() -> None:
    """A finished episode lends the beginning to the next one, in place; the one that goes on keeps its slot."""
    table: SlotTable[str] = SlotTable(2)
    alive, ended = hold(table, "a", [1, 2, 3], group="g"), hold(table, "b", [1, 2, 4, 5], group="g")
    table.release("b")

    now, later = table.donors("g", as_ints([1, 2, 6]))

    assert now is not None
    assert (now.slot, now.length, later) == (ended, 2, None)
    assert table.free(now.slot) is ended
    assert ended.token_ids.tolist() == [1, 2, 4, 5]
    assert (alive.context, table.evictions) == ("a", 0)


def test_a_donor_lends_what_was_fed_and_promises_the_rest() -> None:
    """Two contexts begin alike; the one that has more in common has not got there yet."""
    table: SlotTable[str] = SlotTable(3)
    behind, ahead = hold(table, "a", [1, 2, 5, 6], group="g"), hold(table, "b", [1, 2, 4], group="g")
    behind.fed, behind.busy = 1, True
    hold(table, "c", [1, 2, 5, 6], group="another")

    now, later = table.donors("g", as_ints([1, 2, 5]))

    assert now is not None
    assert later is not None
    assert (now.slot, now.length) == (ahead, 2)
    assert (later.slot, later.length) == (behind, 3)
    assert table.donors("", as_ints([1, 2, 5])) == (None, None)
