"""Compiles a chat template with Jinja2 as `transformers` does, and renders conversations with it.

Only the child process imports this module (child.py), because a template is a program that may come from a stranger.
What a template can use is what `apply_chat_template` of transformers 5 gives it, so that both render the same text:
Jinja2's immutable sandbox with `trim_blocks`, `lstrip_blocks` and loop controls; the filter `tojson` without HTML
escapes; `raise_exception`; `strftime_now`; and the tag `generation`, which marks what a model writes. Only what would
make the tokens depend on the day or on chance differs: `strftime_now` shows a date that the recipe states, and the
filter `random` and the function `lipsum` do not exist.

The compiled template also marks what it writes itself (own_text.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import ext, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from datakit.tokenize.templates.marks import MARK, Span, Unmarked, unmarked
from datakit.tokenize.templates.own_text import compiled_tree, constants_of, filters_of, mark_own_text

REASONING = ("reasoning_content", "thinking", "reasoning")  # the names under which datasets keep a message's reasoning
NOW = "strftime_now"


HAS_MARKS = "the template holds private-use characters with which datakit marks texts"


class OutputError(Exception):
    """A template has written more than its limit."""


class MisplacedError(Exception):
    """The content of a `generation` tag was not written where the tag stands, for example because it was assigned."""


@dataclass
class Written:
    """A count of the characters that a rendering has written so far. generated: for each `generation` tag, this count
    at its beginning, and the text inside it.
    """

    characters: int = 0
    generated: list[tuple[int, str]] = field(default_factory=list)


class GenerationTag(ext.Extension):
    """The tag {% generation %} ... {% endgeneration %}. Its span begins after all that has been written before."""

    tags = {"generation"}  # noqa: RUF012 - the attribute's name and type are Jinja2's

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        environment.extend(written=Written(), generation_tags=0)

    def parse(self, parser: Any) -> nodes.Node:
        """Return a block that calls `_mark` with what is inside the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.generation_tags += 1  # pyright: ignore[reportAttributeAccessIssue]
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        text = caller()
        written: Written = self.environment.written  # pyright: ignore[reportAttributeAccessIssue]
        written.generated.append((written.characters, text))
        return text


class _Dict:
    """The function `dict` of templates. The class itself would give them Python's attributes of classes."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _Namespace(Namespace):
    """The function `namespace` of templates. Names that begin with an underscore are refused."""

    def __init__(*arguments: Any, **named: Any) -> None:  # a template may have a variable named `self`
        self, *rest = arguments
        values = dict(*rest, **named)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError("a namespace cannot have a name that begins with an underscore")


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class Template:
    """A compiled template. has_spans: it has `generation` tags. needs_date: it uses `strftime_now`. constants: the
    strings in its expressions, and the names of the fields that it reads.
    """

    def __init__(self, source: str, variables: Mapping[str, str], date: str, most_characters: int) -> None:
        """variables: the strings of special tokens, by name. date: what `strftime_now` shows, as "2026-01-31", or "" if
        the recipe states none. most_characters: the limit on what one rendering may write. Raises the errors of Jinja2.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, ext.loopcontrols]
        )
        moment = datetime.fromisoformat(date) if date else None
        environment.filters["tojson"] = _tojson
        del environment.filters["random"], environment.globals["lipsum"]
        environment.globals |= {"raise_exception": _raise, "dict": _Dict(), "namespace": _Namespace}
        if moment is not None:
            environment.globals[NOW] = moment.strftime
        if MARK.search(source) or any(map(MARK.search, variables.values())):
            raise jinja2.TemplateError(HAS_MARKS)
        tree = environment.parse(source)
        self._environment: Any = environment
        self._variables, self._most = dict(variables), most_characters
        self.has_spans: bool = self._environment.generation_tags > 0
        self.needs_date = any(name.name == NOW for name in tree.find_all(nodes.Name))
        self.constants = constants_of(tree)
        self._plain = environment.from_string(source)
        environment.filters |= filters_of(self.constants)
        mark_own_text(tree, frozenset(variables))
        self._marking = compiled_tree(environment, tree)

    def written(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None
    ) -> tuple[Unmarked, list[Span]]:
        """Return the text of a conversation with the places of the marks in it, and the spans of its characters that
        are inside `generation` tags. Raises OutputError, MisplacedError, and whatever the template raises.
        """
        text, spans = self._rendered(self._marking, messages, tools, prompt=False)
        made = unmarked(text)
        return made, made.moved(spans)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, prompt: bool = False) -> str:
        """Return the text of a conversation. prompt: also render the head of the next answer. Raises what `written`
        raises.
        """
        return MARK.sub("", self._rendered(self._plain, messages, tools, prompt=prompt)[0])

    def _rendered(
        self, template: jinja2.Template, messages: Sequence[Mapping[str, Any]], tools: Any, *, prompt: bool
    ) -> tuple[str, list[Span]]:
        written = self._environment.written = Written()
        values = {"messages": [_with_reasoning(one) for one in messages], "tools": tools, "documents": None}
        pieces = template.generate({**self._variables, **values, "add_generation_prompt": prompt})
        text = "".join(self._counted(written, pieces))
        if not all(text.startswith(generated, start) for start, generated in written.generated):
            raise MisplacedError
        return text, [(start, start + len(generated)) for start, generated in written.generated]

    def _counted(self, written: Written, pieces: Iterator[str]) -> Iterator[str]:
        for piece in pieces:
            written.characters += len(piece)
            if written.characters > self._most:
                raise OutputError
            yield piece


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose reasoning, if it has any, has the names that templates read."""
    found = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return dict(message) if found is None else {"thinking": found, **message, "reasoning_content": found}
