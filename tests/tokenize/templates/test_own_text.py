"""A template marks what it writes itself, and nothing else; without the marks, its text is the same."""

from __future__ import annotations

import jinja2
import pytest

from datakit.tokenize.templates.environment import Template
from datakit.tokenize.templates.marks import OWN
from tests.support.tokens.template_cases import CONVERSATIONS, DATE, VARIABLES, stored_templates

MESSAGES = [{"role": "user", "content": "says"}, {"role": "wizard", "content": "spells"}]


def owned(source: str) -> list[str]:
    """The parts of a text that are the template's own."""
    made, _ = Template(source, VARIABLES, DATE, 1 << 20).written(MESSAGES, None)
    return [made.text[start:stop] for start, stop in made.own]


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("a{{ messages[0].content }}b", ["a", "b"]),
        ("{{ 'a' + messages[0]['content'] + 'b' ~ eos_token }}", ["a", "b</s>"]),
        ("{{ '<|' + messages[0].role + '|>' }}", ["<|user|>"]),
        ("{{ '<|' + messages[1].role + '|>' }}", ["<|", "|>"]),
        ("{{ '<|' + messages[1].role + '|>' if messages[1].role == 'wizard' else 'no' }}", ["<|wizard|>"]),
        ("{% for m in messages %}{% if loop.first %}a{% else %}{{ 'b' }}{% endif %}-{% endfor %}", ["a-b-"]),
        ("{% set t = 'a' + messages[0].content %}{% set t = bos_token + t %}{{ t + 'b' }}", ["<s>a", "b"]),
        ("{% set t = 'a' %}{{ t }}{{ 'b' if t == 'a' }}", ["b"]),
        ("{% set t = 'a' %}{{ t | upper }}{{ ('b' + t) | trim }}", []),
        ("{% macro f() %}a{% endmacro %}{{ f() }}", []),
        ("{% set t %}b{% endset %}{{ t }}{% filter upper %}c{% endfilter %}", []),
        ("{% set ns = namespace(t='a') %}{% set ns.t = ns.t + 'b' %}{{ ns.t }}", []),
        ("{% generation %}a{{ messages[0].content }}{% endgeneration %}{{ nothing }}{{ 1 + 1 }}", ["a"]),
        ("{% set eos_token = messages[0].content %}{{ eos_token }}", []),
    ],
)
def test_marked_parts(source: str, parts: list[str]) -> None:
    assert owned(source) == parts


def test_texts_are_those_of_jinja2(tmp_path: object) -> None:
    """The conditions of templates do not see the marks."""
    source = "{% set t = 'a' %}{{ t }}{{ t | length }}{{ (t + 'b') | length }}{{ 'a' in t + 'b' }}{{ ['a', t] }}"
    assert Template(source, {}, "", 99).render(MESSAGES, None) == jinja2.Template(source).render()
    for name, template in stored_templates().items():
        one = Template(template, VARIABLES, DATE, 1 << 20)
        made, _ = one.written(CONVERSATIONS["one turn"].messages, None)
        assert made.own and OWN not in made.text, name


def test_template_with_marks_is_refused() -> None:
    for source, variables in ((f"a{OWN}", {}), ("a", {"eos_token": OWN})):
        with pytest.raises(jinja2.TemplateError, match="private-use characters"):
            Template(source, variables, "", 99)
