"""The items of a bill: the symbols that costs are formulas in, and `Costs`, which says what each item counts."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import sympy as sp
from sympy import Expr, Integer, symbols

B, T, V, ff, h = symbols("B T V ff h", integer=True, positive=True)
"""Sequences in a batch, tokens in a sequence, entries of the vocabulary, width of an MLP, heads. L layers, width d and
N blocks are those of `algebra`."""


@dataclass(frozen=True)
class Costs:
    """The costs of a model, or of a part of it. All but the parameters are per token, and add up all depth.

    parameters   learned numbers
    forward, backward   FLOPs of products with a matrix, a multiplication and an addition being two of them. Attention
                 counts in full, as if it had no mask. This is what torch's counter sees of the code as it is, if it is
                 told about attention on a CPU and products with a vector (`bench.UNCOUNTED`)
    operations   multiplications and additions along depth in a forward pass, whatever `read` says done as in the plain
                 read. To read one source: its RMS and unit form 3 d, its score 2 d, its share of the mixture d, and d
                 to add that to what is there. To match a detail, once after each write: two RMS and a scaling, 5 d.
                 To write: the detail's sign d, and d for each sum that exists already. Left out: what is one number
                 per token, as in the softmax; the key gain, which meets the query once for all tokens; all that
                 sublayers do, and norms, which PostNorm and DeepNorm put onto the stream, as well
    traffic      vectors of d loaded or stored along depth in a forward pass, if each step (a read, a write, the end of
                 a block) is one pass that loads what it needs and stores what it makes once. A bound for fused code
    saved        numbers kept for the backward pass. What does not grow with the batch is left out
    """

    parameters: Expr = Integer(0)
    forward: Expr = Integer(0)
    backward: Expr = Integer(0)
    operations: Expr = Integer(0)
    traffic: Expr = Integer(0)
    saved: Expr = Integer(0)

    def _each(self, change: Callable[..., Any], *others: "Costs") -> "Costs":
        return Costs(*(change(*(getattr(one, f.name) for one in (self, *others))) for f in fields(self)))

    def __add__(self, other: "Costs") -> "Costs":
        return self._each(lambda ours, theirs: ours + theirs, other)

    def __sub__(self, other: "Costs") -> "Costs":
        return self._each(lambda ours, theirs: sp.expand(ours - theirs), other)

    def at(self, **values: Any) -> "Costs":
        """The costs with values for symbols, given by their names: `formulas("haares").at(L=48, N=4, d=512)`."""

        def put_in(formula: Expr) -> Any:
            formula = formula.subs({s: values[s.name] for s in formula.free_symbols if s.name in values}).doit()
            return int(formula) if formula.is_Integer else formula

        return self._each(put_in)

    def step(self, batch: Any = B, context: Any = T) -> Expr:
        """FLOPs, as in `forward`, of the two passes over a batch of `batch` sequences of `context` tokens."""
        return batch * context * (self.forward + self.backward)
