# %% [markdown]
# # 18 · Denser streams: what if layers read many states?
#
# A residual stream hands each layer one vector, the sum of everything so far. Chapter 17 made that vector longer. The
# methods of this chapter keep more than one: every layer's output stays, and later layers weigh the past anew.
# Attention Residuals (chapter 05) do this with a softmax, and HAARES is their child. Here are three relatives that
# answer the same question otherwise: DenseFormer with plain numbers, MUDDFormer with a small network for each token,
# Delta Attention Residuals with a softmax *beside* the stream. At the end the wider and the denser streams of both
# chapters stand in one table, with what they cost and what they reached.
#
# > **You will build** DenseFormer, MUDDFormer and Delta behind the four verbs, equal to the package in outputs and
# > gradients; a picture of who reads what; and a method of your own, entered in the registry.
# >
# > **You will learn** which denser streams start as the standard one, why replacing and adding differ, how "changes"
# > can fail to add up, and how to read a comparison at equal tokens, FLOPs and seconds.
# >
# > **You need** chapters 05 and 11; chapter 17 for the table.
# >
# > **Runs in** about 20 seconds on one core, without a network.

# %%
import inspect
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sympy as sp
import torch
from torch.nn import functional as nnf

from minihaares import comparison, costs, findings, pictures_relatives, plots, relatives
from minihaares.data import DataConfig, load_corpus
from minihaares.model import FAMILIES, SCHEMES, ModelConfig, Residual, Transformer, rotary_table
from minihaares.train import RunConfig, TrainConfig, train

plots.use_style()
pd.set_option("display.width", 118)

# %%
# The family. Solid: descends from; dashed: puts the same question and answers it anew
plots.show(*pictures_relatives.family_tree())

# %% [markdown]
# ## By hand: an average that replaces
#
# One channel, two layers, $X_0 = 1$. The first layer turns its input $x$ into $x + 2$, the second into $x + 4$; these
# are whole layers, with their own residual sum inside. In a standard model $X_1 = 3$ and $X_2 = 7$.
#
# Now put a weighted average behind each layer, and let the *next* layer start from it. With weights $(1, 1)$ behind
# the first: $Y_1 = X_0 + X_1 = 4$, so $X_2 = 4 + 4 = 8$. With weights $(-2, 0, 1)$ behind the second: $Y_2 = -2X_0 +
# X_2 = 6 = 2 + 4$, and that is what the head sees. The embedding, which every later sum must carry in a standard
# model and of which $X_2$ holds two copies, is gone. With weights $(0, 1)$ and $(0, 0, 1)$ nothing happens at all.

# %%
X = [1.0]
Y = X[0]
for adds, weights in ((2, (1, 1)), (4, (-2, 0, 1))):
    X.append(Y + adds)
    Y = sum(a * x for a, x in zip(weights, X, strict=True))
    print("layer outputs", X, "average", Y)
assert Y == 6

# %% [markdown]
# ## DenseFormer
#
# (Pagliardini et al., arXiv 2402.02622.) That is all of it: behind layer $i$ stands
# $Y_i = \sum_{j \le i} \alpha_{ij} X_j$ with learned numbers $\alpha_{ij}$, the same for every token and channel. They
# start at $\alpha_{ii} = 1$ and 0 elsewhere, so that an untrained DenseFormer is the standard model, to the bit. We use
# the frame of chapter 17: the package's layers and parameters, our own verbs.

# %%
def build(scheme, layers=4, shake=0.3, **options):
    sizes = FAMILIES["pocket"] | dict(vocab_size=27, norm_eps=1e-12)
    model = Transformer(ModelConfig(**sizes, layers=layers, scheme=scheme, options=options), seed=42).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += shake * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return model


def forward(model, residual, tokens):
    rope = rotary_table(0, tokens.shape[1], model.config, model.embed.weight)
    state = residual.begin(model.embed(tokens))
    for event, sublayer in enumerate(model.sublayers):
        x, state = residual.read(state, event)
        state = residual.write(state, event, sublayer(x, rope))
    return model.norm(residual.readout(state)) @ model.embed.weight.T


def check(scheme, ours, **options):
    model = build(scheme, **options)
    mine, theirs = forward(model, ours(model.residual), tokens), model(tokens)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    direction, parameters = torch.randn_like(mine), [*model.parameters()]
    for one, other in zip(*(torch.autograd.grad(y, parameters, direction) for y in (mine, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)
    print(f"{scheme} {options or ''} equals the package in logits and {len(parameters)} gradients")


# %%
tokens = torch.randint(27, (2, 16), generator=torch.Generator().manual_seed(0))  # [B, T]


class Dense:
    def __init__(self, package):
        self.alpha = list(package.alpha)  # behind layer i: i + 1 numbers

    def begin(self, embedding):
        return embedding, [embedding]  # the stream inside a layer; X_0 … X_i

    def read(self, state, event):
        return state[0], state

    def write(self, state, event, u):
        h, X = state[0] + u, state[1]
        if event % 2 == 0:  # attention: the layer is not done yet
            return h, X
        X = [*X, h]
        return sum(a * x for a, x in zip(self.alpha[event // 2], X, strict=True)), X

    def readout(self, state):
        return state[0]


check("denseformer", Dense)
check("denseformer", Dense, layers=6)

# %%
def fresh(scheme, **options):
    return build(scheme, shake=0.0, **options)


logits = fresh("standard")(tokens)
model = fresh("denseformer")
assert torch.equal(model(tokens), logits)
with torch.no_grad():  # a wrong turn: one loop that draws "all weights" anew
    for parameter in model.residual.parameters():
        parameter.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
gap = (model(tokens) - logits).abs().max() / logits.abs().max()
print(f"before: equal to the bit; after a global init of all weights: {100 * gap:.0f} % off")
assert gap > 0.3

# %% [markdown]
# The last lines show how the special start is lost in practice: a training script that initialises "every parameter"
# with small normal noise leaves no trace of the identity. A test in this project asks of every method that its start
# survives (`test_the_global_init_overwrites_no_start`).
#
# The $\alpha$ are few, about $L^2/2$, but the reading is not free: each layer reads all earlier ones. The paper
# therefore offers a **dilation** (read only every $k$-th state) and a **period** (average only behind every $p$-th
# layer):

# %%
L, d = costs.L, costs.d
for options in ({}, {"dilation": 4}, {"period": 4}, {"dilation": 4, "period": 4}):
    bill = costs.formulas("denseformer", **options) - costs.backbone()
    at = bill.at(L=48)
    words = ", ".join(f"{key} {value}" for key, value in options.items()) or "as it is"
    print(f"{words:22s} {at.parameters:5d} parameters, {at.traffic:5d} vectors of d moved (standard {6 * 48})")
assert sp.expand((costs.formulas("denseformer") - costs.backbone()).parameters - L * (L + 3) / 2) == 0

# %% [markdown]
# ## MUDDFormer
#
# (Xiao et al., arXiv 2502.12170.) Two steps further. The weights depend on the token: a small network looks at the
# newest state and gives them. And there are **four** mixtures before each layer, one each for queries, keys and values,
# and one that serves as the stream the layer adds to. Nothing forces weights to be positive or to add up to 1: there is
# no softmax.
#
# $$X^c = \sum_{j\le i} w_{cj} X_j,\qquad w = \mathrm{GELU}\big(\mathrm{norm}(X_i)\,W_1\big)\,W_2 + a .$$
#
# With $W_2 = 0$ and $a = 1$ for the newest state it starts as the standard model. The last layer is followed by one
# mixture, for the head.

# %%
def unit(x):  # [..., d], RMS 1
    return x / (x.square().mean(-1, keepdim=True) + 1e-12).sqrt()


class Mudd:
    def __init__(self, package):
        self.p = package

    def begin(self, embedding):
        return embedding, [embedding]

    def mixtures(self, X):  # behind layer i = len(X) - 1: [B, T, ways, d]
        i = len(X) - 2
        w = nnf.gelu(unit(X[-1]) @ self.p.w1[i]) @ self.p.w2[i]
        w = w.unflatten(-1, self.p.static[i].shape) + self.p.static[i]  # [B, T, ways, i + 1]
        return torch.einsum("btcs,sbtd->btcd", w, torch.stack(X))

    def read(self, state, event):
        h, X = state
        if event == 0 or event % 2:  # all four are e at first; an MLP reads the stream inside its layer
            return h, state
        q, k, v, stream = self.mixtures(X).unbind(-2)
        return (q, k, v), (stream, X)  # attention takes a triple

    def write(self, state, event, u):
        h, X = state[0] + u, state[1]
        return h, [*X, h] if event % 2 else X

    def readout(self, state):
        return self.mixtures(state[1]).squeeze(-2)


# %%
check("muddformer", Mudd)
torch.testing.assert_close(fresh("muddformer")(tokens), logits, rtol=1e-9, atol=1e-9)
print("an untrained MUDDFormer is the standard model, to rounding")

# %% [markdown]
# The small network has as many hidden units as it gives weights, $4(i+1)$ behind layer $i$, so its parameters grow like
# $L^2 d$ and $L^3$. Beside large layers that is little, beside ours it is not:

# %%
sizes = {"theirs, of 2.8 billion": dict(layers=32, width=2560, heads=32, ff=6912, vocab_size=50_304),
         "ours, 48 layers": dict(layers=48, vocab_size=85, **FAMILIES["pocket"])}  # fmt: skip
for name, size in sizes.items():
    plain, mudd = (costs.price(ModelConfig(**size, scheme=s), 256).parameters for s in ("standard", "muddformer"))
    print(f"{name:22s} {plain / 1e6:8.1f} million parameters, MUDDFormer adds {100 * (mudd / plain - 1):.2f} %")
    assert (mudd / plain - 1 < 0.003) == name.startswith("theirs")

# %% [markdown]
# A comparison of the two at equal tokens is therefore unfair at our width: by a tenth of the model at 12 layers, by a
# whole model at 48. Keep it in mind for the table. (We tie the embedding to the head; that leaves out 129 of their
# million parameters.)
#
# ## Delta Attention Residuals
#
# (Luo et al., arXiv 2605.18855.) Attention Residuals *replace* the input of a layer by a mixture. Delta keeps the
# standard stream $h$ and **adds** a mixture to what a layer reads, and to nothing else:
#
# $$x = h + \sum_s w_s v_s,\qquad w = \mathrm{softmax}_s\big(q\cdot\mathrm{norm}(v_s)\big),\qquad h \leftarrow h + u .$$
#
# Sources $v_s$ are the embedding and the *changes* of the stream: every output $u$, or in Delta Block what each
# finished block added to $h$. The head sees $h$. Its authors remark that adding instead of replacing matters more than
# which sources one takes.

# %%
class Change:
    def __init__(self, package):
        self.p, self.ends = package, {i for i, place in enumerate(package.places) if place.last}

    def begin(self, embedding):
        return embedding, [embedding], embedding  # the stream, the sources, the stream where the block began

    def read(self, state, event):
        h, sources, _ = state
        V = torch.stack(sources)  # [S, B, T, d]
        z = (unit(V) * self.p.key_gain[event]) @ self.p.query[event]
        return h + (z.softmax(0)[..., None] * V).sum(0), state

    def write(self, state, event, u):
        h, sources, began = state[0] + u, state[1], state[2]
        if event in self.ends:
            return h, [*sources, h - began], h
        return h, sources, began

    def readout(self, state):
        return state[0]


check("delta", Change)
check("delta", Change, blocks=2)
check("delta", Change, blocks=(3, 1, 4))

# %% [markdown]
# ### Do the changes add up?
#
# Changes must **telescope**: added to the embedding they give the stream back. By hand, blocks that add 1, 2, 3, 4 and
# 5 take a stream from 0 to 1, 3, 6, 10, 15, and the changes are 1, 2, 3, 4, 5. A released implementation gets 1, 2, 4,
# 6, 9 from the same stream. Where do these come from? Subtract from each stream the last *change* instead of the last
# *stream*:

# %%
ends = np.cumsum([1, 2, 3, 4, 5])
right, wrong, last = [], [], 0
for n, end in enumerate(ends):
    right.append(int(end - (ends[n - 1] if n else 0)))
    last = int(end - last)
    wrong.append(last)
print("streams", ends.tolist(), "changes", right, "not", wrong)
assert right == [1, 2, 3, 4, 5] and wrong == [1, 2, 4, 6, 9] and sum(right) == ends[-1] != sum(wrong)

# %% [markdown]
# Such a slip raises no error, and the model trains. The package keeps each block's sum of outputs, which needs no
# subtraction; a test feeds it blocks that add 1 to 5.
#
# ### Where it starts
#
# All queries are zero at first, so the mixture is the plain mean of the sources. In the full form $S$ sources add up to
# $h$; their mean is $h/S$, and a layer reads $(1 + 1/S)\,h$: a multiple of the stream, which its norm divides out. So
# an untrained full Delta is the standard model. Attention Residuals read $h/S$ itself, which is the same function but
# for the $\epsilon$ of the norms (chapter 05 shows that in deep, narrow models it is not a small matter; here
# $\epsilon$ is $10^{-12}$). Delta Block is not the standard model, since its mean lacks the block under way, and
# neither is HAARES, whose mean takes in the details, which are no part of the sum.

# %%
starts = {"Delta": ("delta", {}), "Delta Block": ("delta", {"blocks": 2}), "Block AttnRes": ("block", {"blocks": 2}),
          "Full AttnRes": ("attnres", {}), "HAARES": ("haares", {"blocks": 2}), "DenseFormer": ("denseformer", {}),
          "MUDDFormer": ("muddformer", {})}  # fmt: skip
for name, (scheme, options) in starts.items():
    gap = ((fresh(scheme, **options)(tokens) - logits).norm() / logits.norm()).item()
    print(f"{name:14s} untrained: " + ("the standard model" if gap < 1e-4 else f"{100 * gap:.0f} % off it"))
    assert (gap < 1e-4) == (name not in ("Delta Block", "HAARES"))

# %% [markdown]
# ## Who reads what?
#
# Every method of this chapter lets a layer read a combination of what has been written: the embedding $e$ and the
# outputs $u_1, u_2, \dots$. So for each read there are coefficients, whatever the machinery that made them, and we can
# solve for them: write down the vectors, and ask least squares which combination of them the layer got. In a standard
# model all coefficients are 1. The picture shows their means over tokens, for models of six layers that were trained
# for a moment on the built-in stories.

# %%
@torch.no_grad()
def reading(model, tokens):  # [reads, written]: coefficients, means over tokens; NaN where nothing is written yet
    rope = rotary_table(0, tokens.shape[1], model.config, model.embed.weight)
    state, written, rows = model.residual.begin(model.embed(tokens)), [model.embed(tokens)], []
    for event in range(model.config.events + 1):
        if event == model.config.events:
            x = model.residual.readout(state)
        else:
            x, state = model.residual.read(state, event)
        seen = x[2] if isinstance(x, tuple) else x  # of a triple: what the values are made from
        basis = torch.stack(written, dim=-1)  # [B, T, d, k]
        found = torch.linalg.lstsq(basis, seen[..., None], driver="gelsd").solution
        torch.testing.assert_close((basis @ found)[..., 0], seen, rtol=1e-4, atol=1e-4)  # no remainder
        row = torch.full((model.config.events + 1,), torch.nan, dtype=x[0].dtype)
        row[: len(written)] = found.mean((0, 1, 3))
        rows.append(row)
        if event < model.config.events:
            written.append(model.sublayers[event](x, rope))
            state = model.residual.write(state, event, written[-1])
    return torch.stack(rows)


standard = reading(build("standard"), tokens)
assert torch.allclose(standard.nan_to_num(1.0), torch.ones_like(standard))
print("in a standard model every read takes 1.0 of all that was written")

# %%
LAYERS, STEPS = 6, 150
# Full size beside it: the recorded runs below have 12 and 48 layers and 800 steps of 8 × 128 characters.


def trained(scheme, room):
    data = DataConfig(context=64, frame="bare", remainder="drop", stories=600, valid_stories=40, cache_dir=Path(room))
    corpus = load_corpus(data, progress=False)
    sizes = ModelConfig(layers=LAYERS, scheme=scheme, **FAMILIES["pocket"])
    recipe = TrainConfig(steps=STEPS, batch_size=8, lr=3e-3, eval_every=STEPS, eval_chunks=32, device="cpu", threads=1,
                         out=Path(room) / scheme)  # fmt: skip
    seen = []
    train(RunConfig(sizes, data, recipe), corpus, progress=False,
          on_eval=lambda row, model: seen.append((row.valid_loss, model)))  # fmt: skip
    texts = torch.from_numpy(corpus.valid[:8, :48].astype(np.int64))
    return seen[-1][0], reading(seen[-1][1].double(), texts)


room = tempfile.TemporaryDirectory()
shown = {"denseformer": "DenseFormer", "muddformer": "MUDDFormer (values)", "delta": "Delta", "attnres": "Full AttnRes"}
found = {scheme: trained(scheme, room.name) for scheme in shown}
room.cleanup()

# %%
figure, panels = plt.subplots(1, 4, figsize=(11, 3.5), sharey=True)
for axes, (scheme, name) in zip(panels, shown.items(), strict=True):
    image = axes.imshow(found[scheme][1], cmap="Greys", vmin=0, vmax=3)
    axes.set(title=name, xlabel="written", xticks=range(0, 13, 2), xticklabels=["e", *range(2, 13, 2)])
    axes.grid(visible=False)
panels[0].set(ylabel="read before event", yticks=range(0, 13, 2))
panels[0].set_yticklabels([*range(1, 13, 2), "head"])
figure.colorbar(image, ax=panels, shrink=0.8, extend="max", label="coefficient (1: as in a sum)")
plots.show(figure, alt="""Four triangular maps of who reads what, rows being reads and columns what was written, after
150 steps. In DenseFormer and MUDDFormer the columns written early grow darker downwards, to above two and far above.
Delta is darkest for the first reads, then an even grey near one. Full Attention Residuals are pale, and paler the later
the read.""")

# %% tags=["nbval-ignore-output"]
for scheme, (loss, coefficients) in found.items():
    values = coefficients[~coefficients.isnan()]
    print(f"{shown[scheme]:20s} loss {loss:.2f}, coefficients from {values.min():+.2f} to {values.max():+.2f}")
sums = found["attnres"][1].nansum(1)
assert torch.allclose(sums, torch.ones_like(sums), atol=1e-3)  # a softmax hands out 1 in all
assert found["delta"][1][-1].allclose(torch.ones(13).double(), atol=1e-4)  # Delta's head reads the stream
for scheme in ("denseformer", "muddformer"):  # what came early weighs more in late reads
    assert found[scheme][1][-1, 0] > 1.2 * found[scheme][1][2, 0] and found[scheme][1][-1, 0] > 1.2

# %% [markdown]
# The maps tell three kinds apart. A softmax that **replaces** has a budget of 1 for each read, and the more sources
# there are, the less each one gets. A softmax that is **added** leaves the sum in place: coefficients are 1 and a
# share more (2 in the first read, whose only source is $e$; the more sources, the less), and the head sees the plain
# sum. And where *whole states* are mixed, as in DenseFormer and MUDDFormer,
# mixtures **compound**: a state contains all states before it, so adding a small share of early ones at every layer
# counts them again and again. After 150 steps both have put much more weight on what was written first than any sum
# does.
#
# ## What it costs
#
# To keep all states means memory for all states: `stored` is what lies there while the model runs, in vectors of $d$
# for each token; during generation too, though only for the newest token. `traffic` grows like $L^2$ in the full forms,
# the price that blocks avoid. All but `stored` are ratios to Standard.

# %%
dense = ["standard", "block", "haares", "denseformer", "muddformer", "delta_block", "delta"]
base = findings.setting("relatives", layers=48)
bills = comparison.bill(base, vocab_size=85).loc[dense]  # 85 characters
ratios = bills.div(bills.loc["standard"]).assign(stored=bills["stored"], time=comparison.timings(48))
print(ratios.round(3).to_string(na_rep="not timed"))

# %% [markdown]
# ## Adding a method
#
# The book promises that a method is one file, one line in the registry and one row of tests. Here is the whole entry of
# VWN (chapter 17), outside its own file `relatives/vwn.py`: an import and a line in `relatives/__init__.py`, and a line
# with its formulas in `costs_relatives.py`:

# %%
entry = inspect.getsource(relatives).splitlines()
print(*(line for line in entry if "VirtualWidth" in line), sep="\n")
lines = {name: len(inspect.getsource(inspect.getmodule(SCHEMES[name][0])).splitlines()) for name in
         ("hires", "vwn", "hc", "mhc", "denseformer", "muddformer", "delta")}  # fmt: skip
print("lines of each file:", lines)
assert max(lines.values()) <= 150 and "VirtualWidth" in costs.ALONG_DEPTH

# %% [markdown]
# and one row for each set of options in `tests/schemes.py`,
#
# ```python
#     Case("vwn", "vwn"),
#     Case("vwn-repeat", "vwn", {"m": 2, "n": 3, "input": "repeat"}),
# ```
#
# from which the tests of the seam take it: causality, gradients against finite differences, determinism, checkpointing,
# generation with a cache, bfloat16, the closed forms of its costs. Its own file of tests then holds only what is
# special about it.
#
# Now one of our own, made up on the spot. The **fading stream** lets the past fade a little at each event,
# $h \leftarrow \lambda_i h + u$ with a learned $\lambda_i$ that starts at 1.

# %%
class Fading(Residual):
    """h <- λ h + u, a learned λ for each event that starts at 1."""

    Options = SCHEMES["standard"][0].Options  # it has none

    def __init__(self, config, options, generator):
        super().__init__()
        self.fade = torch.nn.Parameter(torch.ones(config.events))

    def begin(self, embedding):
        return embedding

    def read(self, state, event):
        return state, state

    def write(self, state, event, output):
        return self.fade[event] * state + output

    def readout(self, state):
        return state


SCHEMES["fading"] = (Fading, {})
assert torch.equal(fresh("fading")(tokens), logits)  # it starts as the standard model
model, altered = build("fading"), tokens.clone()
altered[:, 10:] = 0  # a token sees nothing of what comes after it
assert torch.equal(model(tokens)[:, :10], model(altered)[:, :10])
model(tokens).square().sum().backward()
print("gradients of λ:", [f"{g:+.1f}" for g in (model.residual.fade.grad / model.residual.fade.grad.abs().max())])

# %% [markdown]
# From here on `train` takes it by name, and so does a grid that is read in this session; for a bill it still needs its
# line of formulas. (It fades for this session only; a file in `relatives/` would make it stay.)
#
# ## The table
#
# The methods of this chapter and the last, beside Standard, Block and HAARES, each with its defaults. First in words.
# "add" means that what a layer wrote reaches the head as it is. A test runs real models against every word that can
# be run: it counts the stored vectors, writes different outputs and looks at the head, and asks whether the weights
# depend on the token.

# %%
words = comparison.words()
for _, row in words.iterrows():
    print(f"{row['method']:18s} {row['stored']:8s}{row['weights']:34s}{row['what a layer wrote']:27s}{row['readout']}")

# %% [markdown]
# Now in numbers, from the recorded runs: one recipe, the same tokens in the same order, three seeds where they are all
# there. `parameters`, `flops`, `traffic`, `saved` and `time` are ratios to Standard (a step's time is measured, the
# rest is exact). Losses are nats per character; `sd` is the sample standard deviation over seeds. The last three
# columns are method − Standard, paired by seed; negative is better.
#
# * **At equal tokens** everyone has read the same text, and some have worked harder for it.
# * **At equal FLOPs** a method may spend what Standard's whole run took. If its step costs 1.1 times as much, its curve
#   is read where it has seen $1/1.1$ of the tokens. The learning rate is constant, so a run cut short is what a shorter
#   run would have been.
# * **At equal seconds** the same with the measured time of a step, with this project's code on its computer. Nobody has
#   written kernels here: a method that is slow in plain PyTorch may be fast elsewhere.

# %%
records = comparison.read()
for layers in comparison.DEPTHS:
    table = comparison.table(records, findings.setting("relatives", layers=layers))
    costs_of = table[["parameters", "flops", "traffic", "saved", "time"]].map("{:.2f}".format)
    losses = table[["loss", "sd"]].map("{:.3f}".format)
    gaps = table[list(pictures_relatives.BUDGETS)].map("{:+.3f}".format)
    shown_table = pd.concat([table[["method", "n"]], costs_of, losses, gaps], axis=1)
    print(f"{layers} layers\n{shown_table.replace({'nan': '', '+nan': ''}).to_string(index=False)}\n")
    gone = comparison.missing(records, findings.setting("relatives", layers=layers))
    print("all methods have runs (n: how many seeds)\n" if not gone else f"not recorded yet: {', '.join(gone)}\n")

# %%
plots.show(*pictures_relatives.relatives())

# %% [markdown]
# Three questions to put to a row. Is the difference larger than seeds scatter within a row (`sd`)? Do all its points
# lie on one side of zero? Does it survive the step from tokens to FLOPs? The second and the third can be asked by a
# few lines:

# %%
for layers in comparison.DEPTHS:
    base = findings.setting("relatives", layers=layers)
    flops = comparison.table(records, base)["flops"]
    sides = {"better": [], "worse": [], "mixed": [], "too few seeds": []}
    for name, method in list(comparison.METHODS.items())[1:]:
        both = [comparison.behind(records, method.arm, base, ratio).points for ratio in (1.0, flops[name])]
        below = [(points < 0).sum() for points in both]
        n = len(both[0])
        side = "too few seeds" if n < 3 else "better" if below == [n, n] else "worse" if below == [0, 0] else "mixed"
        sides[side].append(method.arm.label)
    print(f"{layers} layers, against Standard, at every seed, at equal tokens and at equal FLOPs")
    for side, labels in sides.items():
        print(f"   {side:13s} {', '.join(labels) or 'none'}")

# %% [markdown]
# (Full Delta was not run at 48 layers, for its cost.) **One method is better at both depths: DenseFormer**, by 0.02
# and 0.10 nats, at equal FLOPs as well, and on average even at equal seconds. It is the plainest of all, a table of
# numbers. One is worse at both, HiRes, in our reading and at this rate. All others change sides with depth or with
# the currency. What is better at one depth only may be luck: three coins all fall on a given side one time in eight,
# and there are ten methods.
#
# ### Two that did not train
#
# HiRes (chapter 17) and MUDDFormer stand at the end of the table of 48 layers for another reason than the others would:
# at this rate some or all of their runs learned next to nothing. The grid `rate` has them at a third of it.

# %%
for setting in (findings.setting("relatives", layers=48), findings.setting("rate")):
    arms = [comparison.METHODS[name].arm for name in ("standard", "block", "haares", "hires", "muddformer")]
    losses = pd.DataFrame({arm.label: records.values(arm, setting) for arm in arms})
    print(f"rate {setting['lr']:g}\n{losses.loc[[42, 123, 2026]].round(3).to_string(na_rep='not recorded')}\n")

# %% [markdown]
# At a third of the rate HiRes learns in every seed. MUDDFormer, of which we ran one, does too, slowly and unsteadily.
# Nobody here had a warm-up, or a rate of its own; at 12 layers both train without trouble, MUDDFormer best of all. What
# fails is a method *with* this recipe.
# One rate and one size for all is fair, and not the same as good for each.
#
# ## Counter-evidence
#
# Whoever reads only the paper of a method will find it in front. Side by side the published numbers say less:
#
# * In the paper of Attention Residuals (16 layers) the baseline has a loss of 1.766, DenseFormer 1.767, mHC 1.747,
#   full Attention Residuals 1.737 and the block form 1.746. DenseFormer, which is in front in its own paper, gains
#   nothing (in our table it is ahead at both depths).
# * In the repository of Delta Attention Residuals, Attention Residuals are *worse* than the baseline at one billion
#   parameters, a perplexity of 31.76 against 29.70, and at eight billion.
# * In the HAARES paper itself (arXiv 2606.06564, Table 10) Block is worse than Standard on TinyStories and Yelp at 48
#   layers, where HAARES leads.
#
# In our table it is the other way round: at 48 layers Block is 0.067 nats better than Standard, HAARES 0.023 (three
# seeds; chapter 13). These cannot all be facts about the methods; they are facts about methods *with* recipes, sizes
# and code. Nor does our table test the remark of Delta's authors that adding against replacing matters more than the
# choice of sources: Block and Delta Block differ in both. Full Attention Residuals beside full Delta would be a test,
# and exercise 18.5 is another.
#
# ## What we found, and what it does not show
#
# * Three ways to weigh the past, each a few lines: static numbers, a small network, a softmax beside the stream.
# * DenseFormer, MUDDFormer and full Delta start as the standard model, Attention Residuals up to the $\epsilon$ of the
#   norms; Delta Block and HAARES do not.
# * In the full forms memory grows like $L$ and traffic like $L^2$; blocks bring both down.
# * A comparison needs to say what was equal. Beside layers of width 32 MUDDFormer's small networks are not small.
# * Under one recipe DenseFormer is ahead of the plain stream at 12 and at 48 layers, in every seed, at equal tokens and
#   at equal FLOPs. HiRes and MUDDFormer hardly train at 48 layers at its rate.
#
# What it does not show: the order of the methods at any size but ours, or under a recipe tuned for each. Three seeds
# are three points. Our text is TinyStories, read once in part; what costs time here may be free with other code.
#
# ## Exercises
#
# ### Exercise 18.1 · Half of a DenseFormer
# *Easy, 10 minutes.* How many numbers $\alpha$ has a DenseFormer of 48 layers with dilation $k$? Count for $k = 4$, and
# say which states the average behind layer 10 reads.
#
# <details><summary>Answer</summary>
#
# Behind layer $i$: $\lfloor i/k\rfloor + 1$, always ending in the newest. For $k = 4$ and $i = 10$ states 2, 6 and 10.
#
# ```python
# assert sum(i // 4 + 1 for i in range(1, 49)) == (costs.formulas("denseformer", dilation=4) - costs.backbone()).at(
#     L=48).parameters
# assert [j for j in range(11) if (10 - j) % 4 == 0] == [2, 6, 10]
# ```
# </details>
#
# ### Exercise 18.2 · Replace by what?
# *Medium, 20 minutes.* DenseFormer's average replaces the stream. Give the $\alpha$ with which it computes, from the
# very beginning, the mean of all states instead. Why is that not what Full Attention Residuals compute?
#
# <details><summary>Answer</summary>
#
# $\alpha_{ij} = 1/(i+1)$. The states $X_j$ are whole streams, in which everything before $j$ is contained; the sources
# of Attention Residuals are single outputs. Early outputs count many times here, and once there.
#
# ```python
# model = fresh("denseformer")
# with torch.no_grad():
#     for alpha in model.residual.alpha:
#         alpha.fill_(1 / len(alpha))
# map_of = reading(model, tokens)
# assert map_of[-1, 0] > 0.99 and map_of[-1, -1] < 0.3  # the embedding whole, the last output a fifth
# ```
# </details>
#
# ### Exercise 18.3 · A null source
# *Medium, 15 minutes.* `delta` with `null=True` adds a source of zeros with score 0. What does it do to an untrained
# Delta Block, and what could it be good for later?
#
# <details><summary>Answer</summary>
#
# With $S$ sources and zero queries each gets $1/(S+1)$ instead of $1/S$: less is added to $h$, so the start is nearer
# to the standard model. Later a read that wants nothing can say so: make all scores very negative, and the zeros take
# the weight.
#
# ```python
# far, near = ((fresh("delta", blocks=2, null=null)(tokens) - logits).norm() for null in (False, True))
# assert near < far
# ```
# </details>
#
# ### Exercise 18.4 · Budgets by hand
# *Easy, 10 minutes.* A curve has validation losses 3.0, 2.0 and 1.6 after 0, 1 and 2 million tokens. Standard's, over
# the same tokens, ends at 1.7. The method takes 1.25 times the FLOPs. What is the difference at equal tokens, and at
# equal FLOPs?
#
# <details><summary>Answer</summary>
#
# $1.6 - 1.7 = -0.1$ at equal tokens. At equal FLOPs it has seen $2/1.25 = 1.6$ million: $2.0 - 0.6\cdot 0.4 = 1.76$, so
# the difference is $+0.06$. A gain at equal tokens can be a loss at equal work.
#
# ```python
# curve = pd.DataFrame({"tokens": [0, 1e6, 2e6], "valid_loss": [3.0, 2.0, 1.6]})
# assert np.isclose(comparison.loss_by(curve, 2e6 / 1.25), 1.76)
# ```
# </details>
#
# ### Exercise 18.5 · Add or replace
# *Hard, an evening.* Test the remark of Delta's authors: write a Block AttnRes that *adds* its mixture to a running sum
# instead of replacing the input by it, in at most 40 lines. Register it, plan a grid of three seeds at 24 layers, and
# say in advance what result would speak for them.
#
# <details><summary>Answer</summary>
#
# Start from `Change` above and let the sources be those of Block, with the block under way among them. For them would
# speak: added Block close to Delta Block, and both apart from replacing Block by more than the seeds spread.
# </details>
#
# ## Further reading
#
# * DenseFormer, arXiv 2402.02622; MUDDFormer, arXiv 2502.12170; Delta Attention Residuals, arXiv 2605.18855.
# * Attention Residuals, arXiv 2603.15031: also the side-by-side numbers above.
# * Densely Connected Convolutional Networks, arXiv 1608.06993: the idea in image models, by concatenation.
