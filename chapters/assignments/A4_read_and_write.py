# %% [markdown]
# # Assignment 4 · HAARES: the read and the write
#
# You implement HAARES (arXiv 2606.06564) in nine steps: what is kept of a block, what a sublayer may read, how it
# mixes it, and, at the end, all of that behind the seam of the package, inside a Transformer that must agree with the
# package's own in every logit and every gradient. Chapters 05 and 08 explain the algorithm.
#
# **How it works.** Under each answer stands a check. Run it as often as you like: it is silent when all is well, and
# otherwise says what to look at. More checks run when you hand in. They use other inputs and other shapes. A later
# task calls your earlier functions; if one of them is not right yet, fix it first. Write the functions yourself:
# `minihaares.depth_read` holds a version of some of them, and calling that is not an answer.
#
# Shapes: B sequences, T tokens, d channels; every source is `[B, T, d]`. A block has `m` events, and its first
# `k = ceil(m / 2)` are its early half. Events inside a block are counted from 1 in words and from 0 in code.

# %% nbgrader={"grade_id": "given_tools", "locked": true}
import torch
from torch import Tensor, nn

from minihaares import checks, depth_read
from minihaares.model import ModelConfig, Residual, Transformer, generate

GAMMA, EPS = 4.0, 1e-6


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same ones each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# %% [markdown]
# ## 1 · The signs of a block
# *1 point · about 5 minutes · difficulty 1 of 3*
#
# The detail of a block adds its early events and subtracts its late ones. Give the signs; an odd block gives its extra
# event to the early half.


# %% nbgrader={"grade_id": "half_signs", "solution": true}
def half_signs(m: int) -> list[int]:
    """m signs, +1 or -1."""
    ### BEGIN SOLUTION
    k = (m + 1) // 2
    return [1] * k + [-1] * (m - k)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_half_signs", "grade": true, "points": 1}
checks.equal(half_signs(4), [1, 1, -1, -1], "Two early events, then two late ones.")
### BEGIN HIDDEN TESTS
for m in (1, 2, 3, 5, 8):
    expected = [place.sign for place in depth_read.places(m, 1, "half")]
    checks.equal(half_signs(m), expected, f"A block of {m}: the extra event of an odd block is early.")
### END HIDDEN TESTS


# %% [markdown]
# ## 2 · The write
# *2 points · about 10 minutes · difficulty 1 of 3*
#
# After each event, $C \leftarrow C + u$ and $D \leftarrow D \pm u$. Before the first write of a block there is no pair
# (`None`). Reads hold on to the tensors that they saw, so **make new tensors**; nothing may change in place.


# %% nbgrader={"grade_id": "write_pair", "solution": true}
def write_pair(pair: tuple[Tensor, Tensor] | None, u: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """The pair (C, D) after an event of this sign made u [B, T, d]."""
    ### BEGIN SOLUTION
    if pair is None:
        return u, sign * u
    C, D = pair
    return C + u, D + sign * u
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_write_pair", "grade": true, "points": 2}
u, v, w = noise(1, 2, 3), noise(1, 2, 3, seed=1), noise(1, 2, 3, seed=2)
pair = write_pair(write_pair(write_pair(None, u, 1), v, 1), w, -1)
checks.close(pair[0], u + v + w, "C is the plain sum of all outputs.")
checks.close(pair[1], u + v - w, "D adds early outputs and subtracts late ones.")
### BEGIN HIDDEN TESTS
first = write_pair(None, u, 1)
kept = first[0].clone(), first[1].clone()
second = write_pair(first, v, -1)
checks.close(
    first, kept, "The old pair changed: a read that holds it would see another value later. Use C + u, not +=."
)
checks.close(second, (u + v, u - v), "An early event, then a late one.")
checks.close(write_pair(None, u, -1)[1], -u, "A first event with sign −1 (other splits have such) makes D = −u.")
u2 = u.clone()
write_pair(write_pair(None, u2, 1), v, 1)
checks.close(u2, u, "The sublayer's output itself must not change.")
### END HIDDEN TESTS


# %% [markdown]
# ## 3 · RMS matching
# *3 points · about 25 minutes · difficulty 2 of 3*
#
# A detail can be much larger or smaller than the sum beside it. Reads see $\hat D = a D$ with
#
# $$a = \mathrm{stopgrad}\!\left(\mathrm{clip}\!\left(\frac{\mathrm{RMS}(C)}{\mathrm{RMS}(D) + \varepsilon},\
# \tfrac1\gamma,\ \gamma\right)\right).$$
#
# RMS is taken **per token**, over the channels: anything that runs over tokens would let a token feel later ones. No
# gradient flows through $a$: the gradient of $\hat D$ with respect to $D$ is $a$, as if $a$ were a constant.


# %% nbgrader={"grade_id": "matched", "solution": true}
def matched(C: Tensor, D: Tensor, gamma: float = GAMMA, eps: float = EPS) -> Tensor:
    """C, D [B, T, d] -> the matched detail [B, T, d]."""
    ### BEGIN SOLUTION
    rms_C, rms_D = (x.square().mean(-1, keepdim=True).sqrt() for x in (C, D))
    return (rms_C / (rms_D + eps)).clamp(1 / gamma, gamma).detach() * D
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_matched", "grade": true, "points": 3}
checks.own_work(matched)
C, D = torch.tensor([[[3.0, 4.0]]], dtype=torch.float64), torch.tensor([[[0.0, 2.0]]], dtype=torch.float64)
checks.close(
    matched(C, D), [[[0.0, 5.0]]], "RMS(C) is 5/√2, RMS(D) is 2/√2: the detail is scaled by 2.5.", absolute=1e-4
)
### BEGIN HIDDEN TESTS
C, D = noise(2, 5, 8), noise(2, 5, 8, seed=1) * torch.tensor([0.05, 0.5, 1.0, 2.0, 40.0], dtype=torch.float64)[:, None]
checks.close(matched(C, D), depth_read.matched(C, D, GAMMA, EPS), "Per token; the scale is clipped on both sides.")
checks.close(matched(C, D, 1.5, 0.1), depth_read.matched(C, D, 1.5, 0.1), "Use the given γ and ε.")
checks.close(matched(0 * C, D), D / 4, "Where C = 0, the scale is exactly 1/γ.")
checks.close(matched(C, 0 * D), 0 * D, "Where D = 0, the matched detail is 0 (and not nan).")
leaf_C, leaf_D = C.clone().requires_grad_(), D.clone().requires_grad_()
matched(leaf_C, leaf_D).sum().backward()
assert leaf_C.grad is None or not leaf_C.grad.any(), "A gradient flows to C through the scale: detach it."
checks.close(leaf_D.grad, matched(C, D) / D, "The gradient with respect to D is a itself.")
### END HIDDEN TESTS


# %% [markdown]
# ## 4 · When the contrast arrives
# *1 point · about 10 minutes · difficulty 2 of 3*
#
# In the early half $D = C$. A read comes **before** its event's own write. Which event of a block (counted from 1) is
# the first whose read finds a $D$ that differs from $C$ in its own block's pair? `None` if no event does.


# %% nbgrader={"grade_id": "first_contrast", "solution": true}
def first_contrast(m: int) -> int | None:
    """The event, 1 … m, or None."""
    ### BEGIN SOLUTION
    k = (m + 1) // 2
    return k + 2 if k + 2 <= m else None
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_first_contrast", "grade": true, "points": 1}
checks.equal(first_contrast(4), 4, "Events 1, 2 are early. Event 3 writes the first difference. Who reads it first?")
### BEGIN HIDDEN TESTS
for m in (1, 2, 3, 5, 6, 24):
    seen, pair = None, None
    for event, sign in enumerate([1] * ((m + 1) // 2) + [-1] * (m // 2), start=1):
        if seen is None and pair is not None and pair[0] != pair[1]:
            seen = event
        pair = (1, sign) if pair is None else (pair[0] + 1, pair[1] + sign)
    checks.equal(first_contrast(m), seen, f"A block of {m} events: go through it read by read.")
### END HIDDEN TESTS


# %% [markdown]
# ## 5 · What a read may see
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# In this order: the embedding; then $C_j$ and $\hat D_j$ of every finished block; then $C$ and $\hat D$ of the active
# block, **if anything has been written to it**. Pairs are given as they were written, not matched.


# %% nbgrader={"grade_id": "visible_sources", "solution": true}
def visible_sources(
    embedding: Tensor, finished: tuple[tuple[Tensor, Tensor], ...], active: tuple[Tensor, Tensor] | None
) -> list[Tensor]:
    """[e, C_1, D̂_1, C_2, D̂_2, …], each [B, T, d]."""
    ### BEGIN SOLUTION
    pairs = finished if active is None else (*finished, active)
    return [embedding, *(source for C, D in pairs for source in (C, matched(C, D)))]
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_visible_sources", "grade": true, "points": 2}
e, pairs = noise(1, 2, 3), [(noise(1, 2, 3, seed=s), 2 * noise(1, 2, 3, seed=s + 10)) for s in (1, 2)]
checks.equal(len(visible_sources(e, (), None)), 1, "At the very first event there is only the embedding.")
found = visible_sources(e, (pairs[0],), pairs[1])
checks.equal(len(found), 5, "The embedding, two sources of the finished block, two of the active one.")
checks.close([found[0], found[1], found[3]], [e, pairs[0][0], pairs[1][0]], "Sums and details alternate.")
### BEGIN HIDDEN TESTS
checks.close(found[2], depth_read.matched(*pairs[0], GAMMA, EPS), "Details are matched when they are read.")
checks.close(found[4], depth_read.matched(*pairs[1], GAMMA, EPS), "So is the detail of the active block.")
checks.equal(len(visible_sources(e, tuple(pairs), None)), 5, "An active block without a write adds no slot.")
checks.equal(len(visible_sources(e, (), pairs[0])), 3, "A first block under way: the embedding and its pair.")
### END HIDDEN TESTS


# %% [markdown]
# ## 6 · Scores
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# $z_s = q\cdot\mathrm{RMSNorm}(v_s) + b\,[s \text{ is a detail}]$, where the norm has the learned gain $g$ and
# $\varepsilon = 10^{-6}$ under its root. There is no factor $1/\sqrt d$.


# %% nbgrader={"grade_id": "depth_scores", "solution": true}
def depth_scores(sources: list[Tensor], query: Tensor, gain: Tensor, bias: Tensor, details: list[bool]) -> Tensor:
    """S sources [B, T, d], query and gain [d], bias a number, details: which are detail slots -> [S, B, T]."""
    ### BEGIN SOLUTION
    scores = []
    for v, detail in zip(sources, details, strict=True):
        unit = v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain
        scores.append(unit @ query + (bias if detail else 0.0))
    return torch.stack(scores)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_depth_scores", "grade": true, "points": 2}
checks.own_work(depth_scores)
ones, b = torch.ones(2, dtype=torch.float64), torch.tensor(-2.0, dtype=torch.float64)
vectors = [torch.tensor([[[3.0, 3.0]]], dtype=torch.float64), torch.tensor([[[0.5, -0.5]]], dtype=torch.float64)]
checks.close(
    depth_scores(vectors, ones, ones, b, [False, True]),
    [[[2.0]], [[-2.0]]],
    "Normalised, the vectors are (1, 1) and (1, −1): scores 2 and 0, and the detail gets b = −2.",
    absolute=1e-4,
)
### BEGIN HIDDEN TESTS
vectors, q, gain = [noise(2, 4, 6, seed=s) for s in range(5)], noise(6, seed=7), noise(6, seed=8)
details = [False, False, True, False, True]
expected = depth_read.depth_scores(vectors, q, gain, 1e-6)
expected[2::2] += b
checks.close(depth_scores(vectors, q, gain, b, details), expected, "Gain, query and bias each have their place.")
checks.close(
    depth_scores(vectors[:3], q, gain, b, [False] * 3),
    expected[:3] - b * torch.tensor([0, 0, 1])[:, None, None],
    "Where nothing is a detail (in the final read), nothing gets the bias.",
)
tiny = [1e-3 * vectors[0]]
checks.close(depth_scores(tiny, q, gain, b, [False]), depth_read.depth_scores(tiny, q, gain, 1e-6), "ε is 1e-6.")
### END HIDDEN TESTS


# %% [markdown]
# ## 7 · The mixture
# *1 point · about 10 minutes · difficulty 1 of 3*
#
# Shares by a softmax over the **sources**, separately for each token, and the mixture $\sum_s w_s v_s$. It replaces the
# sublayer's input; nothing is added to it.


# %% nbgrader={"grade_id": "mixture", "solution": true}
def mixture(scores: Tensor, sources: list[Tensor]) -> Tensor:
    """scores [S, B, T], S sources [B, T, d] -> [B, T, d]."""
    ### BEGIN SOLUTION
    return (torch.softmax(scores, 0)[..., None] * torch.stack(sources)).sum(0)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_mixture", "grade": true, "points": 1}
checks.own_work(mixture)
vectors = [torch.full((1, 1, 2), x, dtype=torch.float64) for x in (1.0, 5.0)]
three_to_one = torch.tensor([3.0, 1.0], dtype=torch.float64).log().reshape(2, 1, 1)
checks.close(mixture(three_to_one, vectors), [[[2.0, 2.0]]], "Shares 3/4 and 1/4 of 1 and 5.")
### BEGIN HIDDEN TESTS
vectors, z = [noise(2, 4, 6, seed=s) for s in range(3)], noise(3, 2, 4, seed=9)
expected = depth_read.mix(torch.softmax(z, 0), vectors)
checks.close(mixture(z, vectors), expected, "Each token of each sequence has its own shares, over the sources.")
### END HIDDEN TESTS


# %% [markdown]
# ## 8 · The gradient of the bias
# *3 points · about 25 minutes · difficulty 3 of 3*
#
# One token, one read: shares $w_s$ of sources $v_s$, mixture $h = \sum_s w_s v_s$. A loss has the gradient
# $g = \partial\ell/\partial h$. What is $\partial\ell/\partial b$, if $b$ is in the scores of all details? Derive it
# (start from $\partial w_s/\partial z_r = w_s(\delta_{sr} - w_r)$) and write it down without autograd.


# %% nbgrader={"grade_id": "bias_gradient", "solution": true}
def bias_gradient(w: Tensor, v: Tensor, g: Tensor, details: list[bool]) -> Tensor:
    """w [S] shares, v [S, d] sources, g [d] -> a number (a tensor without axes)."""
    ### BEGIN SOLUTION
    by_source = w * (v @ g - (w @ v) @ g)
    return by_source[torch.tensor(details)].sum()
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_bias_gradient", "grade": true, "points": 3}
def true_bias_gradient(z: Tensor, v: Tensor, g: Tensor, details: list[bool]) -> Tensor:
    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    shares = torch.softmax(z + bias * torch.tensor(details), 0)
    return torch.autograd.grad(shares @ v @ g, bias)[0]


checks.own_work(bias_gradient, without=("autograd", "backward", "grad"))
z, v, g, two = torch.zeros(2, dtype=torch.float64), noise(2, 3), noise(3, seed=1), [False, True]
checks.close(
    bias_gradient(torch.softmax(z, 0), v, g, two),
    true_bias_gradient(z, v, g, two),
    "Two equal shares: ¼ g·(v₂ − v₁). A detail that points along g more than the mixture does gains.",
)
### BEGIN HIDDEN TESTS
z, v, five = noise(5, seed=2), noise(5, 3, seed=3), [False, False, True, False, True]
checks.close(
    bias_gradient(torch.softmax(z, 0), v, g, five),
    true_bias_gradient(z, v, g, five),
    "Each detail adds w_s (g·v_s − g·h), where h is the whole mixture.",
)
everything = [True] * 5
checks.close(bias_gradient(torch.softmax(z, 0), v, g, everything), 0.0, "A bias on all slots changes no share.")
### END HIDDEN TESTS


# %% [markdown]
# ## 9 · Behind the seam
# *5 points · about 45 minutes · difficulty 3 of 3*
#
# Put your parts together. The package asks a residual scheme four questions: how the stream begins, what sublayer
# `event` reads, what becomes of its output, and what the head sees. The **state** is whatever you want to remember, as
# an immutable value (a tuple); nothing is stored on `self`. The parameters are given: a query, a key gain for each of
# the $2L + 1$ read sites, and a detail bias for each of the first $2L$. The final read has the last query and gain and
# sees the embedding and the sums $C_1 … C_N$, **no details**.


# %% nbgrader={"grade_id": "MyHaares", "solution": true}
class MyHaares(Residual):
    """HAARES over blocks of the given lengths, which add up to the 2L events."""

    def __init__(self, lengths: list[int], width: int) -> None:
        super().__init__()
        self.lengths, events = lengths, sum(lengths)
        self.query = nn.Parameter(torch.zeros(events + 1, width))
        self.key_gain = nn.Parameter(torch.ones(events + 1, width))
        self.detail_bias = nn.Parameter(torch.full((events,), -2.0))
        ### BEGIN SOLUTION
        self.signs = [sign for m in lengths for sign in half_signs(m)]
        self.ends = {sum(lengths[: n + 1]) - 1 for n in range(len(lengths))}
        ### END SOLUTION

    def begin(self, embedding):
        """embedding [B, T, d] -> the first state."""
        ### BEGIN SOLUTION
        return embedding, (), None
        ### END SOLUTION

    def read(self, state, event):
        """-> (what the sublayer sees [B, T, d], the state after the read)."""
        ### BEGIN SOLUTION
        sources = visible_sources(*state)
        details = [place > 0 and place % 2 == 0 for place in range(len(sources))]
        z = depth_scores(sources, self.query[event], self.key_gain[event], self.detail_bias[event], details)
        return mixture(z, sources), state
        ### END SOLUTION

    def write(self, state, event, output):
        """The state after sublayer `event` made `output` [B, T, d]."""
        ### BEGIN SOLUTION
        embedding, finished, active = state
        active = write_pair(active, output, self.signs[event])
        return (embedding, (*finished, active), None) if event in self.ends else (embedding, finished, active)
        ### END SOLUTION

    def readout(self, state):
        """What the final norm and the head see [B, T, d]."""
        ### BEGIN SOLUTION
        embedding, finished, _ = state
        sources = [embedding, *(C for C, _ in finished)]
        z = depth_scores(sources, self.query[-1], self.key_gain[-1], 0.0, [False] * len(sources))
        return mixture(z, sources)
        ### END SOLUTION


# %% nbgrader={"grade_id": "check_MyHaares", "grade": true, "points": 5}
def two_models(lengths: list[int], width: int = 8) -> tuple[Transformer, Transformer]:
    """The package's HAARES and a Transformer with yours, equal in every parameter, all of them lively."""
    sizes = dict(vocab_size=11, layers=sum(lengths) // 2, width=width, heads=2, ff=12)
    options = {"blocks": tuple(lengths), "read": "plain"}
    theirs = Transformer(ModelConfig(**sizes, scheme="haares", options=options)).double()
    with torch.no_grad():
        for number, parameter in enumerate(theirs.parameters()):
            parameter += 0.3 * noise(*parameter.shape, seed=number)
    mine = Transformer(ModelConfig(**sizes)).double()
    mine.residual = MyHaares(lengths, width).double()
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


checks.own_work(MyHaares)
mine, theirs = two_models([4])
states = [model.residual.begin(noise(2, 3, 8)) for model in (mine, theirs)]
for event in range(4):
    reads = []
    for number, model in enumerate((mine, theirs)):
        x, states[number] = model.residual.read(states[number], event)
        states[number] = model.residual.write(states[number], event, noise(2, 3, 8, seed=50 + event))
        reads.append(x)
    checks.close(*reads, f"One block of four events: the read before event {event}, counted from 0.")
### BEGIN HIDDEN TESTS
checks.close(mine.residual.readout(states[0]), theirs.residual.readout(states[1]), "The final read: sums, no details.")
tokens = torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(0))
for lengths in ([4, 4], [3, 1, 4], [1, 1, 1, 1]):
    mine, theirs = two_models(lengths)
    checks.close(mine(tokens), theirs(tokens), f"Logits of a model with blocks of {lengths}.")
    gradients = []
    for model in (mine, theirs):
        model(tokens).square().sum().backward()
        gradients.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()})
    for name in gradients[1]:
        checks.close(gradients[0][name], gradients[1][name], f"The gradient of {name}, blocks of {lengths}.")
checks.equal(
    generate(mine, tokens, 5, temperature=0),
    generate(theirs, tokens, 5, temperature=0).tolist(),
    "Token by token, with a cache: is something remembered on self?",
)
### END HIDDEN TESTS
