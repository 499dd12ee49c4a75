"""The built-in corpus: short stories whose entropy is known exactly, so that a loss has a best value to reach.

**A story** comes from one template, STORY. `[a|b|c]` is a *fork*: one branch is taken, the first most often. `{toy}`
is a *slot*: it shows a *form*, one column of a table; `{a toy}` adds an article, `{Toy}` a capital. One row of each
table holds for a whole story, so what was shown stays true: a red kite is red in the last sentence, too. A slot is a
choice only as far as earlier slots left its row open. A line break ends a sentence, as a space; `$` ends the story.

**Surprisals.** The candidates of a choice (a slot's texts in the rows still possible, the literal beginnings of a
fork's branches) are prefix-free: none begins another. So the text up to any character tells the choices made, and
that the present candidate begins with the characters s seen of it. With M(s) the probability of all candidates that
do, the next character is c with probability M(sc) / M(s). Along a candidate this telescopes to M(candidate) / M("") =
its probability; text between choices is certain and costs 0. So the surprisals of a story, end included, sum to -log
of its choices' joint probability; and as a text comes from one sequence of choices only, that is -log p(story).

**Entropy.** Forks and the rows of different tables are independent. By the chain rule the entropy of a story is that
of its forks plus, for each table, that of all forms shown of its row, averaged over the ways through the forks.
`moments` adds these up: finite sums, nothing is sampled.

**The forgetful reader** knows the grammar and where in it the text stands (kind of story, branches taken, which
sentence) and remembers what the present sentence has shown. Who, what and where earlier sentences were about it must
guess anew: it pays the entropy of the forms shown sentence by sentence. With this knowledge, or with less, no mean
loss is lower; a model below `forgetful_floor()` carries names, things or places across sentences. (An n-gram also
sees the last few characters of the sentence before, which helps at the start of a sentence only.)
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, permutations
from os.path import commonprefix
from typing import Literal, NamedTuple

import numpy as np

END = "$"  # the end of a story as the last character of its text, inside this module only
SENTENCE_END = ""  # where the forgetful reader forgets; writes nothing

# Tables: the names of the forms, and rows as `head: tail, tail`. Here as in the forks, common ones come first.
CHARACTERS = """girl/she/her/her: Lily, Mia, Anna, Nora, Ruby, Zoe, Ivy, Clara, Maya, Tess, Hana, Rose, Ella;
boy/he/him/his: Tom, Ben, Sam, Leo, Max, Omar, Finn, Hugo, Ravi, Noah, Kofi, Jack, Paul;
rabbit/she/her/her: Clover, Daisy; fox/he/him/his: Rusty, Copper; bear/he/him/his: Bruno, Barley;
mouse/she/her/her: Dot, Crumb; duck/she/her/her: Puddle, Waddle; owl/he/him/his: Otis, Hoot;
squirrel/she/her/her: Hazel, Acorn; frog/he/him/his: Croak, Moss; hedgehog/he/him/his: Thorn, Spike"""
WORDS = {
    "hobby": """sing songs; read books; paint pictures; count stars; climb trees; dance; build towers; bake bread;
        draw maps; look at clouds; pick flowers; tell jokes; feed the birds; write poems""",
    "elder": "mother; father; grandma; grandpa; aunt; uncle; sister; teacher; brother; cousin",
    "weather": "rain; snow; thunder; hail",
    "petname": "Button; Spot; Biscuit; Pebble; Snowy; Whiskers; Patch; Lucky; Pepper; Sunny; Cookie; Velvet",
    "toy: toy.look": """ball: red, blue, big, striped, orange; kite: yellow, red, long, purple; bell: silver, tiny;
        doll: soft, old, pretty, tiny; drum: loud, round, red, old; truck: green, big, shiny, yellow;
        robot: tall, funny, shiny, orange; boat: wooden, blue; whistle: silver, wooden, loud; horn: brass, old;
        puppet: funny, soft, striped; crown: golden, paper, tiny; teddy: brown, fluffy, old""",
    "food: food.look": """pie: apple, cherry, pumpkin; cake: honey, carrot, orange; tart: plum, apricot, lemon;
        sandwich: cheese, egg, jam; muffin: berry, banana, oat; bun: warm, sweet, onion; melon: ripe, juicy""",
    "pet: pet.look": """kitten: tiny, white, orange; puppy: brown, hungry, small; bird: young, blue, injured;
        lamb: woolly, white, lost; turtle: old, slow, green; pony: small, spotted, brown""",
    "wrap: wrap.look": "box: pink, green, flat, gold; bag: paper, yellow, silk; basket: round, straw, open",
    "place/where: spot": """park/in the park: under a bench, behind a tree, by the swings, on the steps;
        beach/at the beach: behind a rock, under a towel, beside a big shell, on the pier;
        forest/in the forest: under a fern, behind a log, beside a stream, between two oaks;
        garden/in the garden: under a rose bush, behind the shed, near the gate, among the tulips;
        farm/on the farm: behind the barn, under a cart, in the hay, near the pond;
        river/by the river: on the bank, under the bridge, among the reeds, near the mill;
        meadow/in the meadow: in the tall grass, near a puddle, among the daisies;
        market/at the market: under a table, near the fruit, beside the well;
        lake/at the lake: in an old boat, on the dock, near the willows""",
    "fear: dared": """old bridge: walked over, ran across; dark tunnel: crept into, ran into;
        deep stream: swam across, jumped over; high wall: climbed over; thick hedge: crept under;
        steep hill: climbed up, marched up; gloomy barn: went into; muddy swamp: ran around""",
    "skill: slip": """ride a bike: fell off, wobbled; whistle: made no sound, only blew air; juggle: got muddled;
        skip rope: tripped, lost count; skate: slipped, fell over; do a cartwheel: landed badly, fell over;
        walk on stilts: wobbled, tumbled; play the flute: only squeaked, lost the tune; throw a hoop: missed""",
    "craft/role: stuff": """castle/guard: pillows, chairs, boxes; ship/captain: blankets, boxes, baskets;
        rocket/pilot: boxes, cushions, old pots; train/driver: chairs, stools, suitcases""",
}

STORY = """\
[Once upon a time, there was|There once was|In a quiet town, there lived|Far away, there lived|By the sea, there was|\
Not long ago, there was] [a little|a kind|a clever|a cheerful|a shy|a curious|an eager|a gentle|a lively|an honest|\
a polite|a busy|a merry|a quiet] {hero.kind} named {hero}.
{Hero.she} [loved|liked] to {hobby}[.| with {hero.his} {elder}.| every day.]
[One day|One morning|One afternoon|One rainy day|One Sunday|One windy day], {hero} [\
could not find {hero.his} {toy.look} {toy}.
{Hero.she} looked [under the bed|in every box|behind the sofa|all over the house], but it was gone.
"I had it {where}," {hero.she} told {hero.his} friend {friend}.
They [hurried|ran|walked] to the {place} and looked [carefully|everywhere|again].
{friend} [called|shouted|cried], "Here is your {toy}, {spot}!"
{hero} [hugged|thanked] {friend} and [happily|proudly|gently] carried the {toy.look} {toy} home.\
|took {hero.his} {toy.look} {toy} to the {place}.
{Spot} [sat|stood|waited] {a friend.kind}, looking [lonely|sad|bored|shy].
"My name is {friend}," [said|whispered|mumbled] the {friend.kind}.
"Do you want to play with my {toy}?" asked {hero}.
{friend} [nodded|laughed|agreed], and they played until [the sun set|it got dark|supper time].
From then on, {hero} and {friend} were [good|best|true|dear] friends.\
|remembered that it was {friend}'s birthday.
{Hero.she} went to [the shop|the fair|town] with {hero.his} {elder} and [found|bought|chose] {a toy.look} {toy}.
At home, {hero.she} put the {toy} into {a wrap.look} {wrap}.
{friend} opened the {wrap.look} {wrap} and [smiled|gasped|laughed|clapped].
"[Thank you|You are so kind|What a surprise], {hero}!" {friend.she} said.
"I always wanted {a toy.look} {toy}."\
|packed {a food.look} {food} and went to the {place}.
There {hero.she} met {friend}, who [was very hungry|had nothing to eat|had lost {friend.his} lunch].
{hero} [cut|split] the {food} in two and gave {friend.him} the [bigger|best|first] [piece|half].
They sat {spot} and [ate|chatted|laughed] together.
"This is the best {food.look} {food} [I have ever had|in the world]," said {friend}.\
|wanted to go to the {place} with {friend}, but {weather} kept them at home.
They took some {stuff} and built a [big|grand|secret|strange] {craft}.
"I am the {role} of this {craft}," said {hero}.
"And I am [a dragon|a friendly ghost|the cook|a knight|a wolf]!" [cried|roared|giggled] {friend}.
When the {weather} stopped, they did not even think of the {place}.\
|decided to learn how to {skill}.
{Hero.she} [tried hard|tried and tried|did {hero.his} best], but {hero.she} {slip}.
"[Do not give up|Keep trying|Take your time|Try once more]," said {hero.his} {elder}.
[Every day|All week|Each morning], {hero.she} met {friend} {where} and tried again.
[At last|In the end|Then, one day], {hero} could {skill}!
{friend} [clapped|cheered], and {hero.his} {elder} was [very|so] proud.\
|heard a [soft|sad|strange] [cry|sound|noise] {where}.
It was {a pet.look} {pet}, [hiding|shaking|crying] {spot}.
"Do not be afraid, little {pet}," [said|whispered] {hero}.
{Hero.she} called {hero.his} {elder}, and together they [fed|washed|warmed|helped] the {pet.look} {pet}.
{friend} came, too, and gave it a name: {petname}.
Now {petname} and {hero} [play|rest|walk] {where} every [day|week|evening].\
|came to the {fear} with {friend}.
{hero} was afraid and wanted to [leave|go home|hide|run away].
But {friend}'s {toy.look} {toy} lay on the other side.
"[Please|Oh, please] fetch my {toy}," said {friend}.
{hero} took a [deep|long|slow] breath and {dared} the {fear}.
Soon {friend} had the {toy.look} {toy} back.
"You are [so|very|really] brave, {hero}!" said {friend}.]
[Everyone was happy.|It was a [good|lovely|perfect|wonderful] day.|That night, {hero} slept well.|\
Later, {hero} had time to {hobby}.|And {hero} never forgot that [day|morning|adventure].][$|
The end.$]"""


@dataclass(frozen=True)
class Story:
    """A story and what its symbols cost the ideal reader who remembers everything. Equal texts are equal stories.

    text: a line of printable ASCII. surprisal: float64 [len(text) + 1], nats, one a character, last for the end.
    """

    text: str
    surprisal: np.ndarray = field(compare=False, repr=False)


class Choice:
    """Prefix-free candidate texts, their probabilities, and their characters' surprisals in nats."""

    def __init__(self, texts: Iterable[str], probabilities: Iterable[float]) -> None:
        self.texts, self.probabilities = list(texts), list(probabilities)
        mass: dict[str, float] = {}  # M(s) of the module's docstring, for every beginning s of a candidate
        for text, p in zip(self.texts, self.probabilities, strict=True):
            for end in range(len(text) + 1):
                mass[text[:end]] = mass.get(text[:end], 0.0) + p
        if clash := [t for t, p in zip(self.texts, self.probabilities, strict=True) if mass[t] != p]:
            raise ValueError(f"{clash[0]!r} begins another candidate of its choice: make them prefix-free")
        # Where one character is certain, M sums the same numbers before and after it: it costs exactly 0.
        cost = {s: math.log(mass[s[:-1]] / mass[s]) for s in mass if s}
        self.surprisals = [[cost[text[:end]] for end in range(1, len(text) + 1)] for text in self.texts]
        self.bounds = [*accumulate(self.probabilities)][:-1]


class Table:
    """The rows that may hold in a story: all of them at first, fewer after a slot that told something."""

    def __init__(self, rows: list[tuple[float, dict[str, str]]]) -> None:
        self.rows, self.forms = rows, rows[0][1].keys()  # a row is (weight, {form: text})
        self._shown: dict[str, tuple[Choice, list[Table]]] = {}

    def show(self, form: str) -> tuple[Choice, list[Table]]:
        """The candidates of slot {form}, and the table that is left after each of them."""
        if form not in self._shown:
            groups: dict[str, list[tuple[float, dict[str, str]]]] = {}
            for weight, row in self.rows:
                groups.setdefault(row[form], []).append((weight, row))
            masses = [sum(weight for weight, _ in rows) for rows in groups.values()]
            left = [Table(rows) for rows in groups.values()] if len(groups) > 1 else [self]
            self._shown[form] = Choice(groups, [mass / sum(masses) for mass in masses]), left
        return self._shown[form]

    def cases(self, forms: frozenset[str]) -> list[float]:
        """Probabilities of all that the forms (those of this table) can show together."""
        mine = sorted(forms & self.forms)
        if not mine or len(self.rows) == 1:
            return [1.0]
        shown = zip(self.show(mine[0])[0].probabilities, self.show(mine[0])[1], strict=True)
        return [p * q for p, left in shown for q in left.cases(forms - {mine[0]})]


def with_variants(row: dict[str, str]) -> dict[str, str]:
    """A row with {a toy} and {Toy} beside {toy}."""
    article = {f"a {form}": f"an {text}" if text[0] in "aeiou" else f"a {text}" for form, text in row.items()}
    return row | article | {form.capitalize(): text[0].upper() + text[1:] for form, text in row.items()}


def ranked(count: int) -> list[float]:
    """Probabilities of things listed from common to rare: for the k-th, from 0, in proportion to 1 / (k + 3)."""
    weights = [1 / (k + 3) for k in range(count)]
    return [weight / sum(weights) for weight in weights]


def word_table(forms: str, words: str) -> Table:
    """An entry of WORDS as a table: the heads are ranked, and so are the tails of each head."""
    rows, entries = [], [entry.partition(": ") for entry in re.split(r";\s*", words)]
    for head_p, (head, _, tails) in zip(ranked(len(entries)), entries, strict=True):
        for p, tail in zip(ranked(tails.count(",") + 1), tails.split(", "), strict=True):
            row = dict(zip(re.split("/|: ", forms), [*head.split("/"), tail], strict=False))
            rows.append((head_p * p, with_variants(row)))
    return Table(rows)


def cast_table() -> Table:
    """Hero and friend, two characters: the friend is drawn as a hero is, from all but the hero."""

    def play(role: str, row: dict[str, str]) -> dict[str, str]:
        plain = {f"{role}.{form}": row[form] for form in ("kind", "she", "him", "his")}
        return with_variants({role: row["name"]} | plain)

    characters = word_table("kind/she/him/his: name", CHARACTERS).rows
    pairs = permutations([(p, play("hero", row), play("friend", row)) for p, row in characters], 2)
    return Table([(p * q / (1 - p), hero | friend) for (p, hero, _), (q, _, friend) in pairs])


class Slot(NamedTuple):
    form: str


class Fork(NamedTuple):
    lead: Choice  # the literal text that each branch begins with
    rests: list[Parts]  # and what follows it


Parts = list[str | Slot | Fork]  # a str is literal text, or SENTENCE_END, which writes nothing
Memory = Literal["story", "sentence"]  # of the reader who remembers everything, of the forgetful one


def parse(template: str) -> Parts:
    """The parts of a template; ValueError if its brackets do not match or a fork is not prefix-free."""
    stack: list[list[Parts]] = [[[]]]  # the branches so far of every fork still open, outermost first
    for token in [*re.findall(r"[\[|\]\n]|\{[^{}]*\}|[^\[|\]\n{}]+", template), "END"]:
        if (token in ("|", "]") and len(stack) == 1) or (token == "END" and len(stack) > 1):
            raise ValueError("the brackets of the template do not match")
        if token == "[":
            stack.append([[]])
        elif token == "|":
            stack[-1].append([])
        elif token == "]":
            leads, rests = [], []
            for branch in stack.pop():
                cut = next((k for k, part in enumerate(branch) if not isinstance(part, str)), len(branch))
                leads.append("".join(branch[:cut]))
                rests.append([part for part in branch[:cut] if part == SENTENCE_END] + branch[cut:])
            stack[-1][-1].append(Fork(Choice(leads, ranked(len(leads))), rests))
        elif token != "END":
            stack[-1][-1] += {"{": [Slot(token[1:-1])], "\n": [" ", SENTENCE_END]}.get(token[0], [token])
    return stack[0][0]


class Grammar:
    """Writes and scores the stories of a template, each of which must end in `$`. A toy template works, too."""

    def __init__(self, template: str, tables: Iterable[Table]) -> None:
        self.parts, self.tables = parse(template), list(tables)
        self.table_of = {form: table for table in self.tables for form in table.forms}

    def _walk(self, pick: Callable[[Choice, str], int], memory: Memory) -> tuple[str, np.ndarray]:
        """Text with END, and its surprisals, along the way of `pick(choice, text so far)`."""
        text, surprisal, todo = "", [], self.parts[::-1]
        left: dict[Table, Table] = {}  # what the reader knows of each table
        while todo:
            part = todo.pop()
            if isinstance(part, str):
                text += part
                surprisal += [0.0] * len(part)
                if part == SENTENCE_END and memory == "sentence":
                    left.clear()
                continue
            table = self.table_of[part.form] if isinstance(part, Slot) else None
            choice, after = left.get(table, table).show(part.form) if table else part
            index = pick(choice, text)
            text += choice.texts[index]
            surprisal += choice.surprisals[index]
            if table:
                left[table] = after[index]
            else:
                todo += after[index][::-1]
        return text, np.array(surprisal)

    def write(self, generator: np.random.Generator) -> Story:
        """One story; every choice takes one uniform number of the generator."""
        text, surprisal = self._walk(lambda choice, _: bisect_right(choice.bounds, generator.random()), "story")
        return Story(text.removesuffix(END), surprisal)

    def surprisal(self, text: str, memory: Memory) -> np.ndarray:
        """What each character and the end cost, float64 [len(text) + 1]; ValueError for a text of no story."""

        def match(choice: Choice, told: str) -> int:
            whole, at = text + END, len(told)
            return next((k for k, candidate in enumerate(choice.texts) if whole.startswith(candidate, at)), 0)

        told, surprisal = self._walk(match, memory)
        if told != text + END:
            rest = text[len(commonprefix([told, text])) :]
            raise ValueError(f"not a story of this grammar, which cannot go on like {rest[:40]!r}")
        return surprisal


@cache
def moments(grammar: Grammar, memory: Memory) -> tuple[float, float, int]:
    """Mean surprisal of a story in nats, its mean number of symbols, and (memory "story") how many there are."""
    States = dict[frozenset[str], tuple[float, int]]  # forms remembered: (probability, ways through the forks)
    nats = symbols = 0.0

    def entropy(probabilities: Iterable[float]) -> float:
        return -sum(p * math.log(p) for p in probabilities)

    def mean_length(choice: Choice) -> float:
        return sum(p * len(text) for p, text in zip(choice.probabilities, choice.texts, strict=True))

    def shown(states: States) -> float:  # H(f_1) + H(f_2 | f_1) + .. = H(f_1, f_2, ..)
        return sum(p * entropy(t.cases(known)) for known, (p, _) in states.items() for t in grammar.tables)

    def follow(parts: Parts, states: States) -> States:
        nonlocal nats, symbols
        for part in parts:
            total, moved = sum(p for p, _ in states.values()), []
            if isinstance(part, str):
                symbols += total * len(part)
                if part != SENTENCE_END or memory == "story":
                    continue
                nats += shown(states)
                moved = [(frozenset(), state) for state in states.values()]
            elif isinstance(part, Slot):
                symbols += total * mean_length(grammar.table_of[part.form].show(part.form)[0])
                moved = [(known | {part.form}, state) for known, state in states.items()]
            else:
                nats += total * entropy(part.lead.probabilities)
                symbols += total * mean_length(part.lead)
                for share, rest in zip(part.lead.probabilities, part.rests, strict=True):
                    branch = {known: (share * p, ways) for known, (p, ways) in states.items()}
                    moved += follow(rest, branch).items()
            states = {}
            for known, (p, ways) in moved:
                before = states.get(known, (0.0, 0))
                states[known] = before[0] + p, before[1] + ways
        return states

    ends = follow(grammar.parts, {frozenset(): (1.0, 1)})
    count = sum(ways * math.prod(len(t.cases(known)) for t in grammar.tables) for known, (_, ways) in ends.items())
    return nats + shown(ends), symbols, count


@cache
def grammar() -> Grammar:
    """The grammar of the built-in stories."""
    return Grammar(STORY, [cast_table(), *(word_table(forms, words) for forms, words in WORDS.items())])


def write_stories(count: int, seed: int) -> list[Story]:
    """The first `count` stories of this seed: a larger count gives the same ones and more."""
    if count < 0:
        raise ValueError(f"count is {count}: ask for 0 stories or more")
    generator = np.random.Generator(np.random.PCG64(seed))
    return [grammar().write(generator) for _ in range(count)]


def story_entropy() -> float:
    """Entropy of a story in nats, in closed form: the mean of `story.surprisal.sum()`."""
    return moments(grammar(), "story")[0]


def expected_characters() -> float:
    """Mean of `len(story.text)`, in closed form."""
    return moments(grammar(), "story")[1] - 1


def distinct_stories() -> int:
    """How many different stories there are."""
    return moments(grammar(), "story")[2]


def exact_floor() -> float:
    """Nats per symbol to predict (the end is one) of the reader who remembers everything: the least mean loss."""
    return story_entropy() / (expected_characters() + 1)


def forgetful_floor() -> float:
    """Nats per symbol to predict of the forgetful reader, in closed form."""
    return moments(grammar(), "sentence")[0] / (expected_characters() + 1)


def forgetful_surprisal(story: Story) -> np.ndarray:
    """What each character and the end cost the forgetful reader in nats: float64 [len(story.text) + 1]."""
    return grammar().surprisal(story.text, "sentence")
