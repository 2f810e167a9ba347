"""Sampling over HTTP: ids go out, ids come back, and nothing the server says is taken on trust."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import numpy as np

from kifu.errors import EngineFailure, UsageError
from kifu.policy import Generation, Request, ScoreRequest, Scores, Weights
from kifu.records import Finish, as_floats, as_ints

TRIES = 4
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CONNECTIONS = 1024
_CONNECT_S = 10.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class RemoteSampler:
    """Implements `Sampler` on ``POST /v1/completions`` of a server that takes and returns token ids.

    Args:
        url: of the server, without ``/v1``.
        name: of the model there.
        key: sent as ``Authorization: Bearer``; empty sends none.
        has_processed_logprobs: whether the server's logprobs are those of the distribution it samples from.
        timeout_s: of one call, all tries together.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        key: str = "",
        has_processed_logprobs: bool = False,
        timeout_s: float = 600.0,
    ) -> None:
        self._url = f"{url.rstrip('/')}/v1/completions"
        self._name = name
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._has_processed_logprobs = has_processed_logprobs
        self._timeout_s = timeout_s
        self._client: aiohttp.ClientSession | None = None
        self.version = 0

    async def sample(self, request: Request) -> Generation:
        """Continue one context.

        Raises:
            UsageError: something was asked for whose distribution the server does not report.
            EngineFailure: the server failed, or answered with something that cannot be recorded.
        """
        self._check(request)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._post(self._body(request), name=_name(request))
        except TimeoutError as cause:
            raise EngineFailure(f"{self._url}: no answer within {self._timeout_s} s") from cause
        return self._read(answer, request)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Refuse: such servers have no common way to score under a recorded support."""
        raise UsageError(f"{self._url}: a remote engine does not score {len(requests)} requests; use engine `hf`")

    async def load(self, weights: Weights) -> None:
        """Refuse: the weights are the server's."""
        raise UsageError(f"{self._url}: a remote engine cannot take version {weights.version}; the server has its own")

    def release(self, context: str) -> None:
        """Nothing is kept here."""

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _check(self, request: Request) -> None:
        sampling, where = request.sampling, f"context `{request.context}` turn {request.turn}"
        if request.constraint is not None:
            raise UsageError(f"{where}: a remote engine follows no grammar, since no server returns its mask")
        if sampling.top_k is not None or (sampling.top_p or 1.0) < 1.0 or sampling.min_p:
            raise UsageError(
                f"{where}: top_p, top_k and min_p need the support of every token on record, which the server does not "
                "return; sample without them"
            )
        if sampling.temperature not in (None, 1.0) and not self._has_processed_logprobs:
            raise UsageError(
                f"{where}: temperature {sampling.temperature}, but the server's logprobs are those at temperature 1; "
                "start it so that they are processed (vLLM: --logprobs-mode processed_logprobs) and say "
                'logprobs = "processed"'
            )

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        biases = dict(item.split("=", 1) for item in sampling.untrainable)
        return {
            "model": self._name,
            "prompt": request.token_ids.tolist(),
            "max_tokens": request.max_new_tokens,
            "temperature": 0.0 if sampling.temperature is None else sampling.temperature,
            "logprobs": 1,
            "return_token_ids": True,
            "stop_token_ids": list(sampling.stop_ids),
            "stop": list(sampling.stop_strings),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "seed": int.from_bytes(hashlib.sha256(_name(request).encode()).digest()[:4], "little") >> 1,
            **{name: json.loads(value) for name, value in biases.items()},
        }

    async def _post(self, body: Mapping[str, Any], *, name: str) -> Mapping[str, Any]:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),  # `sample` limits the whole call
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        data = json.dumps(body, separators=(",", ":")).encode()
        plain = {**self._headers, "content-type": "application/json"}
        plain["idempotency-key"] = hashlib.sha256(name.encode()).hexdigest()
        for attempt in range(TRIES):
            headers = {**plain, "x-stainless-retry-count": str(attempt)}
            try:
                async with self._client.post(self._url, data=data, headers=headers, allow_redirects=False) as response:
                    status, answer = response.status, await self._whole(response.content)
            except aiohttp.ClientError as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                if status == 200:
                    return self._parsed(answer)
                failure = f"status {status}: {answer[:500].decode(errors='replace')}"
                if status not in _AGAIN:
                    break
            if attempt + 1 < TRIES:
                await asyncio.sleep(0.1 * 2**attempt)
        raise EngineFailure(f"{self._url}: {failure}")

    async def _whole(self, content: aiohttp.StreamReader) -> bytes:
        """An answer, which ends in time."""
        found = bytearray()
        async for piece in content.iter_any():
            found += piece
            if len(found) > MAX_ANSWER_BYTES:
                raise EngineFailure(f"{self._url}: an answer of more than {MAX_ANSWER_BYTES} bytes")
        return bytes(found)

    def _parsed(self, answer: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError) as cause:
            raise EngineFailure(f"{self._url}: the answer is not JSON: {cause}") from cause
        if not isinstance(found, dict):
            raise EngineFailure(f"{self._url}: the answer is no JSON object")
        return found

    def _read(self, answer: Mapping[str, Any], request: Request) -> Generation:
        where = f"{self._url}: the answer"
        try:
            choice = answer["choices"][0]
            ids, values = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            prompt, reason = choice.get("prompt_token_ids", answer.get("prompt_token_ids")), choice["finish_reason"]
        except (KeyError, IndexError, TypeError) as cause:
            raise EngineFailure(
                f"{where} lacks {cause}: the server must return token ids and logprobs (vLLM: return_token_ids)"
            ) from cause
        if not isinstance(ids, list) or not isinstance(values, list) or len(ids) != len(values):
            raise EngineFailure(f"{where} has other numbers of token ids and of logprobs")
        if prompt is not None and prompt != request.token_ids.tolist():
            raise EngineFailure(f"{where} is to another prompt: the server did not take the ids as they are")
        if reason not in ("stop", "length"):
            raise EngineFailure(f"{where} ended with {str(reason)[:40]!r}, expected stop or length")
        if not all(_is_id(item) for item in ids) or not all(item is None or _is_logprob(item) for item in values):
            raise EngineFailure(f"{where} holds a token id or a logprob out of range")
        version = choice.get("policy_version", self.version)
        return Generation(
            token_ids=as_ints(ids),
            sampled=np.array([item is not None for item in values], dtype=np.bool_),
            logprobs=as_floats([float("nan") if item is None else min(float(item), 0.0) for item in values]),
            policy_version=version if isinstance(version, int) and version >= 0 else self.version,
            finish=Finish.STOP if reason == "stop" else Finish.LENGTH,
            sampling=replace(request.sampling, engine=f"remote/{self._name}"),
        )


def _name(request: Request) -> str:
    return f"{request.sampling.stream}/{request.turn}/{request.context}"


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_logprob(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e9 < value < 1e-3
