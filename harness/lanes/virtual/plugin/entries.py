"""Writes ``entries.inc`` from ``pjrt_c_api.h``: each entry of PJRT_Api with its struct's shape.

A line is ``ENTRY(name, end, ...)``, or ``VOID_ENTRY`` for a call without a result: the offset in
bytes at which each field of its struct ends, since an older caller's struct is one of those long.
``STRUCT`` lines say the same of structs that callers hand over inside of others.
"""

import re
import sys
from pathlib import Path

NESTED = ["PJRT_ExecuteOptions"]


def entries(header: str) -> list[str]:
    """Return the lines; raise ValueError if the header does not have the expected shape."""
    table = header[header.index("typedef struct PJRT_Api {") :]
    names = re.findall(r"_PJRT_API_STRUCT_FIELD\((\w+)\);", table)
    results = dict(
        re.findall(r"typedef\s+(?:PJRT_Error\s*\*)\s*(PJRT_\w+)\((\s*PJRT_\w+_Args)", header)
    )
    lines = [
        f"{'ENTRY' if name in results else 'VOID_ENTRY'}({name}, {_ends(header, f'{name}_Args')})"
        for name in names
    ]
    if not lines:
        raise ValueError("pjrt_c_api.h: expected PJRT_Api with _PJRT_API_STRUCT_FIELD(...) members")
    return lines + [f"STRUCT({name}, {_ends(header, name)})" for name in NESTED]


def _ends(header: str, struct: str) -> str:
    match = re.search(rf"^struct {struct} \{{(.*?)^\}};", header, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ValueError(f"pjrt_c_api.h: expected a struct {struct}")
    body = re.sub(r"//.*", "", match[1])
    declarations = [text.strip() for text in body.split(";") if text.strip()]
    fields = []
    for text in declarations:
        pointer = re.search(r"\(\*(\w+)\)\s*\(", text)  # a function pointer, else the last word
        fields.append(pointer[1] if pointer else re.findall(r"\w+", text)[-1])
    return ", ".join(f"PJRT_STRUCT_SIZE({struct}, {field})" for field in fields)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text("\n".join(entries(source.read_text())) + "\n")
