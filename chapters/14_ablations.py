# %% [markdown]
# # 14 · Ablations: which part does the work?
#
# HAARES adds several things to Block Attention Residuals at once: a second slot a block, a difference in it, a scale
# for that difference, and a bias that starts low. An ablation takes one of them away, or puts something in its place
# that should *not* help, and trains again. This chapter builds the paper's ablations (arXiv 2606.06564, section 7) as
# what they are here, options of one class, checks that the details are what they are said to be, and reads the recorded
# runs.
#
# > **You will build** the details of four ablations by hand, and a test that the package's are the same.
# >
# > **You will learn** what a control is, why a good control can be worth more than the method, and how many comparisons
# > with three seeds each fool a reader.
# >
# > **You need** chapters 08, 10 and 13.
# >
# > **Runs in** about 10 seconds on one core, without a network.

# %%
import contextlib
import io
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from minihaares import depth_read, experiments, findings, pictures, plots
from minihaares.data import load_corpus
from minihaares.model import ModelConfig, Transformer

plots.use_style()
pd.set_option("display.width", 120)
records, base = findings.read(), findings.setting("headline")

# %% [markdown]
# ## One class, one option each
#
# | arm | what is changed | what it asks |
# |---|---|---|
# | `duplicate` | the detail is $C$ once more | is it the slot, or what is in it? |
# | `random sign` | $D = \sum_r s_r u_r$, $s_r = \pm1$ by a coin, then fixed | some contrast, or early against late? |
# | `no match` | $\hat D = D$, whatever its size | does the scale matter? |
# | `bias 0`, `−2`, `−4` | the detail's score offset is fixed, not learned | must the router learn how much to listen? |
# | `N = 6`, `8` | shorter blocks | does a shorter block leave less to tell apart? |
#
# A claim about an ablation is a claim about code. So before any training: four events of a single block, written by
# hand, against what the package's state holds. (Fixed biases and block counts are plain numbers. `phase`, attention
# minus MLP, is a detail that the paper drops.)

# %%
generator = torch.Generator().manual_seed(0)
# four events of one block, [1, 1, 8] each
u = torch.randn(4, 1, 1, 8, generator=generator, dtype=torch.float64)
e = torch.randn(1, 1, 8, generator=generator, dtype=torch.float64)


def sources(**options):
    """The sources that the next read would see after the four events."""
    sizes = dict(vocab_size=8, layers=2, width=8, heads=1, ff=8)
    config = ModelConfig(**sizes, scheme="haares", options={"blocks": 1} | options)
    residual = Transformer(config).double().residual
    state = residual.begin(e)
    for event in range(4):
        _, state = residual.read(state, event)
        state = residual.write(state, event, u[event])
    return residual.sources(state)


# %%
def rms(x):
    return x.square().mean().sqrt()


C = u.sum(0)
D = u[0] + u[1] - u[2] - u[3]
by_hand = {
    "haares": ({}, D * (rms(C) / (rms(D) + 1e-6)).clamp(1 / 4, 4)),
    "duplicate": ({"detail": "duplicate"}, C),
    "no match": ({"match": "none"}, D),
    "phase": ({"detail": "phase", "match": "none"}, u[0] - u[1] + u[2] - u[3]),  # attention − MLP
}
for name, (options, detail) in by_hand.items():
    seen = sources(**options)
    assert len(seen) == 3, name  # e, C and the detail
    torch.testing.assert_close(seen[1], C, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(seen[2], detail, rtol=1e-12, atol=1e-12)
print("the package's sources are those written by hand:", ", ".join(by_hand))

# %% [markdown]
# The random-sign detail is a sum with signs, each drawn by a coin, the same for every token and run of one
# `sign_seed`. Recover the signs from what the state holds, by solving for them:

# %%
found = {}
for seed in range(5):
    detail = sources(detail="random_sign", match="none", sign_seed=seed)[2]
    signs = torch.linalg.lstsq(u.reshape(4, 8).T, detail.reshape(8, 1)).solution.flatten()
    assert torch.allclose(signs.abs(), torch.ones(4, dtype=torch.float64))
    found[seed] = "".join("+" if s > 0 else "−" for s in signs)
print(found)

# %% [markdown]
# Chapter 10 showed what a duplicate slot can do: it is one slot with a score raised by $\log(1 + e^{b})$. It adds
# *attention* to blocks, against the embedding, and no new direction. That makes it the sharpest control of all:
# whatever it gains is not owed to the difference of halves.
#
# ## A live pair
#
# Control and method, side by side on the built-in stories. Four layers and forty steps decide nothing; what can be seen
# is that the pair is a fair one. Both begin with equal backbone weights, and at step 0 they are not the same model.

# %%
GRID = """
[model]
family = "pocket"
layers = 4
[data]
corpus = "stories"
context = 448
stories = 300
valid_stories = 30
[train]
steps = 40
batch_size = 4
lr = 3e-3
eval_every = 20
threads = 1
[[arm]]
name = "haares"
scheme = "haares"
options = { blocks = 2 }
[[arm]]
name = "duplicate"
scheme = "haares"
options = { blocks = 2, detail = "duplicate" }
"""

# %%
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
(folder / "pair.toml").write_text(GRID)
pair = experiments.read_grid(str(folder / "pair.toml"))
models = {p.arm: Transformer(p.config.model, seed=p.config.train.seed) for p in pair}
for name, weight in models["haares"].state_dict().items():
    assert torch.equal(weight, models["duplicate"].state_dict()[name])
tokens = torch.arange(64)[None]
apart = (models["haares"](tokens) - models["duplicate"](tokens)).abs().max().item()
print(f"{len(models['haares'].state_dict())} tensors start equal; logits at step 0 differ by up to {apart:.3f}")
assert apart > 1e-3

# %% tags=["nbval-ignore-output"]
with contextlib.redirect_stderr(io.StringIO()):  # progress
    for planned in experiments.missing(pair, folder / "store"):
        config = replace(planned.config, train=replace(planned.config.train, out=folder / planned.id))
        experiments.record(replace(planned, config=config), load_corpus(config.data), "", folder / "store")
live = experiments.read_runs(folder / "store").set_index("arm")
print(live[["parameters", "tokens", "best_loss", "seconds"]].round(3).to_string())
assert live["parameters"].nunique() == 1 and (live["best_loss"] < 4).all()
scratch.cleanup()

# %% [markdown]
# ## The recorded ablations
#
# 48 layers, four blocks, width 32, three seeds each; the recipe is that of chapter 13. Differences are taken to Block
# Attention Residuals seed by seed, and hollow marks are the paper's means (Table 12, OpenWebText, width 512, 30,000
# steps). Below the paper's arms stand those of our own, for the section after next.

# %%
plots.show(*pictures.ablations())

# %%
table = findings.beside_the_paper(records, base)
table = table[(table["n"] > 0) & table["table"].notna()]
table["agree"] = np.where(np.sign(table["mean"]) == np.sign(table["paper"]), "same sign", "other sign")
shown = ["arm", "baseline", "layers", "blocks", "n", "mean", "sd", "paper", "same_side", "agree"]
print(table[shown].round(4).to_string(index=False))
block = findings.arm("block")
arms = {name: records.difference(findings.arm(name), block, base).points for name in pictures.STRIP}
means = {name: points[[42, 123, 2026]].mean() for name, points in arms.items()}  # at the seeds that all have
assert means["duplicate"] < means["bias -4"] < means["bias -2"] < means["haares"] < means["bias 0"]
assert means["duplicate"] < means["no match"] < means["haares"]
assert all(0 < points[123] > points[[42, 2026]].max() for points in arms.values())

# %% [markdown]
# `same_side` counts the seeds whose difference has the sign of the paper's mean. Where that mean is nearly zero (random
# sign, 12 and 24 layers), its sign is chance, and agreeing with it says nothing. Row by row, at 48 layers:
#
# * **Block against Standard** has the sign of the paper's main table (OpenWebText) in all three seeds. On TinyStories,
#   our text, the paper has the other sign (chapter 13).
# * **HAARES against Block** has the other sign in six seeds of eight (at this rate; at a third of it the two are
#   level).
# * **The content, not the slot?** On three seeds the duplicate lies on both sides of Block, and HAARES, which differs
#   from it in nothing but what the slot holds, is behind it in all three. In the paper it is ahead in all three. But
#   these are seeds in which HAARES lost much to Block as well: 0.044 on average, and 0.012 on the five later ones,
#   where the duplicate has not been run.
# * **A quieter detail costs less, and a fixed bias less than a learned one.** Fixed at 0, −2 and −4, the arms lie
#   behind Block by 0.047, 0.018 and 0.013 on average, in the order of their loudness. The learned bias starts at −2,
#   and ends 0.026 behind the one that stays there, in all three seeds. In the paper the learned one is the best and
#   −4 the worst.
# * **Without matching** the loss lies between those of the duplicate and of HAARES. Whether that is because the detail
#   is smaller then, nobody has measured (in the model of chapter 16 matching changes its size little).
#
# And look at the picture by seed: in seed 123 *every* one of the paper's arms is behind Block, and by more than in
# the other two seeds. All differences share one baseline, and there it was lucky. Why a contrast should cost
# something at this rate, we do not know; of these arms only HAARES has been run at the smaller rate, and there it costs
# nothing.
#
# ## Granularity
#
# Shorter blocks leave less to tell apart: with $N = 8$ blocks each has twelve events, with $N = 4$ twenty-four. In the
# paper the *mean* advantage over Block turns round at six and at eight blocks (Table 11), because of one seed in each
# case; the other two stay slightly below zero.

# %%
plots.show(*pictures.granularity())

# %% [markdown]
# Ours do not go by length. Block's loss hardly depends on $N$ (the means lie within 0.01). With six blocks HAARES is
# level with it, with eight it is behind in all three seeds, as with four. So if short blocks leave little to tell
# apart, these runs do not show it; their spread is as large as the steps from one $N$ to the next.
#
# ## What the paper leaves out
#
# Arms of our own, with the same recipe (grid `tier2`; one seed, if the table says so). **ReZero** and **LayerScale**
# keep the one stream and scale what is added to it (chapter 04). `phase` is attention minus MLP. Full Attention
# Residuals, which read every output apart, have no run at 48 layers yet: one takes a quarter of an hour.

# %%
extra = findings.beside_the_paper(records, base)
extra = extra[extra["table"].isna() & (extra["n"] > 0)]
print(extra[["arm", "baseline", "layers", "n", "mean", "sd"]].round(4).to_string(index=False, na_rep=""))

# %% [markdown]
# On one seed each, neither ReZero nor LayerScale gains on the plain stream at any depth by more than 0.003 nats, and
# `phase` is 0.008 behind Block. That is too little for a conclusion.
#
# The random signs are drawn once, by `sign_seed`. Is a draw worse for being more like early against late? Five draws at
# model seed 42. In a block of 24 events, `agree` says on how many a draw's sign is that of early minus late; by chance
# 12 are.

# %%
half = depth_read.places(96, 4, "half")
block_loss, draws = records.values(findings.arm("block"), base)[42], {}
for draw in range(5):
    points = records.values(findings.arm("random sign", sign_seed=draw), base)
    places = depth_read.places(96, 4, "random_sign", draw)
    agree = [sum(a.sign == b.sign for a, b in zip(places, half, strict=True) if b.block == n) for n in range(4)]
    draws[draw] = {"agree, by block": str(agree), "− Block": points.get(42, np.nan) - block_loss}
print(pd.DataFrame(draws).T.to_string(na_rep="not recorded"))

# %% [markdown]
# Not that one could see. The five lie from 0.006 before Block to 0.048 behind it, whatever they agree with, and
# HAARES's own signs, which agree on all 24, stand at the far end, 0.048 behind. One model seed; and draws spread as
# widely as seeds do.
#
# And one arm that must not be used: an RMS for matching that is taken over *time* as well (chapter 08). It sees the
# future, so its loss is no language-model loss; it stands here to show whether one would notice.

# %%
for axis in ("token", "time", "batch"):
    arm = findings.arm("haares", **({} if axis == "token" else {"rms_axes": axis, "allow_leak": True}))
    points = records.values(arm, base)
    print(f"RMS over a {axis:6s} loss {points[42]:.4f}" if 42 in points else f"RMS over a {axis}: not recorded")

# %% [markdown]
# On this one seed the leak pays, and by no more than a lucky seed would: HAARES's eight range from 1.411 to 1.483.
# Nothing in a loss would give it away. The causality test does, in a second (chapter 08).
#
# ## Nine comparisons, three seeds
#
# A table of many small comparisons invites reading it like tea leaves. The paper has nine to Block: HAARES, six
# ablations, two block counts. How often would at least one of nine arms look "better in all three seeds" if *none* of
# them differed? Each does with probability $1/8$:

# %%
chance = 1 - (1 - 1 / 8) ** 9
draws = np.random.default_rng(0).normal(size=(20_000, 9, 3))
assert abs((draws < 0).all(axis=2).any(axis=1).mean() - chance) < 0.02
print(f"at least one of nine arms better in all three seeds, by luck alone: {chance:.0%}")

# %% [markdown]
# And that is with independent arms. Ours all share one baseline: if Block happens to be lucky in a seed, *every* arm
# looks bad in it. So when all arms lie on one side of zero, the picture above may be telling about Block.
#
# The paper's ablations have the same three seeds and the same weakness. Least doubtful there is the direct pair: HAARES
# is ahead of the duplicate in each of three seeds (Table 12), by 0.010 of the 0.031 nats that it gains on Block on
# OpenWebText. A duplicate slot alone gains the other two thirds.
#
# ## What we found, and what it does not show
#
# Block Attention Residuals beat the plain stream at 48 layers, as on OpenWebText in the paper. The order of its
# ablations does not come back at our size. At the larger of our rates and on three seeds, details that differ from
# the sum cost something, more where their bias is higher, and a second copy of the sum costs nothing. Part of that is
# a lucky baseline, and on five more seeds HAARES itself is nearer to Block.
#
# Our width, budget, batch and learning rate are other than the paper's, and so is the text of its ablations. An arm
# that gains nothing here may gain there; "other sign" in the table is a fact about these runs, and no refutation.
# What can be said is what it would take to find out (chapter 13), and every row can be run again, or longer, by its
# command in the store:

# %%
print(records.rows(findings.arm("duplicate"), base)["command"].to_string(index=False))

# %% [markdown]
# ## Exercises
#
# ### Exercise 14.1 · The missing ablation
# *Easy, 10 minutes.* No arm of the paper separates "the final read sees no details" from the rest. Which option of
# `RouterOptions` would, and what do you expect?
#
# <details><summary>Answer</summary>
#
# `readout_details=True` lets the final router see $\hat D$ as well. It adds no parameter but a bias, and the head is
# only one read of 97: if details matter along depth, little should change here.
#
# ```python
# with_details = ModelConfig(layers=4, width=8, heads=1, ff=8, scheme="haares", options={"readout_details": True})
# without = ModelConfig(layers=4, width=8, heads=1, ff=8, scheme="haares")
# count = lambda config: sum(p.numel() for p in Transformer(config).parameters())
# assert count(with_details) == count(without) + 1
# ```
# </details>
#
# ### Exercise 14.2 · A control for matching
# *Medium, 20 minutes.* Without matching, $D$ may be several times larger or smaller than $C$. The key is normed, so the
# score hardly changes. What does change, and in which blocks would you expect most of it? Design an arm that tells
# "scale of the value" from "clip of the scale".
#
# <details><summary>Answer</summary>
#
# The value: a large $D$ moves the mixture more at the same weight. Where the halves nearly cancel ($C$ small) or nearly
# agree ($D$ small), $a$ is far from one. `gamma` sets the clip: a grid over `gamma = [1.0, 2.0, 4.0, 1e6]` goes from no
# matching (`gamma = 1` makes $a = 1$) to matching without a clip.
#
# ```python
# torch.testing.assert_close(sources(gamma=1.0)[2], sources(match="none")[2])
# ```
# </details>
#
# ### Exercise 14.3 · Luck of the baseline
# *Medium, 20 minutes.* Simulate nine arms that equal the baseline, with seed noise of 0.02 for each run, three seeds.
# How often do at least eight of the nine means lie on one side of zero? Compare with independent baselines.
#
# <details><summary>Answer</summary>
#
# With one shared baseline in four simulations of ten; with a baseline of its own for every arm, in one of 25.
#
# ```python
# rng = np.random.default_rng(0)
# arms = rng.normal(0, 0.02, (20_000, 9, 3)).mean(axis=2)
# shared, own = rng.normal(0, 0.02, (20_000, 1, 3)).mean(axis=2), rng.normal(0, 0.02, (20_000, 9, 3)).mean(axis=2)
# lopsided = [np.mean(np.maximum((d < 0).sum(1), (d > 0).sum(1)) >= 8) for d in (arms - shared, arms - own)]
# assert lopsided[0] > 0.3 and lopsided[1] < 0.06
# ```
# </details>
#
# ### Exercise 14.4 · Pool the seeds
# *Hard, 40 minutes.* Instead of one spread per arm, estimate *one* spread of differences from all arms together (each
# arm gives two degrees of freedom). Which arms then stand out, and which assumption did you buy that with?
#
# <details><summary>Answer</summary>
#
# The pooled variance is the mean of the arms' variances, with $2k$ degrees of freedom for $k$ arms; an arm's interval
# is its mean $\pm\, t_{2k}\, s/\sqrt3$. Here $s = 0.031$ with twelve degrees of freedom, an interval is $\pm 0.038$,
# and one arm stands out: the bias fixed at 0. (HAARES has more seeds, and is left out.) It assumes that all arms
# spread alike, which their sample values can hint at but not show; and the shared baseline makes the arms dependent.
#
# ```python
# import math
# from scipy import stats
#
# arms = table[(table["n"] == 3) & (table["baseline"] == "block") & (table["layers"] == 48) & (table["blocks"] == 4)]
# pooled, freedom = math.sqrt((arms["sd"] ** 2).mean()), 2 * len(arms)
# half = stats.t.ppf(0.975, freedom) * pooled / math.sqrt(3)
# assert freedom == 12 and list(arms["arm"][arms["mean"].abs() > half]) == ["bias 0"]
# ```
# </details>
#
# ## Further reading
#
# * HAARES, arXiv 2606.06564, section 7, Tables 11 and 12; appendix C for single seeds.
# * Delta Attention Residuals, arXiv 2605.18855: its authors found that adding against replacing matters more than which
#   sources are read, a warning about any ablation that changes both.
