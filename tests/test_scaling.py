"""Power laws on points whose law is known, envelopes on curves drawn by hand, and the ratio of compute end to end."""

import itertools
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from minihaares import bench, costs, pictures_scaling, plots, scaling
from minihaares.experiments import append, read_grid
from minihaares.model import ModelConfig, Transformer
from minihaares.power_laws import Law, ScalingError, SizeAndData, fit_law, fit_parallel, fit_size_and_data
from minihaares.scaling import bootstrap, compare, envelope, read_points, seed_spread, size_curves, size_ratios, span

COMPUTES = np.geomspace(1e10, 1e13, 30)
TRUTH = SizeAndData(a=60, alpha=0.4, b=900, beta=0.5, c=0.8)  # over parameters and tokens
SIZES = {"a": 20_000, "b": 60_000, "c": 180_000}
TRUE_RATIO = 1.30  # of the arm "wide" over the arm "plain", in compute at any loss


def points(noise: float = 0.0, seed: int = 0, seeds: int = 3) -> pd.DataFrame:
    """What `read_points` gives, of two arms: TRUTH at 6 N D FLOPs, and the same with TRUE_RATIO times the tokens."""
    rng, tables = np.random.default_rng(seed), []
    for arm, speed in (("plain", 1.0), ("wide", TRUE_RATIO)):
        for place, (size, N) in enumerate(SIZES.items()):
            for which in range(seeds if place < 2 else 1):
                steps = np.arange(100, 1500 * 3**place + 1, 100)
                loss = TRUTH(N, speed * steps * 1024) * math.exp(rng.normal(0, noise))
                facts = dict(run=f"{arm}{size}{which}", arm=arm, seed=which, size=size, N=N)
                columns = dict(step=steps, tokens=steps * 1024, flops=6.0 * N * steps * 1024, loss=loss)
                tables.append(pd.DataFrame(columns).assign(**facts))
    return pd.concat(tables, ignore_index=True)


def lines(**curves: list[tuple[float, float]]) -> pd.DataFrame:
    """One arm from (flops, loss) pairs; the names are sizes with a seed, like s1_0, in growing order."""
    rows = [
        dict(run=name, arm="x", seed=int(name[-1]), size=name[:2], N=int(name[1]), step=i + 1, flops=C, loss=loss)
        for name, curve in curves.items()
        for i, (C, loss) in enumerate(curve)
    ]
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("a, alpha, c", [(0.9, 0.25, 0.6), (1.5, 0.08, 0.0), (0.3, 1.2, 1.1)])
def test_a_law_without_noise_is_found_exactly(a, alpha, c):
    truth = Law(a, alpha, c, C0=3e11)
    found = fit_law(COMPUTES, truth(COMPUTES))
    assert found.alpha == pytest.approx(alpha, rel=1e-3) and found.c == pytest.approx(c, abs=2e-3)
    assert found(COMPUTES) == pytest.approx(truth(COMPUTES), rel=1e-5)
    assert truth.compute(truth(5e11)) == pytest.approx(5e11)


def test_one_wild_point_does_not_bend_the_law():
    truth = Law(0.9, 0.25, 0.6, C0=3e11)
    loss = truth(COMPUTES)
    loss[12] *= 1.3
    assert fit_law(COMPUTES, loss)(COMPUTES) == pytest.approx(truth(COMPUTES), rel=2e-3)


def test_parallel_laws_have_one_ratio():
    first, second = Law(0.9, 0.25, 0.6, C0=3e11), Law(0.9 * TRUE_RATIO**-0.25, 0.25, 0.6, C0=3e11)
    one, other = fit_parallel([(COMPUTES, first(COMPUTES)), (COMPUTES[5:], second(COMPUTES[5:]))])
    assert (one.alpha, one.c, one.C0) == (other.alpha, other.c, other.C0)
    for loss in (0.9, 1.5, 3):
        assert one.compute(loss) / other.compute(loss) == pytest.approx(TRUE_RATIO, rel=1e-3)


def test_size_and_data_are_told_apart():
    N, D = (x.ravel() for x in np.meshgrid([2e4, 6e4, 2e5, 6e5], np.geomspace(1e5, 1e7, 12)))
    found = fit_size_and_data(N, D, TRUTH(N, D))
    assert (found.alpha, found.beta) == (pytest.approx(0.4, rel=0.01), pytest.approx(0.5, rel=0.01))
    assert found.c == pytest.approx(0.8, abs=0.01) and found(N, D) == pytest.approx(TRUTH(N, D), rel=1e-4)


GOOD = Law(0.9, 0.25, 0.6, C0=3e11)(COMPUTES)


@pytest.mark.parametrize(
    "C, loss, says",
    [
        (COMPUTES[:4], GOOD[:4], "at least 5"),
        (COMPUTES, GOOD[:-1], "one length"),
        (COMPUTES, np.where(COMPUTES > 5e12, np.nan, GOOD), "positive, finite"),
        (-COMPUTES, GOOD, "positive, finite"),
        (np.linspace(1e12, 2e12, 30), GOOD, "factor of 3"),
        (COMPUTES, GOOD[::-1], "does not fall"),
        (COMPUTES, Law(0.01, 6, 1, C0=3e11)(COMPUTES), "do not determine"),  # steeper than any law of its kind
    ],
)
def test_points_without_a_law_are_refused(C, loss, says):
    with pytest.raises(ScalingError, match=says):
        fit_law(C, loss)


def test_a_loss_below_the_floor_takes_no_compute():
    with pytest.raises(ScalingError, match="no compute reaches"):
        Law(0.9, 0.25, 0.6).compute(0.6)


def test_size_and_data_need_sizes():
    with pytest.raises(ScalingError, match="three sizes"):
        fit_size_and_data(np.repeat([2e4, 6e4], 15), COMPUTES, GOOD)


# ------------------------------------------------------------------------------------------------ envelopes


def test_the_envelope_is_the_best_size_and_seeds_are_averaged():
    arm = lines(s1_0=[(1, 4), (100, 2)], s1_1=[(1, 4), (100, 1)], s2_0=[(10, 8), (1000, 1)])
    found = envelope(arm, [1, 10, 100, 1000])
    assert list(found["size"]) == ["s1", "s1", "s1", "s2"]
    # halfway in log compute is halfway in log loss: 4 -> 2 gives sqrt 8, 4 -> 1 gives 2
    assert found["loss"].tolist() == pytest.approx([4, (math.sqrt(8) + 2) / 2, 1.5, 1])
    assert math.isinf(size_curves(arm, [1, 1000]).loc[1, "s2"])
    with pytest.raises(ScalingError, match="no size was trained"):
        envelope(arm, [2000])


def test_the_span_ends_with_the_first_curve_that_was_still_the_best():
    overtaken = lines(s1_0=[(1, 4), (100, 2)], s2_0=[(5, 4), (50, 1.5), (1000, 1)])
    assert span(overtaken, warm_up=1) == (1, 1000)
    assert span(overtaken, warm_up=2) == (100, 1000)
    cut_short = lines(s1_0=[(1, 4), (40, 2)], s2_0=[(5, 4), (50, 3), (1000, 1)])
    assert span(cut_short, warm_up=1) == (1, 40)
    nearly = lines(s1_0=[(1, 4), (40, 2)], s2_0=[(5, 4), (40, 2.015), (1000, 1)])
    assert span(nearly, warm_up=1) == (1, 1000) and span(nearly, warm_up=1, slack=0) == (1, 40)
    with pytest.raises(ScalingError, match="train longer"):
        span(cut_short, warm_up=2)


# ------------------------------------------------------------------------------------------------ two arms


def test_a_known_ratio_comes_back_by_law_and_without_one():
    found = compare(points(), "plain", "wide")
    for loss in found.losses(7)[1:-1]:
        assert found.ratio(loss) == pytest.approx(TRUE_RATIO, abs=0.02)
        assert found.direct(loss) == pytest.approx(TRUE_RATIO, abs=0.02)
    assert found.one_ratio == pytest.approx(TRUE_RATIO, abs=0.02)
    assert compare(points(), "wide", "plain").one_ratio == pytest.approx(1 / TRUE_RATIO, abs=0.02)


def test_the_interval_covers_a_known_ratio_and_knows_the_noise():
    covered, sigmas = 0, []
    for seed in range(6):
        noisy = points(noise=0.01, seed=seed)
        found = compare(noisy, "plain", "wide")
        loss = found.losses(3)[1]
        chance = bootstrap(noisy, found, [loss], draws=30, seed=seed)
        low, high = chance.interval(0.9).loc[loss]
        covered += low < TRUE_RATIO < high
        assert 1.02 < high / low < 2
        sigmas.append(chance.sigma)
    assert covered >= 5
    assert np.mean(sigmas) == pytest.approx(0.01, rel=0.35)


def test_the_same_seed_gives_the_same_interval_and_more_noise_a_wider_one():
    wide, narrow = points(noise=0.02), points(noise=0.002)
    width = []
    for data in (wide, narrow):
        found = compare(data, "plain", "wide")
        one, again = (bootstrap(data, found, [], draws=20).interval() for _ in range(2))
        pd.testing.assert_frame_equal(one, again)
        width.append(math.log(one.loc["one", "high"] / one.loc["one", "low"]))
    assert width[0] > 3 * width[1]


def test_sizes_one_by_one_and_together():
    found = size_ratios(points(), "plain", "wide").set_index("size")
    assert list(found.index) == ["a", "b", "c", "all"]
    assert found["flops"].to_numpy() == pytest.approx(TRUE_RATIO, abs=0.02)
    assert found["steps"].to_numpy() == pytest.approx(TRUE_RATIO, abs=0.02)  # the arms' steps cost the same here
    noisy = size_ratios(points(noise=0.01), "plain", "wide").set_index("size")
    width = np.log(noisy["high"] / noisy["low"])
    assert ((noisy["low"] < TRUE_RATIO) & (TRUE_RATIO < noisy["high"])).all()
    assert width["all"] < width["b"] and width["a"] < width["c"]  # all sizes know more than one, three seeds than one
    dearer = points().assign(flops=lambda p: p["flops"].where(p["arm"] == "plain", 2 * p["flops"]))
    pair = size_ratios(dearer, "plain", "wide").set_index("size").loc["all"]
    assert pair["steps"] == pytest.approx(2 * pair["flops"], rel=1e-6)
    with pytest.raises(ScalingError, match="no size at which both"):
        size_ratios(points(), "plain", "deep")


def test_comparisons_that_make_no_sense_are_refused():
    some = points()
    with pytest.raises(ScalingError, match="'deep' is not among"):
        compare(some, "plain", "deep")
    with pytest.raises(ScalingError, match="same sizes"):
        compare(some[(some["arm"] == "plain") | (some["size"] != "c")], "plain", "wide")
    with pytest.raises(ScalingError, match="no compute at a loss"):
        compare(some, "plain", "wide").direct(0.1)
    with pytest.raises(ScalingError, match="more than one seed"):
        seed_spread(points(seeds=1))


# ------------------------------------------------------------------------------------------------ the store


def recorded_row(arm: str, steps: int, **changes) -> dict:
    """A row of runs.csv that a small model could have left."""
    scheme = "standard" if arm == "standard" else "hires"
    config = ModelConfig(layers=4, width=8, heads=2, ff=32, vocab_size=50, scheme=scheme)
    parameters = sum(p.numel() for p in Transformer(config).parameters())
    row = dict(run=f"{arm}{steps}", grid="scaling", arm=arm, scheme=scheme, options="{}", layers=4, width=8, heads=2)
    return row | dict(ff=32, context=16, batch_size=2, steps=steps, seed=42, parameters=parameters) | changes


def curve(steps: int) -> pd.DataFrame:
    step = np.arange(0, steps + 1, 10)
    return pd.DataFrame(dict(step=step, tokens=step * 32, train_loss=np.nan, valid_loss=4 - step / 100, seconds=0.0))


def test_the_store_gives_points_with_the_flops_that_torch_counts(tmp_path: Path):
    for arm, steps in (("standard", 40), ("standard", 20), ("hires", 30)):
        append(recorded_row(arm, steps), curve(steps), tmp_path)
    append(recorded_row("standard", 50, grid="other"), curve(50), tmp_path)
    found = read_points(tmp_path)
    assert found.groupby("arm")["step"].agg(["min", "max", "size"]).loc["standard"].tolist() == [10, 40, 4]  # not 20
    for scheme in ("standard", "hires"):
        model = Transformer(ModelConfig(layers=4, width=8, heads=2, ff=32, vocab_size=50, scheme=scheme))
        counted = bench.flops(model, torch.zeros(2, 17, dtype=torch.long))
        assert (found.query("arm == @scheme").eval("flops / step") == counted).all()
        assert (found.query("arm == @scheme")["N"] == sum(p.numel() for p in model.parameters()) - 50 * 8).all()
    assert (found["size"] == "4 × 8").all()


def test_a_store_without_such_runs_says_what_to_do(tmp_path: Path):
    with pytest.raises(ScalingError, match="minihaares ablate scaling"):
        read_points(tmp_path)
    append(recorded_row("standard", 20, parameters=3333), curve(20), tmp_path)
    with pytest.raises(ScalingError, match="cannot give"):
        read_points(tmp_path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sizes, three arms, two seeds of the smallest, drawn from TRUTH with a little noise."""
    folder, rng = tmp_path_factory.mktemp("store"), np.random.default_rng(0)
    speeds = {"standard": 1.0, "hires ratio=2.0": 1.1, "hires ratio=4.0": 0.9}
    for (arm, speed), (width, steps), seed in itertools.product(
        speeds.items(), ((8, 800), (12, 2400), (16, 3000)), (42, 123)
    ):
        scheme, _, ratio = arm.partition(" ratio=")
        options = {"ratio": float(ratio)} if ratio else {}
        sizes = dict(layers=4, width=width, heads=2, ff=4 * width)
        config = ModelConfig(**sizes, vocab_size=50, scheme=scheme, options=options)
        step = np.arange(0, steps + 1, 50)
        N = 16 * width**2 * 4
        loss = TRUTH(40 * N, 0.1 + speed * step * 1024) * math.exp(rng.normal(0, 0.003))
        facts = dict(context=128, batch_size=8, lr=0.01, steps=steps, seed=seed)
        row = dict(run=f"{arm}{width}{seed}", grid="scaling", arm=arm, scheme=scheme, options=json.dumps(options))
        row |= sizes | facts | {"parameters": costs.price(config, 128).parameters}
        if seed == 42 or width == 8:
            columns = dict(step=step, tokens=step * 1024, train_loss=loss, valid_loss=loss, seconds=step)
            append(row, pd.DataFrame(columns), folder)
    return folder


def test_the_picture_says_what_it_shows(store: Path):
    figure, alt = pictures_scaling.scaling(store)
    left, right = figure.axes
    assert left.get_xscale() == left.get_yscale() == "log"
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["Standard", "HiRes, D = 2d", "HiRes, D = 4d"]
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["4 × 8", "4 × 12", "4 × 16", "all\nsizes"]
    wider, widest = (size_ratios(read_points(store), "standard", f"hires ratio={r}").iloc[-1] for r in (2.0, 4.0))
    assert f"HiRes, D = 2d, all sizes: {wider.flops:.2f}, from {wider.low:.2f} to {wider.high:.2f}." in alt
    assert widest.flops < wider.flops
    plt.close(figure)


def test_the_script_draws_or_says_what_is_missing(store: Path, tmp_path: Path):
    script = tmp_path / "scaling.py"
    pictures_scaling.main(script, store)
    assert (tmp_path / "scaling.svg").exists() and "training compute" in plots.alt_text(tmp_path / "scaling.png")
    with pytest.raises(SystemExit, match="no run of the grid scaling is recorded"):
        pictures_scaling.main(script, tmp_path / "nothing")
    append(recorded_row("standard", 20), curve(20), tmp_path / "plain")
    with pytest.raises(SystemExit, match="no HiRes run"):
        pictures_scaling.main(script, tmp_path / "plain")


def test_the_grid_has_five_sizes_and_three_arms_at_each_under_one_recipe():
    first = [p for p in read_grid("scaling") if p.config.train.seed == 42]
    recipes: dict[tuple, list[str]] = {}
    for p in first:
        model, train = p.config.model, p.config.train
        recipes.setdefault((model.layers, model.width, train.steps, train.lr), []).append(p.arm)
    assert set(map(tuple, recipes.values())) == {("standard", "hires ratio=2.0", "hires ratio=4.0")}
    sizes = list(dict.fromkeys((layers, width) for layers, width, *_ in recipes))
    assert len(sizes) == 5
    compute = [16 * layers * width**2 for layers, width in sizes]
    assert compute == sorted(compute) and compute[-1] > 30 * compute[0]
    assert scaling.POINTS >= 20
