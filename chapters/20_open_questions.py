# %% [markdown]
# # 20 · Open questions: what would you try next?
#
# You have the four verbs, a model whose stream can be swapped, a corpus with a known floor, grids that record runs, and
# numbers with their spread. That is a small laboratory. This last chapter hands it over: seven questions that the book
# leaves open, each with a starting point that **runs here in seconds**, a first experiment as a grid, and a statement
# of what would count as an answer. None of them needs a cluster to begin with. We don't know how any of them comes out.
#
# > **You will build** a routed read inside the groups of HiRes, a deeper Haar tree over depth with its exact inverse, a
# > split point that is learned, and a bias for each source.
# >
# > **You will learn** to start a project from an equality (the new thing contains the old one as a special case), to
# > check a scheme before it is trained, and to say beforehand what result would convince you.
# >
# > **You need** chapters 07 and 08; chapters 13, 17 and 19 for the questions they leave open.
# >
# > **Runs in** about 15 seconds on one core, without a network.

# %%
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sympy as sp
import torch
import torch.nn.functional as F
from torch import nn

from minihaares import costs, depth_read, experiments, plots
from minihaares.data import PAD, DataConfig, load_corpus
from minihaares.model import SCHEMES, ModelConfig, Residual, Transformer, generate, scheme_options
from minihaares.relatives.hires import HiRes, HiResOptions
from minihaares.train import parameter_groups

plots.use_style()
SIZES = dict(layers=6, width=16, heads=2, ff=32, vocab_size=64)  # 12 events; small enough for every check below

# %% [markdown]
# ## Before any training: four checks
#
# A new scheme is a class with four verbs. Before a run is worth its electricity, it should pass what every scheme of
# the package passes: no token sees a later one, text made token by token with a cache agrees with the whole forward
# pass, every parameter of the scheme can learn, and a few steps lower the loss. One more check has to be thought of for
# each scheme anew: **what known thing does it contain?** Most wrong implementations fail that one.

# %%
def build(scheme, seed=0, **options):
    """An untrained tiny model in float64, its weights shaken, so that nothing is at a special start."""
    model = Transformer(ModelConfig(**SIZES, scheme=scheme, options=options)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def same_function(ours, theirs):
    """Equal logits and equal gradients of two models, once they have equal weights by name."""
    ours.load_state_dict(theirs.state_dict(), strict=False)
    tokens, found = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(1)), []
    for model in (ours, theirs):
        logits = model(tokens)
        shared = [p for name, p in model.named_parameters() if name in dict(theirs.named_parameters())]
        found.append([logits, *torch.autograd.grad(logits.square().sum(), shared, allow_unused=True)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


# %%
def passes(scheme, **options):
    """Causality, the cache, and gradients of all the scheme's own parameters; returns how many numbers those are."""
    model, tokens = build(scheme, **options), torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(2))
    logits, changed = model(tokens), tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 64
    assert torch.equal(model(changed)[:, :8], logits[:, :8]), "a token sees a later one"
    assert not torch.equal(model(changed)[:, 8:], logits[:, 8:]), "the model doesn't read its tokens"
    made = generate(model, tokens[:, :6], 4, temperature=0.0)
    again = model(made[:, :-1]).argmax(-1)[:, 5:]
    assert torch.equal(made[:, 6:], again), "the cache and the whole pass disagree"
    logits.square().sum().backward()
    own = dict(model.residual.named_parameters())
    idle = [name for name, p in own.items() if p.grad is None or not p.grad.any()]
    assert not idle, f"no gradient: {idle}"
    return sum(p.numel() for p in own.values())


# %%
scratch = tempfile.TemporaryDirectory()
data = DataConfig(context=512, stories=600, valid_stories=20, cache_dir=Path(scratch.name))
corpus = load_corpus(data, progress=False)


def learns(scheme, steps=60, **options):
    """Loss in nats before and after a few steps on the built-in stories."""
    sizes = SIZES | {"vocab_size": corpus.tokenizer.vocab_size}
    model = Transformer(ModelConfig(**sizes, scheme=scheme, options=options))
    optimizer, losses = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-2), []
    chunks = torch.from_numpy(corpus.train[: 8 * steps, :65].astype(np.int64)).split(8)  # the beginnings
    for tokens in chunks:
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], float(np.mean(losses[-10:]))


def report(scheme, **options):
    own, (before, after) = passes(scheme, **options), learns(scheme, **options)
    print(f"{scheme} {options or ''}: causal; cache agrees; {own} numbers of its own, all with gradients")
    print(f"   loss {before:.2f} -> {after:.2f} in 60 steps")
    assert after < before - 1


report("haares", blocks=2)

# %% [markdown]
# The first experiment of each project is a grid, as in chapters 13 to 15: shared settings, arms, seeds. A grid is kept
# as text here and read as `minihaares ablate FILE.toml` would read it. For a scheme that lives in this notebook, move
# its class into a file of `minihaares/relatives` first and enter it there; the grid then works as it stands. The
# common part is that of the recorded ablations: 48 layers of width 32. Such a run has taken a few minutes on one core.

# %%
COMMON = """
[model]
family = "pocket"
layers = 48
[data]
corpus = "tinystories"
context = 128
[train]
steps = 800
batch_size = 8
lr = 3e-3
eval_every = 40
eval_chunks = 128
threads = 1
"""


def plan(arms, common=COMMON):
    """Read a grid, build the first model of every arm as a check, and say how many runs it has."""
    path = Path(scratch.name) / "first.toml"
    path.write_text(common + arms)
    grid = experiments.read_grid(str(path))
    for run in {planned.arm: planned for planned in grid}.values():
        with torch.device("meta"):
            Transformer(run.config.model)
    print(f"{len(grid)} runs:", ", ".join(dict.fromkeys(planned.arm for planned in grid)))
    return grid


# %%
runs = experiments.read_runs(experiments.recorded())
if len(runs):
    deep = runs[(runs["layers"] == 48) & (runs["width"] == 32) & (runs["steps"] == 800)]
    assert deep.empty or 1 < deep["seconds"].median() / 60 < 8  # "a few minutes"


# %% [markdown]
# ## Project 1 · HAARES inside the groups of HiRes
#
# *Difficulty: medium. Time: an afternoon, and two hours of runs.*
#
# **The question.** HiRes widens what is carried *between* groups of layers; inside, it keeps the plain sum. HAARES
# changes what is read *inside* and keeps the width. Do their gains add up, or are both cures for the same ill?
#
# **Why it matters.** If a wide stream already keeps what a sum forgets, routing has nothing left to do, and the other
# way round. Inside a group of four layers there are only eight events, so the router has few sources and is cheap.
#
# **The starting point.** HiRes with another residual inside each group: any scheme with four verbs can stand there.
# With the plain sum inside, it must be the package's HiRes to the last gradient.

# %%
@dataclass(frozen=True)
class MixedOptions(HiResOptions):
    """Of HiRes; `inner`: the scheme inside each group; `blocks`: of the inner router, if it is one."""

    inner: str = "haares"
    blocks: int = 2


# %%
class MixedHiRes(HiRes):
    Options = MixedOptions

    def __init__(self, config, options, generator):
        super().__init__(config, options, generator)
        inside = replace(config, layers=options.layers_per_group)
        kind, chosen = scheme_options(options.inner, {} if options.inner == "standard" else {"blocks": options.blocks})
        self.inner = nn.ModuleList(kind(inside, chosen, generator) for _ in self.norms)  # one a group

    def enter(self, outer, group):  # the state: outer stream, where the group began, the inner scheme's state
        h = F.linear(outer, self.read_maps[group])
        return outer, h, self.inner[group].begin(h) if group < len(self.inner) else h

    def read(self, state, event):
        group, place = divmod(event, 2 * self.options.layers_per_group)
        x, inner = self.inner[group].read(state[2], place)
        return x, (*state[:2], inner)

    def write(self, state, event, output):
        group, place = divmod(event, 2 * self.options.layers_per_group)
        inner = self.inner[group].write(state[2], place, output)
        if place < 2 * self.options.layers_per_group - 1:
            return *state[:2], inner
        y = self.inner[group].readout(inner) - (state[1] if self.options.write == "delta" else 0)
        return self.enter(self.norms[group](state[0] + F.linear(y, self.write_maps[group])), group + 1)

    def readout(self, state):
        return state[2]


# %%
SCHEMES["mixed"] = (MixedHiRes, {"layers_per_group": 3})
for write in ("output", "delta"):
    same_function(build("mixed", inner="standard", write=write), build("hires", layers_per_group=3, write=write))
print("with the plain sum inside: HiRes, in outputs and gradients")
report("mixed")

# %%
grid = plan("""
[[arm]]
name = "standard"
scheme = "standard"
seeds = [42, 123, 2026, 1, 2, 3]
[[arm]]
name = "haares"
scheme = "haares"
seeds = [42, 123, 2026, 1, 2, 3]
[[arm]]
name = "hires"
scheme = "hires"
seeds = [42, 123, 2026, 1, 2, 3]
[[arm]]
name = "both"
scheme = "mixed"
options = { layers_per_group = 4, blocks = 2 }
seeds = [42, 123, 2026, 1, 2, 3]
""")

# %% [markdown]
# **What would count as an answer.** Four arms make a two-by-two table: with or without the wide stream, with or without
# routing. The number to report is the *interaction*, (both − HiRes) − (HAARES − Standard), seed by seed, with its
# interval over at least six seeds. Near zero: the gains add up. Positive: they share. Negative: they help each other.
# State the compute of each arm beside it (chapter 19). **Beware** of the readout: a group's router reads out a softmax
# mixture, not a sum, so what goes into the outer stream is smaller beside what is there already. The outer norm fixes
# the size of the sum, not this share; $W_j$ has to learn it, and the learning rate that suits may differ.
#
# ## Project 2 · A deeper Haar tree over depth
#
# *Difficulty: medium. Time: an afternoon, and a night of runs.*
#
# **The question.** HAARES keeps one level of a Haar transform of each block: the sum and one difference. A full
# transform goes on: differences inside each half, inside each quarter, down to single events. How deep is worth it?
#
# **Why it matters.** With all levels, a block of $2^K$ parts becomes $2^K$ sources from which every part can be
# recovered exactly. If a part is one event, nothing is forgotten, as with full Attention Residuals, but in another
# basis, sorted from coarse to fine. One can then spend sources where they help, for instance deeper trees in later
# blocks. (The router below matches each detail to the sum, as HAARES does; to go back one needs the factors as well.)
#
# **The starting point.** The transform of the totals of $2^K$ parts, and its inverse. By hand, for four parts
# $(4, 2, 7, 1)$: the sum is 14, the first difference $6 - 8 = -2$, the second ones $4 - 2 = 2$ and $7 - 1 = 6$. Back:
# the halves are $(14 \mp 2)/2 = 6, 8$, and the parts $(6 \pm 2)/2 = 4, 2$ and $(8 \pm 6)/2 = 7, 1$.

# %%
def add_up(parts):
    known = [part for part in parts if part is not None]
    return sum(known[1:], known[0]) if known else None


def haar(parts):
    """Totals of 2^K parts (None: nothing written yet) -> [(vector, level)]: the sum is level 0; early minus late."""
    found, size, level = [(add_up(parts), 0)], len(parts), 1
    while size > 1:
        for i in range(0, len(parts), size):
            early, late = add_up(parts[i : i + size // 2]), add_up(parts[i + size // 2 : i + size])
            if early is not None:
                found.append((early if late is None else early - late, level))
        size, level = size // 2, level + 1
    return found


def parts_of(sources):
    """The exact inverse: 2^K vectors in the order of `haar` -> the totals of the parts."""
    totals, rest = sources[:1], sources[1:]
    while rest:
        details, rest = rest[: len(totals)], rest[len(totals) :]
        totals = [half for t, d in zip(totals, details, strict=True) for half in ((t + d) / 2, (t - d) / 2)]
    return totals


print(haar([4, 2, 7, 1]), "->", parts_of([14, -2, 2, 6]))

# %%
symbols = list(sp.symbols("u1:9"))
tree = [vector for vector, _ in haar(symbols)]
assert [sp.expand(part) for part in parts_of(tree)] == symbols  # for all numbers
matrix = sp.Matrix([[vector.coeff(u) for u in symbols] for vector in tree])
assert matrix * matrix.T == sp.diag(8, 8, 4, 4, 2, 2, 2, 2)
print("orthogonal rows, of lengths √8, √8, 2, 2, √2, √2, √2, √2")
for levels in (1, 2, 3, 5):
    generator = torch.Generator().manual_seed(levels)
    parts = list(torch.randn(2**levels, 3, 16, dtype=torch.float64, generator=generator))
    back = parts_of([vector for vector, _ in haar(parts)])
    assert all((one - other).abs().max() < 1e-14 for one, other in zip(parts, back, strict=True))
    print(f"{levels} level(s): {2**levels} sources a block, all {2**levels} parts recovered in float64")


# %%
def draw(axis, levels):  # one row a source, one column a part: + dark, − hatched, 0 empty
    size = 2**levels
    found = [vector for vector, _ in haar([sp.Symbol(f"u{i}") for i in range(size)])]
    for row, vector in enumerate(found):
        for column in range(size):
            sign = vector.coeff(sp.Symbol(f"u{column}"))
            face, hatch = {1: ("0.35", ""), -1: ("0.85", "////"), 0: ("white", "")}[int(sign)]
            axis.add_patch(plt.Rectangle((column, row), 1, 1, facecolor=face, hatch=hatch, edgecolor="0.6"))
    names = ["C", *(f"D, level {int(np.log2(i)) + 1}" for i in range(1, size))]
    axis.set(xlim=(0, size), ylim=(size, 0), xlabel="part of the block", title=f"{levels} level{'s' * (levels > 1)}")
    axis.set_xticks(np.arange(size) + 0.5, range(1, size + 1))
    axis.set_yticks(np.arange(size) + 0.5, names)
    axis.grid(False)


figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.3), width_ratios=(1, 1.6, 2.6))
for levels, axis in enumerate(axes, start=1):
    draw(axis, levels)
plots.show(
    figure,
    alt="Three grids of signs, a row for each source of a block, a column for each part. With one level: C, all dark, "
    "for plus, and one detail, dark then hatched for minus: HAARES. With two levels two more rows, each covering one "
    "half, plus then minus. With three levels four more rows, each covering one quarter. Rows get narrower downwards.",
)


# %% [markdown]
# Dark counts as plus, hatched as minus. The first grid is HAARES; each further level halves the stretch that a row
# looks at.
#
# And the router that reads it. `shares` says into which part an event goes; the sources of a block are the transform
# of its parts as far as they are written, each detail matched to the sum as in HAARES. Every source carries a label
# (level, block), for later. **With one level this must be HAARES**, so that is the check.

# %%
@dataclass(frozen=True)
class TreeOptions:
    blocks: int = 4
    levels: int = 2


class TreeRouter(Residual):
    """Per block the sum and `levels` levels of details; softmax over all of them, as in HAARES."""

    Options = TreeOptions

    def __init__(self, config, options, generator):
        super().__init__()
        self.parts, self.eps, sites = 2**options.levels, config.norm_eps, config.events + 1
        self.places = depth_read.places(config.events, options.blocks, "half")
        self.query = nn.Parameter(torch.zeros(sites, config.width))
        self.key_gain = nn.Parameter(torch.ones(sites, config.width))
        self.detail_bias = nn.Parameter(torch.full((sites - 1,), -2.0))

    def shares(self, event):  # of each part in what this event writes; None for a part that it leaves alone
        place = self.places[event]
        ends = np.cumsum([len(part) for part in np.array_split(np.arange(place.length), self.parts)])
        return [1.0 if part == np.searchsorted(ends, place.offset, "right") else None for part in range(self.parts)]

    def bias(self, event, label):  # of a source with this label (level, block)
        return self.detail_bias[event] if label[0] else self.detail_bias.new_zeros(())


# %%
class Tree(TreeRouter):  # its four verbs
    def exposed(self, parts, block):
        (C, _), *details = haar(parts)
        if C is None:
            return ()
        return (C, (0, block)), *((depth_read.matched(C, D, 4.0, 1e-6), (level, block)) for D, level in details)

    def mixture(self, sources, site, biased=True):
        vectors, labels = zip(*sources, strict=True)
        z = depth_read.depth_scores(vectors, self.query[site], self.key_gain[site], self.eps)  # [S, B, T]
        if biased:
            z = z + torch.stack([self.bias(site, label) for label in labels])[:, None, None]
        return depth_read.mix(z.softmax(0), vectors)

    def begin(self, embedding):
        return ((embedding, (0, -1)),), (None,) * self.parts  # finished sources, and the parts of the block under way

    def read(self, state, event):
        return self.mixture(state[0] + self.exposed(state[1], self.places[event].block), event), state

    def write(self, state, event, output):
        pairs = zip(state[1], self.shares(event), strict=True)
        parts = tuple(old if share is None else add_up((old, share * output)) for old, share in pairs)
        if not self.places[event].last:
            return state[0], parts
        return state[0] + self.exposed(parts, self.places[event].block), (None,) * self.parts

    def readout(self, state):
        sums = [source for source in state[0] if source[1][0] == 0]
        return self.mixture(sums, len(self.places), biased=False)


# %%
SCHEMES["tree"] = (Tree, {})
for blocks in (1, 2, 3, 4):
    same_function(build("tree", blocks=blocks, levels=0), build("block", blocks=blocks))
    same_function(build("tree", blocks=blocks, levels=1), build("haares", blocks=blocks))
print("no level: Block Attention Residuals; one level: HAARES; also with parts of unequal length")
for levels in (2, 3):
    report("tree", blocks=1, levels=levels)

# %%
seeds = "seeds = [42, 123, 2026, 1, 2, 3]\n"
grid = plan("".join(f"""
[[arm]]
name = "N = {blocks}, {levels} levels"
scheme = "tree"
options = {{ blocks = {blocks}, levels = {levels} }}
{seeds}""" for blocks, levels in ((4, 0), (4, 1), (4, 2), (4, 3), (8, 0), (8, 1), (16, 0))))  # fmt: skip

# %% [markdown]
# Level 0 is Block Attention Residuals. The arms are chosen so that some have the **same number of sources**: four
# blocks with two levels, eight with one and sixteen with none all end with sixteen and the embedding.
#
# **What would count as an answer.** Loss against the number of sources, with two lines: more levels, or more blocks. If
# deeper trees only follow the line of more blocks, the basis is of no use. If they lie below it by more than the
# interval, it is. Our `Tree` reads plainly, so compare losses and counts of sources, not seconds.
#
# ## Project 3 · Splits that are learned
#
# *Difficulty: easy to medium. Time: two hours, and two hours of runs.*
#
# **The question.** HAARES cuts each block in the middle. Is the middle special? Chapter 14 asks this of random signs. A
# finer way to ask: let each block learn where to cut.
#
# **Why it matters.** If the learned cuts stay near the middle, the equal halves are a good choice; if they run to an
# end, the detail wants to be "the first event against the rest" or "the newest against the rest", and one would build
# that. In either case the picture of cuts over depth is new.
#
# **The starting point.** An event at place $r$ of its block belongs to the early half by
# $\sigma(s\,(\tau_n - r - \tfrac12))$ and to the late half by the rest, with a learned cut $\tau_n$ for each block and
# a sharpness $s$. The sum $C$ is the same for every cut. **With a large $s$ and $\tau$ in the middle this is HAARES.**

# %%
@dataclass(frozen=True)
class SplitOptions:
    blocks: int = 4
    sharpness: float = 2.0


class LearnedSplit(Tree):
    Options = SplitOptions

    def __init__(self, config, options, generator):
        super().__init__(config, TreeOptions(options.blocks, levels=1), generator)
        self.sharpness = options.sharpness
        lengths = [place.length for place in self.places if place.offset == 0]
        self.cut = nn.Parameter(torch.tensor([float((length + 1) // 2) for length in lengths]))

    def shares(self, event):
        place = self.places[event]
        early = torch.sigmoid(self.sharpness * (self.cut[place.block] - place.offset - 0.5))
        return early, 1 - early


SCHEMES["split"] = (LearnedSplit, {})
sharp, hard = build("split", blocks=2, sharpness=500.0), build("haares", blocks=2)
with torch.no_grad():
    sharp.residual.cut.fill_(3.0)
same_function(sharp, hard)
print("a sharp cut in the middle: HAARES")
report("split", blocks=2)

# %%
grid = plan("""
[[arm]]
name = "haares"
scheme = "haares"
seeds = [42, 123, 2026, 1, 2, 3]
[[arm]]
name = "split"
scheme = "split"
over = { sharpness = [0.5, 2.0] }
seeds = [42, 123, 2026, 1, 2, 3]
""")

# %% [markdown]
# **What would count as an answer.** Two things, and the second needs no significant gain in loss: the paired difference
# to HAARES, and the cuts after training, for every block and seed, beside the middle. If seeds agree on where a block
# wants its cut, that is a finding even if the loss doesn't move. **Beware:** a soft share of 0.5 for every event makes
# $D = 0$, and matching then multiplies noise by at most 4; look at RMS(D) along depth as well.
#
# ## Project 4 · Details in the readout
#
# *Difficulty: easy. Time: an hour, and one or two hours of runs.*
#
# **The question.** Every event of HAARES may read the details; the last read, before the head, may not. Why not?
#
# **Why it matters.** The head is the one reader that turns the stream into words. If details carry what a sum forgets,
# it should be glad of them; if they only help sublayers to tell each other apart, it shouldn't care.
#
# **The starting point** is an option of the package. With $N$ blocks the last read then sees $1 + 2N$ sources instead
# of $1 + N$, and learns one bias more. Started with a bias of −2, it is not the same model at the first step; with a
# bias that masks, it is.

# %%
for blocks in (2, 4):
    for late in (False, True):
        model = build("haares", blocks=blocks, readout_details=late)
        depth = costs.depth_costs("haares", {"blocks": blocks, "readout_details": late}, events=12).at(L=6, d=16)
        biases = model.residual.detail_bias.numel()
        print(f"N = {blocks}, details at the head: {late!s:5}  {biases} biases, {depth.forward} FLOPs a token in depth")
report("haares", blocks=4, readout_details=True)
grid = plan("""
[[arm]]
name = "haares"
scheme = "haares"
over = { readout_details = [false, true] }
seeds = [42, 123, 2026, 1, 2, 3, 4, 5]
""")

# %% [markdown]
# **What would count as an answer.** The paired difference with its interval over eight seeds, *and* the weight that the
# trained readout gives to each detail (chapter 16 has the tools). A weight near zero everywhere answers the question
# even if the interval of the loss is too wide to.
#
# ## Project 5 · A bias for each source
#
# *Difficulty: easy. Time: an hour, and one or two hours of runs.*
#
# **The question.** One number per read says how much its details are favoured, all of them alike. Should an old detail
# be treated as a fresh one is?
#
# **Why it matters.** It is the cheapest change one can think of, 384 numbers in place of 96 at 48 layers and four
# blocks, and it tells *which* details are read: the learned biases are a map of age against depth.
#
# **The starting point.** The bias gets a second index, the block of the detail. **Equal biases in a row are HAARES.**

# %%
class BiasPerSource(Tree):
    def __init__(self, config, options, generator):
        super().__init__(config, options, generator)
        self.detail_bias = nn.Parameter(torch.full((config.events, options.blocks), -2.0))

    def bias(self, event, label):
        level, block = label
        return self.detail_bias[event, block] if level else self.detail_bias.new_zeros(())


SCHEMES["bias per source"] = (BiasPerSource, {"levels": 1})
ours, theirs = build("bias per source", blocks=3), build("haares", blocks=3)
weights = theirs.state_dict()
weights["residual.detail_bias"] = weights["residual.detail_bias"][:, None].expand(-1, 3)
ours.load_state_dict(weights)
tokens = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(3))
torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-9, atol=1e-11)
rows, single = (
    torch.autograd.grad(model(tokens).square().sum(), model.residual.detail_bias)[0] for model in (ours, theirs)
)
torch.testing.assert_close(rows.sum(1), single, rtol=1e-9, atol=1e-11)
print("equal biases in a row: HAARES, and the gradients of a row add up to that of its one bias")
report("bias per source", blocks=3)

# %%
grid = plan("""
[[arm]]
name = "haares"
scheme = "haares"
seeds = [42, 123, 2026, 1, 2, 3]
[[arm]]
name = "bias per source"
scheme = "bias per source"
seeds = [42, 123, 2026, 1, 2, 3]
""")

# %% [markdown]
# A bias of a block that an event can never see has no gradient, for ever: those above the diagonal of the map.
#
# **What would count as an answer.** As in project 4: the paired difference, and the map, averaged over seeds, with the
# spread over seeds beside it. A map whose pattern is smaller than its spread is no pattern.
#
# ## Project 6 · A fair rate for HiRes
#
# *Difficulty: easy. Time: half an hour, and less than half an hour of runs.*
#
# **The question.** Chapter 19 gives all arms of a size one learning rate, which was chosen on the standard stream. Is
# that fair? HiRes has norms between its groups, and streams with norms often like other rates: at 48 layers and the
# common rate, two of its three runs in chapter 17 learned nothing.
#
# **Why it matters.** A comparison at one rate measures two things at once: the method, and how well the rate suits it.
# A few percent in compute may well be within what a better rate gives to either side.
#
# **The starting point** runs as it is: the schemes are in the package, and at eight layers a run takes about a minute.

# %%
grid = plan("".join(f"""
[[arm]]
name = "{scheme} lr {lr}"
scheme = "{scheme}"
seeds = [42, 123]
model = {{ width = 32, heads = 2, ff = 128 }}
layers = [8]
train = {{ lr = {lr} }}
""" for scheme in ("standard", "hires") for lr in (1e-3, 2e-3, 4e-3, 8e-3)))  # fmt: skip
rates = {(run.config.model.scheme, run.config.train.lr) for run in grid}
assert len(rates) == 8

# %% [markdown]
# **What would count as an answer.** Each arm at *its own* best rate, and the best rate not at the edge of those tried.
# Then redo chapter 19's comparison with these rates. The options of HiRes that the article leaves open (`write`,
# `input`, `layers_per_group`) can be swept in the same way; say how many you tried.
#
# ## Project 7 · Longer, wider, on a GPU
#
# *Difficulty: easy to start, costly to finish. Time: days on one GPU.*
#
# **The question.** Our runs see about a million tokens. The HAARES paper trains 201 million parameters on 245 million
# tokens, and finds its gain at 48 layers there. Does the difference between the schemes grow, stay or fade with the
# budget, at a width of 512?
#
# **Why it matters.** A gain that fades with training is a faster start, and worth less than one that stays.
#
# **The starting point** is the package itself: `family = "medium"` is the paper's, `compile` and `autocast` are options
# of training, and the costs are known before the first run.

# %%
rows = []
for scheme in ("standard", "block", "haares"):
    family = dict(width=512, heads=8, ff=2048, layers=48, vocab_size=256)
    price = costs.price(ModelConfig(**family, scheme=scheme), 512)
    total = price.step(16, 512) * 30_000
    rows.append([scheme, price.parameters / 1e6, total / 1e18, total / 1e14 / 3600])
columns = ["scheme", "million parameters", "EFLOPs of 30,000 steps", "hours at 100 TFLOP/s"]
print(pd.DataFrame(rows, columns=columns).round(2).to_string(index=False))

# %%
LARGE = """
[model]
family = "medium"
layers = 48
[data]
corpus = "tinystories"
context = 512
[train]
steps = 30000
batch_size = 16
lr = 3e-4
eval_every = 2000
autocast = true
"""
three = "".join(f"""
[[arm]]
name = "{scheme}"
scheme = "{scheme}"
seeds = [42, 123, 2026]
""" for scheme in ("standard", "block", "haares"))  # fmt: skip
grid = plan(three, common=LARGE)

# %% [markdown]
# The hours are arithmetic, no measurement: what the products alone would take at that speed. The paper puts a run of
# Block at about four hours on its GPU (Table 14). Its text is OpenWebText in float32, ours TinyStories in bfloat16.
#
# **What would count as an answer.** The paired difference *as a function of tokens*, at each evaluation, with its
# spread; at 12 layers too, if it is there at 48. A line that is still moving at the end is an answer too: "not yet".
#
# ## What we found, and what it doesn't show
#
# * Each of the new schemes is a small class behind four verbs, and each **contains a known scheme**: the mixed HiRes
#   contains HiRes, the tree contains Block Attention Residuals and HAARES, the learned split and the bias per source
#   contain HAARES. Those equalities hold in outputs and in gradients.
# * A Haar tree of $K$ levels turns $2^K$ parts of a block into $2^K$ sources and loses nothing: the inverse is exact.
# * All of them are causal, agree with their cache, and learn in sixty steps. **That doesn't say which is better.**
#   Sixty steps of a six-layer model of width 16 rank nothing; we draw no conclusion from the losses printed above.
# * The reads here are plain. Their cost in time and memory would have to be measured on a lean version (chapter 12).
#
# ## Exercises
#
# ### Exercise 20.1 · How many sources?
# *Easy, 10 minutes.* How many sources does the last event of a tree with $N$ blocks and $K$ levels see, if every part
# holds at least two events? Compare with $N \cdot 2^K$ blocks and no level.
#
# <details><summary>Answer</summary>
#
# The embedding, $2^K$ for each of the $N - 1$ finished blocks, and $2^K$ for the block under way, whose parts have all
# begun: $1 + N 2^K$. With $N 2^K$ blocks it is $1 + N 2^K$ as well: equal counts of sources, different bases.
#
# ```python
# def seen(scheme, **options):
#     residual = build(scheme, **options).residual
#     state = residual.begin(torch.ones(1, 1, 16, dtype=torch.float64))
#     for event in range(11):
#         state = residual.write(state, event, torch.ones(1, 1, 16, dtype=torch.float64))
#     return len(state[0] + residual.exposed(state[1], residual.places[11].block))
#
# assert seen("tree", blocks=1, levels=2) == seen("tree", blocks=4, levels=0) == 1 + 4
# assert seen("tree", blocks=3, levels=1) == seen("tree", blocks=6, levels=0) == 1 + 6
# ```
# </details>
#
# ### Exercise 20.2 · Which part can be taken away?
# *Medium, 20 minutes.* Chapter 09 showed that with a sum and one difference the late half can get a negative
# coefficient under nonnegative weights, the early half never. What about the four parts of a block with two levels
# (unmatched)?
#
# <details><summary>Answer</summary>
#
# With weights $w_0$ (sum), $w_1$, $w_2$, $w_3$ the coefficients are $w_0 + w_1 + w_2$, $w_0 + w_1 - w_2$,
# $w_0 - w_1 + w_3$ and $w_0 - w_1 - w_3$. Only the first part can never be taken away; the second can, now.
#
# ```python
# w = sp.symbols("w0:4", nonnegative=True)
# mixture = sp.expand(sum(weight * vector for weight, (vector, _) in zip(w, haar(sp.symbols("u1:5")), strict=True)))
# signs = [[mixture.coeff(u).coeff(weight) for weight in w] for u in sp.symbols("u1:5")]
# assert [min(row) < 0 for row in signs] == [False, True, True, True]
# ```
# </details>
#
# ### Exercise 20.3 · A mistake that four checks miss
# *Medium, 20 minutes.* Let the details be late minus early, a slip of a sign. Which of the checks at the beginning of
# this chapter sees it?
#
# <details><summary>Answer</summary>
#
# None of the four: such a model is causal, agrees with its cache, has gradients and learns. It isn't HAARES, and only
# the equality says so.
#
# ```python
# class Flipped(Tree):
#     def exposed(self, parts, block):
#         return tuple((-v if label[0] else v, label) for v, label in super().exposed(parts, block))
#
# SCHEMES["flipped"] = (Flipped, {"levels": 1})
# report("flipped", blocks=2)
# noticed = False
# try:
#     same_function(build("flipped", blocks=2), build("haares", blocks=2))
# except AssertionError:
#     noticed = True
# assert noticed
# ```
# </details>
#
# ### Exercise 20.4 · Your own
# *Open, an hour.* Write down an eighth project in the same form: a question, why it matters, a class or an option with
# the known scheme it contains, a grid, and what would count as an answer. Do the last before you run anything.
#
# <details><summary>Where people get stuck</summary>
#
# Mostly at "what it contains" and at "what would count". If your scheme contains nothing known, take one more option
# until it does. If every result would please you, the question isn't one yet.
# </details>
#
# ## Further reading
#
# * HAARES, arXiv 2606.06564, section 9: what its authors leave open.
# * Attention Residuals, arXiv 2603.15031, and Delta Attention Residuals, 2605.18855: what else a source can be.
# * Haar, *Zur Theorie der orthogonalen Funktionensysteme*, Mathematische Annalen 69 (1910): the tree.
# * Virtual width networks, arXiv 2511.11238, and mHC, 2512.24880: other streams to put inside or outside the groups.
