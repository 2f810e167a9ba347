"""The application: model calls, verdicts and administration, each behind its own capability."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kifu.errors import KifuError
from kifu.gateway.administration import Judging, Opening, Sealing
from kifu.gateway.body import parse_body, read_body
from kifu.gateway.gateway import Gateway
from kifu.gateway.http import Endpoint, answering, counting, grant_of, refused, rollout_of
from kifu.gateway.keys import Role
from kifu.gateway.openapi import openapi_document
from kifu.gateway.otlp import tracing
from kifu.gateway.refusal import Refusal
from kifu.gateway.wire import DIALECTS
from kifu.gateway.wire.contract import validate
from kifu.records import EnvironmentRef, Outcome, Purpose, RolloutKey, StopReason, TaskRef, Verdict

MODEL_PATHS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


def build_app(gateway: Gateway) -> Starlette:
    """Put a gateway behind HTTP."""
    routes = []
    for path, api in MODEL_PATHS.items():
        endpoint = answering(api, gateway)  # type: ignore[arg-type]
        routes += [_post(path, endpoint), _post(f"/r/{{rollout:path}}{path}", endpoint)]
    for prefix in ("", "/r/{rollout:path}"):
        routes.append(_post(f"{prefix}/v1/messages/count_tokens", counting(gateway)))
        routes.append(_post(f"{prefix}/v1/traces", tracing(gateway)))
        routes.append(Route(f"{prefix}/v1/models", _guarded(_models, gateway), methods=["GET"]))
        routes.append(Route(f"{prefix}/v1/models/{{model}}", _guarded(_model, gateway), methods=["GET"]))
    routes += [
        _post("/r/{rollout:path}/verdict", _guarded(_judge, gateway)),
        Route("/admin/rollouts", _guarded(_open_or_list, gateway), methods=["GET", "POST"]),
        _post("/admin/rollouts/{rollout:path}/seal", _guarded(_seal, gateway)),
        Route("/admin/metrics", _guarded(_metrics, gateway), methods=["GET"]),
        Route("/healthz", _healthy, methods=["GET"]),
        Route("/openapi.json", _describing(gateway), methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _unrouted, Exception: _crashed})


def _post(path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=["POST"])


def _guarded(handle: Callable[[Request, Gateway], Awaitable[Response]], gateway: Gateway) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return await handle(request, gateway)
        except Refusal as refusal:
            return refused(DIALECTS["chat"], refusal)
        except KifuError as error:
            return refused(DIALECTS["chat"], Refusal(str(error), status=422, code="invalid_value"))

    return endpoint


async def _models(request: Request, gateway: Gateway) -> Response:
    rollout_of(request, gateway)
    return JSONResponse({"object": "list", "data": [_described(name) for name in gateway.desk.serving.models]})


async def _model(request: Request, gateway: Gateway) -> Response:
    rollout_of(request, gateway)
    name = request.path_params["model"]
    if name not in gateway.desk.serving.models:
        raise Refusal(f"no model {name[:80]!r}", status=404, field="model", code="model_not_found")
    return JSONResponse(_described(name))


def _described(name: str) -> dict[str, Any]:
    """A model as both vendors' clients read it."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "kifu",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }


async def _judge(request: Request, gateway: Gateway) -> Response:
    grant = grant_of(request, gateway, Role.VERDICT)
    asked = validate(Judging, await _body(request, gateway))
    assert grant.rollout is not None
    await gateway.judge(grant.rollout, Verdict(**asked.model_dump()))
    return JSONResponse({"judged": grant.rollout})


async def _open(request: Request, gateway: Gateway) -> Response:
    grant_of(request, gateway, Role.ADMIN)
    asked = validate(Opening, await _body(request, gateway))
    key = RolloutKey(
        seed=asked.seed,
        step=asked.step,
        group=asked.group,
        member=asked.member,
        attempt=asked.attempt,
        purpose=Purpose(asked.purpose),
    )
    world = EnvironmentRef(id=asked.environment, version=asked.environment_version, seed=asked.seed)
    task = TaskRef(id=asked.task, family=asked.family, split=asked.split)
    return JSONResponse(asdict(await gateway.open(key, task, environment=world)), status_code=201)


async def _open_or_list(request: Request, gateway: Gateway) -> Response:
    """One route for both, so that a refused method is told both."""
    return await (_open if request.method == "POST" else _list)(request, gateway)


async def _list(request: Request, gateway: Gateway) -> Response:
    grant_of(request, gateway, Role.ADMIN)
    return JSONResponse({"rollouts": list(gateway.rollouts)})


async def _seal(request: Request, gateway: Gateway) -> Response:
    grant_of(request, gateway, Role.ADMIN)
    asked = validate(Sealing, await _body(request, gateway))
    outcome = None
    if asked.reason is not None:
        if asked.reason not in set(StopReason):
            known = ", ".join(StopReason)
            raise Refusal(f"reason: found {asked.reason[:40]!r}, expected one of {known}", field="reason")
        outcome = Outcome(reason=StopReason(asked.reason), detail=asked.detail[:2000])
    record = await gateway.seal(request.path_params["rollout"], outcome)
    return JSONResponse(
        {
            "id": record.id,
            "turns": len(record.turns),
            "tapes": len(record.tapes),
            "sampled_tokens": record.sampled_tokens,
            "outcome": record.outcome.reason,
            "reward": record.reward,
        }
    )


async def _metrics(request: Request, gateway: Gateway) -> Response:
    grant_of(request, gateway, Role.ADMIN)
    return JSONResponse(gateway.metrics())


def _describing(gateway: Gateway) -> Endpoint:
    document = openapi_document(gateway.desk.serving.models)

    async def endpoint(request: Request) -> Response:
        del request
        return JSONResponse(document)

    return endpoint


async def _healthy(request: Request) -> Response:
    del request
    return JSONResponse({"status": "ok"})


async def _body(request: Request, gateway: Gateway) -> dict[str, Any]:
    limits = gateway.desk.serving.limits
    data = await read_body(request.stream(), declared=request.headers.get("content-length"), limits=limits)
    return await parse_body(data or b"{}", limits)


async def _unrouted(request: Request, error: Exception) -> Response:
    """A path or a method that is not served."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    dialect = DIALECTS["messages" if "/v1/messages" in request.url.path else "chat"]
    what = f"{request.method} {request.url.path[:200]!r} is not served"
    answer = refused(dialect, Refusal(what, status=status, code="not_found"))
    answer.headers.update((isinstance(error, HTTPException) and error.headers) or {})  # which methods are served
    return answer


async def _crashed(request: Request, error: Exception) -> Response:
    """A defect of the gateway; its details are for the log alone."""
    dialect = DIALECTS["messages" if "/v1/messages" in request.url.path else "chat"]
    what = f"unexpected {type(error).__name__} in the gateway"
    return refused(dialect, Refusal(what, status=500, code="internal_error"))
