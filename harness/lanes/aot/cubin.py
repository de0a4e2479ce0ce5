"""Reads what GPU kernels use of registers and memory out of a program that XLA has serialised.

The program is a message GpuExecutableProto of https://github.com/openxla/xla, since jaxlib 0.10 in
Riegeli's records: https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md.
Somewhere in it stands each kernel's ELF file for NVIDIA GPUs, whose numbers ``cuobjdump
--dump-resource-usage`` prints.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FILE = bytes.fromhex("83af70d10d884a3f")  # the hash of a Riegeli file's first header
_BLOCK, _HEADER = 1 << 16, 24  # each block of the file begins with a header
_CHUNK = struct.Struct("<8xQ8xQ8x")  # bytes; its kind below the number of its records
_SNAPPY, _PLAIN, _RECORDS = b"s", b"\0", ord("r")
_ELF = b"\x7fELF\x02\x01\x01"
_SECTION = struct.Struct("<II16xQQII16x")  # name, type, offset, size, link, info
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOLS, _ENTRY = 2, 0x10  # a section's type; of a symbol, that it is a kernel
_WITH_VALUE, _REGISTERS, _STACK = 4, 0x2F, 0x12  # an attribute's format; attributes of kernels
# Of CustomKernelProto: the message with the kernel's file, and bytes of shared memory at launch.
_HEIGHT, _LAUNCHED_WITH = 2, 6


@dataclass(frozen=True, order=True)
class KernelUse:
    """What a kernel uses.

    ``registers`` of a thread; ``shared`` memory of a block in bytes, with what the launch adds, and
    what the system takes of it, or None if the launch is not in the program; ``local`` memory of a
    thread in bytes, where registers are spilled to and arrays are that have no place in registers.
    """

    registers: int
    shared: int | None
    local: int


def kernel_use(program: bytes) -> Mapping[str, KernelUse]:
    """Return what each kernel of a serialised program uses, by its name.

    Raises ValueError for a program in another format.
    """
    uses: dict[str, KernelUse] = {}
    for part in _parts(program):
        for elf, _, launched_with in _files(part):
            uses.update(_uses(elf, launched_with))
    return uses


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield what all records of the Riegeli file in it contain, or the data itself without one."""
    start = data.find(_FILE)
    if start < 0:
        yield data
        return
    for record in _records(data[start:]):
        yield from _parts(record)


def _records(file: bytes) -> Iterator[bytes]:
    data = b"".join(file[n + _HEADER : n + _BLOCK] for n in range(0, len(file), _BLOCK))
    place = 0
    while place + _CHUNK.size <= len(data):
        size, kind = _CHUNK.unpack_from(data, place)
        chunk = data[place + _CHUNK.size :][:size]
        place += _CHUNK.size + len(chunk)
        if len(chunk) < size:
            return  # behind the file's end
        if kind & 0xFF == _RECORDS:
            length, start = _varint(chunk, 1)
            sizes = _expanded(chunk[:1], chunk[start : start + length])
            values = _expanded(chunk[:1], chunk[start + length :])
            at = read = 0
            for _ in range(kind >> 8):
                size, at = _varint(sizes, at)
                yield values[read : read + size]
                read += size


def _expanded(compression: bytes, data: bytes) -> bytes:
    if compression == _PLAIN:
        return data
    if compression != _SNAPPY:
        raise ValueError(f"records compressed as {compression!r}: expected {_SNAPPY!r}")
    return _uncompressed(data[_varint(data, 0)[1] :])


def _uncompressed(data: bytes) -> bytes:
    """Undo Snappy: https://github.com/google/snappy/blob/main/format_description.txt."""
    (_, place), out = _varint(data, 0), bytearray()
    while place < len(data):
        tag, place = data[place], place + 1
        if not tag & 3:
            length, more = tag >> 2, max((tag >> 2) - 59, 0)
            if more:
                length, place = int.from_bytes(data[place : place + more], "little"), place + more
            out += data[place : place + length + 1]
            place += length + 1
            continue
        width = (1, 2, 4)[(tag & 3) - 1]
        back, place = int.from_bytes(data[place : place + width], "little"), place + width
        length = (tag >> 2) + 1
        if width == 1:
            back, length = back | tag >> 5 << 8, 4 + (tag >> 2 & 7)
        piece = out[-back:]
        out += (piece * (length // len(piece) + 1))[:length]
    return bytes(out)


def _files(message: bytes) -> Iterator[tuple[bytes, int, int | None]]:
    """Yield each ELF file in the message, how many messages are around it, and the launch's memory.

    The last is None where the launch is elsewhere.
    """
    if message.startswith(_ELF):
        yield message, 0, None
        return
    fields = list(_fields(message))
    for _, value in fields:
        if isinstance(value, bytes) and _ELF in value:
            for elf, height, within in _files(value):
                added = dict(fields).get(_LAUNCHED_WITH, 0) if height == _HEIGHT else within
                yield elf, height + 1, added if isinstance(added, int) else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message, with their numbers."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key & 7 == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:
            size, place = _varint(message, place)
        yield key >> 3, message[place : place + size]
        place += size


def _uses(elf: bytes, launched_with: int | None) -> Iterator[tuple[str, KernelUse]]:
    """Yield name and use of each kernel in an ELF file."""
    (start,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<3H", elf, 58)
    sections = [_SECTION.unpack_from(elf, start + n * size) for n in range(count)]
    named = {_text(elf, sections[names], section[0]): section for section in sections}
    registers, stacks = (dict(_attributes(elf, named, key)) for key in (_REGISTERS, _STACK))
    symbols = next(section for section in sections if section[1] == _SYMBOLS)
    for number in registers:
        place = symbols[2] + number * _SYMBOL.size
        name, _, other, *_ = _SYMBOL.unpack_from(elf, place)
        if not other & _ENTRY:
            continue  # a function that kernels call
        kernel = _text(elf, sections[symbols[4]], name)
        shared = named[f".nv.shared.{kernel}"][3] if f".nv.shared.{kernel}" in named else 0
        shared = None if launched_with is None else shared + launched_with
        yield kernel, KernelUse(registers[number], shared, stacks.get(number, 0))


def _attributes(
    elf: bytes, named: Mapping[str, tuple[int, ...]], key: int
) -> Iterator[tuple[int, int]]:
    """Yield symbol and number of an attribute that the file has for several symbols."""
    _, _, place, size, *_ = named[".nv.info"]
    end = place + size
    while place < end:
        kind, attribute, length = struct.unpack_from("<BBH", elf, place)
        place += 4
        if kind == _WITH_VALUE:
            if attribute == key:
                yield struct.unpack_from("<II", elf, place)
            place += length


def _text(elf: bytes, table: tuple[int, ...], place: int) -> str:
    start = table[2] + place
    return elf[start : elf.index(b"\0", start)].decode()


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number that stands there, in groups of seven bits, and the place behind it."""
    number = shift = 0
    while True:
        byte, place = data[place], place + 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, place
