"""The model against implementations by others, given the same weights.

    transformers   LlamaForCausalLM: the backbone, logits, greedy tokens, decoded text
    fla-core       naive_attnres: one read over depth, and whole Block and full Attention Residuals models
    attn-res       a whole transformer with standard, full and Block residuals
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from schemes import READS, Case, noise, shake, shaken, some_tokens, tiny, under_every_read
from torch import Tensor, nn

from minihaares.bench_read import fla_read
from minihaares.model import Attention, ModelConfig, Transformer, generate, rotary_table

ALPHABET = "abcdefgh .,!\n"
BACKBONE = dict(vocab_size=13, layers=3, width=24, heads=3, ff=40, max_context=64)


# ---- Llama ----


def llama_of(model: Transformer) -> nn.Module:
    """The same model as a LlamaForCausalLM."""
    transformers = pytest.importorskip("transformers", reason="transformers, of the test extra, is not installed")
    c = model.config
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.width,
        intermediate_size=c.ff,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        max_position_embeddings=c.max_context,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
        mlp_bias=c.mlp_bias,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    llama = transformers.LlamaForCausalLM(config).to(model.embed.weight.dtype).eval()
    weights = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.gain}
    weights["lm_head.weight"] = model.embed.weight
    for event, sublayer in enumerate(model.sublayers):
        layer = f"model.layers.{event // 2}"
        if isinstance(sublayer, Attention):
            weights[f"{layer}.input_layernorm.weight"] = sublayer.norm.gain
            for name, part in zip("qkv", sublayer.qkv.weight.chunk(3), strict=True):
                weights[f"{layer}.self_attn.{name}_proj.weight"] = part
            weights[f"{layer}.self_attn.o_proj.weight"] = sublayer.out.weight
        else:
            weights[f"{layer}.post_attention_layernorm.weight"] = sublayer.norm.gain
            for kind in ("weight", "bias") if c.mlp_bias else ("weight",):
                gate, up = getattr(sublayer.gate_up, kind).chunk(2)
                weights |= {f"{layer}.mlp.gate_proj.{kind}": gate, f"{layer}.mlp.up_proj.{kind}": up}
                weights[f"{layer}.mlp.down_proj.{kind}"] = getattr(sublayer.down, kind)
    llama.load_state_dict({n: w.detach() for n, w in weights.items()})
    assert sum(p.numel() for p in llama.parameters()) == sum(p.numel() for p in model.parameters())
    return llama


def standard(dtype: torch.dtype, seed: int = 1, **sizes) -> Transformer:
    """A standard model with lively weights, and angles of another base than the usual one."""
    return shake(Transformer(ModelConfig(**(BACKBONE | sizes)), seed).to(dtype), seed, 0.3)


@pytest.mark.parametrize("sizes", [{}, {"mlp_bias": True}, {"rope_base": 77.0, "norm_eps": 1e-3}], ids=str)
def test_logits_are_llamas_in_float32(sizes):
    model, tokens = standard(torch.float32, **sizes), some_tokens(3, 40)
    ours, theirs = model(tokens), llama_of(model)(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())


class Rotary64(nn.Module):
    """Llama's table of cosines and sines, which it computes in float32 whatever its weights are, in float64."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        size = self.config.width // self.config.heads
        rate = self.config.rope_base ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = (position_ids[..., None] * rate).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def test_logits_and_gradients_are_llamas_in_float64():
    model, tokens = standard(torch.float64), some_tokens(3, 40)
    llama = llama_of(model)
    llama.model.rotary_emb = Rotary64(model.config)
    for layer in [llama.model, *llama.model.layers]:  # Llama's norm, too, is always float32: torch's is not
        for name, norm in list(layer.named_children()):
            if type(norm).__name__ == "LlamaRMSNorm":
                setattr(layer, name, exact := nn.RMSNorm(24, eps=1e-6).double())
                exact.load_state_dict(norm.state_dict())
    ours, theirs = model(tokens), llama(tokens).logits
    scale = theirs.abs().max().item()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12 * scale)
    targets = some_tokens(3, 40, seed=5)
    for logits in (ours, theirs):
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    pairs = [(model.embed.weight, llama.model.embed_tokens.weight), (model.norm.gain, llama.model.norm.weight)]
    for event, sublayer in enumerate(model.sublayers):
        layer = llama.model.layers[event // 2]
        if isinstance(sublayer, Attention):
            pairs.append((sublayer.out.weight, layer.self_attn.o_proj.weight))
            pairs.append((sublayer.norm.gain, layer.input_layernorm.weight))
        else:
            pairs.append((sublayer.down.weight, layer.mlp.down_proj.weight))
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-12)


def test_greedy_text_is_llamas():
    model = standard(torch.float64)
    prompt = torch.tensor([[ALPHABET.index(c) for c in "bad cafe"]])
    ours = generate(model, prompt, 40, temperature=0)
    theirs = llama_of(model).generate(
        prompt, max_new_tokens=40, do_sample=False, attention_mask=torch.ones_like(prompt), pad_token_id=0
    )
    texts = ["".join(ALPHABET[i] for i in row[0].tolist()) for row in (ours, theirs)]
    assert texts[0] == texts[1] and texts[0].startswith("bad cafe") and len(texts[0]) == 48
    assert len(set(texts[0][8:])) > 2  # not one letter for ever


# ---- fla-core ----


@pytest.fixture(scope="module")
def naive_attnres() -> Callable[..., Tensor]:
    """fla-core's reference read."""
    read = fla_read()
    if read is None:
        pytest.skip("fla-core, of the test extra, is not installed")
    return read


def by_hand(model: Transformer, tokens: Tensor, read: Callable[[int, list[Tensor]], Tensor]) -> Tensor:
    """Logits of a Block (or full) Attention Residuals model whose reads are made by `read(site, sources)`."""
    sources, active = [model.embed(tokens)], []
    rope = rotary_table(0, tokens.shape[1], model.config, sources[0])
    for event, place in enumerate(model.residual.places):
        u = model.sublayers[event](read(event, sources + active), rope)
        active = [active[0] + u] if active else [u]
        if place.last:
            sources, active = sources + active, []
    return F.linear(model.norm(read(model.config.events, sources)), model.embed.weight)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("scheme, blocks", [("attnres", "full"), ("block", 2), ("block", (3, 1, 4))], ids=str)
def test_attention_residuals_are_those_of_fla_core(naive_attnres, scheme, blocks, read):
    case = Case("", scheme, {"blocks": blocks, "read": read})
    model, tokens = shaken(case, dtype=torch.float32), some_tokens(3, 20)  # theirs computes in float32 only
    router = model.residual

    def outside(site, sources):
        return naive_attnres(router.query[site], [s.contiguous() for s in sources], router.key_gain[site], rms_eps=1e-6)

    theirs = by_hand(model, tokens, outside)
    scale = theirs.abs().max().item()
    torch.testing.assert_close(model(tokens), theirs, rtol=0, atol=1e-5 * scale)
    gradients = []
    for logits in (model(tokens), by_hand(model, tokens, outside)):
        model.zero_grad()
        (logits * noise(*logits.shape, dtype=torch.float32)).sum().backward()
        gradients.append([router.query.grad.clone(), router.key_gain.grad.clone(), model.embed.weight.grad.clone()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-5 * theirs.abs().max().item())


def test_a_read_weighs_as_fla_core_does(naive_attnres):
    router = shaken(Case("", "block", {"blocks": 2, "read": "plain"}), dtype=torch.float32).residual
    sources = tuple(noise(2, 5, 12, seed=i, dtype=torch.float32) * 10.0 ** (i - 2) for i in range(5))
    ours = router.weights(sources, 6)
    _, theirs = naive_attnres(router.query[6], sources, router.key_gain[6], rms_eps=1e-6, return_weights=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


# ---- attn-res ----


def attn_res_of(model: Transformer) -> nn.Module:
    """The same model in the package attn-res, which turns neighbouring channels in its rotary positions.

    Its other ways: keys have no gain, and what feeds the head is the plain sum of all sources.
    """
    outside = pytest.importorskip("attn_res.main", reason="attn-res, of the test extra, is not installed")
    c = model.config
    modes = {"standard": outside.AttnResMode.NONE, "attnres": outside.AttnResMode.FULL}
    config = outside.TransformerConfig(
        d_model=c.width,
        n_layers=c.events,
        n_heads=c.heads,
        n_kv_heads=c.heads,
        vocab_size=c.vocab_size,
        max_seq_len=c.max_context,
        ffn_mult=c.ff / c.width,
        attn_res_mode=modes.get(c.scheme, outside.AttnResMode.BLOCK),
        n_blocks=c.options.get("blocks", 1) if c.scheme == "block" else 1,
        eps=c.norm_eps,
        rope_theta=c.rope_base,
    )
    half = c.width // c.heads // 2
    pairs = torch.arange(c.width).view(c.heads, 2, half).mT.flatten()  # our (i, i + h/2) is their (2i, 2i + 1)
    weights = {"token_emb.weight": model.embed.weight, "lm_head.weight": model.embed.weight}
    weights["out_norm.weight"] = model.norm.gain
    for event, sublayer in enumerate(model.sublayers):
        layer = f"layers.{event}"
        weights[f"{layer}.norm.weight"] = sublayer.norm.gain
        if c.scheme != "standard":
            weights[f"{layer}.attn_res.pseudo_query"] = model.residual.query[event]
        if isinstance(sublayer, Attention):
            q, k, v = sublayer.qkv.weight.chunk(3)
            weights |= {f"{layer}.fn.w_q.weight": q[pairs], f"{layer}.fn.w_k.weight": k[pairs]}
            weights |= {f"{layer}.fn.w_v.weight": v, f"{layer}.fn.w_o.weight": sublayer.out.weight}
        else:
            gate, up = sublayer.gate_up.weight.chunk(2)
            weights |= {f"{layer}.fn.w_gate.weight": gate, f"{layer}.fn.w_up.weight": up}
            weights[f"{layer}.fn.w_down.weight"] = sublayer.down.weight
    theirs = outside.AttnResTransformer(config)
    theirs.load_state_dict({n: w.detach() for n, w in weights.items()})
    return theirs


KEYS = {"key_gain": False}


@pytest.mark.parametrize(
    "case",
    [Case("standard", "standard")]
    + under_every_read([Case("attnres", "attnres", KEYS), Case("block", "block", KEYS | {"blocks": 4})]),
    ids=str,
)
def test_logits_are_those_of_attn_res(case):
    model, tokens = shake(Transformer(tiny(case, ff=24)), 2, 0.3), some_tokens(3, 20)
    if case.scheme != "standard":
        # With a zero query the last read is the mean of its S sources, and theirs is their sum: the final norm makes
        # them one, if its epsilon is in proportion.
        with torch.no_grad():
            model.residual.query[-1].zero_()
        model.norm.eps /= (1 + case.options.get("blocks", 8)) ** 2
    ours, theirs = model(tokens), attn_res_of(model)(tokens)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())
