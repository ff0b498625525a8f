"""CSV logs of a training run, which survive a kill."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

TRAIN_FILE = "train.csv"
VALIDATION_FILE = "validation.csv"


class CsvLog:
    """A CSV file whose first column is the step.

    Opening it drops rows after `keep_through`: a run that was killed has logged steps after its last saved state, and
    will log them again.
    """

    def __init__(self, path: Path, columns: Sequence[str], keep_through: int) -> None:
        rows: list[list[str]] = []
        if keep_through and path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                # A row cut short by a kill has too few fields.
                complete = [row for row in csv.reader(file) if len(row) == len(columns)]
            rows = [row for row in complete if row[0].isdigit() and int(row[0]) <= keep_through]
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(columns)
        self._writer.writerows(rows)
        self._file.flush()

    def write(self, step: int, *values: float) -> None:
        """Appends one row; floats are written with six significant digits."""
        self._writer.writerow([step, *(f"{value:.6g}" for value in values)])
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class RunLog:
    """`train.csv` and `validation.csv` of a run; rows after step `keep_through` are dropped, see `CsvLog`.

    Args:
        predictions: drafts per block, which have a column each in `validation.csv`.
        write: False writes nothing: the log of a process that leaves the files to another.
    """

    def __init__(self, folder: Path, predictions: int, keep_through: int, *, write: bool) -> None:
        self._train: CsvLog | None = None
        self._validation: CsvLog | None = None
        if write:
            columns = ("step", "loss", "learning_rate", "gradient_norm", "predictions_per_s")
            self._train = CsvLog(folder / TRAIN_FILE, columns, keep_through)
            drafts = [f"prefix_{k + 1}" for k in range(predictions)]
            self._validation = CsvLog(folder / VALIDATION_FILE, ("step", "tau", *drafts), keep_through)

    def step(self, step: int, loss: float, learning_rate: float, gradient_norm: float, rate: float) -> None:
        """One optimizer step."""
        if self._train is not None:
            self._train.write(step, loss, learning_rate, gradient_norm, rate)

    def validation(self, step: int, tau: float, prefix: Sequence[float]) -> None:
        """One validation."""
        if self._validation is not None:
            self._validation.write(step, tau, *prefix)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for log in (self._train, self._validation):
            if log is not None:
                log.close()
