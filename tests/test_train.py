"""The recipe, the loop, and everything that keeps a run from being lost."""

import contextlib
import dataclasses
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from minihaares import train as train_module
from minihaares.checkpoints import Row, read_curve, read_tensors, write_curve, write_tensors, write_whole
from minihaares.data import BOS, PAD, CharTokenizer, Corpus, DataConfig, DataError
from minihaares.machine import held_interrupts, own_settings, pick_device
from minihaares.model import SCHEMES, ConfigError, ModelConfig, Transformer
from minihaares.train import (
    CheckpointError,
    RunConfig,
    TrainConfig,
    TrainError,
    evaluate,
    load_run,
    parameter_groups,
    train,
)

CONTEXT = 12


def tiny_corpus(characters: str = "abcdefgh", text_seed: int = 0, floor: float | None = None) -> Corpus:
    """40 chunks to train and 10 to validate, of characters that tend to come in order; one chunk ends in padding."""
    tokenizer = CharTokenizer(characters)
    rng = np.random.default_rng(text_seed)
    steps = rng.choice([0, 1, 2], size=(50, CONTEXT + 1), p=[0.1, 0.8, 0.1])
    chunks = (4 + np.cumsum(steps, axis=1) % len(characters)).astype(np.uint16)
    chunks[:, 0] = BOS
    chunks[[3, 45], 9:] = PAD
    return Corpus(
        name="tiny",
        source="this test",
        hash=f"text{text_seed}",
        tokenizer=tokenizer,
        train=chunks[:40],
        valid=chunks[40:],
        kept=1.0,
        characters_per_token=1.0,
        floor=floor,
        forgetful=floor,
        frame="bos_eot",
    )


def tiny_config(out: Path, scheme: str = "haares", **recipe) -> RunConfig:
    model = ModelConfig(layers=2, width=8, heads=2, ff=16, scheme=scheme)
    settings = dict(steps=40, batch_size=3, lr=3e-3, eval_every=10, device="cpu", threads=1, out=out) | recipe
    return RunConfig(model, DataConfig(context=CONTEXT), TrainConfig(**settings))


def tiny_train(out: Path, corpus: Corpus | None = None, resume: bool = True, on_eval=None, **settings):
    return train(tiny_config(out, **settings), corpus or tiny_corpus(), resume, progress=False, on_eval=on_eval)


def losses(rows) -> list[tuple]:
    """A learning curve without its clock."""
    return [row[:-1] for row in rows]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "last.safetensors")[0]


def assert_same_run(folder: Path, reference: Path) -> None:
    assert losses(read_curve(folder / "curve.csv")) == losses(read_curve(reference / "curve.csv"))
    ours, theirs = weights(folder), weights(reference)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    best = [read_tensors(path / "best.safetensors")[0] for path in (folder, reference)]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[1])


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """The folder of a run that nothing disturbed; copy it, don't write to it."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    tiny_train(folder)
    return folder


@pytest.fixture
def run_folder(reference, tmp_path) -> Path:
    return shutil.copytree(reference, tmp_path / "run")


# ------------------------------------------------------------------------------------------------ the recipe


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_the_backbones_matrices_decay(scheme):
    model = Transformer(ModelConfig(layers=4, width=8, heads=2, ff=16, mlp_bias=True, scheme=scheme))
    decayed, spared = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
    names = {p: name for name, p in model.named_parameters()}
    assert sorted(names[p] for p in decayed["params"] + spared["params"]) == sorted(names.values())
    matrices = ("embed.weight", "qkv.weight", "out.weight", "gate_up.weight", "down.weight")
    expected = {name for name in names.values() if name.endswith(matrices)}
    listed = {f"residual.{name}" for name in getattr(model.residual, "decayed", ())}
    assert {names[p] for p in decayed["params"]} == expected | listed


def test_a_residual_can_list_matrices_that_decay():
    model = Transformer(ModelConfig(layers=2, width=8, heads=2, ff=16, scheme="haares"))
    model.residual.decayed = ("query",)
    decayed, spared = parameter_groups(model, 0.01)
    assert any(p is model.residual.query for p in decayed["params"])
    assert any(p is model.residual.key_gain for p in spared["params"])


def test_two_steps_are_adamw_by_hand(tmp_path):
    """Clip, decay, moments and bias correction, written out in float64; a large epsilon makes the clip visible."""
    beta1, beta2, lr, eps, decay, clip = 0.8, 0.9, 0.02, 0.05, 0.1, 0.3
    recipe = dict(beta1=beta1, beta2=beta2, lr=lr, eps=eps, weight_decay=decay, clip=clip, steps=2)
    corpus, config = tiny_corpus(), tiny_config(tmp_path / "run", **recipe).fitted(tiny_corpus())
    model = Transformer(config.model, seed=42)
    moments = {name: (0.0, 0.0) for name, _ in model.named_parameters()}
    for step in (1, 2):
        inputs, targets = train_module.batch(corpus.train, step - 1, 3, 42)
        model.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100).backward()
        grads = {name: p.grad.double() for name, p in model.named_parameters()}
        norm = math.sqrt(sum(g.square().sum().item() for g in grads.values()))
        assert norm > clip
        decayed = {id(p) for p in parameter_groups(model, decay)[0]["params"]}
        for name, p in model.named_parameters():
            g = grads[name] * clip / norm
            m = beta1 * moments[name][0] + (1 - beta1) * g
            v = beta2 * moments[name][1] + (1 - beta2) * g.square()
            moments[name] = m, v
            moved = lr * m / (1 - beta1**step) / ((v / (1 - beta2**step)).sqrt() + eps)
            shrunk = p.double() * (1 - lr * decay) if id(p) in decayed else p.double()
            p.data = (shrunk - moved).float()
    tiny_train(tmp_path / "run", corpus, **recipe)
    trained = weights(tmp_path / "run")
    for name, p in model.named_parameters():
        torch.testing.assert_close(trained[f"model.{name}"], p.data, rtol=1e-5, atol=1e-6)


def test_evaluate_is_the_mean_over_predicted_tokens():
    chunks = tiny_corpus().valid
    model = Transformer(ModelConfig(vocab_size=12, layers=1, width=8, heads=2, ff=16))
    with torch.no_grad():
        logp = model(torch.from_numpy(chunks[:, :-1].astype(np.int64))).log_softmax(-1)
    nats = [-logp[i, t, c].item() for (i, t), c in np.ndenumerate(chunks[:, 1:].astype(int)) if c != PAD]
    assert len(nats) < chunks[:, 1:].size
    for size in (1, 4, 100):
        assert evaluate(model, chunks, size) == pytest.approx(np.mean(nats), rel=1e-6)
    assert evaluate(model, chunks, 4, limit=5) == evaluate(model, chunks[:5], 4)
    assert model.training and evaluate(model.eval(), chunks, 4) and not model.training


def test_the_best_scheduled_weights_are_kept(tmp_path):
    result = tiny_train(tmp_path / "run", lr=0.5)  # so much that it gets worse again
    assert 0 < result.best_step < result.steps
    assert result.best_loss == min(row.valid_loss for row in result.curve) < result.last_loss
    model, tokenizer, config = load_run(tmp_path / "run")
    assert not model.training
    assert evaluate(model, tiny_corpus().valid, 3) == result.best_loss
    assert (tokenizer.hash, config.model.vocab_size) == (tiny_corpus().tokenizer.hash, 12)
    assert config.train.out == tmp_path / "run"


def test_training_learns(tmp_path):
    result = tiny_train(tmp_path / "run", lr=1e-2, steps=150, eval_every=150)
    assert result.curve[0].valid_loss == pytest.approx(math.log(12), abs=0.15)
    assert result.best_loss < 1.0


def test_the_curve_says_when_and_how_much(reference):
    text = (reference / "curve.csv").read_text(encoding="utf-8").splitlines()
    assert text[0] == "step,tokens,train_loss,valid_loss,seconds"
    rows = read_curve(reference / "curve.csv")
    assert [row.step for row in rows] == [0, 10, 20, 30, 40]
    assert rows[0].train_loss is None and rows[0].tokens == 0
    corpus, chunks = tiny_corpus(), 40 * 3
    predicted = (corpus.train[:, 1:] != PAD).sum()  # an epoch, and three make 120 chunks
    assert rows[-1].tokens == predicted * chunks // 40
    assert all(a.seconds < b.seconds for a, b in zip(rows, rows[1:], strict=False))


def test_floors_are_told_only_if_all_of_the_text_was_read(tmp_path):
    corpus = tiny_corpus(floor=0.5)
    assert tiny_train(tmp_path / "a", corpus, steps=1).floor == 0.5
    part = tiny_train(tmp_path / "b", corpus, steps=1, eval_chunks=9)
    assert part.floor is None and part.forgetful is None


def test_autocast_trains(tmp_path):
    result = tiny_train(tmp_path / "run", autocast=True, steps=10)
    plain = tiny_train(tmp_path / "plain", steps=10)
    assert result.best_loss != plain.best_loss
    assert result.best_loss == pytest.approx(plain.best_loss, rel=0.02)


# ------------------------------------------------------------------------------------------------ determinism


def test_compiled_sublayers_learn_the_same(reference, tmp_path):
    """To rounding; the saved run is an ordinary one. Settings of the process come back."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, and this computer has none")
    coarse = torch.backends.cuda.matmul.allow_tf32
    tiny_train(tmp_path, compile=True, tf32=True)
    assert torch.backends.cuda.matmul.allow_tf32 == coarse
    fast, plain = (read_curve(folder / "curve.csv") for folder in (tmp_path, reference))
    for ours, theirs in zip(fast, plain, strict=True):
        assert ours.valid_loss == pytest.approx(theirs.valid_loss, rel=1e-4)
    model, *_ = load_run(tmp_path)
    assert set(model.state_dict()) == set(load_run(reference)[0].state_dict())


def test_equal_settings_give_equal_bits(reference, tmp_path):
    torch.manual_seed(7)  # the state of the caller must not matter
    tiny_train(tmp_path / "again")
    assert_same_run(tmp_path / "again", reference)


def test_the_two_seeds_are_apart(reference, tmp_path):
    first = read_curve(reference / "curve.csv")
    other_order = tiny_train(tmp_path / "order", data_seed=1, steps=10).curve
    other_model = tiny_train(tmp_path / "model", seed=1, steps=10).curve
    assert other_order[0].valid_loss == first[0].valid_loss and other_order[1] != first[1]
    assert other_model[0].valid_loss != first[0].valid_loss
    assert other_model[1].tokens == first[1].tokens


def test_the_callers_settings_come_back(tmp_path):
    def settings() -> tuple:
        return torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), signal.getsignal(signal.SIGINT)

    before, state = settings(), torch.get_rng_state()
    with own_settings(torch.device("cpu"), seed=1, threads=before[0] + 1), held_interrupts():
        assert settings()[:2] == (before[0] + 1, True) and settings()[2] is not before[2]
        assert not torch.equal(torch.get_rng_state(), state)
    assert settings() == before and torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ZeroDivisionError), own_settings(torch.device("cpu"), 1, None), held_interrupts():
        1 / 0  # noqa: B018
    assert settings() == before and torch.equal(torch.get_rng_state(), state)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_train import Path, tiny_train, train_module
batch = train_module.batch
def batch_or_death(chunks, step, *rest):
    return os.kill(os.getpid(), signal.SIGKILL) if step == 37 else batch(chunks, step, *rest)
train_module.batch = batch_or_death
tiny_train(Path(sys.argv[1]))
"""


def test_a_killed_run_goes_on_to_the_same_bits(reference, tmp_path):
    command = [sys.executable, "-c", KILLED.format(tests=str(Path(__file__).parent)), str(tmp_path / "run")]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    assert read_tensors(tmp_path / "run" / "last.safetensors")[1]["position"]["step"] == 30
    seen = []
    tiny_train(tmp_path / "run", on_eval=lambda row, model: seen.append(row.step))
    assert seen == [40]
    assert_same_run(tmp_path / "run", reference)


def test_a_run_lost_between_evaluation_and_save_goes_on_to_the_same_bits(reference, tmp_path):
    """The curve then has a row more than the checkpoint knows of, and best.safetensors is newer too."""

    def fail(row, model):
        if row.step == 20:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        tiny_train(tmp_path / "run", on_eval=fail)
    assert read_curve(tmp_path / "run" / "curve.csv")[-1].step == 20
    assert read_tensors(tmp_path / "run" / "last.safetensors")[1]["position"]["step"] == 10
    tiny_train(tmp_path / "run")
    assert_same_run(tmp_path / "run", reference)


def test_ctrl_c_saves_at_once_and_loses_nothing(reference, tmp_path, monkeypatch):
    """Interrupted between two evaluations, when a part of the training losses is summed up."""
    batch = train_module.batch

    def interrupted(chunks, step, *rest):
        if step == 14:
            os.kill(os.getpid(), signal.SIGINT)
        return batch(chunks, step, *rest)

    monkeypatch.setattr(train_module, "batch", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"Stopped at step 15 of 40 and saved in .*; the same command goes on"):
        tiny_train(tmp_path / "run")
    monkeypatch.undo()
    assert read_tensors(tmp_path / "run" / "last.safetensors")[1]["position"]["step"] == 15
    tiny_train(tmp_path / "run")
    assert_same_run(tmp_path / "run", reference)


def test_a_second_ctrl_c_stops_at_once():
    with pytest.raises(KeyboardInterrupt), held_interrupts() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second signal was held as well")


def test_a_run_can_be_made_longer(reference, tmp_path):
    tiny_train(tmp_path / "run", steps=20)
    tiny_train(tmp_path / "run", save_every=7)  # how often it is saved may change as well
    assert_same_run(tmp_path / "run", reference)


def test_a_finished_run_is_not_trained_again(run_folder):
    last = (run_folder / "last.safetensors").read_bytes()
    result = tiny_train(run_folder, on_eval=lambda *_: pytest.fail("there was nothing left to evaluate"))
    assert list(result.curve) == read_curve(run_folder / "curve.csv")
    assert (run_folder / "last.safetensors").read_bytes() == last


def test_fresh_replaces_what_is_there(run_folder):
    result = tiny_train(run_folder, resume=False, seed=5, steps=10)
    assert [row.step for row in result.curve] == [0, 10]
    assert load_run(run_folder)[2].train.seed == 5


# ------------------------------------------------------------------------------------------------ what may go wrong


def sentence(error: pytest.ExceptionInfo) -> str:
    """The message, which must be one readable line."""
    text = str(error.value)
    assert "\n" not in text and text[0].isupper() or text[0] == "/" and len(text) > 30
    return text


@contextlib.contextmanager
def full_disk(largest: int):
    """Writing a file beyond `largest` bytes fails, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_costs_nothing(reference, tmp_path):
    folder = tmp_path / "run"
    tiny_train(folder, steps=20)
    before = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    room = min(map(len, before.values())) // 2
    with full_disk(room), pytest.raises(TrainError, match="make room, then the same command goes on") as error:
        tiny_train(folder)
    assert "File too large" in sentence(error)
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == before
    assert not list(folder.glob("*.tmp")) + list(folder.glob(".*.tmp"))
    tiny_train(folder)
    assert_same_run(folder, reference)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail_halfway(temporary: Path) -> None:
        temporary.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(TrainError, match="Could not save .*No space left on device"):
        write_whole(path, fail_halfway)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with path.open() as old:
        write_whole(path, lambda temporary: temporary.write_text("new"))
        assert (old.read(), path.read_text()) == ("old", "new")  # the old file was not written into


def test_what_a_killed_save_left_is_cleared_away(run_folder):
    (run_folder / ".last.safetensors.123.tmp").write_bytes(b"half")
    tiny_train(run_folder)
    assert not list(run_folder.glob(".*.tmp"))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(TrainError, match="smaller learning rate than 1e[+]30") as error:
        tiny_train(tmp_path / "run", lr=1e30)
    assert "The loss became" in sentence(error)
    model, *_ = load_run(tmp_path / "run")
    assert all(p.isfinite().all() for p in model.parameters())


def test_one_folder_one_process(tmp_path):
    (tmp_path / "run").mkdir()
    with filelock.FileLock(tmp_path / "run" / ".lock"), pytest.raises(TrainError, match="Another process"):
        tiny_train(tmp_path / "run")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(TrainError, match="cannot be a run's folder"):
        tiny_train(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(scheme="block"), "model.scheme = 'haares' and not 'block'"),
        (dict(lr=1e-3), "train.lr = 0.003 and not 0.001"),
        (dict(seed=1), "train.seed = 42 and not 1"),
        (dict(eval_every=20), "train.eval_every = 10 and not 20"),
    ],
)
def test_another_run_is_not_resumed(run_folder, change, named):
    with pytest.raises(CheckpointError) as error:
        tiny_train(run_folder, **change)
    assert named in sentence(error) and "--fresh" in sentence(error)


def test_other_text_is_not_resumed(run_folder):
    with pytest.raises(CheckpointError, match="other text"):
        tiny_train(run_folder, tiny_corpus(text_seed=1))


def test_a_run_does_not_go_back(run_folder):
    with pytest.raises(CheckpointError, match="already at step 40"):
        tiny_train(run_folder, steps=30)


def test_another_tokenizer_is_refused(run_folder):
    (run_folder / "tokenizer.json").write_text(CharTokenizer("hgfedcba").to_json())
    for use in (load_run, tiny_train):
        with pytest.raises(CheckpointError, match="does not belong to the checkpoint") as error:
            use(run_folder)
        sentence(error)


def test_weights_of_another_model_are_refused(run_folder):
    tensors, header = read_tensors(run_folder / "best.safetensors")
    write_tensors(run_folder / "best.safetensors", tensors | {"norm.gain": torch.ones(9)}, header)
    with pytest.raises(CheckpointError, match=r"norm.gain is \(9,\) in it and \(8,\) in this one"):
        load_run(run_folder)
    del tensors["norm.gain"]
    write_tensors(run_folder / "best.safetensors", tensors, header)
    with pytest.raises(CheckpointError, match="norm.gain is absent"):
        load_run(run_folder)


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        save_file({"weight": torch.ones(3)}, path)
    elif how == "noise":
        path.write_bytes(bytes(range(256)) * 20)
    elif how == "other kind":
        other = {"best": "last", "last": "best"}[path.stem]
        shutil.copy(path.with_name(f"{other}.safetensors"), path)


@pytest.mark.parametrize(
    ("name", "how"),
    [("best.safetensors", how) for how in ("missing", "cut", "empty", "foreign", "noise", "other kind")]
    + [("config.json", how) for how in ("missing", "cut", "empty", "noise")]
    + [("tokenizer.json", how) for how in ("missing", "cut", "empty", "noise")],
)
def test_a_damaged_run_is_refused_in_one_sentence(run_folder, name, how):
    damage(run_folder / name, how)
    with pytest.raises((CheckpointError, DataError)) as error:
        load_run(run_folder)
    assert (name if how != "missing" else str(run_folder)) in sentence(error)


@pytest.mark.parametrize(
    ("name", "how"),
    [("last.safetensors", how) for how in ("cut", "empty", "foreign", "noise", "other kind")]
    + [("curve.csv", how) for how in ("missing", "noise")]
    + [("config.json", "cut"), ("tokenizer.json", "cut")],
)
def test_a_damaged_run_is_not_resumed(run_folder, name, how):
    damage(run_folder / name, how)
    with pytest.raises((CheckpointError, DataError)) as error:
        tiny_train(run_folder)
    assert name in sentence(error)


def test_settings_of_another_program_are_refused(run_folder):
    (run_folder / "config.json").write_text('{"model": {"layers": 2}}')
    with pytest.raises(CheckpointError, match="damaged or foreign"):
        load_run(run_folder)


@pytest.mark.parametrize(
    "wrong",
    [dict(lr=0), dict(lr=math.nan), dict(beta1=1), dict(beta2=-0.1), dict(eps=0), dict(clip=0), dict(weight_decay=-1)]
    + [{name: 0} for name in ("steps", "batch_size", "eval_every", "eval_chunks", "threads", "save_every")],
    ids=str,
)
def test_impossible_settings(wrong):
    with pytest.raises(TrainError, match=next(iter(wrong))):
        TrainConfig(**wrong)


def test_a_context_longer_than_the_model_reads():
    with pytest.raises(ConfigError, match="context 256 exceeds the model's max_context 128"):
        RunConfig(ModelConfig(max_context=128), DataConfig(context=256))


def test_a_scheme_is_checked_before_text_is_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(train_module, "load_corpus", lambda *_: pytest.fail("text was prepared"))
    config = tiny_config(tmp_path / "run")
    model = dataclasses.replace(config.model, options={"blocks": 3})
    with pytest.raises(ConfigError, match="blocks"):
        train(dataclasses.replace(config, model=model))


def test_devices():
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("cuda:97", "abacus"):
        with pytest.raises(TrainError, match=f"cannot use a device '{name}'"):
            pick_device(name)


# ------------------------------------------------------------------------------------------------ files


def test_settings_survive_json(tmp_path):
    config = RunConfig(
        ModelConfig(scheme="haares", options={"blocks": [4, 8], "detail": "phase"}, layers=6),
        DataConfig(data_dir=tmp_path, limit=1000),
        TrainConfig(out=tmp_path / "x", lr=1 / 3),
    )
    again = RunConfig.from_json(config.to_json())
    assert again == config and again.to_json() == config.to_json()
    assert config.difference(again) is None


def test_curves_survive_to_the_last_bit(tmp_path):
    rows = [Row(0, 0, None, 5.545177444479562, 0.1), Row(10, 2**40, 1 / 3, math.pi, 1e-9)]
    write_curve(tmp_path / "curve.csv", rows)
    assert read_curve(tmp_path / "curve.csv") == rows
