# %% [markdown]
# # 06 · What a sum forgets: which trajectories does a block sum confuse?
#
# Block Attention Residuals (chapter 05) keep one vector of a whole block of events: the sum of what they wrote. A
# later layer may choose how much of that vector it wants, but not what is in it. This chapter asks what was lost when
# the sum was taken, counts it exactly for any block length and any width, and shows that no later layer, however
# clever, gets it back. The count is short enough to prove on one page, and we let sympy check the page.
#
# > **You will build** four different trajectories with one endpoint, the linear map that a sum is, a basis of
# > everything it cannot see, and a measurement of the same on the package's own router.
# >
# > **You will learn** to see a summary as a matrix, to count what it forgets by its rank, and why a gradient that
# > comes back through a sum treats all events alike.
# >
# > **You need** vectors, matrices and rank; chapter 05 for what a block is. No sympy: it only writes down what we say.
# >
# > **Runs in** about 5 seconds on 2 cores, without a network.

# %%
import math
from itertools import permutations

import matplotlib.pyplot as plt
import sympy as sp
import torch
from IPython.display import display

from minihaares import algebra, plots
from minihaares.model import DepthRouter, ModelConfig, RouterOptions

plots.use_style()
generator = torch.Generator().manual_seed(6)

# %% [markdown]
# ## A question, and a block small enough to draw
#
# Take a block of four events that write vectors of two channels, say
#
# $$u_1 = (2, 0),\quad u_2 = (1, 1),\quad u_3 = (-1, 1),\quad u_4 = (0, 1).$$
#
# Add them by hand: $C = (2, 3)$. Now let other networks have other blocks. One writes the same four vectors in another
# order. One does everything in its first two events and nothing afterwards. One goes far out and takes most of it back.
# **Can a layer that is only given $C$ tell which of them it is reading?**

# %%
blocks = {
    "as written": [(2, 0), (1, 1), (-1, 1), (0, 1)],
    "another order": [(0, 1), (-1, 1), (2, 0), (1, 1)],
    "all of it early": [(1, 3), (1, 0), (0, 0), (0, 0)],
    "out and back": [(3, 0), (2, 1), (-1, 2), (-2, 0)],
}
blocks = {name: torch.tensor(outputs, dtype=torch.float64) for name, outputs in blocks.items()}  # [m, d] each
for name, outputs in blocks.items():
    print(f"{name:16s} C = {tuple(outputs.sum(0).tolist())}   after two events: {tuple(outputs[:2].sum(0).tolist())}")
assert all(torch.equal(outputs.sum(0), blocks["as written"].sum(0)) for outputs in blocks.values())

# %% [markdown]
# Four ways, one endpoint. Draw each block as a walk: start at zero, put every output at the end of the one before.

# %%
fig, axis = plt.subplots(figsize=(6.8, 4.8))
looks = (("black", "-", "o"), (plots.BLUE, "--", "s"), (plots.ORANGE, "-.", "D"), (plots.PURPLE, ":", "^"))
for (name, outputs), (colour, line, marker) in zip(blocks.items(), looks, strict=True):
    walk = torch.cat((torch.zeros(1, 2), outputs.cumsum(0)))  # [m + 1, d]
    axis.plot(*walk.T, color=colour, ls=line, marker=marker, ms=4, label=name)
    axis.plot(*walk[2], marker=marker, ms=11, mfc="white", mec=colour, mew=1.8, ls="")  # half of the block is done
axis.plot(2, 3, marker="*", ms=17, color="black")
axis.annotate("the sum $C$", (2, 3), (2.15, 3.2))
axis.set(title="Four trajectories, one sum (large hollow: half way)", xlabel="channel 1", ylabel="channel 2")
axis.set(aspect="equal", xlim=(-1.5, 5.5), ylim=(-0.4, 3.6))
fig.legend(loc="outside lower center", ncols=4)
plots.show(
    fig,
    alt="Four walks in a plane that all start at zero and end at the same star, (2, 3). They pass through different "
    "places half way, each with a large hollow marker: (3, 1), (-1, 2), (2, 3) itself, and far to the right, (5, 1).",
)

# %% [markdown]
# ## Ask the router itself
#
# `DepthRouter` is the package's read over depth. We make one with two blocks of four events and a query that is not
# zero, let each of our four examples write into the first block, and look at what the next read gets: the embedding,
# which is the same for all, and $C$. Nothing in the answer can depend on the block, whatever the query is.

# %%
config = ModelConfig(layers=4, width=2, heads=1)  # 8 events; the paper's medium model has 96 of width 512
router = DepthRouter(config, RouterOptions(blocks=2, detail="none", read="plain"), generator).double()
with torch.no_grad():
    router.query.normal_(generator=generator)
embedding = torch.tensor([[[0.5, -1.0]]], dtype=torch.float64)  # [B, T, d] = [1, 1, 2]


def first_read_after(outputs):  # what event m, the first of the next block, sees: [1, 1, d]
    state = router.begin(embedding)
    for event, output in enumerate(outputs):
        _, state = router.read(state, event)
        state = router.write(state, event, output[None, None])
    seen, _ = router.read(state, len(outputs))
    return seen


reads = {name: first_read_after(outputs) for name, outputs in blocks.items()}
for name, seen in reads.items():
    print(f"{name:16s} reads {[round(value, 4) for value in seen.flatten().tolist()]}")
    torch.testing.assert_close(seen, reads["as written"], rtol=0, atol=1e-14)

# %% [markdown]
# The same holds for anything else one could put in the query's place. If a layer computes $f(C)$, then two blocks with
# one $C$ give one $f(C)$: that is all there is to prove. A wider router, a deeper one, a different score: none of them
# helps, because the difference is gone before they start.
#
# And it runs backwards, too. What does event $r$ hear about a loss, if all it gave was its share in $C$? Through a
# sum, every event gets the *same* gradient. The block can be told to move its endpoint, but not to do so early or late.

# %%
outputs = blocks["as written"].clone().requires_grad_()
first_read_after(outputs).sum().backward()
print("gradient of each of the four events:")
print(outputs.grad)
assert torch.equal(outputs.grad, outputs.grad[:1].expand(4, 2)) and outputs.grad.norm() > 0

# %% [markdown]
# (During its own block an event is read by its neighbours, one by one: $C$ after two events is not $C$ after four. What
# this chapter says is about a block once it is *finished*, which is what all later blocks see.)
#
# ## The sum as a matrix
#
# How much is lost, in numbers? Put the outputs of a block, $m$ vectors of width $d$, into one long column
# $(u_1, \dots, u_m)$ of $md$ numbers. Then $C$ is a matrix times that column: $m$ identity matrices side by side,
#
# $$C = \begin{pmatrix} I_d & I_d & \cdots & I_d \end{pmatrix}\begin{pmatrix}u_1\\ \vdots\\ u_m\end{pmatrix}
# = \big(\mathbf 1^\top \otimes I_d\big)\,u .$$
#
# What it forgets is its **null space**: all changes $(v_1,\dots,v_m)$ of a block with $v_1 + \dots + v_m = 0$. For our
# toy, $m = 4$ and $d = 2$:

# %%
m, d = 4, 2
sum_matrix = sp.kronecker_product(sp.ones(1, m), sp.eye(d))
display(sum_matrix)
forgotten = sum_matrix.nullspace()
print(f"{len(forgotten)} directions of {m * d} leave C unchanged; the first of them is {list(forgotten[0])}")
assert len(forgotten) == (m - 1) * d

# %% [markdown]
# The basis that sympy finds has a simple reading: take something out of the first event and put it into another one.
# There are $m - 1$ other events and $d$ channels to do it in. So the guess is: **the sum forgets $(m-1)\,d$ of
# $m\,d$ dimensions**. To be sure that there are no more and no fewer, for every $m$ and $d$, we need the rank.
#
# ## The proof, for all block lengths and widths
#
# A matrix $A$ has the same rank as its Gram matrix $AA^\top$, because $AA^\top x = 0$ gives $|A^\top x|^2 = 0$. Here
#
# $$\big(\mathbf 1^\top\otimes I_d\big)\big(\mathbf 1^\top\otimes I_d\big)^\top
# = \big(\mathbf 1^\top\mathbf 1\big)\otimes I_d = m\, I_d ,$$
#
# and its determinant is $m^d$. That is never zero, so the rank is $d$, and what is left for the null space is
# $md - d = (m-1)d$. With $m$ and $d$ as symbols, sympy follows us:

# %%
M, W = algebra.m, algebra.d  # positive integers, otherwise unknown
gram = sp.KroneckerProduct(sp.Matrix([[sp.Sum(1, (algebra.r, 1, M))]]), sp.Identity(W))
determinant = sp.Determinant(gram.doit()).doit()
display(algebra.Result((algebra.eq(sp.Determinant(gram), determinant),), {}))  # shows only what sympy finds true
assert algebra.null_space().statement[0].rhs == determinant == M**W

# %% [markdown]
# `algebra.null_space` is where the package keeps this result, with the half-split pair of the next chapter beside it.
# Hold its formula to the router: the Jacobian of "what a finished block gives" with respect to all its outputs, taken
# by automatic differentiation, at several sizes.

# %%
formula = sp.lambdify((M, W), algebra.null_space().forms["sum"])


def forgotten_by_the_router(m, d):
    config = ModelConfig(layers=m, width=d, heads=1)
    router = DepthRouter(config, RouterOptions(blocks=2, detail="none", read="plain"), generator).double()

    def block_sum(outputs):  # [m, d] -> [d]
        state = router.begin(torch.zeros(1, 1, d, dtype=torch.float64))
        for event in range(m):
            state = router.write(state, event, outputs[event][None, None])
        return router.sources(state)[1].flatten()

    jacobian = torch.autograd.functional.jacobian(block_sum, torch.zeros(m, d, dtype=torch.float64)).flatten(1)
    return m * d - torch.linalg.matrix_rank(jacobian).item()


for m, d in [(1, 4), (2, 2), (3, 2), (4, 4), (6, 8)]:
    print(f"m = {m}, d = {d}: {m * d:2d} numbers go in, {forgotten_by_the_router(m, d):2d} dimensions are forgotten")
    assert forgotten_by_the_router(m, d) == formula(m, d)

# %% [markdown]
# ## How much is that in a real model?
#
# The paper's 48-layer models have 96 events and, by default, four blocks of 24. Of every 24 dimensions a finished block
# moved in, its sum keeps one. The standard stream is the extreme case: one running sum over all 96 events and the
# embedding. Full Attention Residuals ($m = 1$) forget nothing, and pay for it with 97 stored vectors.

# %%
print(" N    m   kept of a block   stored vectors a token")
for blocks_in_all in (1, 2, 4, 6, 8, 96):
    m = 96 // blocks_in_all
    kept = sp.Rational(m * 512 - formula(m, 512), m * 512)
    print(f"{blocks_in_all:2d}   {m:2d}   {str(kept):>6s} = {float(kept):.3f}   {1 + blocks_in_all:6d}")
    assert kept == sp.Rational(1, m)

# %% [markdown]
# Dimensions are not the whole story: a block might happen to move only where the sum can see it. Split the outputs of
# each channel into their mean over the block and the rest. The two are orthogonal, so squared lengths add up:
#
# $$\sum_r |u_r|^2 \;=\; \frac{|C|^2}{m} \;+\; \sum_r \Big|u_r - \frac{C}{m}\Big|^2 .$$
#
# The first part is what $C$ tells, the second is what it hides. If the events of a block were independent draws
# around zero, the visible share would be $1/m$ on average; if all wrote the same vector, it would be 1; if the late
# ones took back what the early ones did, it would be 0.

# %%
def visible_share(outputs):  # [m, ..., d] -> a number
    return (outputs.sum(0).square().sum() / len(outputs) / outputs.square().sum()).item()


for name, outputs in blocks.items():
    mean = outputs.mean(0)
    hidden = (outputs - mean).square().sum() / outputs.square().sum()
    assert math.isclose(visible_share(outputs) + hidden, 1)
    print(f"{name:16s} {visible_share(outputs):.2f} of its squared length shows in the sum")
draws = torch.randn(24, 4000, 32, generator=generator, dtype=torch.float64)
print(f"{'random, m = 24':16s} {visible_share(draws):.3f}, and 1/24 = {1 / 24:.3f}")
assert abs(visible_share(draws) - 1 / 24) < 1e-3

# %% [markdown]
# How visible the blocks of a *trained* network are is a matter of measurement, not of algebra.
#
# ## What we found, and what it does not show
#
# * A block sum is the matrix $\mathbf 1^\top\otimes I_d$. It keeps $d$ of $md$ dimensions and forgets $(m-1)d$: proved
#   for all $m$ and $d$, and measured on the router.
# * Two blocks with one sum are one block to every later layer, and through a sum all events of a finished block get the
#   same gradient.
# * This does **not** show that forgetting hurts. The standard residual stream forgets more than any block sum does, and
#   it is the most successful architecture of its time. A summary is bad only if what it drops would have been useful.
# * It does not say *which* of the forgotten directions one would want back. Chapter 07 asks for the cheapest useful
#   one.
#
# ## Exercises
#
# ### Exercise 6.1 · The equal block
#
# *Easy, 5 minutes.* In one channel, $u = (4, -1, 2)$. Find a block with the same sum whose three outputs are all equal,
# and the vector of the null space that leads from $u$ to it.
#
# <details><summary>Answer</summary>
#
# The sum is 5, so the equal block is $(\tfrac53, \tfrac53, \tfrac53)$, and $v = (-\tfrac73, \tfrac83, -\tfrac13)$,
# whose entries add up to 0. Of all blocks with that sum, the equal one is the shortest: it is the part of $u$ the sum
# sees.
# </details>
#
# ### Exercise 6.2 · A proof to complete: any reordering
#
# *Medium, 15 minutes.* "$C$ does not change under any reordering of the block." It is enough to show it for a trade of
# two events, $i$ and $j$, because every reordering is a chain of trades. Write the block after the trade as $u_r +
# \delta_{ri}(\_\_\_) + \delta_{rj}(\_\_\_)$ with Kronecker deltas, and sum over $r$.
#
# <details><summary>Answer</summary>
#
# $u_r + \delta_{ri}(u_j - u_i) + \delta_{rj}(u_i - u_j)$: at place $i$ now stands $u_j$, at place $j$ stands $u_i$.
# Over $r$, the deltas pick one term each: $\sum_r$ of the change is $(u_j - u_i) + (u_i - u_j) = 0$. It holds for any
# first and last event of the sum as long as $i$ and $j$ lie between them. The next cell lets sympy do the sum.
# </details>
#
# ### Exercise 6.3 · Weights do not help
#
# *Medium, 15 minutes.* Replace the sum by a weighted sum $\sum_r \alpha_r u_r$ with fixed, pairwise different weights,
# none of them zero. It does notice a reordering. How many dimensions does it forget?
#
# <details><summary>Answer</summary>
#
# Just as many. The Gram matrix is $\big(\sum_r \alpha_r^2\big) I_d$, its determinant $\big(\sum_r\alpha_r^2\big)^d$
# is not zero, so the rank is $d$ and the null space has $(m-1)d$ dimensions: other ones. The trade of $i$ and $j$
# changes it by $(\alpha_i - \alpha_j)(u_j - u_i)$. With one vector of width $d$ one can choose *what* to forget, but
# not *how much*.
# </details>
#
# ### Exercise 6.4 · Two sums
#
# *Hard, 20 minutes.* Keep two vectors of a block, $C$ and the running sum after the first $k$ events. How many
# dimensions are forgotten now, for $1 \le k < m$? And for $k = m$?
#
# <details><summary>Answer</summary>
#
# The rows are $m$ ones, and $k$ ones followed by zeros. Their Gram matrix is
# $\begin{pmatrix} m & k\\ k & k\end{pmatrix}$ with determinant $k(m-k)$: positive for $1\le k<m$, so the rank is $2d$
# and $(m-2)d$ dimensions are forgotten. At $k = m$ both rows are the same, the determinant is 0, and the second
# vector tells nothing new. Chapter 07 stores the same information in other coordinates.
# </details>

# %%
i, j, k, r, s, t = (getattr(algebra, name) for name in "ijkrst")
u, size = algebra.u, algebra.m

equal = sp.Matrix([4, -1, 2]) + sp.Rational(1, 3) * sp.Matrix([-7, 8, -1])  # exercise 6.1
assert list(equal) == [sp.Rational(5, 3)] * 3

trade = sp.KroneckerDelta(r, i) * (u[j] - u[i]) + sp.KroneckerDelta(r, j) * (u[i] - u[j])  # exercise 6.2
assert algebra.holds(algebra.eq(sp.Sum(trade, (r, s, t)), 0))
assert algebra.eq(sp.Sum(trade, (r, s, t)), 0) == algebra.permutations().steps[0]
orders = {tuple(torch.stack(order).sum(0).tolist()) for order in permutations(blocks["as written"])}
assert orders == {(2.0, 3.0)}

alpha = sp.symbols("alpha_1:4", positive=True)  # exercise 6.3, with m = 3 written out
row = sp.kronecker_product(sp.Matrix([alpha]), sp.eye(2))
assert (row * row.T).det().equals(sum(weight**2 for weight in alpha) ** 2) and len(row.nullspace()) == 2 * 2
trade_weighted = sp.Sum(sp.IndexedBase("alpha")[r] * trade, (r, 1, size))
change = (sp.IndexedBase("alpha")[i] - sp.IndexedBase("alpha")[j]) * (u[j] - u[i])
assert algebra.holds(algebra.eq(trade_weighted, change))

prefix = sp.Matrix([[size, k], [k, k]])  # exercise 6.4
assert prefix.det().equals(k * (size - k)) and prefix.subs(k, size).det() == 0
print("the answers hold")

# %% [markdown]
# ## Further reading
#
# * Kimi Team, *Attention Residuals*, [arXiv 2603.15031](https://arxiv.org/abs/2603.15031): block sums as sources.
# * K. Wang, *HAARES*, [arXiv 2606.06564](https://arxiv.org/abs/2606.06564), sections 3.1 and 4: the null space.
# * A. Veit, M. Wilber, S. Belongie, *Residual networks behave like ensembles of relatively shallow networks*,
#   [arXiv 1605.06431](https://arxiv.org/abs/1605.06431): what it means to read a network as a sum over paths.
