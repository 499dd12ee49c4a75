# %% [markdown]
# # Assignment 5 · A controlled ablation, honestly reported
#
# Does the difference help, or would any second slot do? An *ablation* changes one thing and looks at what it does. It
# is easy to fool oneself: two things changed at once, one lucky seed, a small difference and a large wish. You write
# the tools that guard against it, run a small experiment of your own on the built-in stories, and report what it shows
# and what it does not. Chapters 13 and 14 do the same at full length.
#
# **How it works.** Under each answer stands a check. Run it as often as you like: it is silent when all is well, and
# otherwise says what to look at. More checks run when you hand in, with other numbers. The report at the end is read by
# a person. You may add cells, but leave the checks and the given cells as they are.
#
# A run is described by its **settings**, a flat dict such as `BASE` below. `short_run(settings)` trains a small model
# and gives its validation loss in nats per character; equal settings give equal losses, to the last digit.

# %% nbgrader={"grade_id": "given_tools", "locked": true}
import itertools
import math
import statistics

import numpy as np
import torch
from scipy import stats

from minihaares import checks, data, stories
from minihaares.data import BOS, EOT
from minihaares.model import ModelConfig, Transformer
from minihaares.train import evaluate, parameter_groups, token_losses

BASE = {
    "scheme": "haares",
    "blocks": 2,
    "detail": "duplicate",
    "layers": 2,
    "width": 32,
    "steps": 15,
    "batch_size": 8,
    "lr": 3e-3,
    "seed": 42,
    "data_seed": 42,
}


def story_chunks(texts: list[str], tokenizer: data.CharTokenizer) -> np.ndarray:
    """Chunks [n, 65] of stories, each with a beginning and an end, padded."""
    ids = (np.concatenate([[BOS], tokenizer.encode(text), [EOT]]) for text in texts)
    return np.concatenate([data.chunk(record, 65, pad=True) for record in ids])


def build_model(settings: dict) -> Transformer:
    """The untrained model of these settings."""
    options = {name: settings[name] for name in ("blocks", "detail") if name in settings}
    width = settings["width"]
    config = ModelConfig(
        vocab_size=TOKENIZER.vocab_size,
        layers=settings["layers"],
        width=width,
        heads=2,
        ff=4 * width,
        scheme=settings["scheme"],
        options=options,
    )
    return Transformer(config, seed=settings["seed"])


def short_run(settings: dict) -> float:
    """Train on the built-in stories as the settings say; the validation loss, in nats per character."""
    model = build_model(settings)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=settings["lr"], betas=(0.9, 0.95))
    for step in range(settings["steps"]):
        inputs, targets = data.batch(TRAIN, step, settings["batch_size"], settings["data_seed"])
        loss = token_losses(model, inputs, targets, autocast=False, reduction="mean")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return evaluate(model, VALID, 32)


texts = [story.text for story in stories.write_stories(400, seed=0)]
TOKENIZER = data.train_char(texts)
TRAIN = story_chunks(texts, TOKENIZER)
VALID = story_chunks([story.text for story in stories.write_stories(12, seed=1)], TOKENIZER)

# %% [markdown]
# ## 1 · What differs?
# *1 point · about 10 minutes · difficulty 1 of 3*
#
# The names of all settings in which two runs differ, sorted. A setting that only one of them has counts, too.


# %% nbgrader={"grade_id": "difference", "solution": true}
def difference(one: dict, other: dict) -> list[str]:
    """Sorted names."""
    ### BEGIN SOLUTION
    missing = object()
    return sorted(name for name in one.keys() | other.keys() if one.get(name, missing) != other.get(name, missing))
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_difference", "grade": true, "points": 1}
checks.equal(difference(BASE, BASE), [], "A run does not differ from itself.")
checks.equal(difference(BASE, {**BASE, "seed": 1, "lr": 1e-3}), ["lr", "seed"], "Two settings changed; sorted names.")
### BEGIN HIDDEN TESTS
checks.equal(difference({"a": 1}, {"a": 1, "b": 2}), ["b"], "The second run has a setting that the first lacks.")
checks.equal(difference({"a": 1, "b": 2}, {"a": 1}), ["b"], "The first run has a setting that the second lacks.")
checks.equal(difference({"a": None}, {}), ["a"], "Set to None is not the same as not set.")
### END HIDDEN TESTS


# %% [markdown]
# ## 2 · A plan of paired runs
# *2 points · about 15 minutes · difficulty 1 of 3*
#
# For each seed two runs that differ in the `change` and in nothing else: first the base, then the changed one. The seed
# is the model's (`"seed"`); the order of the data stays that of the base. Leave `base` itself as it was.


# %% nbgrader={"grade_id": "plan", "solution": true}
def plan(base: dict, change: dict, seeds: list[int]) -> list[tuple[dict, dict]]:
    """One pair (base settings, changed settings) for each seed."""
    ### BEGIN SOLUTION
    return [({**base, "seed": seed}, {**base, **change, "seed": seed}) for seed in seeds]
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_plan", "grade": true, "points": 2}
pairs = plan(BASE, {"detail": "half"}, [42])
checks.equal(len(pairs), 1, "One seed gives one pair.")
checks.equal(difference(*pairs[0]), ["detail"], "The two runs of a pair differ in the change alone.")
### BEGIN HIDDEN TESTS
before, change = dict(BASE), {"detail": "half", "blocks": 4}
pairs = plan(BASE, change, [1, 2, 3])
checks.equal(BASE, before, "plan() changed the base that it was given: make new dicts.")
checks.equal(
    [(one["seed"], other["seed"]) for one, other in pairs],
    [(1, 1), (2, 2), (3, 3)],
    "Both runs of a pair have the pair's own seed.",
)
for one, other in pairs:
    checks.equal(difference(one, other), ["blocks", "detail"], "A change may have several parts.")
    checks.equal(difference(one, BASE), ["seed"], "The first of a pair is the base, but for the seed.")
    checks.equal((other["blocks"], other["detail"]), (4, "half"), "The second of a pair has the change.")
pairs[0][0]["lr"] = 0.0
checks.equal(pairs[1][0]["lr"], before["lr"], "The runs share one dict: a change to one would change them all.")
### END HIDDEN TESTS


# %% [markdown]
# ## 3 · Do the two start alike?
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# Equal seeds are worth nothing if the two models draw different weights all the same. Give the sorted names of the
# parameters that **both** models have and that start with different shapes or values.


# %% nbgrader={"grade_id": "unequal_start", "solution": true}
def unequal_start(one: torch.nn.Module, other: torch.nn.Module) -> list[str]:
    """Sorted parameter names."""
    ### BEGIN SOLUTION
    first, second = dict(one.named_parameters()), dict(other.named_parameters())
    return sorted(name for name in first.keys() & second.keys() if not torch.equal(first[name], second[name]))
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_unequal_start", "grade": true, "points": 2}
haares = build_model(BASE)
checks.equal(unequal_start(haares, build_model(BASE)), [], "Equal settings start from equal weights.")
assert "embed.weight" in unequal_start(haares, build_model({**BASE, "seed": 1})), (
    "Another seed draws other weights, and embed.weight is one of them."
)
### BEGIN HIDDEN TESTS
other = build_model({**BASE, "detail": "none"})
checks.equal(unequal_start(haares, other), [], "A parameter that only one of them has is no difference.")
with torch.no_grad():
    other.sublayers[1].down.weight[0, 0] += 1e-3
checks.equal(unequal_start(haares, other), ["sublayers.1.down.weight"], "One number of one matrix was changed.")
checks.equal(unequal_start(other, haares), ["sublayers.1.down.weight"], "The other way round it is the same.")
wider = unequal_start(haares, build_model({**BASE, "blocks": 4, "width": 16}))
assert "norm.gain" in wider, "Another shape is a difference."
### END HIDDEN TESTS


# %% [markdown]
# ## 4 · Your experiment
# *3 points · about 30 minutes · difficulty 2 of 3*
#
# Run it: `BASE` (the second slot repeats the sum) against one change of yours, on at least three seeds. The obvious
# change is `{"detail": "half"}`; `"none"`, `"random_sign"`, `"phase"`, or something else that `BASE` sets will do as
# well. For a report worth reading, raise `"steps"` in the base; keep a single run under 15 seconds. Give a list of
# rows, each a dict with the settings and their `"loss"`. One of your runs is repeated when you hand in.

# %% nbgrader={"grade_id": "experiment", "solution": true}
# Set CHANGE (a dict), SEEDS (a list) and results (a list of dicts: the settings of a run, and its "loss").
### BEGIN SOLUTION
CHANGE, SEEDS = {"detail": "half"}, [42, 123, 2026]
results = [{**settings, "loss": short_run(settings)} for pair in plan(BASE, CHANGE, SEEDS) for settings in pair]
### END SOLUTION

# %% nbgrader={"grade_id": "check_experiment", "grade": true, "points": 3}
assert len(set(SEEDS)) >= 3, "Use at least three different seeds."
checks.equal(len(results), 2 * len(SEEDS), "Two runs for each seed.")
for row in results:
    assert math.isfinite(row["loss"]) and row["loss"] > stories.exact_floor() / 2, (
        f"{row['loss']} cannot be a loss here."
    )
for first, second in zip(results[::2], results[1::2], strict=True):
    changed = set(difference(first, second)) - {"loss"}
    assert changed == set(CHANGE), f"Rows come in pairs that differ in the change alone; here {sorted(changed)} differ."
### BEGIN HIDDEN TESTS
checks.equal(sorted(row["seed"] for row in results), sorted([*SEEDS, *SEEDS]), "Each of SEEDS has its two runs.")
losses = [row["loss"] for row in results]
checks.equal(len(set(losses)), len(losses), "Two of your losses are equal to the last digit: was a run copied?")
for row in (results[-1], results[2]):
    again = short_run({name: value for name, value in row.items() if name != "loss"})
    checks.close(
        row["loss"], again, f"The run with seed {row['seed']} was repeated and gave another loss.", relative=1e-3
    )
### END HIDDEN TESTS


# %% [markdown]
# ## 5 · Paired differences
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# Seeds differ more from each other than schemes do, so look at the difference **within** each pair: changed minus base,
# so that a negative number is a gain. Give the differences in the order of the seeds, their mean, and the standard
# error of that mean (the sample standard deviation, with $n - 1$, divided by $\sqrt n$).


# %% nbgrader={"grade_id": "paired", "solution": true}
def paired(base: dict[int, float], changed: dict[int, float]) -> tuple[list[float], float, float]:
    """base, changed: seed -> loss, for the same seeds. -> (differences by ascending seed, mean, standard error)."""
    ### BEGIN SOLUTION
    gaps = [changed[seed] - base[seed] for seed in sorted(base)]
    return gaps, statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_paired", "grade": true, "points": 2}
gaps, mean, error = paired({1: 2.0, 2: 3.0, 3: 4.0}, {1: 1.9, 2: 2.8, 3: 3.7})
checks.close(gaps, [-0.1, -0.2, -0.3], "Changed minus base, seed by seed.")
checks.close(mean, -0.2, "The mean of the differences.")
### BEGIN HIDDEN TESTS
checks.close(error, 0.1 / math.sqrt(3), "It is the spread of the differences that counts, not that of the losses.")
gaps, mean, error = paired({7: 1.0, 3: 2.0, 5: 1.5, 4: 1.0}, {5: 1.5, 4: 1.4, 3: 2.2, 7: 0.8})
checks.close(gaps, [0.2, 0.4, 0.0, -0.2], "The dicts need not be sorted, or in the same order: pair them by seed.")
checks.close((mean, error), (0.1, math.sqrt((0.01 + 0.09 + 0.01 + 0.09) / 3 / 4)), "n − 1 in the variance, then √n.")
### END HIDDEN TESTS


# %% [markdown]
# ## 6 · How sure?
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# A 95 % confidence interval for the true mean difference: mean ± $t$ standard errors, where $t$ is the 97.5 % quantile
# of Student's distribution with $n - 1$ degrees of freedom (`scipy.stats`). With three seeds $t = 4.30$: it is not the
# 1.96 of many.


# %% nbgrader={"grade_id": "interval", "solution": true}
def interval(gaps: list[float]) -> tuple[float, float]:
    """(low, high) from at least two differences."""
    ### BEGIN SOLUTION
    error = statistics.stdev(gaps) / math.sqrt(len(gaps))
    reach = float(stats.t.ppf(0.975, len(gaps) - 1)) * error
    return statistics.fmean(gaps) - reach, statistics.fmean(gaps) + reach
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_interval", "grade": true, "points": 2}
low, high = interval([0.1, 0.2, 0.3, 0.2, 0.2])
checks.close((low + high) / 2, 0.2, "The interval lies around the mean.")
assert low < 0.2 < high, "The first number is the lower end."
### BEGIN HIDDEN TESTS
for gaps in ([-0.1, -0.2, -0.3], [0.5, 0.1], [0.1, 0.2, 0.3, 0.2, 0.2, -0.4]):
    t = stats.t.interval(0.95, len(gaps) - 1, loc=np.mean(gaps), scale=stats.sem(gaps))
    checks.close(interval(gaps), [float(x) for x in t], f"{len(gaps)} differences: Student's t with {len(gaps) - 1}.")
### END HIDDEN TESTS


# %% [markdown]
# ## 7 · A test without assumptions
# *3 points · about 25 minutes · difficulty 3 of 3*
#
# If the change did nothing, each difference might as well have had the other sign. Go through all $2^n$ ways to give
# signs to the differences; the *p-value* is the share of them whose mean is **at least as far from 0**, on either side,
# as the one you found. (Allow for rounding: a mean within $10^{-12}$ of yours counts as equal.) What is the smallest p
# that three seeds can give?


# %% nbgrader={"grade_id": "sign_flip", "solution": true}
def sign_flip(gaps: list[float]) -> float:
    """The exact two-sided p-value."""
    ### BEGIN SOLUTION
    found = abs(sum(gaps))
    sums = [
        abs(sum(s * x for s, x in zip(signs, gaps, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(gaps))
    ]
    return sum(total >= found - 1e-12 * len(gaps) for total in sums) / len(sums)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_sign_flip", "grade": true, "points": 3}
checks.close(sign_flip([-0.1, -0.2, -0.4]), 0.25, "All three agree; of 8 ways, +++ and −−− are as extreme: p = 2/8.")
### BEGIN HIDDEN TESTS
checks.close(sign_flip([0.3]), 1.0, "One difference says nothing: its mirror image is as far from 0.")
checks.close(sign_flip([0.1, 0.2, -0.3]), 1.0, "A mean of 0: nothing is nearer.")
checks.close(sign_flip([0.1, 0.1, 0.1, -0.1]), 10 / 16, "Equal means count: 2 with four alike, 8 with three.")
checks.close(sign_flip([0.1, 0.2, 0.4, -0.05]), 4 / 16, "0.65 is reached by ++++, +++− and their mirror images.")
### END HIDDEN TESTS


# %% [markdown]
# ## 8 · A verdict
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# Say beforehand which difference would matter (`margin` > 0), then let the interval (`low`, `high`) decide:
#
# * `"better"` if all of it is below 0 (a negative difference is a gain), `"worse"` if all of it is above 0;
# * `"no difference that matters"` if it contains 0 and lies wholly inside (−margin, margin);
# * `"undecided"` otherwise: the data fit both nothing and something that matters.


# %% nbgrader={"grade_id": "verdict", "solution": true}
def verdict(low: float, high: float, margin: float) -> str:
    """One of the four."""
    ### BEGIN SOLUTION
    if high < 0:
        return "better"
    if low > 0:
        return "worse"
    return "no difference that matters" if -margin < low and high < margin else "undecided"
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_verdict", "grade": true, "points": 2}
checks.equal(verdict(-0.03, -0.01, 0.02), "better", "The whole interval is below 0.")
checks.equal(verdict(-0.05, 0.04, 0.02), "undecided", "It may be a gain or a loss that matters.")
### BEGIN HIDDEN TESTS
checks.equal(verdict(0.01, 0.03, 0.02), "worse", "The whole interval is above 0: the loss went up.")
checks.equal(verdict(-0.01, 0.015, 0.02), "no difference that matters", "It is known to be small.")
checks.equal(verdict(-0.01, 0.03, 0.02), "undecided", "It could be 0, and it could be a loss that matters.")
checks.equal(verdict(-0.03, 0.01, 0.02), "undecided", "It could be 0, and it could be a gain that matters.")
### END HIDDEN TESTS


# %% [markdown]
# Your own numbers, through your own tools:

# %% nbgrader={"grade_id": "given_summary", "locked": true}
my_base = {row["seed"]: row["loss"] for row in results[::2]}
my_changed = {row["seed"]: row["loss"] for row in results[1::2]}
my_gaps, my_mean, my_error = paired(my_base, my_changed)
print(f"change {CHANGE}, {BASE['steps']} steps, seeds {sorted(my_base)}")
print("differences:", [f"{gap:+.4f}" for gap in my_gaps], f"mean {my_mean:+.4f} ± {my_error:.4f}")
print("95 % interval: {:+.4f} … {:+.4f};".format(*interval(my_gaps)), f"p = {sign_flip(my_gaps):.3f}")
print("verdict at a margin of 0.01:", verdict(*interval(my_gaps), 0.01))

# %% [markdown]
# ## 9 · The report
# *6 points · about 45 minutes · difficulty 2 of 3*
#
# At most 300 words, for a reader who has not seen this notebook. One point for each of these:
#
# 1. the question, the change, and what was **held equal**;
# 2. the numbers: every seed, the mean difference with its interval, in nats per character;
# 3. a verdict that the numbers carry, with the margin that you set before you looked;
# 4. what would have **changed your mind**, and at least one other explanation that the runs do not rule out;
# 5. what you tried and left out: runs that failed, changes that you looked at first;
# 6. the next experiment, and what it would cost.
#
# A clear “undecided” is worth as much as a gain.

# %% [markdown] nbgrader={"grade_id": "report", "grade": true, "points": 6, "solution": true}
# ### BEGIN SOLUTION
# **Question.** HAARES keeps a second vector of each block, the difference of its halves. Is it the difference that
# helps, or just a second slot? We compare `detail=half` with `detail=duplicate`, where the second slot repeats the sum.
# Equal in both: the backbone and its start (no shared parameter differs), the data and their order, steps, learning
# rate, number of slots and parameters.
#
# **Numbers.** The table above gives three seeds, their mean difference and its interval, in nats per character.
#
# **Verdict.** The margin was set to 0.01 before the runs. If the interval contains 0 and exceeds the margin, the
# verdict is *undecided*; three seeds can never give a p below 0.25, so no other claim was possible from the sign alone.
#
# **What would change my mind.** Ten seeds whose interval stays clear of 0. Other explanations: so few steps train
# mostly the embedding, and at 2 layers a block is 2 events, so the pair recovers both outputs exactly.
#
# **Left out.** One trial run with a higher learning rate, to see that the loop works; no other change was looked at.
#
# **Next.** The same with 8 layers, 500 steps and ten seeds: about an hour on two cores.
# ### END SOLUTION
