# %% [markdown]
# # 12 · The same read for less: what does it cost in memory and time, and must it?
#
# The HAARES paper reports 18 % more memory and 21 % more time a step than Block Attention Residuals for its unfused
# implementation (its Table 13, width 512), while the arithmetic grows by a fraction of a percent. So nearly all of the
# price is bookkeeping: tensors written, kept and read again. This chapter asks which of them have to exist. The answer
# is a read that gives the same numbers and keeps almost nothing, and the chapter shows how such a function is derived,
# written and tested.
#
# > **You will build** a routed read whose backward pass you write yourself, in two phases joined by an online softmax.
# >
# > **You will learn** what autograd keeps and why, how to count it exactly, where a clever identity loses all its
# > digits, and how to test a hand-written gradient.
# >
# > **You need** chapters 05, 07 and 08, and the chain rule.
# >
# > **Runs in** about 7 seconds on one core, without a network.

# %%
import matplotlib.pyplot as plt
import pandas as pd
import sympy
import torch

from minihaares import algebra, bench, depth_read, experiments, plots
from minihaares.depth_read import depth_scores, matched, mix

plots.use_style()
torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
pd.set_option("display.width", 110)

# %% [markdown]
# ## What does a backward pass need?
#
# To differentiate $y = x \odot w$ autograd must remember $x$ and $w$; for $y = x + w$ it needs neither. PyTorch lets us
# watch: every tensor that a graph keeps passes through a hook. Take one normalised source, as a plain read makes it,
# $v\cdot\rho$ with $\rho = 1/\mathrm{RMS}(v)$, for a single vector of 1000 channels.

# %%
v = torch.randn(1000, requires_grad=True)
kept = []
with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
    unit = v * torch.rsqrt(v.square().mean() + 1e-6)
    score = unit @ torch.randn(1000, requires_grad=True)
print("kept:", kept)

# %% [markdown]
# The big entries are $v$ (twice, but it is one storage, and it exists anyway as a source), the unit vector `unit` and
# the query. `unit` is the waste: it can be made again from $v$ and one number. A plain read makes such a copy **for
# every source and every read**. With four blocks in 48 layers that is 5.9 copies, 96 times (chapter 11).
#
# ## Counting, exactly
#
# `bench.saved_bytes` counts what one loss keeps: every storage once, parameters apart, sorted by who asked first. We
# count *vectors* of one token (width $d$ floats), which makes the numbers the same for every batch.

# %%
# Full size: 48 layers, family "small", 8 x 128 tokens; here 12 layers so that the cell is quick.
setting = bench.BenchConfig(family="small", layers=(12,), batch_size=1, context=64)
tokens = bench.random_tokens(setting, torch.device("cpu"))
per_vector = 4 * 64 * 128  # bytes of one vector for each of the 64 tokens
schemes = ["standard", "block:plain", "haares:plain", "block", "haares", "haares:recompute"]
counted = pd.DataFrame({s: bench.saved_bytes(bench.build(s, 12, setting), tokens) for s in schemes}).T / per_vector
counted["total"] = counted.sum(axis=1)
counted["ratio"] = counted["total"] / counted.loc["standard", "total"]
print(counted.round(3).to_string())

# %%
figure, axis = plt.subplots(figsize=(6.8, 3.4))
left = torch.zeros(len(schemes))
shades = ["0.85", "0.7", "0.55", plots.ORANGE, "0.95"]
for origin, shade in zip(["norm", "attention", "mlp", "depth", "head"], shades, strict=True):
    width = torch.tensor(counted[origin].to_numpy(dtype=float))
    look = dict(color=shade, hatch="//" if origin == "depth" else "", edgecolor="white", label=origin)
    axis.barh(schemes[::-1], width.flip(0), left=left.flip(0), **look)
    left = left + width
axis.set(xlabel="vectors kept for the backward pass, per token", title="12 layers, width 128: who keeps what")
axis.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.4, -0.18))
plots.show(figure, alt="""Stacked bars of vectors kept per token for six models. The part kept by reads over depth
differs most: large for plain Block, larger for plain HAARES, a thin stripe for the lean reads, which take over most of
the norms' part.""")

# %% [markdown]
# Attention and MLPs keep the same in every model; what routing adds is the hatched part, and the lean reads of this
# chapter shrink it to a stripe. (They also take over the norms' share: a read's mixture is what the norm behind it
# keeps as well, one storage that the read asked for first. The head's share is 2 vectors larger with them.) Three
# ideas do it.
#
# ## Idea 1: finished sources can be read all at once
#
# A block's sources no longer change once it is finished, and a query is a parameter: it waits for nothing. So all
# reads of a block can score and mix the finished sources in one matrix product, and only the *active* pair joins event
# by event. Two softmaxes join exactly if each remembers its log-sum-exp. With $\bar h$ the mixture of the finished
# sources, $\ell$ the log-sum-exp of their scores, and $z_C$, $z_D$ the scores of the active pair:
#
# $$\tilde h = \frac{e^{\ell}\,\bar h + e^{z_C} C + e^{z_D}\hat D}{e^{\ell} + e^{z_C} + e^{z_D}}.$$
#
# In other words: the finished mixture takes part as **one more source with score $\ell$**. (This two-phase scheme is
# Algorithm 1 of Attention Residuals, arXiv 2603.15031.) In plain lines, with five finished sources (the embedding and
# two pairs) and an active pair:

# %%
def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


n, d, bias = 5, 6, torch.tensor(-2.0, dtype=torch.float64)
bank = [random(n, d) for _ in range(5)]  # e, C_1, D̂_1, C_2, D̂_2 for n tokens
E, F, key = random(n, d), random(n, d), random(d)  # the active halves; key = query ⊙ gain


def plain_read(bank, E, F, key):
    C, D = E + F, E - F
    sources = [*bank, C, matched(C, D, gamma=4.0, eps=1e-6)]
    z = depth_scores(sources, key, None, 1e-6)  # [7, n]
    z[2::2] += bias  # details stand at places 2, 4, 6
    return mix(torch.softmax(z, dim=0), sources)


def two_phases(bank, E, F, key):
    z = depth_scores(bank, key, None, 1e-6)
    z[2::2] += bias
    finished, lse = mix(torch.softmax(z, dim=0), bank), torch.logsumexp(z, dim=0)  # [n, d], [n]
    C, D_hat = E + F, matched(E + F, E - F, gamma=4.0, eps=1e-6)
    z_C, z_D = depth_scores([C, D_hat], key, None, 1e-6)
    w = torch.softmax(torch.stack([lse, z_C, z_D + bias]), dim=0)
    return mix(w, [finished, C, D_hat])


torch.testing.assert_close(two_phases(bank, E, F, key), plain_read(bank, E, F, key), rtol=1e-13, atol=1e-14)
print("two phases equal one")

# %% [markdown]
# ## Idea 2: keep the halves, not the pair
#
# The paper's write adds an event's output to $C$ **and** to $D$: two new tensors an event. But $C = E + F$ and
# $D = E - F$, and an event changes only one half total. Storing $E$ and $F$, an event writes one tensor, and in the
# early half the pair *is* one tensor. What a read needs follows from the halves:

# %%
algebra.routed_coefficients()

# %% [markdown]
# It is tempting to get the norms of $C$ and $D$ from the halves as well, without ever forming them:

# %%
algebra.half_totals()

# %% [markdown]
# **A wrong turn.** In exact arithmetic this is right; in float32 it fails where it matters. The last two lines say
# so: if the halves nearly cancel, $F = -(1-\tau)E$, and each term is off by a relative $\upsilon$, then $|C|^2$ is
# off by a relative $\upsilon(2-\tau)^2/\tau^2$; below $\tau\approx 2\sqrt\upsilon$, $5\cdot10^{-4}$ in float32, that
# is more than 1, and no digit is safe. Let us watch it happen.

# %%
vector = torch.randn(4096, generator=generator)
taus = torch.logspace(-6, 0, 25)
errors = {"from E·E + F·F + 2 E·F": [], "from the small vector": []}
for tau in taus:
    E32, F32 = vector, -(1 - tau) * vector
    truth = (E32.double() + F32.double()).square().sum()
    by_terms = E32 @ E32 + F32 @ F32 + 2 * (E32 @ F32)
    for name, value in zip(errors, (by_terms, (E32 + F32).square().sum()), strict=True):
        errors[name].append(max(abs(value.double() / truth - 1).item(), 1e-9))
assert errors["from E·E + F·F + 2 E·F"][0] > 0.1 and max(errors["from the small vector"]) < 1e-5

figure, axis = plt.subplots(figsize=(6.2, 3.2))
for (name, y), style in zip(errors.items(), ["--", "-"], strict=True):
    axis.loglog(taus, y, style, label=name)
formula = algebra.half_totals().forms["error"]  # a function of τ and υ
bound = sympy.lambdify(sorted(formula.free_symbols, key=str), formula)
axis.loglog(taus, bound(taus.numpy(), 6e-8), ":", color="0.5", label="bound for one rounding")
axis.set(ylim=(1e-9, 1e5), xlabel="τ: how much of E is left in C", ylabel="relative error of |C|²")
axis.set_title("A norm by cancellation")
axis.legend()
plots.show(figure, alt="""Relative error of a squared norm against tau on log axes. Computed from three large terms the
error grows like one over tau squared and passes one; computed from the small vector itself it stays at rounding.""")

# %% [markdown]
# So the lean read forms $C$ and $D$ for a moment, takes norm and score of each *from the vector itself*, and drops
# them. Nothing of the kind is kept.
#
# ## Idea 3: write the backward pass yourself
#
# What flows back into a source $v$ has three parts. Let $g$ be the gradient of the mixture, $\dot z$ that of a score,
# $\kappa$ the key (query ⊙ gain), $q$ here the number $\kappa\cdot v$, and $\rho$ what turns the raw $v$ into
# $\mathrm{RMSNorm}(av)$; for $C$, $a = 1$. With $s = \dot z\rho$ and $t = -\dot z\,q\rho^3/d$ the parts are $a w\,g$,
# $s\,\kappa$ and $t\,v$:

# %%
algebra.score_gradient()

# %% [markdown]
# A source gets $w\,g$ from the mixture (its weight times what arrives) and $\dot z\,\partial z/\partial v$ from its
# score. Only $g$, the key and the source itself are vectors; all else is one number per token. And $E$ gets what $C$
# and $D$ get together, $F$ the difference:

# %%
algebra.half_gradients()

# %% [markdown]
# The last piece is the softmax. A weight's score receives $\dot z_s = w_s\,(g\cdot v_s - g\cdot\tilde h)$ (chapter 09),
# and all of them sum to zero, since adding a constant to every score changes nothing. So the log-sum-exp of the
# finished part receives $\dot\ell = -(\dot z_C + \dot z_D)$, **without asking what was in it**. Here is the whole
# backward pass of one active read in plain lines:

# %%
def backward_by_hand(g, finished, lse, E, F, key, eps=1e-6, gamma=4.0):
    """Gradients of one read for finished mixture, its log-sum-exp, E, F, key and bias, given g, that of the read."""
    C, D = E + F, E - F
    rms_C, rms_D = (x.square().mean(-1).sqrt() for x in (C, D))
    a = (rms_C / (rms_D + eps)).clamp(1 / gamma, gamma)  # no gradient flows through it
    rho_C, rho_D = torch.rsqrt(rms_C**2 + eps), a * torch.rsqrt((a * rms_D) ** 2 + eps)
    q_C, q_D = C @ key, D @ key
    w, w_C, w_D = torch.softmax(torch.stack([lse, rho_C * q_C, rho_D * q_D + bias]), dim=0)
    h = w[:, None] * finished + w_C[:, None] * C + (w_D * a)[:, None] * D
    g_h = (g * h).sum(-1)
    dz_C, dz_D = w_C * ((g * C).sum(-1) - g_h), w_D * (a * (g * D).sum(-1) - g_h)
    to_C = w_C[:, None] * g + (dz_C * rho_C)[:, None] * key - (dz_C * rho_C**3 * q_C / d)[:, None] * C
    to_D = (a * w_D)[:, None] * g + (dz_D * rho_D)[:, None] * key - (dz_D * rho_D**3 * q_D / d)[:, None] * D
    to_key = C.T @ (dz_C * rho_C) + D.T @ (dz_D * rho_D)
    return w[:, None] * g, -(dz_C + dz_D), to_C + to_D, to_C - to_D, to_key, dz_D.sum()


# %% [markdown]
# Held against autograd through the plain functions, and against the package's `ActiveRead`, which is these lines in
# PyTorch's `autograd.Function` form:

# %%
finished, lse = random(n, d), random(n)
g = torch.randn(n, d, dtype=torch.float64, generator=generator)
bias.requires_grad_()


def joined(finished, lse, E, F, key):
    C, D_hat = E + F, matched(E + F, E - F, 4.0, 1e-6)
    z_C, z_D = depth_scores([C, D_hat], key, None, 1e-6)
    return mix(torch.softmax(torch.stack([lse, z_C, z_D + bias]), dim=0), [finished, C, D_hat])


inputs = (finished, lse, E, F, key, bias)
by_autograd = torch.autograd.grad(joined(*inputs[:5]), inputs, g)
settings = depth_read.ReadSettings(paired=True, match=True, gamma=4.0, eps=1e-6, key_eps=1e-6)
by_package = torch.autograd.grad(depth_read.ActiveRead.apply(settings, key, bias, *inputs[:4]), inputs, g)
for ours, theirs, packaged in zip(backward_by_hand(g, *inputs[:5]), by_autograd, by_package, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(packaged, theirs, rtol=1e-12, atol=1e-13)
print("by hand, autograd and package agree on", len(inputs), "gradients")

# %% [markdown]
# What does it have to keep? $E$, $F$ and the key, which exist anyway; the mixture $\tilde h$; and a handful of numbers
# per token. Even $\tilde h$ costs nothing extra, because the sublayer's norm keeps its input as well, and that is the
# same storage.
#
# ## Paying with time: rebuild the mixture
#
# If memory is worth more than time, $\tilde h$ need not be kept either: it is a weighted sum of tensors that all
# exist. `RouterOptions(read="recompute")` drops it in the forward pass, and it is made again once in the backward
# pass: the norm asks first, and leaves it for the read. The table above has the count. Same numbers, of course:

# %%
losses, gradients = {}, {}
for scheme in ("haares:plain", "haares", "haares:recompute"):
    model = bench.build(scheme, 4, setting).double()
    with torch.no_grad():
        model.residual.query.normal_(generator=torch.Generator().manual_seed(1))
    loss = bench.loss_of(model, tokens)
    loss.backward()
    losses[scheme], gradients[scheme] = loss.item(), [p.grad for p in model.parameters()]
for scheme in ("haares", "haares:recompute"):
    for ours, theirs in zip(gradients[scheme], gradients["haares:plain"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)  # the loss is taken in float32
print({scheme: f"{loss:.4f}" for scheme, loss in losses.items()})

# %% [markdown]
# ## A fact that hides in the norm
#
# An RMSNorm does not care about the length of its input, so no gradient that comes back through it points along that
# input: $g\cdot\tilde h = 0$, up to the $\epsilon$ in the norm. Since $\tilde h = \sum_s w_s v_s$, the weighted mean
# of all $g\cdot v_s$ is zero, in every read, at every token, and the gradient of a score is simply $\dot z_s =
# w_s\,g\cdot v_s$ (chapter 09). Measured in the model above, from the second read on:

# %%
model = bench.build("haares:plain", 4, setting).double()
with torch.no_grad():
    model.embed.weight *= 50  # a stream of size one, beside which ε vanishes
reads = []
plain = model.residual.read


def watched(state, event):
    x, state = plain(state, event)
    x.retain_grad()
    reads.append(x)
    return x, state


model.residual.read = watched
bench.loss_of(model, tokens).backward()
cosine = max(torch.nn.functional.cosine_similarity(x.grad, x, dim=-1).abs().max().item() for x in reads[1:])
assert cosine < 1e-4
print("every read but the first is orthogonal to its gradient, to within 0.0001 of their lengths")

# %% [markdown]
# ## How do you test a hand-written gradient?
#
# * **Against finite differences**, in float64, with nothing of ours in between (`torch.autograd.gradcheck`).
# * **Against autograd** through code that is written as the equations are, values and every gradient, over random
#   shapes and options (`tests/test_depth_read.py` draws them with hypothesis).
# * **Where it is hard**: halves that cancel, zeros, a huge source, values of $10^{-20}$. The demand is not a fixed
#   tolerance but *no worse than the plain read*, both measured against float64.
# * **What it does not do must fail loudly.** A second derivative is refused by name:

# %%
assert torch.autograd.gradcheck(
    lambda finished, lse, E, F, key: depth_read.ActiveRead.apply(
        settings._replace(match=False), key, bias.detach(), finished, lse, E, F
    ),
    (finished, lse, E, F, key),
)
read = depth_read.ActiveRead.apply(settings, key, bias, *inputs[:4])
(first,) = torch.autograd.grad(read.square().sum(), E, create_graph=True)
try:
    first.sum().backward()
except RuntimeError as error:
    print(error)

# %% [markdown]
# (Matching is switched off for finite differences: its multiplier has no gradient *by design*, and a finite difference
# would see it move.)
#
# ## The bill
#
# Times on shared machines wander; ratios taken in turns within one process wander less. `minihaares bench` measures
# that way, and its rows are recorded with machine, versions and commit. Each ratio is given twice: of the medians and
# of the minima over the rounds.

# %%
bill = pd.read_csv(experiments.recorded() / "bench_target.csv")
latest = bill[bill["finished"] == bill["finished"].max()].set_index("scheme")
columns = ["step_median", "step_min", "saved", "flops", "peak_mib"]
print(latest["on"].iloc[0], "| torch", latest["torch"].iloc[0], "| 48 layers, d = 128, ff = 1024, batch 8 x 128")
print(latest[columns].round(3).to_string())

# %% [markdown]
# The gain of lean over `plain` is beyond doubt. For `recompute` the two ratios disagree: by the medians it is faster
# than lean, by the minima slower. A few hundredths are noise here, while the counts of `saved` are exact.

# %%
depth = pd.read_csv(experiments.recorded() / "bench_depth.csv")
depth = depth[depth["finished"] == depth["finished"].max()]
figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.1), sharex=True)
for scheme in ("block", "haares"):
    rows = depth[depth["scheme"] == scheme]
    for axis, column in zip(axes, ("step_min", "saved"), strict=True):
        axis.plot(rows["layers"], rows[column], **plots.SCHEME_STYLE[scheme])
for axis, title in zip(axes, ("time of a step", "bytes kept"), strict=True):
    axis.axhline(1, color="0.6", linewidth=1)
    axis.set(title=title, xlabel="layers", ylim=(0.98, 1.2), xticks=[12, 24, 48, 96])
axes[0].set_ylabel("ratio to Standard")
axes[0].legend()
plots.show(figure, alt="""Two panels against depth from 12 to 96 layers: step time and bytes kept, as ratios to
Standard, for Block and HAARES with lean reads. All curves lie a little above one and are nearly flat in depth.""")

# %% [markdown]
# ### Other sizes, other work
#
# The same for every kind of work and for three widths (32, 128, 512), HAARES as a ratio to Standard by the medians. The
# medium rows have batches of 2 × 128 tokens; at 96 layers three such models and their AdamW states do not fit into the
# memory at once, so that row has no step.

# %%
work, rows = ("forward", "backward", "step", "generate"), []
for family in ("pocket", "small", "medium"):
    table = pd.read_csv(experiments.recorded() / f"bench_{family}-all.csv")
    table = table[table["scheme"] == "haares"].drop_duplicates("layers", keep="last")  # the latest
    rows.append(table.assign(family=family).set_index(["family", "layers"]))
every = pd.concat(rows)
print(every[[f"{w}_median" for w in work] + ["saved"]].round(2).to_string())
steps = every["step_median"]
assert steps["small"].max() < 1.15 and steps["medium"].max() < 1.15 < steps["pocket"].min()
assert steps["small"].max() / steps["small"].min() < 1.05  # flat from 12 to 96 layers

# %% [markdown]
# From width 128 on, a training step costs about a tenth more (8 to 12 % in this table), at any depth. At width 32 it
# is a quarter and more: there a tensor is so small that the *call* is the price, and a read makes dozens of them
# where the plain stream makes one. The same holds for generating text, a token at a time: up to 1.2 times Standard at
# width 512, 1.6 to 1.8 at width 128, 2.6 to 3 at width 32. A profile says the same in another way. Torch's profiler
# books every operation of a step by its own time; grouped by kind, at 48 layers of width 128:

# %%
profile = pd.read_csv(experiments.recorded() / "bench_profile.csv")
profile = profile[profile["finished"] == profile["finished"].max()]
ms, calls = (profile.pivot(index="kind", columns="scheme", values=v) for v in ("ms", "calls"))
more = ms[["block", "haares"]].sub(ms["standard"], axis=0)
order = more["haares"].sort_values(ascending=False).index
more["calls, block"], more["calls, haares"] = calls["block"] - calls["standard"], calls["haares"] - calls["standard"]
print("milliseconds and calls beyond those of a Standard step")
print(more.loc[order].round(1).to_string())
extra = more[["block", "haares"]].sum() / ms["standard"].sum()
print("in all:", extra.round(3).to_dict(), "of a Standard step, under the profiler")
assert order[0] == "element by element" and extra["block"] < extra["haares"] < 0.15

# %% [markdown]
# The largest part is the reads' element-by-element work, the next the products with all finished sources and our own
# functions' bookkeeping. Each piece is a pass over vectors that were just used; a kernel that fuses them would be the
# next thing to try.
#
# ## What we found, and what it does not show
#
# A routed read does not have to keep copies of what it reads. Finished sources are read in one product, the active
# pair joins exactly, and the backward pass needs references and scalars. The numbers are those of the equations, to
# rounding, and the table above is what it costs here.
#
# It does not show what a GPU would say. There, one fused kernel may matter more than anything above, and the ratio of
# arithmetic to memory traffic is another one; `python -m minihaares bench --device cuda --preset paper` measures it in
# a few minutes. Nor is this the paper's implementation: its numbers are for its own unfused code on its own card.
#
# ## Exercises
#
# ### Exercise 12.1 · One kept vector
# *Easy, 10 minutes.* Which of $\sin x$, $x^2$, $e^x$, $\mathrm{relu}(x)$ and $x + 1$ keep their input, which their
# output, which neither? Predict, then look with `saved_tensors_hooks`.
#
# <details><summary>Answer</summary>
#
# $\sin x$ and $x^2$ keep the input; $e^x$ keeps its output, because it is its own derivative; relu keeps its output
# too, whose sign is enough; $x + 1$ keeps nothing.
#
# ```python
# x = torch.randn(10, requires_grad=True)
# found = {}
# functions = dict(sin=torch.sin, square=torch.square, exp=torch.exp, relu=torch.relu, add=lambda x: x + 1)
# for name, function in functions.items():
#     kept = []
#     with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
#         y = function(x)
#     found[name] = "nothing" if not kept else "input" if kept[0].data_ptr() == x.data_ptr() else "output"
# assert found == dict(sin="input", square="input", exp="output", relu="output", add="nothing")
# ```
# </details>
#
# ### Exercise 12.2 · The early half
# *Medium, 15 minutes.* In the early half $D = C$. Show from the formulas that the pair then acts like one source with
# value weight $w_C + a\,w_D$, and that the lean read needs a single inner product $g\cdot E$ in its backward pass.
#
# <details><summary>Answer</summary>
#
# With $F = 0$ both raw vectors are $E$: the mixture takes $(w_C + a w_D)E$ and both score gradients use $g\cdot E$,
# $\dot z_C = w_C(g\cdot E - g\cdot\tilde h)$ and $\dot z_D = w_D(a\,g\cdot E - g\cdot\tilde h)$. In `ActiveRead` this
# is the branch in which `D is None`.
#
# ```python
# zero = torch.zeros_like(E)
# by_hand = backward_by_hand(g, finished, lse, E, zero, key)
# read = depth_read.ActiveRead.apply(settings, key, bias, finished, lse, E, None)
# packaged = torch.autograd.grad(read, (finished, lse, E, key, bias), g)
# for ours, theirs in zip((by_hand[0], by_hand[1], by_hand[2], by_hand[4], by_hand[5]), packaged, strict=True):
#     torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
# ```
# </details>
#
# ### Exercise 12.3 · Through the multiplier
# *Medium, 20 minutes.* The match multiplier $a$ passes no gradient. Let it pass one (compute $a$ without `no_grad`) and
# compare the gradient of $D$ for a read in which $a$ is not clipped. Which direction has disappeared?
#
# <details><summary>Answer</summary>
#
# Then $\hat D = \mathrm{RMS}(C)\, D/\mathrm{RMS}(D)$ no longer depends on the length of $D$ (up to $\varepsilon$), so
# nothing that comes back points along $D$: the detail could never learn to be larger or smaller.
#
# ```python
# C, D = E + F, random(n, d)
# D_hat = D * (C.square().mean(-1, keepdim=True).sqrt() / (D.square().mean(-1, keepdim=True).sqrt() + 1e-6))
# (through,) = torch.autograd.grad(D_hat, D, g)
# assert (through * D).sum(-1).abs().max() < 1e-5 * (through.norm() * D.norm())
# ```
# </details>
#
# ### Exercise 12.4 · Another thing to forget
# *Hard, 40 minutes.* SwiGLU keeps gate, up, $\mathrm{silu}$(gate) and the product. Which of them could be made again
# from the others? Write it as an `autograd.Function`, check it with `gradcheck`, and count what it saves in the table.
#
# <details><summary>Answer</summary>
#
# $\mathrm{silu}$(gate) follows from gate, and the product from gate and up; the linear map behind keeps the product
# as its input, so only $\mathrm{silu}$(gate) goes: one `ff` wide vector a layer, 8 vectors of $d$ at this size.
#
# ```python
# class SwiGLU(torch.autograd.Function):
#     @staticmethod
#     def forward(ctx, gate, up):
#         ctx.save_for_backward(gate, up)
#         return torch.nn.functional.silu(gate) * up
#
#     @staticmethod
#     def backward(ctx, g):
#         gate, up = ctx.saved_tensors
#         s = torch.sigmoid(gate)
#         return g * up * s * (1 + gate * (1 - s)), g * gate * s
#
# assert torch.autograd.gradcheck(SwiGLU.apply, (random(3, 4), random(3, 4)))
# ```
# </details>
#
# ## Further reading
#
# * Attention Residuals, arXiv 2603.15031: two-phase reads (Algorithm 1).
# * Online normalizer calculation for softmax, arXiv 1805.02867; FlashAttention, 2205.14135: the same join, over time.
# * Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174: checkpointing, the general way to pay with time.
# * HAARES, arXiv 2606.06564, section 8: the measured price of the unfused read.
