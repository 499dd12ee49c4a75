# %% [markdown]
# # Assignment 2 · Text and floors
#
# From letters to numbers, from numbers to a loss, and from a loss to the question that matters: how low can it go?
# Nine small functions. Chapter 02 explains the ideas; the built-in stories of the package use them all.
#
# **How it works.** Under each answer stands a check. Run it as often as you like: it is silent when all is well, and
# otherwise says what to look at. More checks run when you hand in. They use other inputs, so a function that only
# knows the examples will not do. You may add cells, but leave the checks and the given cells as they are.
#
# Losses are in **nats** (natural logarithms) unless a task says otherwise.

# %% nbgrader={"grade_id": "given_tools", "locked": true}
import math
from collections import Counter

import numpy as np

from minihaares import checks, data, stories
from minihaares.data import BOS, EOT, PAD, UNK  # the ids 2, 3, 0 and 1 of every tokenizer

# %% [markdown]
# ## 1 · Which characters get an id
# *2 points · about 10 minutes · difficulty 1 of 3*
#
# A character tokenizer with `size` entries keeps four of them for special tokens. The others go to the most frequent
# characters of the text, in order: the most frequent first; of two that are equally frequent, the one with the smaller
# code point (`ord`) first. Give them as one string. A text with fewer characters gives a shorter string.


# %% nbgrader={"grade_id": "vocabulary", "solution": true}
def vocabulary(text: str, size: int) -> str:
    """The characters that get an id, in the order of their ids; at most size - 4."""
    ### BEGIN SOLUTION
    counts = Counter(text)
    return "".join(sorted(counts, key=lambda c: (-counts[c], c))[: size - 4])
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_vocabulary", "grade": true, "points": 2}
checks.own_work(vocabulary, without=("train_char",))
checks.equal(vocabulary("aabbbc", 8), "bac", "b three times, a twice, c once.")
checks.equal(vocabulary("aabbbc", 6), "ba", "Six entries leave room for two characters.")
### BEGIN HIDDEN TESTS
checks.equal(vocabulary("zyx zyx", 7), "xyz", "Ties go to the smaller code point; here the blank is the rarest.")
text = " ".join(story.text for story in stories.write_stories(20, seed=3))
for size in (12, 40, 256):
    checks.equal(vocabulary(text, size), data.train_char([text], size).characters, f"A longer text, {size} entries.")
### END HIDDEN TESTS


# %% [markdown]
# ## 2 · Text to ids and back
# *2 points · about 10 minutes · difficulty 1 of 3*
#
# The first character of the vocabulary has id 4. A character that is not in it becomes `UNK`. Going back, special ids
# leave no trace, except that `UNK` becomes `"?"`.


# %% nbgrader={"grade_id": "encode_decode", "solution": true}
def encode(text: str, characters: str) -> list[int]:
    """One id for each character."""
    ### BEGIN SOLUTION
    ids = {character: number for number, character in enumerate(characters, start=4)}
    return [ids.get(character, UNK) for character in text]
    ### END SOLUTION


def decode(ids: list[int], characters: str) -> str:
    """The text of the ids."""
    ### BEGIN SOLUTION
    return "".join("?" if i == UNK else characters[i - 4] for i in ids if i not in (PAD, BOS, EOT))
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_encode_decode", "grade": true, "points": 2}
checks.equal(encode("abba", "ba"), [5, 4, 4, 5], "The vocabulary is “ba”, so b is 4 and a is 5.")
checks.equal(decode([5, 4, 4, 5], "ba"), "abba")
### BEGIN HIDDEN TESTS
checks.equal(encode("bxa?", "ba"), [4, UNK, 5, UNK], "Every character gives one id: an unknown one gives UNK.")
checks.equal(decode([BOS, 4, UNK, 5, EOT, PAD, PAD], "ba"), "b?a", "BOS, EOT and PAD leave no trace, UNK does.")
text = stories.write_stories(1, seed=8)[0].text
tokenizer = data.train_char([text], 30)
checks.equal(encode(text, tokenizer.characters), tokenizer.encode(text).tolist(), "A whole story.")
### END HIDDEN TESTS


# %% [markdown]
# ## 3 · Records to chunks
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# A model trains on **chunks** of `size` ids. Cut one record into chunks, in order and without overlap. What is left at
# the end is filled up with `PAD`, but a remainder of a single id is dropped: nothing in it can be predicted. Records
# are never joined.


# %% nbgrader={"grade_id": "chunks", "solution": true}
def chunks(ids: list[int], size: int) -> list[list[int]]:
    """Lists of exactly `size` ids each."""
    ### BEGIN SOLUTION
    pieces = [list(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [piece + [PAD] * (size - len(piece)) for piece in pieces if len(piece) > 1 or size == 1]
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_chunks", "grade": true, "points": 2}
checks.own_work(chunks)
checks.equal(chunks([4, 5, 6, 7, 8, 9, 10, 11], 4), [[4, 5, 6, 7], [8, 9, 10, 11]], "Two whole chunks, no overlap.")
checks.equal(chunks([4, 5, 6, 7, 8, 9], 4), [[4, 5, 6, 7], [8, 9, PAD, PAD]], "The remainder is padded.")
### BEGIN HIDDEN TESTS
checks.equal(chunks([4, 5, 6, 7, 8], 4), [[4, 5, 6, 7]], "A remainder of one id is dropped.")
checks.equal(chunks([4], 4), [], "A record of one id gives no chunk.")
checks.equal(chunks([], 3), [], "An empty record gives no chunk.")
for length in range(2, 14):
    ids = np.arange(4, 4 + length)
    checks.equal(chunks(ids.tolist(), 5), data.chunk(ids, 5, pad=True).tolist(), f"{length} ids in chunks of 5.")
### END HIDDEN TESTS


# %% [markdown]
# ## 4 · The simplest language model
# *2 points · about 15 minutes · difficulty 2 of 3*
#
# A bigram model knows one number for each pair: how likely is `next` if the last id was `last`? Count the pairs in a
# text, add 1 to every count (so that nothing is impossible), and divide so that for each `last` the probabilities of
# all `next` add up to 1.


# %% nbgrader={"grade_id": "bigram", "solution": true}
def bigram(ids: list[int], vocab: int) -> np.ndarray:
    """Probabilities [vocab, vocab]: entry [last, next]."""
    ### BEGIN SOLUTION
    counts = np.ones((vocab, vocab))
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    return counts / counts.sum(1, keepdims=True)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_bigram", "grade": true, "points": 2}
table = bigram([0, 1, 0, 1, 1], 2)
checks.close(table, [[1 / 4, 3 / 4], [2 / 4, 2 / 4]], "Pairs: 0→1 twice, 1→0 once, 1→1 once; then 1 more each.")
### BEGIN HIDDEN TESTS
ids = np.random.default_rng(0).integers(0, 4, 50).tolist()
table = bigram(ids, 6)
checks.close(table.sum(1), np.ones(6), "The probabilities of all next ids add up to 1 for each last id.")
checks.close(table[5], np.full(6, 1 / 6), "An id that was never seen says nothing about the next: all are equal.")
expected = np.ones((6, 6))
for last, following in zip(ids, ids[1:], strict=False):
    expected[last, following] += 1
checks.close(table, expected / expected.sum(1)[:, None], "Fifty ids of a vocabulary of six.")
checks.close(bigram([0, 0, 0, 0], 2), [[4 / 5, 1 / 5], [1 / 2, 1 / 2]], "Pairs that come again count again.")
### END HIDDEN TESTS


# %% [markdown]
# ## 5 · The loss
# *1 point · about 10 minutes · difficulty 1 of 3*
#
# The mean, over all ids that have one before them, of $-\log p(\text{next} \mid \text{last})$, in nats. Pairs whose
# `next` is `PAD` do not count.


# %% nbgrader={"grade_id": "bigram_loss", "solution": true}
def bigram_loss(table: np.ndarray, ids: list[int]) -> float:
    """Mean nats per predicted id."""
    ### BEGIN SOLUTION
    costs = [-math.log(table[a, b]) for a, b in zip(ids, ids[1:], strict=False) if b != PAD]
    return sum(costs) / len(costs)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_bigram_loss", "grade": true, "points": 1}
table = np.array([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3], [0.2, 0.4, 0.4]])
by_hand = -(math.log(0.3) + math.log(0.4)) / 2
checks.close(bigram_loss(table, [1, 2, 1]), by_hand, "Two predictions: 2 after 1, then 1 after 2.")
### BEGIN HIDDEN TESTS
checks.close(bigram_loss(table, [1, 2, 1, PAD, PAD]), by_hand, "Padding is not predicted and does not count.")
ids = [1, 1, 2, 2, 1, 2, 2, 2]
expected = -np.log([table[a, b] for a, b in zip(ids, ids[1:], strict=False)]).mean()
checks.close(bigram_loss(table, ids), expected, "Eight ids are seven predictions.")
### END HIDDEN TESTS


# %% [markdown]
# ## 6 · Nats per token, bits per byte
# *1 point · about 10 minutes · difficulty 1 of 3*
#
# Losses per token of two tokenizers cannot be compared: one cuts the text into fewer pieces. **Bits per byte** can: the
# bits spent on the whole text, divided by the number of bytes that it has in UTF-8. One bit is $\log 2$ nats.


# %% nbgrader={"grade_id": "bits_per_byte", "solution": true}
def bits_per_byte(nats_per_token: float, tokens: int, text: str) -> float:
    """`text` was predicted as `tokens` tokens at this mean loss."""
    ### BEGIN SOLUTION
    return nats_per_token * tokens / math.log(2) / len(text.encode("utf-8"))
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_bits_per_byte", "grade": true, "points": 1}
checks.close(bits_per_byte(math.log(2), 2, "ab"), 1.0, "One bit for each of two tokens, two bytes.")
checks.close(bits_per_byte(math.log(8), 1, "abc"), 1.0, "Three bits for one token, which stands for three bytes.")
### BEGIN HIDDEN TESTS
checks.close(bits_per_byte(math.log(4), 3, "nää"), 6 / 5, "An ä takes two bytes in UTF-8.")
checks.close(bits_per_byte(1.5, 40, "x" * 100), 1.5 * 40 / 100 / math.log(2), "1.5 nats, 40 tokens, 100 bytes.")
### END HIDDEN TESTS


# %% [markdown]
# ## 7 · The exact floor
# *3 points · about 25 minutes · difficulty 2 of 3*
#
# A tiny author writes texts from independent **choices**: each is a list of `(text, probability)`; one text of each is
# taken, in order. Then the text ends, and the end must be predicted, too. A reader who knows the author spends on
# average the **entropy** of the choices on a text. Expressed as a loss: all nats spent on very many texts, divided by
# all symbols predicted in them (each character, and the end of each text). No model has a lower one.


# %% nbgrader={"grade_id": "floor", "solution": true}
def floor(choices: list[list[tuple[str, float]]]) -> float:
    """Nats per symbol of the best possible reader; the end of a text is a symbol."""
    ### BEGIN SOLUTION
    entropy = -sum(p * math.log(p) for choice in choices for _, p in choice if p > 0)
    length = sum(p * len(text) for choice in choices for text, p in choice)
    return entropy / (length + 1)
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_floor", "grade": true, "points": 3}
coin = [[("a", 0.5), ("b", 0.5)]]
checks.close(floor(coin), math.log(2) / 2, "log 2 nats a text, and two symbols to predict: the letter and the end.")
checks.close(
    floor([[("the ", 1.0)], [("cat", 0.25), ("dog", 0.75)]]),
    -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)) / 8,
    "What is certain costs nothing but has a length.",
)
### BEGIN HIDDEN TESTS
uneven = [[("a", 0.5), ("bbbbbbbbb", 0.5)], [("x", 0.9), ("yy", 0.1)]]
nats = math.log(2) - 0.9 * math.log(0.9) - 0.1 * math.log(0.1)
checks.close(
    floor(uneven),
    nats / (5 + 1.1 + 1),
    "Divide all nats by all symbols: a mean of ratios would count short texts as much as long ones.",
)
checks.close(floor([[("a", 1.0), ("b", 0.0)]]), 0.0, "What never happens costs nothing: 0 · log 0 counts as 0.")
### END HIDDEN TESTS


# %% [markdown]
# ## 8 · What each character costs
# *3 points · about 25 minutes · difficulty 3 of 3*
#
# One choice again, whose candidates are such that none begins another (*prefix-free*). After the characters $s$ of the
# text taken, the ideal reader knows that the candidate begins with $s$. Let $M(s)$ be the probability of all candidates
# that do. The next character $c$ then has probability $M(sc)/M(s)$ and costs $-\log$ of it. Give the cost of every
# character of the candidate `taken`.


# %% nbgrader={"grade_id": "surprisals", "solution": true}
def surprisals(candidates: dict[str, float], taken: str) -> list[float]:
    """Nats for each character of `taken`. candidates: text -> probability."""

    ### BEGIN SOLUTION
    def mass(beginning: str) -> float:
        return sum(p for text, p in candidates.items() if text.startswith(beginning))

    return [math.log(mass(taken[:end]) / mass(taken[: end + 1])) for end in range(len(taken))]
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_surprisals", "grade": true, "points": 3}
checks.own_work(surprisals)
two = {"cat": 0.5, "dog": 0.5}
checks.close(surprisals(two, "cat"), [math.log(2), 0.0, 0.0], "The first letter tells which it is; the rest is free.")
### BEGIN HIDDEN TESTS
pets = {"cat": 0.5, "cow": 0.2, "dog": 0.2, "cod": 0.1}
checks.close(
    surprisals(pets, "cow"),
    [-math.log(0.8), -math.log(0.3 / 0.8), -math.log(0.2 / 0.3)],
    "c has 0.8; of that, co has 0.3; of that, cow has 0.2: weigh candidates by probability, do not count them.",
)
choice = stories.Choice(pets.keys(), pets.values())
for index, text in enumerate(pets):
    checks.close(surprisals(pets, text), choice.surprisals[index], f"The costs of {text!r} along the way.")
    checks.close(sum(surprisals(pets, text)), -math.log(pets[text]), f"All together, {text!r} costs −log p.")
### END HIDDEN TESTS


# %% [markdown]
# ## 9 · The reader who forgets
# *3 points · about 25 minutes · difficulty 3 of 3*
#
# In our stories, what was said once stays true: a red kite is red in the last sentence, too. A text is now a list of
# **sentences**, each the list of the *slots* that it shows; a slot is a name with its own entropy in nats, independent
# of the others, and shows the same text all through the story. The reader who **remembers** pays for a slot the first
# time only. The one who **forgets** remembers nothing from earlier sentences, but all of the present one. Give the mean
# nats a story costs each of them.


# %% nbgrader={"grade_id": "two_readers", "solution": true}
def two_readers(sentences: list[list[str]], entropy: dict[str, float]) -> tuple[float, float]:
    """(nats of the one who remembers, nats of the one who forgets)."""
    ### BEGIN SOLUTION
    remembers = sum(entropy[slot] for slot in set().union(*sentences))
    forgets = sum(entropy[slot] for sentence in sentences for slot in set(sentence))
    return remembers, forgets
    ### END SOLUTION


# %% nbgrader={"grade_id": "check_two_readers", "grade": true, "points": 3}
bill = {"hero": 3.0, "toy": 2.0, "place": 1.0}
story = [["hero"], ["hero", "toy"], ["toy"]]
checks.close(two_readers(story, bill), (5.0, 10.0), "Remembering: hero and toy once. Forgetting: 3 + (3 + 2) + 2.")
### BEGIN HIDDEN TESTS
story = [["hero", "hero", "place"], ["toy"], ["place", "hero", "place", "toy"], []]
checks.close(
    two_readers(story, bill), (6.0, 12.0), "Within one sentence nobody forgets: a slot named twice costs once."
)
checks.close(two_readers([["toy", "toy"]], bill), (2.0, 2.0), "In a single sentence the two readers are equal.")
checks.close(two_readers([["hero"], ["place"]], bill), (4.0, 4.0), "A slot that never comes back is paid once by both.")
### END HIDDEN TESTS
