"""Power laws with a floor, fitted: L = a C^-α + c over compute, and L = a N^-α + b D^-β + c over size and data.

The forms are those of arXiv 2001.08361 and 2203.15556. Residuals are those of log loss under Huber's loss, as in the
second; every fit starts from several places, and a fit that says nothing is an error, never a number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

HUBER = 1e-3  # residuals of log loss beyond this count linearly, as in 2203.15556
FLATTEST, STEEPEST = 2e-3, 3.0  # an exponent at these edges says that the points have no such law
NARROWEST = 3.0  # in compute or data, from the least to the most


class ScalingError(ValueError):
    """Points that carry no such law, or a loss that a law never reaches; the message says what to do."""


@dataclass(frozen=True)
class Law:
    """L = a (C/C0)^-α + c: loss L in nats a token after C FLOPs, so that a is what is above c at C0."""

    a: float
    alpha: float
    c: float
    C0: float = 1.0

    def __call__(self, C: ArrayLike) -> np.ndarray:
        return self.a * (np.asarray(C, float) / self.C0) ** -self.alpha + self.c

    def compute(self, loss: float) -> float:
        """The FLOPs that this loss takes. Raises ScalingError for a loss at or below c, which no compute reaches."""
        if not loss > self.c:
            raise ScalingError(f"no compute reaches a loss of {loss:g}: this law ends at {self.c:.3f}.")
        return self.C0 * ((loss - self.c) / self.a) ** (-1 / self.alpha)


@dataclass(frozen=True)
class SizeAndData:
    """L = a (N/N0)^-α + b (D/D0)^-β + c: loss L in nats a token of N parameters, embeddings apart, after D tokens."""

    a: float
    alpha: float
    b: float
    beta: float
    c: float
    N0: float = 1.0
    D0: float = 1.0

    def __call__(self, N: ArrayLike, D: ArrayLike) -> np.ndarray:
        N, D = np.asarray(N, float) / self.N0, np.asarray(D, float) / self.D0
        return self.a * N**-self.alpha + self.b * D**-self.beta + self.c


def fit_law(C: ArrayLike, loss: ArrayLike, near: Law | None = None) -> Law:
    """L = a (C/C0)^-α + c through losses [n] after computes [n], C0 their middle in log. Starts from `near` if given.

    Raises ScalingError if the points carry no such law: fewer than five, not positive, within a factor of three,
    rising, or best fitted by an exponent at the edge of what is tried.
    """
    return fit_parallel([(C, loss)], None if near is None else [near])[0]


def fit_parallel(curves: Sequence[tuple[ArrayLike, ArrayLike]], near: Sequence[Law] | None = None) -> list[Law]:
    """Laws for pairs (computes, losses) that share α and c and differ in a alone.

    Then the compute of one over that of another is the same at every loss: (a_1/a_2)^(1/α). Raises ScalingError as
    `fit_law` does, for the first pair that it finds at fault.
    """
    ready = [_checked(C, loss, 5) for C, loss in curves]
    which = np.repeat(range(len(ready)), [len(C) for C, _ in ready])  # the curve of each point
    C, loss = (np.concatenate(parts) for parts in zip(*ready, strict=True))
    C0, least, one_hot = _middle(C), loss.min(), np.eye(len(ready))[which]
    x, y = np.log(C / C0), np.log(loss)

    def residuals(p: np.ndarray) -> np.ndarray:
        alpha, c, *log_a = p
        return np.log(np.exp(one_hot @ log_a - alpha * x) + c) - y

    def slopes(p: np.ndarray) -> np.ndarray:
        alpha, c, *log_a = p
        above = np.exp(one_hot @ log_a - alpha * x)[:, None]
        return np.hstack((-above * x[:, None], np.ones_like(above), above * one_hot)) / (above + c)

    starts = [
        [alpha, floor * least, *(np.log(part.mean() - floor * least) for _, part in ready)]
        for alpha in (0.1, 0.5)
        for floor in (0.0, 0.7)
    ]
    if near:
        starts = [[near[0].alpha, near[0].c, *(np.log(law(C0) - law.c) for law in near)]]
    lower, upper = ([edge, end, *[wide] * len(ready)] for edge, end, wide in ((0, 0, -20), (STEEPEST, least, 20)))
    alpha, c, *log_a = _least(residuals, slopes, starts, lower, upper, {"α": 0})
    return [Law(float(np.exp(la)), float(alpha), float(c), C0) for la in log_a]


def fit_size_and_data(N: ArrayLike, D: ArrayLike, loss: ArrayLike) -> SizeAndData:
    """L = a (N/N0)^-α + b (D/D0)^-β + c through losses [n] of sizes [n] after tokens [n] (2203.15556, approach 3).

    Raises ScalingError for fewer than ten points or three sizes, for points that are not positive or rise with data,
    and if an exponent ends at the edge of what is tried: then these points do not determine this form.
    """
    D, loss = _checked(D, loss, 10)
    N = np.asarray(N, float)
    if N.shape != D.shape or len(np.unique(N)) < 3:
        raise ScalingError("it takes a size for each point, and at least three sizes, to tell size from data.")
    N0, D0, least = _middle(N), _middle(D), loss.min()
    n, t, y = np.log(N / N0), np.log(D / D0), np.log(loss)

    def residuals(p: np.ndarray) -> np.ndarray:
        log_a, alpha, log_b, beta, c = p
        return np.log(np.exp(log_a - alpha * n) + np.exp(log_b - beta * t) + c) - y

    share = np.log(loss.mean() / 3)
    starts = [[share, x, share, z, f * least] for x in (0.2, 0.6) for z in (0.2, 0.6) for f in (0.0, 0.5)]
    p = _least(residuals, "2-point", starts, [-20, 0, -20, 0, 0], [20, STEEPEST, 20, STEEPEST, least], {"α": 1, "β": 3})
    return SizeAndData(float(np.exp(p[0])), float(p[1]), float(np.exp(p[2])), float(p[3]), float(p[4]), N0, D0)


def _middle(x: np.ndarray) -> float:
    return float(np.exp(np.log(x).mean()))


def _checked(x: ArrayLike, loss: ArrayLike, needed: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute or data, and loss, as arrays; ScalingError if no law can be fitted to them."""
    x, loss = np.asarray(x, float), np.asarray(loss, float)
    if x.shape != loss.shape or x.ndim != 1:
        raise ScalingError(f"a fit takes two lists of one length, not of shapes {x.shape} and {loss.shape}.")
    if not (np.isfinite([x, loss]).all() and (x > 0).all() and (loss > 0).all()):
        raise ScalingError("a fit takes positive, finite numbers; look for runs that diverged.")
    if len(x) < needed:
        raise ScalingError(f"{len(x)} points do not carry such a law; it takes at least {needed}.")
    if x.max() < NARROWEST * x.min():
        raise ScalingError(f"the points span less than a factor of {NARROWEST:g}; add shorter or longer runs.")
    if np.polyfit(np.log(x), np.log(loss), 1)[0] >= 0:
        raise ScalingError("the loss does not fall; a power law has nothing to say about these points.")
    return x, loss


def _least(
    residuals: Callable[[np.ndarray], np.ndarray],
    slopes: Callable[[np.ndarray], np.ndarray] | str,
    starts: Sequence[Sequence[float]],
    lower: Sequence[float],
    upper: Sequence[float],
    exponents: dict[str, int],
) -> np.ndarray:
    """The best solution from all starts. ScalingError if none converged, or an exponent (its place) is at an edge."""
    settings = dict(jac=slopes, method="dogbox", bounds=(lower, upper), loss="huber", f_scale=HUBER, x_scale="jac")
    tries = [least_squares(residuals, np.clip(start, lower, upper), **settings) for start in starts]
    good = [found for found in tries if found.success and np.isfinite(found.cost)]
    if not good:
        raise ScalingError("the fit converged from no start; look at the points before fitting them.")
    best = min(good, key=lambda found: found.cost).x
    for name, place in exponents.items():
        if not FLATTEST < best[place] < 0.99 * STEEPEST:
            raise ScalingError(
                f"the exponent {name} ends at {best[place]:.3g}: these points do not determine this law."
            )
    return best
