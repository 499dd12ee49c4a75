"""The built-in corpus: short stories whose entropy is known exactly, so that a loss has a best value to reach.

**A story** comes from one template, STORY. `[a|b|c]` is a *fork*: one branch is taken, the first most often.
`{toy}` is a *slot*: it shows a *form*, one column of a table; `{a toy}` adds an article, a capital inside the
braces makes a capital. One row of each table holds for a whole story, so what was shown stays true: a red kite
is red in the last sentence, too. A slot is a choice only as far as earlier slots left its row open. A line break
ends a sentence and is written as a space; `$` is the end of the story.

**Surprisals.** The candidates of a choice (a slot's texts in the rows still possible, the literal beginnings of
a fork's branches) are prefix-free: none begins another. So the text up to any character tells which choices were
made, and that the present candidate begins with the characters c_1 .. c_k seen of it. With M(s) the summed
probability of the candidates that begin with s, the next one has p(c | all before) = M(c_1 .. c_k c) / M(c_1 .. c_k).
Along a candidate this telescopes to M(candidate) / M("") = its probability; text between choices is certain and
costs 0. So the surprisals of a story, end included, sum to -log of the product of its choices' probabilities;
as a text comes from one sequence of choices only, that is -log p(story).

**Entropy.** Forks and the rows of different tables are independent. By the chain rule the entropy of a story is a
sum of conditional entropies, one a choice; at a slot, H(forms shown and this one) - H(forms shown), both of a
finite table. `moments` adds them up over all ways through the forks: a closed form, nothing is sampled.

**The forgetful reader** knows the grammar and where in it the text stands (the kind of story, the branches taken,
which sentence this is) and remembers what the present sentence has shown. Who, what and where earlier sentences
were about it must guess anew. Its mean loss is a sum of conditional entropies given exactly this knowledge: no
reader that uses this or less does better, and a model below `forgetful_floor()` carries names, things or places
across sentences. (An n-gram sees a few characters of the sentence before, too: only there is it no such reader.)
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

END, SENTENCE_END = "$", "\n"  # the story's end, which no text contains; where the forgetful reader forgets

# Tables: the names of the forms, and rows as `head: tail, tail`. Here as in the forks, common ones come first.
CHARACTERS = """girl/she/her/her: Lily, Mia, Anna, Nora, Ruby, Zoe, Ivy, Clara, Maya, Tess, Hana, Rose, Ella;
boy/he/him/his: Tom, Ben, Sam, Leo, Max, Omar, Finn, Hugo, Ravi, Noah, Kofi, Jack, Paul;
rabbit/she/her/her: Clover, Thistle; fox/he/him/his: Rusty, Copper; bear/he/him/his: Bruno, Bramble;
mouse/she/her/her: Dot, Crumb; duck/she/her/her: Puddle, Waddle; owl/he/him/his: Otis, Hoot;
squirrel/she/her/her: Hazel, Acorn; frog/he/him/his: Croak, Moss; hedgehog/he/him/his: Bristle, Thorn"""
WORDS = {
    "hobby": """sing songs; read books; paint pictures; count the stars; climb trees; dance; build towers;
        bake bread; draw maps; watch the clouds; pick flowers; tell jokes; feed the birds; write poems""",
    "elder": "mother; father; grandmother; grandfather; aunt; uncle; big sister; teacher; big brother; cousin",
    "weather": "rain; snow; thunder; hail",
    "petname": "Button; Spot; Biscuit; Pebble; Snowy; Whiskers; Daisy; Lucky; Pepper; Sunny; Cookie; Velvet",
    "toy: toy.look": """ball: red, blue, big, striped, orange; kite: yellow, red, long, purple;
        boat: little, blue, wooden; doll: soft, old, pretty, tiny; drum: loud, round, red, old;
        truck: green, big, shiny, yellow; bell: silver, tiny, golden; robot: tall, funny, shiny, orange;
        whistle: silver, wooden, loud; puppet: funny, soft, striped; crown: golden, paper, tiny;
        horn: brass, loud, old; wagon: red, wooden, little; umbrella: yellow, striped, enormous, green""",
    "food: food.look": """pie: apple, cherry, pumpkin; cake: honey, carrot, lemon, orange; tart: plum, apricot;
        sandwich: cheese, egg, jam; muffin: berry, banana, oat; bun: warm, sweet, onion; melon: ripe, juicy""",
    "dish: dish.look": """cup: blue, white, old; plate: painted, round, ivory; vase: tall, glass, green;
        teapot: old, brown, white; bowl: clay, round, glass; jug: heavy, blue""",
    "pet: pet.look": """kitten: tiny, white, orange; puppy: brown, hungry, small; bird: young, blue, injured;
        lamb: woolly, white, lost; turtle: old, slow, green; pony: small, spotted, brown""",
    "wrap: wrap.look": "box: pink, green, flat, gold; bag: paper, yellow, silk; basket: round, straw, open",
    "place/where: spot": """park/in the park: under a bench, behind a tree, beside the swings, on the steps;
        beach/at the beach: behind a rock, under a towel, next to a sandcastle, on the pier;
        forest/in the forest: under a fern, behind a log, beside a stream, between two oaks;
        garden/in the garden: under a rose bush, behind the shed, near the gate, among the tulips;
        farm/on the farm: behind the barn, under a cart, beside the haystack, near the hen house;
        river/by the river: on the bank, under the bridge, among the reeds, near the mill;
        meadow/in the meadow: in the tall grass, beside a puddle, among the daisies;
        hill/on the hill: next to the windmill, behind a stone wall, under the pine trees;
        market/at the market: under a table, behind a fruit stand, beside the well;
        lake/at the lake: in a rowing boat, on the dock, near the willows;
        orchard/in the orchard: under a pear tree, up a ladder, behind a crate;
        station/at the station: beside the tracks, on a suitcase, under the clock""",
    "fear: dared": """old bridge: walked over, ran across; dark tunnel: crept through, marched through;
        deep stream: waded across, jumped over; high wall: climbed over; thick hedge: squeezed through;
        steep hill: climbed up, marched up; gloomy barn: walked through; muddy swamp: tiptoed around""",
    "skill: slip": """ride a bike: fell off, wobbled; whistle: made no sound, only blew air; juggle: got muddled;
        skip rope: tripped, lost count; skate: slipped, fell over; do a cartwheel: landed badly, fell over;
        walk on stilts: wobbled, tumbled; play the flute: only squeaked, lost the tune; throw a hoop: missed;
        climb a rope: slid down, got stuck; catch a frisbee: missed, dropped it""",
    "craft/role: stuff": """castle/guard: pillows, chairs, boxes; ship/captain: blankets, boxes, baskets;
        rocket/pilot: boxes, cushions, old pots; train/driver: chairs, stools, suitcases;
        cave/wizard: blankets, curtains, cushions; palace/ruler: towels, pillows, books""",
}

STORY = """\
[Once upon a time, there was|There once was|In a quiet town, there lived|Far away, there lived|\
By the sea, there was|Not long ago, there was] [a little|a kind|a clever|a cheerful|a shy|a curious|\
an eager|a gentle|a lively|an honest|a polite|a busy|a merry|a quiet] {hero.kind} named {hero}.
{Hero.she} [loved|liked] to {hobby}[.| with {hero.his} {elder}.| all day long.]
[One day|One morning|One afternoon|One sunny day|One Sunday|One windy day], {hero} [\
could not find {hero.his} {toy.look} {toy}.
{Hero.she} looked [under the bed|in every box|behind the sofa|all over the house], but it was gone.
"I had it {where}," {hero.she} told {hero.his} friend {friend}.
They [hurried|ran|walked] to the {place} and looked [carefully|everywhere|again].
{friend} [called|shouted|cried], "Here is your {toy}, {spot}!"
{hero} [hugged|thanked] {friend} and [happily|proudly|gently] carried the {toy.look} {toy} home.\
|took {hero.his} {toy.look} {toy} to the {place}.
{A friend.kind} was [sitting|waiting|standing] {spot}, looking [lonely|sad|bored|shy].
"My name is {friend}," [said|whispered|mumbled] the {friend.kind}.
"Do you want to play with my {toy}?" asked {hero}.
{friend} [nodded|laughed|agreed], and they played until [the sun set|it got dark|supper time].
From then on, {hero} and {friend} were [good|best|true|dear] friends.\
|remembered that it was {friend}'s birthday.
{Hero.she} went to [the shop|the fair|a toy store|town] with {hero.his} {elder} and [found|bought|chose] \
{a toy.look} {toy}.
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
{hero} was afraid and wanted to [turn back|go home|hide|run away].
But {friend}'s {toy.look} {toy} was on the other side.
"[Please|Oh, please|Dear {hero}, please] help me get my {toy}," said {friend}.
{hero} took a [deep|long|slow] breath and {dared} the {fear}.
Soon {hero.she} came back with the {toy.look} {toy}.
"You are [so|very|really] brave, {hero}!" said {friend}.\
|was playing in the kitchen and broke {a dish.look} {dish} with {hero.his} {toy}.
{Hero.she} hid the pieces [under the rug|behind the stove|in a drawer|under the sink].
"Who broke my {dish.look} {dish}?" asked {hero.his} {elder}.
{hero} wanted to [say nothing|run away|blame the cat|tell a lie], but {hero.she} told the truth.
"I broke it with my {toy}," {hero.she} said [quietly|in a small voice|with red cheeks].
"Thank you for being honest, {hero}," said {hero.his} {elder}.]
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
    """Prefix-free candidate texts, their probabilities, and the surprisals of their characters in nats."""

    def __init__(self, texts: Iterable[str], probabilities: Iterable[float]) -> None:
        self.texts, self.probabilities = list(texts), list(probabilities)
        mass: dict[str, float] = {}  # M(s) of the module's docstring, for every beginning s of a candidate
        for text, p in zip(self.texts, self.probabilities, strict=True):
            for end in range(len(text) + 1):
                mass[text[:end]] = mass.get(text[:end], 0.0) + p
        for text, p in zip(self.texts, self.probabilities, strict=True):
            if mass[text] != p:
                raise ValueError(f"{text!r} begins another candidate of its choice: make them prefix-free")
        # Where one character is certain, M sums the same numbers before and after it: it costs exactly 0.
        self.surprisals = [
            [math.log(mass[text[:k]] / mass[text[: k + 1]]) for k in range(len(text))] for text in self.texts
        ]
        self.bounds = [*accumulate(self.probabilities)][:-1]


class Table:
    """The rows that may hold in a story: all of them at first, fewer after a slot that told something."""

    def __init__(self, rows: list[tuple[float, dict[str, str]]]) -> None:
        self.rows = rows  # (weight, {form: text})
        self._shown: dict[str, tuple[Choice, list[Table]]] = {}
        self._cases: dict[frozenset[str], dict[tuple[str, ...], float]] = {}

    def show(self, form: str) -> tuple[Choice, list[Table]]:
        """The candidates of slot {form}, and the table that is left after each of them."""
        if form not in self._shown:
            groups: dict[str, list[tuple[float, dict[str, str]]]] = {}
            for weight, row in self.rows:
                groups.setdefault(_text(form, row), []).append((weight, row))
            masses = [sum(weight for weight, _ in rows) for rows in groups.values()]
            left = [Table(rows) for rows in groups.values()] if len(groups) > 1 else [self]
            self._shown[form] = Choice(groups, [mass / sum(masses) for mass in masses]), left
        return self._shown[form]

    def cases(self, forms: Iterable[str]) -> dict[tuple[str, ...], float]:
        """What this table's among the forms can show together, with probabilities."""
        mine = frozenset(form for form in forms if _column(form) in self.rows[0][1])
        if mine not in self._cases:
            total, cases = sum(weight for weight, _ in self.rows), {}
            for weight, row in self.rows:
                texts = tuple(_text(form, row) for form in sorted(mine))
                cases[texts] = cases.get(texts, 0.0) + weight / total
            self._cases[mine] = cases
        return self._cases[mine]


def _column(form: str) -> str:
    return form.split()[-1].lower()


def _text(form: str, row: dict[str, str]) -> str:
    text = row[_column(form)]
    if " " in form:
        text = f"an {text}" if text[0] in "aeiou" else f"a {text}"
    return text[0].upper() + text[1:] if form[0].isupper() else text


def ranked(count: int) -> list[float]:
    """Probabilities of things listed from common to rare: for the k-th, from 0, in proportion to 1 / (k + 3)."""
    weights = [1 / (k + 3) for k in range(count)]
    return [weight / sum(weights) for weight in weights]


def word_table(forms: str, words: str) -> Table:
    """An entry of WORDS as a table: the heads are ranked, and so are the tails of each head."""
    rows, entries = [], [entry.partition(": ") for entry in re.split(r";\s*", words)]
    for head_p, (head, _, tails) in zip(ranked(len(entries)), entries, strict=True):
        for p, tail in zip(ranked(tails.count(",") + 1), tails.split(", "), strict=True):
            texts = [*head.split("/"), tail]
            rows.append((head_p * p, dict(zip(re.split("/|: ", forms), texts, strict=False))))
    return Table(rows)


def cast_table() -> Table:
    """Hero and friend, two characters: the friend is drawn as a hero is, from all but the hero."""

    def play(role: str, character: dict[str, str]) -> dict[str, str]:
        return {role: character["name"]} | {f"{role}.{form}": text for form, text in character.items()}

    pairs = permutations(word_table("kind/she/him/his: name", CHARACTERS).rows, 2)
    return Table([(p * q / (1 - p), play("hero", a) | play("friend", b)) for (p, a), (q, b) in pairs])


class Slot(NamedTuple):
    form: str


class Fork(NamedTuple):
    lead: Choice  # the literal text that each branch begins with
    rests: list[list[str | Slot | Fork]]  # and what follows it


Parts = list[str | Slot | Fork]  # a str is literal text, or SENTENCE_END, which writes nothing
Memory = Literal["story", "sentence"]  # of the reader who remembers everything, of the forgetful one


def parse(template: str) -> Parts:
    """The parts of a template; ValueError if its brackets do not match or a fork is not prefix-free."""
    stack: list[list[Parts]] = [[[]]]  # the branches so far of every fork still open, outermost first
    for token in [*re.findall(r"[\[|\]\n]|\{[^{}]*\}|[^\[|\]\n{}]+", template), "END"]:
        if (len(stack) == 1) == (token in ("|", "]")) or (len(stack) > 1 and token == "END"):
            raise ValueError("the brackets of the template do not match")
        if token == "[":
            stack.append([[]])
        elif token == "|":
            stack[-1].append([])
        elif token == "]":
            leads, rests = [], []
            for branch in stack.pop():
                cut = next((k for k, part in enumerate(branch) if not isinstance(part, str)), len(branch))
                leads.append("".join(branch[:cut]).replace(SENTENCE_END, ""))
                rests.append([part for part in branch[:cut] if part == SENTENCE_END] + branch[cut:])
            stack[-1][-1].append(Fork(Choice(leads, ranked(len(leads))), rests))
        elif token != "END":
            stack[-1][-1] += {"{": [Slot(token[1:-1])], "\n": [" ", SENTENCE_END]}.get(token[0], [token])
    return stack[0][0]


class Grammar:
    """A template, every story of which ends in `$`, with its tables: writes stories and scores them.

    A toy template that can be checked by hand works as well as STORY.
    """

    def __init__(self, template: str, tables: Iterable[Table]) -> None:
        self.parts, self.tables = parse(template), list(tables)
        self.table_of = {column: table for table in self.tables for column in table.rows[0][1]}

    def _walk(self, pick: Callable[[Choice, str], int], memory: Memory) -> tuple[str, np.ndarray]:
        """Text with END, and its surprisals, along the way of `pick(choice, text so far)`."""
        text, surprisal = "", []
        left: dict[Table, Table] = {}  # what the reader knows of each table
        todo = self.parts[::-1]
        while todo:
            part = todo.pop()
            if isinstance(part, Slot):
                table = self.table_of[_column(part.form)]
                choice, after = left.get(table, table).show(part.form)
                index = pick(choice, text)
                left[table] = after[index]
            elif isinstance(part, Fork):
                choice = part.lead
                index = pick(choice, text)
                todo += part.rests[index][::-1]
            elif part == SENTENCE_END:
                if memory == "sentence":
                    left.clear()
                continue
            else:
                choice, index = _certain(part), 0
            text += choice.texts[index]
            surprisal += choice.surprisals[index]
        return text, np.array(surprisal)

    def write(self, generator: np.random.Generator) -> Story:
        """One story; each choice between two candidates or more takes one uniform number."""

        def draw(choice: Choice, _: str) -> int:
            return bisect_right(choice.bounds, generator.random()) if choice.bounds else 0

        text, surprisal = self._walk(draw, "story")
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
