# %% [markdown]
# # 09 · Routed mixtures: what can nonnegative weights make of a sum and a difference?
#
# The raw pair $(C, D)$ recovers both halves of a block (chapter 07). A read does not get to use that: it must mix
# what it is offered, $C$ and the scaled detail $\hat D = aD$, with softmax weights, which are positive and sum to one.
# So which combinations of the two halves can it make? The answer is a cone. It contains mixtures that two stored
# half blocks could never give, because it can *subtract* the late half, and it lacks mixtures that they could. We
# find the cone exactly, drag it about, and drop the weights of a small trained model into it.
#
# > **You will build** the coefficients that a read gives to each half, the set of all it can reach, a pair of
# > witnesses, the gradient of a softmax read, and the limit in which the detail disappears.
# >
# > **You will learn** why storing the same information in other coordinates makes another model, what "neither contains
# > the other" takes to prove, and how a detail bias is trained.
# >
# > **You need** chapter 05 for the read, 07, and 08 for matching and the bias, and derivatives.
# >
# > **Runs in** about 20 seconds on 2 cores, without a network. Most of it trains a small model.

# %%
import matplotlib.pyplot as plt
import sympy as sp
import torch
from IPython.display import HTML, display
from torch.nn import functional as nnf

from minihaares import algebra, cone, depth_read, plots
from minihaares.model import DepthRouter, ModelConfig, RouterOptions, Transformer, rotary_table
from minihaares.stories import write_stories

plots.use_style()
generator = torch.Generator().manual_seed(9)

# %% [markdown]
# ## By hand
#
# Early half $E = (2, 1)$, late half $F = (-1, 1)$. So $C = (1, 2)$ and $D = (3, 0)$. Let matching do nothing
# ($a = 1$), and let a read give weight $\tfrac14$ to $C$, $\tfrac12$ to $\hat D$, and the rest to other sources. The
# pair's part of it is
#
# $$\tfrac14\,(1, 2) + \tfrac12\,(3, 0) = (1.75,\; 0.5).$$
#
# Sort the same sum by halves: $E$ is in both sources with a plus, $F$ with a plus in one and with a minus in the
# other. That makes $\tfrac34 E - \tfrac14 F = (1.5, 0.75) - (-0.25, 0.25) = (1.75, 0.5)$. Two weights, both positive,
# and the late half got a **negative** coefficient.

# %%
E, F = torch.tensor([2.0, 1.0]), torch.tensor([-1.0, 1.0])
by_sources = 1 / 4 * (E + F) + 1 / 2 * (E - F)
by_halves = 3 / 4 * E - 1 / 4 * F
print(by_sources.tolist(), by_halves.tolist())
assert torch.equal(by_sources, by_halves)

# %% [markdown]
# ## For every width, weight and scale
#
# With vectors as symbols and $w_C, w_D, a$ as positive numbers, expanding and collecting is all there is to it:

# %%
E, F, w_C, w_D, a = (getattr(algebra, name) for name in ("E", "F", "w_C", "w_D", "a"))
mixture = (w_C * (E + F) + w_D * a * (E - F)).expand()
early, late = w_C + a * w_D, w_C - a * w_D
assert (mixture - early * E - late * F).expand() == sp.ZeroMatrix(*E.shape)
coefficients = algebra.routed_coefficients()
assert (coefficients.forms["early"], coefficients.forms["late"]) == (early, late)
coefficients

# %% [markdown]
# The last two lines are worth a pause. Write $c_E$ and $c_F$ for the two coefficients. The difference of their
# squares is $4\,a\,w_C w_D$, and neither weights nor $c_E$ are negative. So **$|c_F| \le c_E$, always**: a read can
# turn the late half around, but the early half is never subtracted, and never counts less than the late one does.
#
# Does the code do the same? The package's lean read keeps half totals, and forms $C$ and $D$ for a moment only, to
# score them (chapter 12); here it reads one active pair beside a finished source, and we compare it with the plain
# mixture and with our coefficients, values and gradients.

# %%
halves = [torch.randn(1, 5, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
other, key = torch.randn(1, 5, 8, generator=generator).double(), torch.randn(8, generator=generator).double()
settings = depth_read.ReadSettings(paired=True, match=True, gamma=4.0, eps=1e-6, key_eps=1e-6)
bias, finished_score = torch.tensor(-0.5).double(), torch.zeros(1, 5).double()
lean = depth_read.ActiveRead.apply(settings, key, bias, other, finished_score, *halves)

C, D = halves[0] + halves[1], halves[0] - halves[1]
hat = depth_read.matched(C, D, gamma=4.0, eps=1e-6)
scores = depth_read.depth_scores((C, hat), key, None, eps=1e-6)
w = torch.softmax(torch.stack((finished_score, scores[0], scores[1] + bias)), 0)  # [3, 1, 5]
torch.testing.assert_close(lean, depth_read.mix(w, (other, C, hat)))

scale = (depth_read.rms(hat, "token") / depth_read.rms(D, "token"))[..., 0].detach()
values = {"w_C": w[1], "w_D": w[2], "a": scale}
c_E, c_F = (sp.lambdify((w_C, w_D, a), form)(*values.values()) for form in coefficients.forms.values())
torch.testing.assert_close(lean, w[0, ..., None] * other + c_E[..., None] * halves[0] + c_F[..., None] * halves[1])
with_fixed_weights = depth_read.mix(w.detach(), (other, C, scale[..., None] * D)).sum()
for half, c in zip(halves, (c_E, c_F), strict=True):
    (gradient,) = torch.autograd.grad(with_fixed_weights, half, retain_graph=True)
    torch.testing.assert_close(gradient, c.detach()[..., None].expand_as(half))
print("equal: the lean read, the plain mixture, and the two coefficients; five tokens give c_F =")
print([round(value, 3) for value in c_F.flatten().tolist()])

# %% [markdown]
# The gradient says something by itself: along the value path the late half receives $c_F$ times the read's gradient.
# Where $c_F$ is negative, it is trained in the *opposite* direction of the early half.
#
# ## The set of all reads
#
# Turn the question round. Which pairs $(c_E, c_F)$ are reached by *some* weights? Solve the two equations for them:
# $w_C = (c_E + c_F)/2$ and $w_D = (c_E - c_F)/(2a)$. There is one solution for each point, so the point is reached
# exactly if both are nonnegative:
#
# $$w_C \ge 0,\; w_D \ge 0 \quad\Longleftrightarrow\quad |c_F| \le c_E .$$
#
# That is a cone, a quarter of the plane, and $a$ has dropped out. It comes back with the budget: softmax weights add
# up to 1 over *all* sources, so $w_C + w_D \le 1$. This cuts the cone down to a triangle. Its corners are: no weight at
# all, $(0,0)$; everything on $C$, $(1,1)$; everything on $\hat D$, $(a, -a)$.

# %%
reach = algebra.cone()
reach

# %% [markdown]
# (The last line says that a smaller scale reaches nothing new: with $a = \theta\gamma$, $\theta \le 1$, the corner
# $(a, -a)$ costs only a weight of $\theta$ at scale $\gamma$.) The area of the triangle is $a$. And two cumulative
# blocks that store $E$ and $F$ themselves? Their weights *are* the coefficients: the triangle $(0,0), (1,0), (0,1)$
# of area $\tfrac12$.
#
# **Neither contains the other.** To show that takes one witness each: a point that one of them reaches, with weights
# that a softmax can produce, and a reason why the other cannot.

# %%
witness = algebra.witnesses()
for name, point in witness.items():
    pair_can = algebra.pair_reaches(*point, a)  # at whatever scale a > 0
    blocks_can = algebra.blocks_reach(*point)
    print(f"{name:12s} (c_E, c_F) = {point}: pair {pair_can}, two blocks {blocks_can}")
assert algebra.pair_reaches(*witness["pair only"], 1) == True  # noqa: E712  our example by hand, a = 1
assert algebra.blocks_reach(*witness["pair only"], None) == False  # noqa: E712  not with any weights >= 0
assert algebra.pair_reaches(*witness["blocks only"], a, None) == False  # noqa: E712  nor here, for any a

# %% [markdown]
# The first witness is our example by hand; it is reached as long as $a$ is not too small: $\hat D$ at scale $a$ must
# cost no more than the budget, $\tfrac14 + \tfrac1{2a} \le 1$. The second says what the pair lacks: more of the late
# half than of the early one. If the latest events of a block matter most, two cumulative blocks can say so, and a sum
# and a difference cannot.
#
# So a half-split block is **not** a block partition twice as fine in disguise, even though both store two vectors with
# the same information. It also differs in what is scored: the keys are $C$ and $\hat D$, not $E$ and $F$.

# %%
def triangle(axis, *corners, **style):
    axis.fill(*zip(*corners, strict=True), **({"fill": False, "lw": 2} | style))


fig, axis = plt.subplots(figsize=(6.4, 5.2))
for scale, shade in ((2, 0.12), (1, 0.25), (1 / 4, 0.5)):
    triangle(axis, (0, 0), (1, 1), (scale, -scale), fill=True, color=plots.ORANGE, alpha=shade, lw=0)
    triangle(axis, (0, 0), (1, 1), (scale, -scale), color="black", ls="-", lw=1.2)
    axis.annotate(f"a = {scale:g}", (scale, -scale), (5 if scale >= 1 else -54, -6), textcoords="offset points")
triangle(axis, (0, 0), (1, 0), (0, 1), color=plots.BLUE, ls="--")
axis.annotate("two blocks", (0, 0.6), (-0.75, 0.75), color=plots.BLUE, arrowprops={"arrowstyle": "-", "color": "0.5"})
axis.annotate("the sum alone", (1, 1), (6, 0), textcoords="offset points")
for (name, point), marker in zip(witness.items(), "sD", strict=True):
    axis.plot(*map(float, point), marker, color="black", mfc="white", ms=8, ls="", label=f"witness: {name}")
axis.set(title="Half coefficients that can be reached", xlabel="coefficient of the early half")
axis.set(ylabel="coefficient of the late half", xlim=(-0.8, 2.5), ylim=(-2.3, 1.25), aspect="equal")
axis.legend(loc="lower left")
plots.show(
    fig,
    alt="The plane of half coefficients. Filled triangles go from the origin over (1, 1) to (a, minus a), for a = 1/4, "
    "1 and 2; a larger a reaches further down to the right. In all of them the late coefficient is at most as large as "
    "the early one in absolute value. A dashed triangle with corners (0, 0), (1, 0) and (0, 1) stands for two "
    "cumulative blocks; half of it lies above the diagonal, outside the others. One witness is marked below the "
    "horizontal axis, the other above the diagonal.",
)

# %% [markdown]
# The same in a plane of two channels: what the read itself, a vector, can be.

# %%
fig, axis = plt.subplots(figsize=(5.6, 4.2))
arrows = {"E": (1.6, 0.6), "F": (-0.3, 1.1), "C = E + F": (1.3, 1.7), "D = E − F": (1.9, -0.5)}
triangle(axis, (0, 0), arrows["C = E + F"], arrows["D = E − F"], fill=True, color=plots.ORANGE, alpha=0.25, lw=0)
triangle(axis, (0, 0), arrows["E"], arrows["F"], color=plots.BLUE, ls="--")
for name, end in arrows.items():
    axis.annotate("", end, (0, 0), arrowprops={"arrowstyle": "->", "lw": 1.6})
    axis.annotate(name, end, (4, 4), textcoords="offset points")
axis.set(title="Reads of one block, a = 1", xlabel="channel 1", ylabel="channel 2", xlim=(-0.8, 2.9), ylim=(-0.9, 2.2))
axis.set(aspect="equal")
plots.show(
    fig,
    alt="A plane of two channels with arrows for the early half E, the late half F, their sum C, their difference D. "
    "The filled triangle between the origin, C and D is what the pair can put into a read, the dashed one between the "
    "origin, E and F what two cumulative blocks can. They share the triangle between the origin, E and half of C.",
)

# %% [markdown]
# ### Drag it
#
# The same two planes, alive. Move the weights, the scale, or the ends of $E$ and $F$; watch the thick arrow, which is
# what a sublayer would see. Let matching choose $a$, make $E$ and $F$ nearly opposite, and see the detail shrink to the
# clip; then make them nearly equal. (In JupyterLab, run the cell; the two pictures above are its still form.)

# %%
HTML(cone.draggable())

# %% [markdown]
# ## Where a trained model goes
#
# A set of possibilities is not a habit. We train a small HAARES for a few seconds on characters of the built-in
# stories: six layers in two blocks of six events, a rate of 0.01, 200 steps. (The paper's
# runs have 48 layers and 30,000 steps. This one is only here to put *learned* queries into the picture.)

# %%
text = " ".join(story.text for story in write_stories(600, seed=9))
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text])
small = dict(vocab_size=len(letters), layers=6, width=32, heads=2, ff=64, scheme="haares")
STEPS, BATCH, CONTEXT = 200, 16, 96  # the paper: 30,000 steps of 16 x 512


def some_text(generator, count):  # inputs and targets [count, CONTEXT]
    start = torch.randint(len(ids) - CONTEXT - 1, (count, 1), generator=generator)
    rows = ids[start + torch.arange(CONTEXT + 1)]
    return rows[:, :-1], rows[:, 1:]


model = Transformer(ModelConfig(**small, options={"blocks": 2}), seed=42)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0)
drawn = torch.Generator().manual_seed(1)
for _ in range(STEPS):
    inputs, targets = some_text(drawn, BATCH)
    loss = nnf.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
assert loss < 2.5 and model.residual.query.abs().max() > 0.1  # it learned something, and its queries moved

# %% [markdown]
# Now walk a few texts through it, read by read, and note for every finished block, and for an active one once its
# late half has begun, the two coefficients of every token. To be sure that we note the right thing, each read is put
# together again from $e$, the halves and their coefficients, and compared with the package's.

# %%
plain = Transformer(ModelConfig(**small, options={"blocks": 2, "read": "plain"}), seed=42)
plain.load_state_dict(model.state_dict())
router = plain.residual
form = sp.lambdify((w_C, w_D, a), [coefficients.forms["early"], coefficients.forms["late"]])


def half_total(outputs, block, sign):  # of the events of a block with this sign, so far; 0 if there are none
    places = router.places[: len(outputs)]
    return sum(u for u, place in zip(outputs, places, strict=True) if (place.block, place.sign) == (block, sign))


def read_in_halves(state, outputs, event):  # the read of an event, and the coefficients [2, B, T] of pairs with an F
    sources, seen = router.sources(state), []
    w = router.weights(sources, event)  # [S, B, T]
    rebuilt = w[0, ..., None] * sources[0]
    for n in range(len(sources) // 2):
        E, F = half_total(outputs, n, 1), half_total(outputs, n, -1)
        scale = depth_read.rms(sources[2 + 2 * n], "token") / depth_read.rms(E - F, "token")
        both = torch.stack(form(w[1 + 2 * n], w[2 + 2 * n], scale[..., 0]))
        rebuilt = rebuilt + both[0, ..., None] * E + both[1, ..., None] * F
        if torch.is_tensor(F):
            seen.append(both)
    return rebuilt, seen

# %% tags=["nbval-ignore-output"]
points = {"attention reads": [], "MLP reads": []}
with torch.no_grad():
    inputs, _ = some_text(drawn, 8)
    embedding, outputs = plain.embed(inputs), []
    rope, state = rotary_table(0, CONTEXT, plain.config, embedding), router.begin(embedding)
    for event, sublayer in enumerate(plain.sublayers):
        rebuilt, seen = read_in_halves(state, outputs, event)
        read, state = router.read(state, event)
        torch.testing.assert_close(rebuilt, read, rtol=1e-3, atol=1e-4)
        points["MLP reads" if event % 2 else "attention reads"] += seen
        outputs.append(sublayer(read, rope))
        state = router.write(state, event, outputs[-1])
for name, seen in points.items():
    points[name] = torch.stack(seen).transpose(0, 1).flatten(1)  # [2, everything]
    c_E, c_F = points[name]
    assert (c_F.abs() <= c_E + 1e-5).all()  # the theorem, on every token
    print(f"{name:16s} {c_E.numel():6d} pairs, late half subtracted in {(c_F < 0).float().mean():.0%}")
subtracted = torch.cat(list(points.values()), 1)[1] < 0
assert subtracted.any() and not subtracted.all()

# %%
fig, axis = plt.subplots(figsize=(6.8, 4.8))
for (name, (c_E, c_F)), colour, marker in zip(points.items(), ("0.45", plots.VERMILION), "ox", strict=True):
    some = torch.randperm(c_E.numel(), generator=torch.Generator().manual_seed(0))[:900]
    axis.plot(c_E[some], c_F[some], marker, color=colour, ms=3.5, mfc="none", ls="", alpha=0.6, label=name)
edge = torch.tensor([0.0, 1.4])
axis.plot(edge, edge, "k-", lw=1.2)
axis.plot(edge, -edge, "k-", lw=1.2, label="the cone |late| ≤ early")
triangle(axis, (0, 0), (1, 0), (0, 1), color=plots.BLUE, ls="--", lw=1.5, label="two cumulative blocks")
axis.axhline(0, color="0.6", lw=0.8)
axis.set(title="Half coefficients of a small trained model", xlabel="coefficient of the early half")
axis.set(ylabel="coefficient of the late half", xlim=(-0.05, 1.55), ylim=(-0.85, 1.05))
axis.legend(loc="upper right", frameon=True, fontsize=8.5, bbox_to_anchor=(1.0, 0.9))
plots.show(
    fig,
    alt="A cloud of points in the plane of half coefficients, all between the two diagonals that bound the cone. Most "
    "lie just below the upper diagonal, where both halves count nearly alike; some lie below the horizontal axis, "
    "where the late half is subtracted and where the dashed triangle of two blocks does not reach.",
)

# %% [markdown]
# At the start every query is zero, and all content scores with it: the weights are those of the bias alone, and a
# point lies on the ray $c_F = \frac{1 - ae^{-2}}{1 + ae^{-2}}\,c_E$, of slope 0.76 where $a = 1$. Training spreads
# them. In this model some reads do subtract. That it is a habit of larger models, or a good one, a model that trained
# for seconds cannot tell.
#
# ## How such weights are learned
#
# The weights are a softmax, $w_s = e^{z_s}/\sum_t e^{z_t}$. Its Jacobian, for any number of slots $S$, and what a
# loss sends back to a score, with $g$ the gradient of the read and $G_s = g\cdot v_s$:

# %%
algebra.softmax_jacobian()

# %% [markdown]
# The gradient of a score is positive if its source points along $g$ *more than the read itself does*; a step of
# descent then lowers the score. The last line says that these gradients add up to zero: what one slot wins, others
# lose. The detail bias $b$ stands in the scores of all details of a read. Let $Z_D$ be the sum of $e^{\text{score}}$
# over the details before the bias, $Z_C$ that over the other sources (with zero queries: how many there are), $\mu$
# the weight that the details have together, $h_D$ their mixture by itself, $h_C$ that of the other sources by
# themselves. Then the read is $h = h_C + \mu\,(h_D - h_C)$, and:

# %%
algebra.bias_limit()

# %% [markdown]
# Three results in one:
#
# * **Gradient.** $\partial h/\partial b = \mu(1-\mu)(h_D - h_C)$. The bias is trained by how much better the details
#   as a group are than the rest as a group, and hardly when $\mu$ is near 0: a detail that is nearly off sends its
#   bias next to no gradient. (AdamW rescales gradients, so it may move all the same.)
# * **Limit.** As $b\to-\infty$ the read tends to $h_C$, the read of Block Attention Residuals.
# * **Finite $b$ is not the limit.** The paper starts at $b = -2$. With zero queries, five cumulative sources and four
#   details, that is a weight of

# %%
share = algebra.bias_limit().forms["share"]
Z_C, Z_D = sp.symbols("Z_C Z_D", positive=True)
at_start = share.subs({Z_C: 5, Z_D: 4, algebra.b: -2})
display(at_start)
print(f"= {float(at_start):.4f} on the details, at the last event of a model with N = 4; with one pair in the bank",
      f"{float(share.subs({Z_C: 2, Z_D: 1, algebra.b: -2})):.4f}")  # fmt: skip

# %% [markdown]
# Masking the detail slots (`bias="masked"`), on the other hand, is Block Attention Residuals exactly, to the last
# bit. So is a bias so low that $e^b$ rounds to exactly 0; a bias of $-2$ is not.

# %%
tokens = ids[:CONTEXT][None]
variants = {
    "block": {"detail": "none"},
    "masked": {"bias": "masked"},
    "b = -1000": {"bias": "fixed", "bias_init": -1000.0},
    "b = -2": {"bias": "fixed", "bias_init": -2.0},
}
logits = {}
for name, options in variants.items():
    built = Transformer(ModelConfig(**small, options={"blocks": 2, "read": "plain", **options}), seed=42)
    built.load_state_dict({k: v for k, v in model.state_dict().items() if "detail_bias" not in k}, strict=False)
    logits[name] = built(tokens)
    gap = (logits[name] - logits["block"]).abs().max().item()
    print(f"{name:10s} {'equals' if torch.equal(logits[name], logits['block']) else 'differs from'} the block read")
assert torch.equal(logits["masked"], logits["block"]) and torch.equal(logits["b = -1000"], logits["block"])
assert gap > 1e-2

# %% [markdown]
# And the gradient of the bias, by automatic differentiation through the package's router, against the formula:

# %%
probe = DepthRouter(ModelConfig(layers=4, width=8, heads=1), RouterOptions(blocks=2, read="plain"), generator).double()
with torch.no_grad():
    probe.query.normal_(generator=generator)
sources = tuple(torch.randn(5, 1, 6, 8, generator=generator).double())  # e, C, D̂, C, D̂
g, site = torch.randn(1, 6, 8, generator=generator).double(), 5
weights = probe.weights(sources, site)
(depth_read.mix(weights, sources) * g).sum().backward()

details, others = weights[2::2], weights[[0, 1, 3]]  # the loss is sum(g · h)
mu = details.sum(0)
h_D = depth_read.mix(details / mu, sources[2::2])
h_C = depth_read.mix(others / others.sum(0), (sources[0], sources[1], sources[3]))
slope = sp.lambdify(sp.symbols("mu h_C h_D", real=True), algebra.bias_limit().forms["slope"])
by_formula = (g * slope(mu[..., None], h_C, h_D)).sum()
torch.testing.assert_close(probe.detail_bias.grad[site], by_formula)
print(f"autograd {probe.detail_bias.grad[site].item():.6f}, formula {by_formula.item():.6f}")

# %% [markdown]
# ## What we found, and what it does not show
#
# * A read gives the halves $w_C \pm a w_D$. It reaches exactly $|c_F|\le c_E$, cut to the triangle
#   $(0,0), (1,1), (a,-a)$ by the budget. Proved for all widths, weights and scales.
# * Two cumulative half blocks reach the other triangle, $(0,0), (1,0), (0,1)$. Neither contains the other.
# * Masked details, or $b\to-\infty$, give Block Attention Residuals; with zero queries $b = -2$ gives the details 6 %
#   of the weight (one pair in the bank) to 10 % (four).
# * A bias learns in proportion to $\mu(1-\mu)$.
# * All of this is about *one* read of *given* vectors. In training, the vectors change with the reads. And a set of
#   reachable coefficients says nothing about which of them a score $q\cdot\mathrm{RMSNorm}(v)$ can hit for all tokens
#   at once.
#
# ## Exercises
#
# ### Exercise 9.1 · Which weights?
#
# *Easy, 5 minutes.* Which weights give $\tfrac12 E - \tfrac14 F$, at $a = 1$ and at $a = \tfrac14$? Are both within the
# budget?
#
# <details><summary>Answer</summary>
#
# $w_C = (\tfrac12 - \tfrac14)/2 = \tfrac18$ both times. $w_D = \tfrac34/(2a)$: $\tfrac38$ at $a = 1$, but $\tfrac32$ at
# $a = \tfrac14$, which is more than 1. A small scale makes the contrast expensive.
# </details>
#
# ### Exercise 9.2 · A proof to complete: the early half leads
#
# *Medium, 10 minutes.* Show $|c_F|\le c_E$ without squares: begin with $c_E - c_F = \_\_\_$ and $c_E + c_F = \_\_\_$.
#
# <details><summary>Answer</summary>
#
# $c_E - c_F = 2 a w_D \ge 0$ and $c_E + c_F = 2 w_C\ge 0$, so $c_F \le c_E$ and $-c_F\le c_E$. On the upper edge,
# $c_F = c_E$, $w_D = 0$: the sum alone; on the lower one, $c_F = -c_E$, $w_C = 0$: the detail alone.
# </details>
#
# ### Exercise 9.3 · How much do the two share?
#
# *Medium, 20 minutes.* At $a = 1$, find the polygon that both triangles contain, and its area as a share of each.
#
# <details><summary>Answer</summary>
#
# At $a = 1$ the budget of the pair is $c_E\le 1$. Of the triangle of the blocks, $c_E + c_F\le 1$, this leaves the
# part with $c_F\le c_E$: the triangle $(0,0), (1,0), (\tfrac12,\tfrac12)$ of area $\tfrac14$. That is half of what
# the blocks reach and a quarter of what the pair reaches.
# </details>
#
# ### Exercise 9.4 · A third slot
#
# *Medium, 20 minutes.* Offer $-\hat D$ as well, with its own weight. What is reachable without a budget?
#
# <details><summary>Answer</summary>
#
# $c_E = w_C + a(w_+ - w_-)$ and $c_F = w_C - a(w_+ - w_-)$, and $w_+ - w_-$ can be any number. So $c_E + c_F =
# 2w_C\ge 0$ is the only condition left: a half plane. Now the early half can be subtracted, too, but never both
# halves at once: that would need $c_E + c_F < 0$.
# </details>
#
# ### Exercise 9.5 · A proof to complete: the fastest bias
#
# *Hard, 20 minutes.* "A bias moves a read fastest when details have half the weight." Show that
# $\mu(1-\mu)\le\tfrac14$, find the $b$ at which it is reached, and the distance of the read from the masked one there.
#
# <details><summary>Answer</summary>
#
# $\tfrac14 - \mu(1-\mu) = (\mu - \tfrac12)^2\ge 0$. $\mu = \tfrac12$ means $e^b Z_D = Z_C$: $b = \log(Z_C/Z_D)$.
# There $h - h_C = \tfrac12(h_D - h_C)$. With zero queries at the last event for $N = 4$ that is
# $b = \log\tfrac54\approx 0.22$: the paper's start at $-2$ is on the slow side of the slope.
# </details>

# %%
c_E, c_F, b = algebra.c_E, algebra.c_F, algebra.b
point = {c_E: sp.Rational(1, 2), c_F: -sp.Rational(1, 4)}  # exercise 9.1
assert reach.forms["w_C"].subs(point) == sp.Rational(1, 8)
assert reach.forms["w_D"].subs(point).subs(a, 1) == sp.Rational(3, 8)
assert reach.forms["w_D"].subs(point).subs(a, sp.Rational(1, 4)) == sp.Rational(3, 2)

assert sp.expand(early - late) == 2 * a * w_D and sp.expand(early + late) == 2 * w_C  # exercise 9.2

t = sp.symbols("t", nonnegative=True)  # exercise 9.3: integrate the height of the common polygon over c_E
common = sp.integrate(sp.Min(t, 1 - t), (t, 0, 1))
assert common == sp.Rational(1, 4) == sp.Triangle((0, 0), (1, 0), (sp.Rational(1, 2), sp.Rational(1, 2))).area
assert reach.forms["area"].subs(a, 1) == 1 and common / sp.Rational(1, 2) == sp.Rational(1, 2)

plus, minus = sp.symbols("w_+ w_-", nonnegative=True)  # exercise 9.4
third = {side: w_C + sign * a * (plus - minus) for side, sign in (("early", 1), ("late", -1))}
assert sp.expand(third["early"] + third["late"]) == 2 * w_C
assert third["early"].subs({w_C: 1, a: 1, plus: 0, minus: 3}) == -2

mu = sp.Symbol("mu", real=True)  # exercise 9.5
assert sp.expand(sp.Rational(1, 4) - mu * (1 - mu) - (mu - sp.Rational(1, 2)) ** 2) == 0
assert sp.simplify(share.subs(b, sp.log(Z_C / Z_D))) == sp.Rational(1, 2)
print("the answers hold")

# %% [markdown]
# ## Further reading
#
# * K. Wang, *HAARES*, [arXiv 2606.06564](https://arxiv.org/abs/2606.06564), sections 3.3 and 4.3, Table 12.
# * Kimi Team, *Attention Residuals*, [arXiv 2603.15031](https://arxiv.org/abs/2603.15031): the read over depth.
# * M. Pagliardini et al., *DenseFormer*, [arXiv 2402.02622](https://arxiv.org/abs/2402.02622): weights over depth
#   that are free to be negative, and become so.
# * D. Xiao et al., *MUDDFormer*, [arXiv 2502.12170](https://arxiv.org/abs/2502.12170): dynamic ones, without a softmax.
