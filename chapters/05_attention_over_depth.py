# %% [markdown]
# # 05 · Attention over depth: can a layer choose what it reads?
#
# In a residual stream (chapter 04) everything that was ever written is added up, and every event reads the same sum.
# A Transformer had that problem once before, along *time*: recurrent networks squeezed the past into one vector,
# until attention let each position choose. Attention Residuals (arXiv 2603.15031) do the same along *depth*: keep
# what was written apart, as **sources**, and let every event take a softmax mixture of them. This chapter builds the
# full form, with one source for each event, and the **block** form, which keeps one for each group of events and is
# the parent of HAARES.
#
# > **You will build** the routed read (scores, softmax over depth, mixture), full and Block Attention Residuals
# > behind the four verbs, and the two-phase read, each equal to the package in outputs **and** gradients.
# >
# > **You will learn** what a model with zero queries computes and how it differs from the standard sum, why one query
# > never learns, how many sources a read sees, and what goes wrong when the embedding is counted twice.
# >
# > **You need** chapter 04: events, the four verbs, the loop around them.
# >
# > **Runs in** about 20 seconds on 2 cores, without a network.

# %%
import math
import tempfile
from itertools import accumulate
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from minihaares import depth_read, plots
from minihaares.data import DataConfig, load_corpus
from minihaares.model import FAMILIES, ModelConfig, Transformer, rotary_table
from minihaares.train import RunConfig, TrainConfig, train

torch.manual_seed(0)
plots.use_style()

# %% [markdown]
# ## One read by hand
#
# One token, two channels, and three things written so far: the embedding $e = (1, 1)$ and two outputs,
# $u_1 = (4, -4)$ and $u_2 = (2, 2)$. An event that wants to read has a **query** $q$ of its own, a learned vector
# that does not depend on the token. It scores each source by its product with the *normalised* source, which has RMS
# 1:
#
# $$z_s = q\cdot\mathrm{RMSNorm}(v_s),\qquad w = \mathrm{softmax}(z),\qquad \tilde h = \sum_s w_s v_s.$$
#
# The normalised sources are $(1, 1)$, $(1, -1)$ and $(1, 1)$ again. With $q = \frac{\log 3}{2}\,(1, 1)$ the scores
# are $\log 3$, $0$, $\log 3$, the shares $3 : 1 : 3$, and the mixture is
# $\frac17\left[3\,(1, 1) + (4, -4) + 3\,(2, 2)\right] = (13/7,\ 5/7)$.
#
# Two things to notice. The norm is for the *score* only: $e$ and $u_2$ point the same way and get the same share, but
# $u_2$ counts twice as much in the mixture. And the mixture is *all* that the event reads. It **replaces** the stream
# and is added to nothing. The connection to the past, the "residual" part, is that old sources stay available.

# %%
def rms_norm(x, gain):  # as in chapter 01
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def score(source, query, gain):  # source [..., d] -> [...]
    return (rms_norm(source, gain) * query).sum(-1)


def weigh(sources, query, gain):  # S sources [..., d] -> shares [S, ...]
    return torch.softmax(torch.stack([score(v, query, gain) for v in sources]), dim=0)


def mixture(sources, query, gain):  # -> [..., d]
    return (weigh(sources, query, gain)[..., None] * torch.stack(sources)).sum(0)


e, u1, u2 = (torch.tensor(v, dtype=torch.float64) for v in ([1, 1], [4, -4], [2, 2]))
query = math.log(3) / 2 * torch.ones(2, dtype=torch.float64)
print("shares times 7:", [f"{7 * w:.3f}" for w in weigh((e, u1, u2), query, 1).tolist()])
print("mixture times 7:", [f"{7 * x:.3f}" for x in mixture((e, u1, u2), query, 1).tolist()])
assert torch.allclose(mixture((e, u1, u2), query, 1), torch.tensor([13 / 7, 5 / 7]).double(), atol=1e-5)


# %% [markdown]
# ## Full Attention Residuals
#
# The state is the list of sources. It begins with the embedding; every event adds what it made; every event, and the
# head at the end, has its own query and its own gain for the norm inside the score (the *key norm*).

# %%
class Full:
    def __init__(self, queries, gains):  # [2L + 1, d] each: one row for each event, the last for the readout
        self.queries, self.gains = queries, gains

    def begin(self, embedding):
        return (embedding,)

    def sources(self, state):
        return state

    def read(self, state, event):
        return mixture(self.sources(state), self.queries[event], self.gains[event]), state

    def write(self, state, event, output):
        return (*state, output)

    def readout(self, state):
        return mixture(self.sources(state), self.queries[-1], self.gains[-1])


# %% [markdown]
# The loop is that of chapter 04, and so is the comparison: the package's sublayers, our verbs, shaken weights, float64.

# %%
def build(scheme, layers=3, shake=0.2, eps=1e-6, family="pocket", **options):
    sizes = FAMILIES[family]  # pocket: width 32; the paper's medium family has 512
    config = ModelConfig(vocab_size=27, layers=layers, norm_eps=eps, scheme=scheme, options=options, **sizes)
    model = Transformer(config, seed=42).double()
    generator = torch.Generator().manual_seed(0)
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
model = build("attnres")
router = model.residual
for name, parameter in router.named_parameters():
    print(f"{name:10s} {list(parameter.shape)}")
parameters = [*model.parameters()]
check_equal(forward(model, Full(router.query, router.key_gain), tokens), model(tokens), parameters)
print("equal in", len(parameters), "parameter tensors")


# %% [markdown]
# ## Blocks
#
# Full routing keeps $2L + 1$ vectors for each token, at 48 layers 97; the last event reads 96 of them, the head all.
# The block form cuts the events into $N$ contiguous blocks and *adds up* within a block, as a residual stream would.
# The sources of a read are
#
# * the embedding, by itself;
# * the sum of every finished block;
# * the sum so far of the block under way, **once it holds something**. Before a block's first write there is nothing
#   to read, and no slot.

# %%
class Block(Full):
    def __init__(self, queries, gains, lengths):
        super().__init__(queries, gains)
        self.ends = {*accumulate(lengths)}

    def begin(self, embedding):
        return (embedding,), None  # finished sources; the block under way

    def sources(self, state):
        finished, active = state
        return finished if active is None else (*finished, active)

    def write(self, state, event, output):
        finished, active = state
        active = output if active is None else active + output
        if event + 1 in self.ends:
            return (*finished, active), None
        return finished, active


def lengths_of(model):  # of the package's model
    return [place.length for place in model.residual.places if place.offset == 0]


# %% [markdown]
# The package cuts into equal blocks when given a number, and into any blocks when given their lengths. One class
# holds it all: full routing is the case of blocks of one event, and a read can be done as the equations are written
# (`read="plain"`) or in the saving way that is coming below (`read="lean"`, the default).

# %%
for options in ({"blocks": 2}, {"blocks": (3, 1, 2)}, {"blocks": 6}, {"blocks": 2, "read": "plain"}):
    model = build("block", **options)
    router, lengths, parameters = model.residual, lengths_of(model), [*model.parameters()]
    check_equal(forward(model, Block(router.query, router.key_gain, lengths), tokens), model(tokens), parameters)
    print(f"{options!s:33s} lengths {lengths!s:19s} equal")
as_full = forward(model, Block(router.query, router.key_gain, [1] * 6), tokens)
torch.testing.assert_close(as_full, forward(model, Full(router.query, router.key_gain), tokens))
print("blocks of one event are full Attention Residuals")

# %% [markdown]
# ## Who reads what
#
# The verbs can tell how many sources each read sees. We run them on outputs that are mere placeholders, at the depth
# of the HAARES paper's models, and compare with Table 3 of that paper, which gives the mean number at 48 layers:
# 3.458 for $N = 4$ and 5.417 for $N = 8$.

# %%
def counts(residual, events):  # sources seen by each read; the last one is the readout
    nothing = torch.zeros(1)
    state, found = residual.begin(nothing), []
    for event in range(events):
        found.append(len(residual.sources(state)))
        state = residual.write(state, event, nothing)
    return [*found, len(residual.sources(state))]


seen = {"Full": counts(Full(None, None), 96)}
seen |= {f"Block, N = {n}": counts(Block(None, None, [96 // n] * n), 96) for n in (4, 6, 8)}
print("48 layers        mean    peak   readout")
for name, found in seen.items():
    print(f"{name:14s} {sum(found[:-1]) / 96:6.3f} {max(found[:-1]):6d} {found[-1]:8d}")
assert [round(sum(found[:-1]) / 96, 3) for found in seen.values()] == [48.5, 3.458, 4.438, 5.417]


# %%
def draw_slots(axis, lengths):  # dark: a source that does not change any more; hatched: the block under way
    starts = [0, *accumulate(lengths)]
    for read in range(13):
        for source in range(len(lengths) + 1):
            full = source == 0 or read >= starts[source]
            part = not full and read > starts[source - 1]
            face, hatch = ("0.35", "") if full else ("0.8", "////") if part else ("white", "")
            corner = source - 0.5, read - 0.5
            axis.add_patch(plt.Rectangle(corner, 1, 1, facecolor=face, hatch=hatch, edgecolor="0.6"))
    axis.set(xlim=(-0.5, len(lengths) + 0.5), ylim=(12.5, -0.5), xlabel="source", aspect="auto")
    axis.set_yticks(range(13), [*map(str, range(1, 13)), "head"])
    axis.grid(False)


# %%
fig, axes = plt.subplots(1, 3, figsize=(10.5, 4.3), width_ratios=(3.2, 1.5, 3.3))
draw_slots(axes[0], [1] * 12)
draw_slots(axes[1], [4] * 3)
axes[0].set(title="Full: 6 layers", ylabel="read before event", xticks=range(13), xticklabels=["e", *range(1, 13)])
axes[1].set(title="Block: 3 of 4 events", xticks=range(4), xticklabels=["e", "$C_1$", "$C_2$", "$C_3$"])
for name, style in (("Full", "attnres"), ("Block, N = 4", "block")):
    axes[2].plot(range(1, 98), seen[name], **plots.SCHEME_STYLE[style] | {"label": name, "markevery": 12})
axes[2].plot(range(1, 98), seen["Block, N = 8"], color="0.5", label="Block, N = 8")
axes[2].set(title="How many, at 48 layers", xlabel="read", ylabel="sources", yscale="log")
axes[2].set_yticks((1, 2, 5, 10, 20, 50, 97), (1, 2, 5, 10, 20, 50, 97))
axes[2].minorticks_off()
axes[2].legend()
plots.show(
    fig,
    alt="Left: a triangle. With full Attention Residuals in 6 layers, the read before event 1 sees only the embedding, "
    "each later read one source more, and the head all 13. Middle: a staircase of four columns. With three blocks of "
    "four events, a read sees the embedding, the finished blocks in dark, and a hatched cell for the block under way, "
    "which is missing in the first row of each block. Right: the number of sources at 48 layers on a logarithmic axis. "
    "Full rises to 97; four blocks climb in small steps to 5, eight blocks to 9.",
)

# %% [markdown]
# The hatched cells are the block under way. The first row of each block has none.
#
# ## Zero queries: the mean, not the sum
#
# Queries start at zero. Then all scores are zero and all shares equal, so an untrained model reads the plain *mean*
# of its sources. Is that the standard stream? In the toy case the mean is $(7, -1)/3$ and the sum is $(7, -1)$. For
# full and for block routing alike, the sources add up to everything written so far, so
#
# $$\tilde h = \frac1S\sum_s v_s = \frac1S\,\Big(e + \sum_i u_i\Big),$$
#
# the standard stream divided by the number of sources. That is not the standard sum: before the last event of a
# 48-layer model with full routing, it is smaller by a factor of 96. But a sublayer begins with a norm, which divides
# every factor out again! So is an untrained model the same function as a standard one, or not? We compare logits, for
# equal weights.

# %%
@torch.no_grad()
def apart(scheme, options, **how):  # relative distance of untrained logits from those of Standard
    standard, routed = build("standard", shake=0, **how)(tokens), build(scheme, shake=0, **how, **options)(tokens)
    return ((routed - standard).norm() / standard.norm()).item()


print("distance from Standard      norm ε = 1e-6                 norm ε = 1e-20")
print("layers                      3       12       48           3        12       48")
for name, scheme, options in (("Full", "attnres", {}), ("Block, N = 2", "block", {"blocks": 2}),
                              ("Block, N = 6", "block", {"blocks": 6})):  # fmt: skip
    found = {eps: [apart(scheme, options, layers=layers, eps=eps) for layers in (3, 12, 48)] for eps in (1e-6, 1e-20)}
    print(f"{name:22s}", *(f"{distance:8.4f}" for distance in found[1e-6]), end="   ")
    print(*("  < 1e-13" if distance < 1e-13 else f"{distance:9.1e}" for distance in found[1e-20]))
    assert max(found[1e-20]) < 1e-13 and min(found[1e-6]) > 1e-3
wider = apart("attnres", {}, layers=12, family="small")
print(f"Full, 12 layers of width 128, ε = 1e-6: {wider:.4f}")

# %% [markdown]
# A clear answer, of two halves. Up to rounding, the mean is the *same function* as the standard sum if the norms have
# no $\epsilon$ to speak of. With the usual $\epsilon = 10^{-6}$ it is not, and in a deep model with full routing the
# logits differ by half their size. The reason is in
#
# $$\mathrm{RMSNorm}(x) = x\,/\sqrt{\mathrm{RMS}(x)^2 + \epsilon}.$$
#
# An embedding has RMS $0.02$, its square is $4\cdot10^{-4}$. To divide by 96 divides the square by 9,216: that makes
# $4\cdot10^{-8}$ for the embedding alone, of the order of $10^{-7}$ with the outputs, and below $\epsilon$. The norm
# no longer lifts it to size 1, and sublayers hear everything too softly. So "zero queries start as a standard
# Transformer" is true on paper and false in the machine, here by as much as the last column of the left half says.
# (In wider models outputs are larger, chapter 04, and the effect is smaller: see the last line. It is still not zero.
# With blocks the divisor is at most $N + 1$ while the stream grows with depth, so there the effect shrinks.) What
# starts the same does not stay the same, of course: the first step moves the queries, and the mixture turns away from
# the sum.
#
# ## The query that never learns
#
# The very first read sees one source, the embedding. A softmax over one score is 1, whatever the score: so the first
# query has no effect, and its gradient is exactly zero, always. One more thing shows in the gradients: key gains,
# too, get none at the start, since a gain acts on the score only together with the query, which is zero.

# %%
for shake, when in ((0.0, "at the start"), (0.2, "with shaken weights")):
    model = build("block", blocks=2, shake=shake)
    model(tokens).square().sum().backward()
    gradients = {name: p.grad.norm(dim=-1) for name, p in model.residual.named_parameters()}
    for name, norms in gradients.items():
        print(f"{when:20s} {name:8s}", *(f"{g:8.1e}" for g in norms.tolist()))
    assert gradients["query"][0] == 0 == gradients["key_gain"][0] and gradients["query"][1:].all()
    assert gradients["key_gain"][1:].any() == (shake > 0)


# %% [markdown]
# ## Reading in two phases
#
# Queries are parameters. They do not depend on the text, so all reads of a block are known when the block begins, and
# so are the finished sources that they will see: only the block's own sum is still growing. Hence two phases
# (Algorithm 1 of the Attention Residuals paper):
#
# 1. When a block begins, do *all* its reads over the finished sources in one go. Keep, for each, the mixture $o$ and
#    the logarithm of the total mass, $\ell = \log\sum_s e^{z_s}$.
# 2. At each event, join the block's sum $v$ with score $z$: $o$ has mass $e^\ell$, $v$ has mass $e^z$, so
#    $\tilde h = o + \sigma(z - \ell)\,(v - o)$, with the logistic function $\sigma$ for the share of $v$.
#
# By hand, with $e$ and $u_1$ finished and $u_2$ under way: phase one finds
# $o = \frac14\left[3\,(1, 1) + (4, -4)\right] = (7/4,\ -1/4)$ with mass 4. The newcomer has mass 3, so the mixture is
# $\frac17\left[4\,o + 3\,(2, 2)\right] = (13/7,\ 5/7)$, as before. Nothing is approximated. It is the same trick that
# lets FlashAttention (arXiv 2205.14135) work through a long text piece by piece.

# %%
def read_ahead(finished, queries, gains):  # S × [..., d], R queries -> mixtures [R, ..., d], log masses [R, ...]
    sources = torch.stack(finished)  # [S, ..., d]
    unit = rms_norm(sources, 1)
    scores = torch.einsum("s...d,rd->rs...", unit, queries * gains)  # [R, S, ...]
    return torch.einsum("rs...,s...d->r...d", scores.softmax(1), sources), scores.logsumexp(1)


def join(o, log_mass, active, query, gain):
    share = torch.sigmoid(score(active, query, gain) - log_mass)[..., None]
    return o + share * (active - o)


o, log_mass = read_ahead((e, u1), query[None], 1)
print("phase one:", [f"{x:.3f}" for x in o[0].tolist()], f"mass {log_mass[0].exp():.3f}")
print("joined, times 7:", [f"{7 * x:.3f}" for x in join(o[0], log_mass[0], u2, query, 1).tolist()])


# %%
class TwoPhases(Block):
    def __init__(self, queries, gains, lengths):
        super().__init__(queries, gains, lengths)
        self.length_from = dict(zip([0, *accumulate(lengths)], lengths, strict=False))  # a block's start -> its length

    def open(self, finished, start):
        rows = slice(start, start + self.length_from.get(start, 1))  # behind the last block: the readout
        return finished, None, [*zip(*read_ahead(finished, self.queries[rows], self.gains[rows]), strict=True)]

    def begin(self, embedding):
        return self.open((embedding,), 0)

    def read(self, state, event):
        finished, active, [(o, log_mass), *ahead] = state
        if active is not None:
            o = join(o, log_mass, active, self.queries[event], self.gains[event])
        return o, (finished, active, ahead)

    def write(self, state, event, output):
        finished, active = super().write(state[:2], event, output)
        return self.open(finished, event + 1) if active is None else (finished, active, state[2])

    def readout(self, state):
        return state[2][0][0]


# %%
for blocks in (1, 2, (3, 1, 2)):
    model = build("block", blocks=blocks)
    ours = TwoPhases(model.residual.query, model.residual.key_gain, lengths_of(model))
    check_equal(forward(model, ours, tokens), model(tokens), [*model.parameters()])

finished = [torch.randn(2, 20, 32, dtype=torch.float64) for _ in range(3)]
queries, gains = torch.randn(2, 4, 32, dtype=torch.float64)
o, log_mass = read_ahead(finished, queries, gains)
package = depth_read.completed_reads(tuple(finished), queries * gains, None, 1e-6)
for ours, theirs in zip(zip(o, log_mass, strict=True), package, strict=True):
    torch.testing.assert_close(ours, (theirs.mixture, theirs.lse))
print("two phases equal the package, for each partition; phase one equals depth_read.completed_reads")

before = sum(24 * finished for finished in (1, 2, 3, 4))  # 48 layers, N = 4: each event fetches each finished source
ahead = sum(finished for finished in (1, 2, 3, 4))  # each block fetches each finished source once
print(f"finished sources fetched on one pass through 48 layers: {before} in one phase, {ahead} in two")

# %% [markdown]
# The package does this by default (`read="lean"`; chapter 12 counts what it saves).
#
# ## Do they choose?
#
# They can; do they? A small model with full routing, trained for a moment on the built-in stories, at two learning
# rates. We look at the share that each read gives to each source, as a mean over tokens.

# %%
LAYERS, STEPS = 4, 200
# Full size beside it: the HAARES paper has 48 layers of width 512, and 30,000 steps of 16 × 512 tokens at 3e-4.


@torch.no_grad()
def shares_of(model, texts):  # [reads, sources], means over tokens, 0 where a source does not exist yet
    residual = Full(model.residual.query, model.residual.key_gain)
    rope = rotary_table(0, texts.shape[1], model.config, model.embed.weight)
    state, rows = residual.begin(model.embed(texts)), []
    for event, sublayer in enumerate(model.sublayers):
        rows.append(weigh(state, residual.queries[event], residual.gains[event]).mean((1, 2)))
        state = residual.write(state, event, sublayer(residual.read(state, event)[0], rope))
    rows.append(weigh(state, residual.queries[-1], residual.gains[-1]).mean((1, 2)))
    return torch.stack([torch.nn.functional.pad(row, (0, len(state) - len(row))) for row in rows])


def train_at(rate, room):  # the losses and the maps before the first and after the last step
    data = DataConfig(context=64, frame="bare", remainder="drop", stories=600, valid_stories=40, cache_dir=Path(room))
    corpus = load_corpus(data, progress=False)
    texts = torch.from_numpy(corpus.valid[:16, :64].astype(np.int64))
    sizes = ModelConfig(layers=LAYERS, scheme="attnres", **FAMILIES["pocket"])
    recipe = TrainConfig(steps=STEPS, batch_size=8, lr=rate, eval_every=STEPS, eval_chunks=32, device="cpu", threads=1,
                         out=Path(room) / f"rate {rate}")  # fmt: skip
    seen = []
    train(RunConfig(sizes, data, recipe), corpus, progress=False,
          on_eval=lambda row, model: seen.append((row.valid_loss, shares_of(model, texts))))  # fmt: skip
    return seen


# %%
RATES = (3e-3, 1e-2)
room = tempfile.TemporaryDirectory()
runs = {RATES[0]: train_at(RATES[0], room.name)}

# %%
runs[RATES[1]] = train_at(RATES[1], room.name)
room.cleanup()

# %% tags=["nbval-ignore-output"]
mean = runs[RATES[0]][0][1]
moved = {rate: (run[1][1] - mean).abs().amax(1) for rate, run in runs.items()}
for rate, ((before, _), (after, _)) in runs.items():
    print(f"rate {rate:.3f}: validation loss {before:.2f} before, {after:.2f} after {STEPS} steps")
    print("   largest change of a share, read by read:", *(f"{m:.2f}" for m in moved[rate].tolist()))

# %%
maps = {"before: the mean": mean} | {f"after {STEPS} steps at {rate}": run[1][1] for rate, run in runs.items()}
fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.9), sharey=True)
for axis, (title, shares) in zip(axes, maps.items(), strict=True):
    axis.imshow(shares.sqrt(), cmap="Greys", vmin=0, vmax=1)  # the root makes small shares visible
    for (read, source), share in np.ndenumerate(shares.numpy()):
        if share >= 0.095:
            colour = "white" if share > 0.3 else "black"
            tenths = f"{share:.1f}".removeprefix("0")
            axis.text(source, read, tenths, ha="center", va="center", fontsize=8, color=colour)
    axis.set(title=title, xlabel="source", xticks=range(9), xticklabels=["e", *range(1, 9)])
    axis.grid(False)
axes[0].set_ylabel("read before event")
axes[0].set_yticks(range(9), [*map(str, range(1, 9)), "head"])
plots.show(
    fig,
    alt="Three maps of shares, reads down, sources across, darker is more. Before training every row is evenly grey up "
    "to the diagonal. At the lower rate the rows are still nearly even. At the higher rate they differ: the second "
    "read keeps almost only to one source, others have one or two favourites and leave the rest nearly white.",
)

# %% [markdown]
# At the lower rate the model learns the stories quite well while its reads stay near the mean (no share moves by more
# than a tenth); at the higher rate they differ clearly from the mean and from each other, and the losses are close.
# That is no paradox. AdamW moves each number by about the learning rate in a step, and a query that starts at zero
# needs many steps to get long enough to matter. The HAARES paper's runs have 30,000 of them. What routers prefer
# after real training, and why, is a question for longer runs.

# %%
for _, shares in (*runs[RATES[0]], *runs[RATES[1]]):
    assert torch.allclose(shares.sum(1), torch.ones(9), atol=1e-5)
assert torch.allclose(mean, torch.tril(torch.ones(9, 9)) / torch.arange(1, 10)[:, None])
assert all(after < before - 1 for (before, _), (after, _) in runs.values()), "both learned"
slow, fast = moved.values()
assert slow[0] == fast[0] == 0, "the first read has no choice"
assert fast.max() > 0.2 and fast.max() > 1.5 * slow.max(), "a query must grow before it can choose"

# %% [markdown]
# ## A wrong turn: the embedding twice
#
# In a Block model the embedding is a source of its own and is *not* part of block 1. It is easy to get wrong. A
# residual stream begins with the embedding, so it seems natural to begin the first block's sum with it. The sketch in
# PyTorch that was published with the method, read literally, takes the embedding both as the first source and as the
# first partial sum; and if that partial sum is put away at the first block boundary, it stands among the sources
# twice. Two readings, then:

# %%
class InBlockOne(Block):
    def begin(self, embedding):
        return (embedding,), embedding  # a source, and the beginning of block 1's sum


class TwiceASource(Block):
    def begin(self, embedding):
        return (embedding, embedding), None


print(f"{'':14s}   sources of reads 1, 2, 3      mean at 48 layers, N = 8   logits apart   from Standard, ε = 1e-20")
for kind in (Block, InBlockOne, TwiceASource):
    found = counts(kind(None, None, [12] * 8), 96)
    model = build("block", blocks=2)
    parts = model.residual.query, model.residual.key_gain, lengths_of(model)
    lively = (forward(model, kind(*parts), tokens) - model(tokens)).norm() / model(tokens).norm()
    fresh = build("block", blocks=2, shake=0, eps=1e-20)
    zero = forward(fresh, kind(fresh.residual.query, fresh.residual.key_gain, lengths_of(fresh)), tokens)
    standard = build("standard", shake=0, eps=1e-20)(tokens)
    start = (zero - standard).norm() / standard.norm()
    print(f"{kind.__name__:14s}   {found[:3]!s:27s} {sum(found[:-1]) / 96:8.3f} {lively:25.3f} {start:20.3f}")
    assert (kind is Block) == (lively < 1e-12) == (start < 1e-12) == (round(sum(found[:-1]) / 96, 3) == 5.417)

# %% [markdown]
# Both versions run, and give logits that are off by a good part of their size from those of the definition. What
# gives them away are two facts that cost nothing to check. The mean number of sources is no longer the published
# 5.417. And with zero queries the read is not parallel to the standard sum any more: the embedding has double weight,
# at every read after the first, and no norm takes that out. (Two equal sources act like one whose score is higher by
# $\log 2$; chapter 10 is about that.)
#
# ## What we found
#
# * A routed read scores stored sources against a learned query, takes a softmax over depth and *replaces* the stream
#   by the mixture. Full and Block Attention Residuals are one construction, equal to the package in outputs and
#   gradients.
# * A block's sum is a source from its second event on; the embedding is a source by itself. Block routing with
#   $N = 8$ at 48 layers reads 5.4 sources on average, full routing 48.5.
# * Zero queries give the mean, which is the standard sum divided by the number of sources. The norm behind the read
#   makes that the same function, but for its $\epsilon$, which for full routing in a deep, narrow model is not a
#   small matter.
# * The first query has no effect and no gradient, exactly; key gains get none at the first step.
# * Reads of a block can be made ahead over finished sources and joined with the active one exactly.
# * After 200 steps reads have moved away from the mean, further at the higher learning rate.
#
# ## What this does not show
#
# That choosing helps. The authors report lower losses than a standard baseline (1.737 for the full and 1.746 for the
# block form against 1.766, at 16 layers); in the repository of Delta Attention Residuals (arXiv 2605.18855) the same
# method does worse than its baseline at larger sizes. Nor does a share tell how much a source *matters*: the values
# behind the shares differ in size, and they overlap.
#
# ## Exercises
#
# ### Exercise 5.1 · A louder query
# *Easy, 5 minutes.* In the case by hand, double the query. What are the shares and the mixture? What if the query is
# multiplied by a thousand, and what by minus a thousand?
#
# <details><summary>Answer</summary>
#
# Shares $9 : 1 : 9$, mixture $\frac1{19}\left[9\,(1,1) + (4,-4) + 9\,(2,2)\right] = (31/19,\ 23/19)$. A very long
# query splits its weight evenly between $e$ and $u_2$, which tie: $(1.5, 1.5)$. The opposite one takes $u_1$ alone.
#
# ```python
# for factor, answer in ((2, [31 / 19, 23 / 19]), (1000, [1.5, 1.5]), (-1000, [4, -4])):
#     expected = torch.tensor(answer, dtype=torch.float64)
#     torch.testing.assert_close(mixture((e, u1, u2), factor * query, 1), expected, rtol=1e-3, atol=1e-3)
# ```
# </details>
#
# ### Exercise 5.2 · What the key norm is for
# *Medium, 10 minutes.* Score the sources *without* normalising them. What happens to the shares of the case by hand
# if some event learns to write ten times louder? And with the norm?
#
# <details><summary>Answer</summary>
#
# Without the norm the score of $u_2$ is $2\log 3$, and ten times louder $20 \log 3$: its share goes to 1, and
# loudness wins over direction. With the norm the shares stay, and the mixture alone gets louder.
#
# ```python
# def raw_shares(sources):
#     return torch.softmax(torch.stack([(v * query).sum(-1) for v in sources]), dim=0)
#
# assert raw_shares((e, u1, 10 * u2))[2] > 0.999
# torch.testing.assert_close(weigh((e, u1, 10 * u2), query, 1), weigh((e, u1, u2), query, 1), rtol=1e-6, atol=1e-6)
# ```
# </details>
#
# ### Exercise 5.3 · One block
# *Medium, 15 minutes.* With $N = 1$ and zero queries, what does each read give, as a multiple of the standard stream?
# What can a model with $N = 1$ and *trained* queries do that a standard one cannot?
#
# <details><summary>Answer</summary>
#
# The first read gives $e$, all others $(e + \sum u)/2$: half the stream. With trained queries each event can weigh
# the embedding against the sum of all outputs, between "only the embedding" and "all but the embedding", token by
# token. That is all: nothing that was written later can be told apart.
#
# ```python
# residual = Block(torch.zeros(7, 2), torch.ones(7, 2), [6])
# state, stream = residual.begin(u1), u1
# for event, output in enumerate((u2, e, u2, u1, e, u1)):
#     x, state = residual.read(state, event)
#     torch.testing.assert_close(x, stream if event == 0 else stream / 2)
#     state, stream = residual.write(state, event, output), stream + output
# ```
# </details>
#
# ### Exercise 5.4 · Three parts, any order
# *Medium, 15 minutes.* Write a function that joins two *groups* of sources, each given by its mixture and its log
# mass, into one. Show that the order in which three groups are joined does not matter. What is the neutral element?
#
# <details><summary>Answer</summary>
#
# Weigh the mixtures by their masses; the log masses combine by log-sum-exp. It is associative and commutative because
# it is addition in disguise, of the pairs (mass, mass times mixture). The empty group, with log mass $-\infty$, is
# neutral.
#
# ```python
# def merge(left, right):
#     (o, a), (p, b) = left, right
#     total = torch.logaddexp(a, b)
#     return (a - total).exp()[..., None] * o + (b - total).exp()[..., None] * p, total
#
# parts = [tuple(x[0] for x in read_ahead((v,), query[None], 1)) for v in (e, u1, u2)]
# one = merge(merge(parts[0], parts[1]), parts[2])
# two = merge(parts[1], merge(parts[2], parts[0]))
# torch.testing.assert_close(one[0], mixture((e, u1, u2), query, 1))
# torch.testing.assert_close(one, two)
# empty = torch.zeros(2, dtype=torch.float64), torch.tensor(-math.inf, dtype=torch.float64)
# torch.testing.assert_close(merge(one, empty), one)
# ```
# </details>
#
# ### Exercise 5.5 · An end to ε
# *Hard, 30 minutes.* Change `mixture` so that an untrained deep model with full routing starts as the standard one
# even with $\epsilon = 10^{-6}$, without touching the norms and without losing the ability to choose. Does your
# change cost anything?
#
# <details><summary>Answer</summary>
#
# Multiply the mixture by the number of sources, $\tilde h = S\sum_s w_s v_s$: with equal shares that is the standard
# sum to rounding. It costs one multiplication; later in training it makes no difference to the sublayers as long as
# the read is large beside $\sqrt\epsilon$. It is no longer the published method, so it would have to be reported as a
# change.
#
# ```python
# original = mixture
# mixture = lambda sources, query, gain: len(sources) * original(sources, query, gain)
# model, standard = build("attnres", 48, shake=0), build("standard", 48, shake=0)
# with torch.no_grad():
#     ours = forward(model, Full(model.residual.query, model.residual.key_gain), tokens)
#     torch.testing.assert_close(ours, standard(tokens))
# mixture = original
# ```
# </details>
#
# ## Further reading
#
# * Attention Residuals, arXiv 2603.15031: full and block form, the two-phase schedule, the scaling results.
# * Neural Machine Translation by Jointly Learning to Align and Translate, arXiv 1409.0473: attention along time,
#   before Transformers.
# * Online normalizer calculation for softmax, arXiv 1805.02867: the merge of partial softmaxes.
# * FlashAttention, arXiv 2205.14135: the same merge, along the text.
# * DenseFormer, arXiv 2402.02622, and MUDDFormer, arXiv 2502.12170: other ways to read many depths, in `relatives`.
# * Delta Attention Residuals, arXiv 2605.18855: keep the stream and *add* the mixture; with a dissenting result.
# * HAARES, arXiv 2606.06564, sections 2.2 and 3.1.
