# %% [markdown]
# # Assignment 6 · Behind the seam: HiRes, and a scheme of your own
#
# Everything that lives along depth answers four questions: `begin`, `read`, `write`, `readout`. Here you first write
# two instruments that catch the commonest mistakes (a model that sees the future, and one that generates other text
# than it would score), then put three known ideas behind the seam, and at last one of your own. Chapters 04, 17 and 18
# treat the known ones.
#
# **How it works.** Under each answer stands a check. Run it as often as you like: it is silent when all is well, and
# otherwise says what to look at. More checks run when you hand in, with other sizes. The note at the end is read by a
# person. You may add cells, but leave the checks and the given cells as they are.
#
# The rules of the seam: a state is an **immutable value** (a tensor, or a tuple of tensors and tuples); nothing is
# stored on `self` after `__init__`; events are counted 0, 1, 2, … (attention, MLP, attention, …).

# %% nbgrader={"grade_id": "given_tools", "locked": true}
import torch
from torch import Tensor, nn

from minihaares import checks, relatives  # noqa: F401  it enters the schemes that we compare with
from minihaares.model import KVCache, ModelConfig, Residual, Transformer


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same ones each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_tokens(batch: int = 2, length: int = 6, seed: int = 0) -> Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(seed))


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    """x / RMS(x) times a gain, over the last axis."""
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def build(residual: Residual | None = None, layers: int = 2, width: int = 8, **scheme) -> Transformer:
    """A small Transformer in float64: the package's scheme, or with your residual in its place. Vocabulary 11."""
    config = ModelConfig(vocab_size=11, layers=layers, width=width, heads=2, ff=12, **scheme)
    made = Transformer(config, seed=7).double()
    if residual is not None:
        made.residual = residual.double()
    return made


def shake(model: nn.Module) -> nn.Module:
    """Noise on every parameter, drawn by its name, so that no zero or one at the start hides a mistake."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.3 * noise(*parameter.shape, seed=sum(map(ord, name)))
    return model


def tensors(state) -> list[Tensor]:
    """All tensors of a state."""
    if isinstance(state, Tensor):
        return [state]
    return [t for part in state for t in tensors(part)] if isinstance(state, (tuple, list)) else []


def check_rules(make, layers: int = 2, width: int = 8) -> None:
    """The rules of the seam, for the scheme that `make(events, width)` gives: sight, cache, memory, gradients."""
    model, tokens = shake(build(make(2 * layers, width), layers, width)), some_tokens()
    before = dict(vars(model.residual))
    logits, changed, cache = model(tokens), tokens.clone(), KVCache(6)
    changed[:, 4] = (changed[:, 4] + 1) % 11
    checks.close(model(changed)[:, :4], logits[:, :4], "A later token moved earlier logits: something runs over T.")
    pieces = [model(tokens[:, [t]], cache) for t in range(6)]
    checks.close(torch.cat(pieces, 1), logits, "Token by token (with a cache) the logits are not those of one pass.")
    residual, state = model.residual, model.residual.begin(noise(2, 6, width))
    seen, copies = tensors(state), [t.clone() for t in tensors(state)]
    for event in range(2 * layers):
        _, state = residual.read(state, event)
        state = residual.write(state, event, noise(2, 6, width, seed=event))
        seen, copies = seen + tensors(state), copies + [t.clone() for t in tensors(state)]
    residual.readout(state)
    checks.close(seen, copies, "An earlier state was changed in place: make new tensors.")
    stored = [name for name, value in vars(residual).items() if name not in before or before[name] is not value]
    assert not stored, f"self.{stored[0]} was set while reading or writing: put it into the state."
    model.zero_grad()
    (model(tokens) * noise(*logits.shape, seed=5)).sum().backward()
    for name, parameter in residual.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
        assert reached, f"No gradient reaches the parameter {name}: is it used?"


# %% [markdown]
# ## 1 · An instrument: does it see the future?
# *3 points · about 20 minutes · difficulty 2 of 3*
#
# A causal model's logits at a position do not depend on any **later** token. Test it: `leaks` is true if changing some
# token moves a logit at some earlier position by more than $10^{-9}$. A leak may go from one particular position to one
# other, so a single change is not enough.


# %% nbgrader={"grade_id": "leaks", "solution": true}
def leaks(model, tokens: Tensor, vocab: int) -> bool:
    """model(tokens [B, T]) gives logits [B, T, vocab]."""
    ### BEGIN SOLUTION
    logits = model(tokens)
    for t in range(1, tokens.shape[1]):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % vocab
        if (model(changed)[:, :t] - logits[:, :t]).abs().max() > 1e-9:
            return True
    return False
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_leaks", "grade": true, "points": 3}
honest = shake(build())
leaking = shake(build(scheme="haares", options={"blocks": 2, "rms_axes": "time", "allow_leak": True}))
checks.equal(
    leaks(honest, some_tokens(), 11), False, "The standard model is causal; its own and later logits may move."
)
checks.equal(leaks(leaking, some_tokens(), 11), True, "This model takes an RMS over all tokens: every token is felt.")


### BEGIN HIDDEN TESTS
def planted(source: int, target: int, size: float):
    """The honest model, but the token at `source` is felt at `target`."""

    def model(tokens: Tensor) -> Tensor:
        logits = honest(tokens)
        logits[:, target] = logits[:, target] + size * tokens[:, source, None]
        return logits

    return model


for source, target, size in ((5, 0, 1.0), (3, 2, 1.0), (1, 0, 1e-5), (4, 1, 1e-5), (5, 4, 1.0)):
    found = leaks(planted(source, target, size), some_tokens(), 11)
    checks.equal(found, True, f"The token at {source} is felt at {target}, with size {size}.")
checks.equal(leaks(planted(2, 2, 1.0), some_tokens(), 11), False, "A token may be felt at its own position.")
checks.equal(leaks(planted(1, 4, 1.0), some_tokens(), 11), False, "A token may be felt later.")
kept = some_tokens()
leaks(honest, kept, 11)
checks.equal(kept, some_tokens().tolist(), "The test changed its own input.")
### END HIDDEN TESTS


# %% [markdown]
# ## 2 · An instrument: is generation the same model?
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# `model(new_tokens, cache)` reads new tokens behind those that the cache holds. Read token by token, **every** position
# must get the logits of a single pass, to $10^{-9}$.


# %% nbgrader={"grade_id": "cache_agrees", "solution": true}
def cache_agrees(model, tokens: Tensor) -> bool:
    """Whether token by token with one KVCache gives the logits [B, T, V] of model(tokens)."""
    ### BEGIN SOLUTION
    cache = KVCache(tokens.shape[1])
    steps = [model(tokens[:, [t]], cache) for t in range(tokens.shape[1])]
    return bool((torch.cat(steps, 1) - model(tokens)).abs().max() <= 1e-9)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_cache_agrees", "grade": true, "points": 2}
checks.equal(cache_agrees(honest, some_tokens()), True, "One cache for the whole text; give it one token at a time.")
checks.equal(
    cache_agrees(leaking, some_tokens()), False, "This model's single pass sees tokens that are not there yet."
)


### BEGIN HIDDEN TESTS
def slips(position: int, row: int):
    """The honest model, but with a cache the logits of one position of one sequence are off a little."""

    def model(tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        past = 0 if cache is None else cache.length
        logits = honest(tokens, cache)
        if cache is not None and past <= position < past + tokens.shape[1]:
            logits[row, position - past, 3] += 1e-4
        return logits

    return model


for position, row in ((0, 0), (2, 1), (5, 0)):
    found = cache_agrees(slips(position, row), some_tokens())
    checks.equal(found, False, f"The cached logits of sequence {row} are off by 1e-4 at position {position}.")
checks.equal(cache_agrees(honest, some_tokens(3, 9)), True, "Another shape of text.")
### END HIDDEN TESTS


# %% [markdown]
# ## 3 · Gates
# *2 points · about 15 minutes · difficulty 1 of 3*
#
# The standard stream with one learned scalar for each event: $h \leftarrow h + g_i u$ (ReZero starts at $g_i = 0$).
# Make `gates` a parameter of shape `[events]` that starts at `start`.


# %% nbgrader={"grade_id": "Gated", "solution": true}
class Gated(Residual):
    """h <- h + g_i u. The state is h."""

    def __init__(self, events: int, start: float = 0.0) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.gates = nn.Parameter(torch.full((events,), start))
        ### END SOLUTION

    ### BEGIN SOLUTION
    def begin(self, embedding):
        return embedding

    def read(self, state, event):
        return state, state

    def write(self, state, event, output):
        return state + self.gates[event] * output

    def readout(self, state):
        return state

    ### END SOLUTION


# %% nbgrader={"grade_id": "check_Gated", "grade": true, "points": 2}
checks.own_work(Gated)
checks.close(
    build(Gated(4, 1.0))(some_tokens()), build()(some_tokens()), "With all gates at 1 it is the standard stream."
)
silent = build(Gated(4))
checks.close(
    silent(some_tokens()),
    silent.norm(silent.embed(some_tokens())) @ silent.embed.weight.T,
    "With all gates at 0 the head sees the embedding.",
)
### BEGIN HIDDEN TESTS
mine, theirs = shake(build(Gated(6), layers=3)), shake(build(scheme="rezero", layers=3))
with torch.no_grad():
    theirs.residual.gates.copy_(mine.residual.gates[:, None])
checks.close(mine(some_tokens()), theirs(some_tokens()), "Each event has a gate of its own, on what it writes.")
check_rules(lambda events, width: Gated(events, 0.5), layers=3)
checks.equal(sum(p.numel() for p in Gated(6).parameters()), 6, "One learned number an event.")
### END HIDDEN TESTS


# %% [markdown]
# ## 4 · Averages over layers
# *4 points · about 40 minutes · difficulty 3 of 3*
#
# DenseFormer (arXiv 2402.02622): inside a layer (attention, then MLP) the standard stream runs. The stream at the end
# of layer $i$ is $X_i$ (with $X_0 = e$), and the next layer starts from a learned average of all of them,
# $Y_i = \sum_{j \le i} \alpha_{ij} X_j$. What is remembered is $X_i$ itself, not $Y_i$. The head sees $Y_L$.
#
# Make `alpha` an `nn.ParameterList` with one vector for each layer $i = 1 … L$, of length $i + 1$, that starts so that
# the untrained model **is the standard one**.


# %% nbgrader={"grade_id": "Averages", "solution": true}
class Averages(Residual):
    """Depth-weighted averages behind every layer."""

    def __init__(self, events: int) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        starts = [torch.zeros(i + 1) for i in range(1, events // 2 + 1)]
        for start in starts:
            start[-1] = 1
        self.alpha = nn.ParameterList(starts)
        ### END SOLUTION

    ### BEGIN SOLUTION
    def begin(self, embedding):
        return embedding, (embedding,)

    def read(self, state, event):
        return state[0], state

    def write(self, state, event, output):
        stream, layers = state[0] + output, state[1]
        if event % 2 == 0:
            return stream, layers
        layers = (*layers, stream)
        weights = self.alpha[event // 2]
        return sum(weight * x for weight, x in zip(weights, layers, strict=True)), layers

    def readout(self, state):
        return state[0]

    ### END SOLUTION


# %% nbgrader={"grade_id": "check_Averages", "grade": true, "points": 4}
checks.own_work(Averages)
checks.equal([len(a) for a in Averages(6).alpha], [2, 3, 4], "Three layers: averages over 2, 3 and 4 streams.")
checks.close(build(Averages(4))(some_tokens()), build()(some_tokens()), "Untrained, it is the standard model.")
### BEGIN HIDDEN TESTS
for layers in (1, 3):
    mine, theirs = shake(build(Averages(2 * layers), layers)), shake(build(scheme="denseformer", layers=layers))
    theirs.load_state_dict(mine.state_dict())
    checks.close(mine(some_tokens()), theirs(some_tokens()), f"{layers} layers: which streams are averaged, and when?")
    check_rules(lambda events, width: Averages(events), layers)
### END HIDDEN TESTS


# %% [markdown]
# ## 5 · HiRes: a wider stream between groups
# *5 points · about 45 minutes · difficulty 3 of 3*
#
# An outer stream $X$ of $D = 2d$ channels runs past **groups** of layers that stay $d$ wide:
#
# $$X_0 = [e;\,0],\qquad h = R_j X_j,\qquad X_{j+1} = \mathrm{RMSNorm}(X_j + W_j\,y),$$
#
# where inside group $j$ an ordinary stream starts at $h$ and ends at $y$ ($h$ plus all that its events wrote). After
# the last event of the last group, too, $y$ is written; the head sees $R_J X_J$, with the last read map. The maps and
# the gains of the norm (use `rms_norm` above) are given.


# %% nbgrader={"grade_id": "MyHiRes", "solution": true}
class MyHiRes(Residual):
    """Groups of `layers_per_group` layers, d wide, beside one outer stream of 2d channels."""

    def __init__(self, events: int, width: int, layers_per_group: int = 1) -> None:
        super().__init__()
        self.size = 2 * layers_per_group  # events of a group
        groups, eye, fresh = events // self.size, torch.eye(width), noise(events, width, width).float()
        self.read_maps = nn.Parameter(torch.stack([torch.cat((eye, 0 * eye), 1)] * (groups + 1)))  # [J + 1, d, 2d]
        self.write_maps = nn.Parameter(
            torch.stack([torch.cat((eye, fresh[j]), 0) for j in range(groups)])
        )  # [J, 2d, d]
        self.gains = nn.Parameter(torch.ones(groups, 2 * width))

    def begin(self, embedding):
        """embedding [B, T, d] -> the first state."""
        ### BEGIN SOLUTION
        outer = torch.cat((embedding, torch.zeros_like(embedding)), -1)
        return outer, outer @ self.read_maps[0].T
        ### END SOLUTION

    def read(self, state, event):
        """-> (what the sublayer sees [B, T, d], the state after the read)."""
        ### BEGIN SOLUTION
        return state[1], state
        ### END SOLUTION

    def write(self, state, event, output):
        """The state after sublayer `event` made `output` [B, T, d]."""
        ### BEGIN SOLUTION
        outer, inner = state[0], state[1] + output
        group, place = divmod(event, self.size)
        if place < self.size - 1:
            return outer, inner
        outer = rms_norm(outer + inner @ self.write_maps[group].T, self.gains[group])
        return outer, outer @ self.read_maps[group + 1].T
        ### END SOLUTION

    def readout(self, state):
        """What the final norm and the head see [B, T, d]."""
        ### BEGIN SOLUTION
        return state[1]
        ### END SOLUTION


# %% nbgrader={"grade_id": "check_MyHiRes", "grade": true, "points": 5}
checks.own_work(MyHiRes)
e, u, scheme = noise(1, 3, 8), noise(1, 3, 8, seed=1), MyHiRes(4, 8).double()
x, state = scheme.read(scheme.begin(e), 0)
checks.close(x, e, "Untrained, the first read is the embedding: R_0 takes the first d channels of [e; 0].")
x, state = scheme.read(scheme.write(state, 0, u), 1)
checks.close(x, e + u, "Inside the first group an ordinary stream runs: the MLP reads e + u.")
x, _ = scheme.read(scheme.write(state, 1, u), 2)
checks.equal(list(x.shape), [1, 3, 8], "Whatever the outer stream is, a sublayer reads d channels.")
### BEGIN HIDDEN TESTS
with torch.no_grad():
    wide = torch.cat((e, 0 * e), -1) + (e + 2 * u) @ scheme.write_maps[0].T
    checks.close(
        x, (rms_norm(wide, scheme.gains[0]) @ scheme.read_maps[1].T), "Behind the first group: add W y, norm, R."
    )
for layers, per_group in ((2, 1), (4, 2), (2, 2)):
    mine = shake(build(MyHiRes(2 * layers, 8, per_group), layers))
    options = {"ratio": 2.0, "layers_per_group": per_group, "write": "output", "input": "pad"}
    theirs = build(scheme="hires", layers=layers, options=options)
    given = mine.state_dict()
    gains = given.pop("residual.gains")
    given |= {f"residual.norms.{group}.gain": gain for group, gain in enumerate(gains)}
    theirs.load_state_dict(given)
    checks.close(mine(some_tokens()), theirs(some_tokens()), f"{layers} layers in groups of {per_group}.")
check_rules(lambda events, width: MyHiRes(events, width, 2), layers=4)
### END HIDDEN TESTS


# %% [markdown]
# ## 6 · A scheme of your own
# *5 points · about 60 minutes · difficulty 3 of 3*
#
# Anything you like, an idea of yours or a relative from the literature that is not above, if it keeps the rules of the
# seam and
#
# * **starts as the standard model**: untrained, the logits are those of the standard stream, to $10^{-9}$;
# * has learned parameters, all of which matter: once they move, the logits differ, and each of them gets a gradient.
#
# `Mine(events, width)` must work for every number of layers from 2 on.


# %% nbgrader={"grade_id": "Mine", "solution": true}
class Mine(Residual):
    """My scheme."""

    ### BEGIN SOLUTION
    # A look back: besides the stream, an event reads a learned share of each channel of what was written last.
    def __init__(self, events: int, width: int) -> None:
        super().__init__()
        self.look = nn.Parameter(torch.zeros(events - 1, width))  # the first event has nothing to look back at

    def begin(self, embedding):
        return embedding, None

    def read(self, state, event):
        stream, last = state
        return stream if last is None else stream + self.look[event - 1] * last, state

    def write(self, state, event, output):
        return state[0] + output, output

    def readout(self, state):
        return state[0]

    ### END SOLUTION


# %% nbgrader={"grade_id": "check_Mine", "grade": true, "points": 5}
checks.own_work(Mine)
checks.close(build(Mine(4, 8))(some_tokens()), build()(some_tokens()), "Untrained, it must be the standard model.")
assert list(Mine(4, 8).parameters()), "There is no learned parameter: use nn.Parameter in __init__."
check_rules(Mine)
### BEGIN HIDDEN TESTS
for layers, width in ((3, 8), (5, 12)):
    untrained, standard = build(Mine(2 * layers, width), layers, width), build(None, layers, width)
    checks.close(untrained(some_tokens()), standard(some_tokens()), f"{layers} layers of width {width}, untrained.")
    check_rules(Mine, layers, width)
    shake(untrained.residual)
    moved = (untrained(some_tokens()) - standard(some_tokens())).abs().max()
    assert moved > 1e-9, "With other parameters it is still the standard model."
once = build(Mine(4, 8))
checks.close(once(some_tokens(seed=1)), once(some_tokens(seed=1)), "The same tokens twice gave different logits.")
### END HIDDEN TESTS


# %% [markdown]
# ## 7 · A note on your scheme
# *3 points · about 20 minutes · difficulty 1 of 3*
#
# In at most 150 words: what it can express that the standard stream cannot (one point); what it costs, in parameters
# and in numbers kept per token (one point); and one experiment that could show that it does **not** help (one point).

# %% [markdown] nbgrader={"grade_id": "note", "grade": true, "points": 3, "solution": true}
# ### BEGIN SOLUTION
# The standard stream mixes the newest output into a long sum; after many layers it is a small part of what a sublayer
# reads, since the norm looks at the whole. The look back lets an event read the newest output more strongly, or less,
# channel by channel, without changing what later events find in the stream.
#
# It costs (2L − 1) · d parameters, and one more vector of d numbers per token in the state, the last output.
#
# To see that it does not help: train it against a model in which the share is the same for all channels, and against
# the standard stream, with at least five paired seeds at 24 layers. If the intervals contain 0 and stay within a margin
# set beforehand, the channels, or the look back as a whole, buy nothing at this size.
# ### END SOLUTION
