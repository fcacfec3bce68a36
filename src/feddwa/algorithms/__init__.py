"""The algorithms, one file each. A newcomer is added here and nowhere else."""

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.clusterfl import ClusterFL
from feddwa.algorithms.fedamp import FedAMP
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.fedavg_ft import FedAvgFT
from feddwa.algorithms.fedavgm import FedAvgM
from feddwa.algorithms.feddwa import FedDWA
from feddwa.algorithms.feddwa_plus import FedDWAPlus
from feddwa.algorithms.fedfomo import FedFomo
from feddwa.algorithms.fedprox import FedProx
from feddwa.algorithms.fedrod import FedRoD
from feddwa.algorithms.l2c import L2C
from feddwa.algorithms.local import Local
from feddwa.algorithms.perfedavg import PerFedAvg
from feddwa.algorithms.pfedme import PFedMe
from feddwa.algorithms.sfl import SFL

ALGORITHMS: dict[str, type[Algorithm]] = {  # in the order of the paper's tables, then our own
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedavg_ft": FedAvgFT,
    "sfl": SFL,
    "perfedavg": PerFedAvg,
    "pfedme": PFedMe,
    "clusterfl": ClusterFL,
    "fedrod": FedRoD,
    "fedamp": FedAMP,
    "fedfomo": FedFomo,
    "l2c": L2C,
    "feddwa": FedDWA,
    "feddwa_plus": FedDWAPlus,
}

__all__ = [
    "ALGORITHMS",
    "L2C",
    "SFL",
    "Algorithm",
    "ClusterFL",
    "FedAMP",
    "FedAvg",
    "FedAvgFT",
    "FedAvgM",
    "FedDWA",
    "FedDWAPlus",
    "FedFomo",
    "FedProx",
    "FedRoD",
    "Info",
    "Local",
    "PFedMe",
    "PerFedAvg",
    "Problem",
]
