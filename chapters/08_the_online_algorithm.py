# %% [markdown]
# # 08 · The online algorithm: in what order does HAARES read and write?
#
# HAARES (arXiv 2606.06564) keeps two vectors for each block of events: the sum $C$ of what was written, and the
# detail $D$, the early half minus the late half. Chapters 06 and 07 look at finished blocks, at what a sum forgets
# and a pair keeps. But a model does not wait for a block to finish: events read *while* it fills. So the order of
# things matters: what does each read see, when does the first contrast appear, how large is the detail that is handed
# out? Here we follow one block event by event, build the whole forward pass, and hold it to the package. At the end
# stands a page that lists the choices which the paper leaves to us, and what we chose.
#
# > **You will build** the accumulators of a block, RMS matching with its edge cases, and the complete HAARES read and
# > write, equal to the package in outputs **and** gradients.
# >
# > **You will learn** why there is no slot before the first write, when a contrast can first be read, and how a mean
# > over the wrong axis lets a model see the future.
# >
# > **You need** chapter 05: sources, scores, the read that replaces the stream, blocks.
# >
# > **Runs in** about 10 seconds on 2 cores, without a network.

# %%
import math
from dataclasses import fields

import matplotlib.pyplot as plt
import torch

from minihaares import plots
from minihaares.data import DataConfig
from minihaares.depth_read import matched
from minihaares.model import FAMILIES, ConfigError, ModelConfig, RouterOptions, Transformer, rotary_table
from minihaares.relatives.streams import StreamOptions

torch.manual_seed(0)
plots.use_style()


# %% [markdown]
# ## One block by hand
#
# A block of $m$ events has an early half, the first $k = \lceil m/2\rceil$, and a late half. Every event reads,
# computes an output $u$, and writes it into both accumulators:
#
# $$C \leftarrow C + u,\qquad D \leftarrow D + s\,u,\qquad s = +1 \text{ early},\ -1 \text{ late}.$$
#
# Let the outputs be the numbers 1, 2, 4 and 8. Sums of powers of two can be taken apart again, so at any time we can
# tell who is in them. With $m = 4$, $k = 2$:
#
# | event $r$ | its read sees $(C, D)$, before scaling | it writes | and leaves $(C, D)$ |
# |---|---|---|---|
# | 1 | nothing of this block | $+1$ | $(1, 1)$ |
# | 2 | $(1, 1)$ | $+2$ | $(3, 3)$ |
# | 3 | $(3, 3)$ | $-4$ | $(7, -1)$ |
# | 4 | $(7, -1)$ | $-8$ | $(15, -9)$ |
#
# At the end the early total is $(C + D)/2 = 3 = 1 + 2$ and the late one $(C - D)/2 = 12 = 4 + 8$.

# %%
def signs(m):
    k = math.ceil(m / 2)  # an odd block gives its extra event to the early half
    return [1] * k + [-1] * (m - k)


def add(pair, u, sign):  # the write; a block that holds nothing yet is None
    return (u, sign * u) if pair is None else (pair[0] + u, pair[1] + sign * u)


def trace(outputs):  # the pair that each read of the block sees, and the finished one
    pairs = [None]
    for u, sign in zip(outputs, signs(len(outputs)), strict=True):
        pairs.append(add(pairs[-1], u, sign))
    return pairs


for m in (4, 5):
    pairs = trace([2**i for i in range(m)])
    print(f"m = {m}, k = {math.ceil(m / 2)}      C    D   early and late total, in binary")
    for r, pair in enumerate(pairs, start=1):
        who = f"event {r} reads" if r <= m else "finished     "
        C, D = pair or (0, 0)
        halves = f"{(C + D) // 2:0{m}b}  {(C - D) // 2:0{m}b}"
        print(f"{who}    {C:4d} {D:4d}   {halves}" if pair else f"{who}       no slot")
assert trace([1, 2, 4, 8]) == [None, (1, 1), (3, 3), (7, -1), (15, -9)]


# %% [markdown]
# In binary every event has its own digit, the first one at the right. The package keeps the same books. We feed its
# router the same outputs, whatever it reads, through two blocks in a row; an embedding of $-7$ cannot be mistaken for
# a sum of powers of two. (`match="none"` hands out the detail as it is, `read="plain"` reads as the equations are
# written; both are explained below.)

# %%
def package_reads(m, blocks=2, **options):  # what each read of the package sees, as numbers
    options = {"blocks": (m,) * blocks, "match": "none", "read": "plain"} | options
    config = ModelConfig(layers=m * blocks // 2, width=2, heads=1, ff=1, scheme="haares", options=options)
    router, reads = Transformer(config).residual, []
    state = router.begin(torch.full((1, 1, 2), -7.0))
    for event in range(m * blocks):
        reads.append([int(source[0, 0, 0]) for source in router.sources(state)])
        state = router.write(state, event, torch.full((1, 1, 2), 2.0**event))
    return [*reads, [int(source[0, 0, 0]) for source in router.sources(state)]]


for event, sources in enumerate(package_reads(4), start=1):
    print(f"before event {event}:" if event <= 8 else "at the end:    ", sources)
for m in (4, 5):
    first, second = (trace([2**i for i in range(start, start + m)]) for start in (0, m))
    expected = [[-7, *(pair or ())] for pair in first[:-1]]
    expected += [[-7, *first[-1], *(pair or ())] for pair in second]
    assert package_reads(m) == expected
print("equal to ours, for m = 4 and m = 5")

# %% [markdown]
# Read the rows aloud. Before event 5, the second block holds nothing, and the read sees the embedding and the
# finished pair $(15, -9)$. Before events 6 and 7 the new block's pair is there but holds two equal numbers. Before
# event 8 it shows its first contrast, $(112, -16)$: 16 and 32 early, 64 late. The last row is what is stored at the
# end; the head leaves the two details out.
#
# ## The accumulators as a strip
#
# The same for a longer block, as a picture. If output $u_i$ is the unit vector of channel $i$, an accumulator's entry
# $i$ says whether $u_i$ is in it, and with which sign: the strip is the accumulator.


# %%
def draw_strip(axis, accumulators):  # one row a read; entry i of an accumulator is 1, -1 or 0
    looks = {1: ("0.8", "", "+"), -1: ("0.35", "////", "−"), 0: ("white", "", "")}
    for row, numbers in enumerate(accumulators, start=1):
        for place, sign in enumerate(numbers, start=1):
            face, hatch, text = looks[int(sign)]
            corner = place - 0.5, row - 0.5
            axis.add_patch(plt.Rectangle(corner, 1, 1, facecolor=face, hatch=hatch, edgecolor="0.6"))
            colour = "white" if sign < 0 else "black"
            axis.text(place, row, text, ha="center", va="center", color=colour, weight="bold")
    m = len(accumulators) - 1
    axis.axvline(math.ceil(m / 2) + 0.5, color="black", lw=2)
    empty = {"facecolor": "white", "edgecolor": "none"}
    axis.text(m / 2 + 0.5, 1, "no slot yet", ha="center", va="center", style="italic", bbox=empty)
    axis.set(xlim=(0.5, m + 0.5), ylim=(m + 1.5, 0.5), xticks=range(1, m + 1), xlabel="output of event")
    axis.set_yticks(range(1, m + 2), [*(f"event {r}" for r in range(1, m + 1)), "later blocks"])
    axis.grid(False)


# %%
m, k = 8, 4
pairs = trace([*torch.eye(m)])
fig, axes = plt.subplots(1, 2, figsize=(9.5, 4.9), sharey=True)
for axis, which, title in zip(axes, (0, 1), ("$C$, the sum", "$D$, early minus late"), strict=True):
    draw_strip(axis, [torch.zeros(m) if pair is None else pair[which] for pair in pairs])
    axis.set_title(title)
axes[0].set_ylabel("read of")
for row, note in ((k + 1, "r = k + 1: still $D = C$"), (k + 2, "r = k + 2: first contrast")):
    axes[1].annotate(note, (m + 0.5, row), (m + 0.9, row), va="center", annotation_clip=False, fontsize=10)
plots.show(
    fig,
    alt="Two strips of cells, reads of a block of eight events down, outputs across, a thick line between the early "
    "and the late half. In both, the first row is empty: no slot yet. In the strip of C, each row has one plus more "
    "than the row above. In the strip of D the first five rows are the same as in C; from the sixth, r = k + 2, the "
    "outputs of the late half come in as dark cells with a minus. Later blocks see all eight, four plus, four minus.",
)

# %% [markdown]
# Three facts to take from the picture, and to hold for blocks of any length.
#
# * Before its first write a block has **no slot**.
# * Up to and including the read of event $k + 1$, $D = C$: **two slots with equal values**. Not the same as one slot,
#   because both take part in the softmax (chapter 10).
# * The **first contrast** is readable at $r = k + 2$, one event after the first late output was made. A block of
#   fewer than four events never shows one to its own events, which is why the paper's Table 2 is written for
#   $m \ge 4$.

# %%
for m in range(1, 13):
    k, pairs = math.ceil(m / 2), trace([2**i for i in range(m)])
    contrast = [r for r in range(2, m + 1) if pairs[r - 1][0] != pairs[r - 1][1]]
    assert contrast == [*range(k + 2, m + 1)] and pairs[0] is None
    if m <= 6:
        print(f"m = {m}: early events {k}, a contrast is seen by its own events {contrast or 'never'}")

# %% [markdown]
# ## Why no slot before the first write?
#
# The paper does not say so in words; its Table 3 does in numbers. It gives the mean number of sources of a read at 48
# layers and four blocks as 5.917, and for Block Attention Residuals with eight blocks as 5.417. Count both ways, with
# and without a slot for a block that holds nothing.

# %%
def mean_sources(layers, blocks, slots, empty_slot):  # slots a block: 1 for Block AttnRes, 2 for HAARES
    m, total = 2 * layers // blocks, 0
    for event in range(2 * layers):
        block, r = divmod(event, m)
        total += 1 + slots * block + slots * (r > 0 or empty_slot)
    return total / (2 * layers)


print("                       Table 3   no empty slot   with one")
for name, blocks, slots, paper in (("HAARES, N = 4", 4, 2, 5.917), ("Block AttnRes, N = 8", 8, 1, 5.417)):
    without, with_one = (mean_sources(48, blocks, slots, empty) for empty in (False, True))
    print(f"{name:22s} {paper:7.3f} {without:12.3f} {with_one:12.3f}")
    assert round(without, 3) == paper != round(with_one, 3)


# %% [markdown]
# Would it do harm? Hardly. A vector of zeros has score 0 and takes its share of the softmax like any other: with zero
# queries the very first read would give a fraction of the embedding, the rest being zeros. But a fraction points the
# same way, and the norm behind the read takes it out again, but for its $\epsilon$ (chapter 05).
#
# ## How loud is a detail?
#
# Scores are taken on normalised sources, so a source cannot win by being large. But the mixture adds the sources as
# they are. A detail could be tiny (halves that agree) or huge (halves that cancel) beside the sum, so HAARES hands it
# out at the sum's size, within bounds, with the multiplier taken as a constant:
#
# $$\hat D = a D,\quad a = \mathrm{stopgrad}\left[\mathrm{clip}\left(\frac{\mathrm{RMS}(C)}{\mathrm{RMS}(D) + \epsilon},
# \ \frac1\gamma,\ \gamma\right)\right],\qquad \gamma = 4,\ \epsilon = 10^{-6}.$$

# %%
def rms(x, axes=-1):
    return x.square().mean(axes, keepdim=True).sqrt()


def multiplier(C, D, axes=-1, gamma=4.0, eps=1e-6):
    return (rms(C, axes) / (rms(D, axes) + eps)).clamp(1 / gamma, gamma).detach()


def match(C, D, axes=-1):
    return multiplier(C, D, axes) * D


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


cases = {
    "half as large": (vector(1, 1), vector(0.5, -0.5)),
    "tiny: clipped": (vector(1, 1), vector(0.1, -0.1)),
    "huge: clipped": (vector(1, 1), vector(9, -9)),
    "D = C": (vector(1, 1), vector(1, 1)),
    "C = 0": (vector(0, 0), vector(9, -9)),
    "D = 0": (vector(1, 1), vector(0, 0)),
}
for name, (C, D) in cases.items():
    print(f"{name:14s} C {C.tolist()!s:11s} D {D.tolist()!s:12s} a {multiplier(C, D).item():.6f}"
          f"   matched {[round(x, 6) for x in match(C, D).tolist()]}")  # fmt: skip
    assert torch.equal(match(C, D), matched(C, D, gamma=4.0, eps=1e-6))

# %% [markdown]
# The edge cases are those that the paper names. If the halves cancel, $C = 0$, the ratio is 0 and the clip makes it
# $1/4$: the detail is all that is left to say about the block, and it is handed out at a quarter of its size. If the
# halves are equal, $D = 0$ stays 0. And through the early half, where $D = C$, the multiplier is a hair below 1,
# because of the $\epsilon$: the second slot is *almost* a copy of the first.
#
# No gradient goes through $a$. So for the gradient, $\hat D$ depends on $D$ as if $a$ were a number, and on $C$ not
# at all.

# %%
for C, D in cases.values():
    by_C, by_D = torch.autograd.functional.jacobian(match, (C, D))
    theirs = torch.autograd.functional.jacobian(lambda C, D: matched(C, D, 4.0, 1e-6), (C, D))
    a = multiplier(C, D)
    assert torch.equal(by_C, torch.zeros(2, 2).double()) and torch.equal(by_D, a * torch.eye(2))
    assert torch.equal(by_C, theirs[0]) and torch.equal(by_D, theirs[1])
print("the Jacobian of the matched detail is a times the identity, in all", len(cases), "cases")

# %% [markdown]
# What becomes of the slot when $D = 0$? Its value is nothing, its score is $0 + b$, where $b$ is the **detail bias**,
# a learned number for each read that is added to the scores of all details and starts at $-2$. So it keeps its share:
# with zero queries, $e$, $C$ and $D$ get shares $1 : 1 : e^{-2}$, and the sublayer reads a little less than the mean
# of $e$ and $C$.

# %%
shares = torch.softmax(vector(0, 0, -2), 0)
print("shares of e, C, D:", [f"{w:.4f}" for w in shares.tolist()], f"  left of (e + C)/2: {2 * shares[0]:.4f}")

options = {"blocks": (2,), "read": "plain"}
pair_model = Transformer(ModelConfig(layers=1, width=2, heads=1, ff=1, scheme="haares", options=options)).double()
router = pair_model.residual
state = router.begin(vector(5, 5).view(1, 1, 2))
for event in range(2):  # both write the same: the block ends with D = 0
    state = router.write(state, event, vector(1, 1).view(1, 1, 2))
e, C, D = router.sources(state)
assert C.flatten().tolist() == [2, 2] and not D.any()
torch.testing.assert_close(router.weights((e, C, D), 1).flatten(), shares)


# %% [markdown]
# ## The whole algorithm
#
# All pieces are there. The state is that of chapter 05's blocks, with a pair where there was a sum. A finished pair
# is matched once and stored; the active pair is matched anew for each read. The final readout sees no details.

# %%
class Haares:
    def __init__(self, router, lengths, signs, matching=match):
        self.router, self.signs, self.matching = router, signs, matching
        self.ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]

    def begin(self, embedding):
        return (embedding,), None  # finished sources; the raw pair of the block under way

    def sources(self, state):
        finished, pair = state
        return finished if pair is None else (*finished, pair[0], self.matching(*pair))

    def read(self, state, event):
        return self.mixture(self.sources(state), event, self.router.detail_bias[event]), state

    def write(self, state, event, output):
        finished, pair = state[0], add(state[1], output, self.signs[event])
        if event + 1 in self.ends:
            return (*finished, pair[0], self.matching(*pair)), None
        return finished, pair

    def readout(self, state):
        return self.mixture((state[0][0], *state[0][1::2]), -1, 0)  # the embedding and the sums

    def mixture(self, sources, site, bias):  # S sources [B, T, d] -> [B, T, d]
        gains = self.router.key_gain
        key = self.router.query[site] * (1 if gains is None else gains[site])
        scores = [(v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt() * key).sum(-1) for v in sources]
        scores = [z + bias if s % 2 == 0 and s > 0 else z for s, z in enumerate(scores)]  # e, C, D, C, D, …
        return (torch.softmax(torch.stack(scores), 0)[..., None] * torch.stack(sources)).sum(0)


# %% [markdown]
# The loop and the comparison are those of chapters 04 and 05: the package's sublayers, our verbs, shaken weights.

# %%
def build(scheme="haares", layers=4, shake=0.2, eps=1e-6, **options):
    sizes = FAMILIES["pocket"]  # width 32, 2 heads, ff 128; the paper's medium family has 512, 8, 2048
    config = ModelConfig(vocab_size=27, layers=layers, norm_eps=eps, scheme=scheme, options=options, **sizes)
    model, generator = Transformer(config, seed=42).double(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += shake * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return model


def forward(model, residual, tokens):  # [B, T] -> logits [B, T, V]
    rope = rotary_table(0, tokens.shape[1], model.config, model.embed.weight)
    state = residual.begin(model.embed(tokens))
    for event, sublayer in enumerate(model.sublayers):
        x, state = residual.read(state, event)
        state = residual.write(state, event, sublayer(x, rope))
    return model.norm(residual.readout(state)) @ model.embed.weight.T


def check_equal(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    direction = torch.randn_like(ours)
    ours, theirs = (torch.autograd.grad(y, inputs, direction) for y in (ours, theirs))
    for our_gradient, their_gradient in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-9, atol=1e-11)


# %%
tokens = torch.randint(27, (2, 20), generator=torch.Generator().manual_seed(0))  # [B, T]
halves = [s for m in (4, 4) for s in signs(m)]
raw = lambda C, D: D  # noqa: E731
coins = [place.sign for place in build(blocks=2, detail="random_sign", sign_seed=3).residual.places]
settings = (  # options of the package, and what they mean here: lengths, signs, matching
    ({"blocks": 2}, (4, 4), halves, match),
    ({"blocks": (5, 3)}, (5, 3), signs(5) + signs(3), match),
    ({"blocks": "full"}, (1,) * 8, [1] * 8, match),
    ({"blocks": 2, "key_gain": False}, (4, 4), halves, match),
    ({"blocks": 2, "bias": "fixed", "bias_init": -1.0}, (4, 4), halves, match),
    ({"blocks": 2, "match": "none"}, (4, 4), halves, raw),
    ({"blocks": 2, "detail": "duplicate"}, (4, 4), [1] * 8, raw),
    ({"blocks": 2, "detail": "random_sign", "sign_seed": 3}, (4, 4), coins, match),
    ({"blocks": 2, "detail": "phase"}, (4, 4), [1, -1] * 4, match),
)
for options, lengths, s, matching in settings:
    for read in ("plain", "lean", "recompute"):
        model = build(**options, read=read)
        parameters = [*model.parameters()]
        ours = forward(model, Haares(model.residual, lengths, s, matching), tokens)
        check_equal(ours, model(tokens), parameters)
    print(f"equal: {options}")
print(f"each under 3 ways to read, in values and gradients; the last has {len(parameters)} parameter tensors")

# %% [markdown]
# The last three are ablations of the paper (a second slot that repeats $C$, random signs) and the detail of its first
# version (attention minus MLP): other signs, same algorithm. The package has three ways to carry out a read. `plain`
# is what the equations say, and what we built. `lean`, the default, keeps two half totals for the block under way
# instead of $C$ and $D$, reads finished blocks ahead as in chapter 05, and has its backward pass written out;
# `recompute` also forgets the mixtures and makes them again. The numbers are the same; chapter 12 is about the price.

# %%
logits = {}
for read in ("plain", "lean", "recompute"):
    with torch.no_grad():
        logits[read] = build(layers=12, read=read)(tokens)
for read in ("lean", "recompute"):
    distance = (logits[read] - logits["plain"]).abs().max() / logits["plain"].abs().max()
    print(f"{read:9s} from plain, 12 layers, relative: {'below 1e-12' if distance < 1e-12 else f'{distance:.0e}'}")
    assert distance < 1e-12

# %% [markdown]
# ## Where it starts
#
# Chapter 05 found that block routing with zero queries is the standard stream in disguise: but for the $\epsilon$ of
# the norms, an untrained Block model and an untrained Standard model compute the same function. HAARES is not in that
# case: with $b = -2$ the details have a share from the first step on.

# %%
print("distance of untrained logits from Standard, norm ε = 1e-20")
for scheme in ("block", "haares"):
    found = []
    for layers in (4, 12, 48):
        with torch.no_grad():
            standard = build("standard", layers, shake=0, eps=1e-20)(tokens)
            routed = build(scheme, layers, shake=0, eps=1e-20, blocks=4)(tokens)
        found.append(((routed - standard).norm() / standard.norm()).item())
    print(f"   {scheme:7s} layers 4, 12, 48:", *("below 1e-12" if d < 1e-12 else f"{d:.4f}" for d in found))
    assert (max(found) < 1e-12) == (scheme == "block")

# %% [markdown]
# ## A wrong turn: the RMS over time
#
# $\mathrm{RMS}(C)$ in the matching rule: a mean over what? The paper says that its record of the formula "does not
# identify its reduction axes". Tensors are $[B, T, d]$, and a mean over everything, or over $T$ and $d$, gives one
# number for a whole text: cheaper, smoother, and in code only a different argument. By hand: one channel, two tokens,
# $C = (1, 1)$ and $D = (1, x)$, where $x$ belongs to the *second* token. Token by token, the first one's $a$ is
# $1/1$. Over both tokens $\mathrm{RMS}(D) = \sqrt{(1 + x^2)/2}$, so with $x = 3$ it becomes $1/\sqrt5 = 0.447$.

# %%
C = vector(1, 1).view(1, 2, 1)  # [B, T, d]
for x in (1, 3):
    D = vector(1, x).view(1, 2, 1)
    per_token, over_time = match(C, D)[0, :, 0], match(C, D, (-2, -1))[0, :, 0]
    torch.testing.assert_close(over_time, matched(C, D, 4.0, 1e-6, axes="time")[0, :, 0])
    print(f"x = {x}: token 1 gets {per_token[0]:.4f} per token, {over_time[0]:.4f} with a mean over time")

# %% [markdown]
# Under a mean over time the first token's detail shrinks because the second token is loud. That is a message from the
# future. The package refuses to build such a model unless told that it is meant for looking at:

# %%
try:
    build(rms_axes="time")
    refused = "built"
except ConfigError as error:
    refused = str(error)
print(refused)
assert "later" in refused

# %% [markdown]
# How much does it leak? We change the last letter of the first text and watch the logits before it. Under `batch`,
# the mean runs over all texts as well, so that a text is seen by its neighbours.

# %%
changed = tokens.clone()
changed[0, -1] = (changed[0, -1] + 1) % 27
print("RMS over    largest move of a past logit   as a share of the last one's move   of the other text's")
leaks = {}
for axes in ("token", "time", "batch"):
    model = build(rms_axes=axes, allow_leak=axes != "token", blocks=2, read="plain")
    with torch.no_grad():
        move = (model(changed) - model(tokens)).abs().amax(-1)  # [B, T]
    past = move[0, :-1]
    leaks[axes] = past.max().item(), (past.max() / move[0, -1]).item(), move[1].max().item()
    print(f"{axes:11s} {leaks[axes][0]:28.4f} {leaks[axes][1]:35.4f} {leaks[axes][2]:21.4f}")
    assert past.all() if axes != "token" else not past.any()  # at every earlier position, or at none
assert leaks["token"] == (0, 0, 0), "not by one bit"
assert leaks["time"][0] > 1e-3 and leaks["time"][2] == 0
assert leaks["batch"][0] > 1e-3 and leaks["batch"][2] > 1e-3

# %% [markdown]
# Per token, no past logit moves by even one bit. With a mean over time they move at every position, at most by nearly
# a hundredth of what the changed letter itself moves: the multiplier is one number for the whole text. A loss
# measured on such a model means little, since it was told something about what it had to guess, and generation token
# by token would not reproduce it, because there the future is not there yet.
#
# ## What we found
#
# * A block has no slot before its first write; then two slots with equal values up to the read of event $k + 1$; from
#   $k + 2$ on, a contrast. Our accumulators and the package's agree event by event.
# * The paper's mean source counts come out only if an empty block has no slot.
# * Matching hands the detail out at the size of the sum, between a quarter and four times its own. $C = 0$ gives
#   $D/4$, $D = 0$ stays 0 and keeps its share of the softmax, and the gradient sees a constant.
# * About forty plain lines are the whole of HAARES: values and gradients equal the package's, under each of its ways
#   to read, for odd and even blocks and several ablations.
# * Unlike its parent, HAARES does not start as the standard stream.
# * A mean over time in the matching rule leaks the future into every earlier position.
#
# ## What this does not show
#
# Whether the detail helps, what trained routers do with it (both need recorded runs), or how fast any of this is
# (chapter 12). That the leak exists does not tell how much a model in training would gain from it; since no gradient
# goes through the multiplier, nothing teaches later tokens to send useful signals, and exercise 8.4 finds no gain in
# a short run. And our order of reading and writing is the paper's Table 2 and Algorithm 1 as we understand them;
# their code is not public.
#
# ## Exercises
#
# ### Exercise 8.1 · Who traded places?
# *Easy, 5 minutes.* A block of $m = 6$ events writes 1, 2, 4, 8, 16, 32 in some order, and ends with $(C, D) = (63,
# -41)$. Which outputs are in the early half? Which two must trade places so that both halves hold the usual ones, and
# what does that do to $D$?
#
# <details><summary>Answer</summary>
#
# The early total is $(63 - 41)/2 = 11 = 1 + 2 + 8$: the 8 is early and the 4 is late. Trading them back takes
# $2(8 - 4) = 8$ off the detail, to $-49$. Order *within* a half cannot be told.
#
# ```python
# assert trace([1, 2, 8, 4, 16, 32])[-1] == (63, -41)
# assert trace([8, 2, 1, 32, 16, 4])[-1] == (63, -41)
# assert trace([1, 2, 4, 8, 16, 32])[-1] == (63, -49)
# ```
# </details>
#
# ### Exercise 8.2 · An event too late
# *Medium, 15 minutes.* Suppose someone writes the detail with the sign of the *next* event, an off-by-one error. For
# $m = 4$, which reads see wrong numbers? Would the test "early and late totals add up to $C$" notice? Which test
# would?
#
# <details><summary>Answer</summary>
#
# The signs become $+, -, -, -$ (behind the last event there is nothing to look at; say $-$). The read of event 3 sees
# $(3, -1)$ instead of $(3, 3)$, event 4 sees $(7, -5)$ instead of $(7, -1)$, later blocks $(15, -13)$. The totals
# still add up to $C$, because $(C + D)/2 + (C - D)/2$ always does. Comparing with written-out numbers notices, and so
# does "the first contrast is seen at $k + 2$".
#
# ```python
# pair, seen = None, []
# for u, sign in zip([1, 2, 4, 8], [1, -1, -1, -1]):
#     seen.append(pair)
#     pair = add(pair, u, sign)
# assert seen == [None, (1, 1), (3, -1), (7, -5)] and pair == (15, -13)
# assert (pair[0] + pair[1]) / 2 + (pair[0] - pair[1]) / 2 == pair[0]
# ```
# </details>
#
# ### Exercise 8.3 · What the stopped gradient spares
# *Medium, 20 minutes.* Let the gradient through the multiplier. Show that, away from the clip, the gradient with
# respect to $D$ then has no part along $D$: making the detail louder or softer changes nothing. And what would $C$
# receive?
#
# <details><summary>Answer</summary>
#
# With $\epsilon \to 0$, $\hat D = \mathrm{RMS}(C)\,D/\mathrm{RMS}(D)$ depends on the direction of $D$ alone, so the
# derivative along $D$ is zero. $C$ would get a gradient through the *size* of a slot that is not its own: every read
# of a detail would pull at the length of the sum.
#
# ```python
# def through(C, D):
#     return (rms(C) / (rms(D) + 1e-6)).clamp(1 / 4, 4) * D
#
# C, D = vector(1, 2, 2), vector(1, -1, 3)
# by_C, by_D = torch.autograd.functional.jacobian(through, (C, D))
# assert (by_D @ D).norm() < 1e-5 * D.norm() and by_C.norm() > 0.1
# stopped_C, stopped_D = torch.autograd.functional.jacobian(match, (C, D))
# torch.testing.assert_close(stopped_D @ D, multiplier(C, D) * D)
# assert not stopped_C.any()
# ```
# </details>
#
# ### Exercise 8.4 · Is the leak any use?
# *Hard, 30 minutes.* Chapter 01 trained a model with a leaking norm on random letters and saw its loss sink below the
# floor. Do the same with `rms_axes="time"`: two layers, four letters, windows of three. Does it get below $\log 4$ in
# a few hundred steps? If not, does that make the leak harmless?
#
# <details><summary>Answer</summary>
#
# In our runs it does not: the loss stays at the floor, to the noise. No gradient goes through the multiplier, so
# nothing shapes it into a signal. That is no licence to use it. The logits of the past *do* depend on the future, by
# a share that is far from rounding, so the model cannot be run token by token, and nobody knows what a longer
# training would find.
#
# ```python
# import torch.nn.functional as F
#
# options = {"rms_axes": "time", "allow_leak": True, "blocks": 2}
# model = Transformer(ModelConfig(4, 2, scheme="haares", options=options, **FAMILIES["pocket"]), seed=42)
# optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0)
# drawn, losses = torch.Generator().manual_seed(1), []
# for _ in range(300):
#     letters = torch.randint(4, (32, 4), generator=drawn)
#     loss = F.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())
#     optimiser.zero_grad()
#     loss.backward()
#     optimiser.step()
#     losses.append(loss.item())
# assert abs(sum(losses[-100:]) / 100 - math.log(4)) < 0.02
# ```
# </details>
#
# ### Exercise 8.5 · Quarters
# *Hard, 40 minutes.* One split tells two halves apart. Extend the accumulators by two more details, first quarter
# minus second and third minus fourth, so that all four quarter totals can be recovered. How many sources would a read
# see on average, at 48 layers and four blocks, if each block showed all four? At which event does each contrast
# appear for $m = 8$?
#
# <details><summary>Answer</summary>
#
# With quarters $Q_1 \dots Q_4$: $C = \sum Q$, $D = Q_1 + Q_2 - Q_3 - Q_4$, $D_1 = Q_1 - Q_2$, $D_2 = Q_3 - Q_4$: two
# levels of a Haar tree. The mean is $1 + 4\cdot(1.5 + 23/24) = 10.833$ if all four slots appear with the first write.
# For $m = 8$: $D_1$ differs from $C$ from the read of event 4 on, $D$ from 6, and $D_2$, which is zero through the
# early half, first shows something at 6 and a contrast at 8. The paper has one level; more of them
# would make a good project.
#
# ```python
# def four(outputs):
#     rows = torch.tensor([[1] * 8, [1] * 4 + [-1] * 4, [1, 1, -1, -1] + [0] * 4, [0] * 4 + [1, 1, -1, -1]])
#     return rows @ torch.tensor(outputs)
#
# C, D, D1, D2 = four([1, 2, 4, 8, 16, 32, 64, 128]).tolist()
# early, late = (C + D) // 2, (C - D) // 2
# assert [(early + D1) // 2, (early - D1) // 2, (late + D2) // 2, (late - D2) // 2] == [3, 12, 48, 192]
# assert round(mean_sources(48, 4, 4, empty_slot=False), 3) == 10.833
# ```
# </details>
#
# ## Further reading
#
# * HAARES, arXiv 2606.06564: section 3, its Tables 1 to 3, Algorithm 1, and Appendix A on what its record leaves
#   open.
# * Attention Residuals, arXiv 2603.15031: the parent, section on the block form.
# * Root Mean Square Layer Normalization, arXiv 1910.07467: the other RMS in the room.
# * Layer Normalization, arXiv 1607.06450: why to normalise one example by itself, and not over a batch.
#
# ## What the paper leaves open
#
# The paper's code is not public, and its text is silent or brief about the points below. Each needs a choice before a
# program runs. These are ours. "How to change it" names the option: `RouterOptions` for the scheme
# (in `ModelConfig.options`, or on the command line), others as given. A dash means that there is no option, and why.
#
# | | open point | our default | how to change it |
# |---|---|---|---|
# | 1 | axes of $\mathrm{RMS}(C)$ and $\mathrm{RMS}(D)$ | one number a token | `rms_axes`, with `allow_leak=True` |
# | 2 | slot of a block before its first write | none | – |
# | 3 | gain of the key norm | learned, one for each read | `key_gain=False` |
# | 4 | $\epsilon$ of the key norm; factor on scores | $10^{-6}$; none | `ModelConfig.norm_eps`; – |
# | 5 | how many detail biases | one for each read | `bias="fixed"`, `"masked"`; sharing: – |
# | 6 | detail bias of a final read with details | one more, learned | `readout_details=True` |
# | 7 | is the duplicate of $C$ matched? | no | – |
# | 8 | which random signs | one coin for each event | `sign_seed` |
# | 9 | the first version's phase | attention plus, MLP minus | `detail="phase"` |
# | 10 | $2L$ not a multiple of $N$ | refused | `blocks=(5, 3)`: lengths |
# | 11 | biases in the MLP | none | `ModelConfig.mlp_bias=True` |
# | 12 | LayerScale between the depths given | 0.1 up to 18, $10^{-5}$ up to 24, $10^{-6}$ | `gate_init` |
# | 13 | what a "line" of text is | a record of the corpus | `DataConfig.record` |
# | 14 | the rest behind a record's last whole chunk | dropped; stories: padded | `DataConfig.remainder` |
# | 15 | does the embedding decay? | yes, as a matrix | – |
# | 16 | do methods share their starting weights? | the backbone's, for equal seeds | – |
# | 17 | precision of scores and sums | float32, under autocast too | – |
# | 18 | how a read is carried out | `lean` | `read="plain"`, `"recompute"` |
# | 19 | unit and seed of a random validation split | records; 42 | – |
# | 20 | text that a BPE tokenizer learns from | the training split | – |
# | 21 | marks around a record | none; stories: begin and end | `DataConfig.frame` |
#
# Why these defaults:
#
# 1. Every other axis leaks, as shown above.
# 2. The paper's Table 3 decides, as shown above. So there is nothing to choose.
# 3. As in Attention Residuals. At step 0 it makes no difference, since queries are zero.
# 4. As in Attention Residuals; the $\epsilon$ is that of the model's other norms.
# 5. The paper speaks of "a learned routing bias" that starts at −2, not of how many. One for each read is the
#    smallest number that lets events differ; its details share it.
# 6. The paper's final read sees no details. If it is made to see them, it gets a bias like the others.
# 7. The control should *repeat* $C$. Matched, the copy would fall short of it by the $\epsilon$.
# 8. Drawn once, from a seed of its own, so that model seeds and signs can be varied apart. One draw proves little.
# 9. All that is known of it; it is matched and biased like any detail.
# 10. The paper uses equal blocks. An uneven partition is possible, but only if asked for by name.
# 11. The paper's parameter counts come out without them (chapter 01).
# 12. The paper gives 12, 24 and 48 layers; the steps between are those of LayerScale's own paper.
# 13. Physical lines are mostly too short to fill a chunk of 513 characters.
# 14. "Forms length-513 chunks" suggests dropping; the share that is kept is printed. Stories are padded so that their
#     exact floor holds.
# 15. The paper excludes what has under two dimensions, biases, norms, gates and queries, and does not name the
#     embedding.
# 16. Then a pair of runs differs in the scheme alone.
# 17. The paper is in float32 throughout. Under autocast, which it does not use, the routed part stays so.
# 18. Equal numbers for less (chapter 12).
# 19. A cut between records keeps a story on one side; 42 is the paper's data seed.
# 20. Otherwise the tokenizer would have seen the validation text.
# 21. A built-in story is a text by itself, and its floor has to know where it begins.
#
# The cell below fails if one of these defaults moves, and if the router gets an option that is neither the paper's
# nor on this list.

# %%
def defaults(settings):
    return {f.name: f.default for f in fields(settings)}


in_the_paper = {"blocks": 4, "detail": "half", "match": "rms", "gamma": 4.0, "eps": 1e-6, "bias": "learned",
                "bias_init": -2.0, "readout_details": False}  # fmt: skip
on_the_list = {"rms_axes": "token", "allow_leak": False, "key_gain": True, "sign_seed": 0, "read": "lean"}
assert defaults(RouterOptions) == in_the_paper | on_the_list
assert defaults(ModelConfig)["norm_eps"] == 1e-6 and defaults(ModelConfig)["mlp_bias"] is False
assert {"record": "auto", "remainder": "auto"}.items() <= defaults(DataConfig).items()
assert defaults(StreamOptions)["gate_init"] is None
starts = {layers: build("layerscale", layers, 0).residual.gates[0, 0].item() for layers in (12, 18, 19, 24, 25, 48)}
assert {layers: round(math.log10(start)) for layers, start in starts.items()} == {
    12: -1, 18: -1, 19: -5, 24: -5, 25: -6, 48: -6,
}  # fmt: skip
assert build().residual.detail_bias.shape == (8,) and (build(shake=0).residual.detail_bias == -2).all()
assert (build(shake=0, readout_details=True).residual.detail_bias == -2).tolist() == [True] * 9
assert package_reads(4, detail="duplicate", match="rms") == [[-7, *([c, c] if c else [])] for c in (0, 1, 3, 7)] + [
    [-7, 15, 15, *([c, c] if c else [])] for c in (0, 16, 48, 112, 240)
]
draws = {seed: [place.sign for place in build(detail="random_sign", sign_seed=seed).residual.places] for seed in (0, 1)}
print("random signs, seeds 0 and 1:", *("".join("+-"[sign < 0] for sign in draw) for draw in draws.values()))
print(len(in_the_paper), "options are the paper's,", len(on_the_list), "stand on the list, and there are no others")
