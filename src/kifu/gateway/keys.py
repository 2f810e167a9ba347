"""Who may do what: secrets are capabilities, kept only as digests."""

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a capability allows."""

    MODEL = "model"
    """Calls of one rollout."""
    VERDICT = "verdict"
    """The one verdict of one rollout."""
    ADMIN = "admin"
    """Opening, sealing and looking at rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a secret stands for."""

    role: Role
    rollout: str | None = None
    """Id of the rollout; None for administration."""
    revoked: bool = False


def mint() -> str:
    """A new secret, 256 bits."""
    return f"sk-kifu-{secrets.token_urlsafe(32)}"


def digest(secret: str) -> str:
    """Under which a secret is kept."""
    return hashlib.sha256(secret.encode("utf-8", errors="surrogateescape")).hexdigest()


class KeyRing:
    """Secrets by digest. Revoked ones are remembered, so that a late call is told from a wrong key.

    Args:
        remembered: revoked secrets kept at most; the oldest are forgotten and then count as unknown.
    """

    def __init__(self, *, remembered: int = 200_000) -> None:
        self._grants: dict[str, Grant] = {}
        self._revoked: dict[str, Grant] = {}
        self._remembered = remembered

    def add(self, key_digest: str, grant: Grant) -> None:
        """Let the secret with this digest do what ``grant`` says."""
        self._grants[key_digest] = grant

    def find(self, secret: str) -> Grant | None:
        """What a secret allows; None when nobody gave it out."""
        name = digest(secret)
        return self._grants.get(name) or self._revoked.get(name)

    def revoke(self, rollout: str) -> None:
        """Take back every secret of a rollout."""
        for name in [name for name, grant in self._grants.items() if grant.rollout == rollout]:
            grant = self._grants.pop(name)
            self._revoked[name] = Grant(role=grant.role, rollout=rollout, revoked=True)
        while len(self._revoked) > self._remembered:
            self._revoked.pop(next(iter(self._revoked)))
