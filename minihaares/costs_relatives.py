"""What the relatives cost on paper, beside a PreNorm backbone: one function a method, counted as `ledger.Costs` says.

Formulas are in L layers and width d (Delta's in N blocks as well); a method's own sizes, such as its streams, are
numbers, from its options. Two things more than at the fields of `Costs`:

    operations   every product with a matrix or a weight, and what is done element by element to vectors of d: sums, the
                 square and mean of an RMS 2 d, a norm along depth 4 d (with its gain; VWN's GroupNorm 7 d). Left out is
                 element-by-element work on weights, as in tanh, GELU, softmax and Sinkhorn: it does not grow with d,
                 though at small d it is not small
    saved        what the code here keeps, op by op; each function lists it. A method's authors may keep less
"""

from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy import Expr, Integer, Rational, floor

from .algebra import L, N, d
from .ledger import Costs

i = sp.Symbol("i", integer=True, positive=True)  # a layer


def products(multiply_adds: Expr) -> dict[str, Expr]:
    """FLOPs of products with so many multiply-adds, if both factors get their gradients by a product."""
    return {"forward": 2 * multiply_adds, "backward": 4 * multiply_adds}


def hires(options: Any, events: int | None = None) -> Costs:
    """G groups of g layers and a stream of D channels: G + 1 maps down, G up, one for the input unless it is padded."""
    ratio = sp.nsimplify(options.ratio)
    D, groups = ratio * d, L / options.layers_per_group
    linear, delta = int(options.input == "linear"), int(options.write == "delta")
    maps = d * D * (2 * groups + 1 + linear)
    # Kept: the embedding for its map, what each write takes, X_j for its read, and X_j before its norm, with a scalar.
    saved = linear * d + groups * d + (groups + 1) * D + groups * (D + 1)
    return Costs(
        parameters=maps + groups * D,
        **products(maps),
        operations=2 * maps + 2 * L * d + groups * (5 * D + delta * d),
        traffic=6 * L + groups * (2 * ratio + delta) + ratio + 2,  # a group's end: X in and out, and y − h needs h
        saved=saved,
    )


def denseformer(options: Any, events: int | None = None) -> Costs:
    """A mixture behind every p-th layer; that behind layer i weighs floor(i / dilation) + 1 states."""
    p, mixtures = options.period, floor(L / options.period)
    if options.dilation == 1:
        weighed = p * mixtures * (mixtures + 1) / 2 + mixtures
    else:
        weighed = sp.Sum(floor(i * p / options.dilation) + 1, (i, 1, mixtures))
    return Costs(
        parameters=weighed,
        operations=2 * L * d + d * (2 * weighed - mixtures),
        traffic=6 * L + weighed,  # the newest state is at hand, and is stored besides the mixture
        saved=mixtures * d,  # X_i, where it isn't the next norm's input anyhow
    )


def muddformer(options: Any, events: int | None = None) -> Costs:
    """Behind layer i, C mixtures of i + 1 states by an MLP of C (i + 1) units: C = 4, and 1 behind the last layer."""
    prepost = int(options.prepost)

    def behind(ways: int) -> Costs:
        units, mixed = ways * (i + 1), ways * (i + 1) * d
        # Kept: X_i, 1 / RMS, and four times as many numbers as units: before the norm, before and after GELU, weights.
        # Before the outer norm and after it, and its scalars.
        return Costs(
            parameters=units * d + units**2 + units + prepost * ways * d,
            **products(units * d + units**2 + mixed),
            operations=2 * (units * d + units**2 + mixed) + 2 * d + prepost * 5 * ways * d,
            traffic=i + 1 + ways + prepost,
            saved=d + 1 + 4 * units + prepost * ways * (2 * d + 1),
        )

    def up_to_the_last(formula: Expr) -> Expr:
        """The sum for i = 1 … L − 1 of a polynomial in i, by its powers: sympy.summation takes ten times as long."""
        sums = (L - 1, (L - 1) * L / 2, (L - 1) * L * (2 * L - 1) / 6)
        return sum(sp.expand(formula).coeff(i, k) * power for k, power in enumerate(sums))

    total = behind(4)._each(up_to_the_last) + behind(1)._each(lambda formula: formula.subs(i, L))
    # Attention that reads a triple norms three inputs and keeps them, beside the stream, which lies in one storage with
    # them; it does not keep its queries and keys from before they are turned.
    triples = Costs(saved=(L - 1) * (3 * d + 2))
    normed = Costs(parameters=(L + 1) * d, operations=4 * (L + 1) * d, traffic=L + 2, saved=(L + 1) * (d + 1))
    stream = Costs(operations=2 * L * d, traffic=6 * L)
    return total + triples + stream + normed._each(lambda formula: prepost * formula)


def delta(options: Any, events: int | None = None) -> Costs:
    """Reads of the embedding and the changes of finished blocks, on top of a stream; `seen` of them in all."""
    if isinstance(options.blocks, tuple):
        blocks, seen = Integer(len(options.blocks)), sum(n * length for n, length in enumerate(options.blocks, 1))
    else:
        blocks = 2 * L if options.blocks == "full" else N if events is None else Integer(options.blocks)
        seen = L * (blocks + 1)
    return Costs(
        parameters=2 * L * 2 * d,
        forward=2 * d * seen,
        backward=2 * d * seen,  # only the query's gradient is a product
        operations=2 * d * (1 + blocks) + 4 * d * seen + 2 * L * d + d * (2 * L - blocks),
        traffic=seen + 4 * L + 6 * L + 2 * (2 * L - blocks),
        # Kept: the embedding and each block's change (the last one, which no read sees, too) with 1 / RMS; of a source
        # as a read sees it, its score before the norm and its weight.
        saved=(1 + blocks) * (d + 1) + 2 * seen + 2 * L * int(options.null),
    )


def hyper(options: Any, events: int | None = None) -> Costs:
    """n streams; if dynamic, each with n + 2 weights of its own at every event."""
    n, dynamic = options.streams, int(options.dynamic)
    weights = n * (n + 2)
    per_event = Costs(
        parameters=weights + dynamic * (d * (n + 2) + 2),
        **products(dynamic * weights * d + n * n * d),
        operations=2 * (dynamic * weights * d + n * n * d) + ((2 * dynamic + 4) * n - 1) * d,
        traffic=Integer(3 * n + 2),  # a read: n in, 1 out; a write: n and the output in, n out
        # Kept: the streams and the output; weights before their norm, in tanh, and as they are; 1 / RMS of each stream.
        saved=(n + 1) * d + dynamic * (3 * weights + n),
    )
    return per_event._each(lambda formula: 2 * L * formula) + ends(n, bool(dynamic))


def ends(n: int, dynamic: bool = True) -> Costs:
    """n streams begin as views of the embedding and are summed for the head. Making weights copies them out of it."""
    views = int(n > 1) if dynamic else 1 - n
    return Costs(operations=(n - 1) * d, traffic=Integer(n + 1), saved=views * d)


def mhc(options: Any, events: int | None = None) -> Costs:
    """n streams under n (n + 2) weights, all made from all n d channels."""
    n = options.streams
    weights = n * (n + 2)
    per_event = Costs(
        parameters=weights + n * d * weights + 3,
        **products(weights * n * d + n * n * d),
        operations=2 * (weights * n * d + n * n * d) + (6 * n - 1) * d,
        traffic=Integer(3 * n + 2),
        # Kept: the streams and the output; 1 / RMS; weights before their norm, before α, and as they are; A_pre, the σ
        # in C, and C; A_res.
        saved=(n + 1) * d + 1 + 3 * weights + 3 * n + n * n,
    )
    return per_event._each(lambda formula: 2 * L * formula) + ends(n)


def vwn(options: Any, events: int | None = None) -> Costs:
    """n slots of d / m channels, each with 2m + n weights of its own at every event."""
    m, n = options.m, options.n
    slot, wide, linear, grouped = d / m, Rational(n, m), int(options.input == "linear"), int(n % m == 0)
    weights, D = n * (2 * m + n), n * d / m
    made = weights * slot + n * (2 * m + n) * slot
    per_event = Costs(
        parameters=2 * weights + (2 * m + n) * slot,
        **products(made),
        operations=2 * made + 2 * D + D,
        traffic=3 * wide + 2,
        saved=D + d + 3 * weights + n,  # as for Hyper-Connections
    )
    way_in_and_out = Costs(
        parameters=(1 + linear) * d * D + grouped * 2 * D,
        **products((1 + linear) * d * D),
        operations=2 * (1 + linear) * d * D + grouped * 7 * D,
        traffic=2 * wide + 2,
        # Kept: the embedding for its map, the slots at the end, what is left of them after the GroupNorm, its scalars.
        saved=linear * d + D + grouped * (D + 2 * (n // m)),
    )
    return per_event._each(lambda formula: 2 * L * formula) + way_in_and_out


ALONG_DEPTH: dict[str, Callable[[Any, int | None], Costs]] = {
    "HiRes": hires,
    "DenseFormer": denseformer,
    "MUDDFormer": muddformer,
    "Delta": delta,
    "HyperConnections": hyper,
    "ManifoldHyperConnections": mhc,
    "VirtualWidth": vwn,
}
"""As in `costs`: by the name of the class, from its options and, for numbers, its count of events."""
