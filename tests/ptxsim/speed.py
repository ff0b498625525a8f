"""Speed of the interpreter on its attention kernel, every check on: `python -m tests.ptxsim.speed`."""

import time

from tests.ptxsim.test_attention import run

HEADS, LENGTH = 2, 512


def main() -> None:
    """Prints query-key pairs of all heads for each second of processor time, of the best of three runs."""
    for threads in (1, 2):
        best = 0.0
        for _ in range(3):
            cpu, wall = time.process_time(), time.perf_counter()
            report, error = run(HEADS, LENGTH, LENGTH, threads=threads)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            report.check()
            assert error < 4e-3
            best = max(best, HEADS * LENGTH * LENGTH / cpu)
            print(f"{threads} threads: {report.warp_instructions / cpu / 1e6:.1f} M warp instructions/s, {wall:.2f} s")
        print(f"{threads} threads: {best / 1e6:.2f} M q*k*heads per second of one core")


if __name__ == "__main__":
    main()
