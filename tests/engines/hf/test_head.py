"""Logits only where they are asked for."""

import numpy as np
import torch

from kifu.engines.hf.head import Head
from kifu.records import Ints, as_ints


def test_all_ways_of_asking_agree_with_the_product() -> None:
    """Whole vocabulary, few candidates, many candidates, mixed in one call; numpy float64 is the oracle."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(700, 32, generator=generator).bfloat16()
    hidden = torch.randn(5, 32, generator=generator).bfloat16()
    candidates: list[Ints | None] = [None, as_ints([3, 9, 600]), as_ints(range(0, 700, 2)), as_ints([0]), None]

    found = Head(weight).logits(list(hidden), candidates)

    product = hidden.double().numpy() @ weight.double().numpy().T
    for row, (logits, ids) in enumerate(zip(found, candidates, strict=True)):
        np.testing.assert_allclose(logits, product[row] if ids is None else product[row][ids], atol=1e-4)


def test_a_rows_logits_do_not_depend_on_its_neighbours() -> None:
    """Bit for bit, for every number of rows up to 70."""
    weight, hidden = torch.randn(300, 64), torch.randn(70, 64)
    head = Head(weight)
    ids = as_ints([5, 50, 299])
    alone_whole, alone_few = head.logits([hidden[0]], [None])[0], head.logits([hidden[0]], [ids])[0]

    for count in (2, 3, 7, 8, 9, 33, 64, 65, 70):
        rows = list(hidden[:count])
        assert head.logits(rows, [None] * count)[0].tobytes() == alone_whole.tobytes()
        assert head.logits(rows, [ids] * count)[0].tobytes() == alone_few.tobytes()


def test_no_rows_are_no_question() -> None:
    """An empty call."""
    assert Head(torch.randn(10, 8)).logits([], []) == []
