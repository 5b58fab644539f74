"""Schemas of Protobuf, which a registry has as texts, compiled by protoc (the extra `protobuf`).

Confluent's converter uses its own options and types without importing or registering their files: they are given here,
and those of Google are in its packages.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starrocks_txn_sink.errors import OptionError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_META: Final = "confluent/meta.proto"
_OPTION: Final = re.compile(r"\(\s*\.?confluent\.\w+_meta\s*\)")
_IMPORT: Final = re.compile(rf"""(?:^|;)\s*import\s+(?:public\s+|weak\s+)?["']{re.escape(_META)}["']""", re.MULTILINE)
_OPTIONS: Final = {"File": "file", "Message": "message", "Field": "field", "Enum": "enum", "EnumValue": "enum_value"}
_NUMBER: Final = 1088  # of Confluent's options
_EXTENSIONS: Final = "".join(
    f"extend google.protobuf.{kind}Options {{ Meta {name}_meta = {_NUMBER}; }}\n" for kind, name in _OPTIONS.items()
)
_OURS: Final = {
    _META: 'syntax = "proto3";\npackage confluent;\nimport "google/protobuf/descriptor.proto";\n'
    "message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }\n"
    "message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; "
    f"}}\n{_EXTENSIONS}",
    "confluent/type/decimal.proto": 'syntax = "proto3";\npackage confluent.type;\n'
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }\n",
}
"""The files of Confluent's that its converter for Kafka Connect uses; their numbers are on the wire."""


@dataclass(frozen=True)
class ProtobufFile:
    """A compiled schema; `messages` are those of its top level, in its order."""

    messages: tuple[Descriptor, ...]
    _meta: Any

    def params(self, field: FieldDescriptor) -> Mapping[str, str]:
        """What Confluent's converter says of a field besides its type."""
        options = self._meta[0].FromString(field.GetOptions().SerializeToString()) if self._meta else None
        return dict(options.Extensions[self._meta[1]].params) if options is not None else {}


def compile_file(text: str, dependencies: Sequence[tuple[str, str]] = ()) -> ProtobufFile:
    """The schema whose text is given; `dependencies` has the names and the texts of the files that it imports.

    Raises OptionError without the extra, and ValueError for a text that protoc refuses.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from grpc_tools import protoc
    except ImportError:
        raise OptionError(
            "A schema is Protobuf's, and protoc is not installed here.",
            hint="Install starrocks-txn-sink[protobuf] on the driver and on every executor.",
            option="registry",
        ) from None
    with tempfile.TemporaryDirectory(prefix="protobuf-") as folder:
        files = {**_OURS, **dict(dependencies)}
        name = next(
            name for name in (f"schema{'_' * count}.proto" for count in range(len(files) + 1)) if name not in files
        )
        for path, content in [*files.items(), (name, text)]:
            _write(Path(folder), path, _with_meta(content))
        output = Path(folder, "set")
        arguments = [f"-I{path}" for path in (folder, *_folders())]
        if protoc.main(["protoc", *arguments, "--include_imports", f"--descriptor_set_out={output}", name]):
            raise ValueError("no schema of Protobuf that can be read (protoc says why in the log of this process)")
        content = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in content.file:
        pool.Add(file)
    messages = pool.FindFileByName(name).message_types_by_name.values()
    return ProtobufFile(tuple(messages), _meta_of(pool))


def _with_meta(text: str) -> str:
    """The text with the import that its options need; an import may stand anywhere."""
    return f'{text}\nimport "{_META}";\n' if _OPTION.search(text) and not _IMPORT.search(text) else text


def _write(folder: Path, name: str, content: str) -> None:
    """Write a file whose name another one imports, which may not lead out of the folder."""
    path = folder.joinpath(name).resolve()
    if folder.resolve() not in path.parents:
        raise ValueError("no schema of Protobuf that can be read (it refers to a file of another folder)")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def _folders() -> Iterator[str]:
    """The folders with Google's files: those of protoc, and those of googleapis-common-protos."""
    for package, above in (("grpc_tools", "_proto"), ("google.type", "../..")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield str(Path(folder, above).resolve())


def _meta_of(pool: Any) -> Any:
    """The class of a field's options, and Confluent's extension of them; None where the schema does not use it."""
    from google.protobuf import message_factory

    try:
        extension = pool.FindExtensionByName("confluent.field_meta")
    except KeyError:
        return None
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FieldOptions")), extension
