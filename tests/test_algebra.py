"""The proofs of minihaares.algebra against the tensors and gradients of model.py and depth_read.py."""

import inspect
import math
from collections.abc import Callable
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
import sympy as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from sympy import Derivative, Limit, Subs, Sum
from torch import Tensor

from minihaares import algebra, depth_read
from minihaares.algebra import C, D, E, F, a, c_E, c_F, i, j, k, query, r, u, w_C
from minihaares.model import DepthRouter, ModelConfig, RouterOptions
from tests.schemes import events_of, noise

RESULTS = (
    "recovery online permutations null_space haar routed_coefficients cone bias_limit duplicate_slot "
    "softmax_jacobian score_gradient half_gradients matching half_totals source_counts"
).split()
B, T, WIDTH = 2, 3, 6
EMPTY = torch.zeros(B, T, WIDTH, dtype=torch.float64)


@cache
def compiled(form: sp.Basic) -> tuple[list[str], Callable]:
    """The names of a form's symbols, and the form as a function of them."""
    arguments = sorted(form.free_symbols, key=str)
    return [str(argument) for argument in arguments], sp.lambdify(arguments, form, [{"exp": exp}, "math"])


def exp(value: float | Tensor) -> float | Tensor:
    return value.exp() if isinstance(value, Tensor) else math.exp(value)


def number(form: sp.Basic, **values):
    """A form with numbers or tensors for its symbols, given by their names."""
    names, function = compiled(form)
    return function(*(values[name] for name in names))


def router(events: int, width: int = WIDTH, **options) -> DepthRouter:
    """A plain float64 router over an even number of events, with lively queries, gains and biases."""
    config = ModelConfig(layers=events // 2, width=width, heads=1)
    built = DepthRouter(config, RouterOptions(**({"read": "plain"} | options)), torch.Generator()).double()
    with torch.no_grad():
        for seed, parameter in enumerate(built.parameters()):
            parameter += noise(*parameter.shape, seed=100 + seed)
    return built


def one_block(m: int, width: int = WIDTH, **options) -> DepthRouter:
    """A router whose first block has m events; another block fills up to an even number."""
    return router(m + 2 - m % 2, width, blocks=(m, 2 - m % 2), **options)


def raw_pairs(m: int, outputs: list[Tensor]) -> list[tuple[Tensor, ...]]:
    """The raw active sums of a first block of m events before each of its events 1 … m−1."""
    model = one_block(m, outputs[0].shape[-1])
    return [state.active for state in events_of(model, torch.zeros_like(outputs[0]), outputs)]


def some_outputs(m: int, width: int = WIDTH) -> list[Tensor]:
    return list(noise(m, B, T, width, seed=m))


def close(ours, theirs, **tolerance):
    torch.testing.assert_close(ours, theirs, **({"rtol": 1e-10, "atol": 1e-12} | tolerance))


# ---------------------------------------------------------------------------------------------------- the machinery


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_all_its_claims(name: str):
    result = getattr(algebra, name)()
    lines = len(result.given) + len(result.steps) + len(result.statement)
    assert result.statement and result.forms
    latex = result._repr_latex_()
    assert latex.count(r" \\ ") >= lines - 1 and latex.count("$") == 2
    assert len(repr(result).split("\n")) >= lines and "object at" not in repr(result)


def test_every_result_is_in_the_list():
    made = {name for name, part in vars(algebra).items() if inspect.isfunction(part)}
    assert set(RESULTS) == {
        name for name in made if inspect.signature(vars(algebra)[name]).return_annotation is algebra.Result
    }


FALSE = {
    "a vector": algebra.eq((E + F) - (E - F), 2 * E),
    "a definition ignored": algebra.eq(C, E),
    "a sum one too long": algebra.eq(Sum(u[i], (i, 1, r)) + u[r + 1], Sum(u[i], (i, 1, r + 2))),
    "a sign in a sum": algebra.eq(Sum(u[i], (i, 1, r)) - Sum(u[i], (i, r + 1, r + 1)), Sum(u[i], (i, 1, r + 1))),
    "a delta": algebra.eq(Sum(sp.KroneckerDelta(r, i) * u[j], (r, 1, k)), u[i]),
    "a derivative": algebra.eq(Derivative(a**2, a), a),
    "a limit": algebra.eq(Limit(sp.exp(algebra.b), algebra.b, -sp.oo), 1),
    "a value put in": algebra.eq(Subs(a**2, a, 2), 2),
    "a matrix": algebra.eq(sp.Matrix([a, 1]), sp.Matrix([a, a])),
    "a determinant": algebra.eq(sp.Determinant(sp.Matrix([[k, 1], [1, k]])), k**2),
    "an inequality": sp.Ge(-a, 0, evaluate=False),
    "an inequality that may fail": sp.Ge(a - w_C, 0, evaluate=False),
    "a piece that is not an index": algebra.eq(sp.Piecewise((a, a > 1), (1, True)), a),
}


@pytest.mark.parametrize("claim", FALSE.values(), ids=FALSE)
def test_a_false_claim_makes_no_result(claim: sp.Basic):
    assert not algebra.holds(claim)
    with pytest.raises(algebra.ProofError, match="does not find"):
        algebra.Result(statement=(claim,), forms={}, given={D: E - F})
    with pytest.raises(algebra.ProofError):
        algebra.Result(statement=(), forms={}, steps=(claim,))


# ----------------------------------------------------------------------------------------- what a block's summary keeps


@pytest.mark.parametrize("m", range(1, 8))
def test_the_pair_gives_the_half_totals_back(m: int):
    outputs = [output.requires_grad_() for output in some_outputs(m)]
    early = math.ceil(m / 2)
    model = one_block(m, match="none")
    raw = model.sources(events_of(model, EMPTY, outputs)[-1])[1:3]
    forms = algebra.recovery().forms
    for name, half in (("E", outputs[:early]), ("F", outputs[early:])):
        recovered = number(forms[name], C=raw[0], D=raw[1])
        close(recovered, sum(half, EMPTY))
        direction = noise(B, T, WIDTH, seed=9)
        pulled = torch.autograd.grad((recovered * direction).sum(), outputs, retain_graph=True)
        for output, gradient in zip(outputs, pulled, strict=True):
            close(gradient, direction if any(output is part for part in half) else 0 * direction)


def test_the_sum_is_blind_where_the_pair_is_not():
    outputs, shift = some_outputs(4), noise(B, T, WIDTH, seed=5)
    moved = [outputs[0] + shift, outputs[1], outputs[2], outputs[3] - shift]
    model = one_block(4, match="none")
    before, after = (model.sources(events_of(model, shift, part)[-1])[1:3] for part in (outputs, moved))
    close(before[0], after[0])
    close(after[1] - before[1], 2 * shift)


@pytest.mark.parametrize("m", range(1, 9))
def test_the_online_writes_are_the_sums(m: int):
    outputs, forms, early = some_outputs(m, 2), algebra.online().forms, math.ceil(m / 2)
    padded = [None, *outputs]  # u[1] is the first
    for written, pair in enumerate(raw_pairs(m, outputs)[1:m], start=1):
        which = "D early" if written <= early else "D late"
        for form, raw in zip((forms["C"], forms[which]), pair, strict=True):
            value = sp.lambdify((u, r, k), form)(padded, written, early)
            close(raw, value)


@pytest.mark.parametrize("m", range(2, 8))
def test_trades_between_two_places(m: int):
    outputs, early, model = some_outputs(m), math.ceil(m / 2), one_block(m, match="none")
    change = algebra.permutations().forms["change of D"]
    seen = model.sources(events_of(model, outputs[0], outputs)[-1])[1:3]
    for one, other in combinations(range(m), 2):
        traded = list(outputs)
        traded[one], traded[other] = outputs[other], outputs[one]
        C_now, D_now = model.sources(events_of(model, outputs[0], traded)[-1])[1:3]
        close(C_now, seen[0])
        across = one < early <= other
        close(D_now - seen[1], number(change, v=outputs[one], w=outputs[other]) if across else EMPTY, atol=1e-10)


@pytest.mark.parametrize(("m", "width"), list(product(range(1, 8), (2, 4))))
def test_what_is_forgotten_is_counted(m: int, width: int):
    model, forms = one_block(m, width, match="none"), algebra.null_space().forms

    def sources(outputs: Tensor) -> Tensor:  # [m, d] -> [2, d]
        state = events_of(model, torch.zeros(1, 1, width, dtype=torch.float64), list(outputs[:, None, None]))[-1]
        return torch.stack(model.sources(state)[1:3]).flatten(1)

    jacobian = torch.autograd.functional.jacobian(sources, noise(m, width)).flatten(2)  # [2, d, m d]
    for name, kept in (("sum", jacobian[0]), ("pair", jacobian.flatten(0, 1))):
        forgotten = m * width - torch.linalg.matrix_rank(kept).item()
        assert forgotten == number(forms[name], m=m, d=width)


@pytest.mark.parametrize("m", range(2, 10))
def test_the_pair_on_haar_vectors(m: int):
    early, late = math.ceil(m / 2), m // 2
    forms = {name: number(form, k=early, ell=late) for name, form in algebra.haar().forms.items()}
    phi = torch.full((m,), m**-0.5, dtype=torch.float64)
    psi = torch.tensor([1 / early] * early + [-1 / late] * late, dtype=torch.float64)
    psi /= psi.norm()
    signs = torch.tensor([place.sign for place in depth_read.places(m, (m,), "half")], dtype=torch.float64)
    close(torch.ones(m, dtype=torch.float64), forms["C on phi"] * phi)
    close(signs, forms["D on phi"] * phi + forms["D on psi"] * psi)
    assert (forms["D on phi"] == 0) == (m % 2 == 0)


# ---------------------------------------------------------------------------------------------- what a read makes of it


def pair_and_scale(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half totals E, F and the matched detail D̂ with its scale a [B, T, 1], between the clips and at one of them."""
    E_, F_ = noise(B, T, WIDTH, seed=seed), 0.7 * noise(B, T, WIDTH, seed=seed + 1)
    F_[0] = 0.1 * F_[0] - 0.9 * E_[0]  # a small C
    hat = depth_read.matched(E_ + F_, E_ - F_, 4.0, 1e-6)
    return E_, F_, hat, (hat / (E_ - F_)).mean(-1, keepdim=True)


def test_a_read_of_the_pair_in_halves():
    E_, F_, hat, scale = pair_and_scale()
    E_.requires_grad_()
    F_.requires_grad_()
    weights = torch.softmax(noise(2, B, T), dim=0)
    hat = scale * (E_ - F_)
    read = depth_read.mix(weights, (E_ + F_, hat))
    forms = algebra.routed_coefficients().forms
    values = {"w_C": weights[0][..., None], "w_D": weights[1][..., None], "a": scale}
    early, late = (number(forms[name], **values) for name in ("early", "late"))
    close(read, early * E_ + late * F_)
    direction = noise(B, T, WIDTH, seed=7)
    for half, coefficient in ((E_, early), (F_, late)):
        (pulled,) = torch.autograd.grad((read * direction).sum(), half, retain_graph=True)
        close(pulled, coefficient * direction)
    assert (late.abs() <= early).all() and (late < 0).any() and (scale == 0.25).sum() < scale.numel()


# Weights in 64ths and scales that are powers of 2: floats hold every number that comes up exactly.
SIXTY_FOURTHS = st.integers(0, 64).map(lambda count: count / 64)
COEFFICIENTS = st.integers(-300, 300).map(lambda count: count / 64)
SCALES = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])


REACHED = {budget: algebra.pair_reaches(c_E, c_F, a, budget) for budget in (None, sp.Le, sp.Eq)}
HALVES, CONE = algebra.routed_coefficients().forms, algebra.cone().forms


def reached(budget: Callable | None, early: float, late: float, scale: float) -> bool:
    return number(REACHED[budget], c_E=early, c_F=late, a=scale)


@given(SIXTY_FOURTHS, SIXTY_FOURTHS, SCALES)
def test_every_read_lies_in_the_cone(one: float, other: float, scale: float):
    """Whatever the weights are, the set says yes; and it gives these very weights back."""
    early, late = (number(HALVES[name], w_C=one, w_D=other, a=scale) for name in ("early", "late"))
    assert reached(None, early, late, scale)
    assert reached(sp.Le, early, late, scale) == (one + other <= 1)
    assert reached(sp.Eq, early, late, scale) == (one + other == 1)
    weights = [number(CONE[name], c_E=early, c_F=late, a=scale) for name in ("w_C", "w_D", "spent")]
    assert weights == [one, other, one + other]
    if one + other <= 1:  # a scale below γ = 4 reaches nothing that γ does not
        assert reached(sp.Le, early, late, 4.0)


@given(COEFFICIENTS, COEFFICIENTS, SCALES)
def test_outside_the_cone_no_weights_help(early: float, late: float, scale: float):
    other = (early - late) / (2 * scale)  # the only solution: early − late = 2 a w_D, and w_C = early − a w_D
    weights = (early - scale * other, other)
    assert reached(None, early, late, scale) == (min(weights) >= 0) == (abs(late) <= early)
    assert reached(sp.Le, early, late, scale) == (min(weights) >= 0 and sum(weights) <= 1)
    assert reached(sp.Eq, early, late, scale) == (min(weights) >= 0 and sum(weights) == 1)


def test_neither_set_contains_the_other():
    """By witnesses that torch's softmax reaches, too; with every budget and every scale that matching can give."""
    pair_only, blocks_only = (algebra.witnesses()[name] for name in ("pair only", "blocks only"))
    assert algebra.pair_reaches(*pair_only, 1) == True  # noqa: E712
    for budget in (None, sp.Le):
        assert algebra.blocks_reach(*pair_only, budget) == False  # noqa: E712
        assert algebra.blocks_reach(*blocks_only, budget) == True  # noqa: E712
        assert algebra.pair_reaches(*blocks_only, a, budget) == False  # noqa: E712  a is any positive number
    assert algebra.blocks_reach(0, 1, sp.Eq) == True  # noqa: E712
    assert algebra.pair_reaches(0, 1, a, sp.Eq) == False  # noqa: E712
    assert algebra.pair_reaches(1, 1, a, sp.Eq) == True  # noqa: E712
    assert algebra.blocks_reach(1, 1, sp.Eq) == False  # noqa: E712
    shares = torch.tensor([1 / 4, 1 / 4, 1 / 2]).double().log()  # another source, C (or E), D̂ (or F)
    E_, F_, other = noise(3, 1, 1, WIDTH)
    weights = torch.softmax(shares, 0)[:, None, None]
    read = depth_read.mix(weights, (other, E_ + F_, E_ - F_))  # match="none": a = 1
    close(read, other / 4 + float(pair_only[0]) * E_ + float(pair_only[1]) * F_)
    read = depth_read.mix(weights, (other, E_, F_))
    close(read, other / 4 + float(blocks_only[0]) * E_ + float(blocks_only[1]) * F_)


@pytest.mark.parametrize("scale", [0.25, 0.6, 1.0, 4.0])
def test_the_area_of_the_triangle(scale: float):
    weights = torch.rand(200_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    early, late = weights[:, 0] + scale * weights[:, 1], weights[:, 0] - scale * weights[:, 1]
    inside = weights.sum(1) <= 1
    box = 2 * scale  # |d(early, late) / d(w_C, w_D)|, the area of the image of the unit square
    area = number(algebra.cone().forms["area"], a=scale)
    assert area == pytest.approx(box * inside.double().mean().item(), rel=0.02)
    assert (late.abs() <= early + 1e-12).all()


def two_blocks(**options) -> tuple[DepthRouter, tuple[Tensor, ...], int]:
    """A router after 5 of 8 events in 2 blocks, its sources (e, C_1, D̂_1, C, D̂), and the event that reads them."""
    model, outputs = router(8, blocks=2, **options), list(noise(8, B, T, WIDTH, seed=2))
    state = events_of(model, noise(B, T, WIDTH, seed=3), outputs)[5]
    return model, model.sources(state), 5


def content_sums(model: DepthRouter, sources: tuple[Tensor, ...], site: int) -> tuple[Tensor, ...]:
    """Σ e^score and softmax mixture of the cumulative sources, then of the details, without the bias."""
    gain = None if model.key_gain is None else model.key_gain[site]
    scores = depth_read.depth_scores(sources, model.query[site], gain, model.key_eps)
    cumulative, detail = [0, 1, 3], [2, 4]
    parts = []
    for chosen in (cumulative, detail):
        weights = torch.softmax(scores[chosen], 0)
        parts += [scores[chosen].exp().sum(0), depth_read.mix(weights, [sources[s] for s in chosen])]
    return tuple(parts)


def test_the_bias_of_a_read_and_its_gradient():
    model, sources, site = two_blocks()
    read = depth_read.mix(model.weights(sources, site), sources)
    Z_C, h_C, Z_D, h_D = content_sums(model, sources, site)
    forms, bias = algebra.bias_limit().forms, model.detail_bias[site].item()
    values = {"Z_C": Z_C[..., None], "Z_D": Z_D[..., None], "h_C": h_C, "h_D": h_D, "b": bias}
    close(read, number(forms["read"], **values))
    mu = number(forms["share"], **values)
    close(mu[..., 0], model.weights(sources, site)[2::2].sum(0))
    direction = noise(B, T, WIDTH, seed=4)
    (pulled,) = torch.autograd.grad((read * direction).sum(), model.detail_bias)
    slope = number(forms["slope"], mu=mu, h_C=h_C, h_D=h_D)
    close(pulled[site], (direction * slope).sum())
    assert pulled[site].abs() > 1e-3 and pulled.count_nonzero() == 1


def test_a_bias_that_falls_ends_at_the_masked_read():
    model, sources, site = two_blocks()
    block = router(8, blocks=2, detail="none")
    with torch.no_grad():
        block.query.copy_(model.query)
        block.key_gain.copy_(model.key_gain)
    cumulative = (sources[0], *sources[1::2])
    masked = depth_read.mix(block.weights(cumulative, site), cumulative)
    gaps = []
    for bias in (-2.0, -8.0, -32.0, -1000.0):
        with torch.no_grad():
            model.detail_bias[site] = bias
        gaps.append((depth_read.mix(model.weights(sources, site), sources) - masked).abs().max().item())
    assert gaps[0] > 1e-3 and gaps == sorted(gaps, reverse=True) and gaps[-1] == 0.0
    assert gaps[1] / gaps[2] == pytest.approx(math.exp(24), rel=0.01)  # μ ~ e^b


def test_a_duplicate_slot_is_a_raised_score():
    model, sources, site = two_blocks(detail="duplicate")
    for one, other in ((1, 2), (3, 4)):
        assert torch.equal(sources[one], sources[other])
    scores = depth_read.depth_scores(sources, model.query[site], model.key_gain[site], model.key_eps)
    forms, bias = algebra.duplicate_slot().forms, model.detail_bias[site].item()
    lift = number(forms["lift"], b=bias)
    raised = torch.stack((scores[0], scores[1] + lift, scores[3] + lift))
    merged = torch.softmax(raised, 0)
    weights = model.weights(sources, site)
    close(torch.stack((weights[0], weights[1] + weights[2], weights[3] + weights[4])), merged)
    close(depth_read.mix(weights, sources), depth_read.mix(merged, (sources[0], sources[1], sources[3])))
    others = scores[0].exp() + scores[3].exp() * (1 + math.exp(bias))
    close(weights[1] + weights[2], number(forms["weight"], z=scores[1], R=others, b=bias))
    assert number(forms["bias"], lift=lift) == pytest.approx(bias)


def test_the_lift_in_the_paper():
    lift = algebra.duplicate_slot().forms["lift"]
    assert number(lift, b=-2) == pytest.approx(0.1269, abs=5e-5) and number(lift, b=0) == math.log(2)


# ------------------------------------------------------------------------------------------------ derivatives of a read


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_the_softmax_jacobian(slots: int):
    scores, sources = noise(slots, B, T).requires_grad_(), noise(slots, B, T, WIDTH, seed=1)
    weights, direction = torch.softmax(scores, 0), noise(B, T, WIDTH, seed=2)
    read = depth_read.mix(weights, sources)
    (pulled,) = torch.autograd.grad((read * direction).sum(), scores, retain_graph=True)
    G, mean = (sources * direction).sum(-1), (read * direction).sum(-1)
    close(pulled, number(algebra.softmax_jacobian().forms["score"], w=weights, G=G, mean=mean))
    close(pulled.sum(0), torch.zeros(B, T, dtype=torch.float64))
    jacobian = torch.autograd.functional.jacobian(lambda z: torch.softmax(z, 0), scores[:, 0, 0])
    entry = algebra.softmax_jacobian().statement[0].rhs
    w, s, r_ = algebra.w, algebra.s, algebra.r
    for one, other in product(range(slots), repeat=2):
        values = {w[s]: weights[one, 0, 0].item(), w[r_]: weights[other, 0, 0].item()}
        expected = entry.subs(values).subs(sp.KroneckerDelta(r_, s), int(one == other))
        assert jacobian[one, other].item() == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("match", [False, True])
def test_the_gradient_of_a_score(match: bool):
    E_, F_, _, scale = pair_and_scale()
    scale = scale if match else torch.ones_like(scale)
    source = ((E_ - F_) if match else (E_ + F_)).requires_grad_()
    kappa, key_eps = noise(WIDTH, seed=3), 1e-2
    score = depth_read.depth_scores([scale * source], kappa, None, key_eps)[0]
    (pulled,) = torch.autograd.grad(score.sum(), source)
    rho = scale * (scale**2 * source.square().mean(-1, keepdim=True) + key_eps).rsqrt()
    q = (source @ kappa)[..., None]
    forms = algebra.score_gradient().forms
    s, t = (number(forms[name], dz=1.0, rho=rho, q=q, d=WIDTH) for name in "st")
    close(pulled, s * kappa + t * source)
    statement = algebra.score_gradient().statement[0].rhs  # the same, channel by channel
    channel = statement.subs({algebra.key[j]: sp.Symbol("kappa_j"), algebra.v[j]: sp.Symbol("v_j")})
    close(pulled, number(channel, rho=rho, q=q, d=WIDTH, kappa_j=kappa, v_j=source))


@pytest.mark.parametrize("match", [False, True])
def test_the_backward_pass_of_an_active_read(match: bool):
    """Every gradient that ActiveRead returns, from the forms alone."""
    E_, F_, _, scale = pair_and_scale()
    scale = scale[..., 0] if match else torch.ones(B, T, dtype=torch.float64)
    key_eps, kappa, bias = 1e-3, noise(WIDTH, seed=3), torch.tensor(-0.7, dtype=torch.float64)
    finished, lse, g = noise(B, T, WIDTH, seed=4), noise(B, T, seed=5), noise(B, T, WIDTH, seed=6)
    inputs = [t.requires_grad_() for t in (kappa, bias, finished, lse, E_, F_)]
    settings = depth_read.ReadSettings(paired=True, match=match, gamma=4.0, eps=1e-6, key_eps=key_eps)
    read = depth_read.ActiveRead.apply(settings, *inputs)
    d_key, d_bias, d_finished, d_lse, d_E, d_F = torch.autograd.grad(read, inputs, g)

    C_, D_ = E_ + F_, E_ - F_
    rho_C = (C_.square().mean(-1) + key_eps).rsqrt()
    rho_D = scale * (scale**2 * D_.square().mean(-1) + key_eps).rsqrt()
    q_C, q_D = C_ @ kappa, D_ @ kappa
    weights = torch.softmax(torch.stack((lse, rho_C * q_C, rho_D * q_D + bias)), 0)
    forms, mean = algebra.softmax_jacobian().forms, (g * read).sum(-1)
    values = (finished, C_, scale[..., None] * D_)
    dz_0, dz_C, dz_D = (
        number(forms["score"], w=w, G=(g * value).sum(-1), mean=mean) for w, value in zip(weights, values, strict=True)
    )
    score = algebra.score_gradient().forms
    s_C, t_C = (number(score[name], dz=dz_C, rho=rho_C, q=q_C, d=WIDTH) for name in "st")
    s_D, t_D = (number(score[name], dz=dz_D, rho=rho_D, q=q_D, d=WIDTH) for name in "st")
    scalars = {"s_C": s_C, "s_D": s_D, "t_C": t_C, "t_D": t_D}
    of = {name: number(form, **scalars)[..., None] for name, form in algebra.half_gradients().forms.items()}
    coefficient = {
        name: number(form, w_C=weights[1], w_D=weights[2], a=scale)[..., None]
        for name, form in algebra.routed_coefficients().forms.items()
    }
    close(d_lse, dz_0)
    close(d_lse, -(dz_C + dz_D))
    close(d_bias, dz_D.sum())
    close(d_finished, weights[0][..., None] * g)
    close(d_E, coefficient["early"] * g + of["key E"] * kappa + of["same"] * E_ + of["cross"] * F_)
    close(d_F, coefficient["late"] * g + of["key F"] * kappa + of["cross"] * E_ + of["same"] * F_)
    close(d_key, (of["key E"] * E_ + of["key F"] * F_).sum((0, 1)))


# ---------------------------------------------------------------------------------------------- matching, norms, counts


@pytest.mark.parametrize(("size_C", "size_D"), list(product((0.0, 1e-7, 0.3, 1.0, 3.9, 4.1, 100.0), (0.0, 1e-7, 1.0))))
def test_matching_is_the_piecewise_clip(size_C: float, size_D: float):
    unit = torch.ones(1, 1, WIDTH, dtype=torch.float64)
    C_, D_ = size_C * unit, (size_D * unit).requires_grad_()
    expected = number(algebra.matching().forms["scale"], c=size_C, delta=size_D, gamma=4.0, epsilon=1e-6)
    hat = depth_read.matched(C_, D_, 4.0, 1e-6)
    close(hat, expected * D_)
    (pulled,) = torch.autograd.grad(hat.sum(), D_)
    close(pulled, expected * unit)
    if size_C == 0:
        assert expected == 0.25
    if size_C == size_D:
        assert 1 - expected == pytest.approx(1e-6 / (size_C + 1e-6)) or expected == 0.25


def test_norms_and_products_from_the_half_totals():
    E_, F_ = noise(WIDTH), noise(WIDTH, seed=1)
    vector = noise(WIDTH, seed=2)
    values = {"E": E_, "F": F_, "C": E_ + F_, "D": E_ - F_, "q": vector}
    statement = algebra.half_totals().statement[:4]
    products = {
        one.T * other: sp.Float((values[str(one)] @ values[str(other)]).item(), 20)
        for one, other in product((query, E, F, C, D), repeat=2)
    }
    for claim in statement:
        left, right = (
            sum(term.as_coeff_mmul()[0] * products[term.as_coeff_mmul()[1]] for term in sp.MatAdd.make_args(side))
            for side in claim.args
        )
        assert float(left) == pytest.approx(float(right), abs=1e-12)


@pytest.mark.parametrize("tau", [1e-1, 1e-2, 3e-3])
def test_what_cancellation_costs_in_float32(tau: float):
    generator, unit = np.random.default_rng(0), 2.0**-24
    errors = {"expanded": [], "direct": []}
    for _ in range(200):
        early = generator.normal(size=16).astype(np.float32)
        late = (-(1 - np.float32(tau)) * early).astype(np.float32)
        exact = np.square(early.astype(np.float64) + late).sum()
        expanded = np.float32(early @ early) + np.float32(late @ late) + np.float32(2) * np.float32(early @ late)
        direct = np.float32(np.square(early + late).sum())
        errors["expanded"].append(abs(expanded - exact) / exact)
        errors["direct"].append(abs(direct - exact) / exact)
    forms = algebra.half_totals().forms
    bound = number(forms["error"], tau=tau, upsilon=unit)
    assert 0.05 * bound < max(errors["expanded"]) < 16 * bound  # sums of 16 products, each rounded a few times
    assert max(errors["direct"]) < 16 * unit
    assert number(forms["error"], tau=number(forms["lost"], upsilon=unit), upsilon=unit) == pytest.approx(1)


def divisors(events: int) -> list[int]:
    return [blocks for blocks in range(1, events + 1) if events % blocks == 0]


@pytest.mark.parametrize(("layers", "detail"), list(product((1, 2, 3, 6), ("none", "half"))))
def test_the_counts_of_real_banks(layers: int, detail: str):
    events, forms, per_block = 2 * layers, algebra.source_counts().forms, 1 if detail == "none" else 2
    for blocks in divisors(events):
        model = router(events, 2, blocks=blocks, detail=detail)
        states = events_of(model, noise(1, 1, 2), list(noise(events, 1, 1, 2)))
        counts = [len(model.sources(state)) for state in states[:-1]]
        values = {"L": layers, "N": blocks, "g": per_block}
        assert number(forms["total"], **values) == sum(counts)
        assert number(forms["mean"], **values) == pytest.approx(sum(counts) / events)
        assert number(forms["peak"], **values) == max(counts)
        cumulative = states[-1].sources[:1] + states[-1].sources[1::per_block]
        assert number(forms["final"], **values) == len(cumulative)
        for event, count in enumerate(counts):
            where = {algebra.n: event * blocks // events + 1, algebra.r: event % (events // blocks) + 1}
            assert forms["count"].subs(where).subs(algebra.g, per_block) == count


def test_the_counts_of_every_depth_by_brute_force():
    forms = algebra.source_counts().forms
    total, peak = (sp.lambdify((algebra.L, algebra.N, algebra.g), forms[name]) for name in ("total", "peak"))
    for layers, per_block in product(range(1, 61), (1, 2)):
        for blocks in divisors(2 * layers):
            length = 2 * layers // blocks
            counts = [1 + per_block * (n + (r > 0)) for n in range(blocks) for r in range(length)]
            assert (total(layers, blocks, per_block), peak(layers, blocks, per_block)) == (sum(counts), max(counts))


TABLE_3 = {  # at 48 layers: blocks and sources a block; mean and peak
    (4, 1): (3.458, 5),
    (4, 2): (5.917, 9),
    (6, 1): (4.438, 7),
    (6, 2): (7.875, 13),
    (8, 1): (5.417, 9),
    (8, 2): (9.833, 17),
}


@pytest.mark.parametrize(("blocks", "per_block"), TABLE_3)
def test_table_3(blocks: int, per_block: int):
    mean, peak = TABLE_3[blocks, per_block]
    forms = algebra.source_counts().forms
    assert number(forms["mean"], L=48, N=blocks, g=per_block) == pytest.approx(mean, abs=6e-4)
    assert number(forms["peak"], L=48, N=blocks, g=per_block) == peak
    assert number(forms["mean"], L=48, N=96, g=1) == 48.5
