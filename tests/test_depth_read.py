"""The lean read against the plain one: values and every gradient, on ordinary and on nasty inputs."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minihaares import depth_read
from minihaares.model import ModelConfig, Transformer, generate

GAMMA, EPS = 4.0, 1e-6
DOUBLE = torch.float64


def plain_reads(
    bank: list[Tensor], P: Tensor | None, M: Tensor | None, keys: Tensor, bias: Tensor | None, match: bool
) -> list[Tensor]:
    """Every read of a block, from the functions that are written as the equations are."""
    C, D = depth_read.totals(P, M)
    active = [C] if bias is None else [C, depth_read.matched(C, D, GAMMA, EPS) if match else D]
    outputs = []
    for r, key in enumerate(keys):
        sources = [*bank, *active]
        z = depth_read.depth_scores(sources, key, None, EPS)
        if bias is not None:
            z[2::2] += bias[r]
        outputs.append(depth_read.mix(torch.softmax(z, dim=0), sources))
    return outputs


def lean_reads(
    bank: list[Tensor],
    P: Tensor | None,
    M: Tensor | None,
    keys: Tensor,
    bias: Tensor | None,
    match: bool,
    rebuild: bool = False,
) -> list[Tensor]:
    """The same through `completed_reads` and `ActiveRead`."""
    how = depth_read.ReadSettings(bias is not None, match, GAMMA, EPS, EPS)
    ahead = depth_read.completed_reads(tuple(bank), keys, bias, EPS)
    return [
        depth_read.ActiveRead.apply(
            how,
            keys[r],
            None if bias is None else bias[r],
            a.mixture,
            a.lse,
            P,
            M,
            *((a.weights, *bank) if rebuild else ()),
        )
        for r, a in enumerate(ahead)
    ]


def case(
    seed: int, finished: int, reads: int, halves: str, paired: bool, d: int = 6, dtype: torch.dtype = DOUBLE
) -> dict:
    """Random inputs of a block's reads: an embedding and `finished` blocks, and half totals "P", "M" or "PM"."""
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=DOUBLE).to(dtype).requires_grad_()

    per_block = 2 if paired else 1
    return dict(
        bank=[random(2, 3, d) for _ in range(1 + per_block * finished)],
        P=random(2, 3, d) if "P" in halves else None,
        M=random(2, 3, d) if "M" in halves else None,
        keys=random(reads, d),
        bias=random(reads) if paired else None,
    )


def leaves(inputs: dict) -> list[Tensor]:
    return [*inputs["bank"], *(inputs[k] for k in ("P", "M", "keys", "bias") if inputs[k] is not None)]


def gradients(outputs: list[Tensor], inputs: dict) -> list[Tensor]:
    """Of a weighted sum that makes every output element matter differently."""
    total = sum((o * torch.linspace(-1, 2, o.numel(), dtype=o.dtype).view(o.shape)).sum() for o in outputs)
    return torch.autograd.grad(total, leaves(inputs))


def assert_close(a: Tensor, b: Tensor, tolerance: float) -> None:
    assert torch.isfinite(a).all()
    assert (a - b).norm() <= tolerance * (b.norm() + 1e-30), ((a - b).norm() / b.norm()).item()


@given(
    seed=st.integers(0, 2**31),
    finished=st.integers(0, 4),
    reads=st.integers(1, 4),
    halves=st.sampled_from(["P", "M", "PM"]),
    paired=st.booleans(),
    match=st.booleans(),
    rebuild=st.booleans(),
    d=st.integers(1, 9),
)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_lean_equals_plain_in_float64(seed, finished, reads, halves, paired, match, rebuild, d):
    inputs = case(seed, finished, reads, halves, paired, d)
    plain = plain_reads(**inputs, match=match)
    lean = lean_reads(**inputs, match=match, rebuild=rebuild)
    for a, b in zip(lean, plain, strict=True):
        assert_close(a, b, 1e-12)
    for a, b in zip(gradients(lean, inputs), gradients(plain, inputs), strict=True):
        # A key's gradient sums terms that cancel when d = 1, where a unit-RMS source is a sign.
        assert (a - b).abs().max() <= 1e-11 * (1 + b.abs().max())


@pytest.mark.parametrize("paired,halves", list(itertools.product([False, True], ["P", "M", "PM"])))
def test_lean_equals_plain_in_float32(paired, halves):
    inputs = case(3, 3, 5, halves, paired, d=64, dtype=torch.float32)
    plain, lean = plain_reads(**inputs, match=True), lean_reads(**inputs, match=True)
    for a, b in zip([*lean, *gradients(lean, inputs)], [*plain, *gradients(plain, inputs)], strict=True):
        assert_close(a, b, 1e-5)


def nasty() -> dict[str, tuple[Tensor, Tensor]]:
    """Half totals where C or D nearly or wholly cancels, or the scale is extreme. Float32, [2, 3, 8]."""
    draw = torch.Generator().manual_seed(0)
    E, other = torch.randn(2, 3, 8, generator=draw), torch.randn(2, 3, 8, generator=draw)
    return {
        "E close to F": (E, E + 1e-4 * other),
        "E close to -F": (E, -E + 1e-4 * other),
        "E equals F": (E, E.clone()),
        "E equals -F": (E, -E),
        "zeros": (torch.zeros_like(E), torch.zeros_like(E)),
        "one zero": (E, torch.zeros_like(E)),
        "tiny": (1e-20 * E, 1e-20 * other),
        "huge": (1e15 * E, other),
    }


@pytest.mark.parametrize("name", nasty())
def test_no_worse_than_plain_where_it_is_hard(name):
    """Both reads in float32 against the plain one in float64: the lean error is at most the plain one's, give or take
    a few roundings of the largest number that plays a part."""
    P, M = nasty()[name]
    inputs = case(5, 2, 3, "PM", True, d=8, dtype=torch.float32)
    inputs |= dict(P=P.requires_grad_(), M=M.requires_grad_())
    exact_inputs = {
        k: [x.detach().double().requires_grad_() for x in v]
        if isinstance(v, list)
        else v.detach().double().requires_grad_()
        for k, v in inputs.items()
    }
    exact = plain_reads(**exact_inputs, match=True)
    exact += gradients(exact, exact_inputs)
    plain, lean = plain_reads(**inputs, match=True), lean_reads(**inputs, match=True)
    plain, lean = [*plain, *gradients(plain, inputs)], [*lean, *gradients(lean, inputs)]
    for truth, a, b in zip(exact, lean, plain, strict=True):
        assert torch.isfinite(a).all()
        allowed = 2 * (b - truth).norm() + 2e-5 * truth.norm() + 1e-30
        assert (a - truth).norm() <= allowed, ((a - truth).norm() / allowed).item()


def test_backward_agrees_with_finite_differences():
    """Against numbers, not against our other code. Matching is off: its multiplier has no gradient, by design."""
    for halves, paired in itertools.product(["P", "M", "PM"], [False, True]):
        inputs = case(1, 2, 2, halves, paired, d=3)
        tensors = leaves(inputs)

        def reads(*given: Tensor, inputs=inputs) -> tuple[Tensor, ...]:
            fresh, rest = dict(inputs), list(given)
            fresh["bank"] = [rest.pop(0) for _ in inputs["bank"]]
            for key in ("P", "M", "keys", "bias"):
                fresh[key] = rest.pop(0) if inputs[key] is not None else None
            return tuple(lean_reads(**fresh, match=False))

        assert torch.autograd.gradcheck(reads, tensors)


def test_norm_agrees_with_finite_differences_and_with_torch():
    x = torch.randn(2, 3, 5, dtype=DOUBLE, requires_grad=True)
    gain = torch.randn(5, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, g: depth_read.rms_norm(x, g, 1e-6), (x, gain))
    expected = torch.nn.functional.rms_norm(x, (5,), gain, 1e-6)
    torch.testing.assert_close(depth_read.rms_norm(x, gain, 1e-6), expected, rtol=1e-13, atol=1e-14)


def test_second_derivatives_are_refused_by_name():
    inputs = case(2, 2, 2, "PM", True)
    first = torch.autograd.grad(lean_reads(**inputs, match=True)[0].square().sum(), inputs["P"], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_strided_inputs_are_as_good():
    inputs = case(4, 2, 3, "PM", True)
    strided = {
        k: [x.transpose(0, 1).contiguous().transpose(0, 1) for x in v]
        if k == "bank"
        else v.mT.contiguous().mT if v.ndim == 3 else v
        for k, v in inputs.items()
    }  # fmt: skip
    assert not strided["P"].is_contiguous() and not strided["bank"][0].is_contiguous()
    for a, b in zip(lean_reads(**strided, match=True), lean_reads(**inputs, match=True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_nothing_is_kept_but_references_and_scalars():
    """An active read keeps its output (which the norm needs too), P and M; with `rebuild` not even the first."""
    inputs = case(6, 2, 1, "PM", True, d=1000)
    known = {x.untyped_storage().data_ptr() for x in leaves(inputs)}
    for rebuild, vectors in ((False, 1), (True, 0)):
        kept: dict[int, Tensor] = {}

        def keep(x: Tensor, kept=kept) -> Tensor:
            return kept.setdefault(x.untyped_storage().data_ptr(), x)

        how = depth_read.ReadSettings(True, True, GAMMA, EPS, EPS)
        key, bias = inputs["keys"][0], inputs["bias"][0]
        ahead = depth_read.completed_reads(tuple(inputs["bank"]), inputs["keys"], inputs["bias"], EPS)[0]
        parts = (ahead.weights, *inputs["bank"]) if rebuild else ()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            depth_read.ActiveRead.apply(how, key, bias, ahead.mixture, ahead.lse, inputs["P"], inputs["M"], *parts)
        new = [x for at, x in kept.items() if at not in known]
        assert sum(x.shape[-1] == 1000 and x.ndim == 3 for x in new) == vectors


@pytest.mark.parametrize("read", ["lean", "recompute"])
@pytest.mark.parametrize(
    "scheme,options", [("attnres", {}), ("block", {}), ("haares", {}), ("haares", {"detail": "phase"})]
)
def test_models_agree_whatever_the_read(scheme, options, read):
    """Loss, all gradients, logits without a graph, generation: lean and recompute against plain."""
    tokens = torch.randint(17, (2, 11), generator=torch.Generator().manual_seed(0))
    results = []
    for how in ("plain", read):
        config = ModelConfig(
            vocab_size=17, layers=4, width=8, heads=2, ff=12, scheme=scheme, options={**options, "read": how}
        )
        model = Transformer(config).double()
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.3 * torch.randn(p.shape, generator=draw, dtype=DOUBLE)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
        loss.backward()
        with torch.no_grad():
            bare = model(tokens)
        written = generate(model, tokens[:, :3], 6, temperature=0)
        results.append((loss.detach(), bare, written, {n: p.grad for n, p in model.named_parameters()}))
    (loss_a, bare_a, written_a, grads_a), (loss_b, bare_b, written_b, grads_b) = results
    torch.testing.assert_close(loss_b, loss_a, rtol=1e-12, atol=0)
    torch.testing.assert_close(bare_b, bare_a, rtol=1e-12, atol=1e-12)
    assert torch.equal(written_a, written_b)
    for name, g in grads_a.items():
        torch.testing.assert_close(grads_b[name], g, rtol=1e-10, atol=1e-12)


def test_leaking_axes_are_read_plainly():
    """The lean read works per token; a scheme that asks for more is read plainly, and says so."""
    leaking = ModelConfig(vocab_size=5, layers=2, scheme="haares", options={"rms_axes": "time", "allow_leak": True})
    assert not Transformer(leaking).residual.lean
    assert Transformer(ModelConfig(vocab_size=5, layers=2, scheme="haares")).residual.lean
