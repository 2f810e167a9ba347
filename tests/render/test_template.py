"""Chat templates as hostile input, and the helpers they expect."""

import time
from datetime import datetime

import pytest

from kifu.errors import RenderError
from kifu.render import ChatTemplate

DOUBLING = (
    "{{% set n = namespace(x='ab') %}}{{% for i in range(99) %}}{{% set n.x = n.x {operator} n.x %}}{{% endfor %}}"
)
HOSTILE = {
    "endless loops": "{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}",
    "endless filtered loops": "{% for i in range(9000) %}{% for j in range(9000) if false %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling by concatenation": DOUBLING.format(operator="~"),
    "doubling by addition": DOUBLING.format(operator="+"),
    "repetition": "{{ 'a' * (10 ** 9) }}",
    "list repetition": "{{ ([1] * 1000000000) | length }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "padding": "{{ 'a'.ljust(1000000000) }}",
    "formatting": "{{ '%1000000000d' % 3 }}",
    "format method": "{{ '{:1000000000}'.format(3) }}",
    "replacement": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "replacement filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "indentation": "{{ 'a\\nb' | indent(1000000000) }}",
    "json indentation": "{{ [1, 2] | tojson(indent=1000000000) }}",
    "long range": "{{ range(100000) | list }}",
    "much output": "{% for i in range(9000) %}{{ 'a' * 1000 }}{% endfor %}",
    "classes": "{{ ''.__class__.__mro__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}",
    "change of a message": "{% set _ = messages.append(1) %}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_stopped_quickly(source: str) -> None:
    began = time.process_time()
    with pytest.raises(RenderError, match="chat template"):
        ChatTemplate(source=source, variables={}).render([{"role": "user", "content": "x"}], generation_prompt=True)
    assert time.process_time() - began < 3.0


@pytest.mark.parametrize("source", ["{{ raise_exception.__globals__ }}", "{{ '' | attr('__class__') }}"])
def test_the_insides_of_python_are_invisible(source: str) -> None:
    assert ChatTemplate(source=source, variables={}).render([], generation_prompt=False) == ""


def test_a_template_cannot_switch_the_counting_off() -> None:
    source = "{% set tick = 1 %}{% set environment = 1 %}" + HOSTILE["endless loops"]
    with pytest.raises(RenderError, match="ran longer"):
        ChatTemplate(source=source, variables={}).render([], generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": 2\n}'),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}{{ 'kept' }}{% endgeneration %}", "kept"),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-02-03"),
        ("{{ 'a' ~ 1 ~ bos_token }}", "a1<s>"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ messages[::-1] | map(attribute='content') | join(',') }}", "two,one"),
        ("{{ enable_thinking is defined and not enable_thinking }}", "True"),
        ("{{ 7 // 2 + 2 * 3 }}", "9"),
    ],
)
def test_the_helpers_of_chat_templates_are_there(source: str, expected: str) -> None:
    template = ChatTemplate(
        source=source,
        variables={"bos_token": "<s>"},
        options={"enable_thinking": False},
        today=datetime(2026, 2, 3),
    )
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    assert template.render(messages, generation_prompt=False) == expected


def test_a_refusal_of_the_template_reaches_the_caller_in_its_words() -> None:
    template = ChatTemplate(source="{{ raise_exception('roles must alternate') }}", variables={})
    with pytest.raises(RenderError, match="roles must alternate"):
        template.render([], generation_prompt=True)


def test_a_template_with_a_mistake_is_refused_at_once() -> None:
    with pytest.raises(RenderError, match="cannot be compiled"):
        ChatTemplate(source="{% for %}", variables={})


def test_one_render_does_not_use_up_the_steps_of_the_next() -> None:
    template = ChatTemplate(source="{% for i in range(9000) %}{% endfor %}ok", variables={})
    assert {template.render([], generation_prompt=False) for _ in range(30)} == {"ok"}
