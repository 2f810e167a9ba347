"""The gateway's own OpenAPI 3.1 document; bodies are described by the types that read them."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kifu.gateway.administration import Judging, Opening, Sealing
from kifu.gateway.otlp import PROTOBUF
from kifu.gateway.wire.chat import ChatBody
from kifu.gateway.wire.completions import CompletionsBody
from kifu.gateway.wire.messages import MessagesBody
from kifu.gateway.wire.responses import ResponsesBody

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
ROLLOUT: Json = {
    "name": "rollout",
    "in": "path",
    "required": True,
    "schema": TEXT,
    "description": "The rollout's id, percent-encoded.",
}
IN_PATH = "/r/{rollout}"
"""Beginning of the readable path of a rollout; its key must be that rollout's."""


def _object(required: Mapping[str, Json], **more: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": {**required, **more}}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


_USAGE = _object({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT})
_CALL = _object({"id": TEXT, "type": {"const": "function"}, "function": _object({"name": TEXT, "arguments": TEXT})})
_FINISH: Json = {"enum": ["stop", "length", "tool_calls"]}
EVENT = _object({"data": TEXT}, event=TEXT)
"""Of a stream; the data is JSON as the vendor writes it, or ``[DONE]``."""
ANSWERS: Mapping[str, Json] = {
    "ChatAnswer": _object(
        {
            "id": TEXT,
            "object": {"const": "chat.completion"},
            "created": COUNT,
            "model": TEXT,
            "choices": _list(
                _object(
                    {
                        "index": COUNT,
                        "message": _object(
                            {"role": {"const": "assistant"}, "content": _or_null(TEXT)},
                            reasoning_content=TEXT,
                            tool_calls=_list(_CALL),
                        ),
                        "finish_reason": _FINISH,
                        "logprobs": _or_null({"type": "object"}),
                    },
                    token_ids=_list(COUNT),
                )
            ),
            "usage": _USAGE,
        },
        prompt_token_ids=_list(COUNT),
    ),
    "CompletionsAnswer": _object(
        {
            "id": TEXT,
            "object": {"const": "text_completion"},
            "created": COUNT,
            "model": TEXT,
            "choices": _list(_object({"index": COUNT, "text": TEXT, "finish_reason": _FINISH})),
            "usage": _USAGE,
        }
    ),
    "ResponsesAnswer": _object(
        {
            "id": TEXT,
            "object": {"const": "response"},
            "model": TEXT,
            "status": {"enum": ["completed", "incomplete"]},
            "incomplete_details": _or_null(_object({"reason": TEXT})),
            "output": _list(_object({"type": {"enum": ["message", "function_call", "reasoning"]}})),
            "usage": _object({"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
    "MessagesAnswer": _object(
        {
            "id": TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": TEXT,
            "content": _list(_object({"type": {"enum": ["text", "tool_use", "thinking"]}})),
            "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
            "stop_sequence": _or_null(TEXT),
            "usage": _object({"input_tokens": COUNT, "output_tokens": COUNT}),
        }
    ),
    "TokenCount": _object({"input_tokens": COUNT}),
    "Model": _object({"id": TEXT, "object": {"const": "model"}}),
    "Models": _object({"object": {"const": "list"}, "data": _list({"$ref": "#/components/schemas/Model"})}),
    "Judged": _object({"judged": TEXT}),
    "Sealed": _object(
        {
            "id": TEXT,
            "turns": COUNT,
            "tapes": COUNT,
            "sampled_tokens": COUNT,
            "outcome": TEXT,
            "reward": _or_null({"type": "number"}),
        }
    ),
    "Opened": _object({"id": TEXT, "path": TEXT, "model_key": TEXT, "verdict_key": TEXT}),
    "Rollouts": _object({"rollouts": _list(TEXT)}),
    "Numbers": {"type": "object"},
    "Health": _object({"status": {"const": "ok"}}),
    "SpansTaken": _object({}, partialSuccess={"type": "object"}),
    "SpansRefused": _object({"code": COUNT, "message": TEXT}),
    "Error": _object(
        {"error": _object({"message": TEXT, "type": TEXT, "param": _or_null(TEXT), "code": _or_null(TEXT)})}
    ),
    "MessagesError": _object({"type": {"const": "error"}, "error": _object({"type": TEXT, "message": TEXT})}),
}
"""What is answered, without the fields that only some calls get."""

MODEL_CALLS = (
    ("/v1/chat/completions", ChatBody, "ChatAnswer", "Error"),
    ("/v1/completions", CompletionsBody, "CompletionsAnswer", "Error"),
    ("/v1/responses", ResponsesBody, "ResponsesAnswer", "Error"),
    ("/v1/messages", MessagesBody, "MessagesAnswer", "MessagesError"),
)


def openapi_document(models: Sequence[str]) -> Json:
    """The document.

    Fields that a body may hold beside those described are recorded: `docs/gateway.md` lists which are honoured, which
    change nothing and which are refused.

    Args:
        models: names that are served.
    """
    bodies: list[type[BaseModel]] = [*(body for _, body, _, _ in MODEL_CALLS), Opening, Sealing, Judging]
    names, told = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    schemas: Json = _plainly_named(told["$defs"])
    refs = {body: _plainly_named(names[body, "validation"]) for body in bodies}
    for body in bodies[: len(MODEL_CALLS)]:
        schemas[refs[body]["$ref"].rpartition("/")[2]]["properties"]["model"] = {"enum": list(models)}
    paths: Json = {}
    for path, body, answer, error in MODEL_CALLS:
        paths |= _twice(path, "post", _operation(answer, error=error, body=refs[body], stream=True))
    counted = _operation("TokenCount", error="MessagesError", body=refs[MessagesBody])
    paths |= _twice("/v1/messages/count_tokens", "post", counted)
    paths |= _twice("/v1/models", "get", _operation("Models"))
    named = {"name": "model", "in": "path", "required": True, "schema": TEXT}
    paths |= _twice("/v1/models/{model}", "get", {**_operation("Model"), "parameters": [named]})
    paths[f"{IN_PATH}/verdict"] = {
        "post": {**_operation("Judged", body=refs[Judging], key="verdict"), "parameters": [ROLLOUT]}
    }
    paths["/admin/rollouts"] = {
        "get": _operation("Rollouts", key="admin"),
        "post": _operation("Opened", body=refs[Opening], key="admin", status=201),
    }
    paths["/admin/rollouts/{rollout}/seal"] = {
        "post": {**_operation("Sealed", body=refs[Sealing], key="admin"), "parameters": [ROLLOUT]}
    }
    paths["/admin/metrics"] = {"get": _operation("Numbers", key="admin")}
    paths["/healthz"] = {"get": {**_operation("Health"), "security": []}}
    paths |= _twice("/v1/traces", "post", _traces())
    return {
        "openapi": "3.1.0",
        "info": {"title": "kifu gateway", "version": version("kifu")},
        "paths": paths,
        "components": {
            "schemas": {**schemas, **ANSWERS},
            "securitySchemes": {
                role: {"type": "http", "scheme": "bearer", "description": f"a key for {role} calls"}
                for role in ("model", "verdict", "admin")
            },
        },
    }


def _plainly_named(schema: Json) -> Json:
    """With names as people write them: ``ChatTool`` for ``kifu__gateway__wire__chat___Tool``."""
    text = re.sub(r"kifu__gateway__wire__(\w)(\w*?)___", lambda found: found[1].upper() + found[2], json.dumps(schema))
    plain: Json = json.loads(re.sub(r'(["/])_([A-Z])', r"\1\2", text))
    return plain


def _twice(path: str, method: str, operation: Json) -> Json:
    """With and without the rollout in the path."""
    own = operation.get("parameters", [])
    return {
        path: {method: operation},
        f"{IN_PATH}{path}": {method: {**operation, "parameters": [ROLLOUT, *own]}},
    }


def _operation(
    answer: str,
    *,
    error: str = "Error",
    body: Json | None = None,
    key: str = "model",
    status: int = 200,
    stream: bool = False,
) -> Json:
    content = {"application/json": _ref(answer), **({"text/event-stream": {"schema": EVENT}} if stream else {})}
    failed = {"description": "not answered, and why", "content": {"application/json": _ref(error)}}
    found: Json = {
        "security": [{key: []}],
        "responses": {str(status): {"description": "answered", "content": content}, "4XX": failed},
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _traces() -> Json:
    """Spans as OTLP sends them, in either of its encodings."""
    found = _operation("SpansTaken", error="SpansRefused", body={"type": "object"})
    binary: Json = {"schema": {"type": "string", "format": "binary"}}
    found["requestBody"]["content"][PROTOBUF] = binary
    found["responses"]["200"]["content"][PROTOBUF] = binary
    return found


def _ref(name: str) -> Json:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}
