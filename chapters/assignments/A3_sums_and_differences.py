# %% [markdown]
# # Assignment 3 · Sums, differences and proofs
#
# A block of a deep model makes outputs $u_1 … u_m$. The first $k = \lceil m/2\rceil$ of them add up to $E$ (early), the
# others to $F$ (late). Block Attention Residuals keep the sum $C = E + F$; HAARES also keeps the difference
# $D = E - F$. What does that extra vector buy? Nine tasks, most of them answered by a formula. Chapters 06, 07, 09 and
# 10 treat the same questions.
#
# **How it works.** Under each answer stands a check. It is silent when all is well, and otherwise says what to look
# at. More checks run when you hand in. A formula may be written in **any form**: what counts is that it is the right
# function of the given symbols. Where a task asks for a proof, sympy is the judge. You may add cells, but leave the
# checks and the given cells as they are.

# %% nbgrader={"grade_id": "given_tools", "locked": true}
import numpy as np
import sympy as sp

from minihaares import checks

C, D = sp.symbols("C D", real=True)  # one coordinate of the two sources
w_C, w_D, a = sp.symbols("w_C w_D a", positive=True)  # the weights of a read, and the scale of the detail
b = sp.Symbol("b", real=True)  # a bias
L, N, g = sp.symbols("L N g", positive=True)  # layers, blocks, sources a block

# %% [markdown]
# ## 1 · Both halves back
# *1 point · about 5 minutes · difficulty 1 of 3*
#
# Write $E$ and $F$ in terms of $C$ and $D$.

# %% nbgrader={"grade_id": "recovery", "solution": true}
# Set E_from and F_from: formulas in C and D.
### BEGIN SOLUTION
E_from = (C + D) / 2
F_from = (C - D) / 2
### END SOLUTION

# %% nbgrader={"grade_id": "check_recovery", "grade": true, "points": 1}
early, late = 7, 3  # so C is 10 and D is 4
values = {C: early + late, D: early - late}
checks.close(
    [sp.sympify(E_from).subs(values), sp.sympify(F_from).subs(values)],
    [early, late],
    "Try it with E = 7 and F = 3: then C is 10 and D is 4.",
)
### BEGIN HIDDEN TESTS
checks.same_formula(E_from, (C + D) / 2, "Add the two equations C = E + F and D = E − F.")
checks.same_formula(F_from, (C - D) / 2, "Subtract the second equation from the first.")
### END HIDDEN TESTS


# %% [markdown]
# ## 2 · What even the pair cannot see
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# Given the outputs of a block, find other outputs with the same $C$ **and** the same $D$. There are many answers; any
# will do, as long as it works for every block of at least three events, an odd number of them included.


# %% nbgrader={"grade_id": "twin", "solution": true}
def twin(u: np.ndarray) -> np.ndarray:
    """u [m, d] with m >= 3, rows all different -> another [m, d] with equal C and D. Do not change u itself."""
    ### BEGIN SOLUTION
    other = u.copy()
    other[[0, 1]] = other[[1, 0]]  # two events of the early half
    return other
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_twin", "grade": true, "points": 2}
def check_twin_of(u: np.ndarray) -> None:
    before, k = u.copy(), (len(u) + 1) // 2
    other = twin(u)
    checks.close(u, before, "twin() must leave its argument as it was: work on a copy.")
    checks.close(other.shape, u.shape, "The twin has the same shape as the block.")
    assert not np.allclose(other, u), "This is the same block again; something must be different."
    checks.close(other.sum(0), u.sum(0), f"With {len(u)} events, C moved.")
    checks.close(
        other[:k].sum(0) - other[k:].sum(0),
        u[:k].sum(0) - u[k:].sum(0),
        f"With {len(u)} events, D moved: the early half has {k} of them.",
    )


check_twin_of(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [5.0, 5.0]]))
### BEGIN HIDDEN TESTS
for m in (3, 5, 6, 7):
    check_twin_of(np.random.default_rng(m).normal(size=(m, 3)))
### END HIDDEN TESTS


# %% [markdown]
# ## 3 · How much is forgotten
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# A block has $m$ outputs of $d$ numbers, $m\cdot d$ dimensions in all. In how many of them can it move without moving
# $C$? And without moving $C$ or $D$? Mind the smallest block.


# %% nbgrader={"grade_id": "forgotten", "solution": true}
def forgotten(m: int, d: int) -> tuple[int, int]:
    """(dimensions that the sum forgets, dimensions that the pair forgets), for m >= 1 events of width d."""
    ### BEGIN SOLUTION
    return (m - 1) * d, max(m - 2, 0) * d
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_forgotten", "grade": true, "points": 2}
checks.equal(forgotten(4, 1), (3, 2), "Four numbers; the sum fixes one combination of them, the pair two.")
### BEGIN HIDDEN TESTS
for m, d in ((1, 3), (2, 5), (5, 2), (7, 4)):
    signs = [1.0] * ((m + 1) // 2) + [-1.0] * (m // 2)
    rows = np.kron(np.array([[1.0] * m, signs]), np.eye(d))
    ranks = np.linalg.matrix_rank(rows[:d]), np.linalg.matrix_rank(rows)
    checks.equal(
        forgotten(m, d),
        tuple(int(m * d - rank) for rank in ranks),
        f"m = {m}, d = {d}. A single event (m = 1) is its own sum: nothing is forgotten.",
    )
### END HIDDEN TESTS


# %% [markdown]
# ## 4 · What a read makes of the halves
# *2 points · about 10 minutes · difficulty 1 of 3*
#
# A read takes $w_C\,C + w_D\,a D$ from a block. Written as `early` $\cdot E$ + `late` $\cdot F$: what are the two?

# %% nbgrader={"grade_id": "coefficients", "solution": true}
# Set early_coefficient and late_coefficient: formulas in w_C, w_D and a.
### BEGIN SOLUTION
early_coefficient = w_C + a * w_D
late_coefficient = w_C - a * w_D
### END SOLUTION

# %% nbgrader={"grade_id": "check_coefficients", "grade": true, "points": 2}
no_detail = {w_C: 1, w_D: 0}
checks.close(
    [sp.sympify(x).subs(no_detail) for x in (early_coefficient, late_coefficient)],
    [1, 1],
    "Without the detail, both halves enter with the weight of C.",
)
### BEGIN HIDDEN TESTS
checks.same_formula(early_coefficient, w_C + a * w_D, "Put C = E + F and D = E − F in and collect E.")
checks.same_formula(late_coefficient, w_C - a * w_D, "Put C = E + F and D = E − F in and collect F.")
### END HIDDEN TESTS


# %% [markdown]
# ## 5 · A proof: the late half never outweighs the early one
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# The late coefficient can be negative, but $|\text{late}| \le \text{early}$ always. Both sides are compared by their
# squares: write $\text{early}^2 - \text{late}^2$ in terms of $w_C, w_D, a$ **in a form in which sympy sees that it is
# never negative** (`gap.is_nonnegative` is `True`). The symbols are declared positive; the rest is up to the form.

# %% nbgrader={"grade_id": "gap", "solution": true}
# Set gap: a formula in w_C, w_D and a.
### BEGIN SOLUTION
gap = sp.expand((w_C + a * w_D) ** 2 - (w_C - a * w_D) ** 2)
### END SOLUTION

# %% nbgrader={"grade_id": "check_gap", "grade": true, "points": 2}
gap = sp.sympify(gap)
assert gap.is_nonnegative, f"sympy cannot tell whether {gap} is negative: expand it, so that what cancels is gone."
### BEGIN HIDDEN TESTS
checks.same_formula(gap, 4 * a * w_C * w_D, "It must be early² − late², with the coefficients of task 4.")
### END HIDDEN TESTS


# %% [markdown]
# ## 6 · Which mixtures can be reached
# *3 points · about 25 minutes · difficulty 3 of 3*
#
# Now the other way round: someone wants the mixture `early` $\cdot E$ + `late` $\cdot F$. Find the weights $w_C, w_D$
# that give it. They must not be negative, and together not above 1 (the rest of the softmax goes to other sources). If
# there are none, return `None`.


# %% nbgrader={"grade_id": "weights_for", "solution": true}
def weights_for(early: float, late: float, a: float) -> tuple[float, float] | None:
    """(w_C, w_D) with early = w_C + a w_D and late = w_C − a w_D, both >= 0 and of sum <= 1; None if there are none."""
    ### BEGIN SOLUTION
    w_C, w_D = (early + late) / 2, (early - late) / (2 * a)
    return (w_C, w_D) if min(w_C, w_D) >= 0 and w_C + w_D <= 1 + 1e-12 else None
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_weights_for", "grade": true, "points": 3}
checks.close(weights_for(0.75, -0.25, 1.0), (0.25, 0.5), "0.25 + 0.5 = 0.75 and 0.25 − 0.5 = −0.25.")
checks.equal(weights_for(0.25, 0.5, 1.0), None, "More late than early would need a negative weight of D.")
### BEGIN HIDDEN TESTS
checks.close(weights_for(1.0, -0.5, 3.0), (0.25, 0.25), "With a = 3 the detail needs a third of the weight.")
checks.equal(weights_for(1.2, 1.0, 1.0), None, "These weights would add up to more than 1.")
checks.equal(weights_for(0.2, -0.6, 2.0), None, "This would need a negative weight of C.")
checks.close(weights_for(2.0, -2.0, 4.0), (0.0, 0.5), "A scale of 4 reaches far with half of the weight.")
checks.close(weights_for(0.0, 0.0, 2.0), (0.0, 0.0), "Reading nothing is a mixture, too.")
### END HIDDEN TESTS


# %% [markdown]
# ## 7 · Two equal slots
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# Early in a block $D = C$: two slots hold the **same** vector, one with score $z$ and one with $z + b$. In a softmax,
# together they act exactly as **one** slot with score $z + \ell$. Find the lift $\ell$ as a function of $b$.

# %% nbgrader={"grade_id": "lift", "solution": true}
# Set lift: a formula in b.
### BEGIN SOLUTION
lift = sp.log(1 + sp.exp(b))
### END SOLUTION

# %% nbgrader={"grade_id": "check_lift", "grade": true, "points": 2}
checks.close(sp.sympify(lift).subs(b, 0).evalf(), float(sp.log(2)), "With b = 0 one slot is simply there twice.")
### BEGIN HIDDEN TESTS
checks.same_formula(lift, sp.log(1 + sp.exp(b)), "Their shares are in proportion to e^z and e^(z+b); add them.")
checks.close(sp.sympify(lift).subs(b, -2).evalf(), 0.126928, "At b = −2, where HAARES starts.", relative=1e-4)
### END HIDDEN TESTS


# %% [markdown]
# ## 8 · How shares move with scores
# *3 points · about 20 minutes · difficulty 2 of 3*
#
# For $w = \mathrm{softmax}(z)$, give the matrix $J_{sr} = \partial w_s/\partial z_r$ **in terms of the shares**
# $w_1 … w_S$.


# %% nbgrader={"grade_id": "jacobian", "solution": true}
def jacobian(w: list[sp.Symbol]) -> sp.Matrix:
    """The S × S matrix of derivatives, made of the S given symbols."""
    ### BEGIN SOLUTION
    return sp.Matrix(len(w), len(w), lambda s, r: w[s] * ((1 if s == r else 0) - w[r]))
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_jacobian", "grade": true, "points": 3}
def check_jacobian_of(scores: list[int]) -> None:
    z, w = sp.symbols(f"z1:{len(scores) + 1}"), sp.symbols(f"w1:{len(scores) + 1}", positive=True)
    shares = [sp.exp(x) / sum(map(sp.exp, z)) for x in z]
    answer, at = sp.Matrix(jacobian(list(w))), dict(zip(z, scores, strict=True))
    checks.equal(answer.shape, (len(w), len(w)), f"With {len(w)} slots the matrix is {len(w)} × {len(w)}.")
    numbers = dict(zip(w, (share.subs(at).evalf(20) for share in shares), strict=True))
    true = [[float(share.diff(x).subs(at)) for x in z] for share in shares]
    checks.close(
        np.array(answer.subs(numbers).evalf(20).tolist(), dtype=float),
        true,
        "Differentiate e^(z_s) / Σ e^(z_t): once for r = s, once for r ≠ s.",
    )


check_jacobian_of([0, 0])
### BEGIN HIDDEN TESTS
check_jacobian_of([0, 1])
check_jacobian_of([0, 2, -1])
### END HIDDEN TESTS


# %% [markdown]
# ## 9 · How many sources a read sees
# *3 points · about 30 minutes · difficulty 3 of 3*
#
# $L$ layers are $2L$ events, cut into $N$ equal blocks of $m = 2L/N$. A block keeps $g$ sources ($g = 1$: its sum;
# $g = 2$: the pair). An event sees the embedding, the $g$ sources of every finished block, and the $g$ sources of its
# own block **once something has been written to it**, that is not at the block's first event. Give the mean number
# over all events, as a formula in $L$, $N$ and $g$.

# %% nbgrader={"grade_id": "mean_sources", "solution": true}
# Set mean_sources: a formula in L, N and g.
### BEGIN SOLUTION
mean_sources = 1 + g * (N - 1) / 2 + g * (1 - N / (2 * L))
### END SOLUTION

# %% nbgrader={"grade_id": "check_mean_sources", "grade": true, "points": 3}
haares = float(sp.sympify(mean_sources).subs({L: 48, N: 4, g: 2}))
assert abs(haares - 5.917) < 5e-4, f"HAARES with 48 layers and 4 blocks sees 5.917 on average; you have {haares:.3f}."


### BEGIN HIDDEN TESTS
def count_sources(layers: int, blocks: int, per_block: int) -> sp.Rational:
    m, total = 2 * layers // blocks, 0
    for event in range(2 * layers):
        block, place = divmod(event, m)
        total += 1 + per_block * block + (per_block if place else 0)
    return sp.Rational(total, 2 * layers)


for layers, blocks, per_block in ((48, 8, 1), (12, 3, 2), (6, 12, 1), (5, 1, 2)):
    found = sp.sympify(mean_sources).subs({L: layers, N: blocks, g: per_block})
    checks.close(
        found,
        count_sources(layers, blocks, per_block),
        f"L = {layers}, N = {blocks}, g = {per_block}: count them event by event.",
    )
checks.same_formula(mean_sources, 1 + g * (N + 1) / 2 - g * N / (2 * L), "Use the given symbols L, N and g.")
### END HIDDEN TESTS
