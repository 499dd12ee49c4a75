"""The formulas of minihaares.costs against real models, enumeration, and the paper's figures."""

from collections.abc import Callable

import pytest
import sympy as sp
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minihaares import bench, costs
from minihaares.algebra import L, N, d, source_counts
from minihaares.depth_read import places
from minihaares.model import (
    FAMILIES,
    SCHEMES,
    ConfigError,
    DepthRouter,
    ModelConfig,
    Standard,
    Transformer,
    scheme_options,
)
from tests.schemes import EVERYTHING, STREAMS, Case, events_of, noise, some_tokens, tiny

SIX_EVENTS = [  # at 3 layers, small enough for exact counts of everything: each branch of the formulas is in one
    *(case for case in STREAMS if case.name != "deepnorm"),
    Case("attnres", "attnres"),
    Case("block-uneven", "block", {"blocks": (1, 3, 2)}),
    Case("block-plain", "block", {"blocks": 2, "read": "plain"}),
    Case("haares", "haares", {"blocks": 2}),
    Case("haares-uneven", "haares", {"blocks": (2, 4)}),
    Case("haares-full", "haares", {"blocks": "full", "read": "recompute"}),
    Case("haares-recompute", "haares", {"blocks": 1, "read": "recompute"}),
    Case("haares-unmatched", "haares", {"blocks": (4, 2), "match": "none", "readout_details": True}),
    Case("haares-full-unmatched", "haares", {"blocks": "full", "match": "none"}),
    Case("haares-plain", "haares", {"blocks": (1, 5), "read": "plain"}),
    Case("haares-plain-readout", "haares", {"blocks": 2, "read": "plain", "readout_details": True}),
    Case("duplicate", "haares", {"blocks": 2, "detail": "duplicate"}),
    Case("duplicate-plain", "haares", {"blocks": 3, "detail": "duplicate", "read": "plain"}),
    Case("phase", "haares", {"blocks": (1, 5), "detail": "phase"}),
    Case("random-sign", "haares", {"blocks": 1, "detail": "random_sign", "sign_seed": 3}),
]
PRICED = sorted(name for name, (kind, _) in SCHEMES.items() if kind.__name__ in costs.ALONG_DEPTH)
KNOWN = [case for case in EVERYTHING if case.scheme in PRICED]
DETAILS = ("none", "half", "duplicate", "phase")


def parameters(model: Transformer) -> int:
    return sum(p.numel() for p in model.parameters())


def options_of(case: Case):
    return scheme_options(case.scheme, case.options)[1]


# ------------------------------------------------------------------------------------------------ the real models


@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_parameters_are_those_of_the_model(case: Case):
    for sizes in ({}, {"width": 24, "heads": 3, "ff": 7, "vocab_size": 5, "mlp_bias": True}):
        config = tiny(case, **sizes)
        assert costs.price(config, 7).parameters == parameters(Transformer(config))


@pytest.mark.parametrize("scheme", PRICED)
def test_parameters_at_the_sizes_of_the_paper(scheme: str):
    for family, layers in (("small", 12), ("medium", 48), ("large", 4)):
        config = ModelConfig(**FAMILIES[family], layers=layers, scheme=scheme)
        with torch.device("meta"):
            model = Transformer(config)
        assert costs.price(config, 512).parameters == parameters(model), family


@pytest.mark.parametrize("case", SIX_EVENTS, ids=str)
def test_flops_and_saved_numbers_are_those_of_the_model(case: Case):
    """Both exactly. What is saved once for all tokens, such as the rotary table, drops out between two batches."""
    model = Transformer(config := tiny(case, layers=3))
    price, context = costs.price(config, 4), 4
    assert bench.flops(model, some_tokens(2, context + 1)) == price.step(2, context)
    few, more = (sum(bench.saved_bytes(model, some_tokens(batch, context + 1)).values()) for batch in (2, 3))
    assert more - few == 4 * context * price.saved


def test_flops_with_biases_and_another_context():
    config = ModelConfig(vocab_size=11, layers=2, width=8, heads=2, ff=6, mlp_bias=True)
    assert bench.flops(Transformer(config), some_tokens(3, 9, 11)) == costs.price(config, 8).step(3, 8)


class Operations(TorchDispatchMode):
    """Counts multiplications and additions of whole vectors, op by op; what is one number per token is let pass."""

    def __init__(self, vector: int) -> None:
        super().__init__()
        self.vector, self.count = vector, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name, size = func.overloadpacket.__name__, max(x.numel() for x in (out, *args) if isinstance(x, torch.Tensor))
        each = {"mul": 1, "add": 1, "pow": 1, "mean": 1, "mv": 2, "rms": 0}.get(name, 0)
        self.count += each * size if size >= self.vector else 0
        return out


@pytest.mark.parametrize("case", [*SIX_EVENTS, Case("haares-none", "haares", {"match": "none", "blocks": 2})], ids=str)
def test_operations_are_those_of_the_plain_read(case: Case):
    config, tokens = tiny(case, layers=3, width=32), 4
    if SCHEMES[case.scheme][0] is DepthRouter:
        config = tiny(Case("", case.scheme, case.options | {"read": "plain"}), layers=3, width=32)
    residual = Transformer(config).residual
    if not residual.prenorm:  # a norm is a sublayer's business wherever it stands
        residual.norms = torch.nn.ModuleList(torch.nn.Identity() for _ in range(6))
    vectors = [noise(1, tokens, 32, dtype=torch.float32, seed=seed) for seed in range(7)]
    with torch.no_grad(), Operations(32 * tokens) as counter:
        residual.readout(events_of(residual, vectors[0], vectors[1:])[-1])
    assert counter.count == tokens * costs.price(config, tokens).operations


# ---------------------------------------------------------------------------------------------------- enumeration


def divisors(events: int) -> list[int]:
    return [blocks for blocks in range(1, events + 1) if events % blocks == 0]


@pytest.mark.parametrize("detail", DETAILS)
def test_the_closed_forms_of_equal_blocks_by_enumeration(detail: str):
    per_block, closed = 1 + (detail != "none"), costs.equal_blocks(detail)
    forms = sp.lambdify((L, N, sp.Symbol("g", integer=True, positive=True)), list(closed.values()))
    for layers in range(1, 17):
        for blocks in divisors(2 * layers):
            counted = costs.counted_blocks(places(2 * layers, blocks, detail), per_block)
            assert forms(layers, blocks, per_block) == [counted[symbol] for symbol in closed], (layers, blocks)


def test_counted_blocks_by_hand():
    """Blocks (1, 4): reads see e | e C D, then with the active pair e C D C D. Only the last one finds both halves."""
    counted = costs.counted_blocks(places(5, (1, 4), "half"), 2)
    assert counted == {N: 2, costs.seen: 1 + 3 + 5 + 5 + 5, costs.first: 1, costs.both: 1, costs.halves: 1 + 2}


@pytest.mark.parametrize("case", [c for c in KNOWN if "random" not in c.name], ids=str)
def test_formulas_and_prices_agree(case: Case):
    config = tiny(case)
    values = dict(d=12, ff=20, h=2, V=13, T=7) | dict(L=4, N=options_of(case).blocks if "blocks" in case.options else 2)
    assert costs.formulas(case.scheme, **case.options).at(**values) == costs.price(config, 7)


def moved(plain: bool, lengths: tuple[int, ...], detail: str, match: bool) -> int:
    """Vectors that a depth router moves, by acting it out: `touch` is one pass, its arguments what it loads, stores."""
    total, finished, per_block = 0, 1, 1 + (detail != "none")

    def touch(loads: int, stores: int) -> None:
        nonlocal total
        total += loads + stores

    events = places(sum(lengths), lengths, detail)
    for block, length in enumerate(lengths):
        signs: list[int] = []
        if not plain:
            touch(finished, length if finished > 1 else 0)
        for place in (p for p in events if p.block == block):
            if plain:
                touch(finished + (per_block if signs else 0), 1)
                touch(*(1 + per_block, per_block) if signs else (0, 0))
            else:
                touch(*(1 + len(set(signs)), 1) if signs else (0, 0))
                touch(*(2, 1) if place.sign in signs else (0, 0))
            signs.append(place.sign)
        if plain and match:
            touch(2, 1)
        elif not plain and len(set(signs)) == 2:
            touch(2, 2)
        elif match:
            touch(1, 1)
        finished += per_block
    cumulative = 1 + len(lengths)
    touch(cumulative, 1)
    return total


@pytest.mark.parametrize("lengths", [(6,), (3, 3), (1, 1, 1, 1), (2, 2), (1, 5), (4, 1, 7)], ids=str)
@pytest.mark.parametrize("detail", DETAILS)
@pytest.mark.parametrize("read", ["plain", "lean"])
def test_traffic_by_acting_it_out(read: str, detail: str, lengths: tuple[int, ...]):
    options = {"blocks": lengths, "detail": detail, "read": read}
    config = ModelConfig(layers=sum(lengths) // 2, width=4, heads=1, scheme="haares", options=options)
    assert costs.price(config, 3).traffic == moved(read == "plain", lengths, detail, detail in ("half", "phase"))


def test_eager_traffic_counts_loads_and_stores_and_no_views():
    x, y, matrix = torch.ones(5, 8), torch.ones(5, 8), torch.ones(8, 3)

    def vectors(work: Callable) -> float:
        return costs.moved_bytes(work) / (4 * 40)

    assert vectors(lambda: x + y) == vectors(lambda: x.clone().add_(y)) - 2 == 3
    assert vectors(lambda: x.square()) == 2 and vectors(lambda: x[None].mT.flatten(0, 1)[1:2]) == 0
    assert vectors(lambda: x @ matrix) == (40 + 24 + 15) / 40
    standard = Transformer(ModelConfig(layers=3, width=8, heads=2)).residual
    outputs = [noise(1, 5, 8, seed=seed, dtype=torch.float32) for seed in range(6)]
    assert vectors(lambda: events_of(standard, x[None], outputs)) == costs.formulas("standard").at(L=3).traffic == 18


# -------------------------------------------------------------------------------------------- formulas, registry


def test_what_haares_adds_to_block():
    """Section 8.1: one bias a read, and arithmetic linear in the width."""
    more = costs.formulas("haares", read="plain") - costs.formulas("block", read="plain")
    assert more.parameters == 2 * L
    assert sp.expand(more.operations - d * (7 * L * N + 21 * L - 8 * N)) == 0
    extra = source_counts().forms["total"].diff(sp.Symbol("g", integer=True, positive=True))
    assert sp.expand(more.forward - 2 * d * extra) == 0


def test_a_new_scheme_is_one_entry(monkeypatch):
    """Until it has one, its costs are refused; then they add to those of the backbone."""

    class Newcomer(Standard):
        pass

    monkeypatch.setitem(SCHEMES, "newcomer", (Newcomer, {}))
    with pytest.raises(ConfigError, match="no costs for Newcomer"):
        costs.formulas("newcomer")
    monkeypatch.setitem(costs.ALONG_DEPTH, "Newcomer", lambda options, events: costs.Costs(parameters=5 * d))
    assert costs.formulas("newcomer").parameters - costs.backbone().parameters == 5 * d


def test_what_is_unknown_is_refused():
    with pytest.raises(ConfigError, match="scheme is 'nothing'"):
        costs.formulas("nothing")
    with pytest.raises(ConfigError, match="no option 'block'"):
        costs.formulas("haares", block=4)
    with pytest.raises(ConfigError, match="do not cut"):
        costs.price(ModelConfig(layers=3, scheme="haares", options={"blocks": 4}), 8)


# ------------------------------------------------------------------------------------------------- the paper


def paper(scheme: str, family: str, **sizes) -> costs.Costs:
    options = {"read": "plain"} if scheme in ("block", "haares") else {}
    return costs.price(ModelConfig(**FAMILIES[family], layers=48, scheme=scheme, options=options, **sizes), 512)


def test_parameter_totals_of_table_5():
    """201M, 204M with BPE, 453M; biases in the MLPs would make the last one 454."""
    for scheme in ("block", "haares"):
        totals = [paper(scheme, "medium"), paper(scheme, "medium", vocab_size=4096), paper(scheme, "large")]
        assert [int(one.parameters / 1e6) for one in totals[:1]] == [201]
        assert [round(one.parameters / 1e6) for one in totals[1:]] == [204, 453]
        assert round(paper(scheme, "large", mlp_bias=True).parameters / 1e6) == 454


def test_increments_of_section_8():
    """Parameters < 0.01 %. FLOPs 0.5, 0.3, 0.2 % come out with all vector arithmetic, not with products alone."""
    every, products = [], []
    for family in ("small", "medium", "large"):
        block, haares = (paper(scheme, family) for scheme in ("block", "haares"))
        assert 0 < haares.parameters / block.parameters - 1 < 1e-4
        every.append((haares.operations - block.operations) / (paper("standard", family).forward + block.operations))
        products.append(haares.forward / block.forward - 1)
    assert [f"{100 * ratio:.1f}" for ratio in every] == ["0.5", "0.3", "0.2"]
    assert [f"{100 * ratio:.1f}" for ratio in products] == ["0.1", "0.1", "0.0"]
