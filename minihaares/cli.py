"""`minihaares demo | train | sample | ablate | bench | doctor`: the package from a terminal.

The flags are the fields of the dataclasses that the notebooks use too. Whatever a user can get wrong ends in one
sentence on stderr and a non-zero exit status; whatever else goes wrong is our mistake, and keeps its traceback.
"""

import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
import tyro
from torch import Tensor

from .data import BOS, EOT, Corpus, DataConfig, DataError, Tokenizer, load_corpus
from .doctor import Doctor
from .model import FAMILIES, SCHEMES, ConfigError, ModelConfig, Transformer, choose, generate, scheme_options
from .plots import SCHEME_STYLE, curves, save, use_style
from .recording import Ablate, Bench, GridError
from .settings import CheckpointError, RunConfig, TrainConfig, TrainError
from .train import RunResult, load_run, pick_device, train

USER_ERRORS = (ConfigError, DataError, CheckpointError, TrainError, GridError)
UNUSABLE, INTERRUPTED = 2, 130  # exit statuses
AUTOMATIC = Path("runs/CORPUS-SCHEME-LAYERS-SEED")  # the default run folder, filled in
Flat = tyro.conf.OmitArgPrefixes  # --lr rather than --train.lr


# ------------------------------------------------------------------------------------- options of a scheme


def parse_value(text: str, kind: Any) -> Any:
    """`text` as a value of the annotated type `kind`: a number, true or false, none, 3,3,6 or a word.

    Raises ValueError if it is none of the types that `kind` allows.
    """
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if NoneType in kinds and text.lower() == "none":
        return None
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                pass
    if any(get_origin(k) is tuple for k in kinds):
        try:
            return tuple(int(part) for part in text.strip("()[]").split(","))
        except ValueError:
            pass
    if str in kinds:
        return text
    raise ValueError(f"{text!r} is not {kind_name(kind)}")


def kind_name(kind: Any) -> str:
    """An annotated type in a reader's words."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(kind_name(k) for k in get_args(kind))
    if get_origin(kind) is tuple:
        return "a list like 3,3,6"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", NoneType: "none"}
    return names.get(kind, str(kind))


def parse_options(scheme: str, settings: Sequence[str]) -> dict[str, Any]:
    """The options of a scheme from texts like "blocks=6"; raises ConfigError listing what there is."""
    choose("scheme", scheme, SCHEMES)
    kinds = get_type_hints(SCHEMES[scheme][0].Options)
    options = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in kinds:
            known = f"its options are {', '.join(sorted(kinds))}" if kinds else "it has no options"
            wrong = f"has no option {name!r}" if equals else f"needs --set name=value, not {setting!r}"
            raise ConfigError(f"Scheme {scheme} {wrong}; {known}.")
        try:
            options[name] = parse_value(text, kinds[name])
        except ValueError as error:
            raise ConfigError(f"Option {name} of scheme {scheme}: {error}.") from None
    scheme_options(scheme, options)
    return options


# ---------------------------------------------------------------------------------------------- the commands


@dataclass(frozen=True)
class ModelFlags:
    """What the residual stream is, and the sizes around it."""

    scheme: str = "haares"
    """standard, block, haares, attnres, or a relative; a name that doesn't exist lists them all"""
    set: tuple[str, ...] = ()
    """options of the scheme, such as: --set blocks=6 detail=duplicate; one that doesn't exist lists them all"""
    layers: int = 12
    """a layer is two sublayers, attention and MLP"""
    family: Literal["pocket", "small", "medium", "large"] = "pocket"
    """gives width, heads and ff where they are not given (pocket 32, 2, 128; small 128, 8, 1024; medium 512, 8, 2048;
    large 768, 8, 3072)"""
    width: int | None = None
    """channels of the stream"""
    heads: int | None = None
    """attention heads"""
    ff: int | None = None
    """channels inside the MLP"""
    max_context: int = 2048
    """longest sequence the model can read"""
    mlp_bias: bool = False
    """biases in the MLP"""

    def config(self) -> ModelConfig:
        """These flags as the model's own settings; raises ConfigError if they cannot work."""
        given = {name: getattr(self, name) for name in ("width", "heads", "ff") if getattr(self, name) is not None}
        return ModelConfig(
            layers=self.layers,
            max_context=self.max_context,
            mlp_bias=self.mlp_bias,
            scheme=self.scheme,
            options=parse_options(self.scheme, self.set),
            **(FAMILIES[self.family] | given),
        )


class DataFlags(DataConfig):
    """Which text, and how it becomes chunks."""

    def __post_init__(self) -> None:
        """Checks wait until the flags are parsed: tyro would turn their sentence into a box about itself."""

    def config(self) -> DataConfig:
        return DataConfig(**vars(self))


class TrainFlags(TrainConfig):
    """The recipe: how long, how fast, from which seeds, on what."""

    def __post_init__(self) -> None:
        """See `DataFlags`."""

    def config(self, out: Path) -> TrainConfig:
        return TrainConfig(**vars(self) | {"out": out if self.out == AUTOMATIC else self.out})


@dataclass(frozen=True)
class Train:
    """Train a model; the same command goes on where a stopped run was saved."""

    model: Flat[ModelFlags]
    data: Flat[DataFlags] = field(default_factory=lambda: DataFlags(context=512, valid_stories=200))
    train: Flat[TrainFlags] = field(default_factory=lambda: TrainFlags(out=AUTOMATIC))
    fresh: bool = False
    """start over, even if the folder holds a run"""

    def __call__(self) -> None:
        model, data = self.model.config(), self.data.config()
        name = f"{Path(data.corpus).stem}-{model.scheme}-{model.layers}L-seed{self.train.seed}"
        config = RunConfig(model, data, self.train.config(Path("runs") / name))
        out = config.train.out
        corpus = load_corpus(config.data)
        print(corpus.describe())
        result = train(config, corpus, resume=not self.fresh)
        print(verdict(result, corpus))
        print(f"\nNext: minihaares sample {shlex.quote(str(out))} --prompt {shlex.quote('Once upon a time')}")


@dataclass(frozen=True)
class Sample:
    """Let a trained model go on with a text."""

    run: tyro.conf.Positional[Path]
    """the folder that train filled"""
    prompt: str = ""
    """what the text begins with"""
    temperature: float = 0.8
    """0 takes the likeliest token every time; 1 draws as the model says"""
    top_k: int | None = None
    """draw among the k likeliest tokens only"""
    count: int = 1
    """how many texts"""
    length: int | None = None
    """most tokens to add; None: to the end of the context that the model was trained with"""
    seed: int = 0
    """draws the tokens"""
    device: str = "auto"
    """auto, cpu, cuda, mps"""

    def __call__(self) -> None:
        if self.count < 1 or (self.length is not None and self.length < 1):
            raise ConfigError("--count and --length must be at least 1.")
        model, tokenizer, config = load_run(self.run, pick_device(self.device))
        unseen = tokenizer.unseen(self.prompt)
        if unseen:
            what = ", ".join(map(repr, unseen))
            print(f"The tokenizer never met {what}: the model reads <|unk|> there.", file=sys.stderr)
        prompt = prompt_tokens(self.prompt, tokenizer, framed=config.data.frame == "bos_eot")
        room = config.data.context if self.length is None else prompt.shape[1] + self.length
        new = min(room, config.model.max_context) - prompt.shape[1]
        if new < 1:
            raise ConfigError(
                f"The prompt has {prompt.shape[1]} tokens and leaves no room in {min(room, config.model.max_context)}; "
                "shorten it or give --length."
            )
        texts = write(model, tokenizer, prompt, self.count, new, self.temperature, self.top_k, self.seed)
        print("\n\n".join(self.prompt + text for text in texts))


DEMO = {"standard": {}, "block": {"blocks": 4}, "haares": {"blocks": 4}}  # scheme and options
DEMO_SAMPLE_SEED = 3


@dataclass(frozen=True)
class Demo:
    """Train three residual streams on the built-in stories, from the same weights, and compare them.

    Takes about three minutes on two cores."""

    steps: int = 1000
    """optimizer steps of each"""
    seed: int = 42
    """draws the weights that all three begin with"""
    out: Path = Path("runs/demo")
    """where the three runs go; what is there is replaced"""
    figures: Path = Path("figures/out")
    """where the picture goes"""
    quick: bool = False
    """a few small steps, to see that everything works"""
    cache_dir: Path | None = None
    """for the encoded stories; None: $MINIHAARES_CACHE, or the platform's cache folder"""

    def config(self, scheme: str) -> RunConfig:
        """The run of one scheme. Measured: batches of two stories learn most in the time, sixteen the least."""
        stories = (20, 2) if self.quick else (6000, 60)
        steps = min(self.steps, 4) if self.quick else self.steps
        return RunConfig(
            ModelConfig(layers=4, width=64, heads=2, ff=192, scheme=scheme, options=DEMO[scheme]),
            DataConfig(context=512, stories=stories[0], valid_stories=stories[1], cache_dir=self.cache_dir),
            TrainConfig(
                steps=steps,
                batch_size=2,
                lr=3e-3,
                eval_every=max(2, steps // 10),
                seed=self.seed,
                out=self.out / scheme,
            ),
        )

    def __call__(self) -> None:
        print(f"Three models of one size and one start, apart in their residual streams: {', '.join(DEMO)}.\n")
        corpus = load_corpus(self.config("standard").data)
        print(corpus.describe(), end="\n\n", flush=True)
        results: dict[str, RunResult] = {}
        try:
            for scheme in DEMO:
                results[scheme] = train(self.config(scheme), corpus, resume=False)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Stopped; the demo begins anew when it is called again.") from None
        print("\n" + demo_table(results))
        for scheme in DEMO:
            model, tokenizer, _ = load_run(self.out / scheme)
            prompt = prompt_tokens("", tokenizer, framed=True)
            (story,) = write(model, tokenizer, prompt, 1, 20 if self.quick else 511, seed=DEMO_SAMPLE_SEED)
            print(f"\n{SCHEME_STYLE[scheme]['label']} writes: {story}")
        use_style()
        points = {scheme: [(row.tokens, row.valid_loss) for row in r.curve] for scheme, r in results.items()}
        figure = curves(points, corpus.floor, corpus.forgetful)
        _, png = save(figure, "demo", demo_alt(results), self.figures)
        print(f"\nThe curves are in {png}. The models are in {self.out}.")
        print(f"Next: minihaares sample {shlex.quote(str(self.out / 'haares'))} --prompt 'One day, a girl' --count 3")


def demo_table(results: dict[str, RunResult]) -> str:
    """The schemes with their losses, in nats per character, and what they cost."""
    lines = [f"{'':14}{'validation':>12}{'above the':>14}{'above the':>20}{'':>14}{'':>10}"]
    lines += [f"{'':14}{'loss':>12}{'exact floor':>14}{'forgetful reader':>20}{'parameters':>14}{'seconds':>10}"]
    for scheme, r in results.items():
        above = f"{r.best_loss - r.floor:14.4f}{r.best_loss - r.forgetful:20.4f}"
        lines.append(f"{SCHEME_STYLE[scheme]['label']:14}{r.best_loss:12.4f}{above}{r.parameters:14,}{r.seconds:10.0f}")
    r = next(iter(results.values()))
    lines.append(
        f"\nLosses are nats per character. No reader gets below {r.floor:.4f}; one that knows the grammar but forgets "
        f"earlier sentences stays at {r.forgetful:.4f}.\nOne seed and a short run: differences this small can go "
        "either way."
    )
    return "\n".join(lines)


def demo_alt(results: dict[str, RunResult]) -> str:
    """The demo's picture in words."""
    ends = ", ".join(f"{SCHEME_STYLE[scheme]['label']} {r.last_loss:.3f}" for scheme, r in results.items())
    r = next(iter(results.values()))
    return (
        "Validation loss of three models, on a logarithmic axis, falling with the tokens they were trained on. After "
        f"{r.tokens:,} tokens: {ends} nats per character. Two level lines below them: the forgetful reader at "
        f"{r.forgetful:.3f} and the exact floor at {r.floor:.3f}."
    )


COMMANDS = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Sample, tyro.conf.subcommand("sample")]
    | Annotated[Ablate, tyro.conf.subcommand("ablate")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def prompt_tokens(text: str, tokenizer: Tokenizer, framed: bool) -> Tensor:
    """The ids [1, T] of a prompt, behind BOS if records are framed; raises ConfigError if there is nothing at all."""
    ids = [BOS] * framed + tokenizer.encode(text).tolist()
    if not ids:
        raise ConfigError('This model was trained on bare text and needs a beginning: add --prompt "Once upon a time".')
    return torch.tensor([ids])


def write(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: Tensor,
    count: int,
    new: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> list[str]:
    """`count` continuations of the prompt [1, T] by up to `new` tokens, without the prompt."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    rows = generate(model, prompt.expand(count, -1).to(device), new, temperature, top_k, EOT, generator)
    return [tokenizer.decode(row[prompt.shape[1] :].tolist()) for row in rows]


def verdict(result: RunResult, corpus: Corpus) -> str:
    """How well a run did, in two lines at most."""
    unit = "character" if corpus.tokenizer.kind == "char" else "token"
    lines = [
        f"best validation loss {result.best_loss:.4f} nats per {unit} at step {result.best_step:,}, after "
        f"{result.tokens:,} tokens and {result.seconds:,.0f} s in all"
    ]
    if result.floor is not None and result.forgetful is not None:
        gap = result.best_loss - result.forgetful
        lines.append(
            f"{result.best_loss - result.floor:.4f} above the exact floor {result.floor:.4f}; {abs(gap):.4f} "
            f"{'above' if gap > 0 else 'below'} the forgetful reader's {result.forgetful:.4f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0, 2 for what the user can put right, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    try:
        command = tyro.cli(
            COMMANDS,
            prog="minihaares",
            description="Residual streams in Transformers, from the plain sum to HAARES.",
            args=arguments or ["--help"],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        return command() or 0
    except SystemExit as stop:  # tyro has said what is wrong, or shown the help
        return stop.code
    except USER_ERRORS as error:
        print(f"minihaares: {one_line(error)}", file=sys.stderr)
        return UNUSABLE
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        print(f"minihaares: {error.strerror or one_line(error)}{place}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt as stop:
        print(f"minihaares: {one_line(stop) or 'Stopped.'}", file=sys.stderr)
        return INTERRUPTED


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
