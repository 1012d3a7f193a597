"""Units one after another on this machine, or side by side on the machines of a Ray cluster."""

import logging
from collections.abc import Sequence

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.experiments.reproduction.run_unit import LOG, UnitFailedError, run_unit
from dcpcse.experiments.reproduction.units import RunUnit
from dcpcse.utils.errors import UserError
from dcpcse.utils.ray_cluster import connected, machines

logger = logging.getLogger(__name__)

RETRIES = 3
"""A unit whose worker is gone is begun again on another, from its last checkpoint; so often at most."""


def run_sequentially(units: Sequence[RunUnit]) -> dict[str, str]:
    """Do units here; row → why a unit of it failed. The others go on."""
    failures: dict[str, str] = {}
    with logging_redirect_tqdm(), tqdm(units, unit="unit") as bar:
        for unit in bar:
            bar.set_description(unit.name)
            logger.info("%s: %s tells how it goes", unit.name, unit.folder / LOG)
            try:
                run_unit(unit)
            except UnitFailedError as error:
                logger.warning("%s", error)
                failures[unit.row.name] = str(error)
    return failures


def run_on_ray(units: Sequence[RunUnit], address: str) -> dict[str, str]:
    """Do units on a Ray cluster, one a machine at a time (or a GPU), which all see the output folder at one path."""
    failures: dict[str, str] = {}
    with connected(address) as ray, logging_redirect_tqdm(), tqdm(total=len(units), unit="unit") as bar:
        nodes = machines(ray)
        gpus = any(node.get("GPU") for node in nodes)
        needs = {"num_gpus": 1} if gpus else {"num_cpus": int(min(node["CPU"] for node in nodes))}
        task = ray.remote(max_retries=RETRIES, **needs)(_outcome)
        waiting = {task.remote(unit): unit for unit in units}
        while waiting:
            (ready,), _ = ray.wait(list(waiting))
            unit = waiting.pop(ready)
            try:
                problem = ray.get(ready)
            except ray.exceptions.RayError as error:
                problem = f"{unit.name}: its worker was lost {RETRIES + 1} times ({str(error).splitlines()[-1]:.120})"
            if problem:
                logger.warning("%s", problem)
                failures[unit.row.name] = problem
            bar.update()
    return failures


def _outcome(unit: RunUnit) -> str:
    """Why a unit failed, in a worker; empty where it did not. Raised, Ray would bury it in its own."""
    try:
        run_unit(unit)
    except UserError as error:
        return str(error)
    return ""
