"""Wrong answers to the assignments' tasks, and other right ones, as edits of the solutions.

test_assignments.py runs them. A `Wrong` says what a student got wrong and which check must notice: "visible", the one
in the student's notebook, or "hidden" (then the visible one must let it pass: it is why the hidden one is there).
`edit` is the whole text between the first ### BEGIN SOLUTION and ### END SOLUTION, without its indentation, or a dict
of replacements in the solution's cell, made in order, each of a text that occurs there exactly once.
"""

from typing import NamedTuple


class Wrong(NamedTuple):
    why: str
    caught: str  # visible or hidden
    edit: str | dict[str, str]


def lines(*parts: str) -> str:
    return "\n".join(parts)


A1 = {
    "softmax": [
        Wrong("overflows for large scores", "hidden", {"(z - z.amax(-1, keepdim=True)).exp()": "z.exp()"}),
        Wrong("subtracts the largest score of all rows", "hidden", {"z.amax(-1, keepdim=True)": "z.max()"}),
        Wrong("shares over the first axis", "visible", {"e.sum(-1, keepdim=True)": "e.sum(0, keepdim=True)"}),
        Wrong("calls torch's own", "visible", "return torch.softmax(z, -1)"),
    ],
    "rms_norm": [
        Wrong("ε outside of the root", "hidden", {" + eps).sqrt()": ").sqrt() + eps)", "x / (x.sq": "x / ((x.sq"}),
        Wrong(
            "the mean runs over tokens as well", "hidden", {"mean(-1, keepdim=True)": "mean((-2, -1), keepdim=True)"}
        ),
        Wrong("forgets the gain", "visible", {" * gain": ""}),
        Wrong(
            "subtracts the mean, as LayerNorm does",
            "visible",
            lines(
                "x = x - x.mean(-1, keepdim=True)", "return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain"
            ),
        ),
    ],
    "rotate": [
        Wrong(
            "turns neighbouring channels",
            "hidden",
            {
                "a, b = x[..., : h // 2], x[..., h // 2 :]": "a, b = x[..., 0::2], x[..., 1::2]",
                "torch.cat((": "torch.stack((",
                " + a * angle.sin()), -1)": " + a * angle.sin()), -1).flatten(-2)",
            },
        ),
        Wrong(
            "turns the other way",
            "visible",
            {"- b * angle.sin()": "+ b * angle.sin()", "+ a * angle.sin()": "- a * angle.sin()"},
        ),
        Wrong("ignores start", "hidden", {"torch.arange(start, start + T,": "torch.arange(0, T,"}),
        Wrong("speeds fall half as fast", "hidden", {" * 2 / h": " / h"}),
    ],
    "attend": [
        Wrong("does not scale the scores", "hidden", {" / math.sqrt(h)": ""}),
        Wrong("takes the queries for the first positions", "hidden", {"S - T + 1": "1"}),
        Wrong("sees the future", "visible", {".masked_fill(future, -math.inf)": ""}),
        Wrong("does not see itself", "visible", {"S - T + 1": "S - T"}),
    ],
    "attention": [
        Wrong(
            "cuts heads out of the tokens",
            "hidden",
            {"part.unflatten(-1, (heads, -1)).transpose(1, 2)": "part.reshape(x.shape[0], heads, x.shape[1], -1)"},
        ),
        Wrong("rotates the values, too", "visible", {"rotate(k), v)": "rotate(k), rotate(v))"}),
        Wrong("forgets the positions", "visible", {"attend(rotate(q), rotate(k), v)": "attend(q, k, v)"}),
    ],
    "mlp": [
        Wrong("gates with up", "visible", {"gate / (1 + (-gate).exp()) * up": "up / (1 + (-up).exp()) * gate"}),
        Wrong("a sigmoid in place of silu", "visible", {"gate / (1": "1 / (1"}),
        Wrong("takes gate and up in turns", "hidden", {".chunk(2, -1)": ".unflatten(-1, (-1, 2)).unbind(-1)"}),
    ],
    "transformer": [
        Wrong("the MLP replaces the stream", "visible", {"stream = stream + mlp(": "stream = mlp("}),
        Wrong("always one layer", "hidden", {"for event in range(events)": "for event in range(2)"}),
        Wrong("no norm before the head", "visible", {'rms_norm(stream, weights["norm.gain"]) @': "stream @"}),
    ],
    "greedy": [
        Wrong("reads everything again for each token", "hidden", {"model(new, cache)": "model(tokens)"}),
        Wrong("looks at the first position", "visible", {"[:, -1].argmax": "[:, 0].argmax"}),
        Wrong("gives the cache what it holds already", "visible", {"model(new, cache)": "model(tokens, cache)"}),
        Wrong(
            "calls the package's generate",
            "visible",
            lines("from minihaares.model import generate", "return generate(model, tokens, count, temperature=0)"),
        ),
    ],
    "count_parameters": [
        Wrong("counts the head again", "visible", {"return vocab * width": "return 2 * vocab * width"}),
        Wrong("forgets the gate", "visible", {"3 * width * ff": "2 * width * ff"}),
        Wrong(
            "counts three norms at any depth",
            "hidden",
            {
                "4 * width * width + width": "4 * width * width",
                "3 * width * ff + width": "3 * width * ff",
                "mlp_and_norm) + width": "mlp_and_norm) + 3 * width",
            },
        ),
    ],
}

A2 = {
    "vocabulary": [
        Wrong(
            "ties in order of appearance", "hidden", 'return "".join(c for c, _ in Counter(text).most_common(size - 4))'
        ),
        Wrong("leaves no room for special ids", "visible", {"[: size - 4]": "[:size]"}),
        Wrong("alphabetical", "visible", {"(-counts[c], c)": "c"}),
    ],
    "encode_decode": [
        Wrong("ids from 0", "visible", {"start=4": "start=0"}),
        Wrong(
            "drops unknown characters",
            "hidden",
            {
                "ids.get(character, UNK)": "ids[character]",
                "for character in text]": "for character in text if character in ids]",
            },
        ),
        Wrong("decodes special ids as characters", "hidden", {" if i not in (PAD, BOS, EOT)": ""}),
    ],
    "chunks": [
        Wrong("keeps a remainder of one", "hidden", {"len(piece) > 1 or size == 1": "piece"}),
        Wrong("drops every remainder", "visible", {"len(piece) > 1 or size == 1": "len(piece) == size"}),
        Wrong("chunks overlap by one", "visible", {"len(ids), size)": "len(ids), size - 1)"}),
    ],
    "bigram": [
        Wrong("joint probabilities", "visible", {"counts.sum(1, keepdims=True)": "counts.sum()"}),
        Wrong("normalises over the last id", "visible", {"counts.sum(1,": "counts.sum(0,"}),
        Wrong(
            "counts a repeated pair once",
            "visible",
            {"np.add.at(counts, (ids[:-1], ids[1:]), 1)": "counts[ids[:-1], ids[1:]] += 1"},
        ),
        Wrong("knows only ids that occur", "hidden", {"np.ones((vocab, vocab))": "np.ones((max(ids) + 1,) * 2)"}),
    ],
    "bigram_loss": [
        Wrong("bits", "visible", {"math.log(": "math.log2("}),
        Wrong("divides by the number of ids", "visible", {"/ len(costs)": "/ len(ids)"}),
        Wrong("predicts padding", "hidden", {" if b != PAD": ""}),
        Wrong("last and next change places", "hidden", {"table[a, b]": "table[b, a]"}),
    ],
    "bits_per_byte": [
        Wrong("per character", "hidden", {'len(text.encode("utf-8"))': "len(text)"}),
        Wrong("nats per byte", "visible", {" / math.log(2)": ""}),
        Wrong("forgets the number of tokens", "visible", {" * tokens": ""}),
    ],
    "floor": [
        Wrong(
            "a mean of ratios",
            "hidden",
            lines(
                "from itertools import product",
                "total = 0.0",
                "for way in product(*choices):",
                "    p = math.prod(q for _, q in way)",
                "    if p:",
                "        total -= p * math.log(p) / (sum(len(text) for text, _ in way) + 1)",
                "return total",
            ),
        ),
        Wrong("the end is not predicted", "visible", {"(length + 1)": "length"}),
        Wrong("log 0", "hidden", {" if p > 0": ""}),
    ],
    "surprisals": [
        Wrong(
            "counts candidates",
            "hidden",
            {"sum(p for text, p in candidates.items() if": "sum(1 for text, p in candidates.items() if"},
        ),
        Wrong(
            "all of it on the first character",
            "hidden",
            "return [-math.log(candidates[taken])] + [0.0] * (len(taken) - 1)",
        ),
        Wrong("forgets what is known already", "visible", {"mass(taken[:end]) /": "1 /"}),
    ],
    "two_readers": [
        Wrong("pays for each mention", "hidden", {"in set(sentence)": "in sentence"}),
        Wrong("both remember", "visible", {"return remembers, forgets": "return remembers, remembers"}),
        Wrong("the other way round", "visible", {"return remembers, forgets": "return forgets, remembers"}),
    ],
}

A3 = {
    "recovery": [
        Wrong("forgets to halve", "visible", lines("E_from = C + D", "F_from = C - D")),
        Wrong("halves exchanged", "visible", lines("E_from = (C - D) / 2", "F_from = (C + D) / 2")),
        Wrong("the numbers of the example", "hidden", "E_from, F_from = sp.Integer(7), sp.Integer(3)"),
    ],
    "twin": [
        Wrong(
            "exchanges the last two", "hidden", {"other[[0, 1]] = other[[1, 0]]": "other[[-2, -1]] = other[[-1, -2]]"}
        ),
        Wrong(
            "exchanges across the halves",
            "visible",
            {"other[[0, 1]] = other[[1, 0]]": "other[[0, -1]] = other[[-1, 0]]"},
        ),
        Wrong("changes its argument", "visible", {"u.copy()": "u"}),
        Wrong("gives the same block", "visible", "return u.copy()"),
    ],
    "forgotten": [
        Wrong("less than nothing for a single event", "hidden", {"max(m - 2, 0)": "(m - 2)"}),
        Wrong("forgets the width", "hidden", "return m - 1, max(m - 2, 0)"),
        Wrong("what is kept", "visible", "return d, 2 * d"),
    ],
    "coefficients": [
        Wrong("forgets the scale", "hidden", "early_coefficient, late_coefficient = w_C + w_D, w_C - w_D"),
        Wrong("signs exchanged", "hidden", "early_coefficient, late_coefficient = w_C - a * w_D, w_C + a * w_D"),
        Wrong(
            "halves the sum", "visible", "early_coefficient, late_coefficient = w_C / 2 + a * w_D, w_C / 2 - a * w_D"
        ),
    ],
    "gap": [
        Wrong("a form that says nothing", "visible", "gap = (w_C + a * w_D) ** 2 - (w_C - a * w_D) ** 2"),
        Wrong("half of it", "hidden", "gap = 2 * a * w_C * w_D"),
        Wrong("something else that is never negative", "hidden", "gap = w_C**2 + a**2 * w_D**2"),
    ],
    "weights_for": [
        Wrong("no budget", "hidden", {" and w_C + w_D <= 1 + 1e-12": ""}),
        Wrong("forgets the scale", "hidden", {"/ (2 * a)": "/ 2"}),
        Wrong("negative weights", "visible", {"min(w_C, w_D) >= 0 and ": ""}),
        Wrong("looks at the detail's weight alone", "hidden", {"min(w_C, w_D)": "w_D"}),
    ],
    "lift": [
        Wrong("linear in b", "hidden", "lift = sp.log(2) + b"),
        Wrong("log 2 at any b", "hidden", "lift = sp.log(2)"),
        Wrong("forgets the logarithm", "visible", "lift = 1 + sp.exp(b)"),
    ],
    "jacobian": [
        Wrong(
            "forgets the outer share",
            "visible",
            {"w[s] * ((1 if s == r else 0) - w[r])": "(1 if s == r else 0) - w[r]"},
        ),
        Wrong("the square of one share", "hidden", {"- w[r])": "- w[s])"}),
        Wrong("two slots only", "hidden", lines("x = w[0] * w[1]", "return sp.Matrix([[x, -x], [-x, x]])")),
    ],
    "mean_sources": [
        Wrong("an active slot before the first write", "visible", "mean_sources = 1 + g * (N - 1) / 2 + g"),
        Wrong("forgets the embedding", "visible", "mean_sources = g * (N - 1) / 2 + g * (1 - N / (2 * L))"),
        Wrong("two sources a block", "hidden", "mean_sources = 1 + (N - 1) + 2 * (1 - N / (2 * L))"),
        Wrong("the number of the example", "hidden", "mean_sources = sp.Rational(71, 12)"),
    ],
}

A4 = {
    "half_signs": [
        Wrong("the extra event is late", "hidden", {"(m + 1) // 2": "m // 2"}),
        Wrong("signs in turn", "visible", "return [1 if i % 2 == 0 else -1 for i in range(m)]"),
    ],
    "write_pair": [
        Wrong(
            "changes the old pair",
            "hidden",
            {
                "return u, sign": "return u.clone(), sign",
                "return C + u, D + sign * u": "C += u; D += sign * u; return C, D",
            },
        ),
        Wrong("the detail is the sum", "visible", {"D + sign * u": "D + u"}),
        Wrong("the first event is always early", "hidden", {"return u, sign * u": "return u, u"}),
    ],
    "matched": [
        Wrong("a gradient through the scale", "hidden", {".detach()": ""}),
        Wrong("an RMS over tokens", "hidden", {"mean(-1, keepdim=True)": "mean((-2, -1), keepdim=True)"}),
        Wrong("no clip", "hidden", {".clamp(1 / gamma, gamma)": ""}),
        Wrong("a clip from above alone", "hidden", {".clamp(1 / gamma, gamma)": ".clamp(max=gamma)"}),
        Wrong("upside down", "visible", {"rms_C / (rms_D + eps)": "rms_D / (rms_C + eps)"}),
        Wrong("calls the package's own", "visible", "return depth_read.matched(C, D, gamma, eps)"),
    ],
    "first_contrast": [
        Wrong("reads what it writes itself", "visible", {"return k + 2 if k + 2 <= m": "return k + 1 if k + 1 <= m"}),
        Wrong("an event outside of the block", "hidden", {" if k + 2 <= m else None": ""}),
    ],
    "visible_sources": [
        Wrong("details as they were written", "hidden", {"matched(C, D)": "D"}),
        Wrong(
            "an empty active pair",
            "visible",
            {"finished if active is None else (*finished, active)": "(*finished, active or [0 * embedding] * 2)"},
        ),
        Wrong("no active block", "visible", {"finished if active is None else (*finished, active)": "finished"}),
        Wrong(
            "the active detail is left out",
            "visible",
            lines(
                "pairs = finished if active is None else (*finished, active)",
                "found = [embedding, *(source for C, D in pairs for source in (C, matched(C, D)))]",
                "return found if active is None else found[:-1]",
            ),
        ),
    ],
    "depth_scores": [
        Wrong("forgets the gain", "hidden", {" * gain": ""}),
        Wrong("a bias for all", "visible", {"(bias if detail else 0.0)": "bias"}),
        Wrong("keys are not normalised", "visible", {"v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()": "v"}),
        Wrong("scaled as in attention", "visible", {"unit @ query": "unit @ query / len(query) ** 0.5"}),
    ],
    "mixture": [
        Wrong("shares over the tokens", "visible", {"torch.softmax(scores, 0)": "torch.softmax(scores, -1)"}),
        Wrong("adds the newest source", "visible", {".sum(0)": ".sum(0) + sources[-1]"}),
        Wrong(
            "the same shares for all tokens",
            "hidden",
            {"torch.softmax(scores, 0)": "torch.softmax(scores, 0).mean((1, 2), keepdim=True).expand_as(scores)"},
        ),
    ],
    "bias_gradient": [
        Wrong("forgets the mixture", "visible", {" - (w @ v) @ g": ""}),
        Wrong("a mean over the details", "hidden", {".sum()": ".mean()"}),
        Wrong("the last detail alone", "hidden", {".sum()": "[-1]"}),
    ],
    "MyHaares": [
        Wrong(
            "details in the final read",
            "hidden",
            {"[embedding, *(C for C, _ in finished)]": "visible_sources(embedding, finished, None)"},
        ),
        Wrong("a block is never finished", "hidden", {"sum(lengths[: n + 1]) - 1": "sum(lengths[: n + 1])"}),
        Wrong(
            "halves of the whole depth",
            "hidden",
            {"[sign for m in lengths for sign in half_signs(m)]": "half_signs(sum(lengths))"},
        ),
        Wrong("the embedding gets the bias", "visible", {"place > 0 and place % 2 == 0": "place % 2 == 0"}),
        Wrong("one query for all", "visible", {"self.query[event]": "self.query[0]"}),
    ],
}

A5 = {
    "difference": [
        Wrong("looks at the first run's settings", "hidden", {"one.keys() | other.keys()": "one.keys()"}),
        Wrong("looks at common settings", "hidden", {"one.keys() | other.keys()": "one.keys() & other.keys()"}),
        Wrong(
            "takes None for missing",
            "hidden",
            {"one.get(name, missing) != other.get(name, missing)": "one.get(name) != other.get(name)"},
        ),
        Wrong("the settings that agree", "visible", {") != other": ") == other"}),
    ],
    "plan": [
        Wrong(
            "changes the base",
            "hidden",
            lines(
                "pairs = []",
                "for seed in seeds:",
                '    base["seed"] = seed',
                "    pairs.append((base, {**base, **change}))",
                "return pairs",
            ),
        ),
        Wrong("the base keeps its own seed", "hidden", {'({**base, "seed": seed},': "(dict(base),"}),
        Wrong("changes both runs", "visible", {'({**base, "seed": seed},': '({**base, **change, "seed": seed},'}),
        Wrong("an own seed for each run", "visible", {'**change, "seed": seed}': '**change, "seed": seed + 1}'}),
    ],
    "unequal_start": [
        Wrong(
            "compares in order, not by name",
            "hidden",
            lines(
                "pairs = zip(one.named_parameters(), other.named_parameters(), strict=False)",
                "return sorted(name for (name, p), (_, q) in pairs if not torch.equal(p, q))",
            ),
        ),
        Wrong(
            "takes small differences for none",
            "hidden",
            {"not torch.equal(first[name], second[name])": "(first[name].mean() - second[name].mean()).abs() > 1e-4"},
        ),
        Wrong(
            "compares shapes alone",
            "visible",
            {"not torch.equal(first[name], second[name])": "first[name].shape != second[name].shape"},
        ),
    ],
    "experiment": [
        Wrong(
            "numbers that no run gave",
            "hidden",
            lines(
                'CHANGE, SEEDS = {"detail": "half"}, [42, 123, 2026]',
                "runs = [settings for pair in plan(BASE, CHANGE, SEEDS) for settings in pair]",
                'results = [{**settings, "loss": 3.0 + 0.01 * i} for i, settings in enumerate(runs)]',
            ),
        ),
        Wrong(
            "one number for all",
            "hidden",
            lines(
                'CHANGE, SEEDS = {"detail": "half"}, [42, 123, 2026]',
                'results = [{**run, "loss": 3.0} for pair in plan(BASE, CHANGE, SEEDS) for run in pair]',
            ),
        ),
        Wrong(
            "one seed",
            "visible",
            lines(
                'CHANGE, SEEDS = {"detail": "half"}, [42]',
                'results = [{**run, "loss": 3.0} for pair in plan(BASE, CHANGE, SEEDS) for run in pair]',
            ),
        ),
        Wrong(
            "a second change beside the first",
            "visible",
            lines(
                'CHANGE, SEEDS = {"detail": "half"}, [1, 2, 3]',
                'runs = [run for pair in plan(BASE, {"detail": "half", "lr": 1e-2}, SEEDS) for run in pair]',
                'results = [{**run, "loss": 3.0 + 0.01 * i} for i, run in enumerate(runs)]',
            ),
        ),
    ],
    "paired": [
        Wrong("base minus changed", "visible", {"changed[seed] - base[seed]": "base[seed] - changed[seed]"}),
        Wrong(
            "the spread of the losses",
            "hidden",
            {"statistics.stdev(gaps)": "statistics.stdev([*base.values(), *changed.values()])"},
        ),
        Wrong("n in the variance", "hidden", {"statistics.stdev": "statistics.pstdev"}),
        Wrong(
            "pairs by position",
            "hidden",
            {
                "changed[seed] - base[seed]": "c - b",
                "for seed in sorted(base)": "for b, c in zip(base.values(), changed.values())",
            },
        ),
    ],
    "interval": [
        Wrong("1.96 for three seeds", "hidden", {"float(stats.t.ppf(0.975, len(gaps) - 1))": "1.96"}),
        Wrong("n degrees of freedom", "hidden", {"0.975, len(gaps) - 1": "0.975, len(gaps)"}),
        Wrong("95 % on one side", "hidden", {"0.975": "0.95"}),
        Wrong(
            "the upper end first",
            "visible",
            {"(gaps) - reach": "(gaps) + reach", "(gaps) + reach\n": "(gaps) - reach\n"},
        ),
    ],
    "sign_flip": [
        Wrong("one side", "visible", {"found = abs(sum(gaps))": "found = -sum(gaps)", "abs(sum(s *": "(sum(s *"}),
        Wrong("does not count itself", "visible", {">= found - 1e-12 * len(gaps)": "> found + 1e-12"}),
        Wrong("lets rounding decide", "hidden", {" - 1e-12 * len(gaps)": ""}),
    ],
    "verdict": [
        Wrong("not shown is shown not", "visible", {'if -margin < low and high < margin else "undecided"': ""}),
        Wrong("looks at one side of the margin", "hidden", {"-margin < low and high < margin": "high < margin"}),
        Wrong("a loss counts only beyond the margin", "hidden", {"if low > 0": "if low > margin"}),
        Wrong("higher is better", "visible", {'"better"': '"worse"', '"worse"\n    return': '"better"\n    return'}),
    ],
}

A6 = {
    "leaks": [
        Wrong(
            "changes the last token alone",
            "hidden",
            lines(
                "changed = tokens.clone()",
                "changed[:, -1] = (changed[:, -1] + 1) % vocab",
                "return bool((model(changed)[:, :-1] - model(tokens)[:, :-1]).abs().max() > 1e-9)",
            ),
        ),
        Wrong("a small leak is none", "hidden", {"> 1e-9": "> 1e-3"}),
        Wrong("looks at the first position alone", "hidden", {"[:, :t] - logits[:, :t]": "[:, :1] - logits[:, :1]"}),
        Wrong(
            "counts a token's own position", "visible", {"[:, :t] - logits[:, :t]": "[:, : t + 1] - logits[:, : t + 1]"}
        ),
    ],
    "cache_agrees": [
        Wrong(
            "a new cache for each token",
            "visible",
            {"model(tokens[:, [t]], cache)": "model(tokens[:, [t]], KVCache(1))"},
        ),
        Wrong(
            "compares the last position",
            "hidden",
            {"torch.cat(steps, 1) - model(tokens)": "steps[-1] - model(tokens)[:, -1:]"},
        ),
        Wrong(
            "compares the first sequence",
            "hidden",
            {"(torch.cat(steps, 1) - model(tokens))": "(torch.cat(steps, 1) - model(tokens))[0]"},
        ),
    ],
    "Gated": [
        Wrong("one gate for all", "hidden", {"self.gates[event]": "self.gates[0]"}),
        Wrong(
            "the gate is not learned",
            "hidden",
            {"nn.Parameter(torch.full((events,), start))": "torch.full((events,), start)"},
        ),
        Wrong(
            "gates the stream",
            "visible",
            {"state + self.gates[event] * output": "self.gates[event] * (state + output)"},
        ),
    ],
    "Averages": [
        Wrong("starts with equal weights", "visible", {"start[-1] = 1": "start[:] = 1 / len(start)"}),
        Wrong(
            "remembers the averages",
            "hidden",
            {
                "return sum(weight": "y = sum(weight",
                "strict=True)), layers": "strict=True)); return y, (*layers[:-1], y)",
            },
        ),
        Wrong("the weights are not learned", "hidden", {"nn.ParameterList(starts)": "starts"}),
    ],
    "MyHiRes": [
        Wrong("writes the last output alone", "hidden", {"outer + inner @": "outer + output @"}),
        Wrong(
            "norms what is written, not the sum",
            "hidden",
            {"rms_norm(outer + inner": "outer + rms_norm(inner"},
        ),
        Wrong(
            "the last group is not written",
            "hidden",
            {"if place < self.size - 1:": "if place < self.size - 1 or group == len(self.gains) - 1:"},
        ),
        Wrong("the embedding twice", "hidden", {"torch.zeros_like(embedding)": "embedding"}),
        Wrong("sublayers read the wide stream", "visible", {"return state[1], state\n": "return state[0], state\n"}),
    ],
    "Mine": [
        Wrong("does not start as the standard model", "visible", {"torch.zeros(events": "torch.ones(events"}),
        Wrong(
            "a parameter without use",
            "visible",
            {"super().__init__()": "super().__init__(); self.unused = nn.Parameter(torch.zeros(1))"},
        ),
        Wrong("sees the future", "visible", {"1] * last,": "1] * last.mean(1, keepdim=True),"}),
        Wrong(
            "remembers on self",
            "visible",
            {"return state[0] + output, output": "self.last = output; return state[0] + output, output"},
        ),
        Wrong("one width alone", "hidden", {"events - 1, width)": "events - 1, 8)"}),
    ],
}

WRONG = {
    "A1_transformer": A1,
    "A2_text": A2,
    "A3_sums_and_differences": A3,
    "A4_read_and_write": A4,
    "A5_ablation": A5,
    "A6_behind_the_seam": A6,
}

# Other right answers: the checks must not insist on the form of the solution.
RIGHT: dict[str, dict[str, list[str]]] = {
    "A1_transformer": {
        "softmax": [lines("e = torch.exp(z - torch.logsumexp(z, -1, keepdim=True))", "return e")],
        "rms_norm": [
            "return x * torch.rsqrt(torch.einsum('...i,...i->...', x, x)[..., None] / len(gain) + eps) * gain"
        ],
        "count_parameters": [lines("d = width", "return d * (vocab + 1 + layers * (4 * d + 3 * ff + 2))")],
    },
    "A2_text": {
        "chunks": [
            lines(
                "rest = len(ids) % size",
                "if rest == 1:",
                "    ids = ids[:-1]",
                "elif rest:",
                "    ids = [*ids, *[PAD] * (size - rest)]",
                "return [ids[i : i + size] for i in range(0, len(ids), size)]",
            )
        ],
    },
    "A3_sums_and_differences": {
        "recovery": [
            lines("E_from = D + (C - D) / 2", "F_from = C - (C + D) / 2"),
            lines("E_from = 0.5 * C + 0.5 * D", "F_from = C - E_from"),
        ],
        "twin": [lines("other = u.copy()", "other[0] += 1", "other[1] -= 1", "return other")],
        "coefficients": [
            lines("early_coefficient = a * (w_C / a + w_D)", "late_coefficient = 2 * w_C - early_coefficient")
        ],
        "gap": [
            "gap = 4 * a * w_C * w_D",
            "gap = sp.factor(((w_C + a * w_D) ** 2 - (w_C - a * w_D) ** 2) / 2) * 2",
            "gap = sp.sqrt(16 * a**2 * w_C**2 * w_D**2)",
        ],
        "lift": [
            "lift = b + sp.log(1 + sp.exp(-b))",
            "lift = b / 2 + sp.log(2 * sp.cosh(b / 2))",
            lines("b = sp.Symbol('b')", "lift = -sp.log(1 - 1 / (1 + sp.exp(-b)))"),
        ],
        "jacobian": [lines("w = sp.Matrix(w)", "return sp.diag(*w) - w * w.T")],
        "mean_sources": [
            "mean_sources = 1 + g * (N + 1) / 2 - g * N / (2 * L)",
            "mean_sources = (2 * L + g * L * (N + 1) - g * N) / (2 * L)",
            lines(
                "r = sp.Symbol('r')",
                "m = 2 * L / N",
                "mean_sources = 1 + g * sp.summation(r - 1, (r, 1, N)) / N + g * (m - 1) / m",
            ),
        ],
    },
    "A4_read_and_write": {
        "matched": [
            lines(
                "with torch.no_grad():",
                "    a = C.norm(dim=-1, keepdim=True) / D.shape[-1] ** 0.5",
                "    a = (a / (D.square().mean(-1, keepdim=True).sqrt() + eps)).clip(1 / gamma, gamma)",
                "return a * D",
            )
        ],
        "bias_gradient": [
            lines("m = torch.tensor(details)", "share = w[m].sum()", "return (w[m] @ v[m] - share * (w @ v)) @ g")
        ],
    },
    "A5_ablation": {
        "difference": [
            "return [k for k in sorted({*one, *other}) if (k in one, one.get(k)) != (k in other, other.get(k))]"
        ],
        "interval": [lines("e = stats.sem(gaps)", "return stats.t.interval(0.95, len(gaps) - 1, np.mean(gaps), e)")],
    },
}
