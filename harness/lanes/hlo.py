"""The messages of ``hlo.proto``: an HLO module, as far as this project reads or changes it.

They are made from the file's descriptor when this module is imported. The Python module that protoc
writes would work only with protobuf of the version it was made for, or the next:
https://protobuf.dev/support/cross-version-runtime-guarantee/
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_pool = descriptor_pool.DescriptorPool()
_descriptors = Path(__file__).with_suffix(".binpb").read_bytes()
for _file in descriptor_pb2.FileDescriptorSet.FromString(_descriptors).file:
    _pool.Add(_file)
    for _name in _file.message_type:
        _found = _pool.FindMessageTypeByName(f"{_file.package}.{_name.name}")
        globals()[_name.name] = message_factory.GetMessageClass(_found)
