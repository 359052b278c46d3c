"""Rewrites a parsed template so that it marks the text that the template itself writes: its constants, the strings of
special tokens that it gets as variables, and the roles that it or datakit names.

Only values that go into the output and nowhere else are marked. No condition, filter, function, macro or captured block
reads them, so the text without its marks is exactly the text of the original template. What a template writes in other
ways (out of a macro, for example) is not marked; second_look.py then finds out whose text it is.

Cost: a few milliseconds for each template, and two characters for each value that is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jinja2
from jinja2 import nodes

from datakit.tokenize.templates.marks import OTHER, OWN

ROLES = (
    "system", "developer", "user", "assistant", "tool", "function", "model", "ipython", "observation", "environment",
    "tool_call", "tool_response", "function_call", "function_response", "human", "gpt", "bot", "context", "documents",
)  # fmt: skip
OWN_TEXT, OWN_ROLE = "own text", "own role"  # filters that no template can name


def own(text: Any) -> Any:
    """Return a text between marks. Other values, and "", are returned as they are."""
    return f"{OWN}{text}{OTHER}" if isinstance(text, str) and text else text


def constants_of(tree: nodes.Template) -> frozenset[str]:
    """Return the strings in a template's expressions, and the names of the fields that it reads."""
    found = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(found | {node.attr for node in tree.find_all(nodes.Getattr)})


def mark_own_text(tree: nodes.Template, variables: frozenset[str]) -> None:
    """Rewrite a template. variables: the names of the variables that hold strings of special tokens."""
    stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    written = _written_names(tree)
    for expression in _outputs(tree.body, written):
        for node in _parts(expression):
            _mark(node, variables - stored)


def _mark(node: Any, variables: frozenset[str]) -> None:
    if isinstance(node, nodes.TemplateData):
        node.data = own(node.data)
    elif isinstance(node, nodes.Const):
        node.value = own(node.value)
    elif isinstance(node, (nodes.Add, nodes.Concat, nodes.Output, nodes.CondExpr, nodes.Assign)):
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, field, [_filtered(one, variables) for one in value])
            elif isinstance(value, nodes.Expr) and field not in ("test", "target"):
                setattr(node, field, _filtered(value, variables))


def _filtered(node: Any, variables: frozenset[str]) -> Any:
    """Return a filter that marks the value of an expression, if this is a variable or a role; otherwise, the node."""
    name = OWN_TEXT if isinstance(node, nodes.Name) and node.name in variables else OWN_ROLE if _is_role(node) else ""
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno) if name else node


def _is_role(node: Any) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "role"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "role"


def _outputs(body: list[Any], written: frozenset[str]) -> Iterator[Any]:
    """Yield the statements that write output, or set a variable in `written`, outside of what captures its output."""
    for node in body:
        if isinstance(node, nodes.Output) or (isinstance(node, nodes.Assign) and _target(node) in written):
            yield node
        elif isinstance(node, nodes.If):
            yield from _outputs([*node.body, *node.elif_, *node.else_], written)
        elif isinstance(node, nodes.For) and not node.recursive:
            yield from _outputs([*node.body, *node.else_], written)
        elif isinstance(node, nodes.CallBlock) and isinstance(node.call.node, nodes.ExtensionAttribute):
            yield from _outputs(node.body, written)  # the tag `generation`


def _target(node: nodes.Assign) -> str | None:
    return node.target.name if isinstance(node.target, nodes.Name) else None


def _parts(node: Any) -> Iterator[Any]:
    """Yield a statement or expression, and the expressions whose values become parts of its value."""
    yield node
    if isinstance(node, (nodes.Output, nodes.Concat)):
        inner: list[Any] = node.nodes
    elif isinstance(node, nodes.Add):
        inner = [node.left, node.right]
    elif isinstance(node, nodes.CondExpr):
        inner = [one for one in (node.expr1, node.expr2) if one is not None]
    else:
        inner = [node.node] if isinstance(node, nodes.Assign) else []
    for one in inner:
        yield from _parts(one)


def _written_names(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that are set to expressions, and of which every use becomes a part of the output."""
    found = frozenset(name for node in tree.find_all(nodes.Assign) if (name := _target(node)) is not None)
    loads = [id(node) for node in tree.find_all(nodes.Name) if node.ctx == "load" and node.name in found]
    names = {id(node): node.name for node in tree.find_all(nodes.Name)}
    while True:
        parts = (node for one in _outputs(tree.body, found) for node in _parts(one))
        safe = {id(node) for node in parts if isinstance(node, nodes.Name)}
        left = found - {names[one] for one in loads if one not in safe}
        if left == found:
            return found
        found = left


def filters_of(constants: frozenset[str]) -> dict[str, Any]:
    """Return the filters of a rewritten template. A role is marked if the template or datakit names it."""
    known = constants | {*ROLES}
    return {OWN_TEXT: own, OWN_ROLE: lambda role: own(role) if isinstance(role, str) and role in known else role}


def compiled_tree(environment: jinja2.Environment, tree: nodes.Template) -> jinja2.Template:
    """Compile a rewritten template."""
    tree.set_environment(environment)
    return environment.from_string(tree)
