"""The formulas of minihaares.costs_relatives against real models, by acting out, and against what their papers say."""

from collections.abc import Callable

import pytest
import sympy as sp
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from minihaares import bench, costs
from minihaares.algebra import L, d
from minihaares.model import SCHEMES, ConfigError, ModelConfig, Transformer, scheme_options
from tests.schemes import Case, events_of, noise, some_tokens, tiny

CASES = [  # at 3 and 6 layers; together they take each branch of each formula
    Case("hires", "hires", {"layers_per_group": 3}),
    Case("hires-delta", "hires", {"layers_per_group": 1, "ratio": 1.5, "write": "delta", "input": "pad"}),
    Case("hires-same-width", "hires", {"layers_per_group": 3, "ratio": 1.0}),
    Case("denseformer", "denseformer"),
    Case("denseformer-sparse", "denseformer", {"dilation": 2, "period": 2}),
    Case("denseformer-dilated", "denseformer", {"dilation": 2}),
    Case("denseformer-never", "denseformer", {"period": 7}),
    Case("muddformer", "muddformer"),
    Case("muddformer-prepost", "muddformer", {"prepost": True}),
    Case("delta", "delta"),
    Case("delta-block", "delta", {"blocks": 2}),
    Case("delta-null", "delta", {"blocks": 1, "null": True}),
    Case("hc", "hc"),
    Case("hc-static", "hc", {"streams": 3, "dynamic": False}),
    Case("hc-one", "hc", {"streams": 1}),
    Case("hc-one-static", "hc", {"streams": 1, "dynamic": False}),
    Case("mhc", "mhc", {"rounds": 2}),
    Case("mhc-one", "mhc", {"streams": 1, "rounds": 2}),
    Case("vwn", "vwn"),
    Case("vwn-repeat", "vwn", {"m": 2, "n": 3, "input": "repeat"}),
    Case("vwn-whole", "vwn", {"m": 1, "n": 3}),
]
UNEVEN = Case("delta-uneven", "delta", {"blocks": (1, 3, 2), "null": True})


@pytest.mark.parametrize("layers, width", [(3, 12), (6, 24)])
@pytest.mark.parametrize("case", [*CASES, UNEVEN], ids=str)
def test_parameters_flops_and_saved_numbers_are_those_of_the_model(case: Case, layers: int, width: int):
    """All exactly. What is saved once for all tokens drops out between two batches."""
    config = tiny(case, layers=3 if case is UNEVEN else layers, width=width)
    model, price, context = Transformer(config), costs.price(config, 4), 4
    assert sum(p.numel() for p in model.parameters()) == price.parameters
    assert bench.flops(model, some_tokens(2, context + 1)) == price.step(2, context)
    few, more = (sum(bench.saved_bytes(model, some_tokens(batch, context + 1)).values()) for batch in (2, 3))
    assert more - few == 4 * context * price.saved


EACH = dict.fromkeys(("mul", "mul_", "add", "sub", "pow", "mean", "sum"), 1) | {"linalg_vector_norm": 2, "addcmul": 2}


class Operations(TorchDispatchMode):
    """Counts what is done element by element to vectors of `width`, op by op; smaller things are let pass."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.vector, self.count = width * tokens, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name, tensors = func.overloadpacket.__name__, [x for x in (out, *args) if isinstance(x, torch.Tensor)]
        if name == "native_group_norm":  # mean, centred, square, its mean, scaled, gain, bias
            self.count += 7 * args[0].numel()
        elif tensors and (size := max(x.numel() for x in tensors)) >= self.vector:
            summed = tensors[0].numel() if name == "sum" else 0  # k terms take k − 1 additions
            self.count += EACH.get(name, 0) * size - summed
        return out


@pytest.mark.parametrize("case", [*CASES, UNEVEN], ids=str)
def test_operations_are_those_of_the_code(case: Case):
    """Products as torch counts them, and all that is done to whole vectors."""
    width, tokens = 64, 4  # wider than any token's weights are many
    config = tiny(case, layers=3, width=width)
    residual = Transformer(config).residual
    vectors = [noise(1, tokens, width, dtype=torch.float32, seed=seed) for seed in range(7)]
    products = FlopCounterMode(display=False, custom_mapping=bench.UNCOUNTED)
    with torch.no_grad(), Operations(width, tokens) as elements, products:
        residual.readout(events_of(residual, vectors[0], vectors[1:])[-1])
    assert elements.count + products.get_total_flops() == tokens * costs.price(config, tokens).operations


# ------------------------------------------------------------------------------------------------------- traffic


def moved(scheme: str, layers: int, o) -> float:
    """Vectors of d that a method moves, by acting it out: `touch` is one pass, its arguments what it loads, stores."""
    total = 0.0

    def touch(loads: float, stores: float) -> None:
        nonlocal total
        total += loads + stores

    def streams(width: float, ends: Callable[[], None]) -> None:
        for _ in range(2 * layers):
            touch(width, 1)  # read
            touch(width + 1, width)  # write
        ends()

    if scheme in ("hc", "mhc"):
        streams(o.streams, lambda: touch(o.streams, 1))
    elif scheme == "vwn":
        wide = o.n / o.m
        streams(wide, lambda: (touch(1, wide), touch(wide, 1)))
    elif scheme == "hires":
        touch(1, o.ratio + 1)
        for event in range(2 * layers):
            last = event % (2 * o.layers_per_group) == 2 * o.layers_per_group - 1
            touch(2, 1)
            if last:  # the same pass, with the outer stream in and out, and where the group started
                touch(o.ratio + (o.write == "delta"), o.ratio)
    elif scheme == "denseformer":
        for i in range(1, layers + 1):
            touch(2, 1)
            touch(2, 1)
            if i % o.period == 0:
                touch(len([j for j in range(i) if (i - j) % o.dilation == 0]), 1)
    elif scheme == "muddformer":
        touch(o.prepost, o.prepost)  # the normed embedding
        for i in range(1, layers + 1):
            touch(2, 1)
            touch(2, 1)
            touch(i + 1 + o.prepost, 4 if i < layers else 1)
            touch(0, o.prepost)
    elif scheme == "delta":
        lengths = {"full": [1] * 2 * layers, 2: [layers, layers], 1: [2 * layers]}.get(o.blocks, o.blocks)
        for block, length in enumerate(lengths):
            for place in range(length):
                touch(1 + 1 + block, 1)
                touch(2, 1)
                touch(*(1, 1) if place else (0, 0))  # the change; the first is the output itself
    return total


@pytest.mark.parametrize("case", [*CASES, UNEVEN], ids=str)
def test_traffic_by_acting_it_out(case: Case):
    options = scheme_options(case.scheme, case.options)[1]
    assert float(costs.price(tiny(case, layers=3), 3).traffic) == moved(case.scheme, 3, options)


# --------------------------------------------------------------------------------------------- what papers say


def test_the_overhead_of_hires():
    """(D/d) / (6 g) of a stack of 12 d² a layer, up to the map of the input and the last read."""
    for ratio, g in ((2, 4), (2, 1), (4, 4), (1, 12)):
        maps = costs.formulas("hires", ratio=ratio, layers_per_group=g) - costs.backbone()
        overhead = sp.simplify(maps.forward / (24 * d**2 * L))
        assert sp.limit(overhead, L, sp.oo) == sp.Rational(ratio, 6 * g)
        assert sp.simplify(overhead - sp.Rational(ratio, 6 * g) - sp.Rational(ratio, 6) / L) == 0


def test_parameters_in_short():
    """DenseFormer about L²/2; mHC 2L n d (n² + 2n) and a few; HiRes 2 d D a group; Delta 2L · 2d."""

    def added(scheme: str, **options) -> sp.Expr:
        return sp.expand((costs.formulas(scheme, **options) - costs.backbone()).parameters)

    assert sp.expand(added("denseformer") - (L**2 + 3 * L) / 2) == 0
    assert sp.expand(added("mhc") - 2 * L * (4 * d * 24 + 24 + 3)) == 0
    assert sp.limit(added("hires") / (L / 4 * 2 * d * 2 * d), d, sp.oo).subs(L, 4000) == pytest.approx(1, abs=2e-3)
    assert added("delta") == 4 * L * d


def test_muddformer_adds_a_quarter_of_a_percent_at_its_own_size():
    """The paper counts 0.23 % for parameters and 0.4 % for FLOPs beside 2.8 billion in 32 layers of 2560."""
    config = dict(vocab_size=50_304, layers=32, width=2560, heads=32, ff=6912)
    ours, plain = (costs.price(ModelConfig(**config, scheme=s), 2048) for s in ("muddformer", "standard"))
    assert ours.parameters / plain.parameters - 1 == pytest.approx(0.0023, abs=5e-4)


def test_every_relative_has_costs():
    missing = {kind.__name__ for kind, _ in SCHEMES.values()} - set(costs.ALONG_DEPTH)
    assert not missing
    with pytest.raises(ConfigError, match="no option"):
        costs.formulas("hires", groups=4)
