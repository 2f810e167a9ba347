"""Settings that follow from the processor and never from the experiment."""

import os
from pathlib import Path

import pytest

from kifu.training.experiment.layers import MachineTable
from kifu.training.experiment.machine import resolve_machine, this_cpu

INTEL = "processor : 0\nmodel name : Some Xeon\nflags : fpu avx2 avx512_bf16\n\nprocessor : 1\nmodel name : Some Xeon\n"
ARM = "processor : 0\nFeatures : fp asimd bf16\n"
OLD = "processor : 0\nmodel name : Old One\nflags : fpu avx2 bf16x notbf16\n"


@pytest.mark.parametrize(("text", "fast"), [(INTEL, True), (ARM, True), (OLD, False), ("", False)])
def test_fast_bfloat16_is_read_from_the_flags(tmp_path: Path, text: str, fast: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text)

    found = this_cpu(tmp_path / "cpuinfo")

    assert found.fast_bf16 is fast
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    if "model name" in text:
        assert found.name == text.split("model name : ")[1].split("\n")[0]


def test_a_system_without_proc_counts_as_slow(tmp_path: Path) -> None:
    assert this_cpu(tmp_path / "absent").fast_bf16 is False


def test_a_toy_gets_one_thread_and_full_precision() -> None:
    found = resolve_machine(MachineTable(), small=True)

    assert (found.threads, found.sampler_dtype, found.trainer_dtype) == (1, "float32", "float32")


def test_what_the_file_states_counts() -> None:
    table = MachineTable(
        threads=3, sampler_dtype="bfloat16", trainer_dtype="float32", max_nodes=99, activation_checkpointing=True
    )
    for small in (True, False):
        found = resolve_machine(table, small=small)
        assert (found.threads, found.sampler_dtype, found.trainer_dtype) == (3, "bfloat16", "float32")
        assert (found.max_nodes, found.activation_checkpointing) == (99, True)
