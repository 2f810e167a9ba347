"""The self-test finds what is missing: with a protection left out, the guarantee it serves is not proved."""

from typing import Protocol

import pytest

from kifu.sandbox import (
    DEFAULT_REQUIRED,
    BoxPolicy,
    Guarantee,
    NsBackend,
    Policy,
    Proof,
    SandboxUnavailable,
    open_sandbox,
)
from kifu.sandbox.ns.box import NsBox


class World(Protocol):
    def ask(self, op: str, **request: object) -> dict[str, object]: ...


PROVED = frozenset(Guarantee) - {Guarantee.MEM_HARD, Guarantee.KERNEL_SEPARATE}
LOSES = {
    "private_root": {Guarantee.FS_PRIVATE},
    "read_only_root": {Guarantee.FS_READ_ONLY},
    "net_ns": {Guarantee.IPC_PRIVATE, Guarantee.NET_NONE},
    "pid_ns": {Guarantee.NO_SURVIVORS},
    "undumpable": {Guarantee.PID_PRIVATE},
    "capabilities": {Guarantee.NO_PRIVILEGES},
    "no_new_privs seccomp": {Guarantee.NO_PRIVILEGES, Guarantee.SYSCALLS},
    "seccomp": {Guarantee.SYSCALLS, Guarantee.NET_NONE},
    "limit_processes": {Guarantee.PIDS_HARD},
    "limit_memory": {Guarantee.MEM_PROCESS},
    "limit_cpu": {Guarantee.CPU_HARD},
    "disk_quota": {Guarantee.DISK_HARD},
    "tmp_quota": {Guarantee.DISK_HARD},
    "memory_watch": {Guarantee.MEM_WATCHED},
    "output_limit": {Guarantee.OUTPUT},
    "clean_env": {Guarantee.NO_SECRETS},
    "close_fds": {Guarantee.NO_SECRETS},
}


def test_with_every_protection_everything_is_proved(world: World) -> None:
    answer = world.ask("prove", without=[])
    assert (answer["held"], answer["failed"]) == (sorted(PROVED), {})


@pytest.mark.parametrize("without", LOSES)
def test_a_protection_left_out_is_found(world: World, without: str) -> None:
    answer = world.ask("prove", without=without.split())
    held = answer["held"]
    assert isinstance(held, list)
    assert LOSES[without] <= PROVED - {Guarantee(name) for name in held}


@pytest.mark.parametrize("without", ["seccomp", "clean_env"])
def test_a_weakened_backend_is_refused_by_every_policy_that_does_not_say_otherwise(without: str) -> None:
    backend = NsBackend(without=frozenset(without.split()))
    try:
        with pytest.raises(SandboxUnavailable):
            open_sandbox(Policy(), backends=[backend])
    finally:
        backend.close()


class Listed:
    """A back-end that only says what it could prove."""

    def __init__(self, name: str, proof: Proof) -> None:
        self.name = name
        self._proof = proof
        self.opened = 0

    def prove(self) -> Proof:
        return self._proof

    def open(self, policy: BoxPolicy) -> NsBox:
        self.opened += 1
        raise AssertionError("opened without proof")

    def close(self) -> None:
        return


def test_the_first_backend_whose_proof_suffices_is_taken_and_named() -> None:
    weak = Listed("weak", Proof(backend="weak", held=DEFAULT_REQUIRED - {Guarantee.DISK_HARD}))
    strong = NsBackend()
    try:
        with open_sandbox(Policy(), backends=[weak, strong]) as sandbox:
            assert sandbox.backend == "ns"
            assert sandbox.guarantees >= DEFAULT_REQUIRED
            assert sandbox.is_isolated
    finally:
        strong.close()
    assert weak.opened == 0


def test_a_refusal_names_every_backend_its_gap_its_error_and_a_remedy() -> None:
    proofs = [
        Proof(backend="one", problem="stopped at `user namespace`", errno=28, remedy="Raise the limit."),
        Proof(backend="two", held=DEFAULT_REQUIRED - {Guarantee.WALL}, failed=((Guarantee.WALL, "slept on"),)),
    ]
    with pytest.raises(SandboxUnavailable) as caught:
        open_sandbox(Policy(), backends=[Listed(proof.backend, proof) for proof in proofs])
    text = str(caught.value)
    for part in ("`one` lacks", "errno 28", "Raise the limit.", "`two` lacks wall: wall: slept on"):
        assert part in text
    assert caught.value.proofs == tuple(proofs)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="list of back-ends is empty"):
        open_sandbox(Policy(), backends=[])
