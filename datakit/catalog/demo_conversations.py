"""A transform for the recipe `demo-sft`, and an example to copy: makes conversations from the documentation in Python
code. Each public function or class whose documentation has a first paragraph of some length becomes one conversation:
what it does, and how it is called.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator

import pyarrow as pa

from datakit.tokenize.chat import with_text

FEWEST, MOST = 40, 600  # characters of an answer
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def questions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the conversations about the modules in a batch, each with a text for dedup. Code that this Python cannot
    parse has none.
    """
    modules = zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
    found = [conversation for path, code in modules for conversation in _conversations(path, code)]
    return with_text(pa.record_batch({"messages": pa.array(found, MESSAGES)}))


def _conversations(path: str, code: bytes) -> Iterator[list[dict[str, str]]]:
    try:
        with warnings.catch_warnings(action="ignore"):  # old escapes in strings
            tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for name, node in _documented(tree):
        answer = " ".join(inspect.cleandoc(ast.get_docstring(node) or "").partition("\n\n")[0].split())
        if FEWEST <= len(answer) <= MOST:
            yield _turns(f"{module}.{name}", answer, node)


def _documented(tree: ast.Module) -> Iterator[tuple[str, Documented]]:
    """Yield the public functions and classes of a module, and the public methods of its classes."""
    for node in tree.body:
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, Documented) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


def _turns(name: str, answer: str, node: Documented) -> list[dict[str, str]]:
    turns = [("user", f"What does {name} do?"), ("assistant", answer)]
    if not isinstance(node, ast.ClassDef):
        turns += [("user", "How is it called?"), ("assistant", f"{name}({ast.unparse(node.args)})")]
    return [{"role": role, "content": content} for role, content in turns]
