# %% [markdown]
# # 00 · Start here: what is this, how do I run it, what will I be able to build?
#
# Every layer of a Transformer adds its output to one running sum, the **residual stream**, and every later layer sees
# nothing but that sum. This book asks what such a sum forgets, and follows one answer in full: *HAARES* (half-split
# residual basis routing, arXiv 2606.06564), in which each block of layers keeps its sum **and** the difference
# between its early and its late half, and every layer chooses what it reads. The way there leads from a minimal
# Transformer past all the ideas it takes, each built in a few plain lines and held to the package `minihaares`, which
# trains the models.
#
# > **You will build** here: a residual stream in two lines, and a second one that remembers more.
# >
# > **You will learn** what the book is about, how it is organised, how to run it, and where the answers are.
# >
# > **You need** Python. For the chapters after this one, some PyTorch, and for a few of them some linear algebra.
# >
# > **Runs in** about 6 seconds on 2 cores, without a network.

# %%
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

from minihaares import plots, stories
from minihaares.data import train_char
from minihaares.model import FAMILIES, ModelConfig, Transformer

plots.use_style()

# %% [markdown]
# ## The question, in a toy
#
# Take a network with four layers that each write two numbers. One network goes along first and then up, the other goes
# up first and then along:
#
# | | layer 1 | layer 2 | layer 3 | layer 4 | sum |
# |---|---|---|---|---|---|
# | along, then up | $(2, 0)$ | $(1, 0)$ | $(0, 1)$ | $(0, 2)$ | $(3, 3)$ |
# | up, then along | $(0, 2)$ | $(0, 1)$ | $(1, 0)$ | $(2, 0)$ | $(3, 3)$ |
#
# Very different lives, one sum. Whoever reads only the sum cannot tell them apart, and no amount of training can
# change that: the information is gone.

# %%
trajectories = {
    "along, then up": torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]),  # [layers, channels]
    "up, then along": torch.tensor([[0.0, 2.0], [0.0, 1.0], [1.0, 0.0], [2.0, 0.0]]),
}


def stream(outputs):  # what a residual stream holds after each layer: the sum so far
    return outputs.cumsum(dim=0)


def sum_and_difference(outputs):  # HAARES keeps both, C and D
    early, late = outputs.chunk(2)
    return early.sum(0) + late.sum(0), early.sum(0) - late.sum(0)


for name, outputs in trajectories.items():
    C, D = sum_and_difference(outputs)
    assert torch.equal(C, stream(outputs)[-1])
    print(f"{name}: sum {C.tolist()}, difference {D.tolist()}")

# %%
fig, (walks, pairs) = plt.subplots(1, 2, figsize=(9, 3.9), width_ratios=(1.25, 1))
for (name, outputs), (colour, line) in zip(trajectories.items(), ((plots.BLACK, "-"), (plots.BLUE, "--")), strict=True):
    way = torch.cat((torch.zeros(1, 2), stream(outputs)))
    walks.plot(*way.T, color=colour, linestyle=line, marker="o", label=name)
    walks.annotate("half-way", way[2], (8, -4) if way[2, 0] > way[2, 1] else (8, 6), textcoords="offset points")
    C, D = sum_and_difference(outputs)
    pairs.annotate("", D, (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "linestyle": line, "lw": 1.8})
    pairs.annotate(f"$D$: {name}", D, (0, 6 if D[1] > 0 else -14), textcoords="offset points", ha="center")
pairs.annotate("", C, (0, 0), arrowprops={"arrowstyle": "-|>", "color": "0.5", "lw": 3})
pairs.annotate("$C$: both", C, (-4, 8), textcoords="offset points", ha="center")
walks.set(title="Two ways to one sum", xlim=(-0.4, 4.1), ylim=(-0.5, 3.5))
pairs.set(title="The sum is one, the difference tells", xlim=(-4.8, 4.8), ylim=(-4.2, 4.2))
for axis in (walks, pairs):
    axis.set(aspect="equal", xlabel="channel 1", ylabel="channel 2")
walks.legend(loc="center")
plots.show(
    fig,
    alt="Left: two walks of four steps from the origin to the same corner (3, 3), one along the bottom and up the "
    "right side, the other up the left side and along the top; their half-way points are opposite corners. Right: as "
    "arrows, both walks have the same sum C, pointing up right, while their differences D of early and late half "
    "point in opposite directions, down right and up left.",
)

# %% [markdown]
# With the sum $C$ and the difference $D$ one gets both halves back, $\tfrac12(C + D)$ and $\tfrac12(C - D)$. That is
# the smallest step beyond the plain sum: two vectors where there was one. It is not everything. Exchange the
# first two layers, and neither $C$ nor $D$ notices.

# %%
outputs = trajectories["along, then up"]
C, D = sum_and_difference(outputs)
assert torch.equal((C + D) / 2, outputs[:2].sum(0)) and torch.equal((C - D) / 2, outputs[2:].sum(0))
exchanged = outputs[[1, 0, 2, 3]]
assert all(torch.equal(a, b) for a, b in zip(sum_and_difference(exchanged), (C, D), strict=True))
print("both halves are back; the order inside a half is not")

# %% [markdown]
# Whether a deep network is any better for it is an experiment, and the second half of the book is about doing that
# experiment so that one can believe the answer, whichever it is.
#
# ## The same in the package
#
# In `minihaares` a **residual scheme** is a plug-in part of one Transformer. It answers four questions: how the stream
# begins, what a layer reads, what becomes of what it writes, and what the head sees in the end. Three schemes go
# through the whole book. They start from equal weights and differ by less than one percent of their parameters.

# %%
tokens = torch.arange(16)[None]  # [1, 16]
standard = None
for scheme, idea in {
    "standard": "the plain sum",
    "block": "a sum for each block of layers, and every layer chooses among them",
    "haares": "sum and difference for each block, and every layer chooses among them",
}.items():
    model = Transformer(ModelConfig(layers=12, scheme=scheme, **FAMILIES["pocket"]), seed=42)
    parameters = sum(p.numel() for p in model.parameters())
    standard = standard or parameters
    assert model(tokens).shape == (1, 16, 256) and parameters < 1.01 * standard
    print(f"{scheme:9s} {parameters:,} parameters: {idea}")

# %% [markdown]
# ## What you will be able to build
#
# * A Transformer with rotary positions, SwiGLU and a key–value cache, from matrix products (01).
# * A tokenizer, an n-gram to compare with, and text whose best possible loss is known (02); a training loop that can be
#   killed and resumed without a trace (03).
# * Attention over depth, Block Attention Residuals and HAARES, with their proofs (04 to 10), and a version that needs
#   hardly more memory than the plain stream (11, 12).
# * Later, experiments with paired seeds, ablations and a bill (13 to 16); other streams, wider and denser,
#   and your own behind the same four questions (17 to 20).
#
# ## The map
#
# | # | chapter | the question it answers |
# |---|---|---|
# | | *the ground* | |
# | 01 | [Transformer](01_transformer.ipynb) | what is the smallest Transformer that is not a toy? |
# | 02 | [text](02_text.ipynb) | what is a token, what is a record, and how low can the loss go? |
# | 03 | [training](03_training.ipynb) | what does the paper's recipe do, and how do I know a run is right? |
# | | *the stream* | |
# | 04 | [residual streams](04_residual_streams.ipynb) | what does a residual connection carry along depth? |
# | 05 | [attention over depth](05_attention_over_depth.ipynb) | can a layer choose what it reads? |
# | | *the idea* | |
# | 06 | [what a sum forgets](06_what_a_sum_forgets.ipynb) | which trajectories does a block sum confuse? |
# | 07 | [sum and difference](07_sum_and_difference.ipynb) | how little extra recovers both halves? |
# | 08 | [the online algorithm](08_the_online_algorithm.ipynb) | in what order does HAARES read and write? |
# | 09 | [routed mixtures](09_routed_mixtures.ipynb) | what can nonnegative weights make of a sum and a difference? |
# | 10 | [the duplicate slot](10_the_duplicate_slot.ipynb) | what does an extra slot do when it holds nothing new? |
# | | *the cost* | |
# | 11 | [counting the cost](11_counting_the_cost.ipynb) | what does it cost on paper? |
# | 12 | [the same read for less](12_the_same_read_for_less.ipynb) | what does it cost to run, and must it? |
# | | *the experiment* | |
# | 13 | small models | does it help, at which depth? |
# | 14 | ablations | which part does the work? |
# | 15 | the bill | when is it worth it? |
# | 16 | looking inside | what do trained routers do with the detail? |
# | | *beyond* | |
# | 17 | wider streams | what if the stream is wider than the layer? |
# | 18 | denser streams | what if layers read many states? |
# | 19 | scaling | what does "1.30× FLOPs efficiency" mean, and can a laptop see it? |
# | 20 | open questions | what would you try next? |
#
# A chapter without a link is still to come. Each says what it needs from the others. Three ways through: *the idea in
# an evening*, 05 to 08; *the proofs*, 06, 07, 09 and 10; *the craft*, 01 to 03, 11 and 12.
#
# ## How to run it
#
# All commands are given in the folder that holds the `Makefile`. The first call installs what it needs into `.venv`.
#
# | command | what happens |
# |---|---|
# | `make demo` | three residual schemes train side by side on built-in stories: about three minutes on two cores |
# | `make lab` | JupyterLab opens in the folder of the chapters |
# | `make test` | all checks: unit tests, and every cell of every chapter against its stored output |
# | `make book` | builds these chapters as a web site that needs no network |
# | `make` | lists the rest |
#
# The package is a command, too: `.venv/bin/minihaares`, or just `minihaares` once you have typed
# `source .venv/bin/activate`. Each command explains its options with `--help`.
#
# ```text
# minihaares demo                                   what make demo does
# minihaares train --scheme haares --layers 12      train a model; the same command goes on where it stopped
# minihaares sample FOLDER --prompt "One day"       let a trained model write
# minihaares doctor                                 what is installed and found here, and what to put right
# ```
#
# A chapter exists twice, as `NN_title.py` (the source, plain Python with cells) and as `NN_title.ipynb` (made from it,
# with outputs). In JupyterLab open either with a double click, and run cell after cell with Shift-Enter, or all of it
# with *Run, Restart Kernel and Run All Cells*. Change things: nothing you break in a notebook breaks the package.
#
# Is everything in place on your computer? This cell tries the parts that the chapters need.

# %%
def trains():  # a few steps on one sentence must lower the loss
    torch.manual_seed(0)
    text = stories.write_stories(1, seed=42)[0].text
    ids = torch.from_numpy(train_char([text]).encode(text)).long()[None]
    model = Transformer(ModelConfig(layers=1, width=32, heads=2, ff=64), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] < losses[0] - 1


def writes():
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "é.txt").write_text("ü", encoding="utf-8")
        return (Path(folder) / "é.txt").read_text(encoding="utf-8") == "ü"


# %%
weights = [Transformer(ModelConfig(layers=1, width=32, heads=2), seed=7).embed.weight for _ in range(2)]
checks = {
    "Python is 3.11 or newer": sys.version_info >= (3, 11),
    "PyTorch trains a small model": trains(),
    "equal seeds give equal weights": torch.equal(*weights),
    "the built-in stories can be written": len(stories.write_stories(10, seed=1)) == 10,
    "temporary files can be written": writes(),
}
for name, fine in checks.items():
    print("yes" if fine else "NO ", name)
assert all(checks.values()), "something is missing: run `make test`, it says more"

# %% [markdown]
# ## How to read a chapter
#
# * The **box** at the top says what you build and learn, what you need, and how long it runs.
# * A chapter starts with a case small enough for a pencil. Do it with one; it is the quickest way in.
# * A line that begins with `equal:` means that an assertion has just compared two ways to one result, mostly our few
#   lines and the package; for parts of a model outputs *and* gradients. Nothing is taken on trust, and a chapter
#   whose assertion fails does not run to its end.
# * **Wrong turns** are shown on purpose. They are the mistakes that people make, with the check that finds them.
# * Numbers in the text come from the cells around them, or from recorded runs whose command is given; a few were
#   measured once on real text, and say so. Numbers from the paper are cited with their table.
# * *What this does not show* is meant seriously.
#
# **Exercises** stand at the end of each chapter, with a difficulty (easy, medium, hard) and a number of minutes.
# Answers are folded: click on *Answer*. Code in an answer goes on where the chapter ends, so paste it into a new cell
# below the last one; its assertions tell you that it works. Course work that grades itself is in
# `chapters/assignments`.
#
# ### Words and letters
#
# | | |
# |---|---|
# | event | one sublayer, attention or MLP; a model with $L$ layers has $2L$ of them |
# | block | one of $N$ stretches of $m = 2L/N$ consecutive events, of which $k = \lceil m/2\rceil$ are its early half |
# | $u$ | what an event writes |
# | $E, F$ | the sums of a block's early and late half |
# | $C, D$ | their sum $E + F$ (the cumulative source) and their difference $E - F$ (the detail) |
# | $B, T, d, V$ | sequences in a batch, tokens in a sequence, channels of the stream, entries of the vocabulary |
# | nat | the unit of a loss with natural logarithms; $\log 2 \approx 0.693$ nats are one bit |
# | floor | the lowest loss that is possible on average; known exactly for the built-in stories (02) |
#
# ## What we found
#
# * Two different histories can have one sum; then whoever sees the sum alone cannot tell them apart.
# * Sum and difference together give both halves back, and nothing about the order inside a half.
#
# ## What this does not show
#
# That a real network has anything worth remembering in its halves. The toy was made up so that the difference matters.
#
# ## Exercises
#
# ### Exercise 0.1 · A third way
# *Easy, 5 minutes.* Find a trajectory of four layers with the sum $(3, 3)$ whose difference is zero. What would its
# half-way point be?
#
# <details><summary>Answer</summary>
#
# $D = 0$ means that both halves add up to the same, so each is half of the sum: $(1.5, 1.5)$. Every trajectory with
# this half-way point will do, for example one that goes straight.
#
# ```python
# straight = torch.full((4, 2), 0.75)
# C, D = sum_and_difference(straight)
# assert C.tolist() == [3, 3] and D.tolist() == [0, 0] and stream(straight)[1].tolist() == [1.5, 1.5]
# ```
# </details>
#
# ### Exercise 0.2 · What would it take?
# *Medium, 10 minutes.* Sum and difference cannot see an exchange of the first two layers. What is the least number of
# vectors from which all four outputs can be recovered, and what would you store?
#
# <details><summary>Answer</summary>
#
# Four, if what is stored is a linear function of the outputs: with three, it takes $4d$ numbers to $3d$, so some
# outputs must share a result. One choice that goes on in the spirit of the halves: $C$, $D$, and inside each half
# once more the difference, $u_1 - u_2$ and $u_3 - u_4$. That is a Haar transform, and the pair $(C, D)$ is its
# coarsest step (chapter 07); storing $u_1, \dots, u_4$ themselves is full Attention Residuals (chapter 05).
#
# ```python
# haar = torch.tensor([[1.0, 1, 1, 1], [1, 1, -1, -1], [1, -1, 0, 0], [0, 0, 1, -1]])
# assert torch.linalg.matrix_rank(haar) == 4
# assert torch.allclose(torch.linalg.solve(haar, haar @ outputs), outputs)
# ```
# </details>
#
# ### Exercise 0.3 · Break something
# *Easy, 5 minutes.* Change `early.sum(0) - late.sum(0)` in `sum_and_difference` to a plus, and run this chapter
# again. Which cell notices? Put it back.
#
# <details><summary>Answer</summary>
#
# The first cell runs, but prints equal sums and differences; the picture draws $D$ on top of $C$; the cell after it
# fails, for the halves do not come back. A picture shows that something is odd, an assertion says so.
#
# ```python
# early, late = outputs.chunk(2)
# wrong_D = early.sum(0) + late.sum(0)
# assert not torch.equal((C + wrong_D) / 2, early.sum(0))
# ```
# </details>
#
# ## Further reading
#
# * HAARES, arXiv 2606.06564: the paper that this book takes apart.
# * Attention Residuals, arXiv 2603.15031: layers that choose what they read, and the parent of HAARES.
# * Deep Residual Learning for Image Recognition, arXiv 1512.03385: where the running sum comes from.
# * Attention Is All You Need, arXiv 1706.03762: the Transformer.
