"""The checks of exercises accept what is right in any form, and say of everything else what is wrong with it."""

import numpy as np
import pytest
import sympy as sp
import torch
from torch import nn

from minihaares import checks, depth_read
from minihaares.checks import close, equal, own_work, same_formula, same_function
from minihaares.depth_read import mix

x, y = sp.symbols("x y", positive=True)
SQUARE = [[1.0, 2.0], [3.0, 4.0]]


def said(check, *arguments, **options) -> str:
    """What a check that must fail says."""
    with pytest.raises(AssertionError) as caught:
        check(*arguments, **options)
    return str(caught.value)


def test_equal_values_pass():
    equal([1, 2], (1, 2))
    equal(torch.tensor([[1, 2]]), [[1, 2]])
    equal(None, None)
    equal({"a": 1}, {"a": 1})


def test_unequal_values_are_named():
    assert said(equal, [1, 3], [1, 2], "Count again.") == "The answer is [1, 3]; expected was [1, 2]. Count again."
    assert "does your function end in `return" in said(equal, None, 4)
    assert len(said(equal, list(range(1000)), [1])) < 200


@pytest.mark.parametrize(
    "answer", [SQUARE, np.array(SQUARE), torch.tensor(SQUARE, requires_grad=True), torch.tensor(SQUARE).half()]
)
def test_arrays_of_every_kind_are_compared(answer):
    close(answer, torch.tensor(SQUARE))
    assert said(close, answer, torch.tensor([[1.0, 2.0], [3.0, 5.0]]), "Look at F.") == (
        "The answer is 4 at index [1, 1]; expected was 5. Look at F."
    )


def test_close_is_close_and_not_equal():
    close(1.0 + 1e-7, 1.0)
    close(torch.tensor([float("inf"), 1.0]), [float("inf"), 1.0])
    close(sp.Rational(1, 2), 0.5)
    close([torch.ones(2), 3.0], [np.ones(2), 3])
    close(torch.zeros(0), torch.zeros(0))
    close(1.05, 1.0, absolute=0.1)
    assert "is 1.00001; expected was 1." in said(close, 1.00001, 1.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "end in `return"),
        ([1.0], "shape [1]; expected was [2, 2]"),
        ("four", "not a number"),
        (x, "not a number"),
        ([[1.0, float("nan")], [3.0, 4.0]], "holds nan where a number"),
        ([[1.0, float("-inf")], [3.0, 4.0]], "holds -inf where a number"),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(answer, words: str):
    assert words in said(close, answer, torch.tensor(SQUARE))


def test_parts_are_counted():
    assert "has 1 parts; expected were 2" in said(close, [1.0], [1.0, 2.0])
    assert "(Part 1, counted from 0.)" in said(close, [1.0, 3.0], [1.0, 2.0])


def test_functions_are_compared_with_their_gradients():
    def detached(t):
        return t * t.detach() + t.square().detach() - t.detach() ** 2

    t = torch.tensor([1.0, -2.0], dtype=torch.float64)
    same_function(lambda t: t.square(), lambda t: t * t, t)
    same_function(lambda t, n: t**n, lambda t, n: t * t, t, 2)
    assert "this is the gradient" in said(same_function, detached, lambda t: t * t, t)
    assert "no gradient flows" in said(same_function, lambda t: t.detach() ** 2, lambda t: t * t, t)
    assert "The answer is -2" in said(same_function, lambda t: t, lambda t: t.abs(), -t.abs())
    assert "end in `return" in said(same_function, lambda t: None, lambda t: t, t)
    assert "not a tensor" in said(same_function, lambda t: 1.0, lambda t: t, t)


def test_the_inputs_are_left_alone():
    t = torch.ones(2, dtype=torch.float64)
    same_function(lambda t: t.clone().mul_(2), lambda t: 2 * t, t)
    assert not t.requires_grad and t.tolist() == [1, 1]


RIGHT_FORMS = [
    (x + y) ** 2,
    x**2 + 2 * x * y + y**2,
    "x**2 + y*(2*x + y)",
    sp.exp(2 * sp.log(x + y)),
    (x**3 + y * x**2 * 2 + x * y**2) / x,
]


@pytest.mark.parametrize("form", RIGHT_FORMS, ids=str)
def test_every_form_of_a_formula_is_right(form):
    same_formula(form, (x + y) ** 2)


def test_symbols_are_matched_by_name_and_may_cancel():
    same_formula(sp.Symbol("x") * 2, 2 * x)
    same_formula(sp.Symbol("z") - sp.Symbol("z") + x, x)
    same_formula(0.5 * x, x / 2)
    same_formula(3, sp.Integer(3))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (x**2 + y**2, "At x = "),
        (x + y + sp.Rational(1, 10**9), "expected was"),
        (x + sp.Symbol("q"), "speaks of q; the expected one is made of x, y"),
        (sp.Eq(x, y), "not a sympy expression"),
        (None, "end in `return"),
        ("x +* y", "not a sympy expression"),
        (sp.log(x - x), "the answer is"),
    ],
)
def test_a_wrong_formula_is_shown_where_it_is_wrong(answer, words: str):
    assert words in said(same_formula, answer, x + y)


class Borrowed(nn.Module):
    def forward(self, weights, sources):
        return mix(weights, sources)


class Own(nn.Module):
    def forward(self, weights, sources):
        return sum(w * v for w, v in zip(weights, sources, strict=True))


def borrowed(weights, sources):
    def inside():
        return depth_read.mix(weights, sources)

    return inside()


def imported(weights, sources):
    from minihaares.depth_read import mix as mine

    return mine(weights, sources)


def namesake(record):
    softmax = record.mix  # an attribute and a variable that happen to be called like something
    return softmax, "softmax"


def test_borrowed_work_is_seen():
    own_work(Own)
    own_work(borrowed, allowed=("depth_read",))
    assert "calls mix" in said(own_work, Borrowed)
    own_work(namesake, without=("softmax",))
    assert "calls depth_read" in said(own_work, borrowed)
    assert "calls minihaares.depth_read" in said(own_work, imported)
    assert "calls softmax" in said(own_work, lambda z: z.softmax(-1), without=("softmax",))
    own_work(lambda z: checks.close(z, z))  # the checks themselves are no part of an answer
