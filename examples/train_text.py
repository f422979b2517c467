"""Trains a small transformer on the source text of Python's own standard library, and measures each
step.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 examples/train_text.py

A step computes the gradients of one batch twice: alone (DDP's no_sync, nothing is exchanged, the
result is dropped) and then for real. What the second takes longer is the exposed communication:
what the exchange costs although it goes on behind the computation. Times are those of the slowest
rank, CPU times the mean of the ranks. The pass alone is not counted in the time of a step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

WARM_UP = 2  # steps before those that count: DDP orders its buckets anew after the first


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", default="goccl", help="of torch.distributed; goccl if not given"
    )
    parser.add_argument("--steps", type=int, default=20, help="that count; 20")
    parser.add_argument(
        "--layers", type=int, default=10, help="of the transformer; 10, with width 512: 32 M"
    )
    parser.add_argument(
        "--width", type=int, default=512, help="of each layer, a multiple of 64; 512"
    )
    parser.add_argument(
        "--batch-size", type=int, default=4, help="pieces of text a rank and step; 4"
    )
    parser.add_argument("--length", type=int, default=128, help="of a piece, in bytes; 128")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured here")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="profile one more step: rank 0's trace, for Perfetto",
    )
    arguments = parser.parse_args()
    sizes = (
        arguments.steps,
        arguments.layers,
        arguments.width,
        arguments.batch_size,
        arguments.length,
    )
    if min(sizes) < 1 or arguments.width % 64 != 0:
        parser.error("numbers must be at least 1, and --width a multiple of 64")
    if "RANK" not in os.environ:
        parser.error(
            "start it with: torchrun --standalone --nproc-per-node 2 examples/train_text.py"
        )
    return arguments


class Transformer(nn.Module):
    """Tells the next byte from those before it."""

    def __init__(self, layers: int, width: int, length: int):
        super().__init__()
        self.letters = nn.Embedding(256, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width,
            width // 64,
            4 * width,
            dropout=0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.out = nn.Linear(width, 256)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False
        )

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.out(
            self.layers(self.letters(text) + self.places, mask=self.mask, is_causal=True)
        )


def load_text() -> torch.Tensor:
    """Returns the modules that lie in the standard library's folder, one after the other, as
    bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(
        bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8
    )


@dataclass
class Step:
    loss: float
    seconds: float  # for real: forward, backward and optimizer
    exposed: float  # seconds of it that forward and backward take longer than alone
    cpu_seconds: float  # of a rank's process: user and system, all threads, forward and backward
    cpu_alone: float  # the same, alone
    tokens_per_second: float


@dataclass
class Pass:
    loss: float
    seconds: float
    cpu_seconds: float


def compute_gradients(model: DistributedDataParallel, text: torch.Tensor) -> Pass:
    dist.barrier()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    with record_function("backward"):
        loss.backward()  # DDP sums the gradients over the ranks meanwhile
    return Pass(loss.item(), time.perf_counter() - begin, time.process_time() - cpu_begin)


def train_step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, text: torch.Tensor
) -> Step:
    with model.no_sync():
        alone = compute_gradients(model, text)
    optimizer.zero_grad()
    real = compute_gradients(model, text)
    begin = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    seconds = real.seconds + time.perf_counter() - begin

    slowest = torch.tensor([seconds, real.seconds, alone.seconds], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    mean = torch.tensor([real.loss, real.cpu_seconds, alone.cpu_seconds], dtype=torch.float64)
    dist.all_reduce(mean)
    loss, cpu_seconds, cpu_alone = (mean / dist.get_world_size()).tolist()
    seconds, real_seconds, alone_seconds = slowest.tolist()
    tokens = dist.get_world_size() * text[:, 1:].numel()
    return Step(
        loss, seconds, real_seconds - alone_seconds, cpu_seconds, cpu_alone, tokens / seconds
    )


def overlap(profiler: profile) -> tuple[float, float]:
    """Returns how long all allreduces of a profiled backward took together, in seconds, and the
    share of that which lay before the last gradient was computed."""
    events = profiler.events()
    backward = next(event.time_range for event in events if event.name == "backward")
    computed = max(
        event.time_range.end
        for event in events
        if event.name.startswith("autograd::engine::evaluate_function")
    )
    spans = [
        event.time_range
        for event in events
        if event.name == f"{dist.get_backend()}:all_reduce"
        and backward.start <= event.time_range.start <= backward.end
    ]
    total = sum(span.end - span.start for span in spans)
    hidden = sum(max(0, min(span.end, computed) - span.start) for span in spans)
    return total / 1e6, hidden / total


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    torch.manual_seed(0)
    data = load_text()
    model = DistributedDataParallel(
        Transformer(arguments.layers, arguments.width, arguments.length)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(
        f"{parameters / 1e6:.1f} M parameters, {len(data) / 1e6:.1f} MB of text, {size} ranks, "
        f"backend {dist.get_backend()}"
    )

    random = torch.Generator().manual_seed(rank)
    piece = torch.arange(arguments.length + 1)

    def next_text() -> torch.Tensor:
        starts = torch.randint(len(data) - len(piece), (arguments.batch_size, 1), generator=random)
        return data[starts + piece].long()

    steps = []
    for number in range(1 - WARM_UP, arguments.steps + 1):
        step = train_step(model, optimizer, next_text())
        if number < 1:
            continue
        steps.append(step)
        say(
            f"step {number:3}  loss {step.loss:.3f}  {1e3 * step.seconds:6.0f} ms  "
            f"exposed {1e3 * step.exposed:5.0f} ms  CPU {1e3 * step.cpu_seconds:6.0f} ms, "
            f"alone {1e3 * step.cpu_alone:6.0f} ms  {step.tokens_per_second:6.0f} tokens/s"
        )

    def median(name: str) -> float:
        return statistics.median(getattr(step, name) for step in steps)

    exchange_cpu = statistics.median(step.cpu_seconds - step.cpu_alone for step in steps)
    report: dict[str, Any] = {
        "backend": dist.get_backend(),
        "ranks": size,
        "parameters": parameters,
        "median": {name: median(name) for name in asdict(steps[0])}
        | {"exchange_cpu": exchange_cpu},
        "steps": [asdict(step) for step in steps],
    }
    say(
        f"medians: step {1e3 * median('seconds'):.0f} ms, "
        f"exposed communication {1e3 * median('exposed'):.0f} ms, "
        f"CPU time of the exchange {1e3 * exchange_cpu:.0f} ms a rank"
    )

    if arguments.profile:
        text = next_text()
        recorder = (
            profile(activities=[ProfilerActivity.CPU]) if rank == 0 else contextlib.nullcontext()
        )
        with recorder:
            compute_gradients(model, text)
        if rank == 0:
            recorder.export_chrome_trace(str(arguments.profile))
            report["all_reduce_seconds"], report["overlap"] = overlap(recorder)
            say(
                f"profiled: allreduces of {1e3 * report['all_reduce_seconds']:.0f} ms together, "
                f"{100 * report['overlap']:.0f} % of that while gradients were computed; "
                f"see {arguments.profile}"
            )
    if arguments.json and rank == 0:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
