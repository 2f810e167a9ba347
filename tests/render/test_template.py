"""Chat templates as hostile input, and the helpers they expect."""

import json
import time
import tracemalloc
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import pytest

from kifu.errors import RenderError
from kifu.render import ChatTemplate, load_template, load_tokenizer

MakeFolder: TypeAlias = Callable[..., Path]

DOUBLING = (
    "{{% set n = namespace(x='ab') %}}{{% for i in range(99) %}}{{% set n.x = n.x {operator} n.x %}}{{% endfor %}}"
)
NESTING = (
    "{{% set n = namespace(x=1) %}}{{% for i in range(99) %}}{{% set n.x = {operator} %}}{{% endfor %}}{{{{ n.x }}}}"
)
LONG_BLOCK = (
    "{{% set a = {text} %}}{{% set b {filter} %}}{{% for i in range({times}) %}}{{{{ a }}}}{{% endfor %}}{{% endset %}}"
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
    "replacement": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replacement filter": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
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
    "joining": "{{ ('a' * 100000).join(['b'] * 10000) }}",
    "joining one by one": "{{ ('a' * 100000).join([''] * 10000 | map('default', 'b')) }}",
    "joining filter": "{{ ['b'] * 10000 | join('a' * 100000) }}",
    "joining filter's items": "{{ [false] * 10000 | map('default', 'a' * 1000000, true) | join }}",
    "list of one by one": "{{ [false] * 10000 | map('default', 'a' * 1000000, true) | list }}",
    "sum of lists": "{{ [[1] * 1000] * 1000 | sum(start=[]) }}",
    "rounding": "{{ 5 | round(1000000000, 'ceil') }}",
    "rounding before the point": "{{ 5 | round(-1000000000) }}",
    "replacement filter by name": "{{ ('a' * 100000) | replace(old='a', new='b' * 100000) }}",
    "indentation by name": "{{ 'a\\nb' | indent(width=1000000000) }}",
    "indentation by text": "{{ ('a\\n' * 100000) | indent('b' * 100000) }}",
    "json separators": "{{ [1] * 10000 | tojson(separators=(',' * 100000, ':')) }}",
    "json deeply indented": "{% set n = namespace(x=[1] * 100000) %}{% for i in range(900) %}"
    "{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson(indent=64) }}",
    "wide dates": "{{ strftime_now('%1000000000Y') }}",
    "long dates": "{{ strftime_now('x' * 100000) }}",
    "clock through a function": "{{ strftime_now.args[0].now().year }}",
    "function as a value": "{% set now = strftime_now %}{{ now }}",
    "function in a container": "{{ [range] }}",
    "address of a function": "{{ range }}",
    "address of a method": "{{ ''.upper }}",
    "address of a method by a filter": "{{ ''.upper | string }}",
    "address of a generator": "{{ messages | map('list') }}",
    "time zone": "{{ strftime_now('%s') }}",
    "change of a message by a class": "{{ dict.update(messages[0], {'content': 'y'}) }}",
    "clearing of a message by a class": "{{ dict.clear(messages[0]) }}",
    "class by a call": "{{ dict()['fromkeys'](range(9)) }}",
    "hidden arguments": "{% macro m() %}{{ varargs }}{% endmacro %}{{ m(1) }}",
    "hidden named arguments": "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(a=1) }}",
    "call block": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
    "the template itself": "{{ self }}",
    "block": "{% block a %}{% endblock %}",
    "deep tuples": "{% set n = namespace(x=1) %}{% for i in range(9000) %}{% set n.x = (n.x,) %}{% endfor %}",
    "deep namespaces": NESTING.format(operator="namespace(x=n.x)"),
    "namespace in itself": "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "namespaces in a list": "{% set n = namespace(x='x' * 300000) %}{{ ([n] * 200) | string }}",
    "views in a list": "{% set d = {'a': 'x' * 300000} %}{{ ([d.items()] * 200) | string }}",
    "set block": "{% set a = 'x' * 400000 %}{% set b %}{% for i in range(300) %}{{ a }}{% endfor %}{% endset %}",
    "set block in pieces": LONG_BLOCK.format(text="'xy' * 200000", times=19, filter="") + "{{ b | length }}",
    "set block in characters": LONG_BLOCK.format(text="'\U0001f600' * 100000", times=70, filter="")
    + "{{ b | list | length }}",
    "set block taken apart": LONG_BLOCK.format(text="'\U0001f600' * 100000", times=70, filter="| list | length"),
    "set block spread out": LONG_BLOCK.format(text="'\U0001f600' * 100000", times=70, filter="")
    + "{% macro m() %}{% endmacro %}{{ m(*b) }}",
    "set block of text": "{% set b %}{% for i in range(9000) %}" + "a" * 90_000 + "{% endfor %}{% endset %}",
    "set block of a constant": "{% set b %}{% for i in range(9000) %}{{ '"
    + "a" * 90_000
    + "' }}{% endfor %}{% endset %}",
    "set block of a filtered constant": "{% set b %}{% for i in range(9000) %}{{ '"
    + "a" * 90_000
    + "' | upper }}{% endfor %}{% endset %}",
    "set block of a chosen constant": "{% set b %}{% for i in range(9000) %}{{ '"
    + "a" * 90_000
    + "' if true else 'b' }}{% endfor %}{% endset %}",
    "macro's constant": "{% macro m() %}{% for i in range(9000) %}{{ '"
    + "a" * 90_000
    + "' }}{% endfor %}{% endmacro %}{% set b = m() %}",
    "macro's text": "{% set a = 'x' * 400000 %}{% macro m() %}{% for i in range(300) %}{{ a }}{% endfor %}"
    "{% endmacro %}{% set b = m() %}",
    "many values": "{% set n = namespace() %}{% for i in range(9000) %}{% set n[i ~ ''] = i %}{% endfor %}",
    "many calls": "{% set a = 'x' * 100000 %}{% for i in range(9000) %}{% set b = a.upper() %}{% endfor %}",
    "numbers kept": "{% set n = namespace(x=[]) %}{% for i in range(900) %}{% set n.x = n.x + [range(9000) | list] %}"
    "{% endfor %}",
    "many indented lines": "{{ ('\\n' * 390000) | indent(64, true, true) }}",
    "titles": "{{ ('-a' * 200000) | title | list }}",
    "search in a list by a test": "{{ range(9000) | select('in', [1.5] * 15000) | list }}",
    "search in a list": "{% set l = [1.5] * 15000 %}{% for i in range(9000) %}"
    + "{% if 7 in l %}{% endif %}" * 400
    + "{% endfor %}",
    "large numbers": "{% set n = 10000 ** 64 %}{% set n = n * n * n * n %}{{ ([n] * 50000) | tojson }}",
    "large number by subtraction": "{% set n = namespace(x=-1) %}"
    "{% for i in range(9000) %}{% set n.x = n.x - 1 + n.x %}{% endfor %}",
    "large number of a text": "{{ ('f' * 400000) | int(base=16) }}",
    "stripping": "{{ ('a' * 200000).strip('b' * 200000 ~ 'a') }}",
    "stripping filter": "{{ ('a' * 200000) | trim('b' * 200000 ~ 'a') }}",
    "stripping filter by name": "{{ ('a' * 200000) | trim(chars='b' * 200000 ~ 'a') }}",
    "search from the right": "{{ ('a' * 200000).rfind('b' ~ 'a' * 100000) }}",
    "split from the right": "{{ ('a' * 200000).rsplit(sep='b' ~ 'a' * 100000) }}",
    "long paths": "{{ (['a'] * 9000) | map(attribute=('0.' * 90000) ~ '0') | list }}",
    "sorting by paths": "{% set l = range(9000) | list %}{% for i in range(9000) %}"
    "{% set x = l | sort(attribute='real,imag,real') %}{% endfor %}",
    "many parts": "{{a}}" * 19_999,
    "many branches": "{% if a.b %}{% endif %}" * 4_200,
    "long refusal": "{{ raise_exception('x' * 100000) }}",
    "half of a character": "{{ '\\ud800' }}",
    "half of a character in the text": "\ud800",
    "many filters": "{{ ('a' * 100000)" + "|upper" * 15_000 + " }}",
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


def test_what_a_template_keeps_is_gone_with_the_next_render() -> None:
    source = "{% set n = namespace(x=n.x + 1 if n is defined else 0) %}{{ n.x }}"
    template = ChatTemplate(source=source, variables={})
    assert {template.render([{"content": str(i)}], generation_prompt=False) for i in range(9)} == {"0"}


def test_a_value_may_be_larger_where_the_inputs_are() -> None:
    template = ChatTemplate(source="{{ messages[0].content ~ messages[0].content }}", variables={})
    assert template.render([{"content": "é" * 900_000}], generation_prompt=False) == "é" * 1_800_000


def test_a_refusal_is_told_in_few_words() -> None:
    template = ChatTemplate(source="{{ raise_exception('x' * 100000 ~ '\\ud800') }}", variables={})
    with pytest.raises(RenderError) as told:
        template.render([], generation_prompt=False)
    assert len(str(told.value)) < 2_000


@pytest.mark.parametrize("found", [["x"], [None], [[]], [{"name": [1], "template": "x"}], {"default": "x"}, 1])
def test_a_malformed_entry_for_the_template_is_refused(tmp_path: Path, found: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": found}))
    with pytest.raises(RenderError, match="no chat template"):
        load_template(tmp_path, variables={})


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    found = [{"name": "other", "template": "a"}, {"name": "default", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": found}))
    assert load_template(tmp_path, variables={}).source == "b"


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_file_nested_without_end_is_refused(make_folder: MakeFolder, name: str) -> None:
    folder = make_folder("plain")
    (folder / name).write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(RenderError, match="not JSON"):
        load_tokenizer(folder)


def test_a_token_that_is_no_text_is_refused(make_folder: MakeFolder) -> None:
    folder = make_folder("plain")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "\\ud800"}')
    with pytest.raises(RenderError, match="eos_token"):
        load_tokenizer(folder)


def test_a_template_that_is_too_long_is_not_read() -> None:
    with pytest.raises(RenderError, match="300000 characters, at most 100000"):
        ChatTemplate(source=" " * 300_000, variables={})


def test_a_template_that_python_cannot_compile_is_refused() -> None:
    with pytest.raises(RenderError, match="cannot be compiled"):
        ChatTemplate(source="{{ " + "[" * 500 + "]" * 500 + " }}", variables={})


@pytest.mark.parametrize(
    "source", ["{{ namespace().__class__ }}", "{{ '' | attr('__class__') }}", "{{ ''.upper.__self__ }}"]
)
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
        ("{% if strftime_now is defined and range is defined %}{{ range(3) | list }}{% endif %}", "[0, 1, 2]"),
        ("{% if [] | select %}{{ ['a', ''] | select | first }}{% endif %}{{ {'a': 1} | items | list }}", "a[('a', 1)]"),
        (
            "{% set n = namespace({'a': 1}, b=2) %}{% set n.a = n.a + n.b %}{{ n.a }}{{ dict(a=1).keys() | list }}",
            "3['a']",
        ),
        (
            "{% macro m(x, y='!') %}{{ x }}{{ y }}{% endmacro %}{{ m('a') | upper }}"
            "{% set b %}{{ m(1) }}{% endset %}{{ b }}",
            "A!1!",
        ),
        ("{{ ' a '.strip() ~ 'a</b>c'.rsplit('</b>', 1)[-1] }}{{ 'xax' | trim('x') }}{{ 'b' in 'abc' }}", "acaTrue"),
        ("{% set a | trim | upper | replace('A', 'b') %} xa {% endset %}{{ a }}", "Xb"),
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
