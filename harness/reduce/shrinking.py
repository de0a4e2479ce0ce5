"""Steps that make a program smaller. Each yields programs that may no longer fail, or be none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from harness.reduce.stablehlo import (
    attributes,
    changed,
    copied,
    count,
    every,
    is_mark,
    main_of,
    tensor_of,
    unmark_operation,
    whole,
)
from harness.reduce.trial import values_of

Step = Callable[[str], Iterator[str]]
_DIMENSIONS = re.compile(r"(?<=tensor<)[\dx]+(?=x)")
_NUMBER = re.compile(r"(?<![\w%#@.\"])\d+(?![\w.])")
_AXIS = re.compile(r'"(\w+)"=(\d+)')
_PARTITIONS = re.compile(r"(?<=mhlo\.num_partitions = )\d+")
_SHARDING = re.compile(r"<@\w+, \[.*?\](?:, replicated={[^}]*})?>")
_FOLDED = 64  # elements of a constant that stays readable
_VALUES = ("func.func", "stablehlo.constant")  # what has no operands
_LARGER = re.compile(r"(?<=[x<])(?:bf16|f64|f16|i64|ui32|i8|ui8)(?=>)")


def return_a_value(text: str) -> Iterator[str]:
    """Return one intermediate value, and nothing that is computed after it; the smallest first."""
    programs = set()
    for place, (results, _) in enumerate(_top(text)):
        for result in range(len(results)):

            def value(module: Any, place: int = place, result: int = result) -> bool:
                block = main_of(module).regions[0].blocks[0]
                return _set_results(module, [block.operations[place].operation.results[result]])

            programs.add(changed(text, value))
    yield from sorted(programs - {"", text}, key=lambda program: (count(program), program))


def _set_results(module: Any, values: Sequence[Any]) -> bool:
    from jaxlib.mlir import ir

    main = main_of(module)
    block = main.regions[0].blocks[0]
    end = list(block.operations)[-1].operation
    with ir.InsertionPoint(end):
        ir.Operation.create("func.return", operands=list(values))
    end.erase()
    _set_type(main, block, [value.type for value in values])
    return True


def _set_type(main: Any, block: Any, results: Sequence[Any]) -> None:
    from jaxlib.mlir import ir

    inputs = [argument.type for argument in block.arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, list(results)))
    if "arg_attrs" in main.attributes:
        given = list(main.attributes["arg_attrs"])[: len(inputs)]
        given += [ir.DictAttr.get({})] * (len(inputs) - len(given))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(given)
    if "res_attrs" in main.attributes:
        del main.attributes["res_attrs"]


def drop_results(text: str) -> Iterator[str]:
    """Return fewer values: half of them, then one less."""
    number = _returned(text)
    size = number // 2
    while size:
        for start in range(0, number, size):

            def drop(module: Any, start: int = start, size: int = size) -> bool:
                end = list(main_of(module).regions[0].blocks[0].operations)[-1].operation
                values = list(end.operands)
                return _set_results(module, values[:start] + values[start + size :])

            yield changed(text, drop)
        size //= 2


def _returned(text: str) -> int:
    return len(_top(text)[-1][1])


def take_values_as_arguments(text: str) -> Iterator[str]:
    """Take the results of some operations as arguments: of half of them, then of fewer.

    Integers are left as they are: random ones would be indices out of bounds, a failure of its own.
    """
    number = len(_top(text)) - 1
    size = number
    while size:
        for start in range(0, number, size):
            places = range(start, min(start + size, number))
            yield changed(text, partial(_take, places=places))
        size //= 2


def _take(module: Any, places: range) -> bool:
    from jaxlib.mlir import ir

    main = main_of(module)
    block = main.regions[0].blocks[0]
    operations = [block.operations[place].operation for place in places]
    some = False
    for operation in operations:
        for result in operation.results:
            if list(result.uses) and _is_real(result.type):
                argument = block.add_argument(result.type, ir.Location.unknown())
                result.replace_all_uses_with(argument)
                some = True
    _set_type(main, block, main.type.results)
    return some


def _is_real(type_: Any) -> bool:
    tensor = tensor_of(type_)
    return tensor is not None and "i" not in str(tensor.element_type)


def fold_constants(text: str) -> Iterator[str]:
    """Use a constant in the place of what is computed from constants alone, by one device."""
    places: list[int] = []

    def keep(module: Any) -> bool:
        block = main_of(module).regions[0].blocks[0]
        operations = [child.operation for child in block.operations]
        places.extend(
            n for n, op in enumerate(operations) if _is_constant(op) and _is_folded(op.results)
        )
        return _set_results(module, [operations[n].results[0] for n in places]) if places else False

    if not (kept := changed(text, keep)) or not (alone := whole(kept)):
        return
    arrays = [str(array).lower() for array in values_of(next(drop_arguments(alone)) or alone)]

    def fold(module: Any) -> bool:
        from jaxlib.mlir import ir

        block = main_of(module).regions[0].blocks[0]
        operations = [child.operation for child in block.operations]
        for n, numbers in zip(places, arrays, strict=True):
            result = operations[n].results[0]
            with ir.InsertionPoint(operations[n]):
                value = ir.Attribute.parse(f"dense<{numbers}> : {result.type}")
                new = ir.Operation.create(
                    "stablehlo.constant", results=[result.type], attributes={"value": value}
                )
            result.replace_all_uses_with(new.results[0])
        return True

    if arrays:
        yield changed(text, fold)


def _is_folded(results: Sequence[Any]) -> bool:
    """Return whether a constant is written in the place of the results: few integers."""
    tensor = tensor_of(results[0].type) if len(results) == 1 else None
    if tensor is None:
        return False
    return "i" in str(tensor.element_type) and math.prod(tensor.shape) <= _FOLDED


def _is_constant(operation: Any) -> bool:
    """Return whether it computes something from constants alone."""
    from jaxlib.mlir import ir

    if operation.name == "stablehlo.constant" or len(operation.regions):
        return False
    return bool(len(operation.operands)) and all(
        not isinstance(value.owner, ir.Block)
        and (value.owner.name == "stablehlo.constant" or _is_constant(value.owner))
        for value in operation.operands
    )


def drop_arguments(text: str) -> Iterator[str]:
    """Drop the arguments that nothing uses."""

    def drop(module: Any) -> bool:
        from jaxlib.mlir import ir

        main = main_of(module)
        block = main.regions[0].blocks[0]
        unused = [n for n, each in enumerate(block.arguments) if not list(each.uses)]
        kept = [n for n in range(len(block.arguments)) if n not in unused]
        if "arg_attrs" in main.attributes:
            attributes = list(main.attributes["arg_attrs"])
            main.attributes["arg_attrs"] = ir.ArrayAttr.get([attributes[n] for n in kept])
        for number in reversed(unused):
            block.erase_argument(number)
        _set_type(main, block, main.type.results)
        return bool(unused)

    yield changed(text, drop)


def forward_operands(text: str) -> Iterator[str]:
    """Use operands in the place of operations' results: of half of them, then of fewer.

    The last operations come first.
    """
    rows = _every(text)
    places = [n for n, (name, *_) in enumerate(rows) if name not in _VALUES][::-1]
    size = len(places) // 2
    while size > 1:
        for start in range(0, len(places), size):
            yield changed(text, partial(_forward_all, places=places[start : start + size]))
        size //= 2
    for place in places:
        _, results, operands = rows[place]
        for result, operand in product(range(len(results)), range(len(operands))):
            if results[result] == operands[operand]:
                yield changed(text, partial(_forward, place=place, result=result, operand=operand))


def _forward(module: Any, place: int, result: int, operand: int) -> bool:
    operation = every(module)[place]
    operation.results[result].replace_all_uses_with(operation.operands[operand])
    return True


def _forward_all(module: Any, places: Sequence[int]) -> bool:
    operations = every(module)
    for operation in (operations[place] for place in places):
        for result in operation.results:
            same = [value for value in operation.operands if value.type == result.type]
            if same:
                result.replace_all_uses_with(same[0])
    return True


def drop_unused(text: str) -> Iterator[str]:
    """Drop what nobody uses although it may have an effect, as a collective has: all, then each.

    Of two operations of one name and type the first may stand for the second.
    """
    yield changed(text, lambda module: sum(map(_erase, reversed(every(module)))) > 0)
    rows = _every(text)
    for place, row in enumerate(rows):
        if not row[1]:
            continue
        for earlier in (n for n in range(place) if rows[n] == row):

            def merge(module: Any, place: int = place, earlier: int = earlier) -> bool:
                operations = every(module)
                for number, result in enumerate(operations[place].results):
                    result.replace_all_uses_with(operations[earlier].results[number])
                return _erase(operations[place])

            yield changed(text, merge)


def _erase(operation: Any) -> bool:
    """Erase an operation that has results, if nobody uses any; return whether it did."""
    results = list(operation.results)
    if not results or any(list(result.uses) for result in results):
        return False
    operation.erase()
    return True


def trim_computations(text: str) -> Iterator[str]:
    """Leave out what a manual computation takes and returns without need."""
    for place, (name, *_) in enumerate(_every(text)):
        if name == "sdy.manual_computation":
            yield changed(text, partial(_trim, place=place))


def _trim(module: Any, place: int) -> bool:
    from jaxlib.mlir import ir

    operation = every(module)[place]
    block = operation.regions[0].blocks[0]
    end = list(block.operations)[-1].operation
    kept = {
        "out_shardings": [n for n, each in enumerate(operation.results) if list(each.uses)],
        "in_shardings": [n for n, each in enumerate(block.arguments) if list(each.uses)],
    }
    returned, taken = kept.values()
    if (len(returned), len(taken)) == (len(operation.results), len(block.arguments)):
        return False
    named = attributes(operation)
    for name, places in kept.items():
        shardings = _SHARDING.findall(str(named[name]))
        some = ", ".join(shardings[n] for n in places)
        named[name] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{some}]>")
    with ir.InsertionPoint(operation):
        new = ir.Operation.create(
            operation.name,
            results=[operation.results[n].type for n in returned],
            operands=[operation.operands[n] for n in taken],
            attributes=named,
            regions=1,
        )
    with ir.InsertionPoint(end):
        ir.Operation.create(end.name, operands=[end.operands[n] for n in returned])
    end.erase()
    for number in reversed(range(len(block.arguments))):
        if number not in taken:
            block.erase_argument(number)
    block.append_to(new.regions[0])
    for number, n in enumerate(returned):
        operation.results[n].replace_all_uses_with(new.results[number])
    operation.erase()
    return True


def put_zeros(text: str) -> Iterator[str]:
    """Use zeros in the place of an operation's result."""
    for place, (name, results, _) in enumerate(_every(text)):
        if name in _VALUES or len(results) != 1:
            continue

        def zero(module: Any, place: int = place) -> bool:
            from jaxlib.mlir import ir

            operation = every(module)[place]
            type_ = tensor_of(operation.results[0].type)
            if type_ is None or not list(operation.results[0].uses):
                return False
            element = type_.element_type
            kind = ir.FloatAttr.get(element, 0.0) if "f" in str(element) else None
            value = kind or ir.IntegerAttr.get(element, 0)
            with ir.InsertionPoint(operation):
                new = ir.Operation.create(
                    "stablehlo.constant",
                    results=[type_],
                    attributes={"value": ir.DenseElementsAttr.get_splat(type_, value)},
                )
            operation.results[0].replace_all_uses_with(new.results[0])
            return True

        try:
            yield changed(text, zero)
        except (TypeError, ValueError):
            continue  # a type without such a constant


def run_once(text: str) -> Iterator[str]:
    """Put the body of a loop, or one branch of a condition, in its place."""
    for place, (name, _, _) in enumerate(_every(text)):
        if name not in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
            continue
        for region in (1,) if name == "stablehlo.while" else (0, 1):

            def once(module: Any, place: int = place, region: int = region) -> bool:
                from jaxlib.mlir import ir

                operation = every(module)[place]
                is_loop = operation.name == "stablehlo.while"
                given = list(operation.operands) if is_loop else []
                with ir.InsertionPoint(operation):
                    values = copied(operation.regions[region].blocks[0], given)
                for result, value in zip(operation.results, values, strict=True):
                    result.replace_all_uses_with(value)
                operation.erase()  # a loop that may not end is never dead
                return True

            yield changed(text, once)


def drop_annotations(text: str) -> Iterator[str]:
    """Leave out where one value is: of an operation, of an argument, or a constraint."""
    for place, _ in enumerate(_every(text)):

        def drop(module: Any, place: int = place) -> bool:
            operation = every(module)[place]
            if is_mark(operation):
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()  # newer Shardy's constraints are never dead
                return True
            return unmark_operation(operation)

        yield changed(text, drop)
    for match in re.finditer(r" {sdy\.sharding = #sdy\.sharding<[^}]*?>}", text):
        yield text[: match.start()] + text[match.end() :]
    for match in re.finditer(r'{"\w+"(?:, "\w+")*}', text):
        yield text[: match.start()] + "{}" + text[match.end() :]
    yield re.sub(r" {jax\.result_info = [^}]*}", "", text)


def use_fewer_devices(text: str) -> Iterator[str]:
    """Make an axis of the mesh half as long, or leave it out."""
    for match in _AXIS.finditer(text):
        name, size = match[1], int(match[2])
        for smaller in dict.fromkeys((1, size // 2)) if size > 1 else ():
            other = text[: match.start()] + f'"{name}"={smaller}' + text[match.end() :]
            yield _PARTITIONS.sub(partial(_fewer, size, smaller), other)
        if size == 1:
            other = text.replace(f', "{name}"=1', "").replace(f'"{name}"=1, ', "")
            yield re.sub(rf', "{name}"(?=[,}}])|"{name}"(?:, )?(?=["}}])', "", other)


def _fewer(size: int, smaller: int, partitions: re.Match[str]) -> str:
    return str(int(partitions[0]) // size * smaller)


def use_smaller_shapes(text: str) -> Iterator[str]:
    """Make all dimensions of one size smaller, alone or with all numbers near to it."""
    sizes = sorted({int(n) for d in _DIMENSIONS.findall(text) for n in d.split("x")}, reverse=True)
    for size in sizes:
        for less in dict.fromkeys(size - each for each in (1, size // 2, size - 1)):
            if 0 < less < size:
                yield _resized(text, partial(_less, above=size - 1, most=size, less=less))
        for less in dict.fromkeys((size // 2, size // 4, 2, 1)):
            if 0 < less < size:
                yield _resized(text, partial(_less, above=less, most=size, less=less))
    for size in sizes:
        if size > 1:
            yield _DIMENSIONS.sub(partial(_ones, str(size)), text)


def _less(number: int, above: int, most: int, less: int) -> int:
    return number - less if above < number <= most else number


def _ones(size: str, dimensions: re.Match[str]) -> str:
    return "x".join("1" if number == size else number for number in dimensions[0].split("x"))


def _resized(text: str, change: Callable[[int], int]) -> str:
    """Return the text with other numbers in shapes and in what operations say, but not in names."""
    head, mesh, body = text.partition("func.func")
    body = _NUMBER.sub(lambda m: str(change(int(m[0]))), body)
    body = _DIMENSIONS.sub(lambda m: "x".join(str(change(int(n))) for n in m[0].split("x")), body)
    return head + mesh + body


def use_usual_types(text: str) -> Iterator[str]:
    """Use float32 and int32 in the place of one other type."""
    for name in sorted(set(_LARGER.findall(text))):
        other = "i32" if "i" in name else "f32"
        yield re.sub(rf"(?<=[x<]){name}(?=>)", other, text)


def use_simple_constants(text: str) -> Iterator[str]:
    """Use one number in the place of a table."""
    for match in re.finditer(r"dense<(\[[^>]*\]|\"[^\"]*\")>", text):
        for number in ("0", "1"):
            for end in ("", ".000000e+00"):
                yield f"{text[: match.start()]}dense<{number}{end}>{text[match.end() :]}"


STEPS: Sequence[Step] = (
    return_a_value,
    take_values_as_arguments,
    drop_results,
    drop_arguments,
    fold_constants,
    run_once,
    forward_operands,
    drop_unused,
    trim_computations,
    drop_annotations,
    use_fewer_devices,
    use_smaller_shapes,
    put_zeros,
    use_simple_constants,
    use_usual_types,
)


def _top(text: str) -> list[tuple[list[str], list[str]]]:
    """Return the types of results and operands of main's operations, the return last."""
    rows: list[tuple[list[str], list[str]]] = []

    def look(module: Any) -> bool:
        block = main_of(module).regions[0].blocks[0]
        rows.extend(_types(child.operation) for child in block.operations)
        return False

    changed(text, look)
    return rows


def _every(text: str) -> list[tuple[str, list[str], list[str]]]:
    rows: list[tuple[str, list[str], list[str]]] = []

    def look(module: Any) -> bool:
        rows.extend((operation.name, *_types(operation)) for operation in every(module))
        return False

    changed(text, look)
    return rows


def _types(operation: Any) -> tuple[list[str], list[str]]:
    return (
        [str(value.type) for value in operation.results],
        [str(value.type) for value in operation.operands],
    )
