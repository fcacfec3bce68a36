"""pfl-research's benchmarks/image_classification with a clock around its rounds: FedAvg on forms.write_pfl's files.

    python run_pfl.py FOLDER BENCHMARKS      BENCHMARKS: the folder benchmarks/ of a copy of the repository

A round is from `get_next_central_contexts` to the end of `process_aggregated_statistics_from_all_contexts`; evaluation
of users and of the central model is taken off. Its server's optimiser does not count as a step. Users of a round are
drawn with replacement. The central model is evaluated once more after the last round.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import clock
import numpy as np


def main() -> None:
    folder, benchmarks = (Path(word).resolve() for word in sys.argv[1:])
    task = clock.task_in(folder)
    sys.path.insert(0, str(benchmarks))
    missing = clock.replace_missing(
        ["dp_accounting", "dp_accounting.rdp", "dp_accounting.pld", "prv_accountant", "multiprocess"]
    )
    import dataset.argument_parsing as data  # type: ignore[import-not-found]
    from pfl.algorithm import FederatedAveraging  # type: ignore[import-not-found]
    from pfl.callback.central_evaluation import CentralEvaluationCallback  # type: ignore[import-not-found]
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]

    watch = clock.Clock(skip=lambda optimizer: optimizer.param_groups[0]["lr"] == task["server_lr"])
    clock.around(FederatedAveraging, "get_next_central_contexts", before=watch.begin)
    clock.around(FederatedAveraging, "process_aggregated_statistics_from_all_contexts", after=lambda *_: watch.end())
    clock.timed(PyTorchModel, "evaluate", watch)
    evaluators: list[Any] = []
    clock.around(CentralEvaluationCallback, "__init__", after=lambda callback, result: evaluators.append(callback))

    def finish(algorithm: Any, model: Any) -> None:
        found = evaluators[0].on_train_begin(model=model).to_simple_dict()
        (accuracy,) = (value for name, value in found.items() if "accuracy" in name.lower())
        watch.write(folder, 100 * float(accuracy), ["pfl", "numpy", "dp-accounting"], missing=missing)

    clock.around(FederatedAveraging, "run", after=finish)
    load = data.get_datasets

    def in_our_order(arguments: Any) -> Any:
        with mock.patch.object(np.random, "permutation", np.arange):  # it would shuffle before it cuts
            return load(arguments)

    data.get_datasets = in_our_order
    os.environ["PFL_PYTORCH_DEVICE"] = task["device"]
    os.chdir(folder)  # where it writes metrics.csv
    config = benchmarks / "image_classification" / "configs" / "baseline.yaml"
    options = {
        "args_config": config,
        "data_path": folder,
        "central_num_iterations": task["rounds"],
        "cohort_size": task["per_round"],
        "local_batch_size": task["batch_size"],
        "local_learning_rate": task["lr"],
        "local_num_epochs": task["epochs"],
        "learning_rate": task["server_lr"],
        "evaluation_frequency": task["eval_every"],
        "mean_datapoints_per_user": task["each"],
        "seed": task["seed"],
    }
    sys.argv = ["train.py", *(word for key, value in options.items() for word in (f"--{key}", str(value)))]
    runpy.run_path(str(benchmarks / "image_classification" / "pytorch" / "train.py"), run_name="__main__")


if __name__ == "__main__":
    main()
