"""How many rows a forward may have: from kernels that are made up, and from those of this machine."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kifu.engines.hf.attention import Feed
from kifu.engines.hf.backend import ANY_ROWS, KeptBackend, choose_backend
from kifu.engines.hf.head import Head
from kifu.engines.hf.loading import load_model
from kifu.engines.hf.rows import Rows, measure_rows
from kifu.models import ModelFolder

SIZES = (8, 16, 32, 64, 128, 256)


def kernel(*starts: int) -> Callable[[int], Tensor]:
    """One that sums differently from each of these numbers of rows on."""
    return lambda size: torch.tensor([float(sum(start <= size for start in starts))])


@pytest.mark.parametrize(
    ("starts", "least", "most"),
    [
        ((), 8, 256),
        ((16,), 16, 256),
        ((32, 256), 32, 128),
        ((16, 32, 64), 64, 256),
        ((32, 128), 32, 64),  # from 128 on wide, but it begins above 64
        ((16, 32, 64, 128, 256), 64, 64),  # no two agree: one number of rows always
    ],
)
def test_the_widest_range_that_agrees_is_used(starts: tuple[int, ...], least: int, most: int) -> None:
    assert measure_rows(kernel(*starts), SIZES) == Rows(least=least, most=most)


@pytest.mark.parametrize(("count", "wanted"), [(1, 40), (39, 40), (40, 40), (41, 48), (127, 128), (128, 128)])
def test_rows_are_padded_into_the_range(count: int, wanted: int) -> None:
    assert count + Rows(least=40, most=128).padding(count) == wanted


class Fickle(nn.Module):
    """A last layer that rounds by the number of rows it is given, as kernels do, only more."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.last = last
        self.sizes: set[int] = set()

    def forward(self, hidden: Tensor) -> Tensor:
        self.sizes.add(hidden.shape[1])
        found: Tensor = self.last(hidden)
        return found * (1 + 1e-3 * ((hidden.shape[1] >= 40) + (hidden.shape[1] >= 192)))


def test_a_forward_stays_in_the_range_of_a_machine_whose_kernels_change(
    tiny_model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that change at 40 and at 192 rows: long feeds are cut, short ones padded, and no state differs."""
    model = load_model(str(tiny_model.path), dtype="float32", device="cpu")
    fickle = Fickle(model.whole.model.norm)
    monkeypatch.setattr(model.whole.model, "norm", fickle)
    backend = choose_backend(model, num_slots=4, capacity=400)
    assert isinstance(backend, KeptBackend)
    assert backend.rows == Rows(least=40, most=128)

    ids = tuple(range(5, 305))
    fickle.sizes.clear()
    whole = backend.forward([Feed(slot=0, start=0, token_ids=ids)])
    alone = [backend.forward([Feed(slot=1, start=at, token_ids=ids[at : at + 1])]) for at in range(60)]

    assert torch.equal(torch.cat(alone), whole[:60])
    assert whole.shape[0] == 300
    assert fickle.sizes == {128, 48, 40}  # 300 = 128 + 128 + 44
    backend.rows = ANY_ROWS
    assert not torch.equal(backend.forward([Feed(slot=2, start=0, token_ids=ids)]), whole)


def test_logits_do_not_depend_on_how_many_are_asked_for() -> None:
    """On this machine, whatever its kernels do."""
    torch.manual_seed(0)
    head = Head(torch.randn(900, 576))
    hidden = list(torch.randn(100, 576))
    together = head.logits(hidden, [None] * 100)
    for count in (1, 7, 9, 33, 64, 65):
        found = head.logits(hidden[:count], [None] * count)
        assert all((one == two).all() for one, two in zip(found, together, strict=False)), count
