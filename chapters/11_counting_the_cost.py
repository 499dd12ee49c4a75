# %% [markdown]
# # 11 · Counting the cost: what does HAARES cost on paper?
#
# A scheme that reads more than one vector must pay for it somehow. Before we measure anything (chapter 12), we count:
# how many sources a read sees, how many numbers are learned, multiplied, moved and kept. Counting needs no machine,
# it gives a formula instead of a number, and it can be held against the code, where it must come out *exactly*. Then we
# do what every reader of a paper can do with a pencil: recompute its tables. Most of the HAARES paper's figures
# (arXiv 2606.06564) come out to the last digit. One does not, and one comes out for only one of six ways of counting.
#
# > **You will build** closed forms for sources, parameters, FLOPs, traffic and saved numbers, and a search that gets
# > the six losses of a table back from the text around it.
# >
# > **You will learn** why "FLOPs" is not a number until you say what you count, why a quarter of a percent of
# > arithmetic can cost a fifth of the time, and how much rounded figures still give away.
# >
# > **You need** chapters 05 (blocks) and 08 (the order of reads and writes).
# >
# > **Runs in** about 15 seconds on 2 cores, without a network.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from minihaares import algebra, bench, costs, plots
from minihaares.model import FAMILIES, ModelConfig, Transformer

plots.use_style()
torch.manual_seed(0)
pd.set_option("display.width", 120, "display.max_colwidth", 60)


def side_by_side(theirs, ours):  # {what: figure as printed}, {what: number}; equal when rounded as they rounded
    digits = {what: len(figure.partition(".")[2]) for what, figure in theirs.items()}
    rounded = {what: f"{ours[what]:.{digits[what]}f}" for what in theirs}
    table = pd.DataFrame({"theirs": theirs, "ours": rounded})
    table["unrounded"] = [f"{ours[what]:.5g}" for what in theirs]
    table["agrees"] = table["theirs"] == table["ours"]
    return table


# %% [markdown]
# ## Four events by hand
#
# Two layers have four events: attention, MLP, attention, MLP. Cut them into two blocks of two. Before each event, list
# the sources its read sees. A block that has not been written to yet offers nothing (chapter 08).
#
# | event | Block AttnRes | | HAARES | | full AttnRes | |
# |---|---|---|---|---|---|---|
# | 1 | $e$ | 1 | $e$ | 1 | $e$ | 1 |
# | 2 | $e, C_1$ | 2 | $e, C_1, D_1$ | 3 | $e, u_1$ | 2 |
# | 3 | $e, C_1$ | 2 | $e, C_1, D_1$ | 3 | $e, u_1, u_2$ | 3 |
# | 4 | $e, C_1, C_2$ | 3 | $e, C_1, D_1, C_2, D_2$ | 5 | $e, u_1, u_2, u_3$ | 4 |
# | mean | | 2 | | 3 | | 2.5 |
#
# The same in code, for blocks of any lengths and `g` sources a block. Full AttnRes is the case of blocks of one event.
# We hold it to the package, by pushing zeros through a router's verbs and counting what it offers.

# %%
def sources_seen(lengths, g):  # [events]
    seen, finished = [], 1  # the embedding is there from the start
    for length in lengths:
        for place in range(length):
            active = g if place > 0 else 0
            seen.append(finished + active)
        finished += g
    return seen


def offered(scheme, layers, blocks):  # the same, asked of a model
    options = {"blocks": blocks, "read": "plain"}
    router = Transformer(ModelConfig(layers=layers, width=4, heads=2, scheme=scheme, options=options)).residual
    state, counts = router.begin(torch.zeros(1, 1, 4)), []
    for event in range(2 * layers):
        counts.append(len(router.sources(state)))
        state = router.write(state, event, torch.zeros(1, 1, 4))
    return counts


for scheme, lengths, g in (("block", (2, 2), 1), ("haares", (2, 2), 2), ("attnres", (1, 1, 1, 1), 1)):
    counts = sources_seen(lengths, g)
    assert counts == offered(scheme, 2, lengths)
    print(f"{scheme:8s} {counts}  mean {np.mean(counts)}")


# %% [markdown]
# ## Every depth at once
#
# With $2L$ events in $N$ blocks of $m = 2L/N$, a read sees three kinds of sources. The embedding: always. Finished
# blocks: $0, 1, \dots, N - 1$ of them, each number for $m$ events, so $(N-1)/2$ on average. The own block: for all of
# its events but the first, a share of $1 - 1/m = 1 - N/(2L)$. With $g$ sources a block
#
# $$\text{mean} = 1 + g\,\frac{N-1}{2} + g\Bigl(1 - \frac{N}{2L}\Bigr).$$
#
# At the last event everything is there, which makes the peak $1 + gN$ (unless a block has only one event: then the
# last one has nothing in it yet). `algebra.source_counts` proves this for every $L$ and $N$:

# %%
algebra.source_counts()

# %%
forms = algebra.source_counts().forms


def closed_form(name, layers, blocks, g):
    return forms[name].subs({algebra.L: layers, algebra.N: blocks, algebra.g: g})


for layers in range(1, 13):
    for blocks in (n for n in range(1, 2 * layers + 1) if 2 * layers % n == 0):
        for g in (1, 2):
            counts = sources_seen([2 * layers // blocks] * blocks, g)
            assert closed_form("total", layers, blocks, g) == sum(counts)
            assert closed_form("peak", layers, blocks, g) == max(counts)
print("formula and enumeration agree for every partition of up to 12 layers")

# %% [markdown]
# ## A wrong turn: which reads count?
#
# The paper's Table 3 gives mean and peak at 48 layers. Before we rebuild it, two plausible ways to get it wrong. One
# can let an active slot exist before its block's first write, full of zeros; then the last term is $g$ instead of
# $g(1 - N/2L)$. Or one can average over all $2L + 1$ routers, the one in front of the head included, which sees
# $N + 1$ sources under either scheme.

# %%
variants = {}
for name, g in (("Block", 1), ("HAARES", 2)):
    counts = sources_seen([24] * 4, g)
    variants[name] = {
        "events, no empty slots": np.mean(counts),
        "with empty slots": np.mean(counts) + g * 4 / 96,  # the first event of each block sees g more
        "with the final router": np.mean([*counts, 4 + 1]),
    }
print(pd.DataFrame(variants).map("{:.3f}".format).to_string())

# %% [markdown]
# The table says 3.458 and 5.917. So the first reading is the paper's, and this settles a question that its text leaves
# open: a block is invisible until something is in it. A count can tell two implementations apart. Now the whole of
# Table 3:

# %%
table_3, ours_3 = {}, {}
for blocks, means, peaks in ((4, ("3.458", "5.917"), (5, 9)), (6, ("4.438", "7.875"), (7, 13)),
                             (8, ("5.417", "9.833"), (9, 17))):  # fmt: skip
    for name, g in (("Block", 1), ("HAARES", 2)):
        table_3[f"{name}, N = {blocks}: mean"], ours_3[f"{name}, N = {blocks}: mean"] = (
            means[g - 1], float(closed_form("mean", 48, blocks, g)))  # fmt: skip
        table_3[f"{name}, N = {blocks}: peak"], ours_3[f"{name}, N = {blocks}: peak"] = (
            str(peaks[g - 1]), int(closed_form("peak", 48, blocks, g)))  # fmt: skip
rebuilt = side_by_side(table_3, ours_3)
assert rebuilt["agrees"].all()
rebuilt

# %%
fig, axes = plt.subplots(2, 1, figsize=(7.5, 5.4), sharex=True, height_ratios=(3, 2))
banks = {"attnres": ([1] * 96, 1), "haares": ([24] * 4, 2), "block": ([24] * 4, 1)}
for axis, shown in ((axes[0], ("haares", "block")), (axes[1], tuple(banks))):
    for scheme in shown:
        counts = sources_seen(*banks[scheme])
        look = plots.SCHEME_STYLE[scheme] | {"marker": ""}
        axis.step(range(1, 97), counts, where="mid", **look)
        if axis is axes[0]:
            axis.hlines(np.mean(counts), 1, 96, color=look["color"], linewidth=0.8)
        height = np.mean(counts) if axis is axes[0] else counts[-1]
        if axis is axes[0] or scheme == "attnres":
            axis.annotate(f"mean {np.mean(counts):.3f}", (97, height), va="center", fontsize=9)
axes[0].set(ylabel="sources", title="What a read sees: 48 layers, four blocks of 24 events", yticks=range(1, 10, 2))
axes[1].set(ylabel="sources", xlabel="event", xticks=range(0, 97, 24), xlim=(0, 110), yticks=(1, 25, 49, 73, 97))
axes[1].legend(loc="upper left")
plots.show(
    fig,
    alt="Two panels with step lines over events 1 to 96. Above, Block climbs from 1 to 5 and HAARES from 1 to 9, in a "
    "step at the second event of each block of 24; thin lines mark the means, 3.458 and 5.917. Below, the same on a "
    "larger scale with full AttnRes, a straight line up to 96 of mean 48.5; the other two lie near the floor.",
)

# %% [markdown]
# A block joins the bank one event after it begins, a step of one source for Block and of two for HAARES. The paper
# puts it like this: later sublayers repeatedly read the completed details, so that forming a detail once is not all
# of the work.
#
# ## Parameters
#
# A layer has four $d\times d$ matrices in attention, three of $d \times f$ in the MLP (`ff` in the code), and two
# gains. Around the layers stand the embedding, which also serves as the head, and the final gain. A depth router has a
# query and a key gain for each of its $2L + 1$ reads, and HAARES a bias for each but the last. For a toy with $d = 4$,
# $f = 8$, $L = 2$ and 10 vocabulary entries:
#
# $$\underbrace{10\cdot 4}_{\text{embedding}} + 2\,\underbrace{(4\cdot 16 + 3\cdot 32 + 2\cdot 4)}_{\text{layer}} +
# \underbrace{4}_{\text{norm}} = 380,\qquad
# \underbrace{5\cdot 2\cdot 4}_{\text{router}} = 40,\qquad \underbrace{4}_{\text{biases}}.$$
#
# `minihaares.costs` holds such formulas for every scheme, in symbols. A scheme is one function there.

# %%
costs.formulas("haares").parameters

# %%
toy = dict(layers=2, width=4, heads=1, ff=8, vocab_size=10)
by_hand = {"standard": 380, "block": 380 + 40, "haares": 380 + 40 + 4, "rezero": 380 + 4, "layerscale": 380 + 4 * 4}
for scheme, count in by_hand.items():
    options = {"blocks": 2} if scheme in ("block", "haares") else {}
    config = ModelConfig(**toy, scheme=scheme, options=options)
    built = sum(p.numel() for p in Transformer(config).parameters())
    in_symbols = costs.formulas(scheme).at(L=2, d=4, ff=8, V=10).parameters
    assert count == built == in_symbols
    print(f"{scheme:10s} {built}")


# %% [markdown]
# The models of Table 5 have hundreds of millions of parameters, but a model on the *meta* device has shapes and no
# numbers, so we can build them here and now. The paper gives rounded totals: 201M, about 204M with a BPE vocabulary of
# 4096, 453M.

# %%
def build_without_numbers(family, scheme, **more):  # the paper's 48 layers and four blocks
    with torch.device("meta"):
        return Transformer(ModelConfig(**FAMILIES[family], layers=48, scheme=scheme, **more))


def count(*arguments, **more):
    return sum(p.numel() for p in build_without_numbers(*arguments, **more).parameters())


table_5 = {"medium": "201", "medium, BPE": "204", "large": "453"}
totals = {}
for scheme in ("standard", "block", "haares"):
    totals[scheme] = [count("medium", scheme), count("medium", scheme, vocab_size=4096), count("large", scheme)]
totals["haares, MLPs with biases"] = [
    count("medium", "haares", mlp_bias=True), count("medium", "haares", vocab_size=4096, mlp_bias=True),
    count("large", "haares", mlp_bias=True)]  # fmt: skip
print(f"{'millions':26s}" + "".join(f"{name:>14s}" for name in table_5))
for name, row in totals.items():
    print(f"{name:26s}" + "".join(f"{n / 1e6:14.3f}" for n in row))
print(f"{'paper':26s}" + "".join(f"{n:>14s}" for n in table_5.values()))

# %% [markdown]
# Such rounded totals decide little: 201 needs cutting, 204 needs rounding. The finer figures of its Table 5 (chapter
# 01: 201.5, 203.5 and 453.3) decide more: they are those of the *Standard* models without MLP biases, to the digit.
# Routers add 0.1 million and more, biases in the MLPs 0.2 and more. The paper says that "ordinary biases" start at
# zero; its counts speak for MLPs without any, and so does our default. What HAARES adds is $2L$ biases:

# %%
added = (costs.formulas("haares") - costs.formulas("block")).parameters
share = 100 * added.subs(algebra.L, 48) / totals["block"][0]
print(f"HAARES adds {added} parameters to Block: {float(share):.6f} % of the medium model; the paper says < 0.01 %")
print(f"HAARES adds {100 * (totals['haares'][0] / totals['standard'][0] - 1):.3f} % to Standard")
assert share < 0.01


# %% [markdown]
# So "less than 0.01 %" is true by a wide margin, but of the step from Block to HAARES. The router itself, queries and
# key gains, is five hundredths of a percent, which is still next to nothing.
#
# ## Products with matrices
#
# What is a FLOP? The usual convention counts products with matrices only, a multiplication and an addition as two. A
# token that goes through a matrix with $n$ entries costs $2n$ forward, and twice that backward (one product for the
# input's gradient, one for the matrix's). Attention has no parameters, but compares each token with $T$ others and
# mixes $T$ values: $4Td$, counted in full, as if the mask saved nothing. Its backward pass makes five products for
# those two, since the scores are not kept but made again. For the toy above and $T = 3$ tokens, per token:
#
# $$\text{forward } 2\,(2\cdot 160 + 4\cdot 3\cdot 4) + 2\cdot 40 = 816,\qquad
# \text{backward } 2\,(4\cdot 160 + 10\cdot 3\cdot 4) + 4\cdot 40 = 1680.$$

# %%
model = Transformer(ModelConfig(**toy))
tokens = torch.randint(10, (1, 4))  # three inputs, three targets
counted, in_symbols = bench.flops(model, tokens), costs.formulas("standard")
print(f"by hand {3 * (816 + 1680)}, torch's counter {counted}, formula {costs.price(model.config, 3).step(1, 3)}")
assert counted == 3 * (816 + 1680) == costs.price(model.config, 3).step(1, 3)
in_symbols.forward

# %% [markdown]
# And routing? Here one has to look at the code. A plain read scores a source by a product of its unit form with the
# query, $2d$: a product with a vector, which torch's counter leaves out and `bench.flops` adds (so it does for
# attention on a CPU). It mixes by multiplying and adding vectors, which nobody counts: no matrix is involved. The
# lean read of chapter 12 makes the same mixture by matrix products, which count. So a counter can say that the
# cheaper code costs more:

# %%
sizes = dict(layers=6, width=32, heads=2, ff=64, vocab_size=16)
tokens = torch.randint(16, (2, 9))
for scheme in ("block", "haares"):
    for read in ("plain", "lean"):
        config = ModelConfig(**sizes, scheme=scheme, options={"blocks": 4, "read": read})
        counted, by_formula = bench.flops(Transformer(config), tokens), costs.price(config, 8).step(2, 8)
        assert counted == by_formula
        along_depth = by_formula - costs.price(ModelConfig(**sizes), 8).step(2, 8)
        print(f"{scheme:7s} {read:6s} {counted:9d}, of it along depth {along_depth:7d}")

# %% [markdown]
# ## The increments of 0.5, 0.3 and 0.2 percent
#
# The paper reports what HAARES adds to Block in "analytical FLOPs" at 48 layers: 0.5, 0.3 and 0.2 % for widths 128,
# 512 and 768. It does not say how it counted, so we ask which counts give these figures. Per event, HAARES reads
# $5.917 - 3.458 = 2.458$ more sources, matches a detail and writes one. In multiplications and additions:
#
# * *score and mixture* of a source: $2d + 2d$;
# * its *norm*: squares, their sum, scaling, $3d$;
# * *matching* a detail to its $C$: two RMS and a scaling, $5d$ an event;
# * *writing* it: a sign and an addition, $2d$ an event (the first of a block has nothing to add to: $-N d/2L$).

# %%
EXTRA = np.mean(sources_seen([24] * 4, 2)) - np.mean(sources_seen([24] * 4, 1))
PAPER = {"small": "0.5", "medium": "0.3", "large": "0.2"}


def per_event(family, attention):  # FLOPs of an event of the backbone, forward, at T = 512
    d, ff = FAMILIES[family]["width"], FAMILIES[family]["ff"]
    return (2 * (4 * d * d + 3 * d * ff) + attention * 512 * d) / 2 + 2 * 256 * d / 96


matching_and_writing = 5 + 2 - 4 / 96
ways = {  # operations per channel and event, and what attention costs
    "score and mixture": (4 * EXTRA, 4),
    "… and norms": (7 * EXTRA, 4),
    "… and matching and writing": (7 * EXTRA + matching_and_writing, 4),
    "the same, but every detail matched again at each read": (12 * EXTRA + matching_and_writing - 5, 4),
    "the same, but attention at half price for its mask": (7 * EXTRA + matching_and_writing, 2),
    "the same, but without attention's products": (7 * EXTRA + matching_and_writing, 0),
}
rows = {way: {family: 100 * operations * FAMILIES[family]["width"] / per_event(family, attention)
              for family in PAPER} for way, (operations, attention) in ways.items()}  # fmt: skip
table = pd.DataFrame(rows).T
table["agrees"] = [all(f"{row[f]:.1f}" == PAPER[f] for f in PAPER) for row in rows.values()]
table.round(3)

# %% [markdown]
# Exactly one of these six agrees, and it is the honest one: count everything that is done to vectors, and attention in
# full. (Dividing by Block's total instead of the backbone's products, or adding the backbone's own small operations,
# changes the third digit.) `costs` counts it so, operation by operation, and a test holds that to what the plain read
# really executes:

# %%
added = costs.formulas("haares", read="plain") - costs.formulas("block", read="plain")
for family, figure in PAPER.items():
    d = FAMILIES[family]["width"]
    operations = added.operations.subs({algebra.L: 48, algebra.N: 4, algebra.d: d})
    print(f"d = {d}: {100 * float(operations) / (96 * per_event(family, 4)):.3f} %, the paper {figure} %")
added.operations

# %% [markdown]
# How sure can we be that they counted like this? Turn it round. For each width, the printed digit allows a range of
# operations per channel and event, and only what lies in all three ranges is possible:

# %%
ranges = {}
for family, figure in PAPER.items():
    low, high = float(figure) - 0.05, float(figure) + 0.05
    ranges[family] = [share / 100 * per_event(family, 4) / FAMILIES[family]["width"] for share in (low, high)]
    print(f"{family:7s} {ranges[family][0]:5.1f} to {ranges[family][1]:5.1f}")
low, high = max(r[0] for r in ranges.values()), min(r[1] for r in ranges.values())
print(f"in all  {low:5.1f} to {high:5.1f}; ours {ways['… and matching and writing'][0]:.1f}")
assert low < ways["… and matching and writing"][0] < high

# %% [markdown]
# With attention in full, the count must lie within a narrow band, and ours does. That is as much as three digits can
# say: a slightly different list of operations could land there, too. With attention left out, no count at all gives
# the three figures (exercise 11.2). Score and mixture alone give 0.2, 0.1 and 0.1 %; scores alone, the only products
# in a plain read, half of that.
#
# ## What moves
#
# A quarter of a percent more arithmetic, and yet the paper measures 21.4 % more time a step at width 512. The reason is
# that a matrix product does hundreds of operations with each number it loads, and a read over depth does a handful.
# What it costs is the loading. Count in vectors of $d$ numbers, per token and event. If every step of the algorithm
# were one pass, Standard would load $h$ and $u$ and store $h$: 3. A plain read loads each source and stores the
# mixture; a write moves three vectors for one sum, five for two.

# %%
def moved(scheme, **options):  # vectors per token and event, in a forward pass of 48 layers
    return float(costs.formulas(scheme, **options).at(L=48, N=4).traffic) / 96


traffic = {"Standard": moved("standard"), "Block, plain": moved("block", read="plain"), "Block, lean": moved("block"),
           "HAARES, plain": moved("haares", read="plain"), "HAARES, lean": moved("haares"),
           "Full, plain": moved("attnres", read="plain"), "Full, lean": moved("attnres")}  # fmt: skip
print(pd.Series(traffic).round(2).to_string())
assert math.isclose(traffic["Block, plain"], 332 / 96 + 1 + 3 * 92 / 96 + (5 + 1) / 96)  # reads, mixtures, writes, head
added.traffic

# %% [markdown]
# Eager code does not work in passes. It runs one small operation after the other: square, mean, multiply, dot, …, and
# each of them loads its operands and stores its result. `costs.moved_bytes` watches the operations of PyTorch and adds
# up the bytes; views are free. Here is a forward and backward pass of plain reads, in vectors per event:

# %%
def eager(scheme, read, width=128, layers=6):  # vectors per token and event, forward and backward, sublayers included
    sizes = dict(layers=layers, width=width, heads=2, ff=width, vocab_size=16)
    model = Transformer(ModelConfig(**sizes, scheme=scheme, options={"blocks": 4, "read": read}))
    tokens = torch.zeros(2, 5, dtype=torch.long)
    moved = costs.moved_bytes(lambda: bench.loss_of(model, tokens).backward())
    return moved / (4 * width * 2 * 4 * 2 * layers)


few = np.mean(sources_seen([3] * 4, 2)) - np.mean(sources_seen([3] * 4, 1))
per_source = {read: (eager("haares", read) - eager("block", read)) / few for read in ("plain", "lean")}
for read, vectors in per_source.items():
    print(f"{read:5s}: {vectors:4.1f} vectors for each additional source of a read")

# %% [markdown]
# Fifty vectors a source, where one pass forward and two backward would be a handful. Now the paper's Table 13, at
# width 512: $17\text{K} \to 14\text{K}$ tokens per second, in steps of $16 \cdot 512$ tokens. The card is an RTX PRO
# 6000 Blackwell, whose data sheet says 1.79 TB/s. If moving the additional vectors is all there is:

# %%
STEP = 16 * 512
seconds = {name: STEP / rate for name, rate in (("Block", 17e3), ("HAARES", 14e3))}
slower = seconds["HAARES"] - seconds["Block"]
within = STEP / 14.5e3 - STEP / 16.5e3, STEP / 13.5e3 - STEP / 17.5e3  # what the rounding of the rates allows
by_traffic = per_source["plain"] * EXTRA * 96 * STEP * 512 * 4 / 1.79e12
print(f"measured {slower:.3f} s a step ({within[0]:.2f} to {within[1]:.2f} with unrounded rates)")
print(f"by the traffic of eager code {by_traffic:.3f} s")
print(f"by arithmetic {rows['… and matching and writing']['medium'] / 100 * seconds['Block']:.4f} s")
assert within[0] < by_traffic < within[1]

# %% [markdown]
# The arithmetic explains about a hundredth of the additional time, the traffic of eager code all of it. This is our
# code and their clock, so take it as an order of magnitude. But the paper could not say where the time goes, and this
# says where to look: the lean read of chapter 12 moves less than a sixth of it.
#
# ## What is kept
#
# The backward pass needs numbers from the forward pass. `costs` has a formula for how many, per token, and
# `bench.saved_bytes` counts them in a real graph. The two agree exactly; here is the difference between two batches, in
# which all that is kept only once drops out.

# %%
kept = {}
for scheme in ("standard", "block", "haares"):
    for read in ("plain", "lean") if scheme != "standard" else ("",):
        options = {"blocks": 4, "read": read} if read else {}
        config = ModelConfig(**sizes, scheme=scheme, options=options)
        model, batches = Transformer(config), (torch.zeros(b, 5, dtype=torch.long) for b in (2, 3))
        few, more = (sum(bench.saved_bytes(model, tokens).values()) for tokens in batches)
        assert more - few == 4 * 4 * costs.price(config, 4).saved  # 4 tokens of 4 bytes
        medium = costs.price(ModelConfig(layers=48, **FAMILIES["medium"], scheme=scheme, options=options), 512)
        kept[f"{scheme} {read}"] = medium.saved * STEP * 4 / 1e9
print("GB kept in a step of the medium family, from the formula:")
print(pd.Series(kept).round(1).to_string())
print(f"HAARES − Block, plain: {kept['haares plain'] - kept['block plain']:.1f};",
      f"two vectors for each additional source of a read: {2 * 96 * EXTRA * 512 * 4 * STEP / 1e9:.1f}")  # fmt: skip
added.saved

# %% [markdown]
# Weights, gradients and AdamW's two moments take 3.2 GB more, so our plain Block would need about 32 GB and HAARES 38,
# where the paper measures 38 and 45. Its 18.4 % are $45/38 - 1$, as they should be. But the step of 7 GB (6 to 8,
# unrounded) does **not** come out: ours is 5.6. The dearest term is $LNd$: one vector, the unit form, for each source
# of each read. Code that keeps two, say a stacked copy of the bank and its normalised form instead of the sources,
# would need 7.9. Their code is not public, and peak memory also holds what is needed for a moment only.
#
# Everything on one page: what HAARES adds to Block, at width 512, by what one counts.

# %%
sizes_512 = dict(layers=48, **FAMILIES["medium"], options={"read": "plain"})
block, haares = (costs.price(ModelConfig(**sizes_512, scheme=scheme), 512) for scheme in ("block", "haares"))
ratio = {name: getattr(haares, name) / getattr(block, name) - 1 for name in ("parameters", "forward", "traffic")}
bars = {
    "parameters": ratio["parameters"], "products that torch counts": ratio["forward"],
    "all arithmetic": rows["… and matching and writing"]["medium"] / 100,
    "memory (paper, measured)": 45 / 38 - 1, "memory kept, plain read": kept["haares plain"] / kept["block plain"] - 1,
    "time (paper, measured)": 17 / 14 - 1, "traffic along depth, one pass a step": ratio["traffic"],
}  # fmt: skip
fig, axis = plt.subplots(figsize=(7.5, 3.6))
for place, (name, value) in enumerate(reversed(bars.items())):
    look = dict(color=plots.SKY, hatch="//") if "measured" in name else dict(color=plots.ORANGE)
    axis.barh(name, 100 * value, edgecolor="black", linewidth=0.6, **look)
    digits = max(0, 1 - math.floor(math.log10(100 * value)))
    axis.annotate(f"{100 * value:.{digits}f} %", (115 * value, place), va="center", fontsize=9)
axis.set(xscale="log", xlim=(1e-5, 400), xlabel="percent, logarithmic", title="What HAARES adds to Block, d = 512")
plots.show(
    fig,
    alt="Horizontal bars on a logarithmic axis: what HAARES adds to Block at width 512, in percent. Parameters "
    "0.00005, products that torch counts 0.05, all arithmetic 0.26, measured memory 18, memory kept 19, measured time "
    "21, traffic along depth 61. Two bars, the paper's measured ones, are hatched.",
)

# %% [markdown]
# Six orders of magnitude, and every one of these numbers is right. Which one to quote depends on what runs short.
#
# ## Checking the arithmetic of a paper
#
# Counting is not only for architectures. Three more of the paper's claims can be recomputed from what it prints.
#
# **Perplexities** (Table 21). The paper corrects three of them: $e^{\text{loss}}$ of the losses is not what had been
# reported. And it says that rounding the loss to four places cannot explain the difference.
#
# **Time to a target** (Table 14). HAARES first reaches each seed's Block target at 24K, 20K and 14K steps, and runs at
# 14K tokens a second. Block takes its whole budget, 30K steps, at 17K. And while we are at it, the relative figures of
# Table 13, which are made of the same rounded measurements.

# %%
corrected = {"1.7816": "5.94", "1.7895": "5.99", "1.8226": "6.19"}
for loss, once in zip(corrected, ("5.93", "5.98", "6.18"), strict=True):
    lowest = math.exp(float(loss) - 0.00005)
    assert lowest > float(once) + 0.005, "no loss that rounds to this has the perplexity once printed"
perplexities = {f"perplexity of {loss}": math.exp(float(loss)) for loss in corrected}

hours = {steps: steps * 1e3 * STEP / 14e3 / 3600 for steps in (24, 20, 14)}
budget, mean = 30e3 * STEP / 17e3 / 3600, np.mean(list(hours.values()))
printed = {f"perplexity of {loss}": value for loss, value in corrected.items()}
printed |= {"24K steps, hours": "3.90", "20K steps, hours": "3.25", "14K steps, hours": "2.28", "their mean": "3.14",
            "Block's 30K steps": "4.02", "saving, percent": "21.7",
            "step of Block, s": "0.482", "step of HAARES, s": "0.585", "time, percent": "21.4",
            "memory, percent": "18.4"}  # fmt: skip
ours = perplexities | {f"{steps}K steps, hours": h for steps, h in hours.items()}
ours |= {"their mean": mean, "Block's 30K steps": budget, "saving, percent": 100 * (1 - mean / budget),
         "step of Block, s": seconds["Block"], "step of HAARES, s": seconds["HAARES"],
         "time, percent": 100 * (17 / 14 - 1), "memory, percent": 100 * (45 / 38 - 1)}  # fmt: skip
rebuilt = side_by_side(printed, ours)
assert rebuilt["agrees"].all()
rebuilt

# %% [markdown]
# All of it comes out. But note what goes in: the token rates cancel down to
# $1 - \frac{24 + 20 + 14}{3\cdot 30}\cdot\frac{17}{14}$, and the 17 and 14 have two digits. A rate of 17K is
# anything from 16.5K to 17.5K:

# %%
steps = (24 + 20 + 14) / (3 * 30)
for block, haares in ((16.5, 14.5), (17.5, 13.5)):
    print(f"{block}K and {haares}K: {100 * (block / haares - 1):4.1f} % more time a step,"
          f" {100 * (1 - steps * block / haares):4.1f} % saved")  # fmt: skip

# %% [markdown]
# So "21.7 %" is something between 16.5 and 26.7 by its own inputs, and it compares with the *whole* budget of the
# baseline. What the baseline itself needed to reach its best loss is not recorded, and that would be the fair price.
#
# ## Six losses from four statistics
#
# Table 7 holds the losses of the main comparison, seed by seed. Suppose it were lost (in the plain text from which this
# book was written, the tables' bodies are), and only the text around it were left. It says: Block has mean 1.8057 and
# sample standard deviation 0.0136, HAARES 1.7744 and 0.0095, and the gains of the seeds 42, 123 and 2026 are 0.0168,
# 0.0322 and 0.0449. Can we get the six losses back? If you have the paper at hand, you can check.
#
# Let $x$ be the three deviations of Block's losses from their mean, and $\gamma$ those of the gains. HAARES's
# deviations are $x - \gamma$. So
#
# $$x_1 + x_2 + x_3 = 0,\qquad |x|^2 = 2\cdot 0.0136^2,\qquad |x - \gamma|^2 = 2 \cdot 0.0095^2.$$
#
# The first is a plane, the other two are circles in it, and **two circles meet in two points**: mirror images in the
# line through their centres. One more fact is needed to choose. (HAARES's mean is no such fact: it follows from
# Block's and the gains.)

# %%
gains = np.array([0.0168, 0.0322, 0.0449])
gamma = gains - gains.mean()
along = gamma / np.linalg.norm(gamma)
across = np.cross(np.ones(3) / 3**0.5, along)  # in the plane, at a right angle to `along`
radius, other = 2**0.5 * 0.0136, 2**0.5 * 0.0095
forward = (radius**2 + gamma @ gamma - other**2) / (2 * np.linalg.norm(gamma))
sideways = (radius**2 - forward**2) ** 0.5
meetings = [1.8057 + forward * along + side * sideways * across for side in (1, -1)]
for name, block in zip("AB", meetings, strict=True):
    print(f"{name}: Block {block.round(4)}, HAARES {(block - gains).round(4)}")

# %% [markdown]
# The paper also says when HAARES first reaches each seed's Block target, and at which loss: 1.7961, 1.7835 and 1.8131.
# To reach a target is to be at or below it. So Block's losses are at least these, and that rules out B: its 1.7904 lies
# below 1.7961, its 1.8102 below 1.8131.
#
# Is A the only solution once rounding is taken into account? Losses are printed with four decimals, and the gains are
# differences of printed losses. So the unknowns are **whole numbers** in units of 0.0001, and we can try all of them.
# There are three means that round to 1.8057; the third loss follows from the other two.

# %%
def all_triples(slack):  # Block losses in units of 0.0001 that fit all statistics, up to half a unit and `slack` more
    first, second = np.meshgrid(np.arange(17500, 18600), np.arange(17500, 18600), indexing="ij")
    found = []
    for total in range(3 * 18057 - 5, 3 * 18057 + 6):
        block = np.stack([first, second, total - first - second], axis=-1)
        haares = block - np.array([168, 322, 449])
        fits = np.ones(first.shape, dtype=bool)
        for losses, mean, deviation in ((block, 18057, 136), (haares, 17744, 95)):
            fits &= abs(losses.mean(-1) - mean) <= 0.5 + slack
            fits &= abs(losses.std(-1, ddof=1) - deviation) <= 0.5 + slack
        found.append(block[fits])
    return np.concatenate(found)


for slack in (0, 1):
    found = all_triples(slack)
    reached = (found >= [17961, 17835, 18131]).all(-1)
    block = found[reached] / 1e4
    print(f"slack {slack}: {len(found)} triples, of which {reached.sum()} respect the crossings.",
          f"Block {block.min(0)} to {block.max(0)}, HAARES {(block - gains).min(0).round(4)} to",
          f"{(block - gains).max(0).round(4)}")  # fmt: skip
    assert abs(block - meetings[0]).max() < 0.0005 and abs(found[~reached] / 1e4 - meetings[1]).max() < 0.0005

# %% [markdown]
# If the statistics were computed from the printed losses, only four triples remain, equal up to a unit in the fourth
# place. They may have been computed from longer numbers. Rounding moves each loss by half a unit at most, so a mean by
# half a unit and a standard deviation by $\sqrt{3/8} \approx 0.61$, less than our slack of one, and every loss is still
# known to ±0.0004. The search is exhaustive, so it is a proof: **the six losses of Table 7 are determined, up to
# rounding, by the running text.**
#
# Two checks with facts we have not used. A HAARES run must end at or below its own crossing. And the paper prints a
# mean perplexity of 6.09 for Block, with the warning that it is not $e^{1.8057} = 6.08$.

# %%
block = all_triples(0)[(all_triples(0) >= [17961, 17835, 18131]).all(-1)] / 1e4
assert (block - gains <= [1.7961, 1.7835, 1.8131]).all()
for name, losses in (("A", block), ("B", meetings[1][None])):
    perplexity = np.exp(losses)
    print(f"{name}: mean perplexity {perplexity.mean():.4f}, mean of perplexities rounded to two places",
          np.unique(perplexity.round(2).mean(-1).round(4)))  # fmt: skip

# %% [markdown]
# The first holds. As for the second, the mean of the exact perplexities is 6.08 for either solution; the mean of the
# *rounded* ones is 6.09 for A and 6.08 for B. So A it is, if the paper averaged the perplexities that it prints.

# %%
fig, axis = plt.subplots(figsize=(5.6, 4.6))
angle = np.linspace(0, 2 * np.pi, 200)
for centre, r, look in ((0, radius, "block"), (np.linalg.norm(gamma), other, "haares")):
    style = {key: plots.SCHEME_STYLE[look][key] for key in ("color", "linestyle")}
    label = f"spread of {plots.SCHEME_STYLE[look]['label']}"
    axis.plot(1e3 * (centre + r * np.cos(angle)), 1e3 * r * np.sin(angle), **style, label=label)
    axis.plot(1e3 * centre, 0, "+", color=style["color"])
for name, side in (("A", 1), ("B", -1)):
    axis.plot(1e3 * forward, side * 1e3 * sideways, "o", color="black", fillstyle="full" if side > 0 else "none")
    axis.annotate(f"  {name}", (1e3 * forward, side * 1e3 * sideways))
# Grey: where Block's losses are no lower than the losses at which HAARES is said to have reached them.
f, s = np.meshgrid(np.linspace(-0.022, 0.036, 300), np.linspace(-0.025, 0.027, 300))
losses = 1.8057 + f[..., None] * along + s[..., None] * across
axis.contourf(1e3 * f, 1e3 * s, (losses >= [1.7961, 1.7835, 1.8131]).all(-1), levels=[0.5, 1.5], colors=["0.88"])
axis.legend(loc="lower right", fontsize=9)
axis.set(xlim=(-22, 36), ylim=(-25, 27), aspect="equal", xlabel="along the gains' deviations, in 0.001 nats",
         ylabel="across", title="Two standard deviations are two circles")  # fmt: skip
plots.show(
    fig,
    alt="Two circles in the plane of deviations, a dashed one around the origin for Block and a smaller one to its "
    "right for HAARES. They meet in two points, A above and B below, mirror images of each other. A grey wedge, where "
    "the crossings allow Block's losses to be, holds A and not B.",
)

# %% [markdown]
# ## What we found
#
# * Mean, peak and final source counts have closed forms, proved for every depth; Table 3 comes out, and it shows that
#   the paper's blocks have no slot before their first write.
# * The parameters of Table 5 are those of Standard models whose MLPs have no biases. "Less than 0.01 %" is right with
#   room to spare.
# * The FLOP increments 0.5, 0.3 and 0.2 % come out if *all* vector arithmetic of reads and writes counts, and
#   attention in full; score and mixture alone give less than half of it.
# * Arithmetic is not what costs. The traffic of eager code is of the size of the measured slow-down.
# * Perplexities, hours and percentages of Tables 13, 14 and 21 come out as far as we could recompute them; the digits
#   of 21.4 and 21.7 % are more than their inputs warrant. The 7 GB of additional memory do not come out: our plain read
#   keeps 5.6.
# * The six losses of Table 7 are determined by the text, up to rounding.
#
# ## What this does not show
#
# What anything costs on *your* machine: that is measured, not counted (chapter 12). The estimate of the time compares
# our eager code with their clock, and takes no notice of caches, launches, or what runs beside what. That a way of
# counting gives the paper's figures does not prove that it was theirs. And that losses follow from statistics does not
# make the statistics right.
#
# ## Exercises
#
# ### Exercise 11.1 · Half a source
# *Easy, 10 minutes.* HAARES with four blocks and Block with eight have the same peak, 9. Their means at 48 layers are
# 5.917 and 5.417. Is the difference of exactly one half an accident? Show it for $N$ and $2N$ blocks and any depth.
#
# <details><summary>Answer</summary>
#
# HAARES: $1 + (N - 1) + 2 - N/L = N + 2 - N/L$. Block with $2N$: $1 + (2N - 1)/2 + 1 - N/L = N + 3/2 - N/L$. The
# difference is $1/2$ for every $L$ and $N$: an early half is a block of its own in one scheme, and in the other a pair
# of slots.
#
# ```python
# half = forms["mean"].subs(algebra.g, 2) - forms["mean"].subs({algebra.g: 1, algebra.N: 2 * algebra.N})
# assert half.simplify() == algebra.sp.Rational(1, 2)
# ```
# </details>
#
# ### Exercise 11.2 · No count will do
# *Medium, 15 minutes.* Suppose the paper had left attention's products out of the backbone's FLOPs. Show that then no
# number of operations per channel and event gives 0.5, 0.3 and 0.2 %. What if attention counts half?
#
# <details><summary>Answer</summary>
#
# Intersect the three ranges. Without attention the small family allows at most 19.7 and the medium one at least 20.5.
# At half price there is a band, 21.8 to 22.6, but our list of operations, 24.2, is not in it.
#
# ```python
# def band(attention):
#     ends = [[(float(x) + e) / 100 * per_event(f, attention) / FAMILIES[f]["width"] for e in (-0.05, 0.05)]
#             for f, x in PAPER.items()]
#     return max(low for low, _ in ends), min(high for _, high in ends)
#
#
# assert band(0)[0] > band(0)[1]
# assert 21.7 < band(2)[0] < band(2)[1] < 22.7 and band(4)[0] < 24.2 < band(4)[1]
# ```
# </details>
#
# ### Exercise 11.3 · Long blocks first?
# *Medium, 15 minutes.* Blocks need not be equal. For 96 events in four blocks, which lengths make a HAARES read see the
# fewest sources on average, and which the most? Guess, then count. Would you use the cheapest?
#
# <details><summary>Answer</summary>
#
# Event $r$ of block $n$ sees the $n - 1$ blocks before its own, so events should come early: a long first block, and
# three blocks of one event at the end, 3.04 sources. The other way round, 8.79. The cheapest partition hardly keeps
# anything apart: nearly all reads see the embedding and one running pair.
#
# ```python
# assert round(np.mean(sources_seen([93, 1, 1, 1], 2)), 2) == 3.04
# assert round(np.mean(sources_seen([1, 1, 1, 93], 2)), 2) == 8.79
# few, many = (costs.formulas("haares", read="plain", blocks=b).at(L=48, d=512) for b in ((93, 1, 1, 1), (1, 1, 1, 93)))
# assert few.operations < many.operations
# ```
# </details>
#
# ### Exercise 11.4 · The ablation's losses
# *Medium, 10 minutes.* HAARES beats the duplicate-$C$ control by 0.0124, 0.0117 and 0.0070 in the three seeds
# (section 7.2). What are the control's losses, and does their mean agree with Table 12, 1.7848? By how much does it
# beat Block in each seed?
#
# <details><summary>Answer</summary>
#
# About 1.7951, 1.7758 and 1.7834. The mean is 1.7848, so these numbers hang together. Over Block it gains 0.0044,
# 0.0205 and 0.0379: much of what HAARES gains, very unequally over the seeds.
#
# ```python
# duplicate = meetings[0] - gains + [0.0124, 0.0117, 0.0070]
# assert round(duplicate.mean(), 4) == 1.7848
# assert (abs(meetings[0] - duplicate - [0.0044, 0.0205, 0.0379]) < 1e-4).all()
# ```
# </details>
#
# ### Exercise 11.5 · A price for a scheme of your own
# *Hard, 30 minutes.* The package's costs know a scheme by one function. Write it for the scheme of exercise 4.5,
# $h \leftarrow h + u/\sqrt L$, enter it, and find the cheapest way to check each of its numbers against a model.
#
# <details><summary>Answer</summary>
#
# Two operations per channel and event, three vectors moved, no parameters, no products, nothing kept (the gradient of a
# constant multiple needs the constant only).
#
# ```python
# from minihaares.model import SCHEMES, Standard
#
#
# class Scaled(Standard):
#     def write(self, state, event, output):
#         return state + output * (len(model.sublayers) / 2) ** -0.5  # 1/√L
#
#
# SCHEMES["scaled"] = (Scaled, {})
# L, d = algebra.L, algebra.d
# costs.ALONG_DEPTH["Scaled"] = lambda options, events: costs.Costs(operations=4 * L * d, traffic=6 * L)
# model = Transformer(ModelConfig(**sizes, scheme="scaled"))
# price, tokens = costs.price(model.config, 8), torch.randint(16, (3, 9))
# assert price.parameters == sum(p.numel() for p in model.parameters())
# assert price.step(3, 8) == bench.flops(model, tokens)
# few, more = (sum(bench.saved_bytes(model, tokens[:n]).values()) for n in (2, 3))
# assert more - few == 4 * 8 * price.saved
# ```
# </details>
#
# ## Further reading
#
# * HAARES, arXiv 2606.06564, sections 4.5, 5.2 and 8, and its appendix: the tables rebuilt here.
# * Attention Residuals, arXiv 2603.15031: memory traffic per layer for the standard stream, full and block routing,
#   and the two-phase schedule that lowers it.
# * Scaling Laws for Neural Language Models, arXiv 2001.08361: the convention of counting products with matrices only.
# * FlashAttention, arXiv 2205.14135: traffic, not arithmetic, decides; and a backward pass that makes scores again.
# * Data Movement Is All You Need, arXiv 2007.00072: where the time of a Transformer's small operations goes.
