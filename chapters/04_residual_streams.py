# %% [markdown]
# # 04 · Residual streams: what does a residual connection carry along depth?
#
# Chapter 01 ended with a plain sum: each event of a Transformer reads one vector per token, the stream, and adds what
# it made. This chapter takes that sum out of the model and puts it behind four verbs, so that it can be exchanged.
# Then it exchanges it, for the four classic variants that the HAARES paper (arXiv 2606.06564) names beside the plain
# one, and asks of each: who is in the stream at the end, how large does it grow, and how much does one more event
# still change it?
#
# > **You will build** the four verbs and their loop, and behind them PreNorm, PostNorm, DeepNorm, ReZero and
# > LayerScale, each equal to the package in outputs **and** gradients.
# >
# > **You will learn** why late events of a PreNorm model change the stream little, what a norm on the stream forgets,
# > what two of the schemes are at the first step, and why a stream must not be written in place.
# >
# > **You need** chapter 01 (events, RMSNorm, the stream) and, for the last third, a nodding acquaintance with
# > training.
# >
# > **Runs in** about 30 seconds on 2 cores, without a network; most of it trains five small models.

# %%
import math
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import minihaares.relatives  # noqa: F401  enters PostNorm, DeepNorm, ReZero, LayerScale among the schemes
from minihaares import plots
from minihaares.data import DataConfig, load_corpus
from minihaares.model import FAMILIES, ModelConfig, Transformer, rotary_table
from minihaares.train import RunConfig, TrainConfig, train

plots.use_style()
torch.manual_seed(0)
SCHEMES = ("standard", "postnorm", "deepnorm", "rezero", "layerscale")


# %% [markdown]
# ## Three events by hand
#
# To see what a stream carries, give everybody a channel of their own. A token has four channels. Its embedding is
# $e = (2, 0, 0, 0)$, and three events follow. Event $i$ takes no notice of what it reads and writes a 2 into channel
# $i$: $u_1 = (0, 2, 0, 0)$ and so on. (Two, so that the root mean square of each of these vectors is 1.) At the end,
# channel $i$ of the stream tells how much of event $i$ is left, channel 0 how much of the embedding.
#
# * **PreNorm**, $h \leftarrow h + u$, gives $(2, 2, 2, 2)$. Everything that was ever written is there, with equal
#   weight, and the root mean square (RMS) has grown from 1 to 2.
# * **PostNorm**, $h \leftarrow \mathrm{Norm}(h + u)$, sets the RMS back to 1 after each event. After the first:
#   $(2, 2, 0, 0)/\sqrt2$. Each norm divides all that came before by $\sqrt2$ once more, so the end is
#   $(1, 1, \sqrt2, 2)/\sqrt2 = (0.71, 0.71, 1, 1.41)$. The last event has half of the sum of squares, the one before
#   a quarter.
# * **DeepNorm**, $h \leftarrow \mathrm{Norm}(\alpha h + u)$, makes the old part larger first. With $\alpha = 2$ the
#   old part keeps $\alpha^2/(\alpha^2 + 1) = 0.8$ of the squares at each event instead of half.
# * **ReZero**, $h \leftarrow h + g_i u$, begins with all $g_i = 0$: the end is $e$.
# * **LayerScale**, $h \leftarrow h + \lambda_i \odot u$, has one small factor for each channel. With $\lambda = 0.1$
#   the end is $(2, 0.2, 0.2, 0.2)$.
#
# ## Four verbs and a loop
#
# Whatever a scheme does, the model needs four things from it. How does the stream **begin**? What does an event
# **read**? What becomes of what it **writes**? What does the head see at the **readout**? Between the verbs goes a
# *state*, which is the scheme's own business: here it is the stream, in later chapters it will be a list of vectors.
# The loop around them is all that the model knows about depth.

# %%
def run(residual, embedding, sublayers):  # embedding [B, T, d]; sublayers: functions [B, T, d] -> [B, T, d]
    state = residual.begin(embedding)
    for event, sublayer in enumerate(sublayers):
        x, state = residual.read(state, event)
        state = residual.write(state, event, sublayer(x))
    return residual.readout(state)


class Sum:
    """PreNorm: the stream is the sum of the embedding and of all outputs."""

    def begin(self, embedding):
        return embedding

    def read(self, state, event):
        return state, state  # what the sublayer sees, and the state after the read

    def parts(self, state, event, output):
        return state, output  # what is kept of the stream, and what is added to it

    def write(self, state, event, output):
        kept, added = self.parts(state, event, output)
        return kept + added

    def readout(self, state):
        return state


# %% [markdown]
# The word *PreNorm* is about the sublayers: they normalise their own copy of what they read, and the stream itself is
# never touched by a norm. The four variants are small changes of `parts` and `write`.

# %%
def rms_norm(x, gain):  # as in chapter 01
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


class Normed(Sum):
    """PostNorm, and with alpha > 1 DeepNorm: the stream is normalised after each event, the sublayers' inputs not."""

    def __init__(self, gains, alpha=1.0):  # gains: one vector [d] for each event
        self.gains, self.alpha = gains, alpha

    def parts(self, state, event, output):
        return self.alpha * state, output

    def write(self, state, event, output):
        return rms_norm(super().write(state, event, output), self.gains[event])


class Gated(Sum):
    """ReZero with one learned factor for each event, LayerScale with one for each event and channel."""

    def __init__(self, gates):  # gates[event]: [1] or [d]
        self.gates = gates

    def parts(self, state, event, output):
        return state, self.gates[event] * output


# %% [markdown]
# And the toy case in these classes. `eye` holds the channels' unit vectors as its rows.

# %%
def toy(events, schemes):  # the stream at the end, for each scheme; channel i belongs to event i
    eye = torch.eye(events + 1, dtype=torch.float64) * math.sqrt(events + 1)  # rows of RMS 1
    writers = [lambda x, i=i: eye[i] for i in range(1, events + 1)]  # they take no notice of x
    return {name: run(residual, eye[0], writers) for name, residual in schemes.items()}


ones = torch.ones(3)
by_hand = toy(3, {
    "PreNorm": Sum(),
    "PostNorm": Normed(ones),
    "DeepNorm, α = 2": Normed(ones, alpha=2.0),
    "ReZero, g = 0": Gated(0 * ones),
    "LayerScale, λ = 0.1": Gated(0.1 * ones),
})  # fmt: skip
print(f"{'':20s} {'e':>6s} {'u1':>6s} {'u2':>6s} {'u3':>6s}    RMS")
for name, stream in by_hand.items():
    print(f"{name:20s}", *(f"{v:6.2f}" for v in stream.tolist()), f"{stream.square().mean().sqrt():6.2f}")
assert torch.allclose(by_hand["PostNorm"], torch.tensor([1, 1, 2**0.5, 2]).double() / 2**0.5, atol=1e-5)
assert math.isclose(by_hand["DeepNorm, α = 2"][0].square() / 4, 0.8**3, rel_tol=1e-4)

# %% [markdown]
# ## Who is in the stream at the end?
#
# The same at the paper's full depth: 48 layers, 96 events. DeepNorm's constant for a decoder of $L$ layers is
# $\alpha = (2L)^{1/4}$, here $96^{1/4} \approx 3.13$; LayerScale starts at $10^{-6}$ at this depth. We look at the
# share that each writer has in the sum of squares, which is fair as long as the writers use channels of their own.

# %%
EVENTS, ALPHA = 96, 96**0.25
ones = torch.ones(EVENTS)
deep = toy(EVENTS, {
    "standard": Sum(),
    "postnorm": Normed(ones),
    "deepnorm": Normed(ones, alpha=ALPHA),
    "rezero": Gated(0 * ones),
    "layerscale": Gated(1e-6 * ones),
})  # fmt: skip
share = {name: stream.square() / stream.square().sum() for name, stream in deep.items()}
print(f"{'':12s} {'embedding':>10s} {'event 48':>10s} {'event 96':>10s}")
for name, s in share.items():
    print(f"{name:12s}", *(f"{s[i].item():10.1e}" for i in (0, 48, 96)))

age = torch.arange(EVENTS)  # events since; the closed forms that the toy case suggested
assert torch.allclose(share["standard"], torch.tensor(1 / 97).double())
assert torch.allclose(share["postnorm"][1:].flip(0), 0.5 ** (age + 1.0).double(), rtol=1e-3)
keep = ALPHA**2 / (ALPHA**2 + 1)
assert torch.allclose(share["deepnorm"][1:].flip(0), (1 - keep) * keep ** age.double(), rtol=1e-3)

# %%
fig, axis = plt.subplots(figsize=(7.5, 3.8))
for name, s in share.items():
    look = plots.SCHEME_STYLE[name]
    if name in ("rezero", "layerscale"):  # one point each: the embedding
        axis.plot([0 if name == "rezero" else 2], s[:1], **look | {"linestyle": "none", "markersize": 8})
    else:
        axis.plot(range(EVENTS + 1), s, **look, markevery=8)
axis.set(yscale="log", ylim=(1e-7, 3), xlabel="who wrote: 0 is the embedding, 96 the last event",
         ylabel="share of the stream at the end", title="What 96 equal writers leave in the stream")  # fmt: skip
axis.legend(loc="lower center", ncols=2)
plots.show(
    fig,
    alt="Share of the final stream against the writer, on a logarithmic axis, for 96 events that write equally large "
    "vectors. Standard is a flat line at about 0.01. PostNorm rises as a steep line that reaches 0.5 at the last "
    "event and leaves the picture some twenty events earlier. DeepNorm rises gently, from about 1e-4 to 0.1. ReZero "
    "and LayerScale are single points near 1 at the embedding.",
)


# %% [markdown]
# So a residual connection carries *everyone's writing*, and the schemes differ in whom they favour: nobody (PreNorm),
# the latest (PostNorm, strongly; DeepNorm, mildly), or the embedding (ReZero and LayerScale, at the start). In
# DeepNorm the embedding does better than the first events: it was never the new part of a sum. None of them lets the
# *reader* choose. All that an event can read is this one mixture. Its proportions follow from the scheme and from
# what was written; the reader has no say in them. That is the opening that chapter 05 uses.
#
# ## The five against the package
#
# The toy's writers were deaf. Now the real sublayers, which read what the others wrote. We take models of the
# package, shake all their parameters so that no special starting value can hide an error, run *our* verbs around
# *their* sublayers, and compare the logits and the gradients of every parameter.

# %%
def check_equal(ours, theirs, inputs):  # as in chapter 01
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    direction = torch.randn_like(ours)
    ours, theirs = (torch.autograd.grad(y, inputs, direction) for y in (ours, theirs))
    for our_gradient, their_gradient in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-9, atol=1e-11)


def build(scheme, layers=3, shake=0.2, vocab_size=27):
    sizes = FAMILIES["pocket"]  # width 32, 2 heads, ff 128; the paper's medium family has 512, 8, 2048
    model = Transformer(ModelConfig(vocab_size, layers, **sizes, scheme=scheme), seed=42).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += shake * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return model


def sublayers_of(model, length):  # the events of a model as functions of what they read
    rope = rotary_table(0, length, model.config, model.embed.weight)
    return [lambda x, event=event: event(x, rope) for event in model.sublayers]


def forward(model, residual, tokens):  # [B, T] -> logits [B, T, V]
    stream = run(residual, model.embed(tokens), sublayers_of(model, tokens.shape[1]))
    return model.norm(stream) @ model.embed.weight.T


# %%
OURS = {
    "standard": lambda model: Sum(),
    "postnorm": lambda model: Normed([norm.gain for norm in model.residual.norms]),
    "deepnorm": lambda model: Normed([norm.gain for norm in model.residual.norms], (2 * model.config.layers) ** 0.25),
    "rezero": lambda model: Gated(model.residual.gates),
    "layerscale": lambda model: Gated(model.residual.gates),
}
tokens = torch.randint(27, (2, 20), generator=torch.Generator().manual_seed(0))  # [B, T]
for scheme in SCHEMES:
    model = build(scheme)
    parameters = [*model.parameters()]
    check_equal(forward(model, OURS[scheme](model), tokens), model(tokens), parameters)
    own = [f"{name} {list(p.shape)}" for name, p in model.residual.named_parameters()]
    print(f"{scheme:11s} equal in {len(parameters)} parameter tensors; of the scheme: {own[0] if own else 'none'}",
          "…" if len(own) > 1 else "")  # fmt: skip

# %% [markdown]
# ## How they start
#
# Three of the schemes also say where to begin. DeepNorm multiplies some freshly drawn matrices by $\beta =
# (8L)^{-1/4}$: the MLP's, and of attention the ones that decide *what* is written, values and output, but not those
# that decide where to look. LayerScale starts smaller the deeper the model; the paper gives $0.1$, $10^{-5}$ and
# $10^{-6}$ for 12, 24 and 48 layers. ReZero starts at 0. Since equal seeds give equal weights under every scheme, we
# can read all this off.

# %%
fresh = {scheme: build(scheme, layers=12, shake=0) for scheme in SCHEMES}
plain, scaled = (dict(fresh[name].sublayers.named_parameters()) for name in ("standard", "deepnorm"))
print(f"DeepNorm at 12 layers: alpha {24**0.25:.3f}, beta {96**-0.25:.3f}")
for name in ("0.qkv.weight", "0.out.weight", "1.gate_up.weight", "1.down.weight"):
    pieces = zip("qkv" if "qkv" in name else " ", scaled[name].chunk(3 if "qkv" in name else 1),
                 plain[name].chunk(3 if "qkv" in name else 1), strict=True)  # fmt: skip
    for letter, ours, theirs in pieces:
        print(f"   {name} {letter}: {(ours / theirs).mean():.3f} times a standard start")
starts = {layers: build("layerscale", layers, shake=0).residual.gates[0, 0].item() for layers in (12, 24, 48)}
print("LayerScale starts:", {layers: f"{start:.0e}" for layers, start in starts.items()})
assert not fresh["rezero"].residual.gates.any()

# %% [markdown]
# A ReZero model at the start is therefore no deep model at all: its stream is the embedding, to the bit. Then no
# weight of a sublayer can have an effect on the loss, and none gets a gradient. The gates do, and that is enough:
# after one step they are no longer zero. LayerScale is *nearly* the same identity. Its gradients are small rather
# than zero, but AdamW divides each gradient by its own size, so small ones move weights about as fast as large ones
# do, as long as they are well above $\epsilon = 10^{-8}$ (with $\lambda = 10^{-6}$ they need not be, at the first
# step).

#
# The first number below is how far the logits are from those of a model without sublayers, relative to their size; the
# gradients are those of a stand-in for a loss, the sum of the squared logits.

# %%
logits = {scheme: fresh[scheme](tokens) for scheme in SCHEMES}
bare = fresh["rezero"].norm(fresh["rezero"].embed(tokens)) @ fresh["rezero"].embed.weight.T  # no sublayer at all
assert torch.equal(logits["rezero"], bare)
for scheme in ("standard", "layerscale", "rezero"):
    distance = (logits[scheme] - bare).norm() / bare.norm()
    logits[scheme].square().sum().backward()
    squares = sum(p.grad.square().sum() for p in fresh[scheme].sublayers.parameters())
    gates = getattr(fresh[scheme].residual, "gates", None)
    told = "" if gates is None else f"   of the gates {gates.grad.norm():.1e}"
    print(f"{scheme:11s} from no sublayers {distance:.4f}   gradient of all sublayers {squares**0.5:.1e}{told}")
assert squares == 0 and gates.grad.all()  # the last one was ReZero


# %% [markdown]
# ## How large is an output?
#
# A scheme says how outputs are added up, not how large they are. At the start that can be computed by hand. What a
# PreNorm sublayer reads has entries of size 1, and a matrix whose entries have size $0.02$ turns $n$ such numbers
# into numbers of size $0.02\sqrt n$. Attention, at the first token, which can only look at itself, is two such
# matrices in a row: $0.02\sqrt d\cdot 0.02\sqrt d = 0.0004\,d$. In the MLP, gate and up are numbers of size
# $0.02\sqrt d$; $\mathrm{silu}(a) \approx a/2$ for small $a$, so their product has size $0.0004\,d/2$, and the last
# matrix multiplies by $0.02\sqrt f$. The embedding has size $0.02$.

# %%
def size(x):  # RMS over channels, then its mean over tokens
    return x.square().mean(-1).sqrt().mean().item()


print(f"{'':8s}  embedding   first attention      first MLP\n{'':23s}by hand measured  by hand measured")
for family, sizes in FAMILIES.items():
    model = Transformer(ModelConfig(layers=1, **sizes), seed=42)
    d, ff = sizes["width"], sizes["ff"]
    first = torch.arange(256)[:, None]  # 256 texts of one token
    with torch.no_grad():
        e = model.embed(first)
        attention, mlp = (size(sublayer(e)) for sublayer in sublayers_of(model, 1))
    hand = 0.0004 * d, 0.0002 * d * 0.02 * ff**0.5
    print(f"{family:8s} {size(e):10.4f} {hand[0]:9.4f} {attention:8.4f} {hand[1]:8.4f} {mlp:8.4f}")
    assert abs(attention / hand[0] - 1) < 0.2 and abs(mlp / hand[1] - 1) < 0.25


# %% [markdown]
# In a narrow model the first outputs are smaller than the embedding. In the paper's medium and large families the
# first attention writes ten times the embedding's size or more, and the embedding is a whisper from then on. (Later
# tokens look at several others, whose values partly cancel in the mean, so their outputs are smaller.) Under PreNorm
# the sublayer cannot notice any of this: the norm in front of it divides the size out. Under PostNorm it is another
# matter. The stream has size 1 after the first event, beside which these outputs are very small.
#
# ## Training five models
#
# What do the sizes become when a model learns? We train the five for a hundred steps on the built-in stories, equal
# in all but the scheme: equal weights, equal batches. That is far too little to say which scheme is *better*, but
# enough to move every size far from its start. `train` calls `on_eval` before the first and after the last step; that
# is when we look.

# %%
@torch.no_grad()
def look(model, tokens):
    """Sizes of the stream before each event and at the end [2L+1], and of what each event adds, relative to what it
    is added to [2L]."""
    residual, events = OURS[model.config.scheme](model), sublayers_of(model, tokens.shape[1])
    state = residual.begin(model.embed(tokens))
    stream, relative = [size(state)], []
    for event, sublayer in enumerate(events):
        x, state = residual.read(state, event)
        output = sublayer(x)
        kept, added = residual.parts(state, event, output)
        relative.append(size(added) / size(kept))
        state = residual.write(state, event, output)
        stream.append(size(state))
    return np.array(stream), np.array(relative)


# %%
LAYERS, STEPS = 12, 100
# Full size beside it: the paper trains 48 layers of width 512 for 30,000 steps of 16 × 512 tokens at a rate of 3e-4.
room = tempfile.TemporaryDirectory()
data = DataConfig(context=64, frame="bare", remainder="drop", stories=600, valid_stories=40, cache_dir=Path(room.name))
corpus = load_corpus(data, progress=False)
texts = torch.from_numpy(corpus.valid[:16, :64].astype(np.int64))  # to look at the stream with, [16, 64]
counts = np.bincount(corpus.train.ravel())
frequency = counts[counts > 0] / counts.sum()
by_frequency = -(frequency * np.log(frequency)).sum()
print(f"{len(corpus.train)} pieces of 65 letters; to know only how often each comes costs {by_frequency:.2f} nats")


def train_one(scheme):
    model = ModelConfig(layers=LAYERS, scheme=scheme, **FAMILIES["pocket"])
    recipe = TrainConfig(steps=STEPS, batch_size=8, lr=1e-3, eval_every=STEPS, eval_chunks=16, device="cpu", threads=1,
                         out=Path(room.name) / scheme)  # fmt: skip
    seen = []
    train(RunConfig(model, data, recipe), corpus, progress=False,
          on_eval=lambda row, model: seen.append((row.valid_loss, *look(model, texts))))  # fmt: skip
    return seen


# %%
seen = {scheme: train_one(scheme) for scheme in ("standard", "postnorm")}

# %%
seen |= {scheme: train_one(scheme) for scheme in ("deepnorm", "rezero")}

# %%
seen |= {"layerscale": train_one("layerscale")}

# %% tags=["nbval-ignore-output"]
print(f"{'':11s}  validation loss    size of the stream     an event adds, relatively, after training")
print(f"{'':11s}   start    after   event 1 → end, after   first 6 events   last 6 events")
for scheme, ((loss_0, *_), (loss_1, stream, relative)) in seen.items():
    print(f"{scheme:11s} {loss_0:7.2f} {loss_1:8.2f} {stream[1]:11.3f} → {stream[-1]:.3f}"
          f" {relative[:6].mean():17.3f} {relative[-6:].mean():15.3f}")  # fmt: skip

# %%
fig, axes = plt.subplots(2, 2, figsize=(9.5, 6.4), sharex=True)
for column, when in enumerate(("before the first step", f"after {STEPS} steps")):
    for scheme in SCHEMES:
        _, stream, relative = seen[scheme][column]
        look_of = plots.SCHEME_STYLE[scheme] | {"markevery": 4}
        axes[0, column].plot(stream, **look_of)
        if relative.any():
            axes[1, column].plot(np.arange(2 * LAYERS) + 1, relative, **look_of | {"linewidth": 1.1})
    axes[0, column].set(title=f"Size of the stream, {when}", yscale="log", ylim=(0.012, 2))
    axes[1, column].set(title=f"What an event adds, {when}", yscale="log", ylim=(1e-5, 3), xlabel="event")
axes[0, 0].set_ylabel("RMS")
axes[1, 0].set_ylabel("RMS added / RMS kept")
axes[0, 0].legend(loc="center right", fontsize=9)
plots.show(
    fig,
    alt="Four panels against the event, 0 to 24, with one line for each of five schemes. Top left, the size of the "
    "stream before training: PostNorm and DeepNorm jump to 1 at the first event, Standard grows gently from 0.02, "
    "ReZero and LayerScale lie flat at 0.02. Top right, after training: PostNorm and DeepNorm still at 1, the other "
    "three grow severalfold with depth. Bottom left, what an event adds before "
    "training: level zigzags between attention and MLP, Standard highest, DeepNorm lowest. Bottom right, after "
    "training: for Standard, ReZero and LayerScale the added share falls with depth several times over; for PostNorm "
    "and DeepNorm it stays at the same level.",
)

# %% [markdown]
# The assertions below are what should hold on any machine, whatever the last digits.

# %%
for scheme in SCHEMES:
    (_, stream_0, relative_0), (loss, stream, relative) = seen[scheme]
    assert loss < seen[scheme][0][0] - 0.5, "it learned something"
    early, late = relative[:6].mean(), relative[-6:].mean()
    if scheme in ("postnorm", "deepnorm"):
        assert abs(stream[1:] - 1).max() < 0.1, "a norm keeps the stream at the size of its gain"
        assert early / late < 3, "what an event adds stays of one order"
    else:
        assert stream[-1] > 2 * stream[1], "the stream grows with depth"
        assert early / late > 3, "and the later an event, the less it adds, relatively"
assert (seen["rezero"][0][1] == seen["rezero"][0][1][0]).all() and not seen["rezero"][0][2].any()
stream = seen["standard"][0][1]
print(f"Standard before training: the stream grows from {stream[0]:.3f} to {stream[-1]:.3f}, {LAYERS} layers")
room.cleanup()


# %% [markdown]
# Three observations. **A sum grows.** Under Standard, ReZero and LayerScale the stream gets several times larger on
# its way, and in this narrow model most of that is learned: before training it did not even double. (Wider models
# grow at the start already, as the table above shows.) **As it grows, the same words say less.** The norm in front of
# a sublayer sees only the direction of the stream, and to turn a long vector takes a long push. What an event adds
# falls several times over from the first events to the last. This is the *dilution* that Attention Residuals (arXiv
# 2603.15031) set out to cure. **A norm on the stream stops both**, at a price that the toy case showed: what was
# written long ago is divided away. It has another price, too. After the same hundred steps PostNorm and DeepNorm know
# little more than the letters' frequencies, while the others are well below that. PostNorm is known to need a warm-up
# of the learning rate (arXiv 2002.04745), which our constant rate does not give; set `STEPS` to 300, and both do get
# going.
#
# ## A wrong turn: the stream in place
#
# `state + output` makes a new tensor at every event, and `state += output` would not. Why not save the memory? Watch
# what happens to somebody who keeps the earlier streams to measure them later, and to the backward pass.

# %%
class InPlace(Sum):
    def write(self, state, event, output):
        state += output
        return state


def kept_streams(residual, model):
    state, streams = residual.begin(model.embed(tokens)), []
    for event, sublayer in enumerate(sublayers_of(model, tokens.shape[1])):
        streams.append(state)  # for later
        state = residual.write(state, event, sublayer(residual.read(state, event)[0]))
    return [size(stream) for stream in streams]


model = build("standard")
with torch.no_grad():
    honest, in_place = (kept_streams(residual, model) for residual in (Sum(), InPlace()))
print("new tensors:", [f"{s:.2f}" for s in honest])
print("in place:   ", [f"{s:.2f}" for s in in_place])
assert len(set(in_place)) == 1

try:
    forward(model, InPlace(), tokens).sum().backward()
    refused = "it went through"
except RuntimeError as error:
    refused = str(error).split(":")[0]
print("backward:", refused)
assert "inplace operation" in refused

# %% [markdown]
# All kept streams are one and the same tensor, which shows its last value: a perfectly flat "stream size by depth",
# and no error message. The backward pass needs the old values too (the norm's gradient is made of them), and PyTorch,
# which counts the writes to each tensor, refuses. Hence the rule of the package: *a state is a value*; a write makes
# a new one. For a sum, PyTorch itself stops the training. For the schemes of the next chapters, which hand *old*
# sources to *later* reads, it is the difference between right and wrong.
#
# ## What we found
#
# * Four verbs (begin, read, write, readout) and a loop hold everything that lives along depth. Five schemes fit
#   behind them in a few lines each, equal to the package in outputs and gradients.
# * A residual stream carries the sum of what everyone wrote. In the toy case PreNorm weighs all alike, PostNorm
#   halves the past's share at every event, DeepNorm forgets more gently, ReZero and LayerScale begin with the
#   embedding alone.
# * Trained PreNorm streams grow with depth, and a later event's contribution shrinks relative to them. A norm on the
#   stream keeps both level.
# * At step 0 ReZero is the embedding to the bit; its gates get a gradient, and no weight of a sublayer does.
# * A state must not be written in place.
#
# ## What this does not show
#
# Which scheme is best: a hundred steps of a narrow model say nothing about that, and the paper's comparison (its
# tables for the small family) does not retune the learning rate for each scheme either. The toy case let everybody
# write in a channel of their own; real outputs overlap, reinforce and cancel. And that a late event adds little, in
# relative size, does not prove that it *matters* little: a small push in the right direction can decide a token.
#
# ## Exercises
#
# ### Exercise 4.1 · How long does a stream remember?
# *Easy, 5 minutes.* In the toy case, after how many events does the embedding have less than a millionth of a
# PostNorm stream? And of a DeepNorm stream with the constant for 48 layers? Does the second happen within its 96
# events?
#
# <details><summary>Answer</summary>
#
# PostNorm halves the share at each event, and $2^{-20} < 10^{-6} < 2^{-19}$: after 20 events. DeepNorm keeps
# $\alpha^2/(\alpha^2 + 1)$ with $\alpha^2 = \sqrt{96}$, about 0.907, at each event: after 143. So no: after 96 there
# is still about a ten-thousandth.
#
# ```python
# for keep, answer in ((1 / 2, 20), (96**0.5 / (96**0.5 + 1), 143)):
#     assert math.ceil(math.log(1e-6) / math.log(keep)) == answer
# ```
# </details>
#
# ### Exercise 4.2 · Is LayerScale a different function?
# *Medium, 15 minutes.* Turn a LayerScale model into a Standard model with the same logits by changing weights only.
# What does LayerScale change, then?
#
# <details><summary>Answer</summary>
#
# $\lambda\odot(Wy) = (\mathrm{diag}(\lambda)\,W)\,y$: multiply the rows of each sublayer's last matrix by its gates.
# So the two can express the same functions. What differs is where training starts and how it moves: AdamW's steps are
# of about equal size for every parameter, and a step in $\lambda$ is another one than a step in $W$.
#
# ```python
# scaled, plain = build("layerscale"), build("standard")
# weights = {name: p for name, p in scaled.state_dict().items() if not name.startswith("residual")}
# for event, gate in enumerate(scaled.residual.gates):
#     last = f"sublayers.{event}.{'down' if event % 2 else 'out'}.weight"
#     weights[last] = gate[:, None] * weights[last]
# plain.load_state_dict(weights)
# torch.testing.assert_close(plain(tokens), scaled(tokens))
# ```
# </details>
#
# ### Exercise 4.3 · One zero is a start, two are the end
# *Medium, 15 minutes.* Some recipes start the last matrix of each sublayer at zero instead of using gates. What
# happens to a ReZero model with such matrices? Predict which parameters get a gradient, then look.
#
# <details><summary>Answer</summary>
#
# The gate's gradient is the product of what arrives with the sublayer's output, which is now zero; the matrix's
# gradient carries the gate as a factor, which is zero as well. Neither ever moves: the sublayers are dead for good.
# One zero alone is fine, in either place.
#
# ```python
# model = build("rezero", shake=0)
# with torch.no_grad():
#     for event, sublayer in enumerate(model.sublayers):
#         (sublayer.down if event % 2 else sublayer.out).weight.zero_()
# model(tokens).square().sum().backward()
# assert not model.residual.gates.grad.any()
# assert not any(p.grad.any() for p in model.sublayers.parameters())
# assert model.embed.weight.grad.any()
# ```
# </details>
#
# ### Exercise 4.4 · Who forgets, the norm or the division?
# *Medium, 20 minutes.* Write a scheme without any norm on the stream: $h \leftarrow (h + u)/\sqrt2$. Put it into the
# toy case with 96 events. Which known scheme has the same shares? Then wrap it around the sublayers of a Standard
# model: do the logits differ from those of the plain sum? Why, if each sublayer norms what it reads?
#
# <details><summary>Answer</summary>
#
# PostNorm's shares: it is the division that forgets, and the norm is only one way to divide. The logits differ: a
# common factor of the whole stream would indeed be divided out again, but here the old part is divided more often
# than the new one. Undone, the scheme is the plain sum of $e$ and of $2^{(i-1)/2} u_i$, $i = 1, 2, \dots$: later
# events speak louder and louder.
#
# ```python
# class Halving(Sum):
#     def write(self, state, event, output):
#         return super().write(state, event, output) / 2**0.5
#
# shares = toy(EVENTS, {"halving": Halving()})["halving"].square()
# torch.testing.assert_close(shares / shares.sum(), share["postnorm"], rtol=1e-3, atol=1e-12)
# model = build("standard")
# assert (forward(model, Halving(), tokens) - model(tokens)).abs().max() > 0.1
# ```
# </details>
#
# ### Exercise 4.5 · A scheme of your own behind the package's seam
# *Hard, 30 minutes.* Make $h \leftarrow h + u/\sqrt{L}$ a scheme of the package, with an option for the factor:
# subclass `minihaares.model.Residual`, enter it in `SCHEMES`, and show that it is right without believing your own
# code. The file `minihaares/relatives/streams.py` shows how little is needed.
#
# <details><summary>Answer</summary>
#
# ```python
# from dataclasses import dataclass
#
# from minihaares.model import SCHEMES as registry
# from minihaares.model import Standard
#
#
# @dataclass(frozen=True)
# class ScaledOptions:
#     factor: float | None = None  # None: one over the root of the number of layers
#
#
# class Scaled(Standard):
#     Options = ScaledOptions
#
#     def __init__(self, config, options, generator):
#         super().__init__(config, options, generator)
#         self.factor = options.factor if options.factor is not None else config.layers**-0.5
#
#     def write(self, state, event, output):
#         return state + self.factor * output
#
#
# registry["scaled"] = (Scaled, {})
# model, plain = build("scaled"), build("standard")
# ours = forward(plain, Gated([3**-0.5] * 6), tokens)
# torch.testing.assert_close(model(tokens), ours)
# ```
# </details>
#
# ## Further reading
#
# * Deep Residual Learning for Image Recognition, arXiv 1512.03385: where the sum comes from.
# * On Layer Normalization in the Transformer Architecture, arXiv 2002.04745: PreNorm, PostNorm and the warm-up.
# * DeepNet: Scaling Transformers to 1,000 Layers, arXiv 2203.00555: DeepNorm.
# * ReZero is All You Need, arXiv 2003.04887.
# * Going Deeper with Image Transformers, arXiv 2103.17239: LayerScale.
# * Attention Residuals, arXiv 2603.15031: dilution, and what to do about it (chapter 05).
# * HAARES, arXiv 2606.06564, sections 2.1 and 5.2: the role these schemes play in the paper.
