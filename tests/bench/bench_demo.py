"""What the arithmetic example reaches: the real command from an empty folder to its report, one seed after another.

Per seed: pass rate on held-out questions before and after, minutes of training (the trainer's own clock: both
measurements and every step), minutes of the whole command (model built and warmed up, everything started, trained and
stopped), tokens per second, and the two numbers of the ledger that must be 0. The figures that are compared with the
targets are the worst of all seeds; `seeds` holds each of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic.toml"
SEEDS = (1, 2, 3)
LONGEST_SECONDS = 1800.0
AT_MOST = {"pass_rate_before": 0.40, "training_minutes": 6.0, "lost": 0, "trained_twice": 0}
AT_LEAST = {"pass_rate_after": 0.80}


def run_seed(seed: int, directory: Path) -> dict[str, float]:
    """Run the example with one seed and read what it left.

    Raises:
        RuntimeError: the run did not come to its end.
    """
    name = f"seed-{seed}"
    flags = ("--run.directory", str(directory), "--run.seed", str(seed), "--run.name", name)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "services.launcher", "run", str(EXAMPLE), *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    wall_seconds = time.perf_counter() - began
    summary_file = directory / name / "summary.json"
    if not summary_file.exists():
        last_words = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"the run with seed {seed} ended with exit status {done.returncode}:\n{last_words}")
    summary = json.loads(summary_file.read_text())
    return {
        "pass_rate_before": round(summary["pass_rate_before"], 3),
        "pass_rate_after": round(summary["pass_rate_after"], 3),
        "training_minutes": round(summary["seconds"] / 60, 2),
        "wall_minutes": round(wall_seconds / 60, 2),
        "tokens_per_second": round(summary["tokens_per_second"], 1),
        "lost": summary["lost"],
        "trained_twice": summary["trained_twice"],
    }


def run_seeds(seeds: tuple[int, ...]) -> dict[int, dict[str, float]]:
    """Run one seed after another, and say how each went."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            print(f"seed {seed}: building the model and training ...", flush=True)
            figures = measured[seed] = run_seed(seed, Path(folder))
            print(
                f"seed {seed}: pass rate {figures['pass_rate_before']:.1%} -> {figures['pass_rate_after']:.1%}, "
                f"{figures['training_minutes']:.2f} min of training, {figures['wall_minutes']:.2f} min in all, "
                f"{figures['tokens_per_second']:,.0f} tokens/s, lost {figures['lost']}, "
                f"trained twice {figures['trained_twice']}",
                flush=True,
            )
    return measured


def main() -> None:
    """Run the bench and print its one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed instead of three")
    arguments = parser.parse_args()
    measured = run_seeds(SEEDS[:1] if arguments.quick else SEEDS)
    worst = {name: max(figures[name] for figures in measured.values()) for name in AT_MOST}
    worst |= {name: min(figures[name] for figures in measured.values()) for name in AT_LEAST}
    met = all(worst[name] <= most for name, most in AT_MOST.items())
    met = met and all(worst[name] >= least for name, least in AT_LEAST.items())
    figures = {**worst, "seeds": measured}
    print(json.dumps({"bench": "demo", "figures": figures, "targets": AT_MOST | AT_LEAST, "met": met}))


if __name__ == "__main__":
    main()
