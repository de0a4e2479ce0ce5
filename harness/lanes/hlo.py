"""HloModuleProto, the fields of it that this project reads or changes.

protobuf keeps all others as they came, so that a module of any XLA version passes through unharmed.
Numbers and names are those of ``xla/service/hlo.proto`` and ``xla/xla_data.proto``:
https://github.com/openxla/xla/blob/main/xla/service/hlo.proto
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_INT, _BYTES, _TEXT = _FIELD.TYPE_INT64, _FIELD.TYPE_BYTES, _FIELD.TYPE_STRING
_MESSAGES: dict[str, dict[str, tuple[int, int | str, bool]]] = {  # number, type, repeated
    "Shape": {
        "element_type": (2, _INT, False),
        "dimensions": (3, _INT, True),
        "tuple_shapes": (4, "Shape", True),
    },
    "ReplicaGroup": {"replica_ids": (1, _INT, True)},
    "IotaReplicaGroups": {
        "groups": (1, _INT, False),
        "devices": (2, _INT, False),
        "reshape_dims": (3, _INT, True),
        "transpose_perm": (4, _INT, True),
    },
    "DeviceList": {
        "replica_groups": (1, "ReplicaGroup", True),
        "iota": (2, "IotaReplicaGroups", False),
    },
    "SourceTarget": {"source": (1, _INT, False), "target": (2, _INT, False)},
    "Attribute": {"key": (1, _TEXT, False), "value": (2, _TEXT, False)},
    "Attributes": {"map": (1, "Attribute", True)},
    "Instruction": {
        "name": (1, _TEXT, False),
        "opcode": (2, _TEXT, False),
        "shape": (3, "Shape", False),
        "metadata": (7, _BYTES, False),
        "custom_call_target": (28, _TEXT, False),
        "id": (35, _INT, False),
        "operand_ids": (36, _INT, True),
        "control_predecessor_ids": (37, _INT, True),
        "called_computation_ids": (38, _INT, True),
        "sharding": (40, _BYTES, False),
        "backend_config": (43, _BYTES, False),
        "is_host_transfer": (47, _INT, False),
        "replica_groups": (49, "ReplicaGroup", True),
        "source_target_pairs": (52, "SourceTarget", True),
        "frontend_attributes": (68, "Attributes", False),
        "device_list": (87, "DeviceList", False),
    },
    "Computation": {
        "name": (1, _TEXT, False),
        "instructions": (2, "Instruction", True),
        "id": (5, _INT, False),
        "root_id": (6, _INT, False),
    },
    "Module": {
        "computations": (3, "Computation", True),
        "entry_computation_id": (6, _INT, False),
    },
}


@cache
def module_class() -> Any:
    """The message class of a module, which parses and serialises."""
    # proto2, which keeps a field that is there and empty: {replicated} is an empty sharding.
    file = descriptor_pb2.FileDescriptorProto(
        name="xla_harness/hlo.proto", package="xla_harness", syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            message.field.add(
                name=field,
                number=number,
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
                type=_FIELD.TYPE_MESSAGE if isinstance(kind, str) else kind,
                type_name=f".xla_harness.{kind}" if isinstance(kind, str) else None,
                options={"packed": True} if repeated and kind == _INT else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("xla_harness.Module"))
