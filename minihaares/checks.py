"""Checks for exercises: compare an answer with what was expected and say, in a sentence, what differs.

    from minihaares import checks
    checks.close(my_norm(x), expected, "The mean runs over the channels of one token.")

Each function returns nothing if all is well and raises AssertionError otherwise. The hint is the exercise's own
sentence: what the likely mistake is, or where to look again. Needs torch and sympy, and nothing else of the package.
"""

import dis
from collections.abc import Callable, Iterable, Iterator
from inspect import getmodule, isclass
from random import Random
from types import CodeType, ModuleType
from typing import Any

import sympy as sp
import torch
from torch import Tensor

POINTS, DIGITS = 12, 30  # where and how exactly two formulas are compared


def _fail(what: str, hint: str) -> None:
    raise AssertionError(f"{what} {hint}".strip())


def _not_nothing(answer: Any, hint: str) -> None:
    if answer is None:
        _fail("The answer is None: does your function end in `return …`?", hint)


def equal(answer: Any, expected: Any, hint: str = "") -> None:
    """`answer == expected`, for plain values: numbers that are exact, texts, lists, dicts."""
    if expected is not None:
        _not_nothing(answer, hint)
    if isinstance(answer, Tensor):
        answer = answer.tolist()
    if type(answer) in (list, tuple) and type(expected) in (list, tuple):
        answer, expected = list(answer), list(expected)
    if answer != expected:
        _fail(f"The answer is {_short(answer)}; expected was {_short(expected)}.", hint)


def close(answer: Any, expected: Any, hint: str = "", relative: float = 1e-6, absolute: float = 1e-9) -> None:
    """Numbers, arrays or tensors of one shape that agree within the tolerances; also lists or tuples of them."""
    _not_nothing(answer, hint)
    if isinstance(expected, (list, tuple)) and not isinstance(answer, Tensor):
        if len(answer) != len(expected):
            _fail(f"The answer has {len(answer)} parts; expected were {len(expected)}.", hint)
        for place, (a, e) in enumerate(zip(answer, expected, strict=True)):
            close(a, e, f"(Part {place}, counted from 0.) {hint}", relative, absolute)
        return
    try:
        ours, theirs = (_array(x) for x in (answer, expected))
    except (TypeError, ValueError, RuntimeError):
        _fail(f"The answer is {_short(answer)}, which is not a number or an array of numbers.", hint)
    if ours.shape != theirs.shape:
        _fail(f"The answer has shape {list(ours.shape)}; expected was {list(theirs.shape)}.", hint)
    if not ours.numel():
        return
    strange = ~torch.isfinite(ours) & torch.isfinite(theirs)
    if strange.any():
        _fail(f"The answer holds {ours[strange][0].item()} where a number was expected.", hint)
    off = torch.where(ours == theirs, 0.0, (ours - theirs).abs() - absolute - relative * theirs.abs())
    if off.max() > 0:
        worst = [int(i) for i in torch.unravel_index(off.argmax(), off.shape)]
        where = f" at index {worst}" if worst else ""
        index = tuple(worst)
        _fail(f"The answer is {ours[index].item():.6g}{where}; expected was {theirs[index].item():.6g}.", hint)


def same_function(mine: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Any, hint: str = "") -> None:
    """Equal outputs and equal gradients with respect to every floating-point tensor among the inputs."""
    results = []
    for function in (mine, reference):
        fresh = [x.detach().clone().requires_grad_(x.is_floating_point()) if _tensor(x) else x for x in inputs]
        output = function(*fresh)
        _not_nothing(output, hint)
        if not isinstance(output, Tensor):
            _fail(f"The answer is {_short(output)}, which is not a tensor.", hint)
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        leaves = [x for x in fresh if _tensor(x) and x.requires_grad]
        gradients = None
        if leaves and output.requires_grad:
            gradients = torch.autograd.grad(output, leaves, direction.to(output), allow_unused=True)
        results.append((output, gradients))
    (output, ours), (expected, theirs) = results
    close(output, expected, hint)
    if theirs is None:
        return
    if ours is None:
        _fail("The values are right, but no gradient flows: is something detached, or turned into plain numbers?", hint)
    for place, (a, e) in enumerate(zip(ours, theirs, strict=True)):
        zero = torch.zeros_like([x for x in inputs if _tensor(x) and x.is_floating_point()][place])
        close(
            zero if a is None else a,
            zero if e is None else e,
            f"(The values are right; this is the gradient with respect to tensor input {place}.) {hint}",
            absolute=1e-8,
        )


def same_formula(answer: Any, expected: sp.Expr, hint: str = "") -> None:
    """Two sympy expressions that are the same function of the same symbols, in whatever form they are written.

    Symbols are matched by name. The two are compared at twelve points of positive fractions, to thirty digits: for
    what is made of the usual functions, no wrong formula agrees with the right one at all of them by luck.
    """
    _not_nothing(answer, hint)
    try:
        ours = sp.sympify(answer)
    except (sp.SympifyError, TypeError):
        _fail(f"The answer is {_short(answer)}, which is not a sympy expression.", hint)
    if not isinstance(ours, sp.Expr):
        _fail(f"The answer is {_short(answer)}, which is not a sympy expression.", hint)
    by_name = {symbol.name: symbol for symbol in expected.free_symbols}
    foreign = sorted(symbol.name for symbol in ours.free_symbols if symbol.name not in by_name)
    # A symbol may cancel out, as in x - x; only then is it no fault that the expected formula lacks it.
    if foreign and sorted(s.name for s in sp.simplify(ours).free_symbols if s.name not in by_name):
        known = ", ".join(sorted(by_name)) or "no symbols at all"
        _fail(f"The answer speaks of {', '.join(foreign)}; the expected one is made of {known}.", hint)
    off = 10.0 ** (-12 if ours.has(sp.Float) else 5 - DIGITS)  # whoever writes 0.5 for 1/2 has the digits of a float
    dice = Random(0)
    for _ in range(POINTS):
        point = {name: sp.Rational(dice.randint(1, 60), dice.randint(1, 20)) for name in sorted({*by_name, *foreign})}
        a, e = (
            expression.subs({symbol: point[symbol.name] for symbol in expression.free_symbols}).evalf(DIGITS)
            for expression in (ours, expected)
        )
        if not a.is_number or not a.is_finite or abs(a - e) > off * (1 + abs(e)):
            at = ", ".join(f"{name} = {value}" for name, value in point.items())
            _fail(f"At {at} the answer is {sp.N(a, 6)}; expected was {sp.N(e, 6)}.", hint)


def own_work(thing: Any, without: Iterable[str] = (), allowed: Iterable[str] = (), hint: str = "") -> None:
    """The code of a function or class calls nothing named in `without` and nothing of minihaares but the `allowed`."""
    functions = [part for part in vars(thing).values() if hasattr(part, "__code__")] if isclass(thing) else [thing]
    for function in functions:
        for instruction in _instructions(function.__code__):
            name, borrowed = instruction.argval, False
            if instruction.opname == "IMPORT_NAME":
                borrowed = _packaged(name)
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found = function.__globals__.get(name)
                borrowed = _packaged(
                    getattr(found if isinstance(found, ModuleType) else getmodule(found), "__name__", "")
                )
            elif instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
                continue  # a local variable or a text may be called as it likes
            if name in without or (borrowed and name not in allowed):
                _fail(f"The answer calls {name}; writing that yourself is the task.", hint)


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _array(x: Any) -> Tensor:
    return torch.as_tensor(float(x) if isinstance(x, sp.Basic) else x).detach().to(torch.float64)


def _packaged(module: str) -> bool:
    return module.partition(".")[0] == "minihaares" and module != __name__


def _tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
