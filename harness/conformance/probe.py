"""What a plugin says of itself: ``python -m harness.conformance.probe FILE OPTIONS`` prints JSON.

It is asked in a process of its own, since a client may hang, abort, or print a megabyte.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.conformance.plugin_file import PluginFile

DEADLINE = 60.0  # seconds for a client: libtpu and CUDA look for devices
_BEGIN = "plugin "


def probe(plugin: PluginFile, deadline: float = DEADLINE) -> Mapping[str, Any]:
    """Return what the plugin says of itself; ``client`` is why it has none here, or "".

    ``initialized`` is whether its initialization ended well. Other keys: api, attributes,
    extensions, functions (how many), platform, version, devices, kinds.
    """
    command = [sys.executable, "-m", "harness.conformance.probe", str(plugin.path)]
    data: dict[str, Any] = {"client": "", "initialized": False}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, json.dumps(dict(plugin.options))],
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        begun = time.monotonic()
        status = None
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(deadline)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        for line in output.read().decode(errors="replace").splitlines():
            if line.startswith(_BEGIN):
                data |= json.loads(line.removeprefix(_BEGIN))
    if status is None:
        data["client"] = f"it was not created after {time.monotonic() - begun:.0f} s"
    elif status < 0:
        data["client"] = f"creating it died of {signal.Signals(-status).name}"
    elif status > 0:
        data["client"] = data["client"] or f"creating it ended the process with {status}"
    return data


def _main() -> None:
    from harness.conformance.c_api.api import CApi
    from harness.conformance.c_api.client import Client

    printed = os.dup(1)
    os.dup2(2, 1)

    def tell(data: Mapping[str, Any]) -> None:
        os.write(printed, f"\n{_BEGIN}{json.dumps(data)}\n".encode())

    api = CApi(Path(sys.argv[1]))
    names = [each.name or f"type {each.type}" for each in api.plugin.extensions]
    functions = [name for name in api.functions if not api.lacks(name)]
    tell({"api": list(api.plugin.api_version), "extensions": names, "functions": len(functions)})
    client = Client(api, json.loads(sys.argv[2]))
    try:
        api.call("PJRT_Plugin_Initialize")
        tell({"initialized": True})
        it = api.call("PJRT_Plugin_Attributes")
        tell({"attributes": api.named_values(it.attributes, it.num_attributes, "attributes")})
        it = api.call("PJRT_Client_PlatformName", client=client.handle)
        platform = api.text(it.platform_name, it.platform_name_size, "platform_name")
        it = api.call("PJRT_Client_PlatformVersion", client=client.handle)
        version = api.text(it.platform_version, it.platform_version_size, "platform_version")
        kinds = list[str]()
        for device in client.devices:
            it = api.call(
                "PJRT_DeviceDescription_Kind", device_description=client.description(device)
            )
            kinds.append(api.text(it.device_kind, it.device_kind_size, "device_kind"))
        tell({"platform": platform, "version": version, "devices": len(kinds), "kinds": kinds[:8]})
        if not client.devices:
            tell({"client": "it has no device"})
    except Exception as error:
        tell({"client": str(error).split("\n")[0][:1000] or type(error).__name__})
    os._exit(0)


if __name__ == "__main__":
    _main()
