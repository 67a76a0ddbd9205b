"""Python functions that are declared as tools: imported by their path, under the definition of the resource."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from foliot.engine.definition.freeze import tool_definition
from foliot.engine.definition.grants import OperatorGrants
from foliot.errors import Denied, InvalidDefinition, InvalidInput, NotHere
from foliot.store.base import Document
from foliot.tools.base import ToolDenied
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
        if not document["metadata"].get("declaredBy"):
            # Stored before declarers were kept: work that was accepted then waits, instead of being given up.
            hint = "apply it once more, unchanged is enough; `foliot doctor` lists all resources without a declarer"
            raise NotHere(denied.message, hint=hint, lacks=f"a declarer of Tool/{name}") from None
        raise ToolDenied(denied.message, hint=denied.hint, layer="deployment", tool=name) from None
    try:
        declared, made = tool_definition(document), tool(name=name)(function)
    except InvalidInput as error:
        raise InvalidDefinition(error.message, hint=error.hint, **error.details) from None
    # Everything that is declared holds, above all what rules go by: operation classes, capabilities, limits.
    whole = replace(
        declared,
        description=declared.description or made.definition.description,
        schema=made.definition.schema if declared.schema is None else declared.schema,
    )
    return made.with_definition(whole)


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
