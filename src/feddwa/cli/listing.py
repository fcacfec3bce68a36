"""`feddwa list`: names of algorithms, datasets and others with their facts, read without importing them."""

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from feddwa.built_in import Entry, Parameter, entries, entry_of
from feddwa.groups import KINDS, by_kind
from feddwa.params import Option
from feddwa.plugins import (
    ALGORITHMS,
    ATTACKS,
    DATASETS,
    DEFENCES,
    LOSSES,
    METRICS,
    MODELS,
    PARTITIONS,
    Registry,
    resolve,
)

LINE = "\n"
REGISTRIES: dict[str, Registry] = {
    each.plural: each for each in (ALGORITHMS, DATASETS, MODELS, PARTITIONS, LOSSES, METRICS, ATTACKS, DEFENCES)
}
LIBRARY_MODELS = {
    "torchvision": "takes images; a classifier of torchvision, such as torchvision:resnet18",
    "timm": "takes images; a classifier of timm, such as timm:vit_tiny_patch16_224",
    "hf": "takes token ids; a classifier or (every=true) language model of transformers: hf:FOLDER, hf:config.json",
}
UNITS = {  # of the expressions that an algorithm declares its costs by
    "m": "clients in the round",
    "N": "all clients",
    "parameters": "parameters of the network, without layers that the method adds",
    "layers": "layers of the network",
    "classes": "scores that the network gives",
    "features": "numbers that its last layer makes them of",
    "body": "share of the parameters below the head",
    "batchnorm": "share of the parameters that are BatchNorm's",
    "added": "parameters of the layers that it adds and exchanges, as a share of the network's",
    "samples": "training samples of a client",
    "steps": "batches of a client in a round",
}
PASSES = {  # besides whole ones, forward and backward
    "body_passes": "of the body alone",
    "probe_passes": "of the head alone",
    "feature_passes": "with a loss of features alone",
    "head_passes": "through the head alone",
    "forward_passes": "forward alone, to validate models",
    "statistics_passes": "forward alone, for sums of features",
    "teacher_passes": "forward alone, of a model that stands still",
    "evaluation_passes": "before evaluation",
    "evaluation_probe_passes": "of the head alone before evaluation",
}
WORDS = {"discloses": "what the server learns of a client", "evaluated": "what is evaluated of a client"}
COSTS = ("traffic", "cost", "kept", "layers")
TOLD_APART = ("title", "summary", "reference", "description", "parameters", *COSTS, *WORDS)


@dataclass(frozen=True)
class ListConfig:
    """List the names that options take, or tell what is known of one: hyper-parameters, traffic, cost."""

    what: Annotated[
        Literal["algorithms", "datasets", "models", "partitions", "losses", "metrics", "attacks", "defences"],
        Option(positional=True, metavar="WHAT"),
    ]
    """What to list: algorithms, datasets, models, partitions, losses, metrics, attacks or defences."""
    name: Annotated[str, Option(metavar="[NAME]", positional=True)] = ""
    """One of them, or a reference such as FILE.py:CLASS."""
    json: bool = False
    """As JSON: name -> facts."""


def list_command(config: ListConfig) -> int:
    """`feddwa list`."""
    registry = REGISTRIES[config.what]
    if config.name:
        registry.check(config.name, config.what)
        known = _known(registry.kind, _entry(registry, config.name))
        print(_as_json({config.name: known}) if config.json else "\n".join(_lines(config.name, known, registry.kind)))
        return 0
    table = {name: _known(registry.kind, entry) for name, entry in entries(registry.kind).items()}
    table |= {name: {"summary": f"plug-in {reference}"} for name, reference in registry.plugins().items()}
    if config.json:
        print(_as_json(table))
        return 0
    if registry.kind == "model":
        table |= {f"{name}:NAME": {"summary": text} for name, text in LIBRARY_MODELS.items()}
    width = max(map(len, table))
    for heading, names in _groups(registry, table).items():
        print(*[heading] if heading else [], *(_line(name, table[name], width) for name in names), sep="\n")
    return 0


def _groups(registry: Registry, table: Mapping[str, Any]) -> dict[str, list[str]]:
    """Heading -> names; algorithms by kind, in which they stand by year."""
    if registry is not ALGORITHMS:
        return {"": list(table)}
    kinds = by_kind()
    kinds["other"] = [name for name in table if name not in {known for names in kinds.values() for known in names}]
    return {
        f"{'' if kind == next(iter(kinds)) else LINE}@{kind}: {KINDS[kind]}": own for kind, own in kinds.items() if own
    }


def _line(name: str, known: Mapping[str, Any], width: int) -> str:
    title = f"{known['title']}: " if "title" in known else ""
    year = f" ({known['year']})" if "year" in known else ""
    return f"{name:<{width}}  {title}{known['summary']}{year}"


def _as_json(table: dict[str, dict[str, Any]]) -> str:
    return json.dumps(table, indent=2, ensure_ascii=False)


def _entry(registry: Registry, name: str) -> Entry:
    """What is built in is read; code from outside the package is imported."""
    if name in entries(registry.kind):
        return entries(registry.kind)[name]
    found = registry.find(name)  # which says where something is wrong with it
    if registry.kind == "model":
        given = {key: Parameter(str(each.type), each.default, "") for key, each in found.arguments.items()}
        return dataclasses.replace(entry_of(found.build), parameters=_printable(given))
    return entry_of(found if isinstance(found, type) else resolve(registry.plugins().get(name, name)))


def _printable(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Parameters for JSON: types by name, objects as text, None without a default."""
    plain = (bool, int, float, str, tuple, list, type(None))
    return {
        name: Parameter(
            re.sub(r"<class '([\w.]+)'>|typing\.", r"\1", each.type),
            None if each.default is inspect.Parameter.empty
            else each.default if isinstance(each.default, plain) else str(each.default),
            each.text,
        )
        for name, each in parameters.items()
    }  # fmt: skip


def _known(kind: str, entry: Entry) -> dict[str, Any]:
    """Details of an entry: facts by name, hyper-parameters, and for an algorithm traffic and cost."""
    if kind != "algorithm":
        known = {**entry.facts, "description": "" if entry.doc == entry.facts["summary"] else entry.doc}
    else:
        known = {key: entry.facts.get(key) for key in ("title", "summary", "kind", "year")}
        known |= {"reference": _reference(entry.module_doc), **_costs(entry)}
        known |= {key: entry.facts.get(key) for key in ("discloses", "evaluated")}
    if kind != "dataset":
        known["parameters"] = {name: parameter._asdict() for name, parameter in entry.parameters.items()}
    return {key: value for key, value in known.items() if key == "summary" or value not in (None, "")}


def _reference(doc: str) -> str | None:
    """The paper in the parentheses that end the first line of a module's docstring, if there is a year in them."""
    line = doc.partition("\n")[0].removesuffix(".")
    inside = line.rpartition("(")[2].removesuffix(")")
    return inside if line.endswith(")") and inside[-4:].isdigit() else None


def _costs(entry: Entry) -> dict[str, Any]:
    facts = entry.facts
    traffic = {key: facts.get(key) for key in ("models_down", "models_up", "numbers_down", "numbers_up")}
    cost = {key: facts.get(key) for key in ("passes", *PASSES, "other_ops", "server_ops")}
    kept = {key: facts.get(key) for key in ("models_kept", "numbers_kept")}
    added = {"layers": {"added_numbers": facts["added_numbers"]}} if facts.get("added_numbers") else {}
    return {"traffic": traffic, "cost": cost, "kept": kept, **added}


def _lines(name: str, known: dict[str, Any], kind: str) -> Iterator[str]:
    """The same for people."""
    yield f"{known.get('title', name)}: {known['summary']}"
    yield from (known[key] for key in ("reference", "description") if key in known)
    for key, value in known.items():
        if key not in TOLD_APART:
            yield f"{key}: {value}"
    if known.get("parameters"):
        called, option = ("arguments", "--model-arg") if kind == "model" else ("hyper-parameters", "--param")
        searched = any(each["search"] for each in known["parameters"].values())
        yield f"\n{called}, by {option} NAME=VALUE{' [what `feddwa tune` tries]' * searched}:"
        shown = {key: f"{key}={each['default']}" for key, each in known["parameters"].items()}
        width = max(map(len, shown.values()))
        for key, each in known["parameters"].items():
            tried = f" [{each['search']}]" if each["search"] else ""
            yield f"  {shown[key]:<{width}}  {each['text'] or each['type']}{_choices(each['type'])}{tried}"
    if "cost" in known:
        yield ""
        yield f"traffic of a participating client in a round: {_traffic(known['traffic'])}"
        yield f"passes over its data, FedAvg's being 1: {passes_in_words(known['cost'])}"
        if known["cost"]["other_ops"]:
            yield f"multiply-adds of a client in a round besides: {known['cost']['other_ops']}"
        if "layers" in known:
            yield f"parameters of the layers that it adds and exchanges: {known['layers']['added_numbers']}"
        yield f"multiply-adds of the server per parameter: {_declared(known['cost']['server_ops'])}"
        yield f"kept by a client between rounds: {amount_in_words(known['kept'], 'kept')}"
        yield from (f"{text}: {known[key]}" for key, text in WORDS.items() if key in known)
        used = {name for part in COSTS if part in known for value in known[part].values() for name in _names(value)}
        if used & UNITS.keys():
            yield "  where " + ", ".join(f"{name} = {text}" for name, text in UNITS.items() if name in used)


def _choices(type_: str) -> str:
    """The words that a type Literal[...] takes."""
    words = type_.removeprefix("Literal[").removesuffix("]").replace("'", "")
    return f" ({words})" if type_.startswith("Literal[") else ""


def _names(amount: Any) -> list[str]:
    """The variables of an expression."""
    tree = ast.parse(amount) if isinstance(amount, str) else ast.Module([], [])
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _declared(value: Any) -> str:
    return "not declared" if value is None else str(value)


def _traffic(traffic: dict[str, Any]) -> str:
    return ", ".join(f"{way} {amount_in_words(traffic, way)}" for way in ("down", "up"))


def amount_in_words(facts: Mapping[str, Any], what: str) -> str:
    """Models and numbers that an algorithm declares: what is "down", "up" or "kept"."""
    models, numbers = facts.get(f"models_{what}"), facts.get(f"numbers_{what}")
    unit = "" if models is None else " model" if models == 1 else " models"
    whole = [f"{_declared(models)}{unit}"] if models != 0 or not numbers else []
    return " and ".join([*whole, *([f"{numbers} numbers"] if numbers else [])])


def passes_in_words(cost: Mapping[str, Any]) -> str:
    """What an algorithm declares of its passes over a client's data."""
    more = [f"{cost[key]:g} {text}" for key, text in PASSES.items() if cost.get(key)]
    whole = [] if more and cost.get("passes") == 0 else [_declared(cost.get("passes"))]
    return ", and ".join([*whole, *more])
