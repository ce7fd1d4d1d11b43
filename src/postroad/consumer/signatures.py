"""Checks the signature of a handler when it is registered. Pure."""

from __future__ import annotations

import inspect
import sys
import types
from typing import TYPE_CHECKING, Annotated, Any, Final, ForwardRef, Union, get_args, get_origin

from postroad.errors import InvalidSetting, UnsupportedConnection
from postroad.received import Received
from postroad.stores.connections.kinds import adapter_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["annotation_of", "check_signature", "is_async_function", "name_of", "signature_of"]

SINGLE: Final = ("event", "tx", "message")
BATCH: Final = ("batch", "tx")


def check_signature(function: Callable[..., Any], events: Sequence[type], *, batch: bool = False) -> None:
    """Refuse a function that can't be called with an event, a transaction and a message, or with a batch and a
    transaction; or whose annotations don't fit these. Raises InvalidSetting.
    """
    names = BATCH if batch else SINGLE
    _check_body(function)
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):  # some functions of C have none
        return
    shown = f"{name_of(function)}({', '.join(map(_bare, signature.parameters.values()))})"
    try:
        bound = signature.bind(*names)
    except TypeError as error:
        raise InvalidSetting(
            f"handler {shown} can't be called with {len(names)} arguments: {error}; {_right(names)}"
        ) from None
    parameters = list(bound.arguments)[: len(names)]
    if sorted(parameters) == sorted(names) and tuple(parameters) != names:
        raise InvalidSetting(f"handler {shown} has its parameters in another order; {_right(names)}")
    annotations = {name: annotation_of(signature.parameters[name], function) for name in parameters}
    kinds = [annotations.get(name) for name in parameters]
    if len(kinds) != len(names):  # *args
        return
    clash = _clash_of_batch(kinds, events) if batch else _clash(kinds, events)
    clash = clash or _clash_of_transaction(kinds[1], is_async=is_async_function(function))
    if clash is not None:
        raise InvalidSetting(f"handler {shown}: {clash}; {_right(names)}")


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Its signature. From Python 3.14 on, `inspect.signature` alone would evaluate annotations, and raise NameError for
    a name that is there for type checkers only; such an annotation is a ForwardRef here.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def is_async_function(function: Any) -> bool:
    """Whether calling it returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself is wanted, not whether there is one
    )


def name_of(function: Any) -> str:
    """A function's name, for error messages."""
    name = getattr(function, "__qualname__", None)
    return str(name) if name is not None else type(function).__qualname__


def _bare(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def _right(names: Sequence[str]) -> str:
    return f"a handler takes ({', '.join(names)})"


def _check_body(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"handler {name_of(function)} has a yield, so calling it would run nothing of it")


def _clash(kinds: Sequence[Any], events: Sequence[type]) -> str | None:
    event, tx, message = kinds
    for cls in events:
        if _can_be(cls, event) is False:
            return f"its first parameter is annotated with {_shown(event)}, and it is registered for {_shown(cls)}"
    if _can_be(Received, message) is False:
        return f"its third parameter is annotated with {_shown(message)}, and is given a Received"
    if tx is Received or tx in events:
        return f"its second parameter is annotated with {_shown(tx)}, and is given the transaction"
    return None


def _clash_of_batch(kinds: Sequence[Any], events: Sequence[type]) -> str | None:
    batch, tx = kinds
    if batch is Received or batch in events:
        return (
            f"its first parameter is annotated with {_shown(batch)}, and is given a sequence of pairs, (event, message)"
        )
    if tx is Received or tx in events:
        return f"its second parameter is annotated with {_shown(tx)}, and is given the transaction"
    return None


def _clash_of_transaction(annotation: Any, *, is_async: bool) -> str | None:
    """Whether an async handler is annotated with a sync transaction, or the other way round."""
    cls: Any = get_origin(annotation) or annotation
    if not inspect.isclass(cls):
        return None
    wanted: type = cls
    try:
        adapter = adapter_for(wanted)
    except UnsupportedConnection:
        return None
    if adapter.is_async == is_async:
        return None
    kind, other = ("async def", "a sync") if is_async else ("def", "an async")
    return f"it is `{kind}`, and its transaction is annotated with {_shown(annotation)}, {other} one"


def annotation_of(parameter: inspect.Parameter, function: Any) -> Any:
    """A parameter's annotation; None when there is none, or it can't be evaluated here."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        namespace = getattr(inspect.unwrap(function), "__globals__", {})
        try:
            annotation = eval(annotation, namespace)  # noqa: S307 - as typing.get_type_hints does
        except Exception:  # it may be there for type checkers only
            return None
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return None if annotation is inspect.Parameter.empty or isinstance(annotation, ForwardRef) else annotation


def _can_be(cls: type, annotation: Any) -> bool | None:
    """Whether objects of a class fit the annotation; None when that can't be known."""
    if get_origin(annotation) in (Union, types.UnionType):
        answers = [_can_be(cls, each) for each in get_args(annotation)]
        return True if True in answers else None if None in answers else False
    wanted = get_origin(annotation) or annotation
    if wanted is Any or not inspect.isclass(wanted):  # from Python 3.11 on Any is a class
        return None
    try:
        return issubclass(cls, wanted)
    except TypeError:  # a TypedDict, some protocols
        return None


def _shown(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)
