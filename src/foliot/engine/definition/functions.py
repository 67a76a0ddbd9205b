"""Python functions that are declared as tools: imported by their path, under the definition of the resource.

One that runs in a fence is never imported here: to import a module is to run it. Its signature is read from its source.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal, Optional, Union

from foliot.engine.definition.freeze import tool_definition
from foliot.engine.definition.grants import OperatorGrants, not_granted
from foliot.errors import Denied, InvalidDefinition, InvalidInput, NotHere
from foliot.resources.powers import declared_by_operator
from foliot.store.base import Document
from foliot.tools.backends.fenced_function import FencedCode, with_code
from foliot.tools.base import Invocation, ToolDefinition
from foliot.tools.function import FunctionTool, tool


def function_tool(document: Document, grants: OperatorGrants) -> FunctionTool:
    """The function of a Tool resource; what that leaves open comes from the signature.

    Raises `InvalidInput`, and `ToolDenied` for a function that was not granted to whoever declared the tool; `NotHere`
    when nobody knows who did.
    """
    name, path = document["metadata"]["name"], document["spec"]["function"]
    try:
        # Before anything is imported: to import a module is to run it.
        grants.check_function(document, path)
        function = _imported(path, name)
        # And where it was written: `desk:getcwd` may be a function that the module desk only imports.
        grants.check_module(document, str(getattr(function, "__module__", None)))
    except Denied as denied:
        raise not_granted(document, denied) from None
    try:
        declared, made = tool_definition(document), tool(name=name)(function)
    except InvalidInput as error:
        raise InvalidDefinition(error.message, hint=error.hint, **error.details) from None
    return made.with_definition(_completed(declared, made.definition))


def fenced_definition(document: Document, grants: OperatorGrants) -> ToolDefinition:
    """The definition of a function that runs in a fence. Nothing of it is imported here.

    What the resource leaves open comes from the source, as far as that tells. Raises as `function_tool`.
    """
    path = document["spec"]["function"]
    try:
        grants.check_function(document, path)
    except Denied as denied:
        raise not_granted(document, denied) from None
    root, source = _source(path, document["metadata"]["name"])
    check = None if declared_by_operator(document) else partial(_check_module, document, grants)
    declared = with_code(tool_definition(document), FencedCode(path, root, check))
    if source is None:
        return declared
    try:
        stub = _signature(source, path.partition(":")[2])
        return _completed(declared, tool(name=declared.name)(stub).definition) if stub is not None else declared
    except InvalidInput as error:
        raise InvalidDefinition(error.message, hint=error.hint, **error.details) from None


def _check_module(document: Document, grants: OperatorGrants, module: str) -> None:
    try:
        grants.check_module(document, module)
    except Denied as denied:
        raise not_granted(document, denied) from None


def _completed(declared: ToolDefinition, found: ToolDefinition) -> ToolDefinition:
    """Everything that is declared holds, above all what rules go by: operation classes, capabilities, limits."""
    return replace(
        declared,
        description=declared.description or found.description,
        schema=found.schema if declared.schema is None else declared.schema,
    )


def _imported(path: str, name: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    module: ModuleType | None = None
    try:
        module = import_module(module_name)
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        hint = "the module must be installed, or on PYTHONPATH, where the run is driven"
        if module is not None:
            hint = f"it was imported from {getattr(module, '__file__', None)}; a module of your own needs another name"
        raise NotHere(
            f"the function of tool {name!r} cannot be imported: {path}: {error}",
            hint=hint,
            lacks=f"module {module_name}" if isinstance(error, ImportError) else f"function {path}",
        ) from error
    except (Exception, SystemExit) as error:  # the module is somebody else's, and anything can be wrong in it
        raise NotHere(
            f"the function of tool {name!r} cannot be imported: {path}: {type(error).__name__}: {error}",
            hint=f"`python -c 'import {module_name}'` shows where",
            lacks=f"module {module_name}, which breaks when it is imported,",
        ) from error
    if isinstance(found, FunctionTool):
        return found.function
    if not callable(found):
        raise InvalidDefinition(f"tool {name!r}: {path} is not a function")
    return found


# --- signatures that are read and not imported ----------------------------------------------------------------------

# The types of parameters that are known without running anything. Every other one is shown as any value, and checked
# inside.
_KNOWN: Final[dict[str, Any]] = {
    **{kind.__name__: kind for kind in (str, int, float, bool, bytes, list, dict, tuple, set, frozenset)},
    "Any": Any,
    "Literal": Literal,
    "Optional": Optional,
    "Union": Union,
    "Annotated": Annotated,
    "Invocation": Invocation,
    "List": list,
    "Dict": dict,
}
_ANY: Final = ast.Name("Any", ast.Load())


def _source(path: str, name: str) -> tuple[str, Path | None]:
    """The folder that the outermost module lies in, empty for one of Python's own, and the source. Raises `NotHere`."""
    module_name = path.partition(":")[0]
    outermost, *inner = module_name.split(".")
    try:
        spec = find_spec(outermost)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise NotHere(
            f"the function of tool {name!r} cannot be found: {path}: no module named {outermost!r}",
            hint="the module must be installed, or on PYTHONPATH, where the run is driven",
            lacks=f"module {module_name}",
        )
    folders = [Path(each).absolute() for each in spec.submodule_search_locations or ()]
    if not folders and not spec.has_location:
        return "", None
    place = folders[0] if folders else Path(spec.origin or "").absolute()
    for file in (place.joinpath(*inner, "__init__.py"), place.joinpath(*inner).with_suffix(".py")):
        if file.is_file():
            return os.fspath(place.parent), file
    return os.fspath(place.parent), None


def _signature(file: Path, name: str) -> Callable[..., Any] | None:
    """A function with the parameters and the docstring of one in a file, and nothing else of it.

    None when it is not written there.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return None
    written = [
        each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name
    ]
    if not written:
        return None
    arguments = written[-1].args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        each.annotation = _plain(each.annotation) if each.annotation is not None else None
    for each in (arguments.vararg, arguments.kwarg):
        if each is not None:
            each.annotation = None
    arguments.defaults = [_constant(each) for each in arguments.defaults]
    arguments.kw_defaults = [each and _constant(each) for each in arguments.kw_defaults]
    said = ast.get_docstring(written[-1]) or ""
    stub = ast.FunctionDef(name, arguments, [ast.Expr(ast.Constant(said))], [])
    # Constants, and names of `_KNOWN`: nothing that is run here was written by somebody else.
    found: dict[str, Any] = {"__builtins__": {}, **_KNOWN}
    exec(compile(ast.fix_missing_locations(ast.Module([stub], [])), "<signature>", "exec"), found)
    return found[name]


def _plain(node: ast.expr) -> ast.expr:
    """The type as far as it is known, and any value for the rest."""
    match node:
        case ast.Constant(value=str(text)):
            try:
                return _plain(ast.parse(text, mode="eval").body)
            except (SyntaxError, ValueError, RecursionError):
                return _ANY
        case ast.Constant(value=None):
            return node
        case ast.Name(id=known) if known in _KNOWN:
            return node
        case ast.Attribute(value=ast.Name(id="typing"), attr=known) if known in _KNOWN:
            return ast.Name(known, ast.Load())
        case ast.BinOp(op=ast.BitOr()):
            return ast.BinOp(_plain(node.left), ast.BitOr(), _plain(node.right))
        case ast.Subscript():
            return _subscript(node)
        case _:
            return _ANY


def _subscript(node: ast.Subscript) -> ast.expr:
    base = _plain(node.value)
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    plain: list[ast.expr]
    match base:
        case ast.Name(id="Literal"):
            plain = [each for each in inner if isinstance(each, ast.Constant)]
            if len(plain) != len(inner):
                return _ANY
        case ast.Name(id="Annotated"):
            plain = [_plain(inner[0]), *(each for each in inner[1:] if isinstance(each, ast.Constant))]
            if len(plain) == 1:
                return plain[0]
        case ast.Name(id="Any" | "Invocation"):
            return _ANY
        case ast.Name():
            plain = [each if _is_ellipsis(each) else _plain(each) for each in inner]
        case _:
            return _ANY
    return ast.Subscript(base, ast.Tuple(plain, ast.Load()) if len(plain) > 1 else plain[0], ast.Load())


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _constant(node: ast.expr) -> ast.expr:
    """A default as it is written, if it is a constant; else None: it is shown as a parameter that may be left out."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.Constant(None)
    return node
