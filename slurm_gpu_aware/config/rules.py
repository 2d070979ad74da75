"""What settings of several sections say of one another, and the rules of each section."""

from __future__ import annotations

from collections.abc import Collection

from slurm_gpu_aware.config.settings import DEFAULT_KINDS, Config
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.model.job_hints import parse_comment
from slurm_gpu_aware.model.section import Rules


def rules_of(config: Config, policies: Collection[str] = ()) -> Rules:
    """The rules of all sections. ``policies``: the known ones; empty: names are not checked."""
    yield from _classes(config)
    yield from _defaults(config)
    yield from config.placement.rules()
    yield from config.gate.rules()
    wrong = f"must be at most a third of gate.lease_s ({config.gate.lease_s})"
    sound = config.selector.heartbeat_s * 3 <= config.gate.lease_s
    yield sound, "selector.heartbeat_s", wrong
    yield from config.tune.rules()
    for section in config.sections.values():
        yield from section.rules()
    if policies:
        yield from _policies(config, policies)


def _classes(config: Config) -> Rules:
    classes, default = config.site.classes, config.site.default_class
    listed = ", ".join(classes)
    yield len(set(classes)) == len(classes), "site.classes", "names must differ"
    yield "auto" not in classes, "site.classes", "'auto' is reserved"
    yield default in classes, "site.default_class", f"{default!r} is not one of {listed}"
    for name in config.classes:
        yield name in classes, f"classes.{name}", f"not one of site.classes ({listed})"


def _defaults(config: Config) -> Rules:
    """Hints in the grammar of the comment, with the keys that a site may give."""
    lists = {"classes": config.site.classes, "policies": config.placement.offered}
    by_site = [hint.key for hint in HINTS if hint.by_site]
    for kind, table in config.site.defaults.items():
        known = ", ".join(DEFAULT_KINDS)
        yield kind in DEFAULT_KINDS, f"site.defaults.{kind}", f"unknown; known: {known}"
        for name, comment in table.items():
            wrong = f"expected key=value,... with these keys: {', '.join(by_site)}"
            try:
                hints = parse_comment(comment, HINTS, lists)
            except RequestError as exc:
                hints, wrong = None, str(exc).removeprefix("gpu-aware: ")
            sound = hints is not None and hints.values.keys() <= {*by_site}
            yield sound, f"site.defaults.{kind}.{name}", wrong


def _policies(config: Config, known: Collection[str]) -> Rules:
    listed = ", ".join(known)
    for name in config.policies:
        yield name in known, f"policies.{name}", f"unknown policy; known: {listed}"
    for name in config.tune.ranges:
        yield name in known, f"tune.ranges.{name}", f"unknown policy; known: {listed}"
    named = [("placement.policy", config.placement.policy)]
    named += [("placement.allowed", name) for name in config.placement.allowed]
    named += [("tune.allowed", name) for name in config.tune.allowed]
    for key, name in named:
        yield name in known, key, f"unknown policy {name!r}; known: {listed}"
