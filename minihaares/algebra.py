"""What can be proved about sums, differences and routed reads, each result once: derived by sympy, held to the code.

A function states one result and returns it as a `Result`: what is given, the steps worth showing, the statement, and
formulas for `sympy.lambdify`. A Result with a claim that sympy cannot reduce to a truth cannot be made. Chapters 06,
07, 09, 10, 12 show them; tests/test_algebra.py holds model.py and depth_read.py to them, values and gradients.

Symbols are general wherever a proof is possible: E, F, … are column vectors of any width d (`MatrixSymbol`), u_i the
outputs of any number of events m = k + ℓ (k early, ℓ late), sums stay symbolic. Where a result speaks of one coordinate
of a vector, or takes an inner product such as g·v for a number, nothing else of the vectors enters.
Paper: arXiv 2606.06564. "Half-total read": the coordinates E, F of depth_read.py (chapter 12). Needs only sympy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

import sympy as sp
from sympy import Derivative, Eq, KroneckerDelta, Limit, Piecewise, Subs, Sum, Symbol, exp, log, oo, sqrt, symbols
from sympy.printing.latex import LatexPrinter

d, m, k, ell, n, N, L, g, r, i, j, s, t, S = symbols("d m k ell n N L g r i j s t S", integer=True, positive=True)
E, F, C, D, x, query, kappa, pulled = (sp.MatrixSymbol(name, d, 1) for name in "E F C D x q kappa g".split())
a, gamma, eps, w_C, w_D = symbols("a gamma epsilon w_C w_D", positive=True)
c_E, c_F, b = symbols("c_E c_F b", real=True)
u, v, w, z, G, key = (sp.IndexedBase(name) for name in ("u", "v", "w", "z", "G", "kappa"))
eq = partial(Eq, evaluate=False)  # an equation to look at, even where sympy sees at once that it is true


class ProofError(ValueError):
    """A claim that sympy does not reduce to a truth."""


@cache
def holds(claim: sp.Basic, given: tuple[tuple[sp.Basic, sp.Basic], ...] = ()) -> bool:
    """Whether sympy reduces an equation or an inequality to a truth, once what is `given` is put in.

    A sum over Kronecker deltas comes out as "value if the index is in range, else 0"; a claim's indices are in range.
    """
    sides = [side.subs(given) for side in claim.args]
    left, right = (side.doit().doit().replace(_in_or_out, lambda case: case.args[0][0]) for side in sides)
    if not isinstance(claim, Eq):
        return claim.func(sp.simplify(left), sp.simplify(right)) == True  # noqa: E712  sympy's true, not a maybe
    if isinstance(left, sp.MatrixExpr) and not isinstance(left, sp.MatrixBase):
        return isinstance((left - right).expand(), sp.ZeroMatrix)
    rest = sp.simplify(left - right)
    if isinstance(rest, sp.MatrixBase):
        return bool(rest.is_zero_matrix)
    return bool(rest == 0 or sp.simplify(sides[0] - sides[1]) == 0)  # doit takes apart sums that meet end to end


def _in_or_out(part: sp.Basic) -> bool:
    return isinstance(part, Piecewise) and all(symbol.is_integer for symbol in part.args[0][1].free_symbols)


@dataclass(frozen=True)
class Result:
    """A proved result, to be shown, compared and turned into numbers. Raises ProofError if a claim does not hold."""

    statement: tuple[sp.Basic, ...]
    forms: Mapping[str, sp.Basic]  # formulas by name
    given: Mapping[sp.Basic, sp.Basic] = field(default_factory=dict)  # definitions: a symbol and what it stands for
    steps: tuple[sp.Basic, ...] = ()  # what to see on the way; checked like the statement

    def __post_init__(self) -> None:
        for claim in self.steps + self.statement:
            if not holds(claim, tuple(self.given.items())):
                raise ProofError(f"sympy does not find that {claim}")

    def _lines(self) -> list[sp.Basic]:
        return [eq(*pair) for pair in self.given.items()] + [*self.steps, *self.statement]

    def _repr_latex_(self) -> str:
        sign = {Eq: "=", sp.Ge: r"\ge"}
        rows = [f"{typeset(one.lhs)} &{sign[type(one)]} {typeset(one.rhs)}" for one in self._lines()]
        return r"$\displaystyle \begin{aligned} " + r" \\ ".join(rows) + r" \end{aligned}$"

    def __repr__(self) -> str:
        return "\n".join(f"{one.lhs} {one.rel_op} {one.rhs}" for one in self._lines())


class _Printer(LatexPrinter):
    def _as_ordered_terms(self, expr: sp.Expr, order: str | None = None) -> list[sp.Expr]:
        return sorted(super()._as_ordered_terms(expr, order), key=lambda term: term.could_extract_minus_sign())


def typeset(formula: sp.Basic) -> str:
    """LaTeX of a formula, in which no sum begins with a minus sign if it can be helped."""
    return _Printer().doprint(formula).replace(r"\left(\frac{1}{2}\right)", r"\tfrac{1}{2}").replace("+ -", "-")


# --------------------------------------------------------------------------------- what a block's summary keeps


def recovery() -> Result:
    """(C, D) = (E + F, E − F) gives E and F back; C alone is blind to (E + x, F − x) (eqs. 3, 4; section 4.1)."""
    return Result(
        given={C: E + F, D: E - F},
        steps=(eq(C + D, 2 * E), eq(C - D, 2 * F)),
        statement=(eq((C + D) / 2, E), eq((C - D) / 2, F), eq((E + x) + (F - x), C), eq((E + x) - (F - x), D + 2 * x)),
        forms={"E": (Symbol("C") + Symbol("D")) / 2, "F": (Symbol("C") - Symbol("D")) / 2},
    )


def online() -> Result:
    """The writes C ← C + u, D ← D ± u give the sums after every event r, by induction on r (eq. 5; section 3.2).

    Starts of the early half (r = 0) and of the late half (r = k), where a sum is empty; then the step from r to r + 1
    for C in either half and for D in the early half (the same sum), and for D in the late half. For any k and m.
    """
    so_far, first, after, new = (Sum(u[i], (i, *ends)) for ends in ((1, r), (1, k), (k + 1, r), (r + 1, r + 1)))
    return Result(
        steps=(eq(so_far.subs(r, 0), 0), eq(after.subs(r, k), 0), eq(new, u[r + 1])),
        statement=(eq(so_far + new, so_far.subs(r, r + 1)), eq(first - after - new, first - after.subs(r, r + 1))),
        forms={"C": so_far, "D early": so_far, "D late": first - after},
    )


def permutations() -> Result:
    """Exchanges inside a half change nothing; early v against late w leaves C and moves D by 2(w − v) (section 4.2).

    The step: how the total of events s … t changes when those at i and j trade places. Not at all, and every
    permutation of a half is made of such trades. Then u_i at a place i ≤ k trades with u_j at a place j > k.
    """
    put_j, put_i = KroneckerDelta(r, i) * (u[j] - u[i]), KroneckerDelta(r, j) * (u[i] - u[j])
    change_E, change_F = Symbol("Delta_E"), Symbol("Delta_F")
    return Result(
        given={change_E: Sum(put_j, (r, 1, k)), change_F: Sum(put_i, (r, k + 1, m))},
        steps=(eq(Sum(put_j + put_i, (r, s, t)), 0), eq(change_E, u[j] - u[i]), eq(change_F, u[i] - u[j])),
        statement=(eq(change_E + change_F, 0), eq(change_E - change_F, 2 * (u[j] - u[i]))),
        forms={"change of D": 2 * (Symbol("w") - Symbol("v"))},
    )


def null_space() -> Result:
    """Of md dimensions the sum forgets (m − 1)d and, for m ≥ 2, the pair (m − 2)d (sections 3.1, 4.2).

    The maps are A ⊗ I_d, A a row of ones, or that row over the row of signs (k times +1, ℓ times −1). Their rank is
    that of the Gram matrix AAᵀ ⊗ I_d, full as its determinant is not 0: d and 2d. With m = 1 the rows are equal: d.
    """
    plus, minus = Sum(1, (r, 1, k)), Sum(1, (r, k + 1, k + ell))
    gram = sp.Matrix([[k + ell, k - ell], [k - ell, k + ell]])
    return Result(
        steps=(eq(plus + minus, k + ell), eq(plus - minus, k - ell), eq(sp.Determinant(gram), 4 * k * ell)),
        statement=(
            eq(sp.Determinant(sp.KroneckerProduct(sp.Matrix([[m]]), sp.Identity(d))), m**d),
            eq(sp.Determinant(sp.KroneckerProduct(gram, sp.Identity(d))), (4 * k * ell) ** d),
        ),
        forms={"sum": (m - 1) * d, "pair": Piecewise((0, Eq(m, 1)), ((m - 2) * d, True))},
    )


def haar() -> Result:
    """(C, D) against the orthonormal Haar pair of a block with k early and ℓ late events (section 2.3).

    φ is constant; ψ is the unit vector that is constant on each half and orthogonal to φ. Entry by entry, C's row is
    √m φ and D's mixes both. With k = ℓ it is √m ψ: Haar's coarsest pair, √m times too long. With k ≠ ℓ the detail
    keeps (k − ℓ)/m of C, so a block whose events are all alike does not read as 0.
    """
    phi, psi_E, psi_F, on_phi, on_psi = symbols("phi psi_E psi_F alpha beta")
    size = k + ell
    given = {
        on_phi: (k - ell) / sqrt(size), on_psi: 2 * sqrt(k * ell / size),
        phi: 1 / sqrt(size), psi_E: sqrt(ell / (k * size)), psi_F: -sqrt(k / (ell * size)),
    }  # fmt: skip
    return Result(
        given=given,
        steps=(eq(size * phi**2, 1), eq(k * psi_E**2 + ell * psi_F**2, 1), eq(k * phi * psi_E + ell * phi * psi_F, 0)),
        statement=(
            eq(sqrt(size) * phi, 1),
            *(eq(on_phi * phi + on_psi * psi, entry) for psi, entry in ((psi_E, 1), (psi_F, -1))),
            eq(Subs(given[on_phi], ell, k), 0),
            eq(Subs(given[on_psi] / sqrt(size), ell, k), 1),
        ),
        forms={"C on phi": sqrt(size), "D on phi": given[on_phi], "D on psi": given[on_psi]},
    )


# ------------------------------------------------------------------------------------------ what a read makes of it


def routed_coefficients() -> Result:
    """w_C C + w_D a D = (w_C + a w_D) E + (w_C − a w_D) F, and |late| ≤ early for weights ≥ 0 (section 4.3)."""
    early, late = w_C + a * w_D, w_C - a * w_D
    return Result(
        given={C: E + F, D: E - F},
        statement=(
            eq(w_C * C + w_D * a * D, early * E + late * F),
            eq(early**2 - late**2, 4 * a * w_C * w_D),
            sp.Ge(early**2 - late**2, 0, evaluate=False),
        ),
        forms={"early": early, "late": late},
    )


def cone() -> Result:
    """The half coefficients (c_E, c_F) that weights w_C, w_D ≥ 0 reach, exactly (section 4.3).

    Solved for the weights, w_C ≥ 0 and w_D ≥ 0 say |c_F| ≤ c_E whatever a is. A budget w_C + w_D ≤ 1 makes the cone
    the triangle (0, 0), (1, 1), (a, −a). With θ ≤ 1, the corner of θγ costs the scale γ only θ: all scales up to γ
    reach no more than γ alone. Forms: the weights, the budget they spend, and the triangle's area.
    """
    early, late = routed_coefficients().forms.values()
    weight_C, weight_D, theta = (c_E + c_F) / 2, (c_E - c_F) / (2 * a), Symbol("theta", positive=True)
    spent, area = weight_C + weight_D, sp.Triangle((0, 0), (1, 1), (a, -a)).area
    return Result(
        given={c_E: early, c_F: late},
        statement=(
            *(eq(weight_C, w_C), eq(weight_D, w_D)),
            *(eq(Subs(spent, (c_E, c_F), corner), 1) for corner in ((1, 1), (a, -a))),
            eq(Subs(spent, (a, c_E, c_F), (gamma, theta * gamma, -theta * gamma)), theta),
        ),
        forms={"w_C": weight_C, "w_D": weight_D, "spent": spent, "area": sp.Abs(area)},
    )


def pair_reaches(early: sp.Expr, late: sp.Expr, scale: sp.Expr, budget: Callable | None = sp.Le) -> sp.Basic:
    """Whether (C, D̂ = scale · D) reaches these half coefficients with weights ≥ 0; `budget` relates their sum to 1.

    budget is Le (a read has other sources, too), Eq or None. For any scale up to γ, say scale = γ. See `cone`.
    """
    spent = cone().forms["spent"].subs({a: scale, c_E: early, c_F: late})
    return sp.And(early + late >= 0, early - late >= 0, *([budget(spent, 1)] if budget else []))


def blocks_reach(first: sp.Expr, second: sp.Expr, budget: Callable | None = sp.Le) -> sp.Basic:
    """Whether two cumulative blocks E, F reach these coefficients with weights ≥ 0; `budget` relates their sum to 1."""
    return sp.And(first >= 0, second >= 0, *([budget(first + second, 1)] if budget else []))


def witnesses() -> dict[str, tuple[sp.Rational, sp.Rational]]:
    """Half coefficients that one of the two reaches with positive weights of sum < 1, and the other with none ≥ 0.

    "pair only" has w_C = 1/4, w_D = 1/2 and a = 1; "blocks only" has weights 1/4, 1/2, and no scale a helps the pair.
    """
    half, quarter = sp.Rational(1, 2), sp.Rational(1, 4)
    early, late = (form.subs({w_C: quarter, w_D: half, a: 1}) for form in routed_coefficients().forms.values())
    return {"pair only": (early, late), "blocks only": (quarter, half)}


def bias_limit() -> Result:
    """b → −∞ takes the details out of a read; a finite b does not (section 4.3).

    Z_C, Z_D add up e^score of cumulative and of detail slots before the bias, h_C, h_D are one coordinate of the two
    mixtures by themselves, μ is the weight of all details. The last line, times the gradient of h, is the bias's.
    """
    Z_C, Z_D = symbols("Z_C Z_D", positive=True)
    h_C, h_D, h, mu = symbols("h_C h_D h mu", real=True)
    share, read = exp(b) * Z_D / (Z_C + exp(b) * Z_D), (Z_C * h_C + exp(b) * Z_D * h_D) / (Z_C + exp(b) * Z_D)
    return Result(
        given={h: read, mu: share},
        steps=(eq(h - h_C, mu * (h_D - h_C)), eq(Derivative(share, b), mu * (1 - mu))),
        statement=(
            eq(Limit(share, b, -oo), 0),
            eq(Limit(read, b, -oo), h_C),
            eq(Derivative(read, b), mu * (1 - mu) * (h_D - h_C)),
        ),
        forms={"read": read, "share": share, "slope": mu * (1 - mu) * (h_D - h_C)},
    )


def duplicate_slot() -> Result:
    """Two slots of equal value with scores z, z + b act as one with score z + log(1 + e^b) (section 4.4, eq. 20).

    R adds up e^score of all other slots, which have 1/(R + …) in common either way: no new direction.
    """
    score, R, lift = Symbol("z", real=True), Symbol("R", positive=True), log(1 + exp(b))
    two, one = exp(score) + exp(score + b), exp(score + lift)
    return Result(
        steps=(eq(two, exp(score) * (1 + exp(b))),),
        statement=(
            eq(two / (R + two), one / (R + one)),
            eq(1 / (R + two), 1 / (R + one)),
            eq(Derivative(lift, b), 1 / (1 + exp(-b))),
            eq(Subs(lift, b, 0), log(2)),
            eq(Limit(lift, b, -oo), 0),
        ),
        forms={"lift": lift, "weight": two / (R + two), "bias": log(exp(Symbol("lift")) - 1)},
    )


# -------------------------------------------------------------------------------------------- derivatives of a read


def softmax_jacobian() -> Result:
    """∂w_s/∂z_r = w_s (δ_sr − w_r) over any number S of slots, and what a loss sends back to a score (eq. 7).

    With G_s = g·v_s, g the gradient of the read, Ḡ = Σ_s w_s G_s: ∂ℓ/∂z_r = w_r (G_r − Ḡ). These add up to 0, so one
    score's gradient is minus the sum of the others': d_lse = −(ż_C + ż_D) in an active read (half-total read).
    """
    total, mean = Sum(exp(z[t]), (t, 1, S)), Symbol("Gbar")
    w_s, w_r = exp(z[s]) / total, exp(z[r]) / total
    loss = Sum(exp(z[t]) * G[t], (t, 1, S)) / total
    return Result(
        given={w[s]: w_s, w[r]: w_r, mean: loss},
        statement=(
            eq(Derivative(w_s, z[r]), w[s] * (KroneckerDelta(s, r) - w[r])),
            eq(Derivative(loss, z[r]), w[r] * (G[r] - mean)),
            eq(loss - mean * Sum(exp(z[t]), (t, 1, S)) / total, 0),
        ),
        forms={"score": Symbol("w") * (Symbol("G") - Symbol("mean"))},
    )


def score_gradient() -> Result:
    """∂z/∂v_j = ρ κ_j − ρ³ q v_j / d for a score z = ρ q of a source a·v, for any width d (eqs. 6, 7; half-total read).

    κ is gain ⊙ query, q = κ·v, and ρ = a (a² v·v/d + ε)^(−1/2) turns the raw v into RMSNorm(a v); a = 1 for C, and no
    gradient goes through a. Forms, with ż the score's gradient: the factors s of κ and t of v.
    """
    rho, q, dz = symbols("rho q dz")
    given = {rho: a / sqrt(a**2 * Sum(v[i] ** 2, (i, 1, d)) / d + eps), q: Sum(key[i] * v[i], (i, 1, d))}
    return Result(
        given=given,
        steps=(eq(Derivative(given[q], v[j]), key[j]), eq(Derivative(given[rho], v[j]), -(rho**3) * v[j] / d)),
        statement=(eq(Derivative(given[rho] * given[q], v[j]), rho * key[j] - rho**3 * q * v[j] / d),),
        forms={"s": dz * rho, "t": -dz * rho**3 * q / d},
    )


def half_gradients() -> Result:
    """What one active read sends back to E and F: one vector and a few scalars (half-total read).

    g is the gradient of the read. C gets w_C g + s_C κ + t_C C and D gets a w_D g + s_D κ + t_D D (`score_gradient`),
    so E gets their sum and F their difference. Forms: the factors of the own total, of the other's, and of κ.
    """
    s_C, s_D, t_C, t_D = symbols("s_C s_D t_C t_D")
    early, late = routed_coefficients().forms.values()
    to_C, to_D = w_C * pulled + s_C * kappa + t_C * C, a * w_D * pulled + s_D * kappa + t_D * D
    return Result(
        given={C: E + F, D: E - F},
        statement=(
            eq(to_C + to_D, early * pulled + (s_C + s_D) * kappa + (t_C + t_D) * E + (t_C - t_D) * F),
            eq(to_C - to_D, late * pulled + (s_C - s_D) * kappa + (t_C - t_D) * E + (t_C + t_D) * F),
        ),
        forms={"same": t_C + t_D, "cross": t_C - t_D, "key E": s_C + s_D, "key F": s_C - s_D},
    )


def matching() -> Result:
    """a = clip(c / (δ + ε), 1/γ, γ) for RMS c of C and δ of D, its edge cases, and d(aD)/dD (eq. 6; section 3.3).

    C = 0: exactly 1/γ. Equal sources (as in the early half): short of 1 by ε/(c + ε). With a held fixed the derivative
    is a; let through it would be 0 (here for ε = 0 and one channel): matching would hide the detail from training.
    """
    c, delta, D_1 = *symbols("c delta", nonnegative=True), Symbol("D_1", positive=True)
    ratio = c / (delta + eps)
    scale = Piecewise((1 / gamma, ratio < 1 / gamma), (gamma, ratio > gamma), (ratio, True))
    return Result(
        statement=(
            eq(Subs(scale, c, 0), 1 / gamma),
            eq(1 - Subs(ratio, delta, c), eps / (c + eps)),
            eq(Derivative(a * D_1, D_1), a),
            eq(Derivative(D_1 * Subs(ratio, (delta, eps), (D_1, 0)), D_1), 0),
        ),
        forms={"scale": scale},
    )


def half_totals() -> Result:
    """Inner products and norms of C and D from those of E and F, and when not to (half-total read).

    If E nearly cancels F, F = −(1 − τ)E, and the three terms of |C|² are each off by a relative υ at most, |C|² is off
    by υ (2 − τ)²/τ²: nothing of it is right below the τ of the last line. So take the small norm from C itself.
    """
    tau, unit = symbols("tau upsilon", positive=True)
    worst, lost = unit * (1 + (1 - tau) ** 2 + 2 * (1 - tau)) / tau**2, 2 * sqrt(unit) / (1 + sqrt(unit))
    return Result(
        given={C: E + F, D: E - F},
        statement=(
            eq(query.T * C, query.T * E + query.T * F),
            eq(query.T * D, query.T * E - query.T * F),
            eq(C.T * C, E.T * E + F.T * F + E.T * F + F.T * E),
            eq(D.T * D, E.T * E + F.T * F - E.T * F - F.T * E),
            eq(worst, unit * (2 - tau) ** 2 / tau**2),
            eq(Subs(worst, tau, lost), 1),
        ),
        forms={"error": sp.factor(worst), "lost": lost},
    )


def source_counts() -> Result:
    """How many sources reads see, for N equal blocks in L layers and g sources a block (section 4.5, Table 3).

    g = 1 for Block AttnRes, 2 for HAARES. Event r of m = 2L/N in block n sees the embedding, the finished blocks and,
    once written to, its own; the final read sees no details. N = 2L, g = 1 is full Attention Residuals.
    """
    count = 1 + g * (n - 1) + g * (1 - KroneckerDelta(r, 1))
    in_block = m * (1 + g * (n - 1)) + g * (m - 1)
    mean, peak = 1 + g * (N - 1) / 2 + g * (1 - N / (2 * L)), 1 + g * N - Piecewise((g, Eq(2 * L, N)), (0, True))
    return Result(
        given={m: 2 * L / N},
        steps=(eq(Sum(count, (r, 1, m)), in_block),),
        statement=(
            eq(Sum(in_block, (n, 1, N)) / (2 * L), mean),
            eq(Subs(mean, N, 2 * L), 1 + g * (2 * L - 1) / 2),
            sp.Ge(count.subs(n, n + 1) - count, 0, evaluate=False),
        ),
        forms={"count": count, "mean": mean, "total": sp.expand(2 * L * mean), "peak": peak, "final": N + 1},
    )
