# %% [markdown]
# # 13 · Small models: does it help, at which depth?
#
# So far everything could be proved or counted. Whether a model *learns* better with details cannot; it has to be tried.
# The HAARES paper (arXiv 2606.06564) trains models of 22 to 453 million parameters on large GPUs and reports gains of
# 0.01 to 0.03 nats over Block Attention Residuals at 48 layers, and none or nearly none at 12 and 24. We have laptops.
# This chapter asks what they can say about such a difference, says it, and spends as much care on what they cannot say.
#
# > **You will build** a paired comparison over seeds, an interval for it, and a forecast of how many seeds a question
# > needs.
# >
# > **You will learn** why two runs of one seed are compared and not two averages, what a learning curve far above an
# > n-gram means, and how to read a recorded experiment that anybody can do again.
# >
# > **You need** chapters 03 (runs), 05 and 08 (the schemes). The statistics are those of a first course.
# >
# > **Runs in** about 10 seconds on one core, without a network: the long runs are recorded, and read here.

# %%
import contextlib
import io
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

from minihaares import experiments, findings, pictures, plots, results
from minihaares.data import load_corpus

plots.use_style()
pd.set_option("display.width", 110)
records = findings.read()

# %% [markdown]
# ## Two numbers that differ
#
# Somebody trains a Block model and a HAARES model, once each, and gets 1.418 and 1.409. Is HAARES better? (The
# numbers are made up, but of the size of ours.) Ask first how much a number like that moves when *nothing* is changed
# but the seed that draws the first weights. Here are the validation losses of the Block model with 48 layers and
# width 32, recorded by this project:

# %%
base = findings.setting("headline")  # all that two runs must share to be compared, but the scheme and the seed
block, haares = findings.arm("block"), findings.arm("haares")
both = pd.DataFrame({a.label: records.values(a, base) for a in (block, haares)}).dropna()
print(both.round(3).to_string())
spread = both["Block AttnRes"].std()
print(f"\nspread of Block over {len(both)} seeds: {spread:.3f} nats (sample standard deviation)")

# %% [markdown]
# A difference of 0.009 between two single runs is inside what the seed alone does. Two things help.
#
# **Pairs.** Runs of one seed begin with the same backbone weights, bit for bit, and see the same batches in the same
# order, under every scheme. If a seed that starts badly does so for both, that part cancels in the difference.
# By hand, with made-up losses: seeds 1, 2, 3 give 1.40, 1.44, 1.48 with one scheme and 1.39, 1.42, 1.47 with the other.
# Each series spreads by 0.04, but the differences are $-0.01$, $-0.02$, $-0.01$: all of one sign, and spread by 0.006.

# %%
one, other = np.array([1.40, 1.44, 1.48]), np.array([1.39, 1.42, 1.47])
print("spread of a series:", one.std(ddof=1).round(3), " of the differences:", (other - one).std(ddof=1).round(3))
assert np.isclose((other - one).var(ddof=1), one.var(ddof=1) + other.var(ddof=1) - 2 * np.cov(one, other)[0, 1])

# %% [markdown]
# The assert is the reason: the variance of a difference is the sum of the variances *minus twice the covariance*.
# Pairing helps as far as the two losses rise and fall together. Do they, in the recorded runs?

# %%
found = records.difference(haares, block, base)
correlation = both.corr().iloc[0, 1]
unpaired = math.sqrt(both.var().sum())
print(f"correlation over seeds {correlation:+.2f}")
print(f"spread of the differences {found.sd:.4f}; of unpaired ones it would be {unpaired:.4f}")
assert list(found.points.index) == list(both.index)
assert np.allclose(found.points, both["HAARES"] - both["Block AttnRes"])

# %% [markdown]
# Here they hardly do, and pairing gains nothing. That is a matter of fact, not of principle: where two losses spread
# alike and rise and fall together it gains much, where they do not it costs a few degrees of freedom. With so few seeds
# the correlation itself is known badly (after six of the eight it was +0.44), so we keep the pairs that we planned.
#
# **More seeds, and an interval.** The mean of $n$ differences is uncertain by about $s/\sqrt n$. For a 95 % interval
# the factor is not 1.96 but Student's $t$, which makes up for $s$ being estimated as well. With three seeds it is 4.3
# and rests on the assumption that differences are normal, which three points cannot check; so in this book three
# seeds are three points, drawn as such, and only six or more get an interval. In four lines, and held to scipy's:

# %%
n, mean, sd = found.n, found.mean, found.sd
half = stats.t.ppf(0.975, n - 1) * sd / math.sqrt(n)
print(f"HAARES − Block, {n} seeds: mean {mean:+.4f}, 95 % interval {mean - half:+.4f} to {mean + half:+.4f} nats")
outside = stats.ttest_rel(both["HAARES"], both["Block AttnRes"]).confidence_interval(0.95)
assert np.allclose((mean - half, mean + half), outside) and np.allclose(found.interval, outside)

# %% [markdown]
# Before reading anything into it, watch it grow. The seeds were fixed before the first run, the paper's three in front,
# and done in this order. What would we have said after three, after six, after all?

# %%
order = [planned.config.train.seed for planned in experiments.read_grid("headline") if planned.arm == "block"]
for count in (3, 6, 8):
    first = findings.Difference(found.points.loc[order[:count]])
    words = "" if first.interval is None else "   95 % interval {:+.4f} to {:+.4f}".format(*first.interval)
    print(f"{count} seeds: mean {first.mean:+.4f}, sd {first.sd:.4f}, worse in {(first.points > 0).sum()}{words}")
assert found.n == len(order) == 8

# %% [markdown]
# After six seeds HAARES was behind in every one of them, and the interval began well above zero. Two more seeds, and
# the mean has lost a third; the interval just leaves out zero. Nothing was wrong with the first six. An interval is
# right nineteen times in twenty *if* differences are normal and the number of seeds was set beforehand; it does not
# promise that the next point lies inside. We fixed eight, so eight it is: HAARES is probably a little behind in this
# setting, and nobody should bet much on it.
#
# ## How the runs were chosen
#
# A grid of runs is a text file; `minihaares ablate headline` does what is missing of it and `--list` shows what is
# not. One row of `figures/data/runs.csv` is one finished run, with everything needed to do it again. The paper's
# recipe is kept but for size: its small family has width 128 and 30,000 steps of 8,192 characters; ours has width 32
# and 800 steps of 1,024, at ten times its learning rate (chosen by three short runs at 24 layers). That is 0.3 % of
# its tokens.

# %%
grid = experiments.read_grid("headline") + experiments.read_grid("tier1")
done = records.runs[records.runs["run"].isin([planned.id for planned in grid])]
shape = ["layers", "width", "heads", "ff", "context", "batch_size", "steps", "lr"]
print(pd.Series({name: base[name] for name in shape}).to_string())
hours, million = done["seconds"].sum() / 3600, done["tokens"].iloc[0] / 1e6
planned_runs = len({planned.id for planned in grid})
print(f"\n{len(done)} of {planned_runs} runs recorded, {million:.2f} million characters each, {hours:.1f} hours in all")

# %% [markdown]
# ### Where such a run stands
#
# A loss means little by itself. Chapter 02 counted characters: an n-gram needs no gradient at all. The lines across the
# next picture are such counts, on the same text.

# %%
# 48 layers, three schemes; bands span the seeds
plots.show(*pictures.curves())

# %% [markdown]
# Three things to see before any comparison. All runs end between the n-grams of orders 2 and 3: **these models have
# learned less than counting knows**, and what separates them is how fast they learn the first things, not how well
# they end. (The counts were made on the whole training sample, of which a run sees 0.8 million characters.) The curves
# still fall steeply at the end, so a longer budget is another experiment. And the right panel shows the mean difference
# of HAARES and Block larger on the way than at the end, while single seeds go ways of their own: whoever stops at
# another point gets another number.
#
# ## A live pair
#
# Nothing above is beyond a laptop; it only takes longer than a chapter should. So here is the same machinery on a small
# grid: two models of a few layers on the built-in stories, into a store of our own. The rows are also in the book's
# store, and what we get must agree with it.

# %% tags=["nbval-ignore-output"]
def run_missing(grid, folder):  # as `experiments.run_grid` does, but all in this process
    todo = experiments.missing(grid, folder)
    for planned in todo:
        config = replace(planned.config, train=replace(planned.config.train, out=folder / planned.id))
        experiments.record(replace(planned, config=config), load_corpus(config.data), experiments.commit(), folder)
    return len(todo)


quick = experiments.read_grid("quick")
scratch = tempfile.TemporaryDirectory()
store = Path(scratch.name)
with contextlib.redirect_stderr(io.StringIO()):  # progress
    count, again = run_missing(quick, store), run_missing(quick, store)
live = experiments.read_runs(store).set_index("run")
book = experiments.read_runs(experiments.recorded()).set_index("run").loc[live.index]
print(f"{count} runs done; the second call did {again}, all being recorded")
print(pd.DataFrame({"here": live["best_loss"], "recorded": book["best_loss"]}).round(4).to_string())
assert count == len(quick) and again == 0
assert np.allclose(live["best_loss"], book["best_loss"], rtol=1e-3)  # other processors round otherwise
scratch.cleanup()

# %% [markdown]
# ## The headline pair, and depth
#
# Each point is one seed, the bar their mean; hollow marks are the paper's, at its sizes. Negative means that HAARES is
# better.

# %%
plots.show(*pictures.paired())

# %%
plots.show(*pictures.depth())

# %%
rows = []
for layers in (12, 24, 48):
    for arm, baseline in ((block, findings.arm("standard")), (haares, block)):
        d = records.difference(arm, baseline, {**base, "layers": layers})
        signs = f"{(d.points < 0).sum()} of {d.n}"
        rows.append((layers, f"{arm.label} − {baseline.label}", d.mean, d.sd, signs))
print(pd.DataFrame(rows, columns=["layers", "difference", "mean", "sd", "better in"]).round(4).to_string(index=False))
depths = {n: {a.label: records.values(a, {**base, "layers": n}).loc[order[:3]].mean()
              for a in (findings.arm("standard"), block, haares)} for n in (12, 24, 48)}  # fmt: skip
print("\nmean losses over three seeds")
print(pd.DataFrame(depths).T.rename_axis("layers").round(3).to_string())

# %% [markdown]
# Two answers.
#
# * **Reading several sources helps, and more so in deeper models.** Block beats Standard in all three seeds at 24 and
#   at 48 layers, by about 0.04 and 0.07 nats; at 12 it does not matter. Without routing, 48 layers end *behind* 24 in
#   so few steps; with it, a little ahead.
# * **The detail does not help here.** At 12 and 24 layers the difference to Block has no sign to speak of. At 48
#   layers, where the paper has its gain, ours is if anything a *loss*, of two hundredths of a nat, in six seeds of
#   eight.
#
# The second is not what the paper reports, so it deserves a second look.
#
# ## The same pair at another rate
#
# One thing in our recipe is not the paper's: the learning rate, ten times as high, because in so few steps it gives the
# lower loss. Does the comparison survive a change of it? A third of the rate, and all else equal:

# %%
slower = findings.setting("rate")
assert {name for name in base if base[name] != slower[name]} == {"lr"}
rates = {}
for setting in (slower, base):
    d = records.difference(haares, block, setting)
    losses = {a.label: records.values(a, setting).loc[order[:3]].mean() for a in (block, haares)}  # at the same seeds
    signs = {"better in": f"{(d.points < 0).sum()} of {d.n}"}
    rates[f"{setting['lr']:g}"] = {**losses, "difference": d.mean, "sd": d.sd, **signs}
print(pd.DataFrame(rates).T.rename_axis("rate").to_string(float_format="{:.4f}".format))

# %% [markdown]
# (Losses are means over the paper's three seeds; the differences have all there are, three and eight.)
#
# **Mean and spread hang on the rate.** At a third of the rate the two are equal to within a few thousandths, in every
# seed: a gain as large as the paper's would stand out there, with three seeds, and is not to be seen. At the larger
# rate the differences spread ten times as widely, and most of them are in Block's favour; HAARES's own losses spread
# there about twice as widely as Block's. So "HAARES is worse" is as wrong a summary of these runs as "HAARES is
# better" would be. The paper trains at 0.0003, has one rate for all schemes, and so cannot have met this.
#
# Which of the two rates is fair? Each scheme at the best rate of its own would be; we have tried two, and the larger
# was better for both.
#
# ## Other texts, other tokens
#
# One text is one text. The grid `tier2` repeats the comparison with tokens that are pieces of words, on the built-in
# stories, whose records are short and whose early facts matter later, and on Python source. Losses per token cannot be
# set side by side where tokens differ; bits per byte can.

# %%
shown = {}
for row in results.elsewhere(records, base).to_dict("records"):
    size = f"width {row['width']}, {row['layers']} layers, {row['tokens'] / 1e6:.1f} M, rate {row['lr']:g}"
    name = f"{row['text']}, {size}"
    for words, key in (("HAARES − Block", "haares"), ("Block − Standard", "block")):
        shown.setdefault(words, {})[name] = f"{row[f'{key} mean']:+.4f} ({row[f'{key} n']})" * (row[f"{key} n"] > 0)
print("bits per byte (number of seeds)")
print(pd.DataFrame(shown).to_string())

# %% [markdown]
# Nothing here decides between HAARES and Block. With BPE tokens the two are level, on the built-in stories HAARES is
# a little behind, and Python source is a lesson. Its first seed had HAARES *ahead* by 0.11 bits, and had we stopped
# there, this page would say that code is where the detail pays. The second seed has it behind by 0.17, the third
# ahead by 0.03. One thing is the same wherever the plain stream was run as well: reading several sources beats it, on
# Python in all three seeds, and on the stories, where early facts matter later, by more than a third of a bit.
#
# ## What would it take to know?
#
# Turn the question round: the paper's gain on TinyStories with its small family is 0.0188 nats at 48 layers (its
# Table 10). If ours were as large, and differences spread as they do at the larger rate, how many seeds would make an
# interval that leaves out zero, four times out of five? (At the smaller rate three suffice, and we have them.) The t
# test's power has a closed form in scipy's noncentral $t$:

# %%
def power(effect, sd, n, level=0.05):
    """Chance that a two-sided paired t test of n seeds finds a true difference."""
    critical, shift = stats.t.ppf(1 - level / 2, n - 1), effect / sd * math.sqrt(n)
    return stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift)


simulated = np.random.default_rng(0).normal(0.0188, 0.015, (20_000, 8))
share = (stats.ttest_1samp(simulated, 0, axis=1).pvalue < 0.05).mean()
assert abs(share - power(0.0188, 0.015, 8)) < 0.01  # the closed form against 20,000 simulated experiments, any spread

effects = np.linspace(0.002, 0.05, 60)
figure, axis = plt.subplots(figsize=(6.4, 3.4))
for count, line in ((3, ":"), (8, "-."), (16, "--"), (32, "-")):
    chances = [power(effect, found.sd, count) for effect in effects]
    axis.plot(effects, chances, line, color="black", label=f"{count} seeds")
axis.axvline(0.0188, color=plots.ORANGE, linewidth=1)
axis.annotate("the paper's gain\n(small family)", (0.0188, 0.06), xytext=(4, 0), textcoords="offset points", fontsize=9)
axis.set(xlabel="true difference, nats", ylabel="chance to see it", title="What n seeds can see, at our spread")
axis.legend()
needed = next(count for count in range(2, 1000) if power(0.0188, found.sd, count) >= 0.8)
plots.show(figure, alt="""Chance to see a true difference against its size, for 3, 8, 16 and 32 seeds: curves that rise
from near 0.05 to 1, the more seeds the further left. A vertical line marks the paper's gain of 0.0188 nats.""")
print(f"seeds needed to see 0.0188 nats in four of five experiments: {needed}")

# %% [markdown]
# The answer is for *our* spread, which is that of short, fast runs of a narrow model; others spread more or less.
# The lesson is general: with three seeds only differences of several spreads can be seen, in the paper as well as
# here.
#
# ## What we found, and what it does not show
#
# At 48 layers, width 32 and 0.8 million characters: Block Attention Residuals learn faster than the plain stream, in
# every seed. HAARES does not learn faster than Block: it is probably a little slower at the better of our two rates,
# and level within a few thousandths at the other.
#
# It does not show what happens later. These runs stop between the n-grams of orders 2 and 3; the paper's are 300 times
# as long, and its gain may well be one of late training. They are of one width and one batch size. The paper's claim
# is neither confirmed nor refuted by them. They do say that we did not find its gain at this size, budget and two
# rates, and that here the answer depends on the rate; whoever compares schemes should try more than one. The grid
# `long` (four times the tokens) and the grid `small` (the paper's own shape) are ready for whoever has the hours.
#
# Others have measured, too. In the repository of Delta Attention Residuals (arXiv 2605.18855), Attention Residuals come
# out *worse* than the plain baseline at one billion parameters (perplexity 31.76 against 29.70) and at eight; the
# authors of Attention Residuals (arXiv 2603.15031) report the opposite at their sizes. In the HAARES paper itself Block
# is worse than Standard on TinyStories and Yelp at 48 layers, where HAARES leads (Table 10). A small gain of a residual
# scheme depends on the recipe around it, and deserves distrust until several groups have it.
#
# ## Exercises
#
# ### Exercise 13.1 · The sign test
# *Easy, 10 minutes.* Forget sizes and count signs. If HAARES and Block were equally good, how likely would all of eight
# differences have one sign? All of three? What does that say about "better in each seed" with three seeds?
#
# <details><summary>Answer</summary>
#
# $2\cdot 2^{-8} = 0.008$ and $2\cdot 2^{-3} = 0.25$: three seeds that agree are what a coin gives one time in four.
#
# ```python
# assert stats.binomtest(8, 8).pvalue == 2 * 0.5**8 and stats.binomtest(3, 3).pvalue == 0.25
# ```
# </details>
#
# ### Exercise 13.2 · A bootstrap of pairs
# *Medium, 20 minutes.* Draw as many differences with replacement from the recorded ones, ten thousand times, and take
# the 2.5 % and 97.5 % points of the means. Compare with the t interval. Which is narrower, and which do you believe?
#
# <details><summary>Answer</summary>
#
# The bootstrap's is narrower: it uses the spread of the sample as if it were the true one, and has no heavier tail to
# make up for few points. With eight the t interval is the more honest; with eighty they would agree.
#
# ```python
# draws = np.random.default_rng(0).choice(found.points, (10_000, found.n)).mean(axis=1)
# low, high = np.quantile(draws, (0.025, 0.975))
# assert high - low < found.interval[1] - found.interval[0]
# ```
# </details>
#
# ### Exercise 13.3 · Bits per byte
# *Easy, 10 minutes.* The store also has the loss in bits per byte of UTF-8 text. How does it follow from nats per
# character, and why is it the fairer unit once a BPE tokenizer joins in?
#
# <details><summary>Answer</summary>
#
# Divide by $\ln 2$ for bits, and by the bytes a token stands for. A BPE token stands for several characters, so its
# loss per token is larger and says nothing beside a loss per character; per byte of text both answer the same
# question.
#
# ```python
# row = records.rows(block, base).iloc[0]
# bytes_per_character = row["best_loss"] / math.log(2) / row["bits_per_byte"]
# assert 1 <= bytes_per_character < 1.01  # nearly all of TinyStories is ASCII
# ```
# </details>
#
# ### Exercise 13.4 · Your own grid
# *Medium, 30 minutes and a night.* Write a TOML file with two arms, `standard` and `block` at 24 layers, on a text of
# your own (`corpus = "path/of/a/file.txt"`), six seeds. Look at `minihaares ablate yours.toml --dry-run` before you
# start. Which seeds would you add if the interval contains zero, and why is "until it does not" the wrong answer?
#
# <details><summary>Answer</summary>
#
# Decide the number before looking. Whoever adds seeds until the interval leaves out zero will get there sooner or later
# even if there is no difference: each look is another chance to be fooled.
#
# ```python
# generator = np.random.default_rng(1)
# fooled = 0
# for _ in range(300):
#     noise = generator.normal(0, 1, 40)
#     fooled += any(stats.ttest_1samp(noise[:n], 0).pvalue < 0.05 for n in range(6, 41))
# assert fooled / 300 > 0.12  # not 0.05
# ```
# </details>
#
# ## Further reading
#
# * HAARES, arXiv 2606.06564, sections 6 and 7: the comparisons repeated here in small.
# * Attention Residuals, arXiv 2603.15031, and Delta Attention Residuals, arXiv 2605.18855: evidence for and against.
# * TinyStories, arXiv 2305.07759: why such small models can be trained on it at all.
