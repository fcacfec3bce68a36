"""PFLlib's `system/main.py` with a clock around its rounds: FedAvg on files that forms.write_pfllib wrote.

    python run_pfllib.py FOLDER SYSTEM      SYSTEM: the folder system/ of a copy of the repository

A round is from `select_clients` to the end of `aggregate_parameters`; `evaluate` is taken off. It evaluates before the
first round and, which its loop does not do, once more after the last one. Its loop makes a round more than it is asked.
"""

import os
import runpy
import sys
from pathlib import Path

import clock


def main() -> None:
    folder, system = (Path(word).resolve() for word in sys.argv[1:])
    task = clock.task_in(folder)
    sys.path.insert(0, str(system))
    missing = clock.replace_missing(["torchvision", "cvxpy", "calmsize", "h5py", "matplotlib", "matplotlib.pyplot"])
    from flcore.servers.serveravg import FedAvg  # type: ignore[import-not-found]

    watch = clock.Clock()
    clock.around(FedAvg, "select_clients", before=watch.begin)
    clock.around(FedAvg, "aggregate_parameters", after=lambda server, result: watch.end())
    clock.timed(FedAvg, "evaluate", watch)

    def finish(server: FedAvg, result: None) -> None:
        server.send_models()
        server.evaluate()
        watch.write(folder, 100 * server.rs_test_acc[-1], ["numpy", "torchvision", "scikit-learn"], missing=missing)

        sys.exit()  # what main.py does then is no part of the benchmark

    clock.around(FedAvg, "train", after=finish)
    FedAvg.save_results = FedAvg.save_global_model = lambda server: None  # after the last round
    (name,) = os.listdir(folder / "dataset")
    words = ["-data", name, "-ncl", "10", "-m", "CNN", "-algo", "FedAvg", "-dev", task["device"]]
    words += ["-nc", str(task["clients"]), "-lbs", str(task["batch_size"]), "-lr", str(task["lr"])]
    words += ["-ls", str(task["epochs"]), "-gr", str(task["rounds"] - 1), "-eg", "1000000"]
    os.chdir(folder / "system")
    sys.argv = ["main.py", *words]
    runpy.run_path(str(system / "main.py"), run_name="__main__")


if __name__ == "__main__":
    main()
