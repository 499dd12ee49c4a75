# %% [markdown]
# # 03 · Training: what does the paper's recipe do, and how do I know a run is right?
#
# A training run always gives numbers; the question is whether to believe them. This chapter builds the recipe of the
# HAARES paper (arXiv 2606.06564, section 5.2) piece by piece, shows that the pieces together give the package's
# losses, and then asks what a correct run looks like: how it starts, how far it can get, how much of it is chance,
# and what it does when the computer is switched off half-way. Twice we break it on purpose, and the floor of chapter
# 02 tells on us.
#
# > **You will build** AdamW, gradient clipping, an order of batches that needs no memory, and the training loop.
# >
# > **You will learn** to read a learning curve against its floors, what a seed changes, and a list of checks that
# > takes a minute and saves days.
# >
# > **You need** the floors of chapter 02, and a little PyTorch. The model is that of chapter 01, taken as it is.
# >
# > **Runs in** about 30 seconds on 2 cores, without a network.

# %%
import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn import functional as F

from minihaares import plots, stories
from minihaares.data import BOS, EOT, IGNORED, PAD, Corpus, DataConfig, batch, chunk, load_corpus, train_char
from minihaares.model import ModelConfig, Transformer, generate
from minihaares.train import RunConfig, TrainConfig, evaluate, load_run, parameter_groups, train

plots.use_style()
scratch = tempfile.TemporaryDirectory()  # for the runs of this chapter; gone when it is closed
runs = Path(scratch.name)


# %% [markdown]
# ## The recipe
#
# | | the paper | here |
# |---|---|---|
# | optimizer | AdamW, $\beta = (0.9, 0.95)$, $\epsilon = 10^{-8}$ | the same |
# | learning rate | $3\cdot10^{-4}$, constant: no warmup, no decay | constant, larger, since our models are tiny |
# | weight decay | 0.01, on matrices of the backbone only | the same |
# | clipping | global gradient norm at most 1 | the same |
# | batch | 16 chunks of 512 tokens | 2 or 16 short ones |
# | steps | 30,000 or 50,000 | 300 or 400 |
# | endpoint | the best of the scheduled validation losses | the same |
# | precision | float32; no dropout, no early stopping | the same |
#
# ## AdamW, for one parameter
#
# Let the loss be $(w - 3)^2$ and start at $w = 0$, where the gradient is $g = -6$. Plain gradient descent would step by
# the learning rate $\eta$ times 6, and if somebody multiplied the loss by 1000, by 6000. Adam divides the gradient by a
# running estimate of its own size. It keeps two running means, of $g$ and of $g^2$,
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\,g,\qquad v \leftarrow \beta_2 v + (1 - \beta_2)\,g^2,\qquad
# w \leftarrow w - \eta\,\frac{m/(1 - \beta_1^t)}{\sqrt{v/(1 - \beta_2^t)} + \epsilon},$$
#
# and the two divisions by $1 - \beta^t$ make up for starting from zero. By hand, the first step: $m = 0.1\cdot(-6)$,
# divided by $1 - 0.9$ gives $-6$; $v = 0.05\cdot36$, divided by $1 - 0.95$ gives $36$; so $w$ moves by
# $\eta\cdot6/\sqrt{36} = \eta$. Whatever the gradient, the first step has the size of the learning rate.
#
# The W is for weight decay that is *decoupled* from all this: before the step, $w$ shrinks by $\eta\lambda w$.

# %%
class HandAdamW:
    def __init__(self, groups, lr=3e-4, beta1=0.9, beta2=0.95, eps=1e-8):
        self.groups, self.lr, self.beta1, self.beta2, self.eps, self.t = groups, lr, beta1, beta2, eps, 0
        self.m, self.v = ({p: torch.zeros_like(p) for group in groups for p in group["params"]} for _ in range(2))

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.groups:
            for p in group["params"]:
                p -= self.lr * group["weight_decay"] * p
                self.m[p] = self.beta1 * self.m[p] + (1 - self.beta1) * p.grad
                self.v[p] = self.beta2 * self.v[p] + (1 - self.beta2) * p.grad**2
                mean, size = self.m[p] / (1 - self.beta1**self.t), (self.v[p] / (1 - self.beta2**self.t)).sqrt()
                p -= self.lr * mean / (size + self.eps)


def descend(make, scale=1.0, steps=100):  # the ways of w for the loss scale · (w - 3)²
    w, way = torch.zeros(1, dtype=torch.float64, requires_grad=True), [0.0]
    optimizer = make([{"params": [w], "weight_decay": 0.01}])
    for _ in range(steps):
        w.grad = None
        (scale * (w - 3) ** 2).sum().backward()
        optimizer.step()
        way.append(w.item())
    return way


# %%
ours = descend(lambda groups: HandAdamW(groups, lr=0.1))
theirs = descend(lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95)))
louder = descend(lambda groups: HandAdamW(groups, lr=0.1), scale=1000.0)
assert np.allclose(ours, theirs, rtol=1e-12) and np.allclose(ours, louder, rtol=1e-6)
print("the first steps:", [f"{w:.4f}" for w in ours[:5]], f"… after 100: {ours[-1]:.3f}")
print("equal: ours, PyTorch's, and ours with the loss multiplied by 1000")


# %% [markdown]
# After 100 steps $w$ is close to 3. With a constant rate, nothing but the gradient's own history makes the last steps
# small: a point to which we shall come back.
#
# ## Clipping
#
# Now and then a batch gives a gradient far larger than usual. **Clipping** looks at all gradients of the model as one
# long vector and, if it is longer than 1, scales it down to length 1. Its direction stays. By hand, the gradient
# $(3, 4)$ has length 5 and becomes $(0.6, 0.8)$.

# %%
def clip(parameters, longest=1.0):
    parameters = [p for p in parameters if p.grad is not None]
    norm = torch.stack([p.grad.square().sum() for p in parameters]).sum().sqrt()
    for p in parameters:
        p.grad *= min(1.0, longest / (norm.item() + 1e-6))  # the 1e-6 is PyTorch's
    return norm.item()


two = [torch.zeros(1, requires_grad=True) for _ in range(2)]
for ours in (True, False):
    for p, g in zip(two, (3.0, 4.0), strict=True):
        p.grad = torch.tensor([g])
    norm = clip(two) if ours else torch.nn.utils.clip_grad_norm_(two, 1.0).item()
    print("ours:   " if ours else "PyTorch:", f"norm {norm:.1f}, clipped", [f"{p.grad.item():.4f}" for p in two])

# %% [markdown]
# Adam divides by the gradient's size anyway; what is clipping for, then? It keeps one wild batch from spoiling $m$ and
# $v$ for the twenty steps that $\beta_2$ remembers.
#
# ## Two groups of parameters
#
# Weight decay pulls matrices towards zero. Pulling a norm's gain towards zero makes no sense (its natural place is 1),
# and the parameters that steer the residual stream are few and must be free. So there are two groups. The rule, for a
# model with HAARES's router in it:

# %%
small = ModelConfig(layers=2, width=48, heads=3, ff=96)  # our model; the paper's "medium": 48 layers, 512, 8, 2048
routed = Transformer(replace(small, scheme="haares"))
decays, free = parameter_groups(routed, weight_decay=0.01)
names = {p: name for name, p in routed.named_parameters()}
for group in (decays, free):
    kinds = sorted({re.sub(r"sublayers\.\d+\.", "", names[p]) for p in group["params"]})
    numbers = sum(p.numel() for p in group["params"])
    print(f"weight decay {group['weight_decay']:.2f}: {len(group['params']):2d} tensors, {numbers:6,} numbers:", *kinds)

by_hand = {p for p, name in names.items() if p.ndim >= 2 and not name.startswith("residual.")}
assert by_hand == set(decays["params"]) and set(names) - by_hand == set(free["params"])

# %% [markdown]
# The embedding is a matrix and decays, since it is also the head; the paper does not say so, that is our reading.
#
# ## Which chunks, in which order?
#
# Every epoch goes through all chunks once, in a new random order. The usual loader keeps an iterator somewhere, and
# when a run is stopped the iterator is lost. Here the batch is a **pure function** of the step and the data seed: epoch
# number $e$ has the permutation drawn from $(\text{seed}, e)$, and step $s$ takes places $sB, \dots, sB + B - 1$ of the
# endless row of permutations. There is nothing to save.

# %%
rows = np.arange(10)[:, None] * np.ones(3, int) + 10  # ten chunks of three tokens: 10 10 10, 11 11 11, ...


def order(step, size, seed, chunks=10):
    places = range(step * size, (step + 1) * size)
    return [np.random.default_rng((seed, place // chunks)).permutation(chunks)[place % chunks] for place in places]


taken = [batch(rows, step, 4, seed=42)[0][:, 0] - 10 for step in range(5)]  # two epochs in five steps
assert all(chunks.tolist() == order(step, 4, seed=42) for step, chunks in enumerate(taken))
print(*(chunks.tolist() for chunks in taken))
first, second = torch.cat(taken).split(10)
assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10)), "each chunk once an epoch"

# %% [markdown]
# ## A text that can be finished
#
# The built-in stories take minutes to learn. To see whole runs in seconds, we write **postcards**, with a grammar
# like that in chapter 02: somebody had a toy, and somebody else found it. The toy of the second sentence is known
# from the first, so the forgetful reader and the perfect one are far apart. (A line break in the template ends a
# sentence, where the forgetful reader forgets; in the text it is a space.)

# %%
POSTCARD = "{Hero} had {a toy.look} {toy}.\n{Friend} [found|saw] the {toy.look} {toy}[.$|!$]"
TABLES = {
    "hero": "Lily; Tom; Mia; Ben; Anna; Sam; Nora; Leo",
    "friend": "Ruby; Max; Zoe; Hugo; Ivy; Finn; Clara; Jack",
    "toy: toy.look": "ball: red, blue, big; kite: yellow, long, old; drum: loud, round, green; boat: wooden, white",
}
grammar = stories.Grammar(POSTCARD, [stories.word_table(*table) for table in TABLES.items()])
draws = np.random.default_rng(42)
postcards = [grammar.write(draws) for _ in range(4_000)]
train_part, valid_part = postcards[:3_936], postcards[3_936:]
tokenizer = train_char(card.text for card in train_part)
LONGEST = max(len(card.text) for card in postcards) + 2  # with BOS and EOT


def encode(cards):  # [n, LONGEST]: BOS, text, EOT, PAD ...
    framed = [np.concatenate([[BOS], tokenizer.encode(card.text), [EOT]]) for card in cards]
    return np.concatenate([chunk(ids, LONGEST, pad=True) for ids in framed])


print("\n".join(card.text for card in postcards[:3]))
print(f"{stories.moments(grammar, 'story')[2]:,} different postcards, {tokenizer.vocab_size} entries, {LONGEST} tokens")
known = {card.text for card in train_part}
print(f"of {len(valid_part)} validation cards {sum(card.text in known for card in valid_part)} are training cards, too")


# %% [markdown]
# So most validation cards were training cards before. The floor holds all the same, because the two sets are drawn
# independently (exercise 2.5). That the model can write cards it never saw is not tested here.
#
# The floors of a set of postcards are the mean prices of its own symbols (chapter 02). Text, tokenizer and floors go
# into a `Corpus`, the same value that `load_corpus` returns for the big texts.

# %%
def floor(cards, memory="story"):  # nats a symbol, of the perfect reader or of the one that forgets
    return np.concatenate([grammar.surprisal(card.text, memory) for card in cards]).mean()


exact, forgetful = floor(valid_part), floor(valid_part, "sentence")
corpus = Corpus("postcards", "written here", "postcards", tokenizer, encode(train_part), encode(valid_part),
                kept=1.0, characters_per_token=1.0, floor=exact, forgetful=forgetful)  # fmt: skip


def counting(corpus, context):  # validation loss of letter frequencies (context 0), or given the letter before (1)
    counts = np.ones((corpus.tokenizer.vocab_size,) * 2)  # [before, after]; one more of each than there is
    np.add.at(counts, (corpus.train[:, :-1] * context, corpus.train[:, 1:]), 1)
    counts[:, PAD] = 0  # nobody has to predict it
    before, after = corpus.valid[:, :-1] * context, corpus.valid[:, 1:]
    return -np.log((counts / counts.sum(axis=1, keepdims=True))[before[after != PAD], after[after != PAD]]).mean()


LINES = {
    "uniform, log V": math.log(tokenizer.vocab_size),
    "letter frequencies": counting(corpus, 0),
    "forgetful reader": forgetful,
    "exact floor": exact,
}
for name, value in LINES.items():
    print(f"{name:18s} {value:.4f} nats a symbol")


# %% [markdown]
# ## The loss, and the loop
#
# Inputs and targets are the same row, shifted by one: at each place the model has read so far and must say what comes
# next. PAD is not to be predicted; its targets are marked with $-100$ and left out of the mean.

# %%
inputs, targets = batch(corpus.train, step=0, batch_size=2, seed=42)
shown = {BOS: "⊢", EOT: "⊣", IGNORED: "-"}
for name, ids in (("reads", inputs[0]), ("says", targets[0])):
    print(f"{name:5s} ", "".join(shown.get(i) or tokenizer.decode([i]) or "-" for i in ids.tolist()))


def loss_of(model, inputs, targets):  # the mean of -log p over the targets that count
    prices = -torch.log_softmax(model(inputs), dim=-1)  # [B, T, V]
    counted = targets != IGNORED
    return prices[counted].gather(-1, targets[counted][:, None]).mean()


small = replace(small, vocab_size=tokenizer.vocab_size, scheme="standard")
model = Transformer(small, seed=42)
theirs = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
torch.testing.assert_close(loss_of(model, inputs, targets), theirs)
assert math.isclose(evaluate(model, corpus.valid[:2], batch_size=2), loss_of(
    model, *batch(corpus.valid[:2], 0, 2, seed=0)).item(), rel_tol=1e-5)  # fmt: skip


# %% [markdown]
# (The first line begins with BOS, drawn `⊢`; the second ends with EOT, `⊣`, and PAD is `-`.) All parts are there.
# Here is the loop, made of our own parts only, next to the package's `train` with the same settings. Do they give
# the same losses?

# %%
def our_loop(steps, lr, see=lambda inputs, targets: inputs, chunks=corpus.train, on_step=None, size=16):
    model = Transformer(small, seed=42)
    optimizer = HandAdamW(parameter_groups(model, weight_decay=0.01), lr=lr)
    losses = []
    for step in range(steps):
        inputs, targets = batch(chunks, step, size, seed=42)
        loss = loss_of(model, see(inputs, targets), targets)
        model.zero_grad()
        loss.backward()
        clip(model.parameters())
        optimizer.step()
        losses.append(loss.item())
        if on_step:
            on_step(step + 1, model)
    return losses


recipe = TrainConfig(steps=300, batch_size=16, lr=5e-3, eval_every=10, device="cpu", out=runs / "seed-42")
base = RunConfig(small, DataConfig(context=LONGEST - 1), recipe)
short = replace(base, train=replace(recipe, steps=20, eval_every=1, eval_chunks=1, out=runs / "loop"))
theirs = [row.train_loss for row in train(short, corpus, progress=False).curve[1:]]
ours = our_loop(20, recipe.lr)
assert np.allclose(ours, theirs, rtol=1e-3)
print(f"equal: the training losses of {len(ours)} steps; the first {ours[0]:.3f}")

# %% [markdown]
# The package's loop adds what a long run needs: evaluations, checkpoints, a progress bar, and a way to stop.
#
# ## Three runs
#
# Now the real thing: three runs that differ in nothing but the **model seed**, the number that draws the first
# weights. The order of the batches, a seed of its own, stays the same.

# %% tags=["nbval-ignore-output"]
results = {}
for seed in (42, 123, 2026):  # the paper's model seeds
    config = replace(base, train=replace(recipe, seed=seed, out=runs / f"seed-{seed}"))
    results[seed] = train(config, corpus, progress=False)
print("model seed   best loss   at step   last loss   best above the exact floor")
for seed, result in results.items():
    line = f"{seed:10d} {result.best_loss:11.4f} {result.best_step:9d} {result.last_loss:11.4f}"
    print(f"{line} {result.best_loss - exact:12.4f}")
assert all(exact < result.best_loss < forgetful for result in results.values())

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4.2), width_ratios=(2.2, 1))
styles = ((plots.BLACK, "-", "o"), (plots.BLUE, "--", "s"), (plots.ORANGE, "-.", "D"))
for (seed, result), (colour, line, marker) in zip(results.items(), styles, strict=True):
    steps, values = zip(*((row.step, row.valid_loss) for row in result.curve), strict=True)
    left.plot(steps, values, color=colour, ls=line, label=f"model seed {seed}")
    right.plot(str(seed), result.last_loss, marker, color=colour, markerfacecolor="white", markersize=8)
    right.plot(str(seed), result.best_loss, marker, color=colour, markersize=8)
for axis in (left, right):
    axis.axhline(forgetful, **plots.FLOOR_STYLE["forgetful"])
    axis.axhline(exact, **plots.FLOOR_STYLE["exact"])
left.axhline(LINES["uniform, log V"], color="0.6", ls="--", lw=1, label="uniform, log V")
left.axhline(LINES["letter frequencies"], color="0.6", ls="-.", lw=1, label="letter frequencies")
left.set(title="From knowing nothing to the floor", xlabel="step", ylabel="validation loss, nats a symbol")
left.set(yscale="log", ylim=(0.13, 5))
left.set_yticks([0.2, 0.5, 1, 2, 4], ["0.2", "0.5", "1", "2", "4"])
left.minorticks_off()
left.legend(fontsize=9)
right.set(title="The end: best ●, last ○", xlabel="model seed", ylim=(exact - 0.01, forgetful + 0.02), xlim=(-0.6, 2.6))
plots.show(
    fig,
    alt="Left: validation loss of three runs on a logarithmic axis. All start at the uniform line, pass the line for "
    "letter frequencies within twenty steps, cross the dotted line of the forgetful reader by step 200 and"
    " then jitter, mostly between the two floors. Right: the best and the last loss of each run, all between the two "
    "floors; the best lies below the last by as much as the seeds differ, or more.",
)

# %% [markdown]
# Read the curve from the top. At step 0 the model knows nothing, and its loss is $\log V$, that of a uniform guess.
# Within a few steps it knows how frequent the letters are. Then come words and sentences, and then it passes the
# forgetful reader: from here on it must be carrying the toy across the full stop. It comes close to the exact floor and
# does not reach it.
#
# **Best and last.** At a constant rate the model never comes to rest, so the loss jitters, and the last value is a draw
# from that jitter. The paper's endpoint is the *best scheduled* validation loss. It is steadier, and a little too
# kind: the smallest of many noisy numbers is smaller than their mean, and the more often one looks, the smaller. So
# two runs may be compared by their best only if they were evaluated on the same schedule.
#
# **Seeds.** The three endpoints differ although nothing but the first weights did. Whoever claims that one
# architecture is better by less than that needs more seeds, and *pairs* of runs that begin with equal weights. That is
# the most important sentence of this chapter.
#
# ### What the model learned
#
# The model of the best evaluation is kept. Let it write, and let the grammar be the judge: `grammar.surprisal` refuses
# a text that no choices can make.

# %% tags=["nbval-ignore-output"]
trained, _, _ = load_run(results[42].out)
start = torch.full((50, 1), BOS)
made = generate(trained, start, LONGEST - 1, stop_token=EOT, generator=torch.Generator().manual_seed(0))
cards = [tokenizer.decode(row) for row in made.tolist()]


def correct(text):
    try:
        grammar.surprisal(text, "story")
    except ValueError:
        return False
    return True


print("\n".join(f"{'correct' if correct(card) else 'wrong':8s} {card}" for card in cards[:6]))
print(sum(map(correct, cards)), "of", len(cards), "are postcards of the grammar")
assert sum(map(correct, cards)) > len(cards) / 3


# %% [markdown]
# ## The same again: to the last bit
#
# On a CPU, the same settings and the same number of threads give the same losses, not nearly but exactly. That makes
# every surprise a fact that can be looked into.

# %%
def losses(result):
    return [(row.step, row.tokens, row.train_loss, row.valid_loss) for row in result.curve]


brief = replace(base, train=replace(recipe, steps=24, eval_every=6, eval_chunks=16, out=runs / "once"))
once = train(brief, corpus, progress=False)
again = train(replace(brief, train=replace(brief.train, out=runs / "again")), corpus, progress=False)
other = train(replace(brief, train=replace(brief.train, out=runs / "other", data_seed=43)), corpus, progress=False)
print("same seeds:         every loss the same to the last bit:", losses(once) == losses(again))
print("another data seed:  every loss the same:                ", losses(once) == losses(other))
assert losses(once) == losses(again) != losses(other)


# %% [markdown]
# ## Pulling the plug
#
# Long runs get interrupted. The test of a resume is strict: the interrupted run must end with the same numbers, all of
# them, as one that was never touched. What must be saved? Weights, both running means of AdamW, its step count, the
# place in the data (the step is enough) and the state of the random numbers. The package writes all of it into one file
# at each evaluation, under another name first, so that a crash while saving does no harm.
#
# We pull the plug at step 12, at the worst moment: the evaluation is done, the checkpoint not yet written.

# %%
class PowerCut(Exception):
    pass


def cut(row, model):
    if row.step == 12:
        raise PowerCut


interrupted = replace(brief, train=replace(brief.train, out=runs / "cut"))
try:
    train(interrupted, corpus, progress=False, on_eval=cut)
except PowerCut:
    print("files left behind:", *sorted(path.name for path in (runs / "cut").iterdir() if path.name[0] != "."))

steps_seen = []
resumed = train(interrupted, corpus, progress=False, on_eval=lambda row, model: steps_seen.append(row.step))
print("evaluations after resuming:", steps_seen)
print("every loss the same as without the cut:", losses(resumed) == losses(once))
assert losses(resumed) == losses(once) and steps_seen == [12, 18, 24]

# %% [markdown]
# It went on from step 6, the last save, and did steps 7 to 12 once more, to the same bits. With the wrong kind of
# resume (fresh AdamW means, or a fresh order of the data) the curve goes on smoothly, too, and looks fine. Only
# equality shows that nothing was lost.
#
# ## How do I know a run is right?
#
# Five checks, in the order in which they cost time.
#
# **1. The first loss is $\log V$**, or a little more. If not, the weights start too large, or targets are mixed up.

# %%
for scheme in ("standard", "block", "haares"):
    fresh = Transformer(replace(small, scheme=scheme, options={} if scheme == "standard" else {"blocks": 2}), seed=42)
    first = evaluate(fresh, corpus.valid, batch_size=50)
    print(f"{scheme:9s} first loss {first:.3f}   log V {math.log(tokenizer.vocab_size):.3f}")
    assert abs(first - math.log(tokenizer.vocab_size)) < 0.1

# %% [markdown]
# **2. It can learn one batch by heart.** Give it 8 postcards and nothing else. A model with tens of thousands of
# parameters must be able to say them by heart; one that cannot has a bug in the loss, the optimizer or the gradients.
#
# **3. It passes what counting can do.** Letter frequencies within dozens of steps; n-grams (chapter 02) later.
#
# **4. It does not pass the floor.** See below.
#
# **5. It does the same again**, also after an interruption.
#
# ### Two wrong turns, and how the floor finds them
#
# *The shift is forgotten.* Then the model is asked for the very symbol that it was just given. Every language-model
# author has done this once.
#
# *Training text among the validation text.* We run check 2, and "validate" on the same 8 postcards.

# %%
def watch(kept, cards):  # an on_step that measures on these cards
    chunks = encode(cards)
    return lambda step, model: kept.append(evaluate(model, chunks, 50)) if step % 5 == 0 else None


kept = {"honest": [], "shift forgotten": [], "the 8 it trains on": [], "others": []}
our_loop(100, recipe.lr, on_step=watch(kept["honest"], valid_part[:50]))
eight = train_part[:8]


def both(step, model):
    watch(kept["the 8 it trains on"], eight)(step, model)
    watch(kept["others"], valid_part[:50])(step, model)


learned_by_heart = our_loop(100, recipe.lr, chunks=encode(eight), size=8, on_step=both)
assert learned_by_heart[-1] < 0.1, "check 2"


# %% [markdown]
# For the forgotten shift, what the model reads is replaced by what it must say. Its loss has to be measured with the
# same mistake, as it would be in a program that has it.

# %%
def unshifted(inputs, targets):
    return targets.clamp(min=PAD)  # -100 back to PAD


def watch_unshifted(step, model):
    if step % 5 == 0:
        inputs, targets = batch(corpus.valid[:50], 0, 50, seed=0)
        with torch.no_grad():
            kept["shift forgotten"].append(loss_of(model, unshifted(inputs, targets), targets).item())


our_loop(100, recipe.lr, see=unshifted, on_step=watch_unshifted)
floors = {"all": floor(valid_part[:50]), "eight": floor(eight)}
assert kept["shift forgotten"][-1] < floors["all"] / 2, "below the floor: it is told the answer"
assert kept["the 8 it trains on"][-1] < floors["eight"] / 2, "below the floor of these very cards: it knows them"
assert kept["others"][-1] > 1 and kept["honest"][-1] > floors["all"]
print(f"exact floor of the 50 validation postcards {floors['all']:.3f}, of the 8 {floors['eight']:.3f}")

# %% tags=["nbval-ignore-output"]
for name, values in kept.items():
    print(f"{name:20s} after 25 steps {values[4]:.3f}, after 100 steps {values[-1]:.3f}")

# %%
fig, axis = plt.subplots(figsize=(8, 4.1))
looks = {"honest": (plots.BLACK, "-"), "shift forgotten": (plots.BLUE, "--"),
         "the 8 it trains on": (plots.VERMILION, "-."), "others": (plots.VERMILION, ":")}  # fmt: skip
for name, values in kept.items():
    colour, line = looks[name]
    label = f"8 postcards, on {name}" if name in ("others", "the 8 it trains on") else name
    axis.plot(range(5, 101, 5), values, color=colour, ls=line)
    axis.text(101, values[-1], label, va="center", fontsize=9.5)
axis.axhline(floors["all"], **plots.FLOOR_STYLE["exact"])
axis.text(101, floors["all"], "exact floor", va="center", fontsize=9.5)
axis.fill_between([0, 100], 0.0008, floors["all"], hatch="///", facecolor="none", edgecolor="0.85", linewidth=0)
axis.set(yscale="log", xlim=(0, 100), ylim=(0.0008, 8), xlabel="step", ylabel="measured loss, nats a symbol")
axis.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
axis.minorticks_off()
axis.set_title("Below the floor, something is wrong")
plots.show(
    fig,
    alt="Measured loss against the step for four measurements, on a logarithmic axis; the region below the exact floor "
    "is hatched. The honest run comes down towards the floor. The run with the shift forgotten dives through the floor "
    "within a few dozen steps. A run on 8 postcards dives through it, too, when measured on these 8; the same run "
    "measured on other postcards turns and stays far above.",
)

# %% [markdown]
# Both mistakes look like a triumph. On real text nobody could say, from the loss alone, that 0.05 is impossible; here
# the floor says so. Note the honest part of check 2: a *training* loss below the floor is no mistake as long as
# nobody calls it a validation loss. (How a subtler leak, the norm that runs over time, creeps below the floor, is shown
# in chapter 01.)
#
# ## The built-in stories
#
# The same recipe on real work: stories of 400 characters, where names, toys and places return sentences later. In the
# few seconds that a chapter may take, a tiny model cannot finish; it can show where it stands.

# %%
config = DataConfig(context=479, stories=4_000, valid_stories=48, cache_dir=runs / "cache")  # runs: 20,000 and 200
big = load_corpus(config, progress=False)
print(big.describe())
tiny = ModelConfig(layers=2, width=32, heads=1, ff=64)  # "pocket" in this book: 48 layers, width 32, 2 heads, ff 128
stories_run = RunConfig(tiny, config, TrainConfig(steps=400, batch_size=2, lr=1e-2, eval_every=40, eval_chunks=24,
                                                  device="cpu", out=runs / "stories"))  # fmt: skip
result = train(stories_run, big, progress=False)


# %%
marks = {"uniform, log V": math.log(big.tokenizer.vocab_size)}
marks |= {"letter frequencies": counting(big, 0), "bigrams": counting(big, 1)}
marks |= {"forgetful reader": big.forgetful, "exact floor": big.floor}
for name, value in marks.items():
    print(f"{name:18s} {value:.4f}")
assert big.forgetful < result.best_loss < marks["bigrams"]

# %%
fig, axis = plt.subplots(figsize=(7.4, 4.1))
axis.plot([row.step for row in result.curve], [row.valid_loss for row in result.curve], marker="o", color="black")
greys = {"uniform, log V": ("0.6", "--"), "letter frequencies": ("0.6", "-."), "bigrams": ("0.6", ":")}
for name, value in marks.items():
    if name in greys:
        axis.axhline(value, color=greys[name][0], ls=greys[name][1], lw=1.2)
    axis.text(402, value, name, va="center", fontsize=9.5)
axis.axhline(big.forgetful, **plots.FLOOR_STYLE["forgetful"])
axis.axhline(big.floor, **plots.FLOOR_STYLE["exact"])
axis.set(yscale="log", xlim=(-5, 400), ylim=(0.07, 5), xlabel="step", ylabel="validation loss, nats a symbol")
axis.set_yticks([0.1, 0.2, 0.5, 1, 2, 4], ["0.1", "0.2", "0.5", "1", "2", "4"])
axis.minorticks_off()
axis.set_title("A few seconds on the built-in stories")
plots.show(
    fig,
    alt="Validation loss of one short run on the built-in stories, logarithmic axis. From the uniform line at 4.1 it "
    "falls past letter frequencies at 3.1 and bigrams at 2.2 within 200 steps and ends between 1.5 and 2 after 400, "
    "still going down. The forgetful reader at 0.16 and the exact floor at 0.09 lie far below.",
)

# %% [markdown]
# In 400 steps the model has read 800 stories, once each, and has left the bigrams behind. It is far from the floors,
# and the line still points down: the recipe is right and the run is short. `make demo` trains larger models for three
# minutes. Below, a run of your own, and one of the paper's size for those who have a GPU and some days (the text
# comes from the hub):
#
# ```text
# minihaares train --scheme standard --layers 4 --width 128 --heads 4 --ff 512 --lr 1e-3 --steps 3000
# minihaares train --scheme haares --layers 48 --family medium --steps 30000 --eval-every 2000 --corpus tinystories
# ```
#
# ## What we found
#
# * AdamW moves each parameter by at most about the learning rate a step, and a factor on the loss changes nothing.
#   Clipping protects its memory. Decay is for matrices.
# * A loop made of our own parts gives the package's losses.
# * If batches are a function of the step, there is nothing about the data to save, and a resumed run is the same run,
#   to the last bit.
# * A curve means something against lines: uniform, counting, forgetful, exact. A tiny model passed the forgetful reader
#   in seconds, so it carries things across sentences.
# * The best of many evaluations is a little too kind, and seeds differ by as much as architectures often do.
# * A validation loss clearly below the floor is a mistake in the measurement. Two classic ones dive through it within
#   dozens of steps.
#
# ## What this does not show
#
# That the recipe is good: it is the paper's, chosen so that runs can be compared, and a schedule with warmup and decay
# would end lower. That three seeds are enough. That runs repeat to the last bit on a GPU, or on another computer: they
# do not, and with another number of threads they need not. That nothing can be wrong above the floor: most mistakes
# make a loss worse, not better, and no floor finds those.
#
# ## Exercises
#
# ### Exercise 3.1 · The second step
# *Easy, 10 minutes.* Compute AdamW's second step by hand for the loss $(w - 3)^2$ from $w = 0$, with $\eta = 0.1$ and
# no decay. Is it larger or smaller than the first?
#
# <details><summary>Answer</summary>
#
# After the first step $w = 0.1$ and $g = -5.8$. $m = 0.9\cdot(-0.6) + 0.1\cdot(-5.8) = -1.12$, over
# $1 - 0.81 = 0.19$: $-5.8947$. $v = 0.95\cdot1.8 + 0.05\cdot33.64 = 3.392$, over $1 - 0.9025 = 0.0975$: $34.79$, root
# $5.8983$. The step is $0.1\cdot5.8947/5.8983 = 0.09994$, a little smaller.
#
# ```python
# w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
# optimizer = HandAdamW([{"params": [w], "weight_decay": 0.0}], lr=0.1)
# for expected in (0.1, 0.1 + 0.09994):
#     w.grad = 2 * (w.detach() - 3)
#     optimizer.step()
#     assert abs(w.item() - expected) < 1e-5
# ```
# </details>
#
# ### Exercise 3.2 · Epochs
# *Easy, 5 minutes.* The paper trains for 30,000 steps of 16 chunks of 513. A corpus has 100,000 chunks. How many
# times is each chunk seen? How often is a chunk seen in our run on the stories, and is memorising a danger there?
#
# <details><summary>Answer</summary>
#
# $30{,}000\cdot16 = 480{,}000$ places, so each chunk is seen 4 or 5 times (4.8 on average). Our run has 800 places for
# 4,000 stories: no story is seen twice, so the training loss is as honest as a validation loss.
#
# ```python
# assert 30_000 * 16 / 100_000 == 4.8
# seen = np.concatenate([batch(np.arange(8_000).reshape(4_000, 2), s, 2, seed=42)[0][:, 0] for s in range(400)])
# assert len(set(seen.tolist())) == 800
# ```
# </details>
#
# ### Exercise 3.3 · A resume that forgets
# *Medium, 20 minutes.* Take `our_loop`, stop after 12 of 24 steps, and go on with the same weights but a *fresh* AdamW.
# How large is the largest difference to the uninterrupted losses? Would you see it in a curve?
#
# <details><summary>Answer</summary>
#
# The losses agree up to step 13 (its loss is computed before the fresh AdamW has done anything) and differ afterwards.
# The first step of the fresh one has the full size of the learning rate in every parameter. Between other jitter one
# would hardly notice; compared number by number, one does.
#
# ```python
# straight = our_loop(24, recipe.lr)
# model, losses_so_far = Transformer(small, seed=42), []
# for step in range(24):
#     if step in (0, 12):
#         optimizer = HandAdamW(parameter_groups(model, weight_decay=0.01), lr=recipe.lr)  # forgets at 12
#     loss = loss_of(model, *batch(corpus.train, step, 16, seed=42))
#     model.zero_grad()
#     loss.backward()
#     clip(model.parameters())
#     optimizer.step()
#     losses_so_far.append(loss.item())
# difference = np.abs(np.array(straight) - losses_so_far)
# assert difference[:13].max() < 1e-6 and 1e-4 < difference[13:].max() < 1
# ```
# </details>
#
# ### Exercise 3.4 · How kind is the best?
# *Medium, 20 minutes.* Suppose that towards the end of a run the validation loss jitters around 0.18 with a standard
# deviation of 0.005, independently from evaluation to evaluation. What is the expected best of 5, and of 25
# evaluations? What follows for two runs, one evaluated five times as often as the other?
#
# <details><summary>Answer</summary>
#
# The expected minimum of 5 normal numbers lies 1.16 standard deviations below the mean, of 25 numbers 1.97. So the
# bests are about 0.1742 and 0.1702: looking more often "improves" the run by 0.004, which is the size of many published
# gains. Compare runs on the same schedule only.
#
# ```python
# draws = np.random.default_rng(0).normal(0.18, 0.005, size=(20_000, 25))
# assert abs(draws[:, :5].min(axis=1).mean() - 0.1742) < 2e-4
# assert abs(draws.min(axis=1).mean() - 0.1702) < 2e-4
# ```
# </details>
#
# ### Exercise 3.5 · Two kinds of chance
# *Hard, 30 minutes and a minute of computing.* Run the postcards with model seed 42 and data seeds 42, 43, 44. Is the
# spread larger or smaller than that over model seeds? Can you tell, from three runs each?
#
# <details><summary>Answer</summary>
#
# Replace `seed=seed` by `data_seed=seed` in the cell of the three runs. The spreads are of the same order, a few
# thousandths of a nat. From three numbers one cannot tell which is larger: a standard deviation estimated from three
# draws is itself uncertain by about half its size. To compare two architectures, hold both seeds equal *within* a
# pair, and repeat pairs over several seeds.
#
# ```python
# best = {}
# for seed in (42, 43, 44):
#     config = replace(base, train=replace(recipe, data_seed=seed, out=runs / f"data-seed-{seed}"))
#     best[seed] = train(config, corpus, progress=False).best_loss
# assert best[42] == results[42].best_loss and len(set(best.values())) == 3
# assert all(exact < loss < forgetful for loss in best.values())
# ```
# </details>
#
# ## Further reading
#
# * Adam: A Method for Stochastic Optimization, arXiv 1412.6980, and Decoupled Weight Decay Regularization (AdamW),
#   arXiv 1711.05101.
# * On the Difficulty of Training Recurrent Neural Networks, arXiv 1211.5063: where clipping comes from.
# * Accounting for Variance in Machine Learning Benchmarks, arXiv 2103.03098, and torch.manual_seed(3407) is all you
#   need, arXiv 2109.08203: what seeds do to comparisons.
# * Show Your Work: Improved Reporting of Experimental Results, arXiv 1909.03004: the best of many as a function of
#   many.
# * A. Karpathy, A Recipe for Training Neural Networks (2019): check 2 and much more, in prose.
# * HAARES, arXiv 2606.06564, section 5.2: the recipe rebuilt here.
