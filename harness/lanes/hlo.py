"""The messages of ``hlo.proto``: an HLO module, as far as this project reads or changes it.

They are made from the file's descriptor when this module is imported. The Python module that protoc
writes would work only with protobuf of the version it was made for, or the next:
https://protobuf.dev/support/cross-version-runtime-guarantee/
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message


def load(descriptors: Path) -> dict[str, type[Message]]:
    """Return the messages of a descriptor set, by their names."""
    pool = descriptor_pool.DescriptorPool()
    classes = {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        pool.Add(file)
        for message in file.message_type:
            described = pool.FindMessageTypeByName(f"{file.package}.{message.name}")
            classes[message.name] = message_factory.GetMessageClass(described)
    return classes


globals().update(load(Path(__file__).with_suffix(".binpb")))
