"""Choose the plugin of a run, and ask it once what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.conformance.plugin_file import GROUP, PluginFile, parse, parse_options
from harness.conformance.probe import probe
from harness.errors import BadInputError
from harness.model.chosen_plugin import ChosenPlugin, chosen_plugin


def need_pypjrt(purpose: str) -> None:
    """Raise BadInputError without the package that knows the C API's structs."""
    if find_spec("pypjrt") is None:
        raise BadInputError(
            f"{purpose}: expected the package pypjrt: pip install 'xla-harness[conformance]'"
        )


def choose(text: str, options: Sequence[str], version: str) -> None:
    """Choose the plugin ``NAME=PATH`` or ``NAME`` for this process and those that it starts.

    ``options`` are ``KEY=VALUE``; ``version`` is the plugin's, or "" for its package's. A process
    that inherits the same choice does not ask the plugin again. Raises BadInputError as
    :func:`harness.conformance.plugin_file.parse` does.
    """
    request = request_of(text, options, version)
    before = chosen_plugin()
    if before is not None and before.request == request:
        return
    need_pypjrt("--plugin")
    plugin = parse(text, parse_options(options))
    hand_on(plugin, probe(plugin), request, is_registered="=" not in text, version=version)


def request_of(text: str, options: Sequence[str], version: str = "") -> tuple[str, ...]:
    """Return the options of a command line that choose a plugin."""
    request = ("--plugin", text, *(f"--plugin-option={each}" for each in options))
    return (*request, *((f"--plugin-version={version}",) if version else ()))


def hand_on(
    plugin: PluginFile,
    about: Mapping[str, Any],
    request: tuple[str, ...],
    *,
    is_registered: bool,
    version: str = "",
) -> None:
    """Choose a plugin that has said what it is (``about``) for what this process starts."""
    ChosenPlugin(
        request=request,
        name=plugin.name,
        path=str(plugin.path),
        is_registered=is_registered,
        options=plugin.options,
        version=version or _version(request[1], plugin),
        missing=about["client"],
        devices=about.get("devices", 0),
        api=".".join(map(str, about.get("api", ()))),
        says=" ".join(about.get("version", "").split()),
        attributes=json.dumps(about.get("attributes", {})),
        extensions=", ".join(about.get("extensions", ())),
    ).hand_on()


def _version(text: str, plugin: PluginFile) -> str:
    """Return the version of the package that registers the plugin, or has its library; or ""."""
    for entry in entry_points(group=GROUP):
        if entry.name == text and entry.dist is not None:
            return entry.dist.version
    for package in distributions(path=[str(folder) for folder in plugin.path.parents]):
        for file in package.files or ():
            if file.name == plugin.path.name and Path(str(package.locate_file(file))).resolve() == (
                plugin.path
            ):
                return package.version
    return ""
