# %% [markdown]
# # 14 · Ablations: which part does the work?
#
# HAARES adds several things to Block Attention Residuals at once: a second slot a block, a difference in it, a scale
# for that difference, and a bias that starts low. An ablation takes one of them away, or puts something in its place
# that should *not* help, and trains again. This chapter builds the paper's ablations (arXiv 2606.06564, section 7) as
# what they are here, options of one class, checks that each removes just what it says, and reads the recorded runs.
#
# > **You will build** each ablation by hand from the difference of two options, and a test that it is the right one.
# >
# > **You will learn** what a control is, why a good control can be worth more than the method, and how ten comparisons
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

from minihaares import experiments, findings, pictures, plots
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
# | `random sign` | $D = \sum_r s_r u_r$, fixed random signs, half of them $+$ | some contrast, or early against late? |
# | `no match` | $\hat D = D$, whatever its size | does the scale matter? |
# | `bias 0`, `−2`, `−4` | the detail's score offset is fixed, not learned | must the router learn how much to listen? |
# | `N = 6`, `8` | shorter blocks | does a shorter block leave less to tell apart? |
#
# A claim about an ablation is a claim about code. So before any training: three events of a single block, written by
# hand, against what the package's state holds.

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
# The random-sign detail is a sum with signs, half of them positive, the same for every token and run of one
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
# Attention Residuals seed by seed, and hollow marks are the paper's means (Table 12, width 512, 30,000 steps).

# %%
plots.show(*pictures.ablations())

# %%
table = findings.beside_the_paper(records, base)
table = table[(table["n"] > 0) & table["table"].notna()]
table["agree"] = np.where(np.sign(table["mean"]) == np.sign(table["paper"]), "same sign", "other sign")
table["outside"] = table["mean"].abs() > 2 * table["sd"] / np.sqrt(table["n"])  # more than two standard errors from 0
shown = ["arm", "baseline", "layers", "blocks", "n", "mean", "sd", "paper", "same_side", "agree"]
print(table[shown].round(4).to_string(index=False))

# %% [markdown]
# `same_side` counts the seeds whose difference has the sign of the paper's mean. Row by row:
#
# * **Block against Standard** has the paper's sign in every seed.
# * **HAARES against Block** has the other sign in every seed (chapter 13: at this rate; at a third there is none).
# * **The slot does no harm, its content does.** The duplicate is level with Block, while HAARES, which differs from
#   it in nothing but what the slot holds, is behind the duplicate in *every* seed. In the paper it is ahead in every
#   seed. Both are statements about the content of the slot, the cleanest that an ablation can make, and they
#   disagree.
# * **Less of the content hurts less.** Without matching, the detail enters with its own size, and the loss lies
#   between that of the duplicate and that of HAARES. A random-sign detail spreads widely over seeds.
#
# Put together: at a rate where Block learns fastest, what costs is a *contrast with full scale* in the mixture. A
# plausible reason, not a proven one: matching makes $\hat D$ as large as $C$ also where $D$ is mostly noise of the
# last few steps, and a large rate makes more of that noise. It would predict that the harm shrinks with the rate, as
# chapter 13 found.
#
# ## Granularity
#
# Shorter blocks leave less to tell apart: at $N = 8$ a block has twelve events, at $N = 4$ twenty-four. In the paper
# the advantage over Block turns round at six and eight blocks (Table 11).

# %%
plots.show(*pictures.granularity())

# %% [markdown]
# The picture says which of these are recorded so far. With four blocks HAARES is behind Block; whether the gap closes
# or grows with shorter blocks has to wait for the runs that are missing: `minihaares ablate tier1 --list` names them.
#
# ## Ten comparisons, three seeds
#
# A table of many small comparisons invites reading it like tea leaves. How often would at least one of nine arms look
# "better in all three seeds" if *none* of them differed? Each does with probability $1/8$:

# %%
chance = 1 - (1 - 1 / 8) ** 9
draws = np.random.default_rng(0).normal(size=(20_000, 9, 3))
assert abs((draws < 0).all(axis=2).any(axis=1).mean() - chance) < 0.02
print(f"at least one of nine arms better in all three seeds, by luck alone: {chance:.0%}")

# %% [markdown]
# And that is with independent arms. Ours all share one baseline: if Block happens to be lucky in a seed, *every* arm
# looks bad in it. So when all arms lie on one side of zero, the picture above may be telling about Block.
#
# The paper's ablations have the same three seeds and the same weakness. What stands on firmer ground there is the
# *order* of large effects, above all that a duplicate slot alone gains two thirds of what HAARES gains (0.0209 of
# 0.0313).
#
# ## What we found, and what it does not show
#
# Of the paper's ablations, one result carries over to our size: reading block sums by softmax beats the plain stream
# at 48 layers. The order of the rest does not. Here the difference of halves costs something at a large learning
# rate, nothing at a small one, and the slot itself is harmless.
#
# Our width, budget, batch, learning rate and text are all smaller or other than the paper's. An arm that gains
# nothing here may gain there; "other sign" in the table is a fact about these runs, and no refutation. What can be
# said is what it would take to find out (chapter 13), and every row can be run again, or longer, by its command in
# the store:

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
# is its mean $\pm\, t_{2k}\, s/\sqrt3$. It assumes that all arms spread alike, which their sample values can hint at
# but not show; and the shared baseline makes the arms dependent.
#
# ```python
# import math
# from scipy import stats
#
# arms = table[(table["n"] == 3) & (table["baseline"] == "block") & (table["layers"] == 48) & (table["blocks"] == 4)]
# pooled, freedom = math.sqrt((arms["sd"] ** 2).mean()), 2 * len(arms)
# half = stats.t.ppf(0.975, freedom) * pooled / math.sqrt(3)
# assert 0 < half < 1 and freedom >= 2
# ```
# </details>
#
# ## Further reading
#
# * HAARES, arXiv 2606.06564, section 7, Tables 11 and 12; appendix C for single seeds.
# * Delta Attention Residuals, arXiv 2605.18855: its authors found that adding against replacing matters more than which
#   sources are read, a warning about any ablation that changes both.
