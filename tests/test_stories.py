"""The built-in stories: every figure the module states is checked against counting, summing or sampling done here."""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minihaares import stories
from minihaares.stories import END, SENTENCE_END, Choice, Fork, Grammar, Parts, Slot, Table, word_table

SAMPLES = 4000


@pytest.fixture(scope="module")
def sample() -> list[stories.Story]:
    return stories.write_stories(SAMPLES, seed=11)


# ---- A grammar small enough to write out by hand -------------------------------------------------------------------

TOY = """\
[There was|Once, there was] {a toy.look} {toy}.
[It was with {owner}.|Nobody wanted the {toy.look} {toy}, [but {owner} did|so {owner} took it].]
{Owner.she} [liked it|lost the {toy}].[$|
"My {toy}," said {owner}.$]"""
TWO = (4 / 7, 3 / 7)  # two things, the common one first: 1/3 to 1/4
TOY_ROWS = {("red", "ball"): 16 / 49, ("old", "ball"): 12 / 49, ("old", "bell"): 3 / 7}
OWNER_ROWS = {("she", "Ada"): 16 / 49, ("she", "Cleo"): 12 / 49, ("he", "Bo"): 3 / 7}


def toy_grammar() -> Grammar:
    return Grammar(TOY, [word_table("toy: toy.look", "ball: red, old; bell: old"),
                         word_table("owner.she: owner", "she: Ada, Cleo; he: Bo")])  # fmt: skip


def toy_stories() -> Iterator[tuple[float, list[tuple[tuple[int, ...], str]]]]:
    """(probability, sentences) of every derivation, in plain loops. A sentence is (branches taken before it, text)."""
    two = list(enumerate(TWO))
    for ((look, toy), p_toy), ((she, owner), p_owner) in itertools.product(TOY_ROWS.items(), OWNER_ROWS.items()):
        article = "an" if look == "old" else "a"
        for (a, p_a), (b, p_b), (c, p_c), (d, p_d), (e, p_e) in itertools.product(two, repeat=5):
            if b == 0 and c == 1:
                continue  # that fork is not met
            p = p_toy * p_owner * p_a * p_b * (p_c if b else 1.0) * p_d * p_e
            inner = ("but {} did", "so {} took it")[c].format(owner)
            second = f"Nobody wanted the {look} {toy}, {inner}. " if b else f"It was with {owner}. "
            third = f"{she.capitalize()} " + (f"lost the {toy}." if d else "liked it.") + (" " if e else END)
            path = (a, b, c) if b else (a, b)
            told = [((), f"{'Once, there was' if a else 'There was'} {article} {look} {toy}. "), ((a,), second),
                    (path, third)]  # fmt: skip
            yield p, told + [((*path, d, e), f'"My {toy}," said {owner}.{END}')] * e


def prefix_masses(weighted: list[tuple[float, str]]) -> dict[str, float]:
    mass: dict[str, float] = defaultdict(float)
    for p, text in weighted:
        for end in range(len(text) + 1):
            mass[text[:end]] += p
    return mass


def test_toy_surprisals_agree_with_enumeration():
    """Both readers, at each character of each story, against masses of all continuations: p(next) = M(sc) / M(s)."""
    derivations, grammar = list(toy_stories()), toy_grammar()
    whole = prefix_masses([(p, "".join(text for _, text in told)) for p, told in derivations])
    by_path = defaultdict(list)  # (sentence number, branches taken before it) -> its possible texts
    for p, told in derivations:
        for number, (path, text) in enumerate(told):
            by_path[number, path].append((p, text))
    sentence = {place: prefix_masses(weighted) for place, weighted in by_path.items()}
    assert len(derivations) == 3 * 3 * 24
    for _, told in derivations:
        text = "".join(text for _, text in told)
        exact = [math.log(whole[text[:k]] / whole[text[: k + 1]]) for k in range(len(text))]
        np.testing.assert_allclose(grammar.surprisal(text.removesuffix(END), "story"), exact, atol=1e-12)
        forgetful = [
            math.log(sentence[number, path][part[:k]] / sentence[number, path][part[: k + 1]])
            for number, (path, part) in enumerate(told)
            for k in range(len(part))
        ]
        np.testing.assert_allclose(grammar.surprisal(text.removesuffix(END), "sentence"), forgetful, atol=1e-12)


def test_toy_moments_agree_with_enumeration():
    law: dict[str, float] = defaultdict(float)
    for p, told in toy_stories():
        law["".join(text for _, text in told)] += p
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    nats, symbols, count = stories.moments(toy_grammar(), "story")
    assert nats == pytest.approx(-sum(p * math.log(p) for p in law.values()), rel=1e-12)
    assert symbols == pytest.approx(sum(p * len(text) for text, p in law.items()), rel=1e-12)
    assert count == len(law)
    grammar = toy_grammar()
    forgetful = sum(p * grammar.surprisal(text.removesuffix(END), "sentence").sum() for text, p in law.items())
    assert stories.moments(grammar, "sentence")[0] == pytest.approx(forgetful, rel=1e-12)
    assert forgetful > nats + 1


def test_toy_stories_are_drawn_with_their_probabilities():
    law: dict[str, float] = defaultdict(float)
    for p, told in toy_stories():
        law["".join(text for _, text in told).removesuffix(END)] += p
    generator, grammar, draws = np.random.default_rng(5), toy_grammar(), 20_000
    seen = Counter(grammar.write(generator).text for _ in range(draws))
    assert set(seen) <= set(law)
    chi2 = sum((seen[text] - draws * p) ** 2 / (draws * p) for text, p in law.items())
    freedom = len(law) - 1
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


# ---- Choices and templates -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text("ab", max_size=5), st.floats(0.01, 1)), min_size=1, max_size=8))
def test_a_choice_is_prefix_free_or_refused(candidates):
    texts, weights = zip(*candidates, strict=True)
    probabilities = [w / sum(weights) for w in weights]
    if any(a.startswith(b) for a, b in itertools.permutations(texts, 2)):
        with pytest.raises(ValueError, match="prefix-free"):
            Choice(texts, probabilities)
        return
    choice = Choice(texts, probabilities)
    for text, p, costs in zip(texts, probabilities, choice.surprisals, strict=True):
        assert len(costs) == len(text) and all(cost > -1e-12 for cost in costs)
        assert sum(costs) == pytest.approx(-math.log(p), abs=1e-12)


def test_what_is_certain_costs_exactly_nothing():
    (costs,) = Choice(["certain"], [1.0]).surprisals
    assert costs == [0.0] * 7
    shared = Choice(["in the park", "in the pond", "by the well"], [0.1, 0.2, 0.7]).surprisals[0]
    assert shared[1:8] == [0.0] * 7 and shared[8] == pytest.approx(math.log(3)) and shared[9:] == [0.0, 0.0]


@pytest.mark.parametrize("template", ["[a|b$", "a]$", "a|b$", "[a|[b|c]$"])
def test_brackets_must_match(template):
    with pytest.raises(ValueError, match="brackets"):
        Grammar(template, [])


def test_branches_must_be_told_apart_before_their_first_slot():
    with pytest.raises(ValueError, match="prefix-free"):
        Grammar("[{owner} ran|{owner} sat].$", [word_table("owner", "Ada; Bo")])


def forks(parts: Parts) -> Iterator[Fork]:
    for part in parts:
        if isinstance(part, Fork):
            yield part
            for rest in part.rests:
                yield from forks(rest)


def slots(parts: Parts) -> set[str]:
    inside = {form for fork in forks(parts) for rest in fork.rests for form in slots(rest)}
    return inside | {part.form for part in parts if isinstance(part, Slot)}


def test_every_reachable_choice_is_prefix_free():
    """At a slot the candidates are those of its form's texts that rows still possible have. A part of a prefix-free
    set is prefix-free, so it is enough to look at the texts of all rows together; and at the leads of every fork."""
    grammar = stories.grammar()
    sets = [fork.lead.texts for fork in forks(grammar.parts)]
    sets += [{row[form] for _, row in grammar.table_of[form].rows} for form in slots(grammar.parts)]
    assert len(sets) > 60
    for texts in sets:
        for a, b in itertools.permutations(texts, 2):
            assert not a.startswith(b), (a, b)


def test_all_words_are_used():
    """Each table's own forms appear in the template, so no data stands idle."""
    used = {form.split()[-1].lower() for form in slots(stories.grammar().parts)}
    for names in stories.WORDS:
        assert set(re.split("/|: ", names)) <= used, names


# ---- The built-in stories ------------------------------------------------------------------------------------------


def readings(parts: Parts, text: str, tables: dict[str, Table]) -> Iterator[tuple[int, float, list, list[int]]]:
    """Every way to read a beginning of `text`, by backtracking: (its length, probability of the forks taken,
    the (form, text) pairs shown, where sentences start)."""
    if not parts:
        yield 0, 1.0, [], []
        return
    part, rest = parts[0], parts[1:]
    if isinstance(part, str):
        heads = [(part, 1.0, [], rest)]
    elif isinstance(part, Slot):
        texts = {row[part.form] for _, row in tables[part.form].rows}
        heads = [(candidate, 1.0, [(part.form, candidate)], rest) for candidate in texts]
    else:
        law = [1 / (k + 3) for k in range(len(part.rests))]
        branches = zip(part.lead.texts, law, part.rests, strict=True)
        heads = [(lead, share / sum(law), [], [*branch, *rest]) for lead, share, branch in branches]
    for head, share, shown, after in heads:
        if text.startswith(head):
            for length, p, told, starts in readings(after, text[len(head) :], tables):
                begin = [0] if part == SENTENCE_END else []
                yield len(head) + length, share * p, shown + told, begin + [len(head) + at for at in starts]


def test_surprisal_is_minus_log_p_of_an_independent_scorer(sample):
    """p(story) = forks times, for each table, the summed weight of all rows that agree with everything shown.
    And there is one way only to read a story."""
    grammar = stories.grammar()
    for story in sample[:150]:
        ((length, p, shown, starts),) = readings(grammar.parts, story.text + END, grammar.table_of)
        assert length == len(story.text) + 1
        log_p = math.log(p)
        for table in grammar.tables:
            facts = [(form, text) for form, text in shown if grammar.table_of[form] is table]
            agree = sum(w for w, row in table.rows if all(row[form] == text for form, text in facts))
            log_p += math.log(agree / sum(w for w, _ in table.rows))
        assert story.surprisal.shape == (len(story.text) + 1,) and story.surprisal.dtype == np.float64
        assert story.surprisal.sum() == pytest.approx(-log_p, abs=1e-9)
        # The sentences in which the forgetful reader thinks are those that the punctuation shows. ("The end." is all
        # one candidate: as nothing is guessed inside it, it does not matter where in it the reader forgets.)
        body = story.text.removesuffix(" The end.")
        shown_starts = [match.end() for match in re.finditer(r"[.!?]\"? (?=[A-Z\"])", body)]
        assert [start for start in starts if start <= len(body)] == shown_starts


def test_surprisal_is_that_of_the_text(sample):
    for story in sample[:200]:
        again = stories.grammar().surprisal(story.text, "story")
        np.testing.assert_array_equal(again, story.surprisal)
        assert again.min() >= -1e-12


def test_the_cast():
    """Friend and hero differ; the friend's law is the hero's law without the hero."""
    rows = stories.cast_table().rows
    hero: dict[str, float] = defaultdict(float)
    for p, row in rows:
        hero[row["hero"]] += p
    assert sum(hero.values()) == pytest.approx(1, abs=1e-12) and len(hero) >= 40
    for p, row in rows:
        assert row["hero"] != row["friend"]
        assert p == pytest.approx(hero[row["hero"]] * hero[row["friend"]] / (1 - hero[row["hero"]]), rel=1e-9)
        assert (row["hero.she"], row["hero.his"]) in {("she", "her"), ("he", "his")}
        assert row["hero.she"] == "she" or row["hero.kind"] != "girl"
        assert row["hero.she"] == "he" or row["hero.kind"] != "boy"


def within(values: np.ndarray, expected: float) -> None:
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - expected) < 4 * error
    assert error < 0.01 * expected  # or the check above would say little


def test_sampled_means_agree_with_the_closed_forms(sample):
    symbols = stories.expected_characters() + 1
    within(np.array([story.surprisal.sum() for story in sample]), stories.story_entropy())
    within(np.array([len(story.text) for story in sample]), stories.expected_characters())
    forgetful = np.array([stories.forgetful_surprisal(story).sum() for story in sample])
    within(forgetful, stories.forgetful_floor() * symbols)
    assert stories.exact_floor() == pytest.approx(stories.story_entropy() / symbols, rel=1e-12)


def test_forgetting_is_expensive():
    assert 0.05 < stories.exact_floor() < 0.12
    assert stories.forgetful_floor() > 1.5 * stories.exact_floor()


def test_the_closed_forms_add_up_by_the_chain_rule():
    """The entropy by another road: H(forks) + sum over ways through the forks of p(way) H(forms shown on it)."""
    grammar, nats, ways = stories.grammar(), 0.0, 0
    for p, entropy_of_forks, forms, count in fork_ways(grammar.parts):
        ways += count
        nats += p * sum(label_entropy(table, forms) for table in grammar.tables) + entropy_of_forks
    assert nats == pytest.approx(stories.story_entropy(), rel=1e-9)
    assert ways < stories.distinct_stories()


def fork_ways(parts: Parts) -> list[tuple[float, float, frozenset[str], int]]:
    """(p, its share of the forks' -p log p, forms shown, ways) for each set of forms, built from the end."""
    whole = {frozenset(): (1.0, 0.0, 1)}
    for part in reversed(parts):
        if isinstance(part, Slot):
            options = [(1.0, frozenset({part.form}), 0.0, 1)]
        elif isinstance(part, Fork):
            law = [1 / (k + 3) / sum(1 / (j + 3) for j in range(len(part.rests))) for k in range(len(part.rests))]
            options = [
                (share * p, forms, share * (nats - p * math.log(share)), ways)
                for share, rest in zip(law, part.rests, strict=True)
                for p, nats, forms, ways in fork_ways(rest)
            ]
        else:
            continue
        merged: dict[frozenset[str], tuple[float, float, int]] = defaultdict(lambda: (0.0, 0.0, 0))
        for (after, (q, later, n)), (p, forms, nats, ways) in itertools.product(whole.items(), options):
            old = merged[after | forms]
            merged[after | forms] = (old[0] + p * q, old[1] + q * nats + p * later, old[2] + n * ways)
        whole = dict(merged)
    return [(p, nats, forms, ways) for forms, (p, nats, ways) in whole.items()]


def label_entropy(table: Table, forms: frozenset[str]) -> float:
    mass: dict[tuple[str, ...], float] = defaultdict(float)
    for weight, row in table.rows:
        mass[tuple(row[form] for form in sorted(forms) if form in row)] += weight
    p = np.array(list(mass.values())) / sum(mass.values())
    return float(-(p * np.log(p)).sum())


def test_what_returns_is_certain_only_to_the_reader_who_remembers(sample):
    """The hero's name after its first mention: free for the one reader, and at a sentence's start dear to the other."""
    checked = 0
    for story in sample[:300]:
        name = re.search(r"named (\w+)\.", story.text)[1]
        forgetful = stories.forgetful_surprisal(story)
        assert story.surprisal[story.text.index(name) : story.text.index(name) + len(name)].sum() > 0.5
        for match in list(re.finditer(rf"(?<=[.!?] ){name}\b", story.text)):
            assert not story.surprisal[match.start() : match.end()].any()
            assert forgetful[match.start() : match.end()].sum() > 2
            checked += 1
    assert checked > 50


def test_the_forgetful_reader_remembers_its_sentence(sample):
    """In 'She loved to .. with her aunt' it has to guess the first pronoun, which then gives the second away."""
    pattern, met = re.compile(r"(She|He) \w+ to [\w ]+ with (her|his) "), 0
    for story in sample[:100]:
        if match := pattern.match(story.text, story.text.index(". ") + 2):
            costs = stories.forgetful_surprisal(story)
            assert costs[match.start(1)] > 0.3 and not costs[match.start(2) : match.end(2)].any()
            assert not story.surprisal[match.start(1) : match.end(1)].any()
            met += 1
    assert met > 10


def test_seeds_and_counts():
    assert stories.write_stories(10, 3) == stories.write_stories(20, 3)[:10]
    again = stories.write_stories(10, 3)
    for story, other in zip(stories.write_stories(10, 3), again, strict=True):
        np.testing.assert_array_equal(story.surprisal, other.surprisal)
    assert stories.write_stories(0, 3) == []
    assert stories.write_stories(10, 3) != stories.write_stories(10, 4)
    with pytest.raises(ValueError, match="0 stories or more"):
        stories.write_stories(-1, 3)


def test_two_seeds_share_no_story(sample):
    texts = {story.text for story in sample}
    assert len(texts) == SAMPLES
    assert texts.isdisjoint(story.text for story in stories.write_stories(1000, seed=12))


def lengths(parts: Parts) -> dict[tuple[str, ...], tuple[int, int]]:
    """Slots met on some way -> shortest and longest literal text on such ways."""
    whole = {(): (0, 0)}
    for part in parts:
        if isinstance(part, str):
            options = {(): (len(part), len(part))}
        elif isinstance(part, Slot):
            options = {(part.form,): (0, 0)}
        else:
            options = {}
            for lead, rest in zip(part.lead.texts, part.rests, strict=True):
                for forms, (low, high) in lengths(rest).items():
                    before = options.get(forms, (10**6, 0))
                    options[forms] = min(before[0], low + len(lead)), max(before[1], high + len(lead))
        merged: dict[tuple[str, ...], tuple[int, int]] = {}
        for (a, (low, high)), (b, (low_b, high_b)) in itertools.product(whole.items(), options.items()):
            forms = tuple(sorted(a + b))
            before = merged.get(forms, (10**6, 0))
            merged[forms] = min(before[0], low + low_b), max(before[1], high + high_b)
        whole = merged
    return whole


def test_every_story_fits_one_window(sample):
    """The shortest and the longest story there can be, over all ways and all rows, not over a sample."""
    grammar, shortest, longest = stories.grammar(), 10**6, 0
    for forms, (low, high) in lengths(grammar.parts).items():
        for table in grammar.tables:
            mine = [form for form in forms if form in table.forms]
            row_lengths = [sum(len(row[form]) for form in mine) for _, row in table.rows]
            low, high = low + min(row_lengths), high + max(row_lengths)
        shortest, longest = min(shortest, low - 1), max(longest, high - 1)  # without the end
    assert 180 <= shortest and longest <= 500
    seen = [len(story.text) for story in sample]
    assert shortest <= min(seen) and max(seen) <= longest
    assert 350 < stories.expected_characters() < 450


def test_texts_are_clean(sample):
    for story in sample:
        text = story.text
        assert text.isascii() and text.isprintable() and END not in text
        assert "  " not in text and text == text.strip() and text[-1] in '."'
        assert not re.search(r"[{}\[\]|]| [.,!?]|[.!?,]{2}", text), text
        assert text.count('"') % 2 == 0
        assert all(re.match(r'"?[A-Z]', sentence) for sentence in re.split(r"(?<=[.!?]) (?=[A-Z\"])", text)), text
        for article, word in re.findall(r"\b([Aa]n?) (\w+)", text):
            assert (article.lower() == "an") == (word[0] in "aeiou" or word == "honest"), text


def test_pronouns_follow_the_hero(sample):
    gender = {row["hero"]: row["hero.she"] for _, row in stories.cast_table().rows}
    for story in sample:
        name = re.search(r"named (\w+)\.", story.text)[1]
        assert re.search(rf"named {name}\. ({gender[name].capitalize()}) ", story.text), story.text


def test_the_corpus_is_rich(sample):
    words = {word.lower() for story in sample for word in re.findall(r"[A-Za-z']+", story.text)}
    assert len(words) >= 500
    assert stories.distinct_stories() > 10**15
    (shapes,) = [fork.lead.texts for fork in forks(stories.grammar().parts) if "could not find " in fork.lead.texts]
    assert len(shapes) >= 8
    for lead in shapes:
        assert sum(lead in story.text for story in sample) > 0.04 * SAMPLES, lead


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_text_is_refused_or_another_story(data):
    story = stories.write_stories(5, seed=21)[data.draw(st.integers(0, 4))]
    at = data.draw(st.integers(0, len(story.text) - 1))
    letter = data.draw(st.sampled_from('abcdefghij XYZ.,"!$\n'))
    assume(letter != story.text[at])
    changed = story.text[:at] + letter + story.text[at + 1 :]
    grammar = stories.grammar()
    if any(n == len(changed) + 1 for n, *_ in readings(grammar.parts, changed + END, grammar.table_of)):
        assert grammar.surprisal(changed, "story").sum() > 0
    else:
        with pytest.raises(ValueError, match="not a story of this grammar"):
            grammar.surprisal(changed, "story")


def test_more_or_less_than_a_story_is_refused(sample):
    text = sample[0].text
    for wrong in ("", text[:-1], text + " And so on.", "Hello."):
        with pytest.raises(ValueError, match="not a story of this grammar"):
            stories.forgetful_surprisal(stories.Story(wrong, np.zeros(len(wrong) + 1)))
