"""The command line: it works, it says what it does, and every mistake ends in one sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minihaares import cli
from minihaares import train as train_module
from minihaares.checkpoints import read_curve, read_tensors
from minihaares.data import load_tokenizer
from minihaares.model import SCHEMES, ConfigError
from minihaares.plots import alt_text

TINY = "--context 24 --remainder pad --layers 2 --width 8 --heads 2 --ff 16 --steps 6 --eval-every 3 --batch-size 2"
TINY = [*TINY.split(), "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with a text file, a trained run, and a cache of its own."""
    folder = tmp_path_factory.mktemp("cli")
    animals = [f"{color} {animal}" for color in ("red", "grey", "old") for animal in ("cat", "dog", "owl")]
    lines = [f"The {animal} sat on the mat." for animal in animals]
    (folder / "text.txt").write_text("\n".join(lines * 4), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MINIHAARES_CACHE", str(folder / "cache"))
        assert cli.main(["train", "--corpus", "text.txt", "--out", "run", *TINY]) == 0
    return folder


@pytest.fixture(autouse=True)
def in_workplace(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("MINIHAARES_CACHE", str(workplace / "cache"))


def fails(capsys, *arguments: str | Path, status: int = 2) -> str:
    """Run a command that must fail: the sentence it ends in, alone on its line and without a traceback."""
    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) == status
    error = capsys.readouterr().err
    assert "Traceback" not in error
    lines = [line for line in error.splitlines() if line.startswith("minihaares: ")]
    assert len(lines) == 1 and error.rstrip().endswith(lines[0]), error
    return lines[0].removeprefix("minihaares: ")


# ------------------------------------------------------------------------------------------------ what works


def test_train_says_what_it_uses_and_what_to_do_next(capsys, tmp_path):
    capsys.readouterr()
    run = tmp_path / "my run"
    assert cli.main(["train", "--corpus", "text.txt", "--out", str(run), "--scheme", "block", *TINY]) == 0
    out, err = capsys.readouterr()
    assert "text.txt" in out and "100.0% of the training characters kept" in out and "char tokenizer" in out
    assert "block: 2 layers of width 8" in err and "cpu with 1 thread;" in err and "from scratch" in err
    assert "tokens/s" in err and "validation" in err
    best = min(row.valid_loss for row in read_curve(run / "curve.csv"))
    assert f"best validation loss {best:.4f} nats per character" in out
    assert out.rstrip().splitlines()[-1].startswith(f"Next: minihaares sample '{run}'")


def test_flags_reach_the_run(tmp_path):
    command = ["train", "--corpus", "text.txt", *TINY, "--out", str(tmp_path / "run"), "--lr", "0.001", "--seed", "7"]
    options = ["--scheme", "haares", "--set", "blocks=1,3", "detail=phase", "--family", "small", "--width", "16"]
    assert cli.main([*command, *options, "--mlp-bias"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    model, train = config["model"], config["train"]
    assert (model["layers"], model["width"], model["heads"], model["ff"], model["mlp_bias"]) == (2, 16, 2, 16, True)
    assert (model["scheme"], model["options"]) == ("haares", {"blocks": [1, 3], "detail": "phase"})
    assert (train["lr"], train["seed"], train["steps"]) == (0.001, 7, 6)


def test_a_family_gives_the_sizes_that_are_not_given():
    assert cli.ModelFlags(family="small").config().ff == 1024
    small = cli.ModelFlags(family="small", width=64).config()
    assert (small.width, small.heads, small.ff) == (64, 8, 1024)


def test_a_run_is_named_after_what_it_is(workplace):
    assert cli.main(["train", "--corpus", "text.txt", "--scheme", "block", "--seed", "3", *TINY]) == 0
    assert (workplace / "runs" / "text-block-2L-seed3" / "best.safetensors").exists()


def test_the_same_command_again_trains_nothing(workplace, capsys):
    before = (workplace / "run" / "last.safetensors").read_bytes()
    assert cli.main(["train", "--corpus", "text.txt", "--out", "run", *TINY]) == 0
    assert "finished before" in capsys.readouterr().err
    assert (workplace / "run" / "last.safetensors").read_bytes() == before


def test_sample_is_repeatable(capsys):
    texts = []
    for seed in ("1", "1", "2"):
        assert cli.main(["sample", "run", "--prompt", "The cat", "--seed", seed, "--count", "2", "--top-k", "5"]) == 0
        texts.append(capsys.readouterr().out)
        assert texts[-1].count("The cat") == 2
    assert texts[0] == texts[1] != texts[2]


def test_a_prompt_with_unseen_characters_works_and_says_so(capsys):
    assert cli.main(["sample", "run", "--prompt", "The çat ☂", "--length", "5", "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("The çat ☂")
    assert "'ç', '☂'" in err and "<|unk|>" in err


def test_samples_fit_the_length(capsys):
    assert cli.main(["sample", "run", "--prompt", "The", "--length", "4", "--seed", "5"]) == 0
    assert len(capsys.readouterr().out.rstrip("\n")) <= 3 + 4


def test_the_prompt_of_framed_records_begins_with_bos():
    tokenizer = load_tokenizer("run/tokenizer.json")
    assert cli.prompt_tokens("", tokenizer, framed=True).tolist() == [[2]]
    bare = cli.prompt_tokens("The", tokenizer, framed=False)
    assert bare.tolist() == [tokenizer.encode("The").tolist()]
    assert cli.prompt_tokens("The", tokenizer, framed=True).tolist() == [[2, *bare[0].tolist()]]


def test_demo(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--quick"]) == 0
    out, err = capsys.readouterr()
    rows = {}
    for scheme, label in zip(cli.DEMO, ("Standard", "Block AttnRes", "HAARES"), strict=True):
        (line,) = (line for line in out.splitlines() if line.startswith(label) and line[-1].isdigit())
        rows[label] = line.removeprefix(label).split()
        loss, above, forgetful, *_ = map(float, rows[label][:3])
        curve = read_curve(tmp_path / "runs" / "demo" / scheme / "curve.csv")
        assert loss == pytest.approx(min(row.valid_loss for row in curve), abs=5e-5)
        assert 0 < forgetful < above < loss
        assert f"{label} writes: " in out
    assert rows["Standard"][3] < rows["Block AttnRes"][3] < rows["HAARES"][3]
    assert "HAARES 3." in alt_text(tmp_path / "figures" / "out" / "demo.png")
    assert out.rstrip().splitlines()[-1].startswith("Next: minihaares sample")
    assert "haares: 100%" in err


def test_the_demo_compares_equal_models(tmp_path):
    configs = [cli.Demo(out=tmp_path).config(scheme) for scheme in cli.DEMO]
    for config in configs:
        assert config.data == configs[0].data
        assert replace(config.model, scheme="", options={}) == replace(configs[0].model, scheme="", options={})
        assert replace(config.train, out=tmp_path) == replace(configs[0].train, out=tmp_path)


def test_no_command_is_a_call_for_help(capsys):
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("demo", "train", "sample"))


def test_every_flag_is_explained(capsys):
    assert cli.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--corpus", "--data-dir", "--scheme", "--set", "--lr", "--steps", "--out", "--fresh", "--device"):
        assert flag in text
    assert "learning rate" in text and "blocks=6 detail=duplicate" in " ".join(text.split())


# ------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("6", int | str | tuple[int, ...], 6),
        ("full", int | str | tuple[int, ...], "full"),
        ("3,3,6", int | str | tuple[int, ...], (3, 3, 6)),
        ("[3,5]", int | str | tuple[int, ...], (3, 5)),
        ("-2", float, -2.0),
        ("1e-6", float, 1e-6),
        ("true", bool, True),
        ("False", bool, False),
        ("none", float | None, None),
        ("0.5", float | None, 0.5),
        ("none", str, "none"),
    ],
)
def test_option_values(text: str, kind: Any, value: Any):
    parsed = cli.parse_value(text, kind)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "named"), [("x", float, "a number"), ("1", bool, "true or false"), ("", int, "whole")]
)
def test_wrong_option_values(text, kind, named):
    with pytest.raises(ValueError, match=named):
        cli.parse_value(text, kind)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_unknown_option_lists_the_schemes_own(scheme):
    with pytest.raises(ConfigError) as error:
        cli.parse_options(scheme, ["colour=red"])
    assert "'colour'" in str(error.value)
    for name in SCHEMES[scheme][0].Options.__dataclass_fields__:
        assert name in str(error.value)


# ------------------------------------------------------------------------------------------------ what may go wrong


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--scheme", "hares"], "haares"),
        (["--set", "blocks=3"], "4 events do not cut into 3 equal blocks"),
        (["--set", "blocks=2,3"], "add up to 4 events"),
        (["--set", "depth=3"], "no option 'depth'"),
        (["--set", "blocks"], "needs --set name=value"),
        (["--set", "gamma=much"], "'much' is not a number"),
        (["--set", "detail=third"], "duplicate"),
        (["--set", "gamma=0.5"], "gamma"),
        (["--set", "rms_axes=time"], "allow_leak"),
        (["--scheme", "standard", "--set", "blocks=2"], "no option 'blocks'; it has no options"),
        (["--heads", "3"], "3 heads do not divide width 8"),
        (["--heads", "8"], "heads can be one of [1, 2, 4]"),
        (["--layers", "0"], "layers is 0"),
        (["--steps", "0"], "steps is 0"),
        (["--lr", "nan"], "lr is nan"),
        (["--device", "cuda:97"], "cuda:97"),
        (["--max-context", "8"], "context 24 exceeds the model's max_context 8"),
        (["--record", "verse"], "record"),
        (["--corpus", "tinistories"], "tinystories"),
        (["--corpus", "nowhere.txt"], "nowhere.txt"),
        (["--corpus", "tinystories", "--data-dir", "nowhere"], "nowhere"),
        (["--out", "text.txt"], "cannot be a run's folder"),
        (["--out", "run"], "model.scheme = 'haares' and not 'block'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_cannot_work(capsys, tmp_path, flags, named):
    scheme = [] if "--set" in flags or "--scheme" in flags else ["--scheme", "block"]
    error = fails(capsys, "train", "--corpus", "text.txt", "--out", tmp_path / "run", *TINY, *scheme, *flags)
    assert named in error
    assert not (tmp_path / "run" / "last.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("empty.txt", b"", "empty.txt"),
        ("short.txt", b"Too short.", "--context"),
        ("latin.txt", "Ein schöner Tag. ".encode("latin-1") * 20, "UTF-8"),
        ("folder", None, "folder"),
    ],
)
def test_text_that_cannot_be_used(capsys, tmp_path, name, content, named):
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    error = fails(capsys, "train", "--corpus", tmp_path / name, *TINY, "--remainder", "drop", "--out", tmp_path / "run")
    assert named in error


def test_no_network_and_no_cache(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    error = fails(capsys, "train", "--corpus", "tinystories", "--out", tmp_path / "run", *TINY)
    assert "--data-dir" in error and time.monotonic() - start < 15


@pytest.mark.parametrize(
    "arguments",
    [["trian"], ["train", "--corpsu", "x"], ["train", "--steps", "many"], ["train", "--family", "huge"], ["sample"]],
    ids=" ".join,
)
def test_flags_that_do_not_exist(capsys, arguments):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error and "--help" in error


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--prompt", "The", "--temperature", "-1"], "temperature"),
        (["--prompt", "The", "--top-k", "0"], "top_k"),
        (["--prompt", "The", "--count", "0"], "--count"),
        (["--prompt", "The", "--length", "0"], "--length"),
        (["--prompt", "The cat sat on the mat, and so did I."], "leaves no room"),
        (["--prompt", ""], "needs a beginning"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_samples_that_cannot_be_drawn(capsys, flags, named):
    assert named in fails(capsys, "sample", "run", *flags)


def test_runs_that_cannot_be_used(capsys, workplace, tmp_path):
    assert "no run" in fails(capsys, "sample", tmp_path / "nowhere", "--prompt", "The")
    assert "no run" in fails(capsys, "sample", "text.txt", "--prompt", "The")
    run = shutil.copytree(workplace / "run", tmp_path / "run")
    (run / "best.safetensors").write_bytes((run / "best.safetensors").read_bytes()[:500])
    assert "damaged" in fails(capsys, "sample", run, "--prompt", "The")
    run = shutil.copytree(workplace / "run", tmp_path / "other")
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    tokenizer["characters"] = tokenizer["characters"][::-1]
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "does not belong" in fails(capsys, "sample", run, "--prompt", "The")


def test_a_full_disk(capsys, tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minihaares.checkpoints.save_file", full)
    error = fails(capsys, "train", "--corpus", "text.txt", "--out", tmp_path / "run", *TINY)
    assert "No space left on device" in error and "make room" in error


def test_mistakes_of_ours_keep_their_traceback(monkeypatch):
    def mistake(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(cli, "load_corpus", mistake)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        cli.main(["train", "--corpus", "text.txt", *TINY])


def test_ctrl_c_in_a_terminal(workplace, tmp_path, capsys):
    """A real process and a real SIGINT: it saves, says how to go on, and the same command does."""
    run = tmp_path / "run"
    command = ["train", "--corpus", "text.txt", "--out", str(run), *TINY]
    endless = [sys.executable, "-m", "minihaares", *command, "--steps", "1000000"]
    process = subprocess.Popen(
        endless,
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test started with & would ignore it
    )
    deadline = time.monotonic() + 120
    while not (run / "last.safetensors").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "and saved in" in error.splitlines()[-1] and "the same command goes on from there" in error.splitlines()[-1]
    stopped = read_tensors(run / "last.safetensors")[1]["position"]["step"]
    assert cli.main([*command, "--steps", str(stopped + 2)]) == 0
    assert f"going on from step {stopped}," in capsys.readouterr().err
    assert read_curve(run / "curve.csv")[-1].step == stopped + 2


def test_ctrl_c_in_the_demo(capsys, tmp_path, monkeypatch):
    batch = train_module.batch

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return batch(*arguments)

    monkeypatch.setattr(train_module, "batch", interrupted)
    monkeypatch.chdir(tmp_path)
    assert "begins anew" in fails(capsys, "demo", "--quick", status=130)
    assert [path.name for path in (tmp_path / "runs" / "demo").iterdir()] == ["standard"]
