"""Models that travel with the book: written from a run, read back to the bit, small, and made by the stated command."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tyro

from minihaares import shipped
from minihaares.cli import COMMANDS
from minihaares.data import DataConfig
from minihaares.experiments import recorded
from minihaares.model import ModelConfig
from minihaares.shipped import LARGEST, load_shipped, ship
from minihaares.train import CheckpointError, RunConfig, TrainConfig, load_run, train

NAMES = sorted(path.parent.name for path in shipped.models().glob(f"*/{shipped.WEIGHTS}"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    data = DataConfig(context=512, stories=20, valid_stories=4, cache_dir=folder / "cache")
    model = ModelConfig(layers=2, width=8, heads=2, ff=8, scheme="haares", options={"blocks": 2})
    recipe = TrainConfig(steps=2, batch_size=2, eval_every=1, threads=1, device="cpu", out=folder / "out")
    train(RunConfig(model, data, recipe), progress=False)
    return folder / "out"


def test_a_shipped_model_is_the_run_s_best(run, tmp_path):
    folder = ship(run, "small", "minihaares train --steps 2", tmp_path)
    others = {"README.md", "config.json", "tokenizer.json", "curve.csv"}
    assert {path.name for path in folder.iterdir()} == {"model.safetensors"} | others
    (ours, tokenizer, config), (theirs, _, wanted) = load_shipped("small", tmp_path), load_run(run)
    tokens = torch.arange(4, 14)[None]
    assert torch.equal(ours(tokens), theirs(tokens)) and not ours.training
    assert config.difference(wanted) is None and tokenizer.decode(tokenizer.encode("a b")) == "a b"
    about = (folder / "README.md").read_text(encoding="utf-8")
    assert "minihaares train --steps 2" in about
    assert f"{sum(p.numel() for p in ours.parameters()):,} parameters" in about
    assert str(run.parent) not in about + (folder / "config.json").read_text(encoding="utf-8")


def test_what_cannot_be_shipped_or_loaded_is_said(run, tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="there are: none"):
        load_shipped("small", tmp_path)
    folder = ship(run, "small", "minihaares train", tmp_path)
    with pytest.raises(CheckpointError, match="there are: small"):
        load_shipped("other", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["characters"] = tokenizer["characters"][::-1]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match="does not belong"):
        load_shipped("small", tmp_path)
    monkeypatch.setattr(shipped, "LARGEST", 100)
    with pytest.raises(CheckpointError, match="at most 100"):
        ship(run, "large", "minihaares train", tmp_path)
    assert not (tmp_path / "models" / "large").exists()
    with pytest.raises(CheckpointError, match="no run"):
        ship(tmp_path, "nothing", "minihaares train", tmp_path)


def test_the_book_finds_its_model():
    assert "looking_inside" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_the_book_is_small_and_made_by_its_command(name):
    folder = recorded() / "models" / name
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LARGEST
    model, tokenizer, config = load_shipped(name)
    assert model.config.vocab_size == tokenizer.vocab_size
    line = re.search(r"```\n(minihaares train .*?)\n```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    words = shlex.split(line[1].replace("\\\n", " "))
    command = tyro.cli(COMMANDS, prog="minihaares", args=words[1:], config=(tyro.conf.FlagCreatePairsOff,))
    stated = RunConfig(command.model.config(), command.data.config(), command.train.config(Path("runs/any")))
    fitted = replace(stated.model, vocab_size=tokenizer.vocab_size)  # by `fitted`, from the corpus
    stated = replace(stated, model=fitted, data=replace(stated.data, frame=config.data.frame))
    assert config.difference(stated) is None and stated.train.steps == config.train.steps
