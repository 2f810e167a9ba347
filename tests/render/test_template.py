"""Chat templates as hostile input, and the helpers they expect."""

import time
import tracemalloc
from datetime import datetime

import pytest

from kifu.errors import RenderError
from kifu.render import ChatTemplate

DOUBLING = (
    "{{% set n = namespace(x='ab') %}}{{% for i in range(99) %}}{{% set n.x = n.x {operator} n.x %}}{{% endfor %}}"
)
NESTING = (
    "{{% set n = namespace(x=1) %}}{{% for i in range(99) %}}{{% set n.x = {operator} %}}{{% endfor %}}{{{{ n.x }}}}"
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
    "format method by a filter": "{{ ('{:1000000000}' | attr('format'))(3) }}",
    "format method of many": "{{ ['{:1000000000}'] | map(attribute='format') | list }}",
    "doubling by nesting": NESTING.format(operator="[n.x, n.x]"),
    "doubling by nesting tuples": NESTING.format(operator="(n.x, n.x)"),
    "doubling by nesting dictionaries": NESTING.format(operator="{{1: n.x, 2: n.x}}"),
    "doubling by a call": NESTING.format(operator="dict(a=n.x, b=n.x)"),
    "squaring": "{% set n = namespace(x=99) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "nested repetition": "{{ [[['a' * 1000] * 1000] * 1000] * 1000 }}",
    "repetition of bytes": "{{ 'a'.encode() * 1000000000 }}",
    "padding of bytes": "{{ 'a'.encode().ljust(1000000000) }}",
    "bytes of a number": "{{ (5).to_bytes(1000000000, 'big') }}",
    "formatting of bytes": "{{ 'a%1000000000d'.encode() % 3 }}",
    "joining": "{{ ('a' * 1000000).join(['b'] * 1000000) }}",
    "joining one by one": "{{ ('a' * 1000000).join([''] * 10000 | map('default', 'b')) }}",
    "joining filter": "{{ ['b'] * 1000000 | join('a' * 1000000) }}",
    "joining filter's items": "{{ [false] * 10000 | map('default', 'a' * 1000000, true) | join }}",
    "list of one by one": "{{ [false] * 10000 | map('default', 'a' * 1000000, true) | list }}",
    "sum of lists": "{{ [[1] * 1000] * 1000 | sum(start=[]) }}",
    "rounding": "{{ 5 | round(1000000000, 'ceil') }}",
    "rounding before the point": "{{ 5 | round(-1000000000) }}",
    "replacement filter by name": "{{ ('a' * 1000000) | replace(old='a', new='b' * 1000000) }}",
    "indentation by name": "{{ 'a\\nb' | indent(width=1000000000) }}",
    "indentation by text": "{{ ('a\\n' * 100000) | indent('b' * 100000) }}",
    "json separators": "{{ [1] * 10000 | tojson(separators=(',' * 1000000, ':')) }}",
    "json deeply indented": "{% set n = namespace(x=[1] * 100000) %}{% for i in range(900) %}"
    "{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson(indent=64) }}",
    "wide dates": "{{ strftime_now('%1000000000Y') }}",
    "long dates": "{{ strftime_now('x' * 1000000) }}",
    "many filters": "{{ ('a' * 1000000)" + " | upper" * 20_000 + " }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_stopped_before_it_costs_much(source: str) -> None:
    tracemalloc.start()
    began = time.thread_time()
    try:
        with pytest.raises(RenderError, match=r"chat template .*: .") as told:
            ChatTemplate(source=source, variables={}).render([{"role": "user", "content": "x"}], generation_prompt=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not isinstance(told.value.__cause__, MemoryError)
    assert peak < 100_000_000
    assert time.thread_time() - began < 60  # far from what it would take; the limit of a render is two seconds


def test_a_template_that_is_too_long_is_not_read() -> None:
    with pytest.raises(RenderError, match="300000 characters, at most 262144"):
        ChatTemplate(source=" " * 300_000, variables={})


def test_a_template_that_python_cannot_compile_is_refused() -> None:
    with pytest.raises(RenderError, match="cannot be compiled"):
        ChatTemplate(source="{{ " + "[" * 500 + "]" * 500 + " }}", variables={})


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
        ("{{ messages | join('/', attribute='content') }}{{ ', '.join(['a', 'b']) }}", "one/twoa, b"),
        ("{{ [1, 2.5] | sum }}{{ [{'n': 2}] | sum(attribute='n', start=3) }}", "3.55"),
        ("{{ 2.345 | round(1) }}{{ 2.1 | round(method='ceil') }}", "2.33.0"),
        ("{{ 'a\nb' | indent(2, first=true) }}{{ 'a\nb' | indent(width='-') }}", "  a\n  ba\n-b"),
        ("{{ 'aaa' | replace('a', 'b', 2) }}{{ 'aaa'.replace('a', 'b', 1) }}", "bbabaa"),
        ("{{ strftime_now('%d %b %Y, 5 %% of 100') }}", "03 Feb 2026, 5 % of 100"),
        ("{% for key, value in {'a': (1, 2)}.items() %}{{ key }}{{ value[1] }}{% endfor %}", "a2"),
        ("{% set a, b = 1, [2] %}{{ a }}{{ b[0] }}{{ 'x'.split() + ['y'] }}", "12['x', 'y']"),
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
