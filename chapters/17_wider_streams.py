# %% [markdown]
# # 17 · Wider streams: what if the stream is wider than the layer?
#
# In a Transformer one number, the width $d$, does two jobs. It says how much a layer *computes*: about $12d^2$ weights
# in each. And it says how much is *remembered* from layer to layer: $d$ numbers for each token, whatever the depth. Why
# should the two be equal? HAARES remembers more by keeping sources apart. This chapter looks at four methods that make
# the stream itself wider and leave the layers as they are: Hyper-Connections, mHC, VWN, and above all **HiRes**, the
# plainest of them.
#
# > **You will build** all four behind the four verbs, each in a few lines and equal to the package in outputs and
# > gradients, and Sinkhorn's algorithm in the log domain.
# >
# > **You will learn** how a wide stream can start as an ordinary one, why a mixing matrix must not grow, a trap in
# > starting near the identity, and what a wider stream costs in parameters, FLOPs and memory.
# >
# > **You need** chapters 04 (verbs, PostNorm) and 11 (counting). Chapter 05 helps.
# >
# > **Runs in** about 10 seconds on one core, without a network.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sympy as sp
import torch
from torch import Tensor

from minihaares import bench, comparison, costs, findings, ngrams, pictures_relatives, plots
from minihaares.model import FAMILIES, ModelConfig, Transformer, rotary_table
from minihaares.relatives.mhc import sinkhorn as packaged_sinkhorn

plots.use_style()
pd.set_option("display.width", 110)

# %%
# Depth runs upwards. Layers are boxes, all of width d; grey is what lies along depth
plots.show(*pictures_relatives.wide_streams())

# %% [markdown]
# ## By hand: two streams of one channel
#
# Take $n = 2$ copies of a stream with a single channel. They begin as the embedding twice, $H = (1, 1)$. An event reads
# a weighted sum of them, computes, and writes its output to each with a weight of its own. Let every layer compute
# $f(x) = 3x$ (and forget norms for a moment).
#
# * Event 0 reads the first stream, $x = 1$, makes $u = 3$, and writes it once to the first stream, twice to the second:
#   $H = (1 + 3,\; 1 + 6) = (4, 7)$.
# * Event 1 reads the second, $x = 7$, makes $u = 21$, and writes it to the first only: $H = (25, 7)$.
#
# The head sees the sum, 32. One stream could not do this: after event 0 it would hold one number, and here there are
# two different ones. The event that read 7 saw the first output doubled, and a later one may look at 25 *or* at 7.

# %%
H = torch.tensor([1.0, 1.0])
for read, write in (([1.0, 0], [1.0, 2]), ([0, 1.0], [1.0, 0])):
    x = torch.tensor(read) @ H
    H = H + torch.tensor(write) * 3 * x
    print("read", x.item(), "streams", H.tolist())
assert H.sum() == 32

# %% [markdown]
# ## Hyper-Connections
#
# (Zhu et al., arXiv 2409.19606.) The state is $H\in\mathbb R^{n\times d}$, and each event has three sets of weights:
# $A_m\in\mathbb R^n$ to read, $A_r\in\mathbb R^{n\times n}$ to mix the streams, $B\in\mathbb R^n$ to write.
#
# $$x = A_m^\top H,\qquad H \leftarrow B\,u + A_r^\top H .$$
#
# Each weight is a static number plus a small part that the token decides:
# $[A_m\,|\,A_r\,|\,B] = \text{static} + s\,\tanh(\mathrm{norm}(H)\,W)$, one row for each stream, with $W = 0$ and
# $s = 0.01$ at the start. The loop around the verbs is that of chapter 04. We build a model of the package, put noise
# on every weight so that no zero hides a mistake, and run its layers under our own verbs.

# %%
def build(scheme, layers=4, shake=0.3, **options):
    sizes = FAMILIES["pocket"] | dict(vocab_size=27, norm_eps=1e-12)
    model = Transformer(ModelConfig(**sizes, layers=layers, scheme=scheme, options=options), seed=42).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += shake * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return model


def events(model, residual, tokens):  # every read, and the logits
    rope = rotary_table(0, tokens.shape[1], model.config, model.embed.weight)
    state, reads = residual.begin(model.embed(tokens)), []
    for event, sublayer in enumerate(model.sublayers):
        x, state = residual.read(state, event)
        reads.append(x)
        state = residual.write(state, event, sublayer(x, rope))
    return reads, model.norm(residual.readout(state)) @ model.embed.weight.T


# %%
def check(scheme, ours, **options):
    """Our verbs against the package's: logits, and the gradient of every parameter."""
    model = build(scheme, **options)
    mine, theirs = events(model, ours(model.residual), tokens)[1], model(tokens)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    direction, parameters = torch.randn_like(mine), [*model.parameters()]
    for one, other in zip(*(torch.autograd.grad(y, parameters, direction) for y in (mine, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)
    print(f"{scheme}{options or ''} equals the package in logits and {len(parameters)} gradients")


def unit(x: Tensor) -> Tensor:  # [..., d], RMS 1
    return x / (x.square().mean(-1, keepdim=True) + 1e-12).sqrt()


tokens = torch.randint(27, (2, 16), generator=torch.Generator().manual_seed(0))  # [B, T]


# %%
class Hyper:
    def __init__(self, package):
        self.p, self.n = package, package.streams  # the parameters are the package's, the lines are ours

    def begin(self, embedding):
        return torch.stack([embedding] * self.n, dim=-2)  # [B, T, n, d]

    def weights(self, H, event):  # [B, T, n, n + 2]: one column to read, n to mix, one to write
        s = self.p.scale[event][[0] * (self.n + 1) + [1]]  # one to read and to mix with, one to write with
        return self.p.static[event] + s * torch.tanh(unit(H) @ self.p.dynamic_map[event])

    def read(self, H, event):
        w = self.weights(H, event)
        return torch.einsum("btn,btnd->btd", w[..., 0], H), (H, w)

    def write(self, state, event, u):
        H, w = state
        return torch.einsum("btnk,btnd->btkd", w[..., 1:-1], H) + w[..., -1:] * u[..., None, :]

    def readout(self, H):
        return H.sum(-2)


check("hc", Hyper)
check("hc", Hyper, streams=2)

# %% [markdown]
# ### A wide stream that starts as an ordinary one
#
# $A_m$ of event $i$ starts as 1 for stream $i \bmod n$ and 0 elsewhere, $A_r$ as the identity, $B$ as ones. So all
# streams do the same at first: each *is* the standard stream, every event reads exactly what it would have read, and
# the head sees the sum of $n$ equal streams, whose factor $n$ the final norm divides out. An untrained model **is** the
# standard one. This is more than elegance: whatever a trained model does better, the start did not do it.

# %%
def fresh(scheme, **options):
    return build(scheme, shake=0.0, **options)


standard = fresh("standard")
expected, logits = events(standard, standard.residual, tokens)
model = fresh("hc")
reads, ours = events(model, model.residual, tokens)
assert all(map(torch.equal, reads, expected))  # to the last bit
torch.testing.assert_close(ours, logits, rtol=1e-9, atol=1e-9)
print("an untrained model reads the standard stream at all", len(reads), "events")

# %% [markdown]
# What keeps the streams from staying equal for ever? They are read by different events, so their gradients differ. If
# every event read their mean instead, they would never part (exercise 17.1).
#
# ### Who guards the mixing?
#
# What an early event wrote has to pass all later $A_r$. Their product can do anything. Suppose that training moved each
# $A_r$ just a little, by noise of 0.1 on every entry. How large can a difference between streams become after 96 events
# (48 layers)? We measure the largest factor by which a product stretches any vector:

# %%
def stretch(matrices):  # [events, walks, n, n] -> largest singular value of the product so far, [events, walks]
    product, found = torch.eye(matrices.shape[-1], dtype=torch.float64), []
    for A in matrices:
        product = A @ product
        found.append(torch.linalg.matrix_norm(product, 2))
    return torch.stack(found)


noise = torch.randn(96, 200, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))  # 200 walks
free = stretch(torch.eye(4) + 0.1 * noise)
print(f"after 96 free mixings: {free[-1].median():.1f}-fold in the median, {free[-1].max():.0f}-fold at most")
assert free[-1].median() > 3 and free[-1].max() > 20

# %% [markdown]
# ## mHC: streams that are only ever averaged
#
# (Xie et al., arXiv 2512.24880.) *Manifold-constrained* Hyper-Connections keep the wide stream and tie its mixing down:
# $A_{res}$ must be **doubly stochastic**, nonnegative with rows and columns that add up to 1. Then each new stream is
# an average of the old ones, their sum is preserved, and no vector grows: such a matrix has largest singular value 1,
# and so has every product of them.
#
# How does one get a doubly stochastic matrix from free parameters $Z$? Take $\exp Z$, which is positive, and divide
# columns and rows by their sums in turn. That is **Sinkhorn's algorithm**. On logarithms a division is a subtraction,
# and "divide by the sum" is `log_softmax`:

# %%
def sinkhorn(Z, rounds=20):  # [..., n, n]
    for _ in range(rounds):
        Z = Z.log_softmax(-2)  # columns
        Z = Z.log_softmax(-1)  # rows, last: these are exact
    return Z.exp()


Z = noise[0, :5]
A = sinkhorn(Z)
torch.testing.assert_close(A, packaged_sinkhorn(Z, 20))
assert (A.sum(-1) - 1).abs().max() < 1e-12 and (A.sum(-2) - 1).abs().max() < 1e-3
tied = stretch(sinkhorn(6 * torch.eye(4) + noise))
print(A[0].round(decimals=3).tolist())
print(f"after 96 doubly stochastic mixings: {tied[-1].median():.3f}-fold, {tied[-1].max():.3f}-fold at most")
assert tied.max() < 1.05  # columns add up to 1 only nearly: see below

# %% [markdown]
# ### The 0.475 trap
#
# A careful designer wants the mixing to start near the identity, and writes $S_{res} = I$. It looks right. Do it by
# hand: $\exp I$ has $e$ on the diagonal and 1 elsewhere, so rows and columns all add up to $e + 3$, one division is
# enough, and the diagonal becomes
#
# $$\frac{e}{e + 3} = 0.475 .$$
#
# Less than half of a stream stays where it was! The remaining factor by which a *difference* between streams shrinks at
# each event is the second eigenvalue of the matrix, $(e - 1)/(e + 3) = 0.30$. After five events the four streams are
# one. With $S_{res} = \sigma I$ in general:

# %%
sigma, n = sp.symbols("sigma n", positive=True)
diagonal, off = sp.exp(sigma) / (sp.exp(sigma) + n - 1), 1 / (sp.exp(sigma) + n - 1)
kept = sp.simplify(diagonal - off)  # the eigenvalue of everything that sums to zero over the streams
assert sp.simplify(kept - (sp.exp(sigma) - 1) / (sp.exp(sigma) + n - 1)) == 0
at = {s: (float(diagonal.subs({sigma: s, n: 4})), float(kept.subs({sigma: s, n: 4}))) for s in (1, 6)}
for s, (on_diagonal, left) in at.items():
    assert np.allclose(sinkhorn(s * torch.eye(4).double()).diagonal(), on_diagonal)
    print(f"S = {s} I: diagonal {on_diagonal:.3f}, difference kept {left:.3f} an event, {left**96:.1e} after 96")
assert round(at[1][0], 3) == 0.475 and at[6][1] ** 96 > 0.3

# %%
scales = np.linspace(0, 10, 101)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
weight, left = (sp.lambdify(sigma, form.subs(n, 4)) for form in (diagonal, kept))
axes[0].plot(scales, weight(scales), "-k")
axes[0].plot(scales, left(scales) ** 96, "--", color=plots.BLUE)
axes[0].plot(scales, np.gradient(weight(scales), scales), ":", color=plots.VERMILION)
axes[0].plot([1], [at[1][0]], "ok", markersize=7)
axes[0].axvline(6, color="0.6", linewidth=1)
for words, place in (("0.475", (1.3, 0.43)), ("diagonal", (2.5, 0.72)), ("its slope", (2.7, 0.2)),
                     ("difference left\nafter 96 events", (6.9, 0.4))):  # fmt: skip
    axes[0].text(*place, words, fontsize=9)
axes[0].set(xlabel="S = σ I before Sinkhorn", title="Where to start (n = 4)")
for values, style, words in ((free, "-", "free: I + 0.1 · noise"), (tied, "--", "doubly stochastic")):
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9), axis=1)
    axes[1].semilogy(range(1, 97), middle, style, color="black", label=words)
    axes[1].fill_between(range(1, 97), low, high, color="0.85")
axes[1].set(xlabel="events", title="largest factor of all mixings so far")
axes[1].legend(fontsize=8.5)
plots.show(figure, alt="""Left, against the scale of the identity before Sinkhorn: the diagonal rises from 0.25, passes
0.475 at one and nears one; what is left of a difference between streams after 96 events is zero until about four and
then rises; the slope of the diagonal falls towards zero. Right: free mixings stretch a vector more and more with the
number of events, with a band of four in five walks; doubly stochastic ones stay at one.""")

# %% [markdown]
# (The noise goes in before Sinkhorn, so the tied matrices lie closer to the identity than the free ones. That is not
# why they stay at one: *every* doubly stochastic matrix has largest singular value 1, however far it mixes.)
#
# Too small a scale forgets which stream is which; too large a one has no slope, so that the mixing never learns. The
# package starts at 6, a choice of ours, since the paper's start is not published.
#
# Rows come out exact, since they are divided last. Columns are exact at the start, and later only roughly: near the
# identity each round removes little of their error. Twenty rounds are the paper's number; the package keeps to it, in
# float32 whatever the sublayers compute in.
#
# The rest of mHC: all weights come from the whole state, $z = \alpha\,(\mathrm{norm}(\mathrm{vec} H)\,W) + S$; reading
# weights are $\sigma(z)$, positive; writing weights $2\sigma(z)$, between 0 and 2.

# %%
class Manifold(Hyper):
    def read(self, H, event):
        sizes = [self.n, self.n, self.n**2]
        alpha = torch.cat([a.expand(k) for a, k in zip(self.p.alpha[event], sizes, strict=True)])
        z = alpha * (unit(H.flatten(-2)) @ self.p.dynamic_map[event]) + self.p.static[event]
        pre, post, mixing = z.split(sizes, dim=-1)
        x = torch.einsum("btn,btnd->btd", torch.sigmoid(pre), H)
        return x, (H, 2 * torch.sigmoid(post), sinkhorn(mixing.unflatten(-1, (self.n, self.n)), self.p.rounds))

    def write(self, state, event, u):
        H, post, A = state
        return A @ H + post[..., None] * u[..., None, :]


check("mhc", Manifold)
model = fresh("mhc")
reads, ours = events(model, model.residual, tokens)
torch.testing.assert_close(ours, logits, rtol=1e-5, atol=1e-6)
times = (reads[5] / expected[5]).mean().item()
print(f"an untrained mHC reads {times:.3f} times the standard stream, which the norms divide out")

# %% [markdown]
# (That factor is $\sigma(2) + 3\sigma(-2)$: our start gives each event one favourite stream. With equal weights all
# streams would be read alike, and stay alike.)
#
# ## VWN: slots instead of streams
#
# (Virtual width networks, arXiv 2511.11238.) Streams of $d$ make the state $n$ times as wide, so widths jump. VWN cuts
# the $d$ channels of a layer into $m$ segments and keeps $n \ge m$ **slots** of the same width $d/m$: a stream of
# $D' = \tfrac nm d$, which may be $1.5\,d$. An event reads $m$ mixtures of slots, side by side, and writes $m$ segments
# back:
#
# $$x = A^{\circ\top} H,\qquad H \leftarrow B^\top u + \hat A^\top H,\qquad
# [A^\circ\,|\,\hat A\,|\,B^\top] = \text{static} + S\odot\tanh(\mathrm{norm}(H)W/\tau).$$
#
# Here $\tau = \sqrt{d/m}$, the root of a slot's width, and $S$ is a learned number for each weight. At the start $W =
# 0$ and the static part reads the first $m$ slots, carries every slot as it is, and writes segment $i$ to each slot
# $j \equiv i \pmod m$. With $m = 1$ these are Hyper-Connections, up to constants (exercise 17.2). At the end a
# GroupNorm, which centres and scales each group of $d$ channels, and a matrix take the slots back to $d$ channels.

# %%
class Slots:
    def __init__(self, package):
        self.p, self.m, self.n = package, package.m, package.n

    def begin(self, e):
        return (e @ self.p.input_map.T).unflatten(-1, (self.n, -1))  # [B, T, n, d/m]

    def read(self, H, event):
        tau = math.sqrt(H.shape[-1])
        w = self.p.static[event] + self.p.scale[event] * torch.tanh(unit(H) @ self.p.dynamic_map[event] / tau)
        read, carry, write = w.split([self.m, self.n, self.m], dim=-1)
        return (read.mT @ H).flatten(-2), (H, carry, write)

    def write(self, state, event, u):
        H, carry, write = state
        return write @ u.unflatten(-1, (self.m, -1)) + carry.mT @ H

    def readout(self, H):
        groups = H.flatten(-2).unflatten(-1, (self.n // self.m, -1))  # groups of d channels
        normed = (groups - groups.mean(-1, keepdim=True)) / (groups.var(-1, correction=0, keepdim=True) + 1e-12).sqrt()
        flat = normed.flatten(-2) * self.p.norm.weight + self.p.norm.bias
        return flat @ self.p.reduce_map.T


check("vwn", Slots)
model = fresh("vwn")
reads, _ = events(model, model.residual, tokens)
assert all(map(torch.equal, reads, expected))
print("an untrained VWN reads the standard stream, to the bit, through", model.residual.n, "slots of half its width;")
print("only the head sees another: centred, by the GroupNorm")

# %% [markdown]
# ## HiRes
#
# So far every event mixes streams, with weights made anew for each token. *Hierarchical Residuals* keep none of that.
# An article about the method (no arXiv id is known to us) describes it in three sentences: consecutive layers form a
# **group**, inside which nothing changes; between groups runs a stream that is **wider**, $D > d$, and PostNorm; at the
# edge of a group one learned matrix reads from it and one writes to it. "Nothing but dense projections and norms", so
# no kernel needs writing.
#
# $$\begin{aligned}
# X_0 &= W_{in}\,e & &W_{in}\in\mathbb R^{D\times d}\\
# h &= R_j X_j & &R_j\in\mathbb R^{d\times D}\text{: read}\\
# y &= \mathrm{group}_j(h) & &g\text{ ordinary PreNorm layers}\\
# X_{j+1} &= \mathrm{RMSNorm}_D(X_j + W_j\,y) & &W_j\in\mathbb R^{D\times d}\text{: write}
# \end{aligned}$$
#
# and the head sees $R_J X_J$. Why PreNorm inside and PostNorm outside? Inside, the stream is an unnormed highway for
# gradients, over a few layers. Outside, a stream that many groups add to would grow with depth (chapter 04); a norm
# after each addition keeps it at unit size, and there are few such norms.
#
# **By hand.** One channel inside, two outside, $e = 3$. $W_{in} = (1, 1)^\top$ gives $X_0 = (3, 3)$. The first group
# reads with $R_0 = (1, 0)$: $h = 3$. Let it return $y = 5$ and write with $W_0 = (1, 0.2)^\top$:
# $X_0 + W_0 y = (8, 4)$. Its RMS is $\sqrt{(64 + 16)/2} = \sqrt{40}$, so $X_1 = (8, 4)/\sqrt{40} \approx (1.26, 0.63)$.
# The second group may read the first channel again, or the second, or their difference: the outer stream holds more
# than any one group can take in.

# %%
X, W = torch.tensor([3.0, 3.0]), torch.tensor([1.0, 0.2])
X = unit(X + W * 5)
print([round(x, 2) for x in X.tolist()])
assert torch.allclose(X, torch.tensor([8.0, 4.0]) / 40**0.5)


# %% [markdown]
# ### In code
#
# The article leaves much open. The choices below are the package's, and each is an option or stands in its docstring:
# groups of $g = 4$ layers, $D = 2d$, a linear input map, and a write of all of $y$. (`write="delta"` writes only what
# the group changed, $y - h$.)

# %%
class Hierarchical:
    def __init__(self, package):
        self.p, self.events = package, 2 * package.options.layers_per_group

    def begin(self, e):
        X = e @ self.p.input_map.T  # [B, T, D]
        return X, X @ self.p.read_maps[0].T  # the outer stream; the inner one, which starts a group

    def read(self, state, event):
        return state[1], state

    def write(self, state, event, u):
        X, h = state
        h = h + u  # the ordinary stream, d wide
        if (event + 1) % self.events:
            return X, h
        group = event // self.events
        X = unit(X + h @ self.p.write_maps[group].T) * self.p.norms[group].gain
        return X, X @ self.p.read_maps[group + 1].T

    def readout(self, state):
        return state[1]


check("hires", Hierarchical)
check("hires", Hierarchical, layers_per_group=1, ratio=1.5)
check("hires", Hierarchical, layers_per_group=2, ratio=4.0)

# %% [markdown]
# Two facts to hold on to. The outer stream has unit RMS after every group, whatever the groups write, as long as the
# gains of the outer norms are at their start, 1; later, the size that the gains say. And a group is *nothing but* $g$
# layers of the backbone: the same weights run as an ordinary Transformer from the same $h$ give the
# same bits.

# %%
model = fresh("hires", layers_per_group=2)
ordinary, rope = fresh("standard"), rotary_table(0, 16, model.config, model.embed.weight)
state, sizes = model.residual.begin(model.embed(tokens)), []
for event, sublayer in enumerate(model.sublayers):
    if event % 4 == 0:  # a group begins
        h = state.inner
    x, state = model.residual.read(state, event)
    assert torch.equal(x, h)
    h = h + ordinary.sublayers[event](h, rope)
    state = model.residual.write(state, event, sublayer(x, rope))
    if event % 4 == 3:
        sizes.append(state.outer.square().mean(-1).sqrt())
assert all(torch.allclose(size, torch.ones_like(size)) for size in sizes)
print("inner streams equal those of ordinary layers in every bit; the outer stream has RMS 1 after each of",
      len(sizes), "groups")  # fmt: skip

# %% [markdown]
# ### Where it starts
#
# No start is published. Ours makes the first $d$ outer channels an ordinary stream and fills the others with random
# views: $W_{in} = [I; G]$, $R_j = [I\;0]$, $W_j = [I; G_j]$, with fresh Gaussian $G$ of variance $1/d$. At $D = d$
# nothing is left of $G$, and with $\Delta$ for the sum of a group's outputs the untrained model is a stream that is
# normed after each group,
#
# $$h \leftarrow \mathrm{RMSNorm}(2h + \Delta)\ \text{(write = output)},\qquad
# h \leftarrow \mathrm{RMSNorm}(h + \Delta)\ \text{(write = delta)} .$$
#
# The factor 2 is no slip: $y = h + \Delta$ contains $h$, and the outer stream still has it.

# %%
for write, twice in (("output", 2), ("delta", 1)):
    model = fresh("hires", ratio=1.0, layers_per_group=2, write=write)
    h = model.embed(tokens)
    for group in range(2):
        inner = h
        for sublayer in model.sublayers[4 * group : 4 * group + 4]:
            inner = inner + sublayer(inner, rope)
        h = unit(twice * h + (inner - h))
    torch.testing.assert_close(model.norm(h) @ model.embed.weight.T, model(tokens), rtol=1e-9, atol=1e-9)
    print(f"write = {write}: an untrained HiRes at D = d is h <- RMSNorm({'2' * (twice == 2)}h + Δ)")

# %% [markdown]
# So unlike the three methods before it, whose layers at first read just the standard stream, an untrained HiRes is
# **not** the standard model, not even at $D = d$: its stream is normed between groups. It is a near relative of
# PostNorm.
#
# Why random views and not zeros? A zero column of $R_j$ is fine as long as what it reads is not zero: then it has a
# gradient. Were $G$ zero as well, both would be stuck for ever, each waiting for the other. (Random views have a
# gradient at once, though nobody reads them yet: they take part in the norm.)

# %%
for views in ("random", "zero"):
    model = fresh("hires", layers_per_group=2, input="pad")
    with torch.no_grad():
        if views == "zero":
            model.residual.write_maps[:, 32:] = 0
    model(tokens).square().sum().backward()
    reads_get = model.residual.read_maps.grad[1:, :, 32:].abs().max().item()
    writes_get = model.residual.write_maps.grad[:, 32:].abs().max().item()
    print(f"{views:6s} views: gradient of the new reads {reads_get > 0}, of the new writes {writes_get > 0}")
    assert (reads_get > 0) == (writes_get > 0) == (views == "random")

# %% [markdown]
# ## What a wider stream costs
#
# A group has two maps of $d\times D$, so $2dD$ weights beside $12 d^2 g$ of its layers (an MLP of $8d^2$; SwiGLU's may
# be larger). The share is
#
# $$\frac{2dD}{12\,d^2 g} = \frac{D/d}{6g},$$
#
# 8.3 % with the defaults $D/d = 2$, $g = 4$, for parameters and FLOPs alike. The article calls the maps negligible, and
# gives its 1.30× in FLOPs without saying whether they are counted. If they are not, then this much of a gain of 1.30 in
# *steps* goes to them.

# %%
r, g, L = sp.symbols("r g", positive=True) + (costs.L,)
share = r / (6 * g)
for ratio, layers_per_group in ((2, 4), (4, 4), (2, 1)):
    formula = costs.formulas("hires", ratio=ratio, layers_per_group=layers_per_group) - costs.backbone()
    of_the_stack = sp.limit(sp.simplify(formula.forward / (24 * costs.d**2 * L)), L, sp.oo)  # two FLOPs a weight
    assert of_the_stack == share.subs({r: ratio, g: layers_per_group})
    print(f"D/d = {ratio}, g = {layers_per_group}: {100 * float(of_the_stack):.1f} % of a deep stack")
no_gain = sp.solve(sp.Eq(share, sp.Rational(3, 10)), g)[0]
print(f"a gain of 1.30 in steps is used up by groups of {no_gain} layers, r = D/d")

# %%
# Full size: 48 layers of the paper's families; here 12 of the pocket family, counted by torch
config = bench.BenchConfig(family="pocket", layers=(12,), batch_size=1, context=32)
sample = bench.random_tokens(config, torch.device("cpu"))
plain = bench.flops(bench.build("standard", 12, config), sample)
sizes = FAMILIES["pocket"] | dict(vocab_size=256, layers=12, scheme="hires")
figure, axis = plt.subplots(figsize=(6.6, 3.5))
for ratio, style in ((1, ":"), (2, "-"), (4, "--"), (8, "-.")):
    groups = np.arange(1, 13)
    axis.plot(groups, ratio / (6 * groups), style, color="black", label=f"D = {ratio}d")
    for layers_per_group in (1, 2, 4, 12):
        options = {"ratio": ratio, "layers_per_group": layers_per_group}
        model = Transformer(ModelConfig(**sizes, options=options))
        more = bench.flops(model, sample) / plain - 1
        axis.plot(layers_per_group, more, "o", color=plots.VERMILION)
        assert 0.6 < more / (ratio / (6 * layers_per_group)) < 1 or layers_per_group == 12  # two maps more
axis.axhline(0.3, color="0.5", linewidth=1)
axis.text(12, 0.31, "1.30×: a gain of that size in steps is used up", ha="right", fontsize=8.5)
axis.set(xlabel="layers in a group, g", ylabel="FLOPs more than Standard", ylim=(0, 1), title="The price of HiRes")
axis.legend(ncols=2)
plots.show(figure, alt="""Extra FLOPs against the layers in a group, one curve for each ratio of widths: all fall like
one over g. The curve for twice the width passes below 0.3 before two layers a group, that for eight times the width
only at about five. Dots, counted on real models of 12 layers, lie below the curves for short groups, at 0.7 of them
for single layers, and above for one group of all twelve.""")

# %% [markdown]
# Lines are $(D/d)/(6g)$; dots are counted on whole models. Two things pull them apart. The layers of this family have
# $16d^2$ weights, and attention and the head cost something too: that lowers the dots. The map in at the bottom and the
# last read come on top, which weighs where groups are few: at $g = 12$ it lifts the dots above the lines. The larger
# the layers, the cheaper the wide stream beside them. But even so a read at every layer, at four times the width, costs
# more than a gain of 1.30 in steps would bring.
#
# Now all four, on paper, in the setting of this book's recorded runs. `stored` is in vectors of $d$ for each token;
# `traffic` is what has to pass through memory along depth; `saved` is what the backward pass keeps with the package's
# code. All but `stored` are ratios to Standard.

# %%
wide = ["standard", "hires", "vwn", "hc", "mhc"]
base = findings.setting("relatives", layers=48)
bills = comparison.bill(base, vocab_size=85).loc[wide]  # 85 characters
ratios = bills.div(bills.loc["standard"]).assign(stored=bills["stored"], time=comparison.timings(48))
print(ratios.round(3).to_string(na_rep="not timed"))

# %% [markdown]
# Read the columns against each other. FLOPs put HiRes, VWN and Hyper-Connections within 4 to 10 % of Standard.
# `traffic` tells them apart: $n$ streams must be loaded and stored at *every* event, HiRes touches its wide stream once
# a group. (It stores 3: the outer stream of $2d$ and the inner one of $d$. A time below one is noise of the clock.) The
# paper of Attention Residuals counts $34d$ for mHC where the plain stream moves $3d$. mHC also has the most parameters,
# $2L\cdot nd\,(n^2 + 2n)$, and at a width as small as ours they weigh. The article says that HiRes is as good as VWN,
# mHC and Attention Residuals at less activation memory and I/O; `saved` and `traffic` bear out the second half.
#
# ## What it buys
#
# The recorded runs of the grid `relatives`, all with one recipe: differences of the best validation loss, method −
# Standard, seed by seed, in nats per character; negative is better. Chapter 18 has the whole table, and says how equal
# FLOPs and equal seconds are reckoned.

# %%
records = comparison.read()
for layers in comparison.DEPTHS:
    base = findings.setting("relatives", layers=layers)
    table = comparison.table(records, base).loc[wide, ["method", "n", "loss", "sd", *pictures_relatives.BUDGETS]]
    print(f"{layers} layers\n{table.round(4).to_string(index=False, na_rep='not recorded')}\n")

# %% [markdown]
# Two habits help in reading such rows. Hold a difference against `sd`, how far seeds scatter within a row:
# differences are paired and have a spread of their own (chapter 13), but one that is smaller than that scatter is,
# with three seeds, a hint at most. And look along the row: where it gets worse from equal tokens to equal FLOPs and
# seconds, part of what a method gained was bought with work that Standard did not do.
#
# One entry is no comparison at all: HiRes at 48 layers. Its runs one by one, at the grid's rate and at a third of it
# (grid `rate`):

# %%
letters = ngrams.read_ngrams(records.store).query("corpus == 'tinystories' and order == 0")["loss"].iloc[0]
for setting in (findings.setting("relatives", layers=48), findings.setting("rate")):
    losses = {comparison.METHODS[name].arm.label: records.values(comparison.METHODS[name].arm, setting)
              for name in ("standard", "hires")}  # fmt: skip
    print(f"rate {setting['lr']:g}")
    print(pd.DataFrame(losses).round(3).to_string(), "\n")
print(f"letter frequencies alone: {letters:.3f}")

# %% [markdown]
# At the grid's rate HiRes learned in one seed of three. In the other two its loss stayed, to the third digit, at what
# letter frequencies give: the model said the same whatever came before. At a third of the rate it learns in every
# seed, and is about 0.12 nats behind Standard. At 12 layers, with three groups instead of twelve, there is no such
# trouble. A stream that is normed after every group is PostNorm over groups, and that PostNorm asks for small rates or
# a warm-up in deep models is an old story (chapter 04); that this is the cause here is a guess. So much, and no more,
# do runs at a common rate say about our reading of HiRes (project 6 of chapter 20).
#
# ## What we found, and what it does not show
#
# * Four wide streams, each a few lines: two mix $n$ copies at every event, one mixes slots of any fraction of the
#   width, one reads and writes a single wide stream by plain matrices, group by group.
# * The layers of an untrained Hyper-Connections, mHC or VWN model read what those of the standard model read (mHC up to
#   a factor that norms divide out; behind VWN the head sees it centred). Those of HiRes do not, and need not.
# * A product of free mixings can grow without bound, one of doubly stochastic ones never does. Started at $S = I$ it
#   forgets instead: 0.475 stays, and after a handful of events the streams are one.
# * The maps of HiRes cost $(D/d)/(6g)$ of a deep stack. Below a few layers a group they can eat a whole gain of 1.30 in
#   steps.
#
# What it does not show: whether a wider stream *pays* at the sizes that matter. The article reports 1.30× FLOPs
# efficiency from a fitted scaling law, a training loss lower by 0.0208 and 1.14 points more downstream with OLMoE-1B-7B
# after 500 billion tokens, and warns that the fit is a trend and no guarantee. Chapter 19 fits such a law on a laptop.
# Our runs say how the methods compare at width 32 under one recipe that was tuned for none of them; and several starts
# above are ours, since none is published.
#
# ## Exercises
#
# ### Exercise 17.1 · Streams that never part
# *Easy, 10 minutes.* Start static Hyper-Connections with $A_m = (1/n, \dots, 1/n)$ at every event. Show that all
# streams stay equal, whatever the data and however long one trains.
#
# <details><summary>Answer</summary>
#
# Exchange any two streams: the model computes the same. So parameters that start symmetric have symmetric gradients,
# and each step keeps the symmetry. A start has to break it; one-hot reads do.
#
# ```python
# model = fresh("hc", dynamic=False)
# with torch.no_grad():
#     model.residual.static[:, :, 0] = 1 / 4
# model(tokens).square().sum().backward()
# gradient = model.residual.static.grad  # [events, n, n + 2]
# assert torch.allclose(gradient[..., 0], gradient[:, :1, 0].expand(-1, 4))  # reads move together
# assert torch.allclose(gradient[..., -1], gradient[:, :1, -1].expand(-1, 4))  # and so do writes
# ```
# </details>
#
# ### Exercise 17.2 · One family
# *Medium, 20 minutes.* Set $m = 1$ in VWN and choose its parameters so that every read is that of given
# Hyper-Connections.
#
# <details><summary>Answer</summary>
#
# Slots of width $d/1$ are streams. VWN divides by $\tau = \sqrt d$ inside the tanh, so its map is $\sqrt d$ times as
# large; its $S$ takes the place of $s$; the static parts are the same numbers. (They differ at the end: a sum there, a
# matrix here.)
#
# ```python
# one, other = build("hc", streams=3), build("vwn", m=1, n=3)
# with torch.no_grad():
#     other.residual.static.copy_(one.residual.static)
#     other.residual.scale.copy_(one.residual.scale[:, [0, 0, 0, 0, 1]][:, None].expand(-1, 3, -1))
#     other.residual.dynamic_map.copy_(one.residual.dynamic_map * 32**0.5)
#     H, u = torch.randn(2, 16, 3, 32).double(), torch.randn(2, 16, 32).double()
#     (x, between), (y, also) = one.residual.read(H, 5), other.residual.read(H, 5)
#     assert torch.allclose(x, y)
#     assert torch.allclose(one.residual.write(between, 5, u), other.residual.write(also, 5, u))
# ```
# </details>
#
# ### Exercise 17.3 · Doubly stochastic means no growth
# *Medium, 15 minutes.* Show that a doubly stochastic $A$ never makes $\lVert Av\rVert_2$ larger than
# $\lVert v\rVert_2$. Is the converse true?
#
# <details><summary>Answer</summary>
#
# By Cauchy and Schwarz with the weights of a row, $(Av)_i^2 = (\sum_j a_{ij} v_j)^2 \le \sum_j a_{ij}\cdot\sum_j a_{ij}
# v_j^2 = \sum_j a_{ij} v_j^2$, because rows add up to 1; summed over $i$, columns do the rest. The converse is false:
# every rotation keeps lengths, and is hardly ever doubly stochastic.
#
# ```python
# A, v = sinkhorn(torch.randn(200, 4, 4).double(), 500), torch.randn(200, 4, 1).double()
# assert ((A @ v).norm(dim=-2) <= v.norm(dim=-2) * (1 + 1e-6)).all()
# ```
# </details>
#
# ### Exercise 17.4 · Spend less than two percent
# *Easy, 10 minutes.* You have 24 layers and want $D = 2d$ for less than 2 % more weights in the stack, counting just
# the two maps of each group. How long must the groups be? What is lost on the way?
#
# <details><summary>Answer</summary>
#
# $2/(6g) < 0.02$ asks for $g > 16.7$. Of the divisors of 24 only 24 is left: one group, a single read and a single
# write. Then nothing ever reads the wide stream again but the head, and the width does nothing between layers. (With
# the input map and the last read counted too, even one group costs $8d^2/288d^2 = 2.8\,\%$.)
#
# ```python
# assert [g for g in (1, 2, 3, 4, 6, 8, 12, 24) if 2 / (6 * g) < 0.02] == [24]
# ```
# </details>
#
# ### Exercise 17.5 · A HiRes of your own
# *Hard, an evening.* Give the outer stream PreNorm instead of PostNorm: $X_{j+1} = X_j + W_j y$, and a norm in each
# read. Put it behind the four verbs, train both with the grid's recipe at 12 layers, three seeds, and report paired
# differences with every point. Decide before you look which difference you would believe.
#
# <details><summary>Answer</summary>
#
# A subclass of `minihaares.relatives.HiRes` that overrides `write` and `enter` is enough; chapter 18 shows how a method
# is registered. With three seeds believe a difference only if it is larger than the spread of all of them, and call it
# a hint.
# </details>
#
# ## Further reading
#
# * Hyper-Connections, arXiv 2409.19606; mHC: Manifold-Constrained Hyper-Connections, arXiv 2512.24880.
# * Virtual Width Networks, arXiv 2511.11238: up to eight times the width, and how the gain scales with it.
# * Sinkhorn and Knopp, "Concerning nonnegative matrices and doubly stochastic matrices", 1967.
# * On Layer Normalization in the Transformer Architecture, arXiv 2002.04745: PreNorm against PostNorm.
# * OLMoE, arXiv 2409.02060: the model that the article on HiRes trains.
