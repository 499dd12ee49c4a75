"""The computer a run happens on: its device and threads, its signals, and a folder that no other process uses."""

import contextlib
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import torch

from .settings import TrainError


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training: the run is saved, and the message says how to go on."""


def pick_device(name: str) -> torch.device:
    """The torch device of that name; "auto" is CUDA if there is one, else Apple's MPS, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError):  # which one depends on the device and torch's build
        raise TrainError(f"Torch cannot use a device {name!r} on this computer; --device cpu always works.") from None
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """The device in words: "cpu with 2 threads", "cuda (NVIDIA …)"."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu with {threads} thread{'s' * (threads > 1)}" if device.type == "cpu" else str(device)


def peak_resident() -> int:
    """The most memory, in bytes, that this process has held at once. (Linux hands its own count on to children.)"""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextlib.contextmanager
def own_settings(device: torch.device, seed: int, threads: int | None, tf32: bool = False) -> Iterator[None]:
    """Run with this random seed, so many threads, and on a CPU deterministic kernels; afterwards all is as it was.

    `tf32` lets CUDA round the factors of float32 products to TF32."""
    threads_before, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    coarse = torch.backends.cuda.matmul.allow_tf32
    filling = torch.utils.deterministic.fill_uninitialized_memory
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.manual_seed(seed)
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.set_num_threads(threads or threads_before)
            if device.type == "cpu":  # on a GPU the quick kernels differ in the last bits, and we let them
                torch.use_deterministic_algorithms(True)
                torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid, and slow
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = coarse
            torch.use_deterministic_algorithms(strict)
            torch.utils.deterministic.fill_uninitialized_memory = filling
            torch.set_num_threads(threads_before)


@contextlib.contextmanager
def held_interrupts() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a set event, so that it never falls in the middle of a step; the second one raises.

    Where Python delivers no signals (outside the main thread) or Ctrl-C is switched off, nothing changes.
    """
    asked = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield asked
        return

    def hold(*_: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        os.write(2, b"\nStopping when the step is done and saved; Ctrl-C again stops at once.\n")

    signal.signal(signal.SIGINT, hold)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """The folder exists, and no other process trains in it. TrainError if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock", timeout=0)
        lock.acquire()
        for stale in folder.glob(".*.tmp"):  # of a process that was killed while it saved
            stale.unlink()
    except filelock.Timeout:
        raise TrainError(f"Another process is training in {folder}; choose another folder with --out.") from None
    except OSError as error:
        raise TrainError(f"{folder} cannot be a run's folder ({error.strerror}); choose another with --out.") from None
    try:
        yield
    finally:
        lock.release()
