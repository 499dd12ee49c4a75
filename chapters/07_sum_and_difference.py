# %% [markdown]
# # 07 · Sum and difference: how little extra recovers both halves?
#
# A block sum forgets how its outputs were spread over the block (chapter 06). HAARES keeps a second vector of each
# block: the outputs of the early half *minus* those of the late half. This chapter shows what that one vector buys.
# Both half totals come back, exactly; reorderings inside a half stay invisible, exchanges across the middle do not.
# It is the oldest wavelet there is, one level of it, and we find out up to which scale.
#
# > **You will build** the pair of sum and difference, its inverse, the accumulators that make it on the fly, and its
# > place among Haar's vectors.
# >
# > **You will learn** to prove such things for every width and every block length, with vectors as symbols, with
# > induction, and with a Gram determinant; and where exactness ends: at the matched detail.
# >
# > **You need** chapter 06, vectors and matrices. sympy is explained where it is used.
# >
# > **Runs in** about 6 seconds on 2 cores, without a network.

# %%
import math

import matplotlib.pyplot as plt
import sympy as sp
import torch
from IPython.display import Math, display

from minihaares import algebra, depth_read, plots
from minihaares.model import DepthRouter, ModelConfig, RouterOptions

plots.use_style()
generator = torch.Generator().manual_seed(7)

# %% [markdown]
# ## Two numbers
#
# Someone tells you that two numbers have the sum 8. You cannot know them. If you also hear that their difference is 2,
# you can: the first is $(8 + 2)/2 = 5$, the second $(8 - 2)/2 = 3$. That is the whole idea.
#
# For a block, the two "numbers" are vectors: the total $E$ of the early half of its events and the total $F$ of the
# late half. (With an odd number of events, the early half gets the extra one.) Stored are
#
# $$C = E + F\quad\text{(cumulative source)},\qquad D = E - F\quad\text{(detail)}.$$
#
# With $E = (2, 1)$ and $F = (-1, 1)$, by hand: $C = (1, 2)$, $D = (3, 0)$, and back again:
# $(C + D)/2 = (4, 2)/2 = (2, 1)$.

# %%
E, F = torch.tensor([2.0, 1.0]), torch.tensor([-1.0, 1.0])
C, D = E + F, E - F
print("C =", C.tolist(), "  D =", D.tolist())
print("(C + D)/2 =", ((C + D) / 2).tolist(), "  (C - D)/2 =", ((C - D) / 2).tolist())
assert torch.equal((C + D) / 2, E) and torch.equal((C - D) / 2, F)

# %% [markdown]
# ## The same for every width
#
# An example is no proof. In sympy a `MatrixSymbol` is a matrix of which only the shape is known; here a column of $d$
# entries, with $d$ itself a symbol. What comes out holds for the width 2 of the toy and for 4096.

# %%
width = algebra.d
E, F, x = (sp.MatrixSymbol(name, width, 1) for name in "EFx")
C, D = E + F, E - F
recovered = ((C + D) / 2).doit(), ((C - D) / 2).doit()
for left, right in zip((r"\tfrac12 (C + D)", r"\tfrac12 (C - D)"), recovered, strict=True):
    display(Math(f"{left} = {sp.latex(right)}"))
assert recovered == (E, F)

# %% [markdown]
# Now move some $x$ from the late half to the early one. The sum cannot see it, whatever $x$ is; the difference moves
# by twice as much:

# %%
moved_C, moved_D = ((E + x) + (F - x)).doit(), ((E + x) - (F - x)).doit()
display(Math(f"C' - C = {sp.latex((moved_C - C).doit())}"), Math(f"D' - D = {sp.latex((moved_D - D).expand())}"))
assert moved_C == C and (moved_D - D).expand() == 2 * x

# %% [markdown]
# `algebra.recovery` is the package's copy of this page. It cannot be made if one of its lines is false (a `Result`
# checks them all), and it shows itself like this:

# %%
recovery = algebra.recovery()
assert [claim.rhs for claim in recovery.statement[:2]] == list(recovered)
recovery

# %% [markdown]
# **How little is that?** One extra vector of $d$ numbers, and no linear summary does it with less: two half totals
# have $2d$ free numbers, and a matrix of $2d - 1$ rows has rank at most $2d - 1$.
#
# ## Made on the fly
#
# No one has to keep the outputs of a block until it is finished. Two accumulators suffice, and each event touches
# them once: $C \leftarrow C + u$ and $D \leftarrow D \pm u$, with a plus in the early half and a minus in the late
# half. That this gives the right sums after *every* event $r$ is a small induction:
#
# * nothing written: the empty sum is 0, and so is that of the late half when it begins;
# * if the sums are right after $r$ events, then one more write makes them right after $r + 1$: the two last lines,
#   one for $C$ (and for $D$ in the early half), one for $D$ in the late half.

# %%
algebra.online()

# %% [markdown]
# And the package does just this. A plain router shows its raw accumulators; we compare them with the sums, for odd
# and even blocks.

# %%
def active_pairs(outputs, **options):  # [m, d] -> the raw (C, D) after each event but the last: [m - 1, 2, d]
    m, d = outputs.shape
    rest = 2 - m % 2  # a second block, so that the number of events is even
    config = ModelConfig(layers=(m + rest) // 2, width=d, heads=1)
    router = DepthRouter(config, RouterOptions(blocks=(m, rest), read="plain", **options), generator).double()
    state, pairs = router.begin(torch.zeros(1, 1, d).double()), []
    for event in range(m - 1):
        state = router.write(state, event, outputs[event][None, None])
        pairs.append(torch.stack(state.active).squeeze())
    return torch.stack(pairs)


for m in (2, 5, 8):
    outputs = torch.randn(m, 4, generator=generator, dtype=torch.float64)
    k = math.ceil(m / 2)
    for r, (C, D) in enumerate(active_pairs(outputs), start=1):
        torch.testing.assert_close(C, outputs[:r].sum(0))
        torch.testing.assert_close(D, outputs[: min(r, k)].sum(0) - outputs[k:r].sum(0))
print("equal: accumulators and sums, after every event but the last")

# %% [markdown]
# During the early half the two accumulators are one and the same vector in two slots. Chapter 10 asks what that does.
#
# ## What the pair sees, and what it does not
#
# Trade two events. Let those at places $i$ and $j$ hold $u_i$ and $u_j$. The change of any sum over $r$ is a sum over
# Kronecker deltas, which are 1 at one place and 0 elsewhere:
#
# * both places inside the range of the sum: nothing changes (third line below, for a sum from $s$ to $t$);
# * $i$ early and $j$ late: $E$ changes by $u_j - u_i$ and $F$ by $u_i - u_j$. So $C$ stays and $D$ moves by
#   $2(u_j - u_i)$.
#
# Any reordering inside a half is a chain of trades inside it, so the pair sees none of them.

# %%
algebra.permutations()

# %%
outputs = torch.randn(6, 4, generator=generator, dtype=torch.float64)  # m = 6, k = 3


def pair(outputs):  # [m, d] -> the finished raw pair; the package's places say which sign an event has
    signs = torch.tensor([place.sign for place in depth_read.places(len(outputs), 1, "half")], dtype=outputs.dtype)
    return outputs.sum(0), signs @ outputs


C, D = pair(outputs)
within = pair(outputs[[1, 2, 0, 5, 4, 3]])
across = pair(outputs[[0, 4, 2, 3, 1, 5]])
torch.testing.assert_close(within, (C, D))
torch.testing.assert_close(across, (C, D + 2 * (outputs[4] - outputs[1])))
print("equal: within a half nothing moves; across, D moves by twice the difference")

# %% [markdown]
# ### Counting again
#
# The pair is a matrix with two rows of blocks, $m$ ones and $k$ plus signs followed by $\ell = m - k$ minus signs, each
# times $I_d$. As in chapter 06 its rank is that of its Gram matrix:

# %%
algebra.null_space()

# %% [markdown]
# $4k\ell$ is not zero as soon as both halves have an event, so the rank is $2d$: **the pair forgets $(m-2)d$ of $md$
# dimensions**, $d$ fewer than the sum. With $m = 2$ it forgets nothing. With $m = 1$ the late half is empty, both
# rows are the same, and $D = C$ adds nothing. Note what the proof does *not* need: that the cut is in the middle. Any
# cut gives the same count; any second row that has both signs does. The *middle* is a choice, and a fixed random
# pattern of signs is the paper's control for it (its Table 12).
#
# ## The pair as rotated coordinates
#
# Take one channel. A block is then a point $(E, F)$ in a plane. All points with one sum lie on a line that falls at
# 45 degrees, and the sum cannot tell them apart. The lines of one difference rise at 45 degrees. The pair names the
# line of each kind on which the point lies: it is the same point, read in axes that are turned by 45 degrees (and one
# of them flipped, so that early is positive). Turned axes keep lengths, these do not:
# $|C|^2 + |D|^2 = 2\,(|E|^2 + |F|^2)$, so they are $\sqrt 2$ times too long.

# %%
turn = sp.Matrix([[1, 1], [1, -1]]) / sp.sqrt(2)
assert turn * turn.T == sp.eye(2) and turn.det() == -1  # lengths and angles stay, and the second axis is flipped
in_halves, in_pair = sp.Matrix(sp.symbols("E F")), sp.Matrix(sp.symbols("C D"))
display(sp.Eq(in_pair, sp.MatMul(sp.sqrt(2), turn, in_halves, evaluate=False), evaluate=False))

# %%
fig, axis = plt.subplots(figsize=(5.6, 5.2))
E_, F_ = 2.0, -0.6
span = torch.tensor([-3.0, 3.0])
for level in (-2, 0, 2, 4):
    axis.plot(span, level - span, color="0.85", lw=1, ls="-")
    axis.plot(span, span - level, color="0.85", lw=1, ls="-")
axis.plot(span, (E_ + F_) - span, color=plots.BLUE, ls="--", label=f"all blocks with the sum C = {E_ + F_:.1f}")
axis.plot(span, span - (E_ - F_), color=plots.ORANGE, ls="-.", label=f"all blocks with the detail D = {E_ - F_:.1f}")
axis.plot([0.4, 1.2], [1.0, 0.2], "s", color=plots.BLUE, mfc="white", ms=8, ls="", label="two of the same sum")
axis.plot(E_, F_, "ko", ms=10, ls="", label="a block")
axis.set(title="One channel: the pair reads the plane in turned axes", xlabel="early half E", ylabel="late half F")
axis.set(aspect="equal", xlim=(-2.6, 2.9), ylim=(-2.6, 2.6))
axis.legend(loc="lower left", fontsize=8.5, frameon=True)
plots.show(
    fig,
    alt="The plane of the early and late half totals of one channel, with a grid of lines at 45 degrees. Through the "
    "point of one block goes a falling dashed line of all blocks with the same sum, on which two other blocks are "
    "marked, and a rising dash-dotted line of all blocks with the same difference. They cross at a right angle there.",
)

# %% [markdown]
# ## Haar's coarsest pair, and its scale
#
# Haar's vectors on $m$ places are orthonormal. The first, $\varphi$, is constant: $1/\sqrt m$ everywhere. The next,
# $\psi$, is constant on each half, positive and then negative, of length 1 and orthogonal to $\varphi$. For $k$ early
# and $\ell$ late events that leaves no choice. The rows of $C$ and $D$, entry by entry, are these:

# %%
haar = algebra.haar()
haar

# %% [markdown]
# The definitions come first, then that $\varphi$ and $\psi$ are orthonormal, then what we want to know. Read: the row
# of $C$ is $\sqrt m\,\varphi$. The row of $D$ is $\alpha\varphi + \beta\psi$, which is $+1$ on early and $-1$ on late
# events. With **equal halves** ($k = \ell$) $\alpha$ is 0 and $\beta$ is $\sqrt m$. So $(C, D)$ are Haar's two
# coarsest coefficients, **both $\sqrt m$ times too large**; the factor is the same for both, so the picture of
# rotated axes holds.
#
# With **unequal halves** two things change. $D$ is no longer orthogonal to $C$: it holds $(k - \ell)/m$ of it. A
# block whose events all write the same vector $c$ has a detail of $(k-\ell)\,c$, not 0. And $\beta < \sqrt m$.
# Recovery does not care, it never asked for orthogonality. The blocks of the paper ($m = 6$, $12$, $16$ and $24$) are
# all even.

# %%
fig, panels = plt.subplots(1, 2, figsize=(9.5, 3.4), sharey=True)
for panel, m in zip(panels, (8, 5), strict=True):
    row = torch.tensor([place.sign for place in depth_read.places(m, 1, "half")]) / math.sqrt(m)
    k = int((row > 0).sum())
    psi = torch.tensor([1 / k] * k + [-1 / (m - k)] * (m - k))
    psi /= psi.norm()
    places = torch.arange(m) + 1
    panel.axhline(m**-0.5, color="0.55", ls="-", lw=1.5, label="Haar's sum φ")
    panel.step(places, psi, where="mid", color=plots.BLUE, ls="--", label="Haar's detail ψ")
    panel.plot(places, row, "D", color=plots.ORANGE, mec="black", ls="", label="row of D, divided by √m")
    panel.set(title=f"m = {m}: {k} early, {m - k} late", xlabel="event", ylim=(-0.85, 0.85), xticks=places)
panels[1].legend(loc="lower left", fontsize=8.5)
plots.show(
    fig,
    alt="Two panels over the events of a block. In a block of 8, Haar's detail vector is a step up and an equal step "
    "down, and the scaled signs of D lie exactly on it. In a block of 5, split 3 to 2, Haar's step is lower in the "
    "early half and deeper in the late half; the signs of D have one height throughout and do not lie on it.",
)

# %%
for k, late in ((12, 12), (3, 2), (2, 1)):
    on = {name: float(form.subs({algebra.k: k, algebra.ell: late})) for name, form in haar.forms.items()}
    m = k + late
    degrees = math.degrees(math.acos(on["D on phi"] / math.sqrt(m)))
    print(f"{k} + {late}: D = {on['D on phi']:.3f} φ + {on['D on psi']:.3f} ψ, at {degrees:.1f} degrees to C")
    C, D = pair(torch.ones(m, 1, dtype=torch.float64))
    assert D.item() == k - late and math.isclose(on["D on phi"] ** 2 + on["D on psi"] ** 2, m)

# %% [markdown]
# ## A wrong turn: the matched detail is not the detail
#
# Before it is offered to a read, $D$ is scaled to the size of $C$: $\hat D = aD$ with $a$ about
# $\mathrm{RMS}(C)/\mathrm{RMS}(D)$. It is tempting to say that $(C, \hat D)$ still recovers both halves. It would if
# $a$ were stored, too, and it is not. What is lost is one number: the length of $D$. Count it, with the Jacobian of
# $(C, D)\mapsto(C, \hat D)$ at a point where $a$ is not clipped:

# %%
width = 4
C = torch.tensor([[[1.0, 2.0, -1.0, 0.5]]], dtype=torch.float64)
D = torch.tensor([[[0.5, -0.5, 1.0, 0.25]]], dtype=torch.float64)


def matched(C, D):  # eq. 6 with γ = 4 and, to see the idea without the noise, ε = 0; the gradient goes through a
    return (depth_read.rms(C, "token") / depth_read.rms(D, "token")).clamp(1 / 4, 4) * D


torch.testing.assert_close(matched(C, D), depth_read.matched(C, D, gamma=4.0, eps=0.0))
jacobian = torch.autograd.functional.jacobian(lambda both: torch.cat((both[0], matched(*both))), torch.stack((C, D)))
rank = torch.linalg.matrix_rank(jacobian.reshape(2 * width, 2 * width)).item()
print(f"of {2 * width} dimensions of (C, D), {rank} are left in (C, matched D)")
assert rank == 2 * width - 1

# %% [markdown]
# So exactness at every point is a property of the *raw* pair. What a read makes of the matched one is the subject of
# chapter 09.
#
# ## What we found, and what it does not show
#
# * $(C, D)$ gives both half totals back, for every width: one vector of $d$ extra numbers, and no fewer can do it
#   linearly.
# * The pair is blind inside each half and sees exchanges across the middle, by $2(u_j - u_i)$. It forgets $(m-2)d$.
# * With equal halves it is Haar's coarsest pair times $\sqrt m$. With unequal ones the detail leans on the sum.
# * Where its scale is not clipped, the matched pair keeps $2d - 1$ of the $2d$ dimensions.
# * It does **not** show that early against late is the contrast worth keeping. Every row with both signs recovers two
#   totals as well. That order matters is an empirical claim (the paper's Table 12) that needs runs, not proofs.
#
# ## Exercises
#
# ### Exercise 7.1 · Other coordinates
#
# *Easy, 5 minutes.* Someone stores $(C, E)$ instead of $(C, D)$. Give $F$ and $D$ from it. Does it forget more or less?
#
# <details><summary>Answer</summary>
#
# $F = C - E$ and $D = 2E - C$. Neither: the map between the two is invertible, so the null space is the same one. A
# router that scores and mixes what it is *given* still behaves differently, see chapter 09.
# </details>
#
# ### Exercise 7.2 · A proof to complete: twice is double
#
# *Medium, 10 minutes.* "Doing it twice gives twice the block": let $H = \begin{pmatrix}1&1\\1&-1 \end{pmatrix}$.
# Compute $H^2$ and read off the inverse of $H$, for halves that are numbers. Then say why nothing changes for halves
# that are vectors.
#
# <details><summary>Answer</summary>
#
# $H^2 = 2I$, so $H^{-1} = H/2$: the inverse is the map itself, halved. For vectors the map is $H \otimes I_d$, and
# $(H\otimes I_d)^2 = H^2\otimes I_d = 2\,I_2\otimes I_d$.
# </details>
#
# ### Exercise 7.3 · A proof to complete: lengths
#
# *Medium, 15 minutes.* Show $|C|^2 + |D|^2 = 2(|E|^2 + |F|^2)$ for vectors of any width, and also: if the detail is
# zero, $|E| = |F|$. Is the converse true?
#
# <details><summary>Answer</summary>
#
# $|C|^2 = |E|^2 + 2E\cdot F + |F|^2$ and $|D|^2 = |E|^2 - 2E\cdot F + |F|^2$; add them. If $D = 0$ then $E = F$, so
# their lengths agree. The converse is false: $E = (1, 0)$, $F = (0, 1)$ have equal lengths and $D = (1, -1)$. Equal
# lengths only say that $C$ and $D$ are orthogonal, because $C\cdot D = |E|^2 - |F|^2$.
# </details>
#
# ### Exercise 7.4 · A fair detail for odd blocks
#
# *Medium, 20 minutes.* Find weights $\alpha, \beta > 0$ such that $\alpha E - \beta F$ is zero on a block of $k$ early
# and $\ell$ late events that all write the same vector, and such that the row of this new detail is as long as that of
# $C$.
#
# <details><summary>Answer</summary>
#
# Zero on such a block means $\alpha k = \beta\ell$. The squared length of the row is
# $\alpha^2 k + \beta^2\ell = m = k + \ell$. So $\alpha = \sqrt{\ell/k}$ and $\beta = \sqrt{k/\ell}$: it is
# $\sqrt m\,\psi$. Recovery still works, by $E = (\beta C + D')/(\alpha + \beta)$.
# </details>
#
# ### Exercise 7.5 · One level deeper
#
# *Hard, 30 minutes.* Keep the sum, the half detail, and in each half the difference of its two quarters: four vectors.
# How many dimensions does a block of $m = 4n$ events forget now? What after $p$ levels?
#
# <details><summary>Answer</summary>
#
# The four rows are orthogonal and not zero (they are Haar's), so the rank is $4d$ and $(m-4)d$ dimensions are
# forgotten. After $p$ levels there are $2^p$ orthogonal rows: $(m - 2^p)\,d$, which is 0 when $2^p = m$.
# Whether a model gains by it is an open question.
# </details>

# %%
Cs, Es, Fs, k, ell = *sp.symbols("C E F"), algebra.k, algebra.ell
assert sp.expand((Es + Fs) - Es) == Fs and sp.expand(2 * Es - (Es + Fs)) == Es - Fs  # exercise 7.1

H = sp.Matrix([[1, 1], [1, -1]])  # exercise 7.2
assert H * H == 2 * sp.eye(2) and sp.kronecker_product(H, sp.eye(3)) ** 2 == 2 * sp.eye(6)

parallelogram = algebra.eq(algebra.C.T * algebra.C + algebra.D.T * algebra.D, 2 * (E.T * E + F.T * F))  # exercise 7.3
assert algebra.holds(parallelogram, tuple(recovery.given.items()))

alpha, beta = sp.sqrt(ell / k), sp.sqrt(k / ell)  # exercise 7.4
assert sp.simplify(alpha * k - beta * ell) == 0 and sp.simplify(alpha**2 * k + beta**2 * ell) == k + ell
fair = alpha * Es - beta * Fs
assert sp.simplify((beta * (Es + Fs) + fair) / (alpha + beta)) == Es
psi_early = haar.given[sp.Symbol("psi_E")]
assert sp.simplify(alpha - sp.sqrt(k + ell) * psi_early) == 0

n = algebra.n  # exercise 7.5: the Gram matrix of the four rows, quarters of n events each
quarters = sp.Matrix([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 0, 0], [0, 0, 1, -1]])
assert (n * quarters * quarters.T).is_diagonal() and (n * quarters * quarters.T).det() == 64 * n**4
print("the answers hold")

# %% [markdown]
# ## Further reading
#
# * K. Wang, *HAARES*, [arXiv 2606.06564](https://arxiv.org/abs/2606.06564), sections 2.3, 3.2 and 4.
# * A. Haar, *Zur Theorie der orthogonalen Funktionensysteme*, Mathematische Annalen 69 (1910): where the vectors are
#   from.
# * S. Mallat, *A theory for multiresolution signal decomposition: the wavelet representation*, IEEE PAMI 11 (1989).
