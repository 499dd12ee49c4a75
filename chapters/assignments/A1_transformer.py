# %% [markdown]
# # Assignment 1 · A Transformer from parts
#
# You write the backbone that every experiment of this book trains: nine small functions, from a softmax to a model
# that continues text. Chapter 01 explains each part; here you build them without looking.
#
# **How it works.** Under each answer stands a check. Run it as often as you like: it is silent when all is well, and
# otherwise says what to look at. More checks run when you hand in. They use other inputs and other shapes, so a
# function that only knows the examples will not do. A later task calls your earlier functions; if one of them is not
# right yet, fix it first. You may add cells, but leave the checks and the given cells as they are.
#
# Shapes: B sequences, T tokens, d channels, h channels of one head. Everything runs in float64, in seconds.

# %% nbgrader={"grade_id": "given_tools", "locked": true}
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from minihaares import checks, model
from minihaares.model import KVCache, ModelConfig, Transformer


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same ones each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lively(config: ModelConfig, seed: int = 0) -> Transformer:
    """A model in float64 whose parameters are all shaken, so that no gain of exactly 1 hides a mistake."""
    made = Transformer(config, seed=seed).double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter += 0.3 * noise(*parameter.shape, seed=1000 * seed + number)
    return made


# %% [markdown]
# ## 1 · Softmax
# *1 point · about 5 minutes · difficulty 1 of 3*
#
# `softmax(z)` turns scores into shares over the **last** axis: $e^{z_i} / \sum_j e^{z_j}$. Write it with `exp`, sums
# and the like (not with torch's own softmax), for inputs of any shape. Scores of 1000 must not become `nan`; a score
# of $-\infty$ gets the share 0.


# %% nbgrader={"grade_id": "softmax", "solution": true}
def softmax(z: Tensor) -> Tensor:
    """Shares over the last axis. z [..., n] -> [..., n]."""
    ### BEGIN SOLUTION
    e = (z - z.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_softmax", "grade": true, "points": 1}
checks.own_work(softmax, without=("softmax", "log_softmax"))
z = torch.tensor([[0.0, math.log(3)], [math.log(4), 0.0]], dtype=torch.float64)
checks.close(softmax(z), [[0.25, 0.75], [0.8, 0.2]], "e^0 = 1 and e^log 3 = 3 share the whole as 1 : 3, row by row.")
### BEGIN HIDDEN TESTS
big = torch.tensor([[1000.0, 1000.0], [0.0, 0.0], [-1000.0, -1000.0]], dtype=torch.float64)
checks.close(softmax(big), torch.full((3, 2), 0.5), "Subtract the row's own largest score first: it cancels out.")
checks.close(softmax(torch.tensor([0.0, -math.inf, 0.0])), [0.5, 0, 0.5], "A score of −∞ gets the share 0.")
checks.same_function(softmax, lambda x: F.softmax(x, -1), noise(2, 3, 4, 5), hint="Other shapes work, too.")
### END HIDDEN TESTS


# %% [markdown]
# ## 2 · RMSNorm
# *2 points · about 10 minutes · difficulty 1 of 3*
#
# $$\mathrm{RMSNorm}(x) = \frac{x}{\sqrt{\frac1d\sum_i x_i^2 + \epsilon}}\odot g$$
#
# The mean runs over the channels of one token, that is over the last axis and no other.


# %% nbgrader={"grade_id": "rms_norm", "solution": true}
def rms_norm(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    """x [..., d] and gain [d] -> [..., d]."""
    ### BEGIN SOLUTION
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_rms_norm", "grade": true, "points": 2}
checks.own_work(rms_norm, without=("rms_norm", "RMSNorm", "normalize", "layer_norm"))
pair = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
two = torch.tensor([2.0, 2.0], dtype=torch.float64)
root = math.sqrt(12.5 + 1e-6)
checks.close(rms_norm(pair, two), [[6 / root, 8 / root]], "The mean square of (3, 4) is 12.5; each gain here is 2.")
### BEGIN HIDDEN TESTS
x, gain = noise(2, 5, 8), noise(8, seed=1)
exact = x / torch.sqrt((x * x).sum(-1, keepdim=True) / 8 + 1e-6) * gain
checks.close(rms_norm(x, gain), exact, "Each token is divided by its own root mean square.")
checks.close(
    rms_norm(1e-3 * x, gain),
    1e-3 * x * gain / torch.sqrt((1e-6 * x * x).mean(-1, keepdim=True) + 1e-6),
    "For tiny inputs ε counts, and it stands under the root.",
)
checks.close(rms_norm(x, gain, 0.5), x * gain / torch.sqrt((x * x).mean(-1, keepdim=True) + 0.5), "Use the given ε.")
### END HIDDEN TESTS


# %% [markdown]
# ## 3 · Rotary positions
# *3 points · about 25 minutes · difficulty 2 of 3*
#
# Position $t$ turns the channel **pair** $(i,\ i + h/2)$ by the angle $t\cdot 10000^{-2i/h}$, for $i = 0 … h/2 - 1$:
#
# $$(a, b) \mapsto (a\cos\theta - b\sin\theta,\ \ b\cos\theta + a\sin\theta).$$
#
# `start` is the position of the first token.


# %% nbgrader={"grade_id": "rotate", "solution": true}
def rotate(x: Tensor, start: int = 0) -> Tensor:
    """x [..., T, h] -> [..., T, h]: row t is turned as position start + t."""
    ### BEGIN SOLUTION
    T, h = x.shape[-2:]
    speed = 10_000.0 ** (-torch.arange(h // 2, dtype=x.dtype) * 2 / h)
    angle = torch.arange(start, start + T, dtype=x.dtype)[:, None] * speed
    a, b = x[..., : h // 2], x[..., h // 2 :]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_rotate", "grade": true, "points": 3}
checks.own_work(rotate)
x = noise(3, 2)
checks.close(rotate(x)[0], x[0], "Position 0 is not turned.")
checks.close(rotate(x).norm(dim=-1), x.norm(dim=-1), "A rotation keeps lengths.")
turned = rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64))
checks.close(turned[1], [math.cos(1), math.sin(1)], "With h = 2 position 1 turns (1, 0) by one radian, to the left.")
### BEGIN HIDDEN TESTS
config = ModelConfig(width=16, heads=2)
x = noise(2, 2, 6, 8)
for begin in (0, 7):
    reference = model.rotate(x, model.rotary_table(begin, 6, config, x))
    checks.close(rotate(x, begin), reference, "Pairs are (i, i + h/2); speeds fall like 10000^(−2i/h); start counts.")
q, k = noise(1, 1, 8, seed=1).expand(1, 9, 8), noise(1, 1, 8, seed=2).expand(1, 9, 8)
score = (rotate(q) @ rotate(k).mT)[0]
checks.close(score[1:, 1:], score[:-1, :-1], "A score depends on the distance of the two positions alone.")
### END HIDDEN TESTS


# %% [markdown]
# ## 4 · Causal attention
# *3 points · about 20 minutes · difficulty 2 of 3*
#
# `attend(q, k, v)`: scores $q_t\cdot k_s / \sqrt h$, no sight of the future, shares, and their mean of the values.
# There may be fewer queries than keys: **the T queries are the last T of the S positions.** That is what generation
# needs, where old keys are kept and only new queries are made.


# %% nbgrader={"grade_id": "attend", "solution": true}
def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [..., T, h], k and v [..., S, h] with S >= T -> [..., T, h]."""
    ### BEGIN SOLUTION
    (T, h), S = q.shape[-2:], k.shape[-2]
    future = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return softmax((q @ k.mT / math.sqrt(h)).masked_fill(future, -math.inf)) @ v
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_attend", "grade": true, "points": 3}
checks.own_work(attend, without=("scaled_dot_product_attention",))
q, k = torch.ones(3, 1, dtype=torch.float64), torch.tensor([3.0, 1.0, 4.0], dtype=torch.float64).log()[:, None]
v = torch.tensor([[2.0], [4.0], [9.0]], dtype=torch.float64)
checks.close(
    attend(q, k, v),
    [[2.0], [2.5], [5.75]],
    "By hand: token 1 sees itself; token 2 shares 3 : 1 between 2 and 4; token 3 shares 3 : 1 : 4.",
)
### BEGIN HIDDEN TESTS
q, k, v = noise(2, 2, 5, 4), noise(2, 2, 5, 4, seed=1), noise(2, 2, 5, 4, seed=2)
reference = F.scaled_dot_product_attention(q, k, v, is_causal=True)
checks.close(attend(q, k, v), reference, "With heads of several channels the scores are divided by √h.")
checks.close(attend(q[..., 3:, :], k, v), reference[..., 3:, :], "The T queries are the last of the S positions.")
checks.close(attend(q[..., 4:, :], k, v), reference[..., 4:, :], "A single query, the last one, sees every position.")
### END HIDDEN TESTS


# %% [markdown]
# ## 5 · The attention sublayer
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# One matrix makes queries, keys and values at once: rows $0 … d-1$ of `qkv` the queries, then the keys, then the
# values. Each is cut into heads of consecutive channels; queries and keys are rotated; every head attends on its own;
# the heads are put side by side again and mixed by `out`. Matrices are stored `[out, in]`: apply them as `x @ W.T`.


# %% nbgrader={"grade_id": "attention", "solution": true}
def attention(x: Tensor, qkv: Tensor, out: Tensor, heads: int) -> Tensor:
    """x [B, T, d] (already normalised), qkv [3d, d], out [d, d] -> [B, T, d]."""
    ### BEGIN SOLUTION
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (x @ qkv.T).chunk(3, -1))
    return attend(rotate(q), rotate(k), v).transpose(1, 2).flatten(-2) @ out.T
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_attention", "grade": true, "points": 2}
def package_attention(x: Tensor, qkv: Tensor, out: Tensor, heads: int) -> Tensor:
    """The package's sublayer with these weights, without its norm."""
    sublayer = model.Attention(ModelConfig(width=x.shape[-1], heads=heads), prenorm=False)
    rope = model.rotary_table(0, x.shape[1], ModelConfig(width=x.shape[-1], heads=heads), x)
    named = {"qkv.weight": qkv, "out.weight": out}
    return torch.func.functional_call(sublayer, named, (x, rope))


checks.own_work(attention, without=("scaled_dot_product_attention",))
x, qkv, out = noise(2, 5, 8), noise(24, 8, seed=1), noise(8, 8, seed=2)
hint = "This is one head: rotate queries and keys (not values), attend (is it scaled by √h?), then mix with out."
checks.close(attention(x, qkv, out, 1), package_attention(x, qkv, out, 1), hint)
### BEGIN HIDDEN TESTS
hint = "With several heads, each holds consecutive channels and attends on its own: [B, T, d] → [B, heads, T, h]."
for heads in (2, 4):
    checks.same_function(
        lambda x, a, b: attention(x, a, b, heads),  # noqa: B023
        lambda x, a, b: package_attention(x, a, b, heads),  # noqa: B023
        *(noise(3, 4, 8, seed=3), qkv, out),
        hint=hint,
    )
### END HIDDEN TESTS


# %% [markdown]
# ## 6 · SwiGLU
# *1 point · about 10 minutes · difficulty 1 of 3*
#
# $\mathrm{MLP}(x) = W_\text{down}\big(\mathrm{silu}(W_\text{gate}x)\odot W_\text{up}x\big)$ with
# $\mathrm{silu}(a) = a/(1 + e^{-a})$. The first half of the rows of `gate_up` is the gate.


# %% nbgrader={"grade_id": "mlp", "solution": true}
def mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """x [B, T, d] (already normalised), gate_up [2f, d], down [d, f] -> [B, T, d]."""
    ### BEGIN SOLUTION
    gate, up = (x @ gate_up.T).chunk(2, -1)
    return (gate / (1 + (-gate).exp()) * up) @ down.T
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_mlp", "grade": true, "points": 1}
checks.own_work(mlp)
one, gate_up = torch.ones(1, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [3.0]], dtype=torch.float64)
by_hand = 2 / (1 + math.exp(-2)) * 3 * 5
checks.close(
    mlp(one, gate_up, torch.tensor([[5.0]], dtype=torch.float64)),
    [[[by_hand]]],
    "Here the gate is 2, up is 3 and down is 5: silu(2) · 3 · 5.",
)


### BEGIN HIDDEN TESTS
def package_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    sublayer = model.MLP(ModelConfig(width=x.shape[-1], ff=down.shape[1], heads=1), prenorm=False)
    return torch.func.functional_call(sublayer, {"gate_up.weight": gate_up, "down.weight": down}, (x, None))


inputs = noise(2, 3, 4), noise(12, 4, seed=1), noise(4, 6, seed=2)
checks.same_function(mlp, package_mlp, *inputs, hint="Values and gradients must be those of the package's MLP.")
### END HIDDEN TESTS


# %% [markdown]
# ## 7 · The whole model
# *3 points · about 25 minutes · difficulty 2 of 3*
#
# The stream begins as the embedding. Sublayers are counted in one row, attention (even) and MLP (odd) in turn; each
# reads the stream through a norm of its own and **adds** what it makes. At the end one more norm, and logits against
# the rows of the embedding (the tied head). `weights` holds tensors by the names that the package uses:
#
# ```text
# embed.weight   sublayers.0.norm.gain   sublayers.0.qkv.weight   sublayers.0.out.weight
#                sublayers.1.norm.gain   sublayers.1.gate_up.weight   sublayers.1.down.weight   …   norm.gain
# ```
#
# The number of sublayers is not given: count them in the names.


# %% nbgrader={"grade_id": "transformer", "solution": true}
def transformer(tokens: Tensor, weights: dict[str, Tensor], heads: int) -> Tensor:
    """tokens [B, T] -> logits [B, T, V]."""
    ### BEGIN SOLUTION
    stream = weights["embed.weight"][tokens]
    events = sum(name.startswith("sublayers.") and name.endswith(".norm.gain") for name in weights)
    for event in range(events):
        w = {name.split(".", 2)[2]: t for name, t in weights.items() if name.startswith(f"sublayers.{event}.")}
        x = rms_norm(stream, w["norm.gain"])
        if event % 2:
            stream = stream + mlp(x, w["gate_up.weight"], w["down.weight"])
        else:
            stream = stream + attention(x, w["qkv.weight"], w["out.weight"], heads)
    return rms_norm(stream, weights["norm.gain"]) @ weights["embed.weight"].T
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_transformer", "grade": true, "points": 3}
checks.own_work(transformer)
config = ModelConfig(vocab_size=11, layers=1, width=8, heads=2, ff=12)
reference = lively(config)
tokens = torch.tensor([[1, 5, 2, 10, 5], [7, 7, 0, 3, 9]])
weights = dict(reference.named_parameters())
checks.close(
    transformer(tokens, weights, 2),
    reference(tokens),
    "One layer: embed, then twice norm, sublayer, add; then the last norm and the embedding again.",
)
### BEGIN HIDDEN TESTS
for layers, heads in ((2, 1), (5, 4)):
    reference = lively(ModelConfig(vocab_size=13, layers=layers, width=16, heads=heads, ff=20), seed=layers)
    weights = dict(reference.named_parameters())
    tokens = torch.randint(13, (3, 6), generator=torch.Generator().manual_seed(0))
    checks.close(transformer(tokens, weights, heads), reference(tokens), f"This model has {layers} layers.")
    ours = torch.autograd.grad(transformer(tokens, weights, heads).square().sum(), list(weights.values()))
    theirs = torch.autograd.grad(reference(tokens).square().sum(), list(weights.values()))
    checks.close(list(ours), list(theirs), "The logits are right, the gradients are not.")
### END HIDDEN TESTS


# %% [markdown]
# ## 8 · Continue a text
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# `greedy(model, tokens, count)` appends the likeliest token, `count` times. Use a key–value cache, so that no token is
# read twice: `model(new_tokens, cache)` with `cache = KVCache(capacity)` reads the new tokens behind those that the
# cache holds and gives their logits `[B, number of new tokens, V]`. First the whole prompt is new, then one token at a
# time.


# %% nbgrader={"grade_id": "greedy", "solution": true}
def greedy(model, tokens: Tensor, count: int) -> Tensor:
    """tokens [B, T] -> [B, T + count], the prompt included."""
    ### BEGIN SOLUTION
    cache = KVCache(tokens.shape[1] + count)
    new = tokens
    for _ in range(count):
        new = model(new, cache)[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, new), 1)
    return tokens
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_greedy", "grade": true, "points": 2}
checks.own_work(greedy, without=("generate",), allowed=("KVCache",))
reference = lively(ModelConfig(vocab_size=11, layers=1, width=8, heads=2, ff=12), seed=1)
prompt = torch.tensor([[3, 7, 7, 1]])
checks.equal(
    greedy(reference, prompt, 4),
    model.generate(reference, prompt, 4, temperature=0).tolist(),
    "The next token is the argmax of the logits at the last position.",
)


### BEGIN HIDDEN TESTS
class Counting:
    """A model that notes how many tokens each call brought."""

    def __init__(self, inner: Transformer) -> None:
        self.inner, self.config, self.read = inner, inner.config, []

    def __call__(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        self.read.append(tokens.shape[1])
        return self.inner(tokens, cache)


counting = Counting(lively(ModelConfig(vocab_size=17, layers=3, width=16, heads=2, ff=12), seed=3))
prompt = torch.tensor([[1, 5, 2, 16, 0], [3, 3, 9, 1, 4]])
answer = greedy(counting, prompt, 6)
checks.equal(answer, model.generate(counting.inner, prompt, 6, temperature=0).tolist(), "Two rows, a longer prompt.")
assert sum(counting.read) <= 5 + 6, f"{sum(counting.read)} tokens were read; with the cache 5 + 5 are enough."
checks.equal(greedy(counting, prompt, 0), prompt.tolist(), "Asked for no token, it gives the prompt back.")
### END HIDDEN TESTS


# %% [markdown]
# ## 9 · Where the parameters are
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# A closed form, no model needed: how many parameters has a Transformer of `layers` layers, `width` channels, `ff`
# hidden units in its MLP and `vocab` tokens? The head is tied to the embedding, no linear layer has a bias, and the
# rotary positions are not learned.


# %% nbgrader={"grade_id": "count_parameters", "solution": true}
def count_parameters(vocab: int, layers: int, width: int, ff: int) -> int:
    """The number of trained numbers."""
    ### BEGIN SOLUTION
    attention_and_norm = 4 * width * width + width
    mlp_and_norm = 3 * width * ff + width
    return vocab * width + layers * (attention_and_norm + mlp_and_norm) + width
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_count_parameters", "grade": true, "points": 2}
config = ModelConfig(vocab_size=5, layers=1, width=4, heads=2, ff=6)
count = sum(p.numel() for p in Transformer(config).parameters())
checks.equal(count_parameters(5, 1, 4, 6), count, "Look at the names and shapes in task 7 and add them up.")
### BEGIN HIDDEN TESTS
for vocab, layers, width, ff in ((11, 3, 8, 20), (256, 2, 32, 128), (7, 1, 6, 5)):
    config = ModelConfig(vocab_size=vocab, layers=layers, width=width, heads=1, ff=ff)
    count = sum(p.numel() for p in Transformer(config).parameters())
    checks.equal(
        count_parameters(vocab, layers, width, ff), count, f"V = {vocab}, L = {layers}, d = {width}, f = {ff}."
    )
checks.equal(round(count_parameters(256, 48, 512, 2048) / 1e6, 1), 201.5, "The paper's medium model has 201.5 M.")
### END HIDDEN TESTS
