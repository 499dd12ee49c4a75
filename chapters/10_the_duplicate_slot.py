# %% [markdown]
# # 10 · The duplicate slot: what does an extra slot do when it holds nothing new?
#
# During the early half of a block, HAARES offers the same vector twice: the detail has not begun to differ from the
# sum. The paper also trains a control that does so all the time, a copy of $C$ in place of the detail, and that
# control beats Block Attention Residuals by more than half of what HAARES gains (its Table 12: 1.8057 for Block,
# 1.7848 for the duplicate, 1.7744 for HAARES). A copy holds no information. What, then, does it do? One line of
# algebra answers it.
#
# > **You will build** the score that a pair of equal slots is worth, its curve over the bias, and the read of a
# > duplicated bank without its duplicates.
# >
# > **You will learn** that a softmax counts slots, that an empty slot is not a missing one, and how to tell a
# > reweighting from a new direction.
# >
# > **You need** chapter 05 for the read, chapter 08 for matching and the bias, 09. Logarithms.
# >
# > **Runs in** about 6 seconds on 2 cores, without a network.

# %%
import math

import matplotlib.pyplot as plt
import sympy as sp
import torch
from IPython.display import display

from minihaares import algebra, depth_read, plots
from minihaares.model import DepthRouter, ModelConfig, RouterOptions

plots.use_style()
generator = torch.Generator().manual_seed(10)

# %% [markdown]
# ## By hand
#
# Two sources, an embedding $e$ and a block sum $C$, with the same score 0. The softmax gives each one half. Now put $C$
# into a second slot, also with score 0. Nothing new is on the table, but there are three slots now, each gets a third,
# and two of them are $C$: the read goes from $\tfrac12 e + \tfrac12 C$ to $\tfrac13 e + \tfrac23 C$.
#
# If the second slot has a bias of $b = -2$, it counts for $e^{-2}\approx 0.135$ of a slot: the shares of $C$ add up to
# $1.135/2.135 = 0.532$.

# %%
for name, scores in {"e, C": [0, 0], "e, C, C": [0, 0, 0], "e, C, C with b = -2": [0, 0, -2]}.items():
    shares = torch.softmax(torch.tensor(scores, dtype=torch.float64), 0)
    print(f"{name:20s} e gets {shares[0]:.3f}, C gets {shares[1:].sum():.3f}")

# %% [markdown]
# ## One slot that is worth two
#
# Let the two equal slots have scores $z$ and $z + b$, and let $R$ be the sum of $e^{\text{score}}$ over all the others,
# however many. Together the two get
#
# $$\frac{e^z + e^{z+b}}{R + e^z + e^{z+b}} .$$
#
# We look for a single score $z'$ that would give the same: $e^{z'} = e^z + e^{z+b}$. Solve:

# %%
z, b, R = sp.Symbol("z", real=True), algebra.b, sp.Symbol("R", positive=True)
single = sp.Symbol("single", real=True)
(solution,) = sp.solve(sp.Eq(sp.exp(single), sp.exp(z) + sp.exp(z + b)), single)
lift = sp.simplify(sp.expand_log(sp.log(sp.factor(sp.exp(z) + sp.exp(z + b))), force=True) - z)
display(lift)
assert sp.simplify(sp.exp(solution) - sp.exp(z + lift)) == 0
assert lift == algebra.duplicate_slot().forms["lift"]

# %% [markdown]
# **Two equal slots with scores $z$ and $z+b$ are one slot with score $z + \log(1 + e^b)$.** The other slots keep their
# scores and share what is left in the same proportions as before. In full, with everything that follows from it:

# %%
algebra.duplicate_slot()

# %% [markdown]
# * At $b = 0$ a copy is worth $\log 2 \approx 0.693$, at the paper's start, $b = -2$, it is worth $0.127$.
# * The lift is always positive and falls to 0 as $b\to-\infty$: a copy can be switched off, but it can never make its
#   original count for *less*.
# * Its slope is $1/(1 + e^{-b})$, the copy's own share within the pair. A copy that counts for little gets little
#   gradient.

#
# Left, below: far to the left a copy adds nothing, far to the right the pair counts as the copy alone (dashed). Right:
# what copies take from the embedding.

# %%
curve = sp.lambdify(b, lift)
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9))
bias = torch.linspace(-6, 3, 200)
left.plot(bias, [curve(value) for value in bias.tolist()], color="black", ls="-", label="log(1 + eᵇ)")
left.plot(bias, bias.clamp(min=0), color="0.55", ls="--", lw=1.2, label="max(0, b)")
for value, marker in ((-4, "^"), (-2, "D"), (0, "s")):
    left.plot(value, curve(value), marker, color=plots.ORANGE, mec="black", ms=8, ls="")
    note = f"b = {value}: {curve(value):.3f}"
    below = value == -4  # where there is room
    left.annotate(note, (value, curve(value)), (6, -16 if below else 8), textcoords="offset points", ha="right")
left.set(title="What a copy adds to a score", xlabel="bias b of the copy", ylabel="lift of the score", ylim=(-0.4, 3.2))
left.legend(loc="upper left")
blocks = torch.arange(1, 9)
for name, value, look in (("no copies", -math.inf, "o-"), ("copies, b = -2", -2, "D-."), ("copies, b = 0", 0, "s--")):
    right.plot(blocks, 1 / (1 + blocks * (1 + math.exp(value))), look, color="black", mfc="white", label=name)
right.set(title="What is left for the embedding", xlabel="blocks in the bank", ylabel="weight of e", ylim=(0, 0.55))
right.legend()
plots.show(
    fig,
    alt="Left: the curve log(1 + e to the b) over the bias, flat and near zero on the left, 0.018 at minus 4, 0.127 at "
    "minus 2, 0.693 at 0, and close to b itself on the right. Right: the weight of the embedding when all scores are "
    "zero, against the number of blocks: it falls from one half to one ninth without copies, a little faster with "
    "copies at bias minus 2, and from one third to one seventeenth with copies at bias 0.",
)

# %% [markdown]
# ## The package's duplicate
#
# `detail="duplicate"` is the paper's control. We run a router of two blocks to the middle of its second one, take its
# five slots, and compare its read with one over three slots whose scores are lifted: values and gradients of the
# query, of the sources and of the bias.

# %%
config = ModelConfig(layers=4, width=8, heads=1)  # the paper: 48 layers, width 512, N = 4
router = DepthRouter(config, RouterOptions(blocks=2, detail="duplicate", read="plain"), generator).double()
with torch.no_grad():
    router.query.normal_(generator=generator)
    router.detail_bias.normal_(-1, 1, generator=generator)


def run_to(router, event, outputs, embedding):  # the sources that this event reads
    state = router.begin(embedding)
    for earlier in range(event):
        state = router.write(state, earlier, outputs[earlier])
    return router.sources(state)


embedding = torch.randn(1, 4, 8, generator=generator).double()  # [B, T, d]
outputs = list(torch.randn(8, 1, 4, 8, generator=generator).double())
site = 6
bank = run_to(router, site, outputs, embedding)
print(len(bank), "slots; equal in pairs:", torch.equal(bank[1], bank[2]), torch.equal(bank[3], bank[4]))

# %%
three = [source.clone().requires_grad_() for source in (bank[0], bank[1], bank[3])]
five = (three[0], three[1], three[1], three[2], three[2])
weights = router.weights(five, site)
duplicated = depth_read.mix(weights, five)

scores = depth_read.depth_scores(three, router.query[site], router.key_gain[site], router.key_eps)
raised = scores + torch.nn.functional.softplus(router.detail_bias[site]) * torch.tensor([0, 1, 1])[:, None, None]
single = depth_read.mix(torch.softmax(raised, 0), three)  # softplus(b) is log(1 + e^b)
torch.testing.assert_close(duplicated, single)

wanted = [router.query, router.detail_bias, *three]
direction = torch.randn(1, 4, 8, generator=generator).double()
pulls = [torch.autograd.grad((read * direction).sum(), wanted, retain_graph=True) for read in (duplicated, single)]
for ours, theirs in zip(*pulls, strict=True):
    torch.testing.assert_close(ours, theirs)
print("equal: the duplicated read and the lifted one, with the gradients of", len(wanted), "tensors")

# %% [markdown]
# So the control is a Block Attention Residuals router whose block scores carry one learned, positive offset per read
# site, $\log(1+e^b)$, over that of the embedding. That is all. The three sources still span what they spanned, and
# every read still lies in the triangle between them. **A reweighting, no new direction.**
#
# Could the parent not learn that offset by itself? Its scores are $q\cdot\mathrm{RMSNorm}(v)$, with one $q$ for all
# tokens. An offset for "this is a block and not the embedding" has to be made from directions that block sums share
# and embeddings do not, for all tokens at once. Often there may be such a direction. The copy offers the offset
# directly.
#
# Two observations follow that no experiment is needed for:
#
# * the offset is the same for *every* block in the bank. A copy cannot tell early blocks from late ones;
# * at zero queries, when training starts, the only effect is the one in the right panel above: a bit less of the
#   embedding.
#
# ## An empty slot is not a missing slot
#
# HAARES meets the copy in the early half of each block, where $D = C$. After the split, another special case can
# occur: the halves cancel in the detail, $D = 0$. Its key is 0, its score is $b$, its value adds nothing to the read,
# and yet it takes its share of the weight. Everything else gets shorter by the factor $1 - w_D$.

# %%
half = DepthRouter(config, RouterOptions(blocks=2, read="plain"), generator).double()
with torch.no_grad():
    half.query.copy_(router.query)
    half.detail_bias.copy_(router.detail_bias)
mirrored = [outputs[0], outputs[1], outputs[0], outputs[1]]  # the late half writes what the early half wrote: D = 0
e, C, hat = run_to(half, 4, mirrored, embedding)
w = half.weights((e, C, hat), 4)
without = torch.softmax(depth_read.depth_scores((e, C), half.query[4], half.key_gain[4], half.key_eps), 0)
torch.testing.assert_close(depth_read.mix(w, (e, C, hat)), (1 - w[2, ..., None]) * depth_read.mix(without, (e, C)))
print(f"detail: {hat.abs().max():.1f}, its weight by token:", [f"{value:.3f}" for value in w[2].flatten().tolist()])
assert hat.abs().max() == 0 and (w[2] > 0).all()

# %% [markdown]
# (A sublayer norms what it reads, so a shorter read with the same direction makes no difference to it, but for the
# norm's $\epsilon$. What an empty detail takes, it takes from no source in particular.)
#
# ## How equal are the equal ones?
#
# One more look at the early half. The raw accumulators are equal to the bit. What is offered is $\hat D = aD$ with $a
# = \mathrm{RMS}(C)/(\mathrm{RMS}(D) + \epsilon)$, and the $\epsilon$ that keeps the quotient finite makes $a$ a
# little smaller than 1: by $\epsilon/(\mathrm{RMS}(C) + \epsilon)$, one part in a million for a $C$ of RMS 1, and
# more for a smaller one (five in a hundred thousand at 0.02).

# %%
shortfall = algebra.matching().statement[1]
display(shortfall)
e, C, hat = run_to(half, 2, outputs, embedding)  # the second half of the block has not begun
size, eps = depth_read.rms(C, "token"), half.options.eps
formula = sp.lambdify(sp.symbols("c", nonnegative=True), shortfall.rhs.subs(algebra.eps, eps))
torch.testing.assert_close(1 - hat / C, formula(size).expand_as(C), rtol=1e-6, atol=1e-14)
read = depth_read.mix(half.weights((e, C, hat), 2), (e, C, hat))
same = depth_read.mix(router.weights((e, C, C), 2), (e, C, C))
print(f"largest difference from an exact copy: {(read - same).abs().max().item():.0e}")
assert 0 < (read - same).abs().max() < 1e-5

# %% [markdown]
# In the early half, then, the *active* pair of HAARES does what a duplicate does, to about six digits when $C$ has
# RMS 1. The two part at the event after the first write of the late half. (In finished blocks they have parted
# already.)
#
# ## What we found, and what it does not show
#
# * Equal slots with scores $z$ and $z + b$ are one slot with score $z + \log(1+e^b)$: $\log 2$ at $b = 0$, $0.127$ at
#   $b = -2$. Proved for any number of other slots, and equal in values and gradients on the package's router.
# * So a copy is a learned, always positive offset in favour of what it copies. It spans nothing new.
# * A zero detail still takes weight. An absent slot does not.
# * This explains what the duplicate control *is*, not why it trains better than its parent in the paper. To compare
#   HAARES with Block alone would mix two changes; the fair comparison for the detail's *content* is with the copy
#   (1.7848 against 1.7744, Table 12), and it should be repeated with more seeds.
#
# ## Exercises
#
# ### Exercise 10.1 · How loud must a copy be?
#
# *Easy, 5 minutes.* Which bias makes a pair count exactly three times as much as the single slot? Which one one and a
# half times?
#
# <details><summary>Answer</summary>
#
# $1 + e^b = 3$ gives $b = \log 2 \approx 0.693$, and $1 + e^b = \tfrac32$ gives $b = -\log 2$. In general
# $b = \log(e^{\text{lift}} - 1)$, which is only defined for a positive lift.
# </details>
#
# ### Exercise 10.2 · A proof to complete: many copies
#
# *Medium, 10 minutes.* A slot has $n$ copies with biases $b_1, \dots, b_n$. Show that they are one slot with the score
# $z + \_\_\_$. What if all $b_i = 0$?
#
# <details><summary>Answer</summary>
#
# $e^z + \sum_i e^{z + b_i} = e^z\big(1 + \sum_i e^{b_i}\big)$, so the lift is $\log\big(1 + \sum_i e^{b_i}\big)$: a
# log-sum-exp. With all $b_i = 0$ it is $\log(n + 1)$, which grows without bound but slower and slower.
# </details>
#
# ### Exercise 10.3 · A proof to complete: ratios
#
# *Medium, 15 minutes.* "A copy changes no ratio between the others." Let $A$ and $B$ be two other slots. Show that
# $w_A/w_B$ is the same with and without the copy, and conclude that a read with the copy is a mixture of the read
# without it and of the copied source.
#
# <details><summary>Answer</summary>
#
# Both weights have the same denominator, before and after, so $w_A/w_B = e^{z_A - z_B}$ always. With $Z$ the
# denominator before, $h' = \frac{Z h + e^{z+b} C}{Z + e^{z+b}} = (1-\lambda) h + \lambda C$ with
# $\lambda = \frac{e^{z+b}}{Z+e^{z+b}}$, the weight of the copy.
# </details>
#
# ### Exercise 10.4 · Copy the embedding instead
#
# *Medium, 15 minutes.* At zero queries and with $n$ blocks in the bank, find the bias $b$ for a copy of *the embedding*
# that gives it the same weight as in a standard bank with a single block, $\tfrac12$.
#
# <details><summary>Answer</summary>
#
# $\frac{1 + e^b}{1 + e^b + n} = \tfrac12$ means $1 + e^b = n$, so $b = \log(n - 1)$: 0 for two blocks, and for a
# single block $-\infty$, that is, no copy.
# </details>
#
# ### Exercise 10.5 · The gradient of a copy
#
# *Hard, 20 minutes.* Show that the gradient of a loss with respect to the bias of a copy is $w\,(G_C - \bar G)$, with
# $w$ the weight of the copy, $G_C = g\cdot C$ and $\bar G = g\cdot h$. How does it compare with the gradient of the
# score $z$ of the pair?
#
# <details><summary>Answer</summary>
#
# $b$ stands in the copy's score alone, so it gets that score's gradient, $w(G_C - \bar G)$ by the softmax Jacobian.
# $z$ stands in both scores and gets $(w_C + w)(G_C - \bar G)$. The quotient is $w/(w_C + w) = e^b/(1+e^b)$: the slope
# of the lift. The chain rule through $\log(1 + e^b)$ says the same.
# </details>

# %%
count, other = sp.Symbol("n", positive=True, integer=True), sp.IndexedBase("b", real=True)
by_lift = algebra.duplicate_slot().forms["bias"]
level = sp.Symbol("lift")
assert sp.simplify(by_lift.subs(level, sp.log(3)) - sp.log(2)) == 0  # exercise 10.1
assert sp.simplify(by_lift.subs(level, sp.log(sp.Rational(3, 2))) + sp.log(2)) == 0

b_1, b_2, b_3 = sp.symbols("b_1:4", real=True)  # exercise 10.2, three copies; and any number of equal ones
together = sp.exp(z) + sum(sp.exp(z + bias) for bias in (b_1, b_2, b_3))
assert sp.simplify(together - sp.exp(z + sp.log(1 + sp.exp(b_1) + sp.exp(b_2) + sp.exp(b_3)))) == 0
i = sp.Symbol("i", integer=True)
assert sp.simplify(sp.exp(z) + sp.Sum(sp.exp(z), (i, 1, count)).doit() - sp.exp(z + sp.log(count + 1))) == 0

Z, h, C_1 = sp.Symbol("Z", positive=True), *sp.symbols("h C_1", real=True)  # exercise 10.3, in one coordinate
copy = sp.exp(z + b)
weight = copy / (Z + copy)
assert sp.simplify((Z * h + copy * C_1) / (Z + copy) - ((1 - weight) * h + weight * C_1)) == 0

at_half = sp.log(count - 1)  # exercise 10.4
assert sp.simplify((1 + sp.exp(at_half)) / (1 + sp.exp(at_half) + count) - sp.Rational(1, 2)) == 0

G_C, G_R = sp.symbols("G_C G_R", real=True)  # exercise 10.5: the others send G_R on average
pair = sp.exp(z) + copy
loss = (pair * G_C + R * G_R) / (pair + R)
w_copy, w_pair = copy / (pair + R), pair / (pair + R)
assert sp.simplify(sp.diff(loss, b) - w_copy * (G_C - loss)) == 0
assert sp.simplify(sp.diff(loss, z) - w_pair * (G_C - loss)) == 0
assert sp.simplify(w_copy / w_pair - sp.diff(lift, b)) == 0
print("the answers hold")

# %% [markdown]
# ## Further reading
#
# * K. Wang, *HAARES*, [arXiv 2606.06564](https://arxiv.org/abs/2606.06564), section 4.4 and Table 12.
# * Kimi Team, *Attention Residuals*, [arXiv 2603.15031](https://arxiv.org/abs/2603.15031).
# * G. Xiao et al., *Efficient streaming language models with attention sinks*,
#   [arXiv 2309.17453](https://arxiv.org/abs/2309.17453): slots whose use is to take weight, in attention over time.
