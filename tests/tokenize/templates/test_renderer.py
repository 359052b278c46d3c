"""A template costs at most its limits, and a conversation that it cannot render is the only one that is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from datakit.cache.contract import ChatTemplate
from datakit.errors import TokenizerError
from datakit.tokenize.templates import renderer as renderer_module
from datakit.tokenize.templates.limits import Limits
from datakit.tokenize.templates.renderer import MOST_EXCEEDED, Lost, Rendered, Renderer

SMALL = Limits(seconds=0.5, memory=128 << 20, characters=1 << 16)
MESSAGES = [{"role": "user", "content": "a secret"}, {"role": "assistant", "content": "é"}]
MARKED = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}.{% endfor %}"


@pytest.fixture
def started() -> Iterator[list[Renderer]]:
    made: list[Renderer] = []
    yield made
    for one in made:
        one.close()


def renderer(started: list[Renderer], template: str, limits: Limits = SMALL, **values: Any) -> Renderer:
    made = Renderer(ChatTemplate("", template, values.get("tool_use", ""), {"eos_token": "</s>"}, ""), limits)
    started.append(made)
    return made


HOSTILE = {  # each in one rendering
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "takes more than 0.5 s",
    "{% set n = namespace(x='x') %}{% for a in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}": "MiB of memory",
    "{{ messages[0].content * 99999999999 }}": "MiB of memory",
    "{% for a in range(99999) %}{{ 'words and words' }}{% endfor %}": "writes more than 65,536 characters",
}


@pytest.mark.parametrize("template", HOSTILE)
def test_hostile_rendering_is_a_named_loss_and_the_template_is_refused_in_the_end(
    started: list[Renderer], template: str
) -> None:
    only_hostile_for_users = f"{{% if messages[0].role == 'user' %}}{template}{{% else %}}fine{{% endif %}}"
    one = renderer(started, only_hostile_for_users)
    for _ in range(MOST_EXCEEDED - 1):
        lost = one.render(MESSAGES, None)
        assert isinstance(lost, Lost) and HOSTILE[template] in lost.reason
        assert one.render([{"role": "system", "content": ""}], None) == Rendered("fine", [])
    with pytest.raises(TokenizerError, match=f"for {MOST_EXCEEDED} conversations; the template itself is at fault"):
        one.render(MESSAGES, None)


def test_operation_that_no_handler_interrupts_is_ended_by_the_kernel(started: list[Renderer]) -> None:
    with pytest.raises(TokenizerError, match=r"the chat template takes more than 0\.5 s of CPU time"):
        renderer(started, "{{ 9 ** (9 ** 9) }}").start()  # Jinja2 computes constants while it compiles


FAILING = {
    "{{ raise_exception('Roles must alternate') }}": "TemplateError in line 1: Roles must alternate",
    "\n{{ raise_exception('no ' + messages[0].content) }}": "TemplateError in line 2",
    "{{ messages[0].nothing.more }}": "UndefinedError in line 1",
    "{{ messages.append(1) }}": "SecurityError in line 1",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "SecurityError in line 1",
    "{{ namespace(__class__=1) }}": "SecurityError in line 1",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError in line 1",
    "{{ messages[0]['content'].encode('ascii') + 1 }}": "TypeError in line 1",
}


@pytest.mark.parametrize("template", FAILING)
def test_failure_names_its_line_and_does_not_quote_the_conversation(started: list[Renderer], template: str) -> None:
    lost = renderer(started, template).render(MESSAGES, None)
    assert isinstance(lost, Lost)
    assert lost.reason == f"the chat template fails: {FAILING[template]}"


INVALID = {
    "{% if %}": "TemplateSyntaxError in line 1: Expected an expression",
    "{{ messages | random }}": "TemplateAssertionError in line 1: No filter named 'random'",
    "a\n{% generation %}": "TemplateSyntaxError in line 2",
}


@pytest.mark.parametrize("template", INVALID)
def test_template_that_is_not_valid_is_refused(started: list[Renderer], template: str) -> None:
    with pytest.raises(TokenizerError, match=f"the chat template fails: {INVALID[template]}"):
        renderer(started, template).start()


def test_spans_count_characters_and_tools_have_a_template_of_their_own(started: list[Renderer]) -> None:
    one = renderer(started, MARKED, tool_use="{{ tools[0] | tojson }}{{ eos_token }}")
    assert one.render(MESSAGES, None) == Rendered("a secret.é.", [(0, 8), (9, 10)])
    assert one.render(MESSAGES[:1], [{"name": "é<"}]) == Rendered('{"name": "é<"}</s>', [])
    assert one.has_spans and not one.needs_date


@pytest.mark.parametrize(
    "template",
    [
        "{% set late %}{% generation %}é{% endgeneration %}{% endset %}",
        "{% macro late() %}{% generation %}é{% endgeneration %}{% endmacro %}{% set text = late() %}head {{ text }}",
    ],
)
def test_span_of_text_that_is_written_elsewhere_is_a_loss(started: list[Renderer], template: str) -> None:
    lost = renderer(started, template).render(MESSAGES, None)
    assert isinstance(lost, Lost) and "is not written where the tag stands" in lost.reason


def test_answer_longer_than_any_text_within_the_limits_is_not_read(
    started: list[Renderer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = renderer(started, "{{ messages[0].content }}", Limits(characters=20))
    message = [{"role": "user", "content": "\1" * 20}]
    assert isinstance(one.render(message, None), Rendered)
    monkeypatch.setattr(renderer_module, "LONGEST_SPANS", 4)
    lost = one.render(message, None)
    assert isinstance(lost, Lost) and "writes more than 20 characters" in lost.reason


def test_dead_process_costs_its_conversation_alone(started: list[Renderer]) -> None:
    one = renderer(started, MARKED)
    one.start()
    assert one._process is not None
    one._process.kill()
    one._process.wait()
    assert isinstance(one.render(MESSAGES, None), Lost)
    assert isinstance(one.render(MESSAGES, None), Rendered)


def test_missing_jinja2_is_named(started: list[Renderer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_module, "find_spec", lambda name: None)
    with pytest.raises(TokenizerError, match=r"needs jinja2; run pip install '\.\[chat\]'"):
        renderer(started, MARKED).start()


def test_locked_process_has_no_environment_and_opens_nothing() -> None:
    program = """
import os, socket
from datakit.tokenize.templates import child, limits
child._lock(limits.Limits())
denied = []
for attempt in (lambda: open("/etc/passwd"), lambda: open("/tmp/made", "w"), socket.socket, lambda: bytes(1 << 30)):
    try:
        attempt()
    except (OSError, MemoryError) as error:
        denied.append(type(error).__name__)
print(denied, sorted(os.environ))
"""
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("['OSError', 'OSError', 'OSError', 'MemoryError']"), done.stderr


def test_parent_imports_no_jinja2() -> None:
    program = "import datakit.tokenize.tasks, datakit.pipeline.graph, sys; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
