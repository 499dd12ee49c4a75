# %% [markdown]
# # 01 · The Transformer: what is the smallest one that is not a toy?
#
# A language model reads the tokens so far and says how likely each possible next token is. This chapter builds one
# from matrix products, a softmax and two small formulas, in functions of a few lines each, and holds every part to
# the package: same weights in, same outputs **and** same gradients out, in float64. *Not a toy* means three things
# here: the model is the backbone that all experiments of this book train, up to 48 layers deep; it writes new text
# without reading its own again and again; and it has, to the digit given, as many parameters as the models of the
# HAARES paper (arXiv 2606.06564).
#
# > **You will build** embedding, RMSNorm, rotary positions, causal attention, SwiGLU, the residual stream, the tied
# > head, and a generator with a key–value cache.
# >
# > **You will learn** what each part is for, how a model betrays that it can see the future, what an untrained model
# > says, and where the parameters are.
# >
# > **You need** Python and a little PyTorch: tensors, shapes, `backward()`. Chapter 00 shows how to run a notebook.
# >
# > **Runs in** about 12 seconds on 2 cores, without a network.

# %%
import inspect
import math

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

from minihaares import plots
from minihaares.model import FAMILIES, KVCache, ModelConfig, Transformer, generate, rotary_table
from minihaares.model import rotate as package_rotate

plots.use_style()
torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)

# %% [markdown]
# ## One step by hand
#
# The heart of a Transformer is *attention*: each position takes a weighted mean over itself and what came before.
# Take three tokens that carry one number each, their **values** $v = 2, 4, 9$. Each also has a **key** $k$ and a
# **query** $q$, and the product $q_t k_s$ is the score that position $t$ gives to position $s$. A softmax turns
# scores into shares, which are proportional to $e^{\text{score}}$ and add up to one.
#
# To keep the arithmetic in reach of a pencil, let every query be 1 and the keys $\log 3, \log 1, \log 4$.
# Shares are then proportional to $3, 1, 4$, and
#
# * token 1 sees only itself and gets $2$;
# * token 2 shares $3 : 1$ between $2$ and $4$ and gets $(3\cdot 2 + 1\cdot 4)/4 = 2.5$;
# * token 3 gets $(3\cdot 2 + 1\cdot 4 + 4\cdot 9)/8 = 5.75$.

# %%
values, keys, queries = [2.0, 4.0, 9.0], [math.log(3), math.log(1), math.log(4)], [1.0, 1.0, 1.0]
by_hand = []
for t in range(3):
    shares = [math.exp(queries[t] * keys[s]) for s in range(t + 1)]  # the past and the present, never the future
    by_hand.append(sum(share * values[s] for s, share in enumerate(shares)) / sum(shares))
print("outputs:", [f"{y:.2f}" for y in by_hand])
assert all(math.isclose(y, expected) for y, expected in zip(by_hand, (2, 2.5, 5.75), strict=True))

# %% [markdown]
# The `range(t + 1)` is what makes the model *causal*. With `range(3)` every token would get 5.75: the first would
# already hold a share of the 9 that comes two places later. Remember that; it is the wrong turn of this chapter.
#
# ## A small model to compare with
#
# All other parts are checked on two sentences of the same letters. A token is one letter here (chapter 02 has more to
# say about that), so a sentence is a row of small integers.

# %%
sentences = ["the cat sat on the mat.", "the mat sat on the cat."]
letters = sorted(set("".join(sentences)))
tokens = torch.tensor([[letters.index(c) for c in s] for s in sentences])  # [B, T]
B, T, V = *tokens.shape, len(letters)
print(f"B = {B} sequences, T = {T} tokens each, V = {V} letters:", letters)
print(tokens[0].tolist())

# %% [markdown]
# The package's model, at a size for looking at. Freshly drawn, all its norm gains are exactly 1 and its matrices are
# tiny, so an error such as a forgotten gain would not show. We therefore shake every parameter before comparing.

# %%
config = ModelConfig(vocab_size=V, layers=3, width=32, heads=2, ff=64)
# Full size beside it: "pocket" is 48 layers of width 32, 2 heads, ff 128; the paper's "medium" 48, 512, 8, 2048.
d, heads, ff, h = config.width, config.heads, config.ff, config.width // config.heads  # h: channels of one head

model = Transformer(config, seed=42).double()
with torch.no_grad():
    for parameter in model.parameters():
        parameter += 0.2 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)

w = dict(model.named_parameters())  # the weights, by name: our functions use these very tensors
for name, parameter in [*w.items()][:7]:
    print(f"{name:30s} {list(parameter.shape)}")
print(f"… and {len(w) - 7} more")


# %% [markdown]
# Sublayers 0, 2, 4 are attention and 1, 3, 5 are MLPs; this book calls them **events** and counts them in one row.
# The list shows the first two. Matrices are stored as `[out, in]`, so they are applied as `x @ W.T`.
#
# The measuring tool: two results are equal if the outputs agree to rounding and so do the gradients with respect to
# every input named. An output can be right by luck on one input; gradients see the whole formula around it.

# %%
def check_equal(ours, theirs, *inputs):
    """`ours` and `theirs` agree, and so do the gradients of one random weighted sum of each."""
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    direction = torch.randn_like(ours)
    pairs = zip(*(torch.autograd.grad(y, inputs, direction, retain_graph=True) for y in (ours, theirs)), strict=True)
    for our_gradient, their_gradient in pairs:
        torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-9, atol=1e-11)
    print(f"equal: outputs {list(ours.shape)}; tensors with equal gradients: {len(inputs)}")


# %% [markdown]
# ## Embedding: from a letter to a vector
#
# A table $E$ with one row of $d$ numbers for each letter. Looking up a row is the same as multiplying a *one-hot*
# vector (all 0 but for a single 1) with the table, only cheaper.

# %%
def embed(tokens, table):  # [B, T] and [V, d] -> [B, T, d]
    return table[tokens]


x = embed(tokens, w["embed.weight"])
one_hot = F.one_hot(tokens, V).double()  # [B, T, V]
check_equal(x, one_hot @ w["embed.weight"], w["embed.weight"])
check_equal(x, model.embed(tokens), w["embed.weight"])


# %% [markdown]
# ## RMSNorm: keep the direction, set the length
#
# Vectors in a deep network grow and shrink. Before a sublayer looks at one, it divides it by its root mean square, so
# that a typical entry has size 1, and multiplies each channel by a learned gain $g$:
#
# $$\mathrm{RMSNorm}(x) = \frac{x}{\sqrt{\frac1d\sum_i x_i^2 + \epsilon}}\odot g,\qquad \epsilon = 10^{-6}.$$
#
# By hand, $x = (3, 4)$: the mean square is $(9 + 16)/2 = 12.5$, its root $3.536$, the result $(0.849, 1.131)$. Ten
# times the vector gives the same result. Unlike LayerNorm it subtracts no mean and adds no bias. The mean runs over
# the channels of **one** token: this, too, will matter.

# %%
def rms_norm(x, gain):  # [..., d] -> [..., d]
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


pair = torch.tensor([3.0, 4.0], dtype=torch.float64)
print("RMSNorm of ( 3,  4):", [f"{y:.3f}" for y in rms_norm(pair, 1)])
print("RMSNorm of (30, 40):", [f"{y:.3f}" for y in rms_norm(10 * pair, 1)])

x = torch.randn(B, T, d, dtype=torch.float64, requires_grad=True)  # a stand-in for any stream, from here on
check_equal(rms_norm(x, w["norm.gain"]), model.norm(x), x, w["norm.gain"])

# %% [markdown]
# A check that cannot fail checks nothing. So, once, on purpose: the gain is left out.

# %%
try:
    check_equal(rms_norm(x, 1), model.norm(x), x)
    refused = False
except AssertionError:
    refused = True
assert refused, "the check let a missing gain pass"
print("refused, as it should be")


# %% [markdown]
# ## Rotary positions: where a token is, as an angle
#
# A weighted mean does not know the order of what it averages. Rotary positions write the order into queries and keys.
# Take the $h$ channels of one head in pairs $(i, i + h/2)$ and read each pair as one complex number, a hand on a clock
# face. At position $t$, turn the hand by the angle $t\,\theta_i$, where every pair has its own speed
# $\theta_i = 10000^{-2i/h}$: the first turns by one radian a token, the last ones hardly at all.
#
# The score of a query at $t$ and a key at $s$ is a sum over pairs of
#
# $$\mathrm{Re}\left[\,q\,e^{\mathrm{i}t\theta}\;\overline{k\,e^{\mathrm{i}s\theta}}\,\right]
# = \mathrm{Re}\left[\,q\,\bar k\;e^{\mathrm{i}(t-s)\theta}\,\right],$$
#
# in which only the *distance* $t - s$ is left. So the model need not learn anew at each place in the text what "the
# letter before" means.

# %%
def speeds(h):  # radians a token, [h/2]
    return 10_000.0 ** (-torch.arange(0, h, 2, dtype=torch.float64) / h)


def rotate(x, start=0):  # [..., T, h]; the first row stands at position `start`
    a, b = x.chunk(2, dim=-1)  # real and imaginary parts: channels i and i + h/2
    position = torch.arange(start, start + x.shape[-2], dtype=torch.float64)
    angle = position[:, None] * speeds(x.shape[-1])  # [T, h/2]
    hand = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((hand.real, hand.imag), dim=-1)


print("tokens for one full turn:", [round(2 * math.pi / s) for s in speeds(h).tolist()])

q = torch.randn(B, heads, T, h, dtype=torch.float64, requires_grad=True)
check_equal(rotate(q, start=5), package_rotate(q, rotary_table(5, T, config, x)), q)

# %% [markdown]
# The promise about distances, put to the test: the scores between all pairs of positions do not change when the whole
# text moves a thousand tokens to the right, and along each diagonal of the score table, where the distance is the
# same, the score of one fixed query and one fixed key is the same.

# %%
k = torch.randn(B, heads, T, h, dtype=torch.float64, requires_grad=True)
here, far_away = rotate(q) @ rotate(k).mT, rotate(q, 1000) @ rotate(k, 1000).mT  # [B, heads, T, T]
torch.testing.assert_close(here, far_away, rtol=1e-9, atol=1e-9)

one_query, one_key = (torch.randn(1, h, dtype=torch.float64, generator=generator).expand(64, h) for _ in range(2))
score = rotate(one_query) @ rotate(one_key).mT  # [64, 64]: the same q at every t, the same k at every s
torch.testing.assert_close(score[1:, 1:], score[:-1, :-1], rtol=1e-9, atol=1e-9)
print("equal: scores depend on the distance alone")

# %%
angle = torch.arange(12)[None, :] * speeds(h)[:, None]  # [h/2, 12]
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
column, row = torch.meshgrid(torch.arange(12), torch.arange(h // 2), indexing="xy")
left.scatter(column, row, s=330, facecolor="white", edgecolor="0.75")
left.quiver(column, row, angle.cos(), angle.sin(), scale=26, width=0.006, pivot="tail")
left.set(title="Each pair of channels is a clock hand", xlabel="position", ylabel="pair $i$", xlim=(-0.7, 11.7))
left.set_ylim(7.7, -0.7)
left.grid(False)
styles = ((63, "0.75", "-", 6), (40, "0.35", "-", 2.5), (20, "black", ":", 2.5))
for t, colour, line, width in styles:
    right.plot(torch.arange(t + 1), score[t, : t + 1].flip(0), color=colour, ls=line, lw=width, label=f"query at {t}")
right.set(title="One query, one key: distance decides", xlabel="distance $t - s$", ylabel="score $q_t · k_s$")
right.legend()
plots.show(
    fig,
    alt="Left: a grid of clock hands, positions 0 to 11 across and the eight channel pairs of a head down. The hand of "
    "pair 0 turns by one radian per position, that of pair 1 by a third of that, and those of the last pairs do not "
    "visibly move. Right: the score of one fixed query and one fixed key against their distance, for queries at "
    "positions 20, 40 and 63. The three curves lie exactly on top of each other.",
)


# %% [markdown]
# ## Attention: a weighted mean over the past
#
# Now the toy case at full strength. Each token is projected to a query, a key and a value; the channels are split into
# heads of $h$ channels, each of which attends on its own; scores are divided by $\sqrt h$ so that their size does not
# grow with $h$; the future is struck out by setting its scores to $-\infty$, so that its share is $e^{-\infty} = 0$. In
# the softmax, the largest score is subtracted first. It cancels in the quotient, and without it $e^{1000}$ is infinite.

# %%
def softmax(z):  # over the last axis
    e = (z - z.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def attend(q, k, v):  # q [..., T, h]; k, v [..., S, h], S >= T: the queries are the last T of S positions
    (T, h), S = q.shape[-2:], k.shape[-2]
    future = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    weights = softmax((q @ k.mT / math.sqrt(h)).masked_fill(future, -math.inf))  # [..., T, S]
    return weights @ v, weights


assert torch.equal(softmax(torch.tensor([1000.0, 1000.0])), torch.tensor([0.5, 0.5]))
toy = [torch.tensor(numbers)[:, None] for numbers in (queries, keys, values)]  # the case by hand: T = 3, h = 1
print("by hand, again:", [f"{y:.2f}" for y in attend(*toy)[0].flatten().tolist()])

v = torch.randn(B, heads, T, h, dtype=torch.float64, requires_grad=True)
check_equal(attend(q, k, v)[0], F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)


# %% [markdown]
# PyTorch's `scaled_dot_product_attention` does the same without ever storing the $T\times T$ table of shares, which is
# why the package calls it. Around it, an attention sublayer needs only two matrices:

# %%
def split(x, heads):  # [B, T, d] -> [B, heads, T, h]
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attention(x, w, attend=attend):  # x [B, T, d], already normalised
    q, k, v = (split(piece, heads) for piece in (x @ w["qkv.weight"].T).chunk(3, dim=-1))
    y, _ = attend(rotate(q), rotate(k), v)  # [B, heads, T, h]; values are not rotated
    return y.transpose(1, 2).flatten(-2) @ w["out.weight"].T  # heads side by side again, then mixed


def part(w, event):  # the weights of one sublayer, by their short names
    prefix = f"sublayers.{event}."
    return {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}


p = part(w, 0)
theirs = model.sublayers[0](x, rotary_table(0, T, config, x))  # the package's sublayer norms its own input
check_equal(attention(rms_norm(x, p["norm.gain"]), p), theirs, x, *p.values())

# %% [markdown]
# What can such shares express? No training is needed to see it: we can write queries and keys down. Three heads on one
# sentence: one whose scores are all zero; one whose query is its own key turned back by one token, so that it matches
# the key one place earlier, whatever the letters are; and one that ignores position and scores equal letters high.

# %%
same = 3 * torch.ones(T, h, dtype=torch.float64)  # [T, h]: every position asks and answers alike
letter = 5 * F.one_hot(tokens[0], V).double()  # [T, V]: one channel for each letter
patterns = {
    "all scores 0: the mean so far": attend(0 * same, 0 * same, same)[1],
    "position: one step back": attend(rotate(same, start=-1), rotate(same), same)[1],
    "content: the same letter": attend(letter, letter, letter)[1],
}
previous, last_t = patterns["position: one step back"].diagonal(-1), len(sentences[0]) - 2
print(f"one step back: from position 3 on, the letter before gets {previous[2:].min():.2f} or more")
seen = [s for s, share in enumerate(patterns["content: the same letter"][last_t]) if share > 0.1]
print(f"same letter: the last t, at position {last_t}, looks at", seen)

# %%
fig, axes = plt.subplots(1, 3, figsize=(11, 4.1))
edge = torch.arange(T + 1) - 0.5
for axis, (title, weights) in zip(axes, patterns.items(), strict=True):
    axis.imshow(weights.sqrt(), cmap="Greys", vmin=0, vmax=1)  # the square root makes small shares visible
    axis.fill_between(edge, edge, -0.5, step="post", hatch="///", facecolor="none", edgecolor="0.8", linewidth=0)
    axis.grid(False)
    axis.set_title(title, fontsize=10)
    axis.set_xticks(range(T), list(sentences[0].replace(" ", "␣")), fontsize=8)
    axis.set_yticks(range(T), list(sentences[0].replace(" ", "␣")), fontsize=8)
    axis.set_xlabel("looked at")
axes[0].set_ylabel("looks from")
plots.show(
    fig,
    alt="Three square attention patterns over the letters of 'the cat sat on the mat.' Rows look at columns, darker is "
    "a larger share. The upper triangle, the future, is hatched and empty. First: every row spreads evenly over itself "
    "and all earlier letters. Second: one dark line just below the diagonal, each letter looks at the one before. "
    "Third: scattered dark cells wherever row and column hold the same letter, for instance each t at all earlier t's.",
)


# %% [markdown]
# Order from angles, meaning from content, and the future out of reach. A trained head mixes all three.
#
# ## SwiGLU: thinking about one token at a time
#
# Attention moves information between positions; the MLP works on each position alone. It widens a token's $d$ channels
# to twice $f$, lets one half gate the other, and narrows the product back to $d$:
#
# $$\mathrm{MLP}(x) = W_\text{down}\,\big(\mathrm{silu}(W_\text{gate}x)\odot W_\text{up}x\big),\qquad
# \mathrm{silu}(a) = \frac{a}{1 + e^{-a}}.$$
#
# A gate of $-5$ all but closes its channel, one of $+5$ all but multiplies by five.

# %%
def silu(a):
    return a / (1 + (-a).exp())


def mlp(x, w):  # [B, T, d] -> [B, T, d]
    gate, up = (x @ w["gate_up.weight"].T).chunk(2, dim=-1)  # 2 × [B, T, ff]
    return (silu(gate) * up) @ w["down.weight"].T


print("silu of -5, 0, 5:", [f"{y:.3f}" for y in silu(torch.tensor([-5.0, 0.0, 5.0])).tolist()])
p = part(w, 1)
check_equal(mlp(rms_norm(x, p["norm.gain"]), p), model.sublayers[1](x, None), x, *p.values())


# %% [markdown]
# ## The residual stream, and the whole model
#
# The parts hang together by one vector per token, the **residual stream** $x$. It begins as the embedding. Each event
# reads a normalised copy of it and *adds* what it made:
#
# $$x \leftarrow x + F_i\big(\mathrm{RMSNorm}_i(x)\big),\qquad i = 0, 1, \dots, 2L - 1.$$
#
# ```text
# tokens ─▸ E ─┬───────────────────▸ + ─┬─────────────▸ + ─▸ … ─▸ norm ─▸ Eᵀ ─▸ logits
#              └▸ norm ▸ attention ▸─┘  └▸ norm ▸ MLP ▸─┘
# ```
#
# The norm stands before the sublayer and not on the stream (*PreNorm*), so the upper line is a free way from every
# event to the head, and back for gradients. At the end, one more norm, and the **tied head**: the score of a letter as
# the next one, its **logit**, is the product of the stream with that letter's own row of $E$. Reading and writing
# share one table, and a softmax over the logits gives the probabilities. (`attend` and `norm` are arguments because we
# shall put wrong ones in their place.)

# %%
def transformer(tokens, w, attend=attend, norm=rms_norm, layers=config.layers):  # [B, T] -> logits [B, T, V]
    stream = embed(tokens, w["embed.weight"])
    for event in range(2 * layers):
        p = part(w, event)
        read = norm(stream, p["norm.gain"])
        stream = stream + (mlp(read, p) if event % 2 else attention(read, p, attend))
    return norm(stream, w["norm.gain"]) @ w["embed.weight"].T


check_equal(transformer(tokens, w), model(tokens), *w.values())
print(f"that is every one of the {len(w)} parameter tensors of a {config.layers}-layer model")

# %% [markdown]
# That is the whole Transformer. In the package the two lines that touch the stream are not written out but asked of an
# object, because they are what this book is about. It answers four questions, the **four verbs**: how does the stream
# *begin*, what does an event *read*, what becomes of what it *writes*, and what does the head see at the *readout*?

# %%
residual = model.residual
state = residual.begin(model.embed(tokens))
outputs = []
for event, sublayer in enumerate(model.sublayers):
    seen, state = residual.read(state, event)
    outputs.append(sublayer(seen, rotary_table(0, T, config, seen)))
    state = residual.write(state, event, outputs[-1])
stream = residual.readout(state)

torch.testing.assert_close(model.norm(stream) @ w["embed.weight"].T, model(tokens))
torch.testing.assert_close(stream, model.embed(tokens) + sum(outputs))
print(f"equal: the stream at the end is the embedding plus the sum of all {len(outputs)} outputs")


# %% [markdown]
# A plain sum, in which each event's output has weight 1. Whether that is the best thing to do with them is the
# question of chapters 04 to 18.
#
# ## A wrong turn: seeing the future
#
# A model is trained to predict the next token at all positions at once, so position $t$ must not know the token at
# $t + 1$: it is the answer. Two ways to let it know by accident: forget the mask, or let the mean of the norm
# run over time as well as over channels, which looks harmless because a mean square is only one number. The test for
# both is to change the last letter of each sentence and to watch the logits at all *earlier* positions. They should
# not move at all.

# %%
def attend_to_all(q, k, v):  # the mask is forgotten
    weights = softmax(q @ k.mT / math.sqrt(q.shape[-1]))
    return weights @ v, weights


def norm_over_time(x, gain):  # the mean runs over T as well
    return x / (x.square().mean((-2, -1), keepdim=True) + 1e-6).sqrt() * gain


def leak(**parts):  # how far earlier logits move, as a share of how far those of the changed letter itself move
    changed = tokens.clone()
    changed[:, -1] = letters.index("h")  # "the cat sat on the math"
    move = (transformer(changed, w, **parts) - transformer(tokens, w, **parts)).norm(dim=-1)  # [B, T]
    return (move[:, :-1].mean() / move[:, -1].mean()).item()


leaks = {"as built": leak(), "no mask": leak(attend=attend_to_all), "norm over time": leak(norm=norm_over_time)}
for name, share in leaks.items():
    print(f"{name:15s} {share:.3f}")
assert leaks["as built"] < 1e-12 < 1e-4 < min(leaks["no mask"], leaks["norm over time"])

# %% [markdown]
# Does a leak of that size matter? Train on text that **cannot** be predicted: letters drawn at random from 8, new ones
# at every step. The loss is the mean of $-\log p$, where $p$ is the probability that the model gave to the letter that
# came; with natural logarithms its unit is the nat. No honest model can do better than $\log 8$ nats here, which it
# gets by giving each letter one eighth: that is the *floor* of this text. Three models, equal but for the leak, start
# from equal weights and see equal letters.

# %%
small = ModelConfig(vocab_size=8, layers=2, width=d, heads=heads, ff=ff)
STEPS, LENGTH = 150, 16


def train_on_noise(**parts):
    weights = {name: p.detach().requires_grad_() for name, p in Transformer(small, seed=42).double().named_parameters()}
    optimiser = torch.optim.AdamW(weights.values(), lr=1e-2, weight_decay=0)
    letters_drawn, losses = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        drawn = torch.randint(8, (16, LENGTH + 1), generator=letters_drawn)
        logits = transformer(drawn[:, :-1], weights, layers=small.layers, **parts)  # sees letters 0 … 15
        loss = F.cross_entropy(logits.flatten(0, 1), drawn[:, 1:].flatten())  # must say letters 1 … 16
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


# %% tags=["nbval-ignore-output"]
curves = {
    "as built": train_on_noise(),
    "norm over time": train_on_noise(norm=norm_over_time),
    "no mask": train_on_noise(attend=attend_to_all),
}
floor = math.log(8)
final = {name: sum(losses[-20:]) / 20 for name, losses in curves.items()}
print(f"{'floor, log 8':15s} {floor:.3f} nats a letter")
for name, loss in final.items():
    print(f"{name:15s} {loss:.3f}   (mean of the last 20 steps)")

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
looks = {"as built": (plots.BLACK, "-"), "norm over time": (plots.ORANGE, "-."), "no mask": (plots.BLUE, "--")}
for axis in (left, right):
    for name, (colour, line) in looks.items():
        smooth = torch.tensor(curves[name]).unfold(0, 20, 1).mean(-1)  # means of 20 steps
        axis.plot(torch.arange(20, STEPS + 1), smooth, color=colour, ls=line, label=name)
    axis.axhline(floor, **plots.FLOOR_STYLE["exact"] | {"label": "floor, log 8"})
    axis.axhline(floor / LENGTH, **plots.FLOOR_STYLE["forgetful"] | {"label": "all but one letter copied"})
    axis.set(xlabel="step", ylim=(0, 2.3) if axis is left else (floor - 0.1, floor + 0.05))
left.set(title="A loss below the floor is a leak", ylabel="loss, nats a letter")
right.set(title="The same, close to the floor")
left.legend(loc="upper right", bbox_to_anchor=(1, 0.88))
plots.show(
    fig,
    alt="Training loss on random letters against the step, for three models. As built, the loss stays on the floor, "
    "log 8 = 2.08 nats. Without the mask it falls steeply after a few dozen steps, towards a sixteenth of the floor. "
    "With a norm over time it looks like the honest one at first; close to the floor, in the second panel, it is seen "
    "to sink steadily below it.",
)

assert abs(final["as built"] - floor) < 0.02, "nothing to learn, nothing learned"
assert final["norm over time"] < floor - 0.02, "below the floor: it sees the future"
assert floor / LENGTH < final["no mask"] < floor / 4, "copies what it should predict"

# %% [markdown]
# The model without a mask learned to copy: it looks one step *ahead* where a good model would look one step back. Only
# the last letter of each window it cannot see, so it could at best reach a sixteenth of the floor, the dotted line.
# That is gross enough to notice. The norm over time is the dangerous one: a leak of a few hundredths, through one
# number in each norm, and yet the optimiser turns it into a loss that no honest model can have. Had this been real
# text, whose floor nobody knows, it would have looked like a small improvement. Hence two habits of this book: every
# scheme passes a causality test, and the built-in stories (chapter 02) have a floor that is known exactly. Chapter 08
# meets the same trap in the middle of HAARES.
#
# ## What does an untrained model say?
#
# All matrices, the table included, start as normal numbers of standard deviation $0.02$, all gains as 1. So before the
# first step we can predict by hand what the model says. A normalised stream has entries of size 1, a row of $E$ has $d$
# entries of size $0.02$, so a logit is a number of size $0.02\sqrt d$. One logit is special: at the embedding, a token
# meets *its own* row, and the logit is $E_t\cdot E_t/\mathrm{RMS}(E_t) \approx 0.02\,d$. So a tied model without layers
# leans towards saying every token twice. Each event then adds a vector that has nothing to do with $E_t$, whose share
# in the stream shrinks. Below, "unshifted" is the loss of a classic mistake: asking the model for the token it was just
# given instead of the one that follows.

# %%
V_paper = 256  # the paper's character vocabulary; the "small" family has d = 128
noise = torch.randint(V_paper, (8, 65), generator=torch.Generator().manual_seed(0))
inputs, targets = noise[:, :-1], noise[:, 1:].flatten()
print(f"by hand:     other logits ±{0.02 * 128**0.5:.3f}   own logit {0.02 * 128:.3f}   log V {math.log(V_paper):.3f}")
for layers in (0, 1, 4, 12):
    fresh = Transformer(ModelConfig(layers=max(layers, 1), **FAMILIES["small"]), seed=42).double()
    with torch.no_grad():
        stream = fresh.embed(inputs)
        for sublayer in fresh.sublayers[: 2 * layers]:
            stream = stream + sublayer(stream, rotary_table(0, 64, fresh.config, stream))
        logits = fresh.norm(stream) @ fresh.embed.weight.T
    own, others = logits.gather(-1, inputs[..., None]).mean(), logits.scatter(-1, inputs[..., None], 0.0).std()
    loss, unshifted = (F.cross_entropy(logits.flatten(0, 1), answers) for answers in (targets, inputs.flatten()))
    print(f"layers: {layers:2d}   other logits ±{others:.3f}   own logit {own:.3f}", end="   ")
    print(f"loss {loss:.3f}   unshifted {unshifted:.3f}")


# %% [markdown]
# The first loss of a run is therefore a free test. It should be a little above $\log V$, the loss of a model that finds
# all tokens equally likely. If it is far above, the weights are too large or a norm is missing; if it is clearly below,
# the model is asked for what it was just told.
#
# ## Saying something: generation with a key–value cache
#
# To write, the model predicts one token, appends it and reads again. Reading the whole text again for every new
# token is wasteful: the past cannot see the new token, so its keys and values do not change. We keep them, and
# give the model only what is new. Our `attend` was made for it (its queries are the last $T$ of $S$ positions), and
# `rotate` takes the place to start from.

# %%
def attention_step(x, w, past):  # x [B, n, d]: the new tokens; past: their predecessors' keys and values, or None
    q, k, v = (split(piece, heads) for piece in (x @ w["qkv.weight"].T).chunk(3, dim=-1))
    start = 0 if past is None else past[0].shape[-2]
    q, k = rotate(q, start), rotate(k, start)
    if past is not None:
        k, v = torch.cat((past[0], k), dim=-2), torch.cat((past[1], v), dim=-2)  # [B, heads, start + n, h]
    y, _ = attend(q, k, v)
    return y.transpose(1, 2).flatten(-2) @ w["out.weight"].T, (k, v)


def transformer_step(new, w, cache):  # new [B, n] -> logits [B, n, V]; cache: event -> (k, v), filled here
    stream = embed(new, w["embed.weight"])
    for event in range(config.events):
        p = part(w, event)
        read = rms_norm(stream, p["norm.gain"])
        if event % 2:
            stream = stream + mlp(read, p)
        else:
            made, cache[event] = attention_step(read, p, cache.get(event))
            stream = stream + made
    return rms_norm(stream, w["norm.gain"]) @ w["embed.weight"].T


# %%
cache, package_cache = {}, KVCache(capacity=T)
pieces = tokens.split([7, 1, 1, T - 9], dim=1)  # 7 tokens, then one, then one, then the rest
ours = torch.cat([transformer_step(piece, w, cache) for piece in pieces], dim=1)
check_equal(ours, model(tokens), *w.values())
with torch.no_grad():  # the package writes its cache in place, so it is for generation only
    theirs = torch.cat([model(piece, package_cache) for piece in pieces], dim=1)
torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
print("equal: the package's cached logits")


# %% [markdown]
# How to choose from the logits? *Greedy* takes the likeliest token. Otherwise we draw, after two adjustments: dividing
# the logits by a **temperature** raises all probabilities to the power $1/\text{temperature}$ before they are
# made to add up to one again, and **top-k** strikes out all but the $k$ likeliest. By hand, with shares
# $8 : 4 : 2 : 1 : 1$: temperature ½ squares them, to $64 : 16 : 4 : 1 : 1$, and top-2 leaves $8 : 4$.

# %%
def probabilities(logits, temperature=1.0, top_k=None):
    if top_k is not None:
        kth = logits.topk(top_k).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -math.inf)
    return softmax(logits / temperature)


shares = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0])
for settings in ({}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 2}):
    print(f"{settings!s:20s}", [f"{p:.4f}" for p in probabilities(shares.log(), **settings).tolist()])


# %%
def write(prompt, count, cached=True, draws=None, **settings):  # [B, n] -> [B, n + count], and the tokens processed
    text, new, cache, processed = prompt, prompt, {}, 0
    for _ in range(count):
        logits = (transformer_step(new, w, cache) if cached else transformer(text, w))[:, -1].float()
        processed += new.shape[1] if cached else text.shape[1]
        if draws is None:  # greedy
            new = logits.argmax(-1, keepdim=True)
        else:
            new = torch.multinomial(probabilities(logits, **settings), 1, generator=draws)
        text = torch.cat((text, new), dim=1)
    return text, processed


prompt = tokens[:, :8]  # "the cat " and "the mat "
with torch.no_grad():
    greedy, few = write(prompt, 40)
    again, many = write(prompt, 40, cached=False)
    seeds = [torch.Generator().manual_seed(7) for _ in range(2)]
    drawn, _ = write(prompt, 40, draws=seeds[0], temperature=0.8, top_k=5)
    theirs = generate(model, prompt, 40, temperature=0.8, top_k=5, generator=seeds[1])

assert torch.equal(greedy, again) and torch.equal(greedy, generate(model, prompt, 40, temperature=0))
assert torch.equal(drawn, theirs)
print("equal: greedy text with cache, without, and from the package; drawn text, ours and the package's")
print(f"tokens processed for 40 new ones: {few} with a cache, {many} without")
print("drawn:", "".join(letters[i] for i in drawn[0].tolist()))


# %% [markdown]
# Gibberish, of course: the weights are random. Chapter 03 trains them.
#
# ## Where are the parameters?
#
# Counting is easy now. With width $d$, MLP width $f$, vocabulary $V$ and $L$ layers there are
#
# * $Vd$ in the table, which is also the head;
# * per layer $4d^2$ in attention ($3d^2$ for queries, keys and values, $d^2$ for the output), $3df$ in the MLP, and
#   $2d$ norm gains;
# * $d$ gains of the last norm.
#
# Such counts are a test of a reproduction. The paper says that QKV and output projections are free of biases, and that
# "ordinary biases" start at zero, without saying where those are. Its Table 5 lets us find out: we count our
# model as it is, with biases on the MLP's matrices ($2f + d$ a layer), and with a head of its own ($Vd$ more).

# %%
def count(layers, width, ff, vocab=256, mlp_biases=False, own_head=False, **_):
    parts = {
        "embedding and head": vocab * width * (1 + own_head),
        "attention": layers * 4 * width**2,
        "MLP": layers * (3 * width * ff + mlp_biases * (2 * ff + width)),
        "norms": (2 * layers + 1) * width,
    }
    return parts, sum(parts.values())


def count_package(layers, family, vocab=256, mlp_biases=False):
    with torch.device("meta"):  # shapes only, no memory
        config = ModelConfig(vocab_size=vocab, layers=layers, mlp_bias=mlp_biases, **FAMILIES[family])
        return sum(p.numel() for p in Transformer(config).parameters())


assert count(config.layers, d, ff, V)[1] == sum(p.numel() for p in w.values())
TABLE_5 = (  # family, layers, vocabulary, millions of parameters in the paper's Table 5
    ("small", 12, 256, 5.54), ("small", 24, 256, 11.05), ("small", 48, 256, 22.07),
    ("medium", 48, 256, 201.5), ("medium", 48, 4096, 203.5), ("large", 48, 256, 453.3),
)  # fmt: skip

# %%
print("family   layers  vocab  as built  MLP biases  own head   paper")
matches = {"as built": 0, "MLP biases": 0, "own head": 0}
for family, layers, vocab, paper in TABLE_5:
    variants = {"as built": {}, "MLP biases": {"mlp_biases": True}, "own head": {"own_head": True}}
    totals = {name: count(layers, vocab=vocab, **FAMILIES[family], **variant)[1] for name, variant in variants.items()}
    assert totals["as built"] == count_package(layers, family, vocab)
    assert totals["MLP biases"] == count_package(layers, family, vocab, mlp_biases=True)
    digits = 2 if paper < 100 else 1  # as many as the paper gives
    rounded = {name: f"{total / 1e6:.{digits}f}" for name, total in totals.items()}
    for name in matches:
        matches[name] += rounded[name] == f"{paper:.{digits}f}"
    print(f"{family:8s} {layers:5d} {vocab:7d} {rounded['as built']:>9s} {rounded['MLP biases']:>11s}"
          f" {rounded['own head']:>9s} {paper:7.{digits}f}")  # fmt: skip
print("rows that agree:", matches)

# %% [markdown]
# The counts come out in every row as built, in none with biases or a head of its own. So the package's MLPs have no
# biases unless asked to (`mlp_bias=True`). That is evidence, not proof: the paper calls its counts approximate and
# rounds them to 201M, 204M and 453M in the text. And where do the parameters sit?

# %%
fig, axis = plt.subplots(figsize=(7.5, 3.2))
fills = {"embedding and head": ("white", ""), "attention": ("0.75", "///"), "MLP": ("0.45", ""), "norms": ("black", "")}
shares_of_mlp = []
for row, (family, sizes) in enumerate(FAMILIES.items()):
    parts, total = count(layers=48, **sizes)
    left = 0.0
    for name, number in parts.items():
        colour, hatch = fills[name]
        axis.barh(row, number / total, left=left, color=colour, hatch=hatch, edgecolor="black", linewidth=0.6,
                  label=name if row == 0 else None)  # fmt: skip
        left += number / total
    axis.text(1.01, row, f"{total / 1e6:.1f} M", va="center")
    shares_of_mlp.append(f"{family} {parts['MLP'] / total:.3f}")
axis.set(yticks=range(len(FAMILIES)), yticklabels=[*FAMILIES], xlabel="share of the parameters, 48 layers", xlim=(0, 1))
axis.invert_yaxis()
axis.grid(False)
axis.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.45, 1.0))
print("share of the MLPs:", ", ".join(shares_of_mlp))
plots.show(
    fig,
    alt="Four bars, one for each family at 48 layers, cut into the shares of embedding, attention, MLPs, norms. MLPs "
    "hold about three quarters in pocket, medium and large and more in small; attention holds nearly all of the rest. "
    "Embedding and norms are slivers. Totals: pocket 0.8, small 22.1, medium 201.5, large 453.3 million.",
)

# %% [markdown]
# How small is the smallest Transformer that is not a toy, then? Counted in lines, everything from tokens to logits:

# %%
ours = (embed, rms_norm, speeds, rotate, softmax, attend, split, attention, part, silu, mlp, transformer)
print("functions:", len(ours), "  lines:", sum(len(inspect.getsource(f).splitlines()) for f in ours))

# %% [markdown]
# ## What we found
#
# * Embedding, RMSNorm, rotary positions, causal attention, SwiGLU, a running sum and a tied head are the whole
#   backbone. Written out plainly, each equals the package in outputs and gradients.
# * Rotary positions make scores depend on the distance of two tokens alone; a mask makes the future unreachable,
#   exactly.
# * A leak need not be large to matter. A mean square shared over time took the loss on unpredictable text below its
#   floor.
# * An untrained model is nearly undecided, its loss a little above $\log V$, with a liking for the token it just read
#   that fades with depth.
# * A key–value cache changes no logit and spares the model reading its own text again and again.
# * The model has the paper's parameter counts when its MLPs have no biases. Most of the parameters are in the MLPs.
# * Along depth there is nothing but a sum. That is the part which this book takes out and replaces.
#
# ## What this does not show
#
# That every part is *needed*: only the mask and the axis of the norm were put to the test. That the model learns
# language: see chapter 03. Anything about speed: plain lines are slow lines. The package can do more than this chapter
# rebuilds (lower precision, recomputing events in the backward pass to save memory, other residual schemes), and equal
# counts do not prove an equal model: the paper's own code may differ where its text is silent.
#
# ## Exercises
#
# ### Exercise 1.1 · Sharper shares
# *Easy, 5 minutes.* In the case by hand, let every query be 2 instead of 1. What do tokens 2 and 3 get? What does this
# say about the division by $\sqrt h$?
#
# <details><summary>Answer</summary>
#
# Scores double, so shares are squared: $9, 1, 16$. Token 2 gets $(9\cdot2 + 1\cdot4)/10 = 2.2$, and token 3 gets
# $(9\cdot2 + 1\cdot4 + 16\cdot9)/26 \approx 6.385$. Larger scores make a softmax sharper. The product of a query and a
# key is a sum of $h$ terms and, for independent entries of size 1, has size $\sqrt h$: without the division, wider
# heads would start out sharper, and a softmax that puts all on one place passes hardly any gradient to the others.
#
# ```python
# sharper = attend(2 * toy[0], toy[1], toy[2])[0].flatten()
# torch.testing.assert_close(sharper, torch.tensor([2, 2.2, 166 / 26]))
# ```
# </details>
#
# ### Exercise 1.2 · A model that does not know where it is
# *Medium, 15 minutes.* Replace `rotate` by a function that returns its input. Our two sentences hold the same letters
# in a different order and end in the same letter. Do the logits at the last position still tell them apart: with one
# layer, with two? Predict first.
#
# <details><summary>Answer</summary>
#
# With one layer, no: the last position takes a weighted mean whose weights depend on the letters only, and the letters
# are the same. With two, yes: thanks to the mask, the first layer's output at each *earlier* position depends on what
# stood before it, so the second layer averages different things. The mask alone tells a deep model something about
# order, as was noticed in language models trained without positions (arXiv 2203.16634, 2305.19466).
#
# ```python
# with_positions, rotate = rotate, lambda x, start=0: x
# alike = {layers: torch.allclose(*transformer(tokens, w, layers=layers)[:, -1]) for layers in (1, 2)}
# rotate = with_positions
# assert alike == {1: True, 2: False}
# assert not torch.allclose(*transformer(tokens, w, layers=1)[:, -1])
# ```
# </details>
#
# ### Exercise 1.3 · Folding the gains away
# *Medium, 15 minutes.* A gain multiplies channels, and a matrix follows. Change the weights so that the sublayers'
# gains are all 1 and the logits stay the same. One gain cannot be folded into a matrix: which, and why?
#
# <details><summary>Answer</summary>
#
# $W(g\odot x) = (W\,\mathrm{diag}(g))\,x$: multiply the columns of `qkv` or `gate_up` by the gain. The last norm's gain
# stays. The matrix behind it is $E$, which is also the embedding, and folding would change what goes in. With a head of
# its own it could go as well.
#
# ```python
# folded = dict(w)
# for event in range(config.events):
#     gain, matrix = f"sublayers.{event}.norm.gain", f"sublayers.{event}.{'gate_up' if event % 2 else 'qkv'}.weight"
#     folded[matrix], folded[gain] = w[matrix] * w[gain], torch.ones_like(w[gain])
# torch.testing.assert_close(transformer(tokens, folded), transformer(tokens, w))
# ```
# </details>
#
# ### Exercise 1.4 · What the cache costs
# *Easy, 10 minutes.* How many numbers does the cache hold for $L$ layers, width $d$ and $T$ tokens? How many megabytes
# is that for one text of 2048 tokens in the paper's medium model (48 layers, $d = 512$) with 4 bytes a number, and how
# many are the weights? Does the number of heads matter?
#
# <details><summary>Answer</summary>
#
# A key and a value of $d$ numbers per layer and token: $2LTd$, whatever the number of heads. That is
# $2\cdot48\cdot2048\cdot512\cdot4 = 402{,}653{,}184$ bytes, about 403 MB, half of the 806 MB of the weights. Two texts
# at once, and the cache weighs as much as the model. Heads that share keys and values were invented for this
# (arXiv 1911.02150).
#
# ```python
# cache_bytes, weight_bytes = 4 * 2 * 48 * 2048 * 512, 4 * count_package(48, "medium")
# assert cache_bytes == 402_653_184 and round(weight_bytes / 1e6) == 806
# assert sum(held.numel() for pair in cache.values() for held in pair) == B * 2 * config.layers * T * d
# ```
# </details>
#
# ### Exercise 1.5 · A norm over time that does not leak
# *Hard, 30 minutes.* Mend `norm_over_time` so that it still pools over time but sees only the past and the present.
# Show that it does not leak. What would it cost in generation, and why is the mean over one token's channels still the
# better choice?
#
# <details><summary>Answer</summary>
#
# Use a running mean of the tokens' mean squares. In generation each norm would have to remember its running sum (one
# more state for each event, beside the cache), and one token with a large vector would shrink all later ones; the
# per-token norm needs no memory and sets every token to the same size.
#
# ```python
# def norm_so_far(x, gain):  # [B, T, d] -> [B, T, d]
#     tokens_so_far = torch.arange(1, x.shape[-2] + 1, dtype=x.dtype)
#     mean_square = x.square().mean(-1).cumsum(-1) / tokens_so_far  # [B, T]
#     return x / (mean_square[..., None] + 1e-6).sqrt() * gain
#
# assert leak(norm=norm_so_far) < 1e-12 < leak(norm=norm_over_time)
# ```
# </details>
#
# ## Further reading
#
# * Attention Is All You Need, arXiv 1706.03762: the Transformer.
# * Root Mean Square Layer Normalization, arXiv 1910.07467.
# * RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864.
# * GLU Variants Improve Transformer, arXiv 2002.05202: SwiGLU, and a famous last sentence.
# * Using the Output Embedding to Improve Language Models, arXiv 1608.05859: the tied head.
# * On Layer Normalization in the Transformer Architecture, arXiv 2002.04745: why the norm stands before the sublayer.
# * FlashAttention, arXiv 2205.14135: attention without the table of shares.
# * The Curious Case of Neural Text Degeneration, arXiv 1904.09751: how to draw from a model.
# * HAARES, arXiv 2606.06564, section 5.2: the setting rebuilt here.
