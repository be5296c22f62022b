"""A checkpoint's model as one safetensors file: ``python -m trainer.export CHECKPOINT OUT.safetensors``.

The format: eight bytes with the header's length, a JSON header with type, shape and place of each tensor, the data.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer import manifest

TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}


class CannotExport(Exception):
    """The checkpoint cannot be exported; the message says why."""


def model_of(folder: Path) -> dict[str, Tensor]:
    """The model's whole tensors by name, whatever number of ranks wrote them. The checkpoint must verify."""
    fault = manifest.fault_of(folder) if folder.is_dir() else "it does not exist"
    if fault:
        raise CannotExport(f"The checkpoint {folder} cannot be exported: {fault}.")
    if not (folder / ".metadata").is_file():
        raise CannotExport(f"The checkpoint {folder} was made by a script of its own; only that can read it.")
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in metadata.items()
        if name.startswith("model.") and isinstance(found, TensorStorageMetadata)
    }
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def safetensors_write(tensors: dict[str, Tensor], path: Path, facts: dict[str, str]) -> None:
    """Write the file beside its place, and move it there when it is whole."""
    header: dict[str, object] = {"__metadata__": facts}
    offset = 0
    for name, tensor in sorted(tensors.items()):
        shape, size = list(tensor.shape), tensor.nbytes
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    new = path.with_name(path.name + ".new")
    with new.open("wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for _, tensor in sorted(tensors.items()):
            out.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


def main() -> int:
    """Zero when the file is written; one sentence on standard error when not."""
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description="A checkpoint as safetensors.")
    parser.add_argument("checkpoint", type=Path, help="a folder step_NNNNNNNN")
    parser.add_argument("out", type=Path, help="the file to write")
    arguments = parser.parse_args()
    try:
        tensors = model_of(arguments.checkpoint)
        facts = manifest.facts_of(arguments.checkpoint)
        safetensors_write(tensors, arguments.out, {"step": str(facts["step"]), "format": "pt"})
    except CannotExport as error:
        print(f"trainer.export: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"trainer.export: {arguments.out} cannot be written: {error.strerror}.", file=sys.stderr)
        return 2
    print(json.dumps({"file": str(arguments.out), "tensors": len(tensors), "step": facts["step"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
