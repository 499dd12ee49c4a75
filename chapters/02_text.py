# %% [markdown]
# # 02 · Text: what is a token, what is a record, and how low can the loss go?
#
# Before a model sees anything, somebody has decided what one token is, what one piece of text is, and what happens to
# the rest. These decisions move the loss more than most architectures do, so this chapter takes them one by one: it
# builds two tokenizers and holds them to the package, cuts text into records, and sets up two measures to judge a loss
# by. One is what plain counting can do. The other is the lowest loss there can be, which nobody knows for real text,
# but which is known exactly for the stories that come with this book.
#
# > **You will build** a character tokenizer, byte-pair encoding, chunks of records, an n-gram model, and the exact
# > surprisal of every character of a story.
# >
# > **You will learn** why losses of different tokenizers cannot be compared as they are, how a wrong idea of a "line"
# > throws away almost all text, and how a loss below the floor proves a mistake.
# >
# > **You need** Python and logarithms. Chapter 01 is not needed.
# >
# > **Runs in** about 15 seconds on 2 cores, without a network.

# %%
import json
import math
import re
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tokenizers

from minihaares import plots, stories
from minihaares.data import BOS, EOT, PAD, UNK, DataConfig, DataError, load_corpus, train_bpe, train_char

plots.use_style()
scratch = tempfile.TemporaryDirectory()  # for what this chapter writes; gone when it is closed
written = stories.write_stories(2_000, seed=42)  # runs in this book use 20,000
held_out = stories.write_stories(200, seed=43)
texts, unread = [story.text for story in written], [story.text for story in held_out]
print(texts[0])

# %% [markdown]
# That is one of the **built-in stories**. Each is made by a small grammar of choices: who it is about, what happens,
# which toy, what colour. More about the grammar below; for now it is just text.
#
# ## The price of a guess
#
# A language model gives a probability to each thing that may come next. If it gave $p$ to what came, it pays
# $-\log p$, its **surprisal**, in **nats** since the logarithm is the natural one. Certainty costs nothing, a coin
# $\log 2 \approx 0.693$, one of 57 equally likely characters $\log 57 \approx 4.04$. The **loss** is the mean price of
# a token. Surprisals of successive guesses add up, because probabilities multiply:
#
# $$-\log p(\text{text}) = \sum_t -\log p(x_t \mid x_1 \dots x_{t-1}).$$

# %%
alternating = "abababab"
even = [0.5 for _ in alternating]  # somebody who believes in coins
knows = [0.5] + [1.0] * 7  # somebody who knows the rule, but not which letter comes first
for name, shares in (("coins", even), ("the rule", knows)):
    prices = [-math.log(p) for p in shares]
    print(f"{name:9s} {sum(prices):.3f} nats for the text, {sum(prices) / len(prices):.3f} a character")


# %% [markdown]
# ## A token can be a character
#
# The HAARES paper's first tokenizer is the simplest one can think of: 256 entries, of which four are special and the
# others are the 252 most frequent characters of the training text. In plain lines, with ties going to the smaller code
# point:

# %%
def character_table(texts, entries=256):
    counts = Counter("".join(texts))
    frequent = sorted(counts, key=lambda c: (-counts[c], c))[: entries - 4]
    return {c: number for number, c in enumerate(frequent, start=4)}


def encode(text, table):
    return [table.get(c, UNK) for c in text]


table = character_table(["a rose is a rose"])
print(table)
print(encode("a sea", table))

# %% [markdown]
# The four special ids come first and mean the same in every tokenizer of this book: 0 fills up short rows (PAD), 1
# stands for a character that the table lacks (UNK), 2 begins a record (BOS), and 3 ends it (EOT). Is the package's
# tokenizer the same thing? Same table, same ids for text it has never seen, and back again:

# %%
table, tokenizer = character_table(texts), train_char(texts)
assert tokenizer.characters == "".join(table)
assert all(encode(text, table) == tokenizer.encode(text).tolist() for text in unread)
assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in unread)
print(f"equal: {len(table)} characters and 4 special entries, {tokenizer.vocab_size} in all")

french = "Où est le château?"
print("unseen:", tokenizer.unseen(french), " written and read back:", tokenizer.decode(tokenizer.encode(french)))

# %% [markdown]
# The stories have fewer than 252 different characters, so the table is not full; neither would it be on TinyStories. An
# unseen character becomes UNK and is lost for good. With a table of 20 entries much would be:

# %%
for entries in (256, 40, 20):
    small = train_char(texts, entries)
    lost = np.mean([np.mean(small.encode(text) == UNK) for text in unread])
    print(f"{small.vocab_size:3d} entries: {lost:.3f} of the characters become UNK")


# %% [markdown]
# ## A token can be more: byte pairs
#
# **Byte-pair encoding** (BPE) starts from single letters and, again and again, joins the pair of neighbours that occurs
# most often into one new token. By hand, on `low low lower lowest`, with `·` for the space that a word begins with: the
# pairs `l o` and `o w` come four times each, `· l` three times. Ties must go somewhere; we take the pair whose
# tokens are older. So the first merge is `l o`, the second `lo w`, and then `· low`.
#
# Two functions are enough. Text is first cut into words, spaces in front, since merges should not reach across words.

# %%
WORD = re.compile(r"'s| ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+")  # enough of GPT-2's rule for text like ours


def join(parts, pair):  # ["l", "o", "w"], ("l", "o") -> ["lo", "w"]
    joined = []
    for part in parts:
        if joined and (joined[-1], part) == pair:
            joined[-1] += part
        else:
            joined.append(part)
    return joined


# %%
def learn_merges(texts, most):
    words = Counter(word.replace(" ", "·") for text in texts for word in WORD.findall(text))
    parts = {word: list(word) for word in words}
    age = {letter: i for i, letter in enumerate(sorted(set("".join(words))))}  # letters first, by code point
    merges = []
    for _ in range(most):
        pairs = Counter()
        for word, times in words.items():
            for pair in zip(parts[word], parts[word][1:], strict=False):
                pairs[pair] += times
        if not pairs:  # every word is one token
            break
        merges.append(max(pairs, key=lambda pair: (pairs[pair], -age[pair[0]], -age[pair[1]])))
        age["".join(merges[-1])] = len(age)
        parts = {word: join(parts[word], merges[-1]) for word in words}
    return merges


# %%
print(learn_merges(["low low lower lowest"], 5))


# %% [markdown]
# The package hands this work to the `tokenizers` library, which is written in Rust, works on bytes instead of letters
# (so that no text is ever unknown) and shows a space as `Ġ`. Does it find the same merges, all of them, in the same
# order?

# %%
def package_merges(bpe):
    return [tuple(pair) for pair in json.loads(bpe.to_json())["tokenizer"]["model"]["merges"]]


ours, bpe = learn_merges(texts, 1_500), train_bpe(texts, 4 + 256 + 1_500)
assert [(a.replace("·", "Ġ"), b.replace("·", "Ġ")) for a, b in ours] == package_merges(bpe)
print(f"equal: all {len(ours)} merges; then every word of the text is one token, and there is nothing left to join")
print("the first:", " ".join(a + b for a, b in ours[:14]))

# %% [markdown]
# To encode a word, apply the merges in the order in which they were learned. The vocabulary is 4 special entries, 256
# bytes, and one entry a merge; so 300 merges make a tokenizer of 560 entries.

# %%
few = train_bpe(texts, 560)
sentence = unread[0][:80]
pieces = []
for word in WORD.findall(sentence):
    parts = list(word.replace(" ", "·"))
    for pair in ours[:300]:
        parts = join(parts, pair)
    pieces += parts
assert [few.decode([i]) for i in few.encode(sentence)] == [piece.replace("·", " ") for piece in pieces]
print("560 entries:  ", "|".join(pieces))
print("1,472 entries:", "|".join(bpe.decode([i]).replace(" ", "·") for i in bpe.encode(sentence)))
assert bpe.vocab_size == 1_472


# %% [markdown]
# Frequent words are one token, rarer ones fall into pieces, and most tokens carry their space in front.
#
# ### A wrong turn: the smaller loss per token
#
# Now give each tokenizer the simplest of models, one that knows how often each token occurs and nothing else. (One is
# added to each count, so that no token is impossible.) Which one is best?

# %%
def unigram(tokenizer):  # held-out nats for all of `unread`, and the number of tokens
    read, new = (np.concatenate(tokenizer.encode_batch(part)) for part in (texts, unread))
    counts = np.bincount(read, minlength=tokenizer.vocab_size) + 1
    return -np.log(counts / counts.sum())[new].sum(), len(new)


characters = sum(map(len, unread))
rows = []
print("entries   characters a token   nats a token   nats a character")
for candidate in (tokenizer, train_bpe(texts, 320), few, bpe):
    nats, tokens = unigram(candidate)
    rows.append((nats / tokens, nats / characters))
    print(f"{candidate.vocab_size:7d} {characters / tokens:20.3f} {nats / tokens:14.3f} {nats / characters:18.3f}")
per_token, per_character = zip(*rows, strict=True)
assert per_token[0] == min(per_token) and per_character[0] == max(per_character)

# %% [markdown]
# Per token, characters seem to win by far. Per character, they lose just as clearly: the same text costs less in
# larger tokens, though none of these is easier to guess than a character. The price of a *text* is what counts, for
# the text stays the same however we slice it. So a loss per token says nothing without its tokenizer. Compare nats
# per character (or bits per byte), or compare only runs that share a tokenizer; and when you read that one model has
# a loss of 1.8 and another of 3.1, first look at the unit.
#
# ## Names that nobody would write
#
# Special tokens have names, and the names are text. What if they occur in the text itself? Data sets exist in which
# rare words were replaced by the five letters `<unk>`; WikiText is one. Here is a tokenizer whose special token has
# just that name, and then our own, on text that contains its special names letter for letter.

# %%
naive = tokenizers.Tokenizer(tokenizers.models.BPE())
naive.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
naive.train_from_iterator(
    texts,
    tokenizers.trainers.BpeTrainer(
        vocab_size=560, special_tokens=["<unk>"], initial_alphabet=alphabet, show_progress=False
    ),
)
print("naive:  ", naive.encode("a <unk> b").tokens)

tricky = "The end.<|endoftext|>And on."
library = tokenizers.Tokenizer.from_str(json.dumps(json.loads(few.to_json())["tokenizer"]))
print("library:", library.encode(tricky).tokens)
print("ours:   ", [few.decode([i]) for i in few.encode(tricky)])
assert EOT in library.encode(tricky).ids
assert few.decode(few.encode(tricky)) == tricky
assert all(EOT not in t.encode(tricky) for t in (few, tokenizer))

# %% [markdown]
# The naive one swallows a word that the author wrote. An unlikely name such as `<|endoftext|>` makes that rarer, and
# no more than that: with the library's default settings, any user who types the name ends the document. The package
# therefore takes both precautions. The names are unlikely, *and* text never becomes a special id: only code that asks
# for BOS or EOT by number gets it. So the thirteen letters survive as letters.
#
# ## A record, and what is left of it
#
# A model reads **chunks** of a fixed length: the context, plus one token since inputs and targets are shifted by one.
# Text comes in **records**: a story, a review, a function. Chunks never join two records; what is left of a record
# after its last whole chunk, the **remainder**, is dropped (or padded, which is what the package does with the built-in
# stories). By hand: a record of 1000 characters fills one chunk of 513, and 487 are dropped: 51.3 % kept. A record of
# 500 fills none.
#
# So it matters what a record is. Story files often have one sentence or paragraph on a line. Let us write ours
# that way, with a line `<|endoftext|>` after each story:

# %%
laid_out = [re.sub(r'([.!?]"?) ', r"\1\n", text) for text in texts]
folder = Path(scratch.name) / "laid-out"
folder.mkdir()
for split, part in (("train", laid_out[:1900]), ("valid", laid_out[1900:])):
    (folder / f"toy-{split}.txt").write_text("\n<|endoftext|>\n".join(part), encoding="utf-8")
print((folder / "toy-train.txt").read_text(encoding="utf-8")[:520])


# %%
def kept(lengths, size):  # share of the characters that stand in a whole chunk
    lengths = np.array(lengths)
    return (lengths // size * size).sum() / lengths.sum()


records = {
    "file": [sum(map(len, laid_out[:1900]))],
    "story": [len(text) for text in laid_out[:1900]],
    "line": [len(line) for text in laid_out[:1900] for line in text.split("\n")],
}
for record in ("story", "line"):
    for size in (33, 65, 257):
        config = DataConfig("local", data_dir=folder, record=record, context=size - 1, cache_dir=folder / "cache")
        try:
            theirs = load_corpus(config, progress=False).kept
            assert math.isclose(theirs, kept(records[record], size))
            print(f"a record is a {record}, chunks of {size:3d}: {theirs:.3f} of the characters kept")
        except DataError as error:
            assert kept(records[record], size) == 0
            print(f"a record is a {record}, chunks of {size:3d}: {error}")

# %%
sizes = np.unique(np.geomspace(8, 513, 120).astype(int))
fig, axis = plt.subplots()
for (record, lengths), place in zip(records.items(), ((60, 1.03), (34, 0.80), (17, 0.42)), strict=True):
    axis.plot(sizes, [kept(lengths, size) for size in sizes], label=record)
    axis.annotate(f"a record is a {record}", place, ha="left")
axis.set(xscale="log", xlabel="characters in a chunk", ylabel="share of the text kept", ylim=(0, 1.12))
axis.set_xticks([8, 16, 32, 64, 128, 257, 513], ["8", "16", "32", "64", "128", "257", "513"])
axis.minorticks_off()
axis.set_title("What a record is decides how much text is left")
plots.show(
    fig,
    alt="Share of the text that is kept against the length of a chunk, from 8 to 513 characters, when remainders are "
    "dropped. A whole file as the record keeps practically all. Stories keep above 90 percent for short chunks, then "
    "go up and down like a saw and fall to zero where a chunk is longer than the longest story. Lines keep nine tenths "
    "at 8 characters, three fifths at 32 and nothing from about 90 on.",
)

# %% [markdown]
# At a chunk of 513 these stories, which have 330 to 480 characters, keep nothing at all: for them the package pads
# instead. Real stories are longer. On a TinyStories sample of 5.6 million characters, which is not part of the book,
# chunks of 513 keep 72 % when a record is a story, and 0.6 % when it is a line of the file. The paper says that "text
# is processed line by line" in chunks of 513 (section 5.1). Taken literally, it would have thrown away 99 % of that
# text, and the little it kept would be the odd paragraph of more than 512 letters. So this book reads the paper's
# "line" as "record of the data set". That is a choice, `record` is an option, and every run prints the share it kept.
#
# ## What counting knows
#
# Is a loss of 1 nat a character good? To judge, build the best model that needs no learning: count. An **n-gram** of
# order $k$ looks at the last $k$ characters $h$ and asks what followed them in the training text, $n(hc)$ times the
# character $c$ out of $n(h)$. Long contexts are often new, so the counts are mixed with those of the next shorter
# context $h'$, the more so the more *different* characters $t(h)$ were seen to follow:
#
# $$p_k(c\mid h) = \frac{n(hc) + t(h)\,p_{k-1}(c\mid h')}{n(h) + t(h)},\qquad
# p_{-1} = \frac1V,$$
#
# a rule known as Witten–Bell. By hand, in `abracadabra`: `a` is followed by `b c d b`, so $n(\mathtt a) = 4$ and
# $t(\mathtt a) = 3$. Of the 11 letters two are `b`, and $t = 5$ letters are distinct, so
# $p_0(\mathtt b) = (2 + 5\cdot\frac15)/(11 + 5) = 3/16$ and
# $p_1(\mathtt b\mid \mathtt a) = (2 + 3\cdot\frac3{16})/(4 + 3) = 0.366$.

# %%
class NGram:
    def __init__(self, texts, top, begin="\2", end="\3"):  # two characters that no text has, for begin and end
        self.frame = lambda text: begin * top + text + end
        self.grams = [Counter() for _ in range(top + 1)]
        for text in map(self.frame, texts):
            for k, grams in enumerate(self.grams):
                grams.update(text[i - k : i + 1] for i in range(top, len(text)))
        self.times = [Counter() for _ in self.grams]  # n(h)
        self.kinds = [Counter() for _ in self.grams]  # t(h)
        for k, grams in enumerate(self.grams):
            for gram, count in grams.items():
                self.times[k][gram[:-1]] += count
                self.kinds[k][gram[:-1]] += 1

    def probabilities(self, text, i, symbols):  # of symbol i of a framed text, for the orders 0, 1, ...
        p = 1 / symbols
        for k, grams in enumerate(self.grams):
            h, c = text[i - k : i], text[i]
            n, t = self.times[k][h], self.kinds[k][h]
            p = (grams[h + c] + t * p) / (n + t) if n else p
            yield p


abra = NGram(["abracadabra"], 1, end="")
print("p0(b), p1(b | a):", [f"{p:.4f}" for p in abra.probabilities("ab", 1, symbols=5)])
every_letter = [[*abra.probabilities("a" + c, 1, symbols=5)] for c in "abcdr"]
assert np.allclose(np.sum(every_letter, axis=0), 1), "a model whose shares don't add up to one would cheat"


# %% [markdown]
# The beginning of a story has characters of its own in front, so that the model can know that it is there, and the end
# counts as one more symbol to predict. We count two training texts, a small and a larger one, and measure on stories
# that were not counted.

# %%
def losses(model, texts, symbols=58):  # nats a symbol to predict, for every order; 57 characters and the end
    top = len(model.grams) - 1
    framed = [(model.frame(text), i) for text in texts for i in range(top, top + len(text) + 1)]
    prices = np.array([[-math.log(p) for p in model.probabilities(text, i, symbols)] for text, i in framed])
    return prices.mean(axis=0)


TOP = 12
assert len(tokenizer.characters) == 57
loss = {count: losses(NGram(texts[:count], TOP), unread[:100]) for count in (200, 2_000)}
print("order " + "".join(f"{k:7d}" for k in range(0, TOP + 1, 2)))
for count, row in loss.items():
    print(f"{count:5d} " + "".join(f"{x:7.3f}" for x in row[::2]), f"  best: order {row.argmin()}, {row.min():.3f}")

# %% [markdown]
# Letter frequencies alone leave 3.08 nats. Each further character of context takes off a good part, until contexts
# become so long that they are mostly new. Ten times the text moves that point to the right, from order 8 to order 10,
# and lowers the loss. But there is a loss that no amount of text can pass. On the TinyStories sample the same
# functions give 3.05 nats a symbol at order 0, 0.99 at order 5 and 0.93 at order 7, their best. A network there that
# is not well below 0.93 has learned nothing that counting does not know.
#
# ## How low can the loss go?
#
# For real text, nobody can say. For ours we can, because we know how it is made. Take a single choice between three
# words: `red` with probability ½, `rose` and `blue` with ¼ each. The reader sees it character by character, and the
# best possible guess for each character adds up the candidates that still fit:
#
# * first character: `r` has ½ + ¼, so it costs $\log\frac43 = 0.288$; `b` costs $\log 4 = 1.386$;
# * after `r`, the letter `e` has $\frac{1/2}{3/4}$ and costs $\log\frac32 = 0.405$; `o` costs $\log 3 = 1.099$;
# * what follows is certain, and free.
#
# `red` costs $0.288 + 0.405 = 0.693 = \log 2$ in all, `rose` and `blue` $1.386 = \log 4$. It has to be so: the
# fractions telescope, and what is left is the probability of the word. (It needs care in one point: no candidate may
# be the beginning of another, or one could not tell where a word ends.)

# %%
candidates = {"red": 1 / 2, "rose": 1 / 4, "blue": 1 / 4}


def mass(beginning):
    return sum(p for word, p in candidates.items() if word.startswith(beginning))


by_hand = {word: [math.log(mass(word[:i]) / mass(word[: i + 1])) for i in range(len(word))] for word in candidates}
package = stories.Choice(candidates, candidates.values())
for word, theirs in zip(package.texts, package.surprisals, strict=True):
    assert np.allclose(by_hand[word], theirs) and math.isclose(sum(theirs), -math.log(candidates[word]))
    print(f"{word:5s}", [f"{price:.3f}" for price in by_hand[word]], f"sum {sum(theirs):.3f}")

# %% [markdown]
# The mean price, when words come as often as they should, is the **entropy**
# $H = \sum_w p(w)\,(-\log p(w)) = \tfrac12\log 2 + \tfrac12\log 4 \approx 1.040$. Nobody can do better on average.
# Somebody who believes in other shares $q$ pays
#
# $$\sum_w p(w)\,(-\log q(w)) \;=\; H + \sum_w p(w)\log\frac{p(w)}{q(w)} \;\ge\; H,$$
#
# because $\log x \le x - 1$ makes the last sum at least $-\sum_w p(w)\,(q(w)/p(w) - 1) = 0$.
#
# ### A grammar of postcards
#
# Whole stories are sequences of such choices. Here is a grammar small enough to follow by hand, in the notation of
# `stories.py`: `{...}` shows a word of a table, `[...|...]` is a fork, and `$` ends the text. In a table, `kite: red,
# long` is a toy and the looks it may have, and `;` separates the rows. The first entries are the most likely, in
# proportion to $\frac13, \frac14, \frac15, \dots$. What was shown stays true: the toy and its look come back.

# %%
POSTCARD = "{Who} had {a toy.look} {toy}. [Then|Now] {who} has no {toy.look} {toy}.$"
tables = [
    stories.word_table("who", "Lily; Tom; Mia; Ben"),
    stories.word_table("toy: toy.look", "kite: red, long; ball: red, blue, big; drum: round, old"),
]
postcards = stories.Grammar(POSTCARD, tables)
draws = np.random.default_rng(0)
for _ in range(3):
    print(postcards.write(draws).text)


# %% [markdown]
# Its entropy, by hand: four names, two words in the fork, and a toy with its look. The second sentence's name, toy and
# look cost nothing, for they are known.

# %%
def entropy(shares):
    return -sum(p * math.log(p) for p in shares)


def ranked(n):  # 1/3, 1/4, ..., made to add up to one
    return [1 / (k + 3) / sum(1 / (j + 3) for j in range(n)) for k in range(n)]


toys = entropy(ranked(3)) + sum(p * entropy(ranked(looks)) for p, looks in zip(ranked(3), (2, 3, 2), strict=True))
by_hand = entropy(ranked(4)) + entropy(ranked(2)) + toys
nats, symbols, number = stories.moments(postcards, "story")  # the package: entropy, mean length, how many there are
assert math.isclose(by_hand, nats) and number == 4 * 2 * 7
print(f"{number} postcards, entropy {nats:.3f} nats, {symbols:.2f} symbols on average: {nats / symbols:.4f} a symbol")


# %% [markdown]
# "A symbol" is a character or the end. If all 56 postcards were equally likely, the entropy would be
# $\log 56 \approx 4.025$; it is a little less.
#
# ### The stories
#
# The built-in stories do the same with a dozen tables and eight kinds of story. The package gives every story with the
# surprisal of each of its characters, and the entropy in closed form. If the two belong together, the mean of the one
# over many stories must agree with the other within a few of its standard errors (printed after ±; we allow three).

# %%
story = held_out[0]
assert len(story.surprisal) == len(story.text) + 1 and story.surprisal.min() >= 0
totals = np.array([s.surprisal.sum() for s in written])
error = totals.std(ddof=1) / math.sqrt(len(totals))
print(f"closed form {stories.story_entropy():.3f} nats a story")
print(f"{len(totals)} stories  {totals.mean():.3f} ± {error:.3f}")
assert abs(totals.mean() - stories.story_entropy()) < 3 * error
print(f"there are about {stories.distinct_stories():.1e} different stories")
print(f"exact floor {stories.exact_floor():.4f} nats a symbol, mean length {stories.expected_characters():.1f}")
assert math.isclose(stories.exact_floor(), stories.story_entropy() / (stories.expected_characters() + 1))
certain = np.mean(np.concatenate([s.surprisal for s in written]) == 0)
print(f"{certain:.1%} of the symbols are certain to a perfect reader")

# %% [markdown]
# A story costs 35 nats, and nearly all of its characters are free. Where are the 35 spent?

# %%
forgetful = stories.forgetful_surprisal(story)
shown = story.text + "¶"  # the end of the story
lines = textwrap.wrap(shown, 64, drop_whitespace=False)
fig, axes = plt.subplots(len(lines), 1, figsize=(9, len(lines)), sharey=True)
start = 0
for axis, line in zip(axes, lines, strict=True):
    here, place = slice(start, start + len(line)), np.arange(len(line))
    exact, extra = story.surprisal[here], forgetful[here] - story.surprisal[here]
    axis.bar(place, exact, width=0.85, color="black", label="everybody pays")
    axis.bar(place, extra, bottom=exact, width=0.85, color="white", edgecolor="black", hatch="////", linewidth=0.7,
             label="the forgetful reader pays more")  # fmt: skip
    axis.set(xlim=(-0.7, 63.7), ylim=(0, 3.6), yticks=[0, 2])
    axis.set_xticks(place, list(line), family="monospace", fontsize=9, va="baseline")
    axis.tick_params(axis="x", length=0, pad=11)
    axis.grid(axis="x", visible=False)
    start += len(line)
axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
fig.supylabel("surprisal in nats", fontsize=10.5)
plots.show(
    fig,
    alt="A story written out character by character over several lines, with a bar above each character for its "
    "surprisal. Black bars stand where something is decided: at the first letters of the opening, of names, verbs and "
    "objects; most characters have none. Hatched bars, which only the forgetful reader pays, stand in later sentences "
    "on names, pronouns, objects and places that were told before.",
)


# %% [markdown]
# Black bars stand at the letters where a choice is decided, sometimes in two or three steps, as with `red` and
# `rose`. Once it is, the word runs on for free. The first one, the opening, costs 2 nats because there are six
# openings and `Far away` is not the most common; the last one is the end, for the story might have gone on with `The
# end.`
#
# ### The forgetful reader
#
# The hatched bars belong to a second reader. It knows the grammar perfectly, and where in it the text stands, but
# forgets at the end of each sentence *who* and *what* it was about. So it must guess names, objects and places anew
# each time they come back. The mean of its prices, the **forgetful floor**, is a mark on the way down: no model whose
# memory ends with the sentence can pass it. A model that does carries something across sentences.

# %%
print(f"the story above: {story.surprisal.sum():.1f} nats; the forgetful reader pays {forgetful.sum():.1f}")
symbols = sum(len(s.text) + 1 for s in held_out)
exact_here = sum(s.surprisal.sum() for s in held_out) / symbols
forgetful_here = sum(stories.forgetful_surprisal(s).sum() for s in held_out) / symbols
print(f"exact floor:     closed form {stories.exact_floor():.4f}, on {len(held_out)} held-out stories {exact_here:.4f}")
print(f"forgetful floor: closed form {stories.forgetful_floor():.4f}, on the same {forgetful_here:.4f}")

# %%
fig, axis = plt.subplots(figsize=(7.4, 4.2))
orders = np.arange(TOP + 1)
axis.plot(orders, loss[200], marker="o", label="n-gram, 200 stories")
axis.plot(orders, loss[2_000], marker="s", label="n-gram, 2,000 stories")
axis.axhline(math.log(58), color="0.6", linestyle="--", linewidth=1, label="uniform, log 58")
axis.axhline(stories.forgetful_floor(), **plots.FLOOR_STYLE["forgetful"])
axis.axhline(stories.exact_floor(), **plots.FLOOR_STYLE["exact"])
axis.set(yscale="log", ylim=(0.07, 5), xlabel="order: characters of context", ylabel="held-out nats a symbol")
axis.set_yticks([0.1, 0.2, 0.5, 1, 2, 4], ["0.1", "0.2", "0.5", "1", "2", "4"])
axis.set_xticks(orders)
axis.minorticks_off()
axis.set_title("Counting, and how low it could go")
axis.legend(fontsize=9.5, loc="upper right", bbox_to_anchor=(1, 0.94))
plots.show(
    fig,
    alt="Held-out loss of n-gram models against their order, from 0 to 12, on a logarithmic axis. Both curves start at "
    "3.1 nats, below the uniform line at 4.1, and fall steeply. With 200 stories the curve flattens near 0.4 and turns "
    "up again; with 2,000 it goes on falling slowly to 0.24. Both stay above the forgetful reader at 0.156 and far "
    "above the exact floor at 0.090.",
)


# %% [markdown]
# Between the best count and the forgetful floor lies what can be learned within a sentence; between the two floors,
# what needs memory beyond it. This book's models are after both.
#
# ### A wrong turn: too good to be true
#
# Somebody comes back with 0.084 nats a symbol, from 50 stories and twelve characters of context. It is below the
# exact floor, so we need not read the code to know that something is wrong with the measurement:

# %%
cheat = NGram(texts[:50], TOP)
too_good, honest = (losses(cheat, part)[-1] for part in (texts[:50], unread[:100]))
own_floor = sum(s.surprisal.sum() for s in written[:50]) / sum(len(s.text) + 1 for s in written[:50])
print(f"measured on the stories it counted: {too_good:.3f}; exact floor of just these stories: {own_floor:.3f}")
print(f"measured on others: {honest:.3f}")
assert too_good < own_floor < stories.forgetful_floor() < honest

# %% [markdown]
# It was measured on the text it was trained on. On real text, 0.084 would have been a record; here it is a proof. A
# floor is known on *average*, so on a finite text a lucky guesser may come in slightly below. That is why the package
# computes the floor of the very validation text in use and not only of the grammar: below that, luck takes nobody far.
# (How far? Exercise 2.5.)
#
# ## What the package does with all this
#
# One call makes the text, the tokenizer, the chunks and the floors. The built-in stories are framed by BOS and EOT and
# padded, so that each row holds one story.

# %%
corpus = load_corpus(DataConfig(context=512, stories=2_000, valid_stories=200, cache_dir=Path(scratch.name)))
print(corpus.describe())
row = corpus.valid[0]
text = unread[0]
assert row.tolist() == [BOS, *encode(text, table), EOT, *[PAD] * (513 - len(text) - 2)]
assert math.isclose(corpus.floor, exact_here) and math.isclose(corpus.forgetful, forgetful_here)
print("equal: the first validation row, token by token, and both floors of the validation text")

# %% [markdown]
# ## What we found
#
# * A token is what somebody decided it is. Losses per token of different tokenizers are prices in different currencies.
# * Our byte-pair encoding finds the very merges of the library, all of them. Special ids must be out of reach of text.
# * What a record is decides how much text is left; a physical line is the wrong choice for stories.
# * Plain counting gets far. It is the first thing to beat, and how good it is depends on the text and the smoothing.
# * For text made of known choices, the surprisal of every character is known, and their sum is $-\log p$ of the whole.
#   The mean is a floor, and a loss on unseen text that is clearly below it is a mistake in the measurement.
# * The forgetful floor marks where memory beyond the sentence begins to pay.
#
# ## What this does not show
#
# Anything about real language: the built-in stories are made by a grammar, their long memory is a matter of names and
# things, and 92 % of their characters are certain. That a model close to the floor "understands" them. That the
# reading of the paper's "line" is what its authors did: their code is not published. And we compared tokenizers by
# a model that has no context at all; with better models the differences per character shrink.
#
# ## Exercises
#
# ### Exercise 2.1 · Merges by hand
# *Easy, 10 minutes.* What are the first four merges that byte-pair encoding finds in `she sells sea shells`? Remember
# the spaces, and that ties go to the older tokens (letters by code point; `·` comes after all letters).
#
# <details><summary>Answer</summary>
#
# The words are `she`, `·sells`, `·sea`, `·shells`. Pairs that come three times: `· s`; twice: `e l`, `h e`, `l l`,
# `l s`, `s e`, `s h`. So `· s` is first; it takes the `s` away from two of `s e` and one of `s h`. Now `e l`, `h e`,
# `l l` and `l s` tie at two, and so does `·s e`, whose first part is young. The oldest is `e l`; that leaves `el l`
# twice, `l s` twice, and `h e` once. `l s` is the older of the two, and then comes `el ls`.
#
# ```python
# merges = learn_merges(["she sells sea shells"], 4)
# assert merges == [("·", "s"), ("e", "l"), ("l", "s"), ("el", "ls")]
# ```
# </details>
#
# ### Exercise 2.2 · What is kept
# *Easy, 5 minutes.* Four records have 100, 513, 600 and 1,030 tokens. Chunks have 513. How many chunks are there, and
# what share of the tokens is kept, if remainders are dropped, and if they are padded? With padding, how much of the
# work goes into PAD?
#
# <details><summary>Answer</summary>
#
# Dropped: $0 + 1 + 1 + 2 = 4$ chunks with 2,052 of 2,243 tokens, 91.5 %. Padded: $1 + 1 + 2 + 3 = 7$ chunks, all
# tokens kept; 7 chunks have room for 3,591, so 37.5 % of the places are PAD. Padding keeps the text and costs time.
#
# ```python
# from minihaares.data import chunk
#
# lengths = (100, 513, 600, 1030)
# dropped, padded = ([chunk(np.ones(n, int), 513, pad) for n in lengths] for pad in (False, True))
# assert [sum(map(len, rows)) for rows in (dropped, padded)] == [4, 7]
# assert round(4 * 513 / sum(lengths), 3) == 0.915
# assert round(np.mean(np.concatenate(padded) == PAD), 3) == 0.375
# ```
# </details>
#
# ### Exercise 2.3 · A floor for byte pairs
# *Medium, 15 minutes.* The package gives no floor for the stories in BPE tokens. Is there a lower bound, and can a
# model reach it? Work it out for the tokenizer with 1,472 entries.
#
# <details><summary>Answer</summary>
#
# A model that gives probabilities to token sequences pays, for the sequence that the tokenizer makes of a story, at
# least the price of the *text*: the text's probability is the sum over all token sequences that spell it, of which
# this is one. So the entropy of a story is a bound for BPE as well: 35.49 nats a story, or that divided by the mean
# number of tokens, the end included. A model that gives no probability to other spellings can reach it in principle. In
# nats a token the bound is over four times as high as in nats a character, and it says the same. (On what a sum over
# all spellings would change: arXiv 2109.02550.)
#
# ```python
# tokens = np.mean([len(ids) + 1 for ids in bpe.encode_batch(texts)])
# bound = stories.story_entropy() / tokens
# assert 4 < bound / stories.exact_floor() < 4.5
# ```
# </details>
#
# ### Exercise 2.4 · The best n-gram?
# *Medium, 20 minutes.* Replace Witten–Bell by the simplest smoothing: add one to each count, $p(c\mid h) = (n(hc) +
# 1)/(n(h) + V)$, without shorter contexts. What happens to the losses of orders 0 to 8 with 2,000 stories? What does
# that say about sentences like "below the best n-gram"?
#
# <details><summary>Answer</summary>
#
# At order 0 nothing changes, for every count is large. At order 5 the loss is clearly higher than with Witten–Bell, and
# at order 8 it is a multiple. "The best n-gram" is the best of those that somebody tried. Modified Kneser–Ney
# (arXiv cmp-lg/9606011) is usually better than Witten–Bell; a fair sentence names smoothing and order.
#
# ```python
# model = NGram(texts, 8)
# add_one = np.zeros(9)
# for framed in map(model.frame, unread[:50]):
#     for i in range(8, len(framed)):
#         for k in range(9):
#             h, c = framed[i - k : i], framed[i]
#             add_one[k] -= math.log((model.grams[k][h + c] + 1) / (model.times[k][h] + 58))
# add_one /= sum(len(text) + 1 for text in unread[:50])
# witten_bell = losses(model, unread[:50])
# assert abs(add_one[0] - witten_bell[0]) < 0.01
# assert add_one[5] > 1.2 * witten_bell[5] and add_one[8] > 2 * witten_bell[8]
# ```
# </details>
#
# ### Exercise 2.5 · How lucky can one be?
# *Hard, 30 minutes.* A model that never saw the validation text $x$ gives it the probability $q(x)$, the perfect reader
# $p(x)$. Show that the chance to come out at least $a$ nats (over the whole text) below the floor of that text is at
# most $e^{-a}$. How likely is it, then, that an honest model is 0.0002 nats a symbol below the floor of 200 stories?
#
# <details><summary>Answer</summary>
#
# Coming out $a$ nats below means $q(x)/p(x) \ge e^a$. The mean of that ratio over texts is
# $\sum_x p(x)\,q(x)/p(x) = \sum_x q(x) \le 1$. A positive number whose mean is at most 1 is at least $e^a$ with
# probability at most $e^{-a}$ (Markov's inequality). The 200 stories have about 79,000 symbols, so 0.0002 nats a symbol
# are about 16 nats in all, and the chance is under one in a million. If a loss lies below `corpus.floor` by more than
# rounding, look for the mistake.
#
# ```python
# chance = math.exp(-0.0002 * symbols)
# assert chance < 1e-6
# ```
# </details>
#
# ## Further reading
#
# * C. E. Shannon, Prediction and Entropy of Printed English, Bell System Technical Journal 30 (1951): readers guess the
#   next letter, and n-grams of English.
# * Neural Machine Translation of Rare Words with Subword Units, arXiv 1508.07909: byte-pair encoding.
# * An Empirical Study of Smoothing Techniques for Language Modeling, arXiv cmp-lg/9606011: n-grams done well.
# * TinyStories, arXiv 2305.07759: how small can a language model be and still speak coherent English?
# * You should evaluate your language model on marginal likelihood over tokenisations, arXiv 2109.02550.
# * Scaling Laws for Autoregressive Generative Modeling, arXiv 2010.14701: estimating the floor of real data from the
#   bend of loss curves.
# * HAARES, arXiv 2606.06564, section 5.1: the text pipeline rebuilt here.
