"""What a scheme costs on paper: parameters, FLOPs, traffic and saved numbers as formulas, one function a scheme.

A formula is a sympy expression in L layers, N equal blocks, width d, MLP width ff, h heads, V vocabulary entries, and a
batch of B sequences of T tokens. `formulas("haares")` gives the symbols; `price(config, T)` gives numbers, also for
blocks of unequal length. What is counted, and what is not, stands at the fields of `ledger.Costs`. How many sources a
read sees is `algebra.source_counts`; section 4.5 and Table 3 of the paper (arXiv 2606.06564) are about that.

A new scheme is one function and one line in `ALONG_DEPTH`; those of the relatives stand in `costs_relatives`.
tests/test_costs.py holds the formulas to real models: the parameters, `bench.flops` and `bench.saved_bytes` exactly.
"""

from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy import Expr, Integer, Max, Min, floor, symbols
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import costs_relatives, depth_read, relatives  # noqa: F401  relatives enters its schemes in the registry
from .algebra import L, N, d, g, source_counts
from .ledger import Costs, T, V, ff, h
from .model import ConfigError, ModelConfig, RouterOptions, StandardOptions, scheme_options

# What the costs of a depth router depend on besides. Over all events, the final read apart: sources that the reads see;
# events of the first block, which have the embedding alone for a finished source; reads that find both half totals of
# their block; half totals (one or two a block).
seen, first, both, halves = symbols("seen first both halves", integer=True, nonnegative=True)


# ------------------------------------------------------------------------------------------------- the schemes


def backbone(mlp_bias: bool = False) -> Costs:
    """A PreNorm Transformer without its residual scheme: sublayers, their norms, embedding, final norm and head."""
    weights, attention = 4 * d**2 + 3 * d * ff, 4 * T * d  # attention: scores, and the mixture of values
    # The backward pass of a product is two products; that of attention five for two, since the fused kernel makes its
    # scores again. (On a CPU, torch has no such kernel for heads of size 2 and takes four.)
    forward = L * (2 * weights + attention) + 2 * d * V
    backward = L * (4 * weights + attention * 5 / 2) + 4 * d * V
    # Saved: norms keep their input and a scalar. Attention: its input, q k v, q and k turned, the mixture in two
    # layouts, a log-sum-exp per head. The MLP: its input, gate and up, silu of the gate, the product.
    # The head: its input, log-probabilities, and a target, an integer twice as long as the other numbers.
    saved = (2 * L + 1) * (d + 1) + L * (8 * d + h) + L * (d + 4 * ff) + d + V + 2
    parameters = V * d + d + L * (weights + 2 * d) + int(mlp_bias) * L * (2 * ff + d)
    return Costs(parameters=parameters, forward=forward, backward=backward, saved=saved)


def standard(options: StandardOptions, events: int | None = None) -> Costs:
    """The running sum: an addition an event, which loads h and u and stores h."""
    return Costs(operations=2 * L * d, traffic=Integer(3) * 2 * L)


def stream(options: Any, events: int | None = None) -> Costs:
    """`relatives.streams`, beside a PreNorm backbone. The norms of PostNorm and DeepNorm stand on the stream instead of
    in the sublayers, just as many, and one pass adds and normalises: they cost as much as Standard's."""
    gates = {"none": 0, "scalar": 1, "channel": d}[options.gate]
    per_channel = 1 + (options.gate != "none") + (options.norm != "pre")  # add, gate, scale what was there
    saved = Integer(0) if options.gate == "none" else 2 * L * d  # the gate's gradient needs the output
    return Costs(parameters=sp.sympify(2 * L * gates), operations=2 * L * d * per_channel, traffic=6 * L, saved=saved)


def equal_blocks(detail: str) -> dict[sp.Symbol, Expr]:
    """`seen`, `first`, `both`, `halves` for N equal blocks in L, N and g; of random signs only the first two."""
    found = {seen: source_counts().forms["total"], first: 2 * L / N}
    if detail in ("none", "duplicate"):
        found |= {both: Integer(0), halves: N}
    elif detail != "random_sign":  # both halves are filled in any block of two events or more
        late = {"half": N * Max(0, floor(L / N) - 1), "phase": Max(0, 2 * L - 2 * N)}
        found |= {both: late[detail], halves: Min(2 * N, 2 * L)}
    return found


def counted_blocks(places: list[depth_read.Place], per_block: int) -> dict[sp.Symbol, int]:
    """The same and N for any blocks and signs, by going through the events; `per_block` sources a block."""
    filled = [{p.sign for p in places if p.block == q.block and p.offset < q.offset} for q in places]
    return {
        N: places[-1].block + 1,
        seen: sum(1 + per_block * (p.block + (p.offset > 0)) for p in places),
        first: places[0].length,
        both: sum(len(signs) == 2 for signs in filled),
        halves: len({(p.block, p.sign) for p in places}),
    }


def router(options: RouterOptions, events: int | None = None) -> Costs:
    """`model.DepthRouter`: full and Block Attention Residuals, HAARES and its ablations, under each way to read."""
    paired = int(options.detail != "none" and options.bias != "masked")  # 0 and 1: sympy multiplies by no bool
    detail, per_block = options.detail if paired else "none", 1 + paired
    matches = int(paired and options.match == "rms" and detail != "duplicate")
    late = int(options.readout_details)
    found = Costs(
        parameters=(2 * L + 1) * d * (1 + options.key_gain) + paired * (options.bias == "learned") * (2 * L + late),
        operations=d * (7 * (seen + final(paired * late)) - (2 * L + 1) + per_block * active)
        + d * 2 * L * (paired + 5 * matches),
    )
    if options.read == "plain" or options.rms_axes != "token":
        found += plain_reads(paired, matches if options.rms_axes == "token" else 0, late)
    else:
        # An unmatched detail is C itself in a block of one event. The last block is taken for a longer one.
        unmatched = Integer(0) if detail == "duplicate" else Max(0, halves - N - 1 + late)
        new = paired * (N - 1 + late if matches else unmatched)
        found += lean_reads(paired, matches, late, new, options.read == "recompute")
    if not isinstance(options.blocks, int | str):
        events = sum(options.blocks)
    if events is not None:
        layout = counted_blocks(depth_read.places(events, options.blocks, detail, options.sign_seed), per_block)
    else:
        layout = {symbol: formula.subs(g, per_block) for symbol, formula in equal_blocks(detail).items()}
    blocks = layout.get(N, 2 * L if options.blocks == "full" else N)
    return found._each(lambda formula: formula.subs(layout).subs(N, blocks))


active = 2 * L - N  # reads that find something written in their block, and writes that add to something


def final(details: int) -> Expr:
    """What the last read, for the head, sees."""
    return 1 + (1 + details) * N


def plain_reads(paired: int, matches: int, late: int) -> Costs:
    """Each read for itself. Backward, only the query's gradient is a product that torch counts."""
    reads = seen + final(paired * late)
    # The mixture is the norm's to keep. A source as a read sees it: its unit form, RMS and weight. A source itself: the
    # embedding, C after every event, and D after every event but the last, which no read sees; a scale for each match.
    saved = (d + 2) * reads + d * (1 + 2 * L) + paired * d * (2 * L - 1 + late) + matches * 2 * L
    traffic = reads + 2 * L + 1 + (3 + 2 * paired) * active + matches * 3 * N
    return Costs(forward=2 * d * reads, backward=2 * d * reads, traffic=traffic, saved=saved)


def lean_reads(paired: int, matches: int, late: int, new: Expr, recompute: bool) -> Costs:
    """Finished sources for a whole block of reads at once, then the active block in half totals; the readout plainly.

    `new` counts the details that are vectors of their own once their block is finished, and are read.
    """
    last = final(paired * late)
    many = seen - (1 + paired) * active - first  # pairs of a read and a finished source, where a read has several
    banks = N - 1 + (1 + paired) * N * (N - 1) / 2  # finished sources when a block begins, over all blocks but one
    alone = first * Min(1, first - 1)  # reads of the embedding alone that get a gradient: no event may need it
    one = 2 * d * (active + both)  # the query with C and, where both halves exist, with D
    # Vectors kept: each half total that a read sees, C and D of each block, the embedding's unit form.
    vectors, scalars = active + N + new + 1, 1 + many + banks + (8 if paired else 5) * active + matches * N
    pairs = paired * (4 * (halves - N) + matches * 2 * (2 * N - halves))  # half totals into C and D
    once = 1 + banks + 2 * L - first  # finished sources in, mixtures out; that of a lone source is the source
    return Costs(
        forward=2 * d * first + 4 * d * many + one + 2 * d * last,
        backward=4 * d * alone + 10 * d * many + one + 2 * d * last,
        traffic=once + 3 * active + both + 3 * (2 * L - halves) + pairs + last + 1,
        saved=d * vectors + scalars + (d + 2) * last - int(recompute) * d * active,
    )


ALONG_DEPTH: dict[str, Callable[[Any, int | None], Costs]] = {
    "Standard": standard,
    "Stream": stream,
    "DepthRouter": router,
    **costs_relatives.ALONG_DEPTH,
}
"""The costs of a `Residual`, by the name of its class: from its options and, for numbers, its count of events."""


def depth_costs(scheme: str, options: dict[str, Any] | None = None, events: int | None = None) -> Costs:
    """What a scheme adds to `backbone`. Without `events`, formulas for equal blocks in L and N."""
    kind, chosen = scheme_options(scheme, options or {})
    if kind.__name__ not in ALONG_DEPTH:
        raise ConfigError(f"there are no costs for {kind.__name__} yet; enter a function for it in costs.ALONG_DEPTH.")
    return ALONG_DEPTH[kind.__name__](chosen, events)


def formulas(scheme: str, mlp_bias: bool = False, **options: Any) -> Costs:
    """Formulas for a whole model. The number of blocks is the symbol N, unless `blocks` is "full" or a list of lengths.

    Raises ConfigError for an unknown scheme or option, and for a scheme without an entry in `ALONG_DEPTH`.
    """
    return backbone(mlp_bias) + depth_costs(scheme, options)


def price(config: ModelConfig, context: int) -> Costs:
    """The costs of one model in numbers, at a context of `context` tokens."""
    whole = backbone(config.mlp_bias) + depth_costs(config.scheme, dict(config.options), config.events)
    return whole.at(L=config.layers, d=config.width, ff=config.ff, h=config.heads, V=config.vocab_size, T=context)


# ------------------------------------------------------------------------------------- traffic as it happens


class _Mover(TorchDispatchMode):
    """Adds up the bytes of what each operation loads and stores."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        loads, stores = ([x for x in tree_leaves(part) if isinstance(x, Tensor)] for part in ((args, kwargs), made))
        known = {x.untyped_storage().data_ptr() for x in loads}
        looks = stores and all(x.untyped_storage().data_ptr() in known for x in stores)
        if func._schema.is_mutable or not looks:  # a view of what is there moves nothing
            self.bytes += sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in loads + stores)
        return made


def moved_bytes(work: Callable[[], Any]) -> int:
    """Bytes that the operations of `work` load and store, each operation by itself: eager code, nothing fused."""
    with _Mover() as mover:
        work()
    return mover.bytes
